//! AF_XDP: frames of an interface through rings in memory that the kernel shares.
//!
//! | module | concern |
//! | --- | --- |
//! | `program`, `bpf` | the XDP program, which chooses packets by port and queue |
//! | `attached` | the program on its interface, shared by the sockets of the process |
//! | `rings`, `umem`, `queue` | descriptors, memory and the owners of its chunks; no system call |
//! | `socket` | one queue's socket |
//! | `helper` | a privileged process that makes sockets for unprivileged ones |
//! | `interface`, `error` | properties of interfaces; refusals |
//!
//! Packets that the program does not choose reach the kernel's socket of the same port, which stays open beside. So a queue without a socket, a
//! fragment, or the end of the program only makes packets slower.
//!
//! A socket of AF_XDP can send any frame. A process that gets one from the helper can therefore send packets from any address by the interface.

mod attached;
mod bpf;
mod error;
mod interface;
mod program;
mod queue;
mod rings;
mod socket;
mod umem;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

pub use self::error::XdpError;
use super::Nic;
use attached::{Attached, Entered};
use error::Step;
use interface::{Interface, Link};
use socket::{Sizes, Socket};

/// Least chunks for receiving of a queue: two bursts.
const QUEUE_CHUNKS_MIN: u32 = 64;

/// Most chunks of an endpoint: 64 MiB.
const CHUNKS_MAX: u32 = 1 << 14;

/// Frames of one queue before the next queue's turn.
const TURN_FRAMES: u32 = 32;

/// The kernel frees the queue of a process that has died a moment after its descriptors.
const BIND_TRIES: u32 = 10;
const BIND_PAUSE: Duration = Duration::from_millis(100);

/// Most bytes of a packet that a device carries, with its IP header.
pub const PACKET_BYTES_MAX: usize = attached::PACKET_BYTES_MAX;

/// How packets get from the driver to the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver where it can, with a copy; behind the driver otherwise, and on veth, where that is faster.
    #[default]
    Auto,
    /// Behind the driver, as every driver can.
    Generic,
    /// In the driver, with a copy.
    Native,
    /// In the driver, and the device accesses the chunks itself. Some drivers accept the mode and lose packets.
    ZeroCopy,
}

/// The receive queues that get a socket each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// All queues that no other socket has, as far as the chunks suffice.
    #[default]
    Auto,
    /// These queues, all of them.
    List(Vec<u32>),
}

/// Settings of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// The way of packets from the driver.
    pub mode: Mode,
    /// The queues.
    pub queues: Queues,
    /// The time for which an empty receive lets the kernel poll the device; needs CAP_NET_ADMIN.
    pub busy_poll: Option<Duration>,
    /// Chunks of 4 KiB, or of 2 KiB if the interface's MTU allows: a power of two. Half are for sending, half for receiving on all queues. All are
    /// locked in memory.
    pub chunks: u32,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self { mode: Mode::Auto, queues: Queues::Auto, busy_poll: None, chunks: 1024 }
    }
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Frames go out and come in.
    Up,
    /// The interface is down, or has no carrier. The sockets go on when it is up again.
    Down,
    /// The interface was deleted. The sockets never go on.
    Gone,
}

/// Frames that were lost in a device, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Received frames for which the kernel had no chunk, or that were too large.
    pub receive: u64,
    /// Received frames for which the ring had no room.
    pub ring_full: u64,
    /// The times that the kernel found the fill ring empty.
    pub fill_empty: u64,
    /// Descriptors of this side that the kernel refused.
    pub invalid: u64,
    /// Descriptors and indices of the kernel that were wrong.
    pub faults: u64,
}

/// All sockets of one UDP port on one interface.
#[derive(Debug)]
pub struct Xdp {
    members: Vec<Member>,
    interface: Interface,
    /// The member whose turn it is to receive, and the frames that are left of the turn.
    turn: usize,
    turn_frames: u32,
}

/// A socket that gets packets.
#[derive(Debug)]
struct Member {
    // First: no packet is sent to a socket that closes.
    _entered: Entered,
    socket: Socket,
}

impl Xdp {
    /// Opens the device `interface` of the calling thread's network namespace for packets to a port.
    ///
    /// # Errors
    /// The kernel or the settings refuse; each error says the way out.
    pub fn open(config: &XdpConfig, interface: &str, port: u16) -> Result<Self, XdpError> {
        let interface = Interface::find(interface)?;
        let (budget, candidates) = plan(config, interface.queues())?;
        let attached = Attached::to(&interface, config.mode)?;
        let mut members: Vec<Member> = Vec::new();
        for attempt in 1..=BIND_TRIES {
            let mut candidates = candidates.iter();
            while members.len() < budget.sockets {
                let sizes = budget.sizes(members.is_empty());
                match open_member(config, &interface, &attached, port, sizes, &mut candidates)? {
                    Some(member) => members.push(member),
                    None => break,
                }
            }
            let wanted = if config.queues == Queues::Auto { 1 } else { budget.sockets };
            if members.len() >= wanted {
                return Ok(Self { members, interface, turn: 0, turn_frames: TURN_FRAMES });
            }
            // All or none: the next attempt begins anew.
            members.clear();
            if attempt < BIND_TRIES {
                thread::sleep(BIND_PAUSE);
            }
        }
        Err(XdpError::QueuesTaken { interface: interface.name().to_owned() })
    }

