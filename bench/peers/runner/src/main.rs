//! Measures Petrel beside the alternatives of its users.
//!
//! Builds the programs of the peers, runs a server and a client of every peer in turn on two CPUs, and
//! prints one table. `cargo run --release -- --help` describes the flags.

mod building;
mod catalog;
mod cli;
mod host;
mod others;
mod peer_process;
mod plot;
mod probe;
mod record;
mod rounds;
mod summary;
mod table;
mod window;

use std::process::ExitCode;

use clap::Parser;
use peers_common::Failure;

use crate::cli::Cli;
use crate::record::{Record, Recorder};

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let cpus = cli.cpus()?;
    let mut recorder = Recorder::create(cli.json.as_deref())?;
    let host = host::Host::of_this_machine();
    println!("{host}");
    recorder.put(&Record::Run(&host))?;

    let entries = building::build(&cli.selected()?, &mut recorder)?;
    if entries.is_empty() {
        return Err("no peer could be built".into());
    }
    let windows = rounds::run(&entries, cli, cpus, &mut recorder)?;
    let rows = summary::rows(&entries, &windows);
    for row in &rows {
        recorder.put(&Record::Median(row))?;
    }
    println!("{}", table::render(&rows));
    println!("{}", host::load());
    if let Some(path) = &cli.plot {
        plot::draw(path, &rows, &host)?;
    }
    Ok(())
}
