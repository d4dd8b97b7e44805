//! `petrel cache`: the command line of the crate `petrel-cache`.

mod serve;

use petrel_cache::ServerError;
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use crate::cli::{CacheArgs, CacheCommand};

/// Runs one of the subcommands.
pub(crate) fn run(args: &CacheArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        CacheCommand::Serve(args) => serve::run(args, output),
    }
}

/// Returns the failure of a subcommand for a server that did not start.
fn server_failure(error: ServerError) -> Failure {
    match error {
        ServerError::Io(error) => error.into(),
        error => Failure::because(error),
    }
}