    /// Returns the interface, how the device is used, and its queues.
    pub fn describe(&self) -> String {
        format!("{}, {} queues", self.interface.name(), self.members.len())
    }

    /// Returns the index of the interface.
    pub fn interface_index(&self) -> u32 {
        self.interface.index()
    }

    /// Returns the descriptors that become readable with a received frame.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.members.iter().map(|member| member.socket.fd())
    }

    /// Returns the state of the interface, by two system calls.
    pub fn state(&self) -> State {
        match self.interface.link() {
            Link::Up => State::Up,
            Link::Down => State::Down,
            Link::Gone => State::Gone,
        }
    }

    /// Returns the frames lost, by a system call for each queue.
    pub fn dropped(&self) -> Dropped {
        let mut sum = Dropped::default();
        for Member { socket, .. } in &self.members {
            sum.faults += socket.faults();
            let Some(counters) = socket.statistics() else { continue };
            sum.receive += counters.rx_dropped;
            sum.ring_full += counters.rx_ring_full.unwrap_or(0);
            sum.fill_empty += counters.rx_fill_ring_empty_descs.unwrap_or(0);
            sum.invalid += counters.rx_invalid_descs + counters.tx_invalid_descs;
        }
        sum
    }

    fn sender(&mut self) -> &mut Socket {
        &mut self.members[0].socket
    }
}

impl Nic for Xdp {
    fn frame_bytes_max(&self) -> usize {
        self.members[0].socket.frame_bytes_max()
    }

    fn receive_frames(&self) -> usize {
        self.members.iter().map(|member| member.socket.receive_frames()).sum()
    }

    fn has_room(&mut self, frames: usize) -> bool {
        self.sender().has_room(frames)
    }

    fn begin(&mut self) -> Option<&mut [u8]> {
        self.sender().begin()
    }

    fn commit(&mut self, bytes: usize) {
        self.sender().commit(bytes);
    }

    fn flush(&mut self) -> u64 {
        self.sender().flush()
    }

    fn received(&mut self) -> Option<&mut [u8]> {
        if self.turn_frames == 0 {
            self.pass_turn();
        }
        for _ in 1..self.members.len() {
            if self.members[self.turn].socket.received().is_some() {
                break;
            }
            self.pass_turn();
        }
        self.members[self.turn].socket.received()
    }

    fn has_received(&mut self) -> bool {
        self.members.iter_mut().any(|member| member.socket.has_received())
    }

    fn release(&mut self) {
        self.members[self.turn].socket.release();
        self.turn_frames = self.turn_frames.saturating_sub(1);
    }
}

impl Xdp {
    fn pass_turn(&mut self) {
        self.turn = (self.turn + 1) % self.members.len();
        self.turn_frames = TURN_FRAMES;
    }
}

/// The chunks of an endpoint, divided among its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Budget {
    sockets: usize,
    receive: u32,
    send: u32,
}

impl Budget {
    fn sizes(self, is_first: bool) -> Sizes {
        Sizes { receive: self.receive, send: if is_first { self.send } else { 1 } }
    }
}

/// Checks the settings, and returns the queues to try.
fn plan(config: &XdpConfig, queues: u32) -> Result<(Budget, Vec<u32>), XdpError> {
    let setting =
        |setting, value: String, expected| Err(XdpError::Setting { setting, value, expected });
    let chunks = config.chunks;
    if !(chunks.is_power_of_two() && (2 * QUEUE_CHUNKS_MIN..=CHUNKS_MAX).contains(&chunks)) {
        return setting("chunks", chunks.to_string(), "a power of two from 128 to 16384");
    }
    let sockets_max = (chunks / 2 / QUEUE_CHUNKS_MIN) as usize;
    let (candidates, sockets) = match &config.queues {
        Queues::Auto => ((0..queues).collect(), sockets_max.min(queues as usize)),
        Queues::List(list) => (list.clone(), list.len()),
    };
    let is_repeated = |(place, queue)| candidates[..place].contains(queue);
    if !(1..=sockets_max).contains(&sockets) || candidates.iter().enumerate().any(is_repeated) {
        let expected = "1 to chunks / 128 different queues";
        return setting("queues", format!("{candidates:?}"), expected);
    }
    let share = chunks / 2 / sockets as u32;
    let receive = 1 << share.ilog2();
    Ok((Budget { sockets, receive, send: chunks / 2 }, candidates))
}

/// Opens a socket on the first candidate that no other socket has.
fn open_member<'a>(
    config: &XdpConfig,
    interface: &Interface,
    attached: &Arc<Attached>,
    port: u16,
    sizes: Sizes,
    candidates: &mut impl Iterator<Item = &'a u32>,
) -> Result<Option<Member>, XdpError> {
    let name = interface.name();
    let fd = socket::create(sizes).map_err(|error| Step::Create.refused(name, error))?;
    let bytes = attached.frame_bytes_max();
    let socket = Socket::new(fd, name, sizes, bytes, config.busy_poll)?;
    for queue in candidates {
        match attached.enter(socket.fd(), port, *queue, config.mode == Mode::ZeroCopy) {
            Ok(entered) => return Ok(Some(Member { _entered: entered, socket })),
            Err((Step::Bind, Errno::BUSY)) => {}
            Err((step, error)) => return Err(step.refused(name, error)),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
