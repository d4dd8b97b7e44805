//! Taking datagrams from the kernel, and cutting apart what it joined.
//!
//! A call fills buffers of 64 KiB; with receive offload each may hold many datagrams of equal size
//! from one peer. They are handed out one by one, from where they lie, and the next call is made
//! when all are handed out, so that a caller may stop at any datagram.
//!
//! `recvmmsg` costs 60 ns more than `recvmsg` when there is one datagram, because it looks for a
//! second one, and less for each when there are several. So a quiet socket is asked for one. If
//! there is one, the call after that asks for several, and so on while there are at least two.
//!
//! Offload has a price too: the size of joined datagrams comes in a control message, and a call that
//! takes one has 50 ns more than `recvfrom`, at each end. So it is on only from when several datagrams
//! came at once, and then stays on: it could not be told when the last joined ones are out of the
//! socket. A round trip over loopback is 3 % shorter as long as it is off.
//!
//! So do marks of congestion (see `ecn`), which are read while a peer has agreed to them: of all that
//! comes in several at once, and of one in [`LONE_PER_LOOK`] of those that come alone, until one is
//! marked. Congestion marks many packets, and a control acts on them each 50 µs at most.
//!
//! # Why the unsafe code is sound
//!
//! The kernel follows pointers from [`Slots`] to itself and to the buffers. Both are mappings that
//! live as long as the [`Receiver`] and stay where they are when it moves; they are accessed through
//! the mappings' own pointers only, so that those in the headers stay valid. The kernel writes
//! during the call alone, which holds `&mut self`; datagrams are lent out of `&self` afterwards. All
//! memory is initialised from the start.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::addr::{AddrKey, RawAddr};
use super::ecn;
use super::send::last_errno;
use super::socket::enable_gro;
use crate::buf::Region;

/// Holds the largest UDP datagram, and the largest run of datagrams that the kernel joins.
const BUFFER_BYTES: usize = 64 << 10;

/// Buffers per call where each can hold a run of datagrams: enough to spread the call's cost, few
/// enough that they stay in the second-level cache.
const BUFFERS_WITH_GRO: usize = 8;

/// Buffers per call where each holds one datagram.
const BUFFERS_WITHOUT_GRO: usize = 16;

/// Datagrams of one call from which on the kernel is to join them.
const OFFLOAD_FROM: usize = 4;

/// Of so many datagrams that come alone, the mark of one is read. On a link of 1 Gbit/s full packets come
/// alone and 12 µs apart: this looks every 60 µs. No power of two, because what peers do repeats itself
/// in those.
const LONE_PER_LOOK: u8 = 5;

/// So many datagrams without a mark have to come alone, after one with, before looks are rare again.
const LOOKS_AFTER_MARK: u8 = 64;

/// Times that a call is repeated after a signal, or after an error that a datagram sent earlier
/// caused and that this call reports.
const TRIES_MAX: u32 = 8;

/// A control message with one value of up to 32 bits, laid out as `cmsg(3)` says. What the kernel writes
/// may be shorter, but takes as much room.
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    value: [u8; 4],
}

impl Control {
    #[inline]
    fn kind(&self) -> (libc::c_int, libc::c_int) {
        (self.header.cmsg_level, self.header.cmsg_type)
    }
}

/// Room for the control messages that this socket may ask for: size and mark.
type Controls = [Control; 2];

/// The control message with the size of joined datagrams.
const SEGMENT_BYTES: (libc::c_int, libc::c_int) = (libc::SOL_UDP, libc::UDP_GRO);

/// Most buffers of a receiver.
const BUFFERS_MAX: usize = BUFFERS_WITHOUT_GRO;

/// What the kernel reads and writes beside the buffers, one of each per buffer. Zero is a valid value
/// of all, which are integers and nullable pointers.
#[repr(C)]
struct Slots {
    headers: [libc::mmsghdr; BUFFERS_MAX],
    iovecs: [libc::iovec; BUFFERS_MAX],
    names: [libc::sockaddr_in6; BUFFERS_MAX],
    controls: [Controls; BUFFERS_MAX],
}

/// What is left of a buffer: datagrams of one peer.
pub(super) struct Train<'a> {
    pub(super) from: AddrKey,
    /// All of them, one behind the other.
    pub(super) bytes: &'a [u8],
    /// The size of each but the last, which may be shorter.
    pub(super) segment_bytes: usize,
}

