//! DPDK: frames of a device without the kernel, by a library that is opened at run time.
//!
//! | module | concern |
//! | --- | --- |
//! | `shim.c`, `table` | the functions of DPDK, compiled on the host that uses them; frames and queues with owners |
//! | `eal` | the start of DPDK, once in a process |
//! | `shared` | the port of the process; frames for each endpoint; the link |
//! | `frames` | the frames of a port's user |
//! | `bare` | a port without endpoints, for benchmarks |
//! | `neighbours` | ARP and Neighbour Discovery on a port that the kernel has not |
//!
//! # Addresses
//!
//! Datagrams on a port have the addresses of the endpoint's kernel socket, and of the peer's. The port answers neighbours that ask for such an
//! address of this host. A peer that does not answer on the port gets its datagrams by the kernel's socket.
//!
//! # Interrupts
//!
//! Drivers change their rings in DPDK's interrupt thread: net_memif unmaps them when the peer leaves, beside a burst that uses them. Here the
//! thread works only in turns in which no burst runs (`table::Gate`).

mod bare;
mod eal;
mod frames;
mod neighbours;
mod shared;
mod table;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::ether::frame::MacAddr;
use super::ether::ways::{Changes, Link, NoWay, Way, Ways};
use super::port::FindWays;
use super::{Judgement, Nic};
use crate::transport::Ring;
use frames::Frames;
use shared::{Inbox, Shared};
use table::Frame;

pub use bare::Bare;
pub use table::compile_shim;

/// Time for which an endpoint sleeps: most devices have no descriptor that tells of frames.
const SLEEP_NS: i64 = 100_000;

/// Bytes of an Ethernet head.
const ETHERNET_BYTES: usize = 14;

/// Drivers whose port is the other end of the kernel's interface, and not the interface.
const FAR_ENDS: [&str; 1] = ["net_tap"];

/// Returns the account of the packets in the receive queue of the port, which all endpoints share. `frames` is the number that the queue holds, or
/// the fewest until the port is open: the account grows when it opens.
pub(crate) fn ring(frames: u64) -> Arc<Ring> {
    static RING: OnceLock<Arc<Ring>> = OnceLock::new();
    let ring = RING.get_or_init(|| Arc::new(Ring::new(frames)));
    ring.raise(frames);
    Arc::clone(ring)
}

/// An endpoint's part of the port.
pub struct Dpdk {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    frames: Frames,
    timer: OwnedFd,
}

impl Dpdk {
    /// Opens the port of the process for the datagrams to an address. The first call starts DPDK with the arguments.
    ///
    /// # Errors
    /// The shim or the device is missing, or DPDK refuses.
    pub fn open(arguments: &str, local: SocketAddr) -> Result<(Self, DpdkWays), String> {
        let shared = eal::start(arguments)?;
        let cannot = |error| format!("no timer: {error}");
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| cannot(std::io::Error::from(error)))?;
        let ways = DpdkWays::of(&shared)?;
        let inbox = shared.add(local)?;
        let dpdk = Self { shared, inbox, frames: Frames::default(), timer };
        dpdk.shared.wait_for_link();
        Ok((dpdk, ways))
    }

    /// Returns the port's name, and the version of DPDK.
    pub fn name(&self) -> String {
        format!("{} of {}", self.shared.info().name(), self.shared.table().version())
    }

    /// Frames that were lost on the port, for all endpoints.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped()
    }

    /// Returns a descriptor that is readable a moment after [`Dpdk::prepare_sleep`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Sets the end of a sleep.
    pub fn prepare_sleep(&self) {
        let [it_value, it_interval] = [SLEEP_NS, 0].map(|tv_nsec| Timespec { tv_sec: 0, tv_nsec });
        let once = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).expect("a valid time");
    }

    /// The interface of the kernel that shares the port, or 0.
    pub fn interface(&self) -> u32 {
        self.shared.info().interface
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        self.shared.remove(&self.inbox);
    }
}

impl Nic for Dpdk {
    fn frame_bytes_max(&self) -> usize {
        ETHERNET_BYTES + usize::from(self.shared.info().mtu_bytes)
    }

    fn receive_frames(&self) -> usize {
        self.shared.info().receive_frames.into()
    }

    #[inline]
    fn has_room(&mut self, frames: usize) -> bool {
        self.frames.has_room(self.shared.table(), frames)
    }

    #[inline]
    fn begin(&mut self) -> Option<&mut [u8]> {
        let frame_bytes_max = self.frame_bytes_max();
        self.frames.begin(self.shared.table(), frame_bytes_max)
    }

    #[inline]
    fn commit(&mut self, bytes: usize) {
        assert!(bytes <= self.frame_bytes_max(), "the frame fits the device");
        let completes_sum = self.completes_sums();
        self.frames.commit(bytes, completes_sum);
    }

