//! A network of two hosts: two network namespaces joined by a pair of virtual Ethernet devices.
//!
//! Loopback passes a run of datagrams on uncut. A network card does not: here the devices' segmentation
//! and receive offload are off, so each datagram is a separate packet, of 1500 bytes at most. This shows
//! the gain of Petrel's bundles beside a program that sends a datagram per message.
//!
//! The threads move into new namespaces. When the threads end, the kernel removes namespaces and
//! devices, however the process ends. The benchmark needs the right to create namespaces, and the
//! program `ip`.

mod features;

use std::io;
use std::process::{Command, Stdio};
use std::thread;

use petrel_command::failure::Failure;

use super::figure::{Baseline, Figure, Setting};
use super::measurement::Measurement;
use super::server_thread::ServerThread;
use super::test_bed::{Cores, TestBed};

const CLIENT_DEVICE: &str = "petrel0";
const SERVER_DEVICE: &str = "petrel1";

/// Addresses of the two ends; these namespaces contain no other host.
const ADDRESSES: [[u8; 4]; 2] = [[10, 99, 0, 1], [10, 99, 0, 2]];

/// The result of a measurement.
pub(super) enum Outcome {
    /// Boxed, because the other variant is small.
    Measured(Box<Figure>),
    /// The measurement is impossible here, for this reason.
    Skipped(String),
}

/// Runs a measurement between the two namespaces, beside single datagrams.
pub(super) fn run(
    measurement: &Measurement,
    watch: impl FnMut(u32, u32) + Send,
) -> Result<Outcome, Failure> {
    between(measurement.pace.is_realtime, |test_bed| match test_bed {
        Ok(test_bed) => {
            let command = command(measurement);
            let describe = |setting| Setting { network: Some("veth"), command, ..setting };
            let figure = measurement.on(&test_bed, Baseline::SingleDatagrams, describe, watch)?;
            Ok(Outcome::Measured(Box::new(figure)))
        }
        Err(failure) => Ok(Outcome::Skipped(failure.to_string())),
    })
}

/// Runs `work` between the two hosts, or passes the reason why the hosts cannot be created.
pub(super) fn between<T: Send>(
    is_realtime: bool,
    work: impl FnOnce(Result<TestBed, Failure>) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    // This thread stays in its namespace.
    thread::scope(|scope| {
        let thread = scope.spawn(|| work(set_up(is_realtime)));
        thread
            .join()
            .unwrap_or_else(|_| Err(Failure::because("the benchmark's thread has panicked")))
    })
}

/// Returns the command that repeats the measurement.
pub(super) fn command(measurement: &Measurement) -> String {
    // The namespaces have separate threads, so the command needs no flag for the cores.
    let measurement = Measurement { cores: Cores::Two, ..measurement.clone() };
    format!("{} --veth", measurement.command())
}

/// Creates and joins the two namespaces; the calling thread is in the first, the test bed's second thread
/// in the second.
fn set_up(is_realtime: bool) -> Result<TestBed, Failure> {
    leave_namespace()?;
    let server_thread = ServerThread::start()?;
    let thread = server_thread.execute(|| {
        leave_namespace()?;
        Ok(rustix::thread::gettid().as_raw_nonzero().to_string())
    })?;
    let peer = ["peer", "name", SERVER_DEVICE, "netns", &thread];
    ip(&[&["link", "add", CLIENT_DEVICE, "type", "veth"], &peer[..]].concat())?;
    bring_up(CLIENT_DEVICE, ADDRESSES[0])?;
    server_thread.execute(|| bring_up(SERVER_DEVICE, ADDRESSES[1]))?;
    TestBed::with(Cores::Two, is_realtime, Some(server_thread), ADDRESSES.map(Into::into))
}

/// Moves this thread into a new network namespace.
fn leave_namespace() -> Result<(), Failure> {
    // SAFETY: a new network namespace shares no memory and no descriptor table; existing sockets stay in
    // their namespace.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(Failure::because(format!("a network namespace cannot be made (are you root?): {error}")))
}

fn bring_up(device: &str, address: [u8; 4]) -> Result<(), Failure> {
    let [a, b, c, d] = address;
    ip(&["address", "add", &format!("{a}.{b}.{c}.{d}/24"), "dev", device])?;
    features::switch_off(device)?;
    ip(&["link", "set", device, "up"])
}

/// Runs `ip`, in this thread's namespace.
fn ip(arguments: &[&str]) -> Result<(), Failure> {
    tool("ip", arguments).map(|_| ())
}

/// Runs a program in this thread's namespace; returns its output.
pub(super) fn tool(name: &str, arguments: &[&str]) -> Result<String, Failure> {
    let command = format!("{name} {}", arguments.join(" "));
    let output = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::because(format!("`{command}` cannot be run: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(Failure::because(format!("`{command}` failed: {}", stderr.trim())))
}
