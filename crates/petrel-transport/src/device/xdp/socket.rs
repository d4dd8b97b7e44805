//! One AF_XDP socket: a queue's rings, and the system calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
    XdpRingOffset, XdpStatistics, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::net::{recv, send, socket_with};

use super::attached::chunk_bytes;
use super::error::{Step, XdpError};
use super::local::set_option;
use super::queue::{Queue, Rings};
use super::rings::{Consumer, Plain, Producer, Ring};
use super::umem::{Memory, Umem};

/// Frames that the kernel handles in one busy poll.
const BUSY_POLL_BUDGET: u32 = 64;

/// Most bytes charged by the kernel for a frame: the allocation size above a chunk of 4 KiB, and the packet's structure. The kernel doubles the size of
/// a send buffer.
const FRAME_CHARGE_BYTES: usize = 8192 + 512;

/// Chunks of a socket: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) receive: u32,
    /// 1 for a socket that only receives: the kernel demands a ring.
    pub(super) send: u32,
}

/// Creates a socket with its four rings.
///
/// The creator needs CAP_NET_RAW; the socket's user needs no privilege. Rings are kernel memory without a limit, so the creator also sets their sizes.
pub(super) fn create(sizes: Sizes) -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // Twice as many entries as chunks: `Queue::refill` has the reason.
    sockopt::set_xdp_umem_fill_ring_size(&socket, 2 * sizes.receive)?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, sizes.send)?;
    sockopt::set_xdp_rx_ring_size(&socket, sizes.receive)?;
    sockopt::set_xdp_tx_ring_size(&socket, sizes.send)?;
    // A copy mode charges every frame to the buffer until the device has sent the frame. Only CAP_NET_ADMIN passes over the system's limit. Under the
    // limit, the kernel would send fewer frames than the ring has.
    let send_buffer_bytes = sizes.send as usize * FRAME_CHARGE_BYTES / 2;
    let forced = sockopt::set_socket_send_buffer_size_force(&socket, send_buffer_bytes);
    forced.or_else(|_| sockopt::set_socket_send_buffer_size(&socket, send_buffer_bytes))?;
    Ok(socket)
}

/// A socket with registered memory, before or after it is bound.
#[derive(Debug)]
pub(super) struct Socket {
    // First: the kernel lets go of the memory when the socket closes.
    fd: OwnedFd,
    queue: Queue,
    frame_bytes_max: usize,
    receive: u32,
    is_busy_polling: bool,
}