    #[inline]
    fn flush(&mut self) -> u64 {
        if !self.frames.pending.is_empty() {
            self.shared.send(&mut self.frames.pending);
        }
        0
    }

    #[inline]
    fn has_unsent(&mut self) -> bool {
        !self.frames.pending.is_empty()
    }

    #[inline]
    fn received(&mut self) -> Option<&mut [u8]> {
        let ready = &mut self.frames.ready;
        if ready.is_empty() {
            self.shared.receive(&self.inbox, ready);
        }
        ready.front_mut().map(Frame::bytes)
    }

    #[inline]
    fn received_judged(&mut self) -> Option<(&mut [u8], Judgement)> {
        self.received()?;
        let frame = self.frames.ready.front_mut()?;
        let judgement = frame.judgement();
        Some((frame.bytes(), judgement))
    }

    #[inline]
    fn completes_sums(&self) -> bool {
        self.shared.info().completes_sums != 0
    }

    fn has_received(&mut self) -> bool {
        self.received().is_some()
    }

    #[inline]
    fn release(&mut self) {
        self.frames.release();
    }
}

/// The ways of a port to peers.
pub enum DpdkWays {
    /// The kernel has the port, too, as with net_af_packet or mlx5.
    Kernel {
        /// The interface's.
        ways: Ways,
        #[doc(hidden)]
        port: PortWays,
    },
    /// The kernel has not the port.
    Port(PortWays),
}

/// The ways to neighbours that answer on the port.
pub struct PortWays {
    shared: Arc<Shared>,
    seen: (Link, u32),
}

impl DpdkWays {
    fn of(shared: &Arc<Shared>) -> Result<Self, String> {
        let info = shared.info();
        let port = PortWays { shared: Arc::clone(shared), seen: (Link::Down, 0) };
        if info.interface == 0 || FAR_ENDS.contains(&&*info.driver()) {
            return Ok(Self::Port(port));
        }
        let ways = Ways::open(info.interface)
            .map_err(|error| format!("the interface of {}: {error}", info.name()))?;
        Ok(Self::Kernel { ways, port })
    }
}

impl FindWays for DpdkWays {
    fn way_to(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Way, NoWay> {
        match self {
            Self::Kernel { ways, port } if port.shared.is_up() => ways.way_to(from, to),
            Self::Kernel { .. } => Err(NoWay::Unresolved(to.ip())),
            Self::Port(port) => port.way_to(from, to),
        }
    }

    fn read_events(&mut self) -> Changes {
        match self {
            Self::Kernel { ways, port } => {
                let (own, mut changes) = (port.read_events(), ways.read_events());
                changes.must_ask_again |= own.must_ask_again;
                if own.link == Link::Gone {
                    changes.link = Link::Gone;
                }
                changes
            }
            Self::Port(port) => port.read_events(),
        }
    }

    /// The kernel drops such datagrams, where it has the port.
    fn carries_loopback(&self) -> bool {
        matches!(self, Self::Port(_))
    }
}

impl PortWays {
    fn way_to(&self, from: Option<IpAddr>, to: SocketAddr) -> Result<Way, NoWay> {
        let next_hop = to.ip().to_canonical();
        if next_hop.is_multicast() {
            return Err(NoWay::NotUnicast);
        }
        let from_ip = match from {
            Some(from) => from.to_canonical(),
            None => source_to((next_hop, to.port()).into()).map_err(NoWay::Refused)?,
        };
        if from_ip.is_ipv4() != next_hop.is_ipv4() {
            return Err(NoWay::OtherFamily);
        }
        if from_ip == next_hop {
            return Err(NoWay::Local);
        }
        let info = self.shared.info();
        let to_mac = self.shared.neighbour(from_ip, next_hop).filter(|_| self.shared.is_up());
        let to_mac = to_mac.ok_or(NoWay::Unresolved(next_hop))?;
        let (from_mac, mtu_bytes) = (MacAddr(info.mac), info.mtu_bytes.into());
        Ok(Way { from_mac, to_mac, from_ip, next_hop, mtu_bytes })
    }

    fn read_events(&mut self) -> Changes {
        let now = self.shared.look();
        let must_ask_again = std::mem::replace(&mut self.seen, now) != now;
        Changes { must_ask_again, neighbours: Vec::new(), link: now.0 }
    }
}

/// Returns the address from which the kernel would send to a peer.
fn source_to(peer: SocketAddr) -> Result<IpAddr, rustix::io::Errno> {
    let any = if peer.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let source = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(peer)?;
        Ok(socket.local_addr()?.ip())
    });
    source.map_err(|error| {
        rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::ADDRNOTAVAIL)
    })
}
