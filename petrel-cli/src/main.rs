//! The `petrel` command: try, measure and simulate Petrel, and diagnose a host.
//!
//! The files are named after the subcommands. [`cli`] defines the arguments, [`output`] the printing of
//! results, [`units`] the notation of sizes and durations. [`server`] and [`client`] are the two ends
//! that subcommands create; [`methods`] are the server's methods, [`load`] the client's calls. [`bench`]
//! has its own ends, and drives their event loops itself.
//!
//! Exit codes of every subcommand: 0 for success, 1 for failure, 2 for wrong usage.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

#[cfg(feature = "full")]
mod cache;
mod call;
mod cli;
#[cfg(feature = "full")]
mod credentials;
mod doctor;
#[cfg(feature = "full")]
mod dpdk_shim;
mod health;
#[cfg(feature = "full")]
mod index;
#[cfg(feature = "full")]
mod kv;
mod log;
mod manual;
mod ping;
#[cfg(feature = "full")]
mod seeds;
mod serve;
#[cfg(feature = "full")]
mod sim;
mod stats;
mod typed;
#[cfg(feature = "full")]
mod xdp_helper;

use std::io;
use std::process::ExitCode;

use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::{Outcome, text};

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    log::start(cli.global.log);
    let output = Output::new(cli.global.json, cli.global.quiet);
    match run(&cli, output) {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Failure) => ExitCode::FAILURE,
        Err(failure) => report(&failure, output),
    }
}

/// Prints a help text, the version or a usage error.
fn usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Ok(()) => ExitCode::from(error.exit_code() as u8),
        Err(failed) if failed.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(cli: &Cli, output: Output) -> Result<Outcome, Failure> {
    #[cfg(feature = "full")]
    match &cli.command {
        // The doctor looks at credentials, and uses none.
        Command::Doctor(_) => {}
        command if command.connects() => credentials::install(&cli.credentials)?,
        _ => credentials::refuse(&cli.credentials)?,
    }
    #[cfg(feature = "full")]
    credentials::use_device(&cli.credentials, cli.command.may_use_device())?;
    #[cfg(feature = "full")]
    credentials::authorize(&cli.credentials, cli.command.served())?;
    match &cli.command {
        Command::Demo(args) => petrel_bench::demo::run(args, output),
        Command::Serve(args) => serve::run(args, output),
        Command::Ping(args) => ping::run(args, output),
        Command::Call(args) => call::run(args, output),
        Command::List(args) => typed::list(args, output),
        Command::Stats(args) => stats::run(args, output),
        Command::Health(args) => health::run(args, output),
        #[cfg(feature = "full")]
        Command::Cert(args) => credentials::run_cert(args, output),
        #[cfg(feature = "full")]
        Command::Key(args) => credentials::run_key(args, output),
        #[cfg(feature = "full")]
        Command::Kv(args) => kv::run(args, cli.global, output),
        #[cfg(feature = "full")]
        Command::Bench(args) => petrel_bench::command::run(args, output),
        #[cfg(feature = "full")]
        Command::Index(args) => index::run(args, output),
        #[cfg(feature = "full")]
        Command::Cache(args) => cache::run(args, output),
        #[cfg(feature = "full")]
        Command::Sim(args) => sim::run(args, output),
        #[cfg(feature = "full")]
        Command::XdpHelper(args) => xdp_helper::run(args, output),
        #[cfg(feature = "full")]
        Command::DpdkShim(args) => dpdk_shim::run(args, output),
        #[cfg(feature = "full")]
        Command::Doctor(args) => Ok(doctor::run(args, &cli.credentials, output)?),
        #[cfg(not(feature = "full"))]
        Command::Doctor(args) => Ok(doctor::run(args, output)?),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::man(args),
        #[cfg(not(feature = "full"))]
        Command::Bench(_)
        | Command::Cache(_)
        | Command::Index(_)
        | Command::Kv(_)
        | Command::Sim(_) => Err(Failure::because(cli::LEFT_OUT)),
    }
}

/// Prints the failure to standard error, and with `--json` to standard output too. A reader that closes
/// the pipe early, for instance `head`, causes no failure and no message.
fn report(failure: &Failure, output: Output) -> ExitCode {
    if failure.is_closed_pipe() {
        return ExitCode::SUCCESS;
    }
    eprintln!("petrel: {}", text::clean(&failure.to_string()));
    // If standard output is closed, standard error has the message.
    let _ = output.record(&failure.record());
    ExitCode::FAILURE
}
