//! The other host of a run over devices: `all/over_devices.rs` starts such a run. In every other run, servers are on the tests' host.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};

use petrel::Endpoint;

/// The environment variable with the process that holds the other host. The library does not read the variable.
pub(crate) const HOST: &str = "PETREL_TEST_DEVICE_HOST";

/// The other host's address.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 85, 0, 2);

/// Precedes the received datagrams of an endpoint in the output: by the device, and all.
pub(crate) const COUNTED: &str = "datagrams by the device: ";

fn host() -> Option<u32> {
    std::env::var(HOST).ok().map(|process| process.parse().unwrap())
}

pub(crate) fn is_used() -> bool {
    host().is_some()
}

/// Returns the address on the servers' host for a server on this host.
pub(crate) fn address_of(server: SocketAddr) -> SocketAddr {
    if is_used() { (ADDRESS, server.port()).into() } else { server }
}

/// Starts a thread on the servers' host.
pub(crate) fn spawn(inside: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::spawn(move || {
        host().into_iter().for_each(|process| petrel_netns::enter(process).unwrap());
        inside();
    })
}

/// Returns a command that runs a program on the servers' host.
pub(crate) fn command(program: &Path) -> Command {
    match host() {
        Some(process) => petrel_netns::command_within(process, program),
        None => Command::new(program),
    }
}

/// Prints how many datagrams an endpoint has received by the device.
pub(crate) fn count(endpoint: &Endpoint) {
    if is_used() {
        let stats = endpoint.stats().transport;
        println!("\n{COUNTED}{} {}", stats.rx_device_datagrams, stats.rx_datagrams);
    }
}
