//! `petrel xdp-helper`: the process with the rights for AF_XDP.

use std::fs;
use std::time::Duration;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::interrupt::Interrupt;
use petrel_command::output::Output;
use petrel_transport::device::xdp::Mode;
use petrel_transport::device::xdp::helper::Server;
use serde::Serialize;

use crate::cli::XdpHelperArgs;

#[derive(Serialize)]
struct Ready<'a> {
    event: &'static str,
    interface: &'a str,
    socket: String,
    pid: u32,
}

/// Time between two looks for a signal.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Helps until a signal comes, or the interface is gone: the XDP program ends with the process.
pub(crate) fn run(args: &XdpHelperArgs, output: Output) -> Result<Outcome, Failure> {
    // Installed before any thread starts: this thread alone must receive the signals.
    let interrupt = Interrupt::install()?;
    if let Some(folder) = args.socket.parent() {
        fs::create_dir_all(folder).map_err(|error| {
            Failure::because(format!("cannot make the folder {}: {error}", folder.display()))
        })?;
    }
    let mut server = Server::open(&args.interface, &args.socket, Mode::Auto, &args.allow)
        .map_err(Failure::because)?;
    let (interface, socket) = (args.interface.as_str(), args.socket.display().to_string());
    output.line(format!("Helping programs at {socket} to use {interface}; stop with Ctrl-C."))?;
    output.record(&Ready { event: "ready", interface, socket, pid: std::process::id() })?;
    while !interrupt.is_raised() {
        server.turn(CHECK_INTERVAL).map_err(Failure::because)?;
    }
    Ok(Outcome::Success)
}
