//! AF_XDP: frames of an interface through rings in memory that the kernel shares.
//!
//! | module | concern |
//! | --- | --- |
//! | `program`, `bpf` | the XDP program, which chooses packets by port and queue |
//! | `attached` | the program on its interface, shared by the sockets of the process |
//! | `rings`, `umem`, `queue` | descriptors, memory and the owners of its chunks; no system call |
//! | `socket` | one queue's socket |
//! | [`helper`] | a privileged process that makes sockets for unprivileged ones |
//! | `interface`, `local`, `error` | properties of interfaces; the right to packets; refusals |
//!
//! Packets that the program does not choose reach the kernel's socket of the same port, which stays open beside. So a queue without a socket, a
//! fragment, or the end of the program only makes packets slower.
//!
//! A socket of AF_XDP can send any frame. A process that gets one from the helper can therefore send packets from any address by the interface.

mod attached;
mod bpf;
mod error;
pub mod helper;
mod interface;
mod local;
mod program;
mod queue;
mod rings;
mod socket;
mod umem;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

pub use self::error::XdpError;
use super::Nic;
use attached::{Attached, Entered};
use error::Step;
use interface::{Interface, Link};
use local::Local;
use socket::{Sizes, Socket};

/// Least chunks for receiving of a queue: two bursts.
const QUEUE_CHUNKS_MIN: u32 = 64;

/// Most chunks of an endpoint: 16 MiB.
const CHUNKS_MAX: u32 = 1 << 12;

/// Frames of one queue before the next queue's turn.
const TURN_FRAMES: u32 = 32;

/// The kernel frees the queue of a process that has died a moment after its descriptors.
const BIND_TRIES: u32 = 10;
const BIND_PAUSE: Duration = Duration::from_millis(100);

/// Most bytes of a packet that a device carries, with its IP header.
pub const PACKET_BYTES_MAX: usize = attached::PACKET_BYTES_MAX;

/// Returns the number of an interface's receive queues, and the most bytes of its packets.
///
/// # Errors
/// The calling thread's network namespace has no such interface.
pub fn queues_and_mtu(interface: &str) -> Result<(u32, usize), XdpError> {
    let interface = Interface::find(interface)?;
    Ok((interface.queues(), interface.mtu()?))
}

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

/// The default socket of `petrel xdp-helper`, for programs without privileges. A program with privileges does without a helper: see
/// [`XdpConfig::helper`].
pub const DEFAULT_HELPER: &str = "/run/petrel/xdp.sock";

/// The receive queues that get a socket each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// The first free queue: several endpoints get a queue each. Packets on further queues reach the kernel's socket.
    #[default]
    Auto,
    /// These queues, all of them.
    List(Vec<u32>),
}

/// Settings of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// The way of packets from the driver. All endpoints of a process on one interface share the program, which the first one's mode attaches.
    pub mode: Mode,
    /// The queues.
    pub queues: Queues,
    /// The time for which an empty receive lets the kernel poll the device; needs CAP_NET_ADMIN.
    pub busy_poll: Option<Duration>,
    /// Chunks of 4 KiB, or of 2 KiB if the interface's MTU allows: a power of two. Half are for sending, half for receiving on all queues. All are
    /// locked in memory.
    pub chunks: u32,
    /// The socket of `petrel xdp-helper`, for processes without privileges. The helper's mode counts then, and `mode` does not. If the helper at
    /// [`DEFAULT_HELPER`] does not serve the process, the process uses own privileges.
    pub helper: Option<PathBuf>,
}

