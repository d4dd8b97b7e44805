//! A network of two hosts: two network namespaces joined by a pair of virtual Ethernet devices.
//!
//! Loopback passes a run of datagrams on uncut. A network card does not: here the devices' segmentation
//! and receive offload are off, so each datagram is a separate packet, of 1500 bytes at most. This shows
//! the gain of Petrel's bundles beside a program that sends a datagram per message.
//!
//! The threads move into new namespaces. When the threads end, the kernel removes namespaces and devices, however the
//! process ends. The benchmark needs the right to create namespaces, and the program `ip`.

use std::net::Ipv4Addr;
use std::thread;

use petrel_command::failure::Failure;

use super::figure::{Baseline, Figure, Setting};
use super::measurement::Measurement;
use super::server_thread::ServerThread;
use super::test_bed::{Cores, TestBed};

const CLIENT_DEVICE: &str = "petrel0";
const SERVER_DEVICE: &str = "petrel1";

/// Bytes of a packet, by default of Ethernet.
pub const MTU: u16 = 1_500;

/// Addresses of the two ends; these namespaces contain no other host.
pub(crate) const ADDRESSES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];

/// The result of a measurement.
pub enum Outcome {
    /// Boxed, because the other variant is small.
    Measured(Box<Figure>),
    /// The measurement is impossible here, for this reason.
    Skipped(String),
}

/// Runs a measurement between the two namespaces, beside single datagrams.
pub fn run(
    measurement: &Measurement,
    watch: impl FnMut(u32, u32) + Send,
) -> Result<Outcome, Failure> {
    between(MTU, measurement.pace.is_realtime, |test_bed| match test_bed {
        Ok(test_bed) => {
            let command = command(measurement);
            let describe = |setting| Setting { network: Some("veth"), command, ..setting };
            let figure = measurement.on(&test_bed, Baseline::SingleDatagrams, describe, watch)?;
            Ok(Outcome::Measured(Box::new(figure)))
        }
        Err(failure) => Ok(Outcome::Skipped(failure.to_string())),
    })
}

/// Runs `work` between the two hosts, whose devices carry packets of up to `mtu` bytes, or passes the reason why the hosts cannot be
/// created.
pub fn between<T: Send>(
    mtu: u16,
    is_realtime: bool,
    work: impl FnOnce(Result<TestBed, Failure>) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    on_thread(|| work(set_up(mtu, is_realtime)))
}

/// Runs `work` on a thread of its own, which may move to another namespace: the calling thread stays in its own.
pub fn on_thread<T: Send>(work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread
            .join()
            .unwrap_or_else(|_| Err(Failure::because("the benchmark's thread has panicked")))
    })
}

/// Returns the command that repeats the measurement.
pub fn command(measurement: &Measurement) -> String {
    // The namespaces have separate threads, so the command needs no flag for the cores.
    let measurement = Measurement { cores: Cores::Two, ..measurement.clone() };
    format!("{} --veth", measurement.command())
}

/// Creates and joins the two namespaces; the calling thread is in the first, the test bed's second thread
/// in the second.
fn set_up(mtu: u16, is_realtime: bool) -> Result<TestBed, Failure> {
    petrel_netns::leave().map_err(Failure::because)?;
    let server_thread = ServerThread::start()?;
    let thread = server_thread.execute(|| {
        petrel_netns::leave().map_err(Failure::because)?;
        Ok(rustix::thread::gettid().as_raw_nonzero().to_string())
    })?;
    let pair =
        format!("link add {CLIENT_DEVICE} type veth peer name {SERVER_DEVICE} netns {thread}");
    petrel_netns::ip(&pair).map_err(Failure::because)?;
    bring_up(CLIENT_DEVICE, mtu, ADDRESSES[0])?;
    server_thread.execute(move || bring_up(SERVER_DEVICE, mtu, ADDRESSES[1]))?;
    TestBed::with(Cores::Two, is_realtime, Some(server_thread), ADDRESSES.map(Into::into))
}

fn bring_up(device: &str, mtu: u16, address: Ipv4Addr) -> Result<(), Failure> {
    petrel_netns::ip(&format!("link set {device} mtu {mtu}")).map_err(Failure::because)?;
    petrel_netns::switch_off_offloads(device)
        .and_then(|()| petrel_netns::bring_up(device, address))
        .map_err(Failure::because)
}