impl Train<'_> {
    /// How many there are; one, if it is empty.
    pub(super) fn datagram_count(&self) -> usize {
        self.bytes.len().div_ceil(self.segment_bytes).max(1)
    }
}

/// The receive buffers, and how far they are handed out.
pub(super) struct Receiver {
    buffers: Region,
    /// Holds a [`Slots`].
    slots: Region,
    /// Buffers that a call may fill.
    count: usize,
    /// Buffers that the last call filled.
    filled: usize,
    /// The buffer to hand out from, and where in it.
    buffer: usize,
    offset: usize,
    /// Whether the next call asks for several datagrams.
    wants_several: bool,
    offload: Offload,
    /// Whether marks of congestion come with the datagrams.
    reads_marks: bool,
    looks: Looks,
}

/// When the mark of a datagram that comes alone is looked for.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    /// Datagrams to receive without.
    pause: u8,
    /// Datagrams that are all looked at, because one before was marked.
    alert: u8,
}

impl Looks {
    #[inline]
    fn is_due(self) -> bool {
        self.pause == 0
    }

    /// A datagram came alone, and was looked at.
    #[inline]
    fn note(&mut self, is_marked: bool) {
        self.alert = if is_marked { LOOKS_AFTER_MARK } else { self.alert.saturating_sub(1) };
        self.pause = if self.alert == 0 { LONE_PER_LOOK - 1 } else { 0 };
    }
}

/// Whether the kernel joins datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offload {
    Impossible,
    /// It can, but has never been asked to, so that no buffer holds several.
    Possible,
    On,
}

impl Receiver {
    pub(super) fn new(gro: bool) -> io::Result<Self> {
        let count = if gro { BUFFERS_WITH_GRO } else { BUFFERS_WITHOUT_GRO };
        let mut receiver = Self {
            buffers: Region::zeroed(count * BUFFER_BYTES, false)?,
            slots: Region::zeroed(size_of::<Slots>(), false)?,
            count,
            filled: 0,
            buffer: 0,
            offset: 0,
            wants_several: false,
            offload: if gro { Offload::Possible } else { Offload::Impossible },
            reads_marks: false,
            looks: Looks::default(),
        };
        (0..count).for_each(|index| receiver.connect(index));
        (0..count).for_each(|index| receiver.reset(index));
        Ok(receiver)
    }

    /// Without a socket: [`Receiver::fill`] stands for the kernel, which joins datagrams and says what was marked.
    pub(super) fn detached() -> io::Result<Self> {
        Ok(Self { offload: Offload::On, reads_marks: true, ..Self::new(true)? })
    }

    /// Makes all buffers empty, which must be handed out.
    pub(super) fn empty(&mut self) {
        assert!(!self.has_ready());
        (self.filled, self.buffer, self.offset) = (0, 0, 0);
    }

    /// Whether [`Receiver::fill`] has a buffer to fill.
    pub(super) fn has_empty(&self) -> bool {
        self.filled < self.count
    }

    /// Fills a buffer as the kernel does: with datagrams of `segment_bytes`, the last of which may be shorter.
    pub(super) fn fill(
        &mut self,
        from: &RawAddr,
        datagrams: &[u8],
        segment_bytes: usize,
        is_marked: bool,
    ) {
        let index = self.filled;
        assert!(self.has_empty() && datagrams.len() <= BUFFER_BYTES);
        let mut controls = Vec::new();
        if segment_bytes < datagrams.len() {
            controls.push((SEGMENT_BYTES, (segment_bytes as u32).to_ne_bytes()));
        }
        if is_marked {
            controls.push((ecn::control_kind(from), ecn::MARK));
        }
        let (name, name_bytes) = from.as_name();
        let slots = self.slots();
        // SAFETY: the index is in range of the arrays, and the buffers are as many, each with room for the datagrams. A
        // name of either family fits into a `sockaddr_in6`. No reference to any of them exists, as `&mut self` shows.
        unsafe {
            let buffer = self.buffers.start().add(index * BUFFER_BYTES).as_ptr();
            buffer.copy_from_nonoverlapping(datagrams.as_ptr(), datagrams.len());
            let to = (&raw mut (*slots).names[index]).cast::<u8>();
            to.copy_from_nonoverlapping(name.cast(), name_bytes as usize);
            let header = &raw mut (*slots).headers[index];
            (*header).msg_len = datagrams.len() as libc::c_uint;
            (*header).msg_hdr.msg_flags = 0;
            (*header).msg_hdr.msg_controllen = (controls.len() * size_of::<Control>()) as _;
            for (place, ((level, kind), value)) in controls.into_iter().enumerate() {
                let control = &raw mut (*slots).controls[index][place];
                ((*control).header.cmsg_level, (*control).header.cmsg_type) = (level, kind);
                (*control).value = value;
            }
        }
        self.filled += 1;
    }

