//! `petrel index`: the command line of the crate `petrel-index`.

mod bench;
mod calls;
mod serve;

use petrel_index::{ClientError, ServerError};

use crate::Outcome;
use crate::cli::{IndexArgs, IndexCommand};
use crate::failure::Failure;
use crate::output::Output;

/// Runs one of the subcommands.
pub(crate) fn run(args: &IndexArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        IndexCommand::Serve(args) => serve::run(args, output),
        IndexCommand::Get(args) => calls::get(args, output),
        IndexCommand::Put(args) => calls::put(args, output),
        IndexCommand::Delete(args) => calls::delete(args, output),
        IndexCommand::Scan(args) => calls::scan(args, output),
        IndexCommand::Status(args) => calls::status(args, output),
        IndexCommand::Bench(args) => bench::run(args, output),
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::new(error.status(), error.to_string())
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Io(error) => error.into(),
            ServerError::Setup(error) => error.into(),
            error => Self::because(error),
        }
    }
}
