//! `petrel cache`: the command line of the crate `petrel-cache`.

mod calls;
mod serve;

use petrel_cache::{ServerError, Verb};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use crate::cli::{CacheArgs, CacheCommand};

pub(crate) fn run(args: &CacheArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        CacheCommand::Serve(args) => serve::run(args, output),
        CacheCommand::Get(args) => calls::get(args, output),
        CacheCommand::Set(args) => calls::store(args, Verb::Set, None, output),
        CacheCommand::Add(args) => calls::store(args, Verb::Add, None, output),
        CacheCommand::Replace(args) => calls::store(args, Verb::Replace, None, output),
        CacheCommand::Cas(args) => calls::store(&args.store, Verb::Set, Some(args.version), output),
        CacheCommand::Delete(args) => calls::delete(args, output),
        CacheCommand::Touch(args) => calls::touch(args, output),
        CacheCommand::Incr(args) => calls::incr(args, output),
        CacheCommand::Stats(args) => calls::stats(args, output),
        CacheCommand::Bench(args) => petrel_bench::cache::run(args, output),
        CacheCommand::Attacks(args) => petrel_bench::cache::attacks::run(args, output),
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
