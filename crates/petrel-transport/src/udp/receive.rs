//! Receives datagrams from the kernel, and splits joined ones.
//!
//! A call fills buffers of 64 KiB; with receive offload, a buffer may hold many datagrams of equal
//! size from one peer. Delivery is one by one, in place, and the next call follows after the last
//! datagram. A caller may thus stop at any datagram.
//!
//! `recvmmsg` costs 60 ns more than `recvmsg` for a single datagram, because of the look for a
//! second one, and less per datagram for several. A quiet socket is therefore asked for a single
//! datagram. If one arrives, the next call asks for several, and so do later calls while at least
//! two arrive.
//!
//! Offload has a price too: the size of joined datagrams comes in a control message, and a call
//! with one takes 50 ns more than `recvfrom`, at each end. So offload is switched on only when
//! several datagrams came at once, and then stays on: there is no sign that the last joined
//! datagrams have left the socket. A round trip over loopback is 3 % shorter while offload is off.
//!
//! Marks of congestion (see `ecn`) have the same price. Marks are read while any peer has agreed:
//! on every call for several datagrams, and for one in [`LONE_PER_LOOK`] of the lone datagrams,
//! until a marked one arrives. Congestion marks many packets, and a congestion controller acts on
//! marks every 50 µs at most.
//!
//! # Why the unsafe code is sound
//!
//! The kernel follows pointers from [`Slots`] to itself and to the buffers. Slots and buffers are
//! mappings that live as long as the [`Receiver`] and stay in place when the receiver moves. All
//! access is through the mappings' own pointers, to keep the pointers in the headers valid. The
//! kernel writes only during the call, with `&mut self` held; datagrams are lent from `&self`
//! or `&mut self` afterwards. All memory is initialised from the start.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::addr::{AddrKey, Families, RawAddr};
use super::ecn;
use super::send::last_errno;
use super::socket::enable_gro;
use crate::buf::Region;

/// Holds the largest UDP datagram, and the largest run of datagrams the kernel joins.
const BUFFER_BYTES: usize = 64 << 10;

/// Buffers per call if a buffer can hold a run of datagrams: enough to spread the call's cost, few
/// enough to stay in the second-level cache.
const BUFFERS_WITH_GRO: usize = 8;

/// Buffers per call if a buffer holds one datagram.
const BUFFERS_WITHOUT_GRO: usize = 16;

/// Receive offload is switched on when one call returns at least this many datagrams.
const OFFLOAD_FROM: usize = 4;

/// The mark of one in this number of lone datagrams is read. On a link of 1 Gbit/s full packets
/// arrive alone and 12 µs apart, so a mark is read every 60 µs. Not a power of two, because
/// periodic traffic often repeats in powers of two.
const LONE_PER_LOOK: u8 = 5;

/// Unmarked lone datagrams after a marked one before looks become rare again.
const LOOKS_AFTER_MARK: u8 = 64;

/// Most attempts of a call after signals, or after reported errors of earlier sent datagrams.
const TRIES_MAX: u32 = 8;

/// A control message with one value of up to 32 bits, in the layout of `cmsg(3)`. The kernel's
/// value may be shorter, but takes as much room.
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

/// Room for the possible control messages of the socket: size and mark.
type Controls = [Control; 2];

/// The control message with the size of joined datagrams.
const SEGMENT_BYTES: (libc::c_int, libc::c_int) = (libc::SOL_UDP, libc::UDP_GRO);

/// Most buffers of a receiver.
const BUFFERS_MAX: usize = BUFFERS_WITHOUT_GRO;

/// The memory the kernel reads and writes beside the buffers, one entry of each array per buffer.
/// Zero is a valid value of all fields: integers and nullable pointers.
#[repr(C)]
struct Slots {
    headers: [libc::mmsghdr; BUFFERS_MAX],
    iovecs: [libc::iovec; BUFFERS_MAX],
    names: [libc::sockaddr_in6; BUFFERS_MAX],
    controls: [Controls; BUFFERS_MAX],
}

/// The rest of a buffer: datagrams of one peer.
pub(super) struct Train<'a> {
    pub(super) from: AddrKey,
    /// All datagrams, without gaps.
    pub(super) bytes: &'a [u8],
    /// The size of every datagram except the last, which may be shorter.
    pub(super) segment_bytes: usize,
}

impl<'a> Train<'a> {
    /// The datagrams before the first datagram with this first byte.
    pub(super) fn until(&self, first_byte: u8) -> Train<'a> {
        let mut datagrams = self.bytes.chunks(self.segment_bytes);
        let before = datagrams.position(|datagram| datagram[0] == first_byte);
        let bytes = before.map_or(self.bytes.len(), |count| count * self.segment_bytes);
        Train { bytes: &self.bytes[..bytes], ..*self }
    }
    /// The number of datagrams; one, if the train is empty.
    pub(super) fn datagram_count(&self) -> usize {
        self.bytes.len().div_ceil(self.segment_bytes).max(1)
    }
}