    #[inline]
    fn slots(&self) -> *mut Slots {
        self.slots.start().as_ptr().cast()
    }

    /// Points a header at its buffer, name and control messages, for good.
    fn connect(&mut self, index: usize) {
        assert!(index < self.count);
        let slots = self.slots();
        // SAFETY: the index is in range of the arrays, and the buffers are as many. No reference to
        // any of them exists, as `&mut self` shows.
        unsafe {
            let buffer = self.buffers.start().add(index * BUFFER_BYTES).as_ptr();
            (*slots).iovecs[index] = libc::iovec { iov_base: buffer.cast(), iov_len: BUFFER_BYTES };
            let header = &raw mut (*slots).headers[index].msg_hdr;
            (*header).msg_name = (&raw mut (*slots).names[index]).cast();
            (*header).msg_iov = &raw mut (*slots).iovecs[index];
            (*header).msg_iovlen = 1;
            (*header).msg_control = (&raw mut (*slots).controls[index]).cast();
        }
    }

    /// Writes what the kernel has changed in a header and reads in the next call.
    #[inline]
    fn reset(&mut self, index: usize) {
        // SAFETY: the memory is that of a `Slots`, and no reference to it exists, as `&mut self`
        // shows; the index is checked.
        let header = unsafe { &mut (*self.slots()).headers[index].msg_hdr };
        header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        header.msg_controllen = size_of::<Controls>() as _;
    }

