//! Hands the messages of a [`Plan`] to the kernel, several at once by `sendmmsg`.
//!
//! The calls are made by `syscall`. The C library's own functions are cancellation points of
//! threads, with atomic operations before and after, which take 40 instructions.
//!
//! # Why the unsafe code is sound
//!
//! The headers the kernel reads are full of pointers: to addresses and bytes of the plan, to
//! callers' frames, and to arrays in here. [`Sender::send`] writes all pointers anew from a plan
//! borrowed for the whole call, and makes the system call before returning. Every pointer thus
//! leads to live memory when the kernel follows it; by the contract of `send`, callers' frames are
//! still in place. The kernel only reads the targets. Between calls the pointers dangle, and are
//! not followed.

use std::iter::repeat_with;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::io::Errno;

use super::addr::RawAddr;
use super::ecn;
use super::peers::PeerTable;
use super::plan::{Message, PIECES_MAX, Plan};

/// Most messages of a call; the next call sends the rest.
const HEADERS_MAX: usize = 64;

/// Repetitions of a call after signals, before its frames count as blocked.
const INTERRUPTS_MAX: u32 = 16;

/// Repetitions of a message after reports of a closed port.
const NEWS_MAX: u32 = 8;

/// A control message with one value, in the layout of `cmsg(3)`.
#[repr(C, align(8))]
struct Control<T> {
    header: libc::cmsghdr,
    value: T,
}

impl<T: Default> Default for Control<T> {
    /// A control message without a kind, which the kernel must not see.
    #[inline]
    fn default() -> Self {
        // SAFETY: all-zero is a valid `cmsghdr`, which has only integers.
        Self { header: unsafe { std::mem::zeroed() }, value: T::default() }
    }
}

impl<T> Control<T> {
    fn set_kind(&mut self, (level, kind): (libc::c_int, libc::c_int)) {
        self.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<T>()) as _;
        (self.header.cmsg_level, self.header.cmsg_type) = (level, kind);
    }
}

/// Optional control messages: segment size, and behind it traffic class and source address.
#[repr(C)]
struct Controls {
    /// The size at which the kernel cuts.
    segment_bytes: Control<u16>,
    others: Others,
}

/// Room for a traffic class to declare packets ECN-capable, and for an IPv6 source address, longer than an IPv4 address.
type Others =
    [u64; (size_of::<Control<libc::c_int>>() + size_of::<Control<libc::in6_pktinfo>>()) / 8];

impl Controls {
    #[inline]
    fn new() -> Self {
        let mut segment_bytes = Control::default();
        segment_bytes.set_kind((libc::SOL_UDP, libc::UDP_SEGMENT));
        Self { segment_bytes, others: Others::default() }
    }

    /// Adds the traffic class that makes the packets of a message to this address ECN-capable, and their source address. The header may
    /// already have the segment size.
    #[cold]
    fn add(
        &mut self,
        header: &mut libc::msghdr,
        to: &RawAddr,
        is_ecn: bool,
        source: Option<IpAddr>,
    ) {
        let mut used = 0;
        if is_ecn {
            used += self.put(used, ecn::control_kind(to), ecn::ECT_0);
        }
        match source {
            Some(IpAddr::V4(ip)) => {
                let ip = libc::in_addr { s_addr: u32::from(ip).to_be() };
                let none = libc::in_addr { s_addr: 0 };
                let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: ip, ipi_addr: none };
                used += self.put(used, (libc::SOL_IP, libc::IP_PKTINFO), info);
            }
            Some(IpAddr::V6(ip)) => {
                let ipi6_addr = libc::in6_addr { s6_addr: ip.octets() };
                let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 };
                used += self.put(used, (libc::SOL_IPV6, libc::IPV6_PKTINFO), info);
            }
            None => {}
        }
        if used == 0 {
            return;
        }
        let before: usize = header.msg_controllen as _;
        let skipped = size_of::<Control<u16>>() - before;
        header.msg_control = std::ptr::from_mut(self).wrapping_byte_add(skipped).cast();
        header.msg_controllen = (before + used) as _;
    }

    /// Writes a control message behind `used` bytes of the others. Returns its size.
    fn put<T: Copy>(&mut self, used: usize, kind: (libc::c_int, libc::c_int), value: T) -> usize {
        let size = size_of::<Control<T>>();
        assert!(used + size <= size_of::<Others>(), "the room is for one message of each kind");
        // SAFETY: all-zero is a valid `cmsghdr`, which has only integers.
        let mut control = Control { header: unsafe { std::mem::zeroed() }, value };
        control.set_kind(kind);
        // SAFETY: the place is within `others`, as was just asserted, and aligned to 8 bytes, since sizes of control messages are
        // multiples of 8.
        unsafe { self.others.as_mut_ptr().byte_add(used).cast::<Control<T>>().write(control) };
        size
    }
}

