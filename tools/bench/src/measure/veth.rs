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

use petrel::endpoint::Device;
use petrel_command::device;
use petrel_command::failure::Failure;

use super::figure::{Baseline, Figure, Quantity, Setting};
pub use super::measurement::MTU;
use super::measurement::Measurement;
use super::server_thread::ServerThread;
use super::test_bed::{Cores, TestBed};

/// The device of either host.
const DEVICE: &str = "petrel0";

/// Addresses of the two ends; these namespaces contain no other host.
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];

/// The device of the bare medium, past the kernel, and its addresses: a device's queue has one user.
pub(super) const BARE_DEVICE: &str = "bare0";
pub(super) const BARE_ADDRESSES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 99, 1, 1), Ipv4Addr::new(10, 99, 1, 2)];

/// The result of a measurement.
pub enum Outcome {
    /// Boxed, because the other variant is small.
    Measured(Box<Figure>),
    /// The measurement is impossible here, for this reason.
    Skipped(String),
}

/// Runs a measurement between the two namespaces: the rate by the kernel beside single datagrams, and the rest beside the bare medium.
pub fn run(
    measurement: &Measurement,
    watch: impl FnMut(u32, u32) + Send,
) -> Result<Outcome, Failure> {
    between(MTU, measurement.pace.is_realtime, |test_bed| match test_bed {
        Ok(test_bed) => {
            let command = command(measurement);
            let describe = |setting| Setting { network: Some("veth"), command, ..setting };
            let baseline = match (measurement.quantity, device::get()) {
                (Quantity::Rate, Device::Kernel) => Baseline::SingleDatagrams,
                _ => Baseline::BareMedium,
            };
            let figure = measurement.on(&test_bed, baseline, describe, watch)?;
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
    let join = |device: &'static str, [own, other]: [Ipv4Addr; 2]| {
        petrel_netns::ip(&format!("link add {device} type veth peer name {device} netns {thread}"))
            .map_err(Failure::because)?;
        bring_up(device, mtu, own)?;
        server_thread.execute(move || bring_up(device, mtu, other))
    };
    join(DEVICE, ADDRESSES)?;
    if device::get() != Device::Kernel {
        join(BARE_DEVICE, BARE_ADDRESSES)?;
    }
    TestBed::with(Cores::Two, is_realtime, Some(server_thread), ADDRESSES.map(Into::into))
}

fn bring_up(device: &str, mtu: u16, address: Ipv4Addr) -> Result<(), Failure> {
    petrel_netns::ip(&format!("link set {device} mtu {mtu}")).map_err(Failure::because)?;
    petrel_netns::switch_off_offloads(device)
        .and_then(|()| petrel_netns::bring_up(device, address))
        .map_err(Failure::because)
}