    /// Whether there are datagrams to hand out without a system call.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        self.buffer < self.filled
    }

    /// Fills the buffers, which must all be handed out. Returns how many system calls that took,
    /// and whether the socket is known to hold more.
    pub(super) fn refill(&mut self, socket: BorrowedFd<'_>) -> (u64, bool) {
        debug_assert!(!self.has_ready());
        for tries in 1..=TRIES_MAX {
            let asked = if self.wants_several { self.count } else { 1 };
            match self.receive(socket, asked) {
                Ok(filled) => {
                    if filled >= OFFLOAD_FROM && self.offload == Offload::Possible {
                        self.switch_offload_on(socket);
                    }
                    self.wants_several = asked == 1 || filled > 1;
                    return (u64::from(tries), asked > 1 && filled == asked);
                }
                Err(Errno::AGAIN) => {
                    self.wants_several = false;
                    return (u64::from(tries), false);
                }
                Err(_) => {}
            }
        }
        (u64::from(TRIES_MAX), false)
    }

    #[cold]
    fn switch_offload_on(&mut self, socket: BorrowedFd<'_>) {
        let is_on = enable_gro(socket);
        self.offload = if is_on { Offload::On } else { Offload::Impossible };
    }

    /// Reads the marks of what comes out of the socket from now on, or does not.
    ///
    /// # Errors
    /// What the system said; nothing has changed then.
    pub(super) fn read_marks(
        &mut self,
        socket: BorrowedFd<'_>,
        v6: bool,
        on: bool,
    ) -> io::Result<()> {
        if on != self.reads_marks {
            ecn::read_marks(socket, v6, on)?;
            (self.reads_marks, self.looks) = (on, Looks::default());
        }
        Ok(())
    }

    /// Asks for up to `count` datagrams.
    #[inline]
    fn receive(&mut self, socket: BorrowedFd<'_>, count: usize) -> Result<usize, Errno> {
        (0..self.filled).for_each(|index| self.reset(index));
        (self.filled, self.buffer, self.offset) = (0, 0, 0);
        assert!(count <= self.count);
        let looks = self.reads_marks && self.looks.is_due();
        let is_plain = count == 1 && self.offload != Offload::On && !looks;
        // SAFETY: so many headers point to live memory of the sizes that they say; see the module's
        // documentation.
        let filled = unsafe {
            let headers = self.slots().cast();
            if is_plain {
                receive_plain(socket, headers)
            } else {
                receive_headers(socket, headers, count)
            }
        };
        self.filled = filled.ok_or_else(last_errno)?;
        if self.reads_marks && count == 1 {
            match is_plain {
                true => self.looks.pause = self.looks.pause.saturating_sub(1),
                false => self.looks.note(self.has_mark(0)),
            }
        }
        Ok(self.filled)
    }

    /// What was received and not yet [handed out](Receiver::advance): of one buffer. `None`: the
    /// kernel had to cut a datagram, or the size of joined ones.
    ///
    /// # Panics
    /// When nothing is [ready](Receiver::has_ready).
    #[inline]
    pub(super) fn train(&self) -> Option<Train<'_>> {
        let header = self.header(self.buffer);
        if header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        // SAFETY: the memory is that of a `Slots`; see the module's documentation.
        let from = AddrKey::from_name(unsafe { &(*self.slots()).names[self.buffer] });
        let bytes = &self.bytes(self.buffer)[self.offset..header.msg_len as usize];
        Some(Train { from, bytes, segment_bytes: self.segment_bytes(self.buffer) })
    }

    /// Whether all datagrams of the train met congestion. The kernel joins no others to those that did.
    #[inline]
    pub(super) fn is_marked(&self) -> bool {
        self.reads_marks && self.has_mark(self.buffer)
    }

    /// The first `bytes` of the train are handed out.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
        if self.offset >= self.header(self.buffer).msg_len as usize {
            self.skip();
        }
    }

    /// [`Receiver::fill`] of one buffer with what no honest kernel says: any size of joined datagrams, and the flags
    /// of what was cut.
    #[cfg(any(test, fuzzing))]
    pub(super) fn fill_with_any(
        &mut self,
        from: &RawAddr,
        bytes: &[u8],
        segment_bytes: Option<u32>,
        flags: libc::c_int,
    ) {
        self.empty();
        self.fill(from, bytes, BUFFER_BYTES, false);
        let slots = self.slots();
        // SAFETY: the memory is that of a `Slots`, and no reference to it exists, as `&mut self` shows.
        unsafe {
            let control = &raw mut (*slots).controls[0][0];
            ((*control).header.cmsg_level, (*control).header.cmsg_type) = SEGMENT_BYTES;
            (*control).value = segment_bytes.unwrap_or(0).to_ne_bytes();
            let header = &raw mut (*slots).headers[0].msg_hdr;
            (*header).msg_flags = flags;
            (*header).msg_controllen =
                (usize::from(segment_bytes.is_some()) * size_of::<Control>()) as _;
        }
    }

    /// All of the train is handed out.
    #[inline]
    pub(super) fn skip(&mut self) {
        (self.buffer, self.offset) = (self.buffer + 1, 0);
    }

    #[inline]
    fn header(&self, index: usize) -> &libc::mmsghdr {
        // SAFETY: the memory is that of a `Slots`, which the kernel writes to only while `receive`
        // borrows `self` exclusively; the index is checked.
        unsafe { &(*self.slots()).headers[index] }
    }

    /// The size of each datagram in a buffer, but for a shorter last one: what the control message
    /// says, or where there is none, all.
    #[inline]
    fn segment_bytes(&self, index: usize) -> usize {
        if self.header(index).msg_hdr.msg_controllen == 0 {
            return BUFFER_BYTES;
        }
        let size = self.controls(index).iter().find(|control| control.kind() == SEGMENT_BYTES);
        match size.map(|control| u32::from_ne_bytes(control.value)) {
            Some(bytes) if bytes > 0 => bytes as usize,
            _ => BUFFER_BYTES,
        }
    }

    /// Whether a buffer came with the mark of congestion.
    #[inline(never)]
    fn has_mark(&self, index: usize) -> bool {
        self.controls(index).iter().any(|control| ecn::is_mark(control.kind(), control.value))
    }

    /// The control messages that came with a buffer.
    #[inline]
    fn controls(&self, index: usize) -> &[Control] {
        let bytes: usize = self.header(index).msg_hdr.msg_controllen as _;
        // SAFETY: as in `header`.
        let controls = unsafe { &(*self.slots()).controls[index] };
        &controls[..(bytes / size_of::<Control>()).min(controls.len())]
    }

    #[inline]
    fn bytes(&self, index: usize) -> &[u8] {
        assert!(index < self.count);
        // SAFETY: the region has a buffer for each header, initialised, and the kernel writes to it
        // only while `receive` borrows `self` exclusively.
        unsafe {
            std::slice::from_raw_parts(
                self.buffers.start().add(index * BUFFER_BYTES).as_ptr(),
                BUFFER_BYTES,
            )
        }
    }
}

