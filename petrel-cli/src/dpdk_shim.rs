//! `petrel dpdk-shim`: the library between Petrel and the DPDK of this host.

use std::env;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_transport::device::dpdk::compile_shim;
use serde::Serialize;

use crate::cli::DpdkShimArgs;

#[derive(Serialize)]
struct Compiled {
    library: String,
}

pub(crate) fn run(args: &DpdkShimArgs, output: Output) -> Result<Outcome, Failure> {
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => {
            let program = env::current_exe().map_err(Failure::because)?;
            program.parent().map(ToOwned::to_owned).unwrap_or_default()
        }
    };
    let (library, command) = compile_shim(&folder).map_err(Failure::because)?;
    let library = library.display().to_string();
    output.line(format!("Compiled {library} by: {command}"))?;
    output.record(&Compiled { library })?;
    Ok(Outcome::Success)
}
