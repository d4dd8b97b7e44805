//! Two hosts and a cable between them: network namespaces joined by a veth pair. The clients are on one, the server's
//! processes on the other.
//!
//! The run restarts itself in separate namespaces, for which it needs root or user namespaces, and the programs
//! `unshare`, `nsenter`, `ip` and `nft`. The run is the first process of a process namespace: all processes, devices
//! and rules disappear with it, however it ends.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Failure;

/// Set for the process inside the namespaces: the log's path.
const LOG: &str = "PETREL_RESTARTS_LOG";

/// The server's address.
const SERVER: &str = "10.97.0.2:7000";

/// For root, and for other users where allowed.
const FLAGS: [&str; 2] = [
    "--net --pid --fork --kill-child --mount-proc",
    "--user --map-root-user --net --pid --fork --kill-child --mount-proc",
];

/// A short version of the run's steps.
const TRIAL: &str = "ip link set lo up && ip link add petrel-c type veth peer name petrel-s \
    && unshare --net true && nsenter --target $$ --net true && nft add table inet petrel";

/// Drops all packets received over the cable.
const DROP: &str = "table inet petrel { chain in { type filter hook input priority 0; iifname != \"lo\" drop; }; }";

/// Returns the log of a run inside separate namespaces.
pub(crate) fn log_inside() -> Option<OsString> {
    std::env::var_os(LOG)
}

/// Returns the flags with which `unshare` creates the namespaces for this user. The error is for people.
pub(crate) fn find_flags() -> Result<&'static str, String> {
    let [root, others] = FLAGS;
    let test = |flags: &'static str| {
        let arguments: Vec<_> = flags.split(' ').chain(["sh", "-c", TRIAL]).collect();
        run("unshare", &arguments, "").map(|()| flags)
    };
    test(root).or_else(|why| test(others).map_err(|_| why))
}

/// Runs this program again, in separate namespaces. Returns true if it succeeded.
pub(crate) fn run_inside(flags: &str, log: &Path) -> Result<bool, Failure> {
    let mut child = Command::new("unshare")
        .args(flags.split(' '))
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(LOG, log)
        .stdin(Stdio::piped())
        .spawn()?;
    // The pipe stays empty until this process ends; the run inside notices the end.
    let pipe = child.stdin.take();
    let status = child.wait()?;
    drop(pipe);
    Ok(status.success())
}

/// Ends this process at the end of standard input, with the parent process, which can no longer remove the log.
fn end_with_parent() {
    std::thread::spawn(|| {
        while std::io::stdin().read(&mut [0]).is_ok_and(|count| count > 0) {}
        if let Some(log) = log_inside() {
            let _ = std::fs::remove_file(log);
        }
        std::process::exit(130);
    });
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
    /// Holds the server's namespace; ends with standard input, and at the latest with this process.
    server: Child,
}

impl Network {
    pub(crate) fn make() -> Result<Self, Failure> {
        end_with_parent();
        let mut server = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        // The child reports its arrival in the namespace.
        server.stdout.as_mut().ok_or("it is piped")?.read_exact(&mut [0])?;
        let network = Self { server };
        let id = network.server.id();
        ip("link set lo up")?;
        ip(&format!("link add petrel-c type veth peer name petrel-s netns {id}"))?;
        ip("address add 10.97.0.1/24 dev petrel-c")?;
        ip("link set petrel-c up")?;
        for words in
            ["link set lo up", "address add 10.97.0.2/24 dev petrel-s", "link set petrel-s up"]
        {
            network.at_server("ip", &words.split(' ').collect::<Vec<_>>(), "")?;
        }
        Ok(network)
    }

    pub(crate) fn server(&self) -> SocketAddr {
        SERVER.parse().expect("an address")
    }

    /// Returns a command that runs a program on the server's host.
    pub(crate) fn on_server(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.server.id().to_string(), "--net", "--"]).arg(program);
        command
    }

    fn at_server(&self, program: &str, arguments: &[&str], input: &str) -> Result<(), Failure> {
        let id = self.server.id().to_string();
        let arguments = [&["--target", &id, "--net", "--", program], arguments].concat();
        Ok(run("nsenter", &arguments, input)?)
    }

    /// Cuts the hosts off from each other. No packet passes once this returns.
    pub(crate) fn cut(&self, cut: Cut) -> Result<(), Failure> {
        match cut {
            Cut::Unplug => ip("link set petrel-c down"),
            Cut::Partition => {
                run("nft", &["-f", "-"], DROP)?;
                self.at_server("nft", &["-f", "-"], DROP)
            }
        }
    }

    /// Undoes a cut.
    pub(crate) fn heal(&self, cut: Cut) -> Result<(), Failure> {
        match cut {
            Cut::Unplug => ip("link set petrel-c up"),
            Cut::Partition => {
                let delete = ["delete", "table", "inet", "petrel"];
                run("nft", &delete, "")?;
                self.at_server("nft", &delete, "")
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // `cat` ends with its input.
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

fn ip(words: &str) -> Result<(), Failure> {
    Ok(run("ip", &words.split(' ').collect::<Vec<_>>(), "")?)
}

/// Runs a program with this input; the error is for people.
fn run(program: &str, arguments: &[&str], input: &str) -> Result<(), String> {
    let failed = |why: String| format!("`{program} {}`: {why}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    match (output.status.success(), written) {
        (true, Ok(())) => Ok(()),
        _ => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