/// Receives one datagram into the buffer of a header, without control messages.
///
/// # Safety
/// As for [`receive_headers`], of one header, whose buffer holds any datagram.
#[inline]
unsafe fn receive_plain(socket: BorrowedFd<'_>, header: *mut libc::mmsghdr) -> Option<usize> {
    // SAFETY: by this function's contract; a header has one buffer.
    unsafe {
        let to = &raw mut (*header).msg_hdr;
        let libc::iovec { iov_base: bytes, iov_len: len } = *(*to).msg_iov;
        let (name, name_len) = ((*to).msg_name, &raw mut (*to).msg_namelen);
        let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let length = libc::syscall(libc::SYS_recvfrom, socket, bytes, len, flags, name, name_len);
        (*header).msg_len = libc::c_uint::try_from(length).ok()?;
        ((*to).msg_controllen, (*to).msg_flags) = (0, 0);
    }
    Some(1)
}

/// Gives how many of `count` headers the kernel filled, or `None`, the reason being in `errno`. By
/// `syscall`, as in `send`.
///
/// # Safety
/// There are so many headers; all pointers in them are to live memory of the sizes that they say,
/// which nobody else uses.
#[inline]
unsafe fn receive_headers(
    socket: BorrowedFd<'_>,
    headers: *mut libc::mmsghdr,
    count: usize,
) -> Option<usize> {
    let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    if count > 1 {
        let no_timeout = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: by this function's contract.
        let filled =
            unsafe { libc::syscall(libc::SYS_recvmmsg, socket, headers, count, flags, no_timeout) };
        return usize::try_from(filled).ok();
    }
    // SAFETY: by this function's contract.
    unsafe {
        let length = libc::syscall(libc::SYS_recvmsg, socket, &raw mut (*headers).msg_hdr, flags);
        (*headers).msg_len = libc::c_uint::try_from(length).ok()?;
    }
    Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks__are_rare_until_there_is_a_mark() {
        let mut looks = Looks::default();
        let mut receive = |is_marked: bool| {
            let is_seen = looks.is_due();
            match is_seen {
                true => looks.note(is_marked),
                false => looks.pause -= 1,
            }
            is_seen
        };
        let seen = (0..100).filter(|_| receive(false)).count();
        assert_eq!(seen, 100 / usize::from(LONE_PER_LOOK));
        let missed = (0..100).take_while(|_| !receive(true)).count();
        assert!(missed < usize::from(LONE_PER_LOOK), "{missed}");
        assert!((0..100).all(|_| receive(true)));
        let alert = (0..100).take_while(|_| receive(false)).count();
        assert_eq!(alert, usize::from(LOOKS_AFTER_MARK));
    }

    #[test]
    fn refill__asks_for_several_as_long_as_several_come() {
        use std::os::fd::AsFd;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(socket.local_addr().unwrap()).unwrap();
        let mut receiver = Receiver::new(false).unwrap();
        // Calls that have filled buffers, and how many each filled.
        let mut filled_by = |datagrams: usize| {
            (0..datagrams).for_each(|_| assert_eq!(sender.send(b"a datagram").unwrap(), 10));
            let mut filled = Vec::new();
            while filled.iter().sum::<usize>() < datagrams {
                receiver.refill(socket.as_fd());
                filled.push(receiver.filled);
                receiver.buffer = receiver.filled;
            }
            filled
        };
        assert_eq!(filled_by(1), [1], "one is asked for at first");
        assert_eq!(filled_by(5), [5], "and then as many as there are");
        assert_eq!(filled_by(5), [5]);
        assert_eq!(filled_by(1), [1], "one alone, though several were asked for");
        assert_eq!(filled_by(5), [1, 4]);
    }

    #[test]
    fn refill__says_how_many_calls_it_took_and_whether_the_socket_may_hold_more() {
        use std::os::fd::AsFd;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(socket.local_addr().unwrap()).unwrap();
        let mut receiver = Receiver::new(false).unwrap();
        let mut refill = |datagrams: usize| {
            (0..datagrams).for_each(|_| assert_eq!(sender.send(b"a datagram").unwrap(), 10));
            let result = receiver.refill(socket.as_fd());
            receiver.buffer = receiver.filled;
            (receiver.filled, result)
        };
        assert_eq!(refill(0), (0, (1, false)));
        assert_eq!(refill(2), (1, (1, false)), "one was asked for, and there is a second one");
        assert_eq!(refill(0), (1, (1, false)));
        // As many as there are buffers, and one more than that.
        assert_eq!(refill(1), (1, (1, false)));
        assert_eq!(refill(BUFFERS_WITHOUT_GRO), (BUFFERS_WITHOUT_GRO, (1, true)));
        assert_eq!(refill(BUFFERS_WITHOUT_GRO + 1), (BUFFERS_WITHOUT_GRO, (1, true)));
        assert_eq!(refill(1), (2, (1, false)));
        assert_eq!(refill(0), (0, (1, false)));
    }

    #[test]
    fn refill__has_datagrams_joined_from_when_four_come_at_once() {
        use std::os::fd::AsFd;
        for (gro, expected) in [
            (true, [Offload::Possible, Offload::Possible, Offload::On, Offload::On]),
            (false, [Offload::Impossible; 4]),
        ] {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.connect(socket.local_addr().unwrap()).unwrap();
            let mut receiver = Receiver::new(gro).unwrap();
            for (datagrams, offload) in [1, 3, 4, 2].into_iter().zip(expected) {
                (0..datagrams).for_each(|_| assert_eq!(sender.send(b"a datagram").unwrap(), 10));
                assert_eq!(receiver.refill(socket.as_fd()), (1, false));
                assert_eq!((receiver.filled, receiver.offload), (datagrams, offload));
                receiver.buffer = receiver.filled;
            }
        }
    }

    #[test]
    fn refill__gives_up_where_each_call_fails() {
        use std::os::fd::AsFd;
        let (no_socket, _writer) = std::io::pipe().unwrap();
        let mut receiver = Receiver::new(false).unwrap();
        assert_eq!(receiver.refill(no_socket.as_fd()), (u64::from(TRIES_MAX), false));
        assert!(!receiver.has_ready());
    }

    /// Each call of `fill` as the kernel: a size comes with what was joined, and not with a datagram alone.
    #[test]
    fn fill__is_seen_as_what_was_filled_in() {
        let from: std::net::SocketAddr = "10.0.0.1:7".parse().unwrap();
        let from = RawAddr::from(from);
        let mut receiver = Receiver::detached().unwrap();
        assert!(receiver.has_empty() && !receiver.has_ready());
        let bytes: Vec<u8> = (0..100).collect();
        for (segment_bytes, seen, count) in
            [(33, 33, 4), (50, 50, 2), (99, 99, 2), (100, BUFFER_BYTES, 1), (101, BUFFER_BYTES, 1)]
        {
            for is_marked in [false, true] {
                receiver.fill(&from, &bytes, segment_bytes, is_marked);
                let train = receiver.train().unwrap();
                assert_eq!(train.bytes, bytes);
                assert_eq!((train.segment_bytes, train.datagram_count()), (seen, count));
                assert_eq!(receiver.is_marked(), is_marked);
                receiver.advance(1);
                assert_eq!(receiver.train().unwrap().bytes, &bytes[1..]);
                receiver.advance(bytes.len() - 1);
                assert!(!receiver.has_ready());
                receiver.empty();
            }
        }
        (0..BUFFERS_WITH_GRO).for_each(|_| receiver.fill(&from, &bytes, bytes.len(), false));
        assert!(!receiver.has_empty());
    }

    #[test]
    fn control__is_laid_out_as_the_kernel_writes_it() {
        // SAFETY: these compute sizes and access no memory.
        let (len, space) = unsafe { (libc::CMSG_LEN(4), libc::CMSG_SPACE(4)) };
        assert_eq!(size_of::<Control>(), space as usize);
        assert_eq!(std::mem::offset_of!(Control, value) as u32, len - 4);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::CMSG_SPACE(1) }, space);
    }
}