/// Received datagrams, and the progress of their delivery: from the kernel's socket, or from a device.
pub(super) trait Trains {
    /// The undelivered datagrams that came together; [`advance`](Trains::advance) moves on. `None` if the first of them was cut.
    ///
    /// # Panics
    /// When no datagram is there.
    fn train(&mut self) -> Option<Train<'_>>;

    /// Returns true if all datagrams of the train met congestion.
    fn is_marked(&self) -> bool;

    /// The first datagram of the train, which may be changed in place: a sealed one is opened so.
    ///
    /// # Panics
    /// When no datagram is there.
    fn first_mut(&mut self) -> &mut [u8];

    /// Returns true if some datagrams of the train are delivered, but not all.
    fn is_within_train(&self) -> bool;

    /// Notes that the first `bytes` of the train are delivered.
    fn advance(&mut self, bytes: usize);

    /// Notes that the whole train is delivered.
    fn skip(&mut self);
}

/// The receive buffers, and the progress of their delivery.
pub(super) struct Receiver {
    buffers: Region,
    /// Holds a [`Slots`].
    slots: Region,
    /// Buffers a call may fill.
    count: usize,
    /// Buffers the last call filled.
    filled: usize,
    /// The buffer to deliver from, and the offset in it.
    buffer: usize,
    offset: usize,
    /// Whether the next call asks for several datagrams.
    wants_several: bool,
    offload: Offload,
    /// Whether marks of congestion come with the datagrams.
    reads_marks: bool,
    looks: Looks,
}

/// Decides when the mark of a lone datagram is read.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    /// Datagrams to receive before the next look.
    pause: u8,
    /// Datagrams left that are all looked at, because an earlier one was marked.
    alert: u8,
}

impl Looks {
    #[inline]
    fn is_due(self) -> bool {
        self.pause == 0
    }

    /// Notes the mark of a lone datagram that was looked at.
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
    /// The kernel can, but was never asked to, so no buffer holds several.
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

    /// Creates a receiver without a socket. [`Receiver::fill`] replaces the kernel, joins datagrams
    /// and reports marks.
    pub(super) fn detached() -> io::Result<Self> {
        Ok(Self { offload: Offload::On, reads_marks: true, ..Self::new(true)? })
    }

    /// Empties all buffers, which must be delivered.
    pub(super) fn empty(&mut self) {
        assert!(!self.has_ready());
        (self.filled, self.buffer, self.offset) = (0, 0, 0);
    }

    /// Returns true if [`Receiver::fill`] has a buffer to fill.
    pub(super) fn has_empty(&self) -> bool {
        self.filled < self.count
    }

    /// Fills a buffer as the kernel does: with datagrams of `segment_bytes`; the last may be
    /// shorter.
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
        // SAFETY: the index is in range of the arrays and of the buffers, whose number is equal,
        // and a buffer has room for the datagrams. A name of either family fits into a
        // `sockaddr_in6`. No reference to any of them exists, as `&mut self` shows.
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
        // SAFETY: the index is in range of the arrays and of the buffers, whose number is equal. No
        // reference to any of them exists, as `&mut self` shows.
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

    /// Restores the fields of a header the kernel has changed and reads in the next call.
    #[inline]
    fn reset(&mut self, index: usize) {
        // SAFETY: the memory is a `Slots`, and no reference to it exists, as `&mut self` shows; the
        // index is checked.
        let header = unsafe { &mut (*self.slots()).headers[index].msg_hdr };
        header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        header.msg_controllen = size_of::<Controls>() as _;
    }

    /// Returns true if there are datagrams to deliver without a system call.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        self.buffer < self.filled
    }

    /// Lets the next refill read one datagram.
    pub(super) fn ask_for_one(&mut self) {
        self.wants_several = false;
    }

    /// Fills the buffers, which must all be delivered. Returns the number of system calls, and
    /// whether the socket is known to hold more.
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

    /// Switches the reading of marks on or off.
    ///
    /// # Errors
    /// The system's error; nothing has changed then.
    pub(super) fn read_marks(
        &mut self,
        socket: BorrowedFd<'_>,
        families: Families,
        on: bool,
    ) -> io::Result<()> {
        if on != self.reads_marks {
            ecn::read_marks(socket, families, on)?;
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
        // SAFETY: `count` headers point to live memory of the sizes they state; see the module's
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

    /// [`Receiver::fill`] of one buffer with values no honest kernel returns: any size of joined
    /// datagrams, and the flags of truncation.
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
        // SAFETY: the memory is a `Slots`, and no reference to it exists, as `&mut self` shows.
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

    #[inline]
    fn header(&self, index: usize) -> &libc::mmsghdr {
        // SAFETY: the memory is a `Slots`, which the kernel writes to only while `receive` borrows
        // `self` exclusively; the index is checked.
        unsafe { &(*self.slots()).headers[index] }
    }

    /// The size of the datagrams in a buffer, except a shorter last one: the control message's
    /// size, or else the whole buffer.
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

    /// Returns true if a buffer came with a mark of congestion.
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
        // SAFETY: the region has an initialised buffer for each header, and the kernel writes there
        // only while `receive` borrows `self` exclusively.
        unsafe {
            std::slice::from_raw_parts(
                self.buffers.start().add(index * BUFFER_BYTES).as_ptr(),
                BUFFER_BYTES,
            )
        }
    }
}

