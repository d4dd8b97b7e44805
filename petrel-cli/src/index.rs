//! `petrel index`: the command line of the crate `petrel-index`.

mod calls;
mod serve;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_index::ServerError;

use crate::cli::{IndexArgs, IndexCommand};

pub(crate) use serve::print_counters;

pub(crate) fn run(args: &IndexArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        IndexCommand::Serve(args) => serve::run(args, output),
        IndexCommand::Get(args) => calls::get(args, output),
        IndexCommand::Put(args) => calls::put(args, output),
        IndexCommand::Delete(args) => calls::delete(args, output),
        IndexCommand::Scan(args) => calls::scan(args, output),
        IndexCommand::Status(args) => calls::status(args, output),
    }
}

/// Returns the failure of a subcommand for a server that did not start.
fn server_failure(error: ServerError) -> Failure {
    match error {
        ServerError::Io(error) => error.into(),
        ServerError::Setup(error) => error.into(),
        error => Failure::because(error),
    }
}
