//! Network namespaces as hosts, and the devices between them.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::tool::{Error, ip, run};

/// A network namespace beside the caller's.
///
/// A process holds the namespace open. The process ends with this object, and at the latest with the caller's process.
#[derive(Debug)]
pub struct Host {
    holder: Child,
}

impl Host {
    /// Creates a namespace without devices, except loopback.
    ///
    /// # Errors
    /// `unshare` cannot be run, or may not create a namespace.
    pub fn new() -> Result<Self, Error> {
        let command = || "unshare --net".to_owned();
        let not_run = |error| Error::NotRun { command: command(), error };
        // `cat` ends with its input, and the kernel closes the input's other end with the caller's process.
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(not_run)?;
        // The line comes from inside: the namespace exists.
        let mut line = [0];
        let arrived = holder.stdout.as_mut().is_some_and(|out| out.read_exact(&mut line).is_ok());
        if arrived {
            return Ok(Self { holder });
        }
        let output = holder.wait_with_output().map_err(not_run)?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Failed { command: command(), said })
    }

    /// Returns the id of the process that holds the namespace, by which `ip` and `nsenter` name the namespace.
    pub fn id(&self) -> u32 {
        self.holder.id()
    }

    /// Joins the caller's namespace with the host's by a pair of devices, which are down at first.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn join(&self, here: &str, there: &str) -> Result<(), Error> {
        ip(&format!("link add {here} type veth peer name {there} netns {}", self.id()))
    }

    /// Gives a device of the host its address, and sets the device and loopback up.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn bring_up(&self, device: &str, address: Ipv4Addr) -> Result<(), Error> {
        let ip = |arguments: &str| self.run("ip", &arguments.split(' ').collect::<Vec<_>>(), "");
        ip("link set lo up")?;
        up_with(device, address).iter().try_for_each(|arguments| ip(arguments).map(drop))
    }

    /// Runs a program on the host, with some input; returns its output.
    ///
    /// # Errors
    /// The program cannot be started, or fails.
    pub fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, Error> {
        let id = self.id().to_string();
        run("nsenter", &[&["--target", &id, "--net", "--", program], arguments].concat(), input)
    }

    /// Returns a command that runs a program on the host.
    pub fn command(&self, program: &Path) -> Command {
        command_within(self.id(), program)
    }

    /// Starts a thread on the host; threads that it starts are on the host, too. Sockets stay in their namespace, so
    /// a socket that the thread returns is still the host's.
    ///
    /// # Panics
    /// The thread panics if this process may not enter the namespace.
    pub fn spawn<R: Send + 'static>(
        &self,
        inside: impl FnOnce() -> R + Send + 'static,
    ) -> JoinHandle<R> {
        let process = self.id();
        thread::spawn(move || {
            enter(process).expect("the caller made the namespace, which lives as long as the host");
            inside()
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Moves this thread to the network namespace of another process, such as [`Host::id`].
///
/// # Errors
/// The process has ended, or the user may not enter its namespace.
pub fn enter(process: u32) -> Result<(), Error> {
    let enter = |space: File| {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    };
    File::open(format!("/proc/{process}/ns/net")).and_then(enter).map_err(Error::NoNamespace)
}

/// Returns a command that runs a program in the network namespace of another process.
pub fn command_within(process: u32, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &process.to_string(), "--net", "--"]).arg(program);
    command
}

/// Gives a device of this thread's namespace its address, and sets the device up.
///
/// # Errors
/// `ip` fails.
pub fn bring_up(device: &str, address: Ipv4Addr) -> Result<(), Error> {
    up_with(device, address).iter().try_for_each(|arguments| ip(arguments))
}

fn up_with(device: &str, address: Ipv4Addr) -> [String; 2] {
    [format!("address add {address}/24 dev {device}"), format!("link set {device} up")]
}

/// Moves this thread to a new network namespace. The namespace disappears with the last thread inside.
///
/// # Errors
/// The user has no right to create namespaces.
pub fn leave() -> Result<(), Error> {
    // SAFETY: a new network namespace shares no memory and no descriptor table; existing sockets stay in
    // their namespace.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|error| Error::NoNamespace(error.into()))
}
