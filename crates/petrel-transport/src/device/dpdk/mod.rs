//! DPDK: frames of a device without the kernel, by a library that is opened at run time.
//!
//! | module | concern |
//! | --- | --- |
//! | `shim.c`, `table` | the functions of DPDK, compiled on the host that uses them; frames and queues with owners |
//! | `eal` | the start of DPDK, once in a process |
//! | `shared` | the port of the process; frames for each endpoint; the link |
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

mod eal;
mod neighbours;
mod shared;
mod table;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::Nic;
use super::ether::frame::MacAddr;
use super::ether::ways::{Changes, Link, NoWay, Way, Ways};
use super::port::FindWays;
use shared::{Inbox, Shared};
use table::{BURST_MAX, Frame};

pub use table::compile_shim;

/// Most frames that wait for the port, four messages of most datagrams.
const PENDING_MAX: usize = 256;

/// Time for which an endpoint sleeps: most devices have no descriptor that tells of frames.
const SLEEP_NS: i64 = 100_000;

/// Bytes of an Ethernet head.
const ETHERNET_BYTES: usize = 14;

/// Drivers whose port is the other end of the kernel's interface, and not the interface.
const FAR_ENDS: [&str; 1] = ["net_tap"];

/// An endpoint's part of the port.
pub struct Dpdk {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    ready: VecDeque<Frame>,
    /// Frames to write into.
    spare: Vec<Frame>,
    /// Frames to send.
    pending: Vec<Frame>,
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
        let (ready, spare, pending) = (VecDeque::new(), Vec::new(), Vec::new());
        let dpdk = Self { shared, inbox, ready, spare, pending, timer };
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

    fn has_room(&mut self, frames: usize) -> bool {
        while self.spare.len() < frames {
            if !self.shared.table().allocate(&mut self.spare, BURST_MAX / 2) {
                return false;
            }
        }
        self.pending.len() + frames <= PENDING_MAX
    }

    fn begin(&mut self) -> Option<&mut [u8]> {
        let frame_bytes_max = self.frame_bytes_max();
        self.has_room(1).then(|| {
            let frame = self.spare.last_mut().expect("there is room for one");
            &mut frame.room()[..frame_bytes_max]
        })
    }

    fn commit(&mut self, bytes: usize) {
        assert!(bytes <= self.frame_bytes_max(), "the frame fits the device");
        let mut frame = self.spare.pop().expect("a frame was begun");
        frame.set_bytes(bytes);
        self.pending.push(frame);
    }

    fn flush(&mut self) -> u64 {
        if !self.pending.is_empty() {
            self.shared.send(&mut self.pending);
        }
        0
    }

    fn has_unsent(&mut self) -> bool {
        !self.pending.is_empty()
    }

    fn received(&mut self) -> Option<&mut [u8]> {
        if self.ready.is_empty() {
            self.shared.receive(&self.inbox, &mut self.ready);
        }
        self.ready.front_mut().map(Frame::bytes)
    }

    fn has_received(&mut self) -> bool {
        self.received().is_some()
    }

    fn release(&mut self) {
        assert!(self.ready.pop_front().is_some(), "a frame was received");
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