/// The arrays the kernel reads, allocated once.
pub(super) struct Sender {
    headers: Box<[libc::mmsghdr]>,
    iovecs: Box<[libc::iovec]>,
    controls: Box<[Controls]>,
}

// SAFETY: the pointers inside are written and followed within one call of `send`.
unsafe impl Send for Sender {}

impl Sender {
    pub(super) fn new() -> Self {
        let no_bytes = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            headers: repeat_with(no_header).take(HEADERS_MAX).collect(),
            iovecs: vec![no_bytes; PIECES_MAX].into(),
            controls: repeat_with(Controls::new).take(HEADERS_MAX).collect(),
        }
    }

    /// Sends messages of `plan`, at least one, and returns how many the kernel accepted: at least
    /// one, or the error of the first. A connected socket needs no addresses. `ecn` names the peers
    /// with ECN-capable packets, if the socket's are not, and peers with a source address.
    ///
    /// # Safety
    /// The large frames of these messages are still in place.
    #[inline]
    pub(super) unsafe fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        plan: &Plan,
        messages: &[Message],
        is_connected: bool,
        ecn: Option<&PeerTable>,
    ) -> Result<usize, Errno> {
        let socket = Socket { number: socket.as_raw_fd(), is_connected, ecn };
        // SAFETY: by the function's contract; a message has at least one piece.
        let sent = unsafe {
            match messages {
                [only] => match plan.slice_of(only) {
                    Some([piece]) if ecn.is_none() => {
                        send_bare(socket.number, socket.name(plan, only), piece)
                    }
                    Some(pieces) => send_one(socket, plan, only, pieces),
                    None => self.send_several(socket, plan, std::slice::from_ref(only)),
                },
                several => self.send_several(socket, plan, several),
            }
        };
        usize::try_from(sent).ok().filter(|&sent| sent > 0).ok_or_else(last_errno)
    }

    /// # Safety
    /// As for [`Sender::send`].
    unsafe fn send_several(
        &mut self,
        socket: Socket<'_>,
        plan: &Plan,
        messages: &[Message],
    ) -> libc::c_long {
        let messages = &messages[..messages.len().min(HEADERS_MAX)];
        let mut gathered = 0;
        for message in messages {
            if plan.slice_of(message).is_none() {
                gathered += self.gather(gathered, plan, message);
            }
        }
        self.fill(socket, plan, messages);
        // SAFETY: `messages.len()` headers were just filled from a plan that is still borrowed; see
        // the module's documentation.
        unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                socket.number,
                self.headers.as_mut_ptr(),
                messages.len(),
                libc::MSG_NOSIGNAL,
            )
        }
    }

    /// Lists the pieces of a message behind the first `count`; returns the number of added pieces.
    fn gather(&mut self, count: usize, plan: &Plan, message: &Message) -> usize {
        let places = self.iovecs[count..].iter_mut();
        places.zip(plan.pieces_of(message)).map(|(place, piece)| *place = piece).count()
    }

    /// Fills the headers. The remaining arrays are already written, hence no later borrow
    /// invalidates the pointers.
    fn fill(&mut self, socket: Socket<'_>, plan: &Plan, messages: &[Message]) {
        let mut gathered = self.iovecs.as_ptr();
        let places = self.headers.iter_mut().zip(&mut self.controls);
        for (message, (header, control)) in messages.iter().zip(places) {
            let pieces = match plan.slice_of(message) {
                Some(pieces) => (pieces.as_ptr(), pieces.len()),
                None => {
                    let pieces = (gathered, plan.pieces_of(message).count());
                    gathered = gathered.wrapping_add(pieces.1);
                    pieces
                }
            };
            header.msg_hdr = header_of(socket, plan, message, pieces, control);
        }
    }
}

