//! Two hosts and a cable between them: network namespaces joined by a veth pair. The clients are on one, the server's
//! processes on the other.
//!
//! The run restarts itself in separate namespaces, for which it needs root or user namespaces, and the programs
//! `unshare`, `nsenter`, `ip` and `nft`. The run is the first process of a process namespace: all processes, devices
//! and rules disappear with it, however it ends.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use petrel_netns::{Host, Isolation, Namespaces, end_with_parent, ip, nft};

use super::Failure;

/// Set for the process inside the namespaces: the log's path.
const LOG: &str = "PETREL_RESTARTS_LOG";

const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 2);
const PORT: u16 = 7000;

/// A short version of the run's steps.
const TRIAL: &str = "ip link set lo up && ip link add petrel-c type veth peer name petrel-s \
    && unshare --net true && nsenter --target $$ --net true && nft add table inet petrel";

/// Drops all packets received over the cable.
const DROP: &str = "table inet petrel { chain in { type filter hook input priority 0; iifname != \"lo\" drop; }; }";

/// Ends [`DROP`].
const PASS: &str = "delete table inet petrel";

/// Returns the log of a run inside separate namespaces.
pub(crate) fn log_inside() -> Option<OsString> {
    std::env::var_os(LOG)
}

/// Returns how this user can create the namespaces.
pub(crate) fn find() -> Result<Namespaces, petrel_netns::Error> {
    Namespaces::find(Isolation::NetworkAndProcesses, TRIAL, "")
}

/// Runs this program again, in separate namespaces. Returns true if it succeeded.
pub(crate) fn run_inside(namespaces: Namespaces, log: &Path) -> Result<bool, Failure> {
    Ok(namespaces.run_again(LOG, log)?)
}

/// How the hosts are cut off from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Rules drop all packets at both ends: neither end gets an error.
    Partition,
    /// The clients' device is taken down: the kernel refuses to send.
    Unplug,
}

/// The hosts. The clients' host is this process's namespace.
pub(crate) struct Network {
    server: Host,
}

impl Network {
    pub(crate) fn make() -> Result<Self, Failure> {
        // The parent process can no longer remove the log.
        end_with_parent(|| {
            if let Some(log) = log_inside() {
                let _ = std::fs::remove_file(log);
            }
        });
        let server = Host::new()?;
        ip("link set lo up")?;
        server.join("petrel-c", "petrel-s")?;
        petrel_netns::bring_up("petrel-c", CLIENTS)?;
        server.bring_up("petrel-s", SERVER)?;
        Ok(Self { server })
    }

    pub(crate) fn server(&self) -> SocketAddr {
        (SERVER, PORT).into()
    }

    /// Returns a command that runs a program on the server's host.
    pub(crate) fn on_server(&self, program: &Path) -> Command {
        self.server.command(program)
    }

    /// Cuts the hosts off from each other. No packet passes once this returns.
    pub(crate) fn cut(&self, cut: Cut) -> Result<(), Failure> {
        match cut {
            Cut::Unplug => Ok(ip("link set petrel-c down")?),
            Cut::Partition => self.set_rules(DROP),
        }
    }

    /// Undoes a cut.
    pub(crate) fn heal(&self, cut: Cut) -> Result<(), Failure> {
        match cut {
            Cut::Unplug => Ok(ip("link set petrel-c up")?),
            Cut::Partition => self.set_rules(PASS),
        }
    }

    /// Applies a script of nftables on both hosts.
    fn set_rules(&self, script: &str) -> Result<(), Failure> {
        nft(script)?;
        self.server.run("nft", &["-f", "-"], script)?;
        Ok(())
    }
}