impl Default for XdpConfig {
    fn default() -> Self {
        let (mode, queues) = (Mode::Auto, Queues::Auto);
        Self { mode, queues, busy_poll: None, chunks: 1024, helper: None }
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
    /// The helper has ended, and its program with it: packets reach the kernel's socket. Frames still go out.
    Unaided,
    /// The program was detached by force: packets reach the kernel's socket. Frames still go out.
    Detached,
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
    // First: see `Member`.
    members: Vec<Member>,
    access: Access,
    interface: Interface,
    /// The member whose turn it is to receive, and the frames that are left of the turn.
    turn: usize,
    turn_frames: u32,
}

/// A socket that gets packets.
#[derive(Debug)]
struct Member {
    // First: no packet is sent to a socket that closes.
    _right: Right,
    socket: Socket,
}

/// The source of sockets.
#[derive(Debug)]
enum Access {
    /// This process has the privileges.
    Own {
        attached: Arc<Attached>,
        local: Local,
        mode: Mode,
    },
    Helper(helper::Client),
}

/// A member's right to packets.
#[derive(Debug)]
enum Right {
    Own {
        _entered: Entered,
    },
    /// Ends with the connection.
    Helper,
}

impl Xdp {
    /// Opens the device `interface` of the calling thread's network namespace for the packets of a UDP socket, which stays open beside.
    ///
    /// # Errors
    /// The kernel, the helper or the settings refuse; each error says the way out.
    pub fn open(
        config: &XdpConfig,
        interface: &str,
        udp: BorrowedFd<'_>,
    ) -> Result<Self, XdpError> {
        Self::open_within(BIND_TRIES, config, interface, udp)
    }

    /// As [`Xdp::open`], without patience for a queue whose process has just ended.
    ///
    /// # Errors
    /// As [`Xdp::open`].
    pub fn open_at_once(
        config: &XdpConfig,
        interface: &str,
        udp: BorrowedFd<'_>,
    ) -> Result<Self, XdpError> {
        Self::open_within(1, config, interface, udp)
    }

    fn open_within(
        tries: u32,
        config: &XdpConfig,
        interface: &str,
        udp: BorrowedFd<'_>,
    ) -> Result<Self, XdpError> {
        let interface = Interface::find(interface)?;
        let (budget, candidates) = plan(config, interface.queues())?;
        for attempt in 1..=tries {
            // All or none: each attempt begins anew.
            let access = match Access::open(config, &interface, udp) {
                // A process that has just ended, or a child that has not closed its copies yet, holds them for a moment.
                Err(XdpError::PortTaken { .. } | XdpError::AnotherProgram { .. })
                    if attempt < tries =>
                {
                    thread::sleep(BIND_PAUSE);
                    continue;
                }
                access => access?,
            };
            let mut members = Vec::new();
            let mut candidates = candidates.iter();
            while members.len() < budget.sockets {
                let sizes = budget.sizes(members.is_empty());
                let opened = access.open_member(config, interface.name(), sizes, &mut candidates);
                let bytes = budget.chunks() * attached::chunk_bytes(access.frame_bytes_max());
                let Some(member) = opened.map_err(|error| match error {
                    XdpError::LockedMemory { .. } => XdpError::LockedMemory { bytes },
                    error => error,
                })?
                else {
                    break;
                };
                members.push(member);
            }
            if members.len() == budget.sockets {
                return Ok(Self { members, access, interface, turn: 0, turn_frames: TURN_FRAMES });
            }
            if attempt < tries {
                thread::sleep(BIND_PAUSE);
            }
        }
        Err(XdpError::QueuesTaken { interface: interface.name().to_owned() })
    }

    /// Returns the interface's name.
    pub fn interface(&self) -> &str {
        self.interface.name()
    }

    /// Returns the descriptors that become readable with a received frame.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.members.iter().map(|member| member.socket.fd())
    }