/// The socket's number, whether addresses are omitted, and the table of the peers whose packets
/// need control messages.
#[derive(Clone, Copy)]
struct Socket<'a> {
    number: RawFd,
    is_connected: bool,
    ecn: Option<&'a PeerTable>,
}

impl Socket<'_> {
    #[inline]
    fn name(self, plan: &Plan, message: &Message) -> (*const libc::c_void, libc::socklen_t) {
        if self.is_connected { (std::ptr::null(), 0) } else { plan.name_of(message).as_name() }
    }
}

/// Sends a datagram in one piece, and returns true if the kernel accepted the datagram.
///
/// # Safety
/// The piece is live memory.
#[inline]
pub(super) unsafe fn send_datagram(
    socket: BorrowedFd<'_>,
    name: &RawAddr,
    is_connected: bool,
    piece: &libc::iovec,
) -> bool {
    let name = if is_connected { (std::ptr::null(), 0) } else { name.as_name() };
    // SAFETY: by this function's contract; the name is borrowed.
    unsafe { send_bare(socket.as_raw_fd(), name, piece) >= 0 }
}

/// Sends a datagram in one piece, without a message header. Saves 50 of the 1000 ns that a datagram
/// takes from socket to socket.
///
/// # Safety
/// Piece and name are live memory.
#[inline]
unsafe fn send_bare(
    socket: RawFd,
    (name, name_len): (*const libc::c_void, libc::socklen_t),
    piece: &libc::iovec,
) -> libc::c_long {
    let (bytes, len, flags) = (piece.iov_base, piece.iov_len, libc::MSG_NOSIGNAL);
    // SAFETY: by this function's contract.
    let sent =
        unsafe { libc::syscall(libc::SYS_sendto, socket, bytes, len, flags, name, name_len) };
    // The result counts bytes, and no frame is empty: one datagram, or an error.
    sent.min(1)
}

/// Sends one message without an array of headers, which saves 20 ns.
///
/// # Safety
/// The pieces are live memory.
unsafe fn send_one(
    socket: Socket<'_>,
    plan: &Plan,
    message: &Message,
    pieces: &[libc::iovec],
) -> libc::c_long {
    let mut controls = Controls::new();
    let pieces = (pieces.as_ptr(), pieces.len());
    let header = header_of(socket, plan, message, pieces, &mut controls);
    // SAFETY: by this function's contract; the rest is on the stack, or part of the plan.
    let sent = unsafe {
        libc::syscall(libc::SYS_sendmsg, socket.number, &raw const header, libc::MSG_NOSIGNAL)
    };
    // The result counts bytes, and no frame is empty: one datagram, or an error.
    sent.min(1)
}

/// A header around pieces, with control messages if they are several datagrams or ECN-capable.
#[inline]
fn header_of(
    socket: Socket<'_>,
    plan: &Plan,
    message: &Message,
    pieces: (*const libc::iovec, usize),
    controls: &mut Controls,
) -> libc::msghdr {
    let mut header = no_header().msg_hdr;
    let (name, name_len) = socket.name(plan, message);
    (header.msg_name, header.msg_namelen) = (name.cast_mut(), name_len);
    (header.msg_iov, header.msg_iovlen) = (pieces.0.cast_mut(), pieces.1 as _);
    if message.datagram_count > 1 {
        controls.segment_bytes.value = plan.segment_bytes(message) as u16;
        header.msg_control = std::ptr::from_mut(controls).cast();
        header.msg_controllen = size_of::<Control<u16>>() as _;
    }
    if let Some(peers) = socket.ecn {
        let peer = plan.peer_of(message);
        let (is_ecn, source) = (peers.is_ecn(peer), peers.source_address(peer));
        controls.add(&mut header, plan.name_of(message), is_ecn, source);
    }
    header
}