impl Socket {
    /// Takes a socket from [`create`] into use.
    pub(super) fn new(
        fd: OwnedFd,
        interface: &str,
        sizes: Sizes,
        frame_bytes_max: usize,
        busy_poll: Option<Duration>,
    ) -> Result<Self, XdpError> {
        let refused = |step: Step| move |error: Errno| step.refused(interface, error);
        let Sizes { receive, send } = sizes;
        let umem = Umem::new(receive, send, chunk_bytes(frame_bytes_max))
            .map_err(|error| Step::Register.refused(interface, error))?;
        register(&fd, &umem).map_err(|error| match error {
            Errno::NOBUFS => XdpError::LockedMemory { bytes: umem.extent().1 },
            error => refused(Step::Register)(error),
        })?;
        let rings = map(&fd, sizes).map_err(|error| Step::Map.refused(interface, error))?;
        if let Some(time) = busy_poll {
            set_busy_poll(fd.as_fd(), time)
                .map_err(|error| Step::BusyPoll.refused(interface, error))?;
        }
        let queue = Queue::new(umem, rings, receive, frame_bytes_max);
        Ok(Self { fd, queue, frame_bytes_max, receive, is_busy_polling: busy_poll.is_some() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    pub(super) fn receive_frames(&self) -> usize {
        self.receive as usize
    }

    pub(super) fn has_room(&mut self, frames: usize) -> bool {
        self.queue.has_room(frames)
    }

    pub(super) fn has_received(&mut self) -> bool {
        self.queue.has_received()
    }

    pub(super) fn begin(&mut self) -> Option<&mut [u8]> {
        self.queue.begin()
    }

    pub(super) fn commit(&mut self, bytes: usize) {
        self.queue.commit(bytes);
    }

    /// Lets the kernel send. Returns the number of system calls.
    ///
    /// A copy mode sends 32 frames in a call. A call without progress ends the flush, whatever the reason: no buffers, or no device. While
    /// [`Socket::has_unsent`], the next flush tries again, and [`Xdp::state`](super::Xdp::state) asks for the device.
    pub(super) fn flush(&mut self) -> u64 {
        self.queue.publish();
        let mut calls = 0;
        let mut unsent = self.queue.unsent();
        while unsent > 0 && self.queue.send_needs_wakeup() {
            let _ = send(&self.fd, &[], SendFlags::DONTWAIT);
            calls += 1;
            let before = std::mem::replace(&mut unsent, self.queue.unsent());
            if unsent == before {
                break;
            }
        }
        calls
    }

    /// Returns true if the kernel sends frames of the ring only after a further [`Socket::flush`].
    pub(super) fn has_unsent(&mut self) -> bool {
        self.queue.send_needs_wakeup() && self.queue.unsent() > 0
    }

    /// Returns the oldest received frame. A system call is made only if the kernel asks, or for busy polling.
    pub(super) fn received(&mut self) -> Option<&mut [u8]> {
        if !self.queue.has_received() && (self.is_busy_polling || self.queue.fill_needs_wakeup()) {
            // A refusal is no news: without a frame, there is nothing to do.
            let _ = recv(&self.fd, &mut [0_u8; 0], RecvFlags::DONTWAIT);
        }
        self.queue.received()
    }

    pub(super) fn release(&mut self) {
        self.queue.release();
    }

    /// Returns the kernel's counters since the socket was created.
    pub(super) fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.fd).ok()
    }

    pub(super) fn faults(&self) -> u64 {
        self.queue.faults()
    }
}

fn register(fd: &OwnedFd, umem: &Umem) -> Result<(), Errno> {
    let (address, bytes) = umem.extent();
    sockopt::set_xdp_umem_reg(
        fd,
        XdpUmemReg {
            addr: address as u64,
            len: bytes as u64,
            chunk_size: umem.chunk_bytes() as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        },
    )
}

fn map(fd: &OwnedFd, sizes: Sizes) -> io::Result<Rings> {
    let offsets = sockopt::xdp_mmap_offsets(fd)?;
    fn ring<T: Plain>(
        fd: &OwnedFd,
        part: u64,
        at: &XdpRingOffset,
        entries: u32,
    ) -> io::Result<Ring<T>> {
        let bytes = at.desc as usize + entries as usize * size_of::<T>();
        let memory = Arc::new(Memory::of_socket(fd.as_fd(), part, bytes)?);
        Ok(Ring::new(&memory, at, entries))
    }
    let Sizes { receive, send } = sizes;
    Ok(Rings {
        fill: Producer::new(ring(fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, 2 * receive)?),
        completion: Consumer::new(ring(fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, send)?),
        receive: Consumer::new(ring(fd, XDP_PGOFF_RX_RING, &offsets.rx, receive)?),
        send: Producer::new(ring(fd, XDP_PGOFF_TX_RING, &offsets.tx, send)?),
    })
}

fn set_busy_poll(fd: BorrowedFd<'_>, time: Duration) -> Result<(), Errno> {
    let microseconds = u32::try_from(time.as_micros()).unwrap_or(u32::MAX).min(i32::MAX as u32);
    set_option(fd, libc::SO_PREFER_BUSY_POLL, 1)?;
    set_option(fd, libc::SO_BUSY_POLL, microseconds)?;
    set_option(fd, libc::SO_BUSY_POLL_BUDGET, BUSY_POLL_BUDGET)
}
