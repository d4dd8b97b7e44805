//! The program of an interface, which all sockets of this process on the interface share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use rustix::net::bind;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};

use super::Mode;
use super::bpf::{self, FLAGS_DRV_MODE, FLAGS_SKB_MODE};
use super::error::{Step, XdpError};
use super::interface::{Interface, check_kernel, is_taken};
use super::local::Local;
use super::program::{Destination, Program, SOCKETS_MAX, destination};

/// Bytes before a received frame in its chunk (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

/// Chunks: the kernel takes powers of two up to a page.
const SMALL_CHUNK_BYTES: usize = 2048;
const LARGE_CHUNK_BYTES: usize = 4096;

/// Most bytes of a frame that a chunk holds.
pub(super) const FRAME_BYTES_MAX: usize = LARGE_CHUNK_BYTES - HEADROOM;

/// Bytes of an Ethernet head.
const ETHERNET_BYTES: usize = 14;

/// Most bytes of a packet, with its IP header.
pub(super) const PACKET_BYTES_MAX: usize = LARGE_CHUNK_BYTES - HEADROOM - ETHERNET_BYTES;

/// A program attached to an interface, with maps.
///
/// The program is detached with this object, or when the process ends: the link has no other owner.
#[derive(Debug)]
pub(super) struct Attached {
    program: Program,
    link: OwnedFd,
    interface: u32,
    frame_bytes_max: usize,
    /// Unused indices of sockets.
    free: Mutex<Vec<u32>>,
}

/// A socket that gets packets, until this object is dropped.
#[derive(Debug)]
pub(super) struct Entered {
    to: Arc<Attached>,
    index: u32,
    destinations: Vec<Destination>,
}

type Registry = Vec<((u64, u32), Weak<Attached>)>;

/// The programs of this process, by namespace and interface.
static REGISTRY: Mutex<Registry> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The lists are whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Attached {
    /// Returns the process's program on the interface; attaches one if there is none.
    pub(super) fn to(interface: &Interface, mode: Mode) -> Result<Arc<Self>, XdpError> {
        let mut registry = lock(&REGISTRY);
        registry.retain(|(_, attached)| attached.strong_count() > 0);
        let mut known = registry.iter().filter(|(key, _)| *key == interface.key());
        let known =
            known.find_map(|(_, known)| known.upgrade().filter(|known| known.is_attached()));
        if let Some(attached) = known {
            return Ok(attached);
        }
        let attached = Arc::new(Self::attach(interface, mode)?);
        registry.push((interface.key(), Arc::downgrade(&attached)));
        Ok(attached)
    }

    fn attach(interface: &Interface, mode: Mode) -> Result<Self, XdpError> {
        check_kernel(&rustix::system::uname().release().to_string_lossy())?;
        let frame_bytes_max = (ETHERNET_BYTES + interface.mtu()?).min(LARGE_CHUNK_BYTES - HEADROOM);
        let name = interface.name();
        let program =
            Program::load(frame_bytes_max).map_err(|error| Step::Load.refused(name, error))?;
        let flags: &[u32] = match mode {
            // Native mode on veth was measured slower than generic mode: each frame is copied into a page of its own first.
            Mode::Auto if interface.driver() == "veth" => &[FLAGS_SKB_MODE],
            Mode::Auto => &[FLAGS_DRV_MODE, FLAGS_SKB_MODE],
            Mode::Generic => &[FLAGS_SKB_MODE],
            Mode::Native | Mode::ZeroCopy => &[FLAGS_DRV_MODE],
        };
        let mut refusal = Errno::OPNOTSUPP;
        for flags in flags {
            match program.attach(interface.index(), *flags) {
                Ok(link) => {
                    let free = Mutex::new((0..SOCKETS_MAX).rev().collect());
                    let interface = interface.index();
                    return Ok(Self { program, link, interface, frame_bytes_max, free });
                }
                Err(error) if is_taken(error) => {
                    return Err(XdpError::AnotherProgram { interface: name.to_owned() });
                }
                Err(error) => refusal = error,
            }
        }
        Err(Step::Attach.refused(name, refusal))
    }

    /// Returns false if the program was detached by force.
    pub(super) fn is_attached(&self) -> bool {
        bpf::is_attached(self.link.as_fd())
    }

    /// Detaches the program by force.
    #[cfg(test)]
    pub(super) fn detach(&self) {
        bpf::detach(self.link.as_fd()).unwrap();
    }

    /// Returns the most bytes of a frame that the program gives to a socket.
    pub(super) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Binds a socket with memory to a queue, and gives it the packets to a UDP socket's addresses. The error is the kernel's, with the refused step.
    pub(super) fn enter(
        self: &Arc<Self>,
        socket: BorrowedFd<'_>,
        local: &Local,
        queue: u32,
        mode: Mode,
    ) -> Result<Entered, (Step, Errno)> {
        let copy = match mode {
            Mode::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
            _ => SocketAddrXdpFlags::XDP_COPY,
        };
        let flags = copy | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(socket, &SocketAddrXdp::new(flags, self.interface, queue))
            .map_err(|error| (Step::Bind, error))?;
        let refused = |error| (Step::Enter, error);
        let index = lock(&self.free).pop().ok_or(refused(Errno::TOOBIG))?;
        // From here on, the object gives back whatever it has.
        let mut entered = Entered { to: Arc::clone(self), index, destinations: Vec::new() };
        self.program.add(index, socket).map_err(refused)?;
        for address in local.addresses() {
            let destination = destination(*address, local.port(), queue);
            self.program.enter(&destination, index).map_err(refused)?;
            entered.destinations.push(destination);
        }
        Ok(entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.destinations.iter().for_each(|destination| self.to.program.leave(destination));
        self.to.program.remove(self.index);
        lock(&self.to.free).push(self.index);
    }
}

/// Returns the bytes of a chunk that holds every frame of at most `frame_bytes_max` bytes.
///
/// Small chunks halve the memory that the processor's caches have to hold.
pub(super) fn chunk_bytes(frame_bytes_max: usize) -> usize {
    assert!(frame_bytes_max <= FRAME_BYTES_MAX, "the kernel gets larger frames");
    if frame_bytes_max + HEADROOM <= SMALL_CHUNK_BYTES {
        SMALL_CHUNK_BYTES
    } else {
        LARGE_CHUNK_BYTES
    }
}