fn no_header() -> libc::mmsghdr {
    // SAFETY: all-zero is a valid `mmsghdr`: null pointers with lengths of 0.
    unsafe { std::mem::zeroed() }
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The response to the kernel's refusal of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// Try again: the error was a signal, or a late report of an earlier datagram.
    Retry,
    /// No room: this message and all later ones stay with the caller.
    Blocked,
    /// The kernel or device cannot segment the message: send datagrams singly from now on.
    Ungroup,
    /// The path has become smaller than the datagram: allow fragments, and try again.
    Fragment,
    /// The message cannot be sent; the rest may.
    Drop,
}

/// The reaction to `error` for a message of one or (`grouped`) more datagrams, after `tries`
/// earlier attempts.
///
/// The next call reports an ICMP error of an earlier datagram, and does nothing else. So every
/// error that may be such a report gets another attempt. A closed port is never anything else.
pub(super) fn reaction(error: Errno, grouped: bool, tries: u32) -> Reaction {
    match error {
        Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => Reaction::Blocked,
        Errno::INTR if tries < INTERRUPTS_MAX => Reaction::Retry,
        Errno::INTR => Reaction::Blocked,
        Errno::CONNREFUSED if tries < NEWS_MAX => Reaction::Retry,
        Errno::MSGSIZE if tries == 0 => Reaction::Retry,
        Errno::IO | Errno::INVAL | Errno::MSGSIZE if grouped => Reaction::Ungroup,
        Errno::MSGSIZE if tries == 1 => Reaction::Fragment,
        _ if tries == 0 => Reaction::Retry,
        _ => Reaction::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaction__to_each_kind_of_error() {
        for full in [Errno::AGAIN, Errno::NOBUFS, Errno::NOMEM] {
            assert_eq!(reaction(full, true, 0), Reaction::Blocked);
        }
        for refused in [Errno::IO, Errno::INVAL, Errno::MSGSIZE] {
            let is_never_news = refused != Errno::MSGSIZE;
            assert_eq!(reaction(refused, true, 0) == Reaction::Ungroup, is_never_news);
            assert_eq!(reaction(refused, true, 1), Reaction::Ungroup);
            assert_eq!(reaction(refused, false, 0), Reaction::Retry);
            let expected = if is_never_news { Reaction::Drop } else { Reaction::Fragment };
            assert_eq!(reaction(refused, false, 1), expected);
            assert_eq!(reaction(refused, false, 2), Reaction::Drop);
        }
        assert_eq!(reaction(Errno::CONNREFUSED, true, 0), Reaction::Retry);
        assert_eq!(reaction(Errno::CONNREFUSED, true, NEWS_MAX), Reaction::Drop);
        assert_eq!(reaction(Errno::HOSTUNREACH, false, 0), Reaction::Retry);
        assert_eq!(reaction(Errno::HOSTUNREACH, false, 1), Reaction::Drop);
        assert_eq!(reaction(Errno::INTR, false, 1), Reaction::Retry);
        assert_eq!(reaction(Errno::INTR, false, INTERRUPTS_MAX), Reaction::Blocked);
    }

    #[test]
    fn controls__are_laid_out_as_the_kernel_reads_them() {
        fn check<T: Default>(mut control: Control<T>) {
            control.set_kind((1, 2));
            let bytes = size_of::<T>() as libc::c_uint;
            // SAFETY: these compute sizes and access no memory.
            let (len, space) = unsafe { (libc::CMSG_LEN(bytes), libc::CMSG_SPACE(bytes)) };
            assert_eq!(control.header.cmsg_len as u64, u64::from(len));
            assert_eq!(size_of::<Control<T>>(), space as usize);
            assert_eq!(std::mem::offset_of!(Control<T>, value) as u32, len - bytes);
        }
        check(Control::<u16>::default());
        check(Control::<libc::c_int>::default());
        assert_eq!(std::mem::offset_of!(Controls, others), size_of::<Control<u16>>());
    }
}