    /// Returns the state of the device, by three system calls.
    pub fn state(&self) -> State {
        match self.interface.link() {
            Link::Up => self.access.state(),
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
        // All packets of a peer may come on a single queue.
        self.members.iter().map(|member| member.socket.receive_frames()).min().unwrap_or(0)
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

    fn has_unsent(&mut self) -> bool {
        self.sender().has_unsent()
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

    /// The chunks of all sockets.
    fn chunks(self) -> usize {
        let chunks = |place| {
            let Sizes { receive, send } = self.sizes(place == 0);
            (receive + send) as usize
        };
        (0..self.sockets).map(chunks).sum()
    }
}

/// Checks the settings, and returns the queues to try.
fn plan(config: &XdpConfig, queues: u32) -> Result<(Budget, Vec<u32>), XdpError> {
    let setting =
        |setting, value: String, expected| Err(XdpError::Setting { setting, value, expected });
    let chunks = config.chunks;
    if !(chunks.is_power_of_two() && (2 * QUEUE_CHUNKS_MIN..=CHUNKS_MAX).contains(&chunks)) {
        return setting("chunks", chunks.to_string(), "a power of two from 128 to 4096");
    }
    let sockets_max = (chunks / 2 / QUEUE_CHUNKS_MIN) as usize;
    let (candidates, sockets) = match &config.queues {
        Queues::Auto => ((0..queues).collect(), 1),
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

impl Access {
    fn open(
        config: &XdpConfig,
        interface: &Interface,
        udp: BorrowedFd<'_>,
    ) -> Result<Self, XdpError> {
        match &config.helper {
            Some(path) if path != Path::new(DEFAULT_HELPER) => {
                Ok(Self::Helper(helper::Client::open(path, interface, udp)?))
            }
            Some(path) if path.exists() => Self::open_either(path, config, interface, udp),
            _ => Self::open_own(config, interface, udp),
        }
    }

    /// Opens by a helper, or by the process's own privileges if the helper refuses.
    fn open_either(
        helper: &Path,
        config: &XdpConfig,
        interface: &Interface,
        udp: BorrowedFd<'_>,
    ) -> Result<Self, XdpError> {
        match helper::Client::open(helper, interface, udp) {
            Ok(client) => Ok(Self::Helper(client)),
            Err(refusal @ XdpError::Helper { .. }) => Self::open_own(config, interface, udp)
                .map_err(|error| match error {
                    XdpError::Refused { error: Errno::PERM, .. } => refusal,
                    error => error,
                }),
            Err(error) => Err(error),
        }
    }

    fn open_own(
        config: &XdpConfig,
        interface: &Interface,
        udp: BorrowedFd<'_>,
    ) -> Result<Self, XdpError> {
        let local = Local::of(udp, interface).map_err(|why| XdpError::Socket {
            interface: interface.name().to_owned(),
            why: why.to_string(),
        })?;
        let attached = Attached::to(interface, config.mode)?;
        Ok(Self::Own { attached, local, mode: config.mode })
    }

    /// Returns the state of a device while the interface is up.
    fn state(&self) -> State {
        match self {
            Self::Own { attached, .. } if !attached.is_attached() => State::Detached,
            Self::Helper(client) if !client.is_alive() => State::Unaided,
            _ => State::Up,
        }
    }

    fn frame_bytes_max(&self) -> usize {
        match self {
            Self::Own { attached, .. } => attached.frame_bytes_max(),
            Self::Helper(client) => client.frame_bytes_max(),
        }
    }

    /// Opens a socket on the first candidate that no other socket has.
    fn open_member<'a>(
        &self,
        config: &XdpConfig,
        interface: &str,
        sizes: Sizes,
        candidates: &mut impl Iterator<Item = &'a u32>,
    ) -> Result<Option<Member>, XdpError> {
        let create = |error| Step::Create.refused(interface, error);
        let (fd, number) = match self {
            Self::Own { .. } => (socket::create(sizes).map_err(create)?, 0),
            Self::Helper(client) => client.create(sizes)?,
        };
        let bytes = self.frame_bytes_max();
        let socket = Socket::new(fd, interface, sizes, bytes, config.busy_poll)?;
        let mut refusal = None;
        for queue in candidates {
            match self.enter(socket.fd(), number, *queue, interface)? {
                Ok(right) => return Ok(Some(Member { _right: right, socket })),
                Err(error) if error == Errno::BUSY || config.queues == Queues::Auto => {
                    refusal = refusal.filter(|earlier| *earlier == Errno::BUSY).or(Some(error));
                }
                Err(error) => return Err(Step::Bind.refused(interface, error)),
            }
        }
        match refusal {
            Some(error) if error != Errno::BUSY => Err(Step::Bind.refused(interface, error)),
            _ => Ok(None),
        }
    }

    /// Gives a socket a queue's packets, or returns the kernel's reason why the socket cannot have the queue.
    fn enter(
        &self,
        socket: BorrowedFd<'_>,
        number: u32,
        queue: u32,
        interface: &str,
    ) -> Result<Result<Right, Errno>, XdpError> {
        match self {
            Self::Own { attached, local, mode } => {
                match attached.enter(socket, local, queue, *mode) {
                    Ok(entered) => Ok(Ok(Right::Own { _entered: entered })),
                    Err((Step::Bind, error @ (Errno::BUSY | Errno::INVAL))) => Ok(Err(error)),
                    Err((step, error)) => Err(step.refused(interface, error)),
                }
            }
            Self::Helper(client) => Ok(client.enter(number, queue)?.map(|()| Right::Helper)),
        }
    }
}

#[cfg(test)]
mod tests;