impl Trains for Receiver {
    /// `None` if the kernel had to cut a datagram, or the size of joined ones.
    #[inline]
    fn train(&mut self) -> Option<Train<'_>> {
        let header = self.header(self.buffer);
        if header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        // SAFETY: the memory is a `Slots`; see the module's documentation.
        let from = AddrKey::from_name(unsafe { &(*self.slots()).names[self.buffer] });
        let bytes = &self.bytes(self.buffer)[self.offset..header.msg_len as usize];
        Some(Train { from, bytes, segment_bytes: self.segment_bytes(self.buffer) })
    }

    /// The kernel joins no unmarked datagrams to marked ones.
    #[inline]
    fn is_marked(&self) -> bool {
        self.reads_marks && self.has_mark(self.buffer)
    }

    #[inline]
    fn first_mut(&mut self) -> &mut [u8] {
        assert!(self.buffer < self.filled);
        let end = self.header(self.buffer).msg_len as usize;
        let bytes = self.segment_bytes(self.buffer).min(end.saturating_sub(self.offset));
        assert!(self.offset + bytes <= BUFFER_BYTES);
        // SAFETY: the range is in an initialised buffer, as was just checked. `&mut self` is borrowed as long as the slice: neither the
        // kernel nor a shared slice of the buffer is there meanwhile.
        unsafe {
            let start = self.buffers.start().add(self.buffer * BUFFER_BYTES + self.offset);
            std::slice::from_raw_parts_mut(start.as_ptr(), bytes)
        }
    }

    #[inline]
    fn is_within_train(&self) -> bool {
        self.offset > 0
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
        if self.offset >= self.header(self.buffer).msg_len as usize {
            self.skip();
        }
    }

    #[inline]
    fn skip(&mut self) {
        (self.buffer, self.offset) = (self.buffer + 1, 0);
    }
}

/// Receives one datagram into the buffer of a header, without control messages.
///
/// # Safety
/// As for [`receive_headers`], of one header with a buffer for any datagram.
#[inline]
unsafe fn receive_plain(socket: BorrowedFd<'_>, header: *mut libc::mmsghdr) -> Option<usize> {
    // SAFETY: by the function's contract; a header has a single buffer.
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

/// Returns how many of `count` headers the kernel filled, or `None`, with the reason in `errno`.
/// Called by `syscall`, as in `send`.
///
/// # Safety
/// There are `count` headers. All pointers in the headers lead to live memory of the stated sizes,
/// not used elsewhere.
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
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

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

    /// Returns a connected sender, the socket of its datagrams, and the receiver of these.
    fn receiver() -> (UdpSocket, UdpSocket, Receiver) {
        let [sender, socket] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        socket.set_nonblocking(true).unwrap();
        sender.connect(socket.local_addr().unwrap()).unwrap();
        (sender, socket, Receiver::new(false).unwrap())
    }

    #[test]
    fn refill__asks_for_several_as_long_as_several_come() {
        let (sender, socket, mut receiver) = receiver();
        // The numbers of buffers filled by the calls.
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
        let (sender, socket, mut receiver) = receiver();
        let mut refill = |datagrams: usize| {
            (0..datagrams).for_each(|_| assert_eq!(sender.send(b"a datagram").unwrap(), 10));
            let result = receiver.refill(socket.as_fd());
            receiver.buffer = receiver.filled;
            (receiver.filled, result)
        };
        assert_eq!(refill(0), (0, (1, false)));
        assert_eq!(refill(2), (1, (1, false)), "one was asked for, and there is a second one");
        assert_eq!(refill(0), (1, (1, false)));
        // As many datagrams as buffers, then one more.
        assert_eq!(refill(1), (1, (1, false)));
        assert_eq!(refill(BUFFERS_WITHOUT_GRO), (BUFFERS_WITHOUT_GRO, (1, true)));
        assert_eq!(refill(BUFFERS_WITHOUT_GRO + 1), (BUFFERS_WITHOUT_GRO, (1, true)));
        assert_eq!(refill(1), (2, (1, false)));
        assert_eq!(refill(0), (0, (1, false)));
    }

    #[test]
    fn refill__has_datagrams_joined_from_when_four_come_at_once() {
        for (gro, expected) in [
            (true, [Offload::Possible, Offload::Possible, Offload::On, Offload::On]),
            (false, [Offload::Impossible; 4]),
        ] {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
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
        let (no_socket, _writer) = std::io::pipe().unwrap();
        let mut receiver = Receiver::new(false).unwrap();
        assert_eq!(receiver.refill(no_socket.as_fd()), (u64::from(TRIES_MAX), false));
        assert!(!receiver.has_ready());
    }

    /// Like the kernel, `fill` adds a size for joined datagrams, and none for a lone datagram.
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
