//! Handing the messages of a [`Plan`] to the kernel, several at once by `sendmmsg`.
//!
//! # Why the unsafe code is sound
//!
//! The headers that the kernel reads are full of pointers: to addresses and bytes of the plan, to
//! frames of others, and to arrays in here. [`Sender::send`] writes all of them anew from a plan
//! that it borrows for the whole call, and makes the system call before it returns, so that each
//! points to live memory when the kernel follows it; that frames of others are still there, its
//! caller promises. The kernel only reads what they point to. Between calls they dangle, and nobody
//! follows them.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::plan::{Message, PIECES_MAX, Plan};

/// Most messages of one call; the rest goes in the next one.
const HEADERS_MAX: usize = 64;

/// Times that a call is repeated after a signal before its frames count as blocked.
const INTERRUPTS_MAX: u32 = 16;

/// Times that a message is tried again because the peer's host says that its port is closed.
const NEWS_MAX: u32 = 8;

/// The control message with the size at which the kernel cuts, laid out as `cmsg(3)` says.
#[repr(C, align(8))]
struct SegmentControl {
    header: libc::cmsghdr,
    segment_bytes: u16,
}

impl SegmentControl {
    fn new() -> Self {
        // SAFETY: all-zero is a valid `cmsghdr`, which has only integers.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _;
        header.cmsg_level = libc::SOL_UDP;
        header.cmsg_type = libc::UDP_SEGMENT;
        Self { header, segment_bytes: 0 }
    }
}

/// The arrays that `sendmmsg` reads, allocated once.
pub(super) struct Sender {
    headers: Box<[libc::mmsghdr]>,
    iovecs: Box<[libc::iovec]>,
    controls: Box<[SegmentControl]>,
}

// SAFETY: the pointers inside are written and followed within one call of `send`.
unsafe impl Send for Sender {}

impl Sender {
    pub(super) fn new() -> Self {
        // SAFETY: all-zero is a valid `mmsghdr`: null pointers with lengths of 0.
        let header = || unsafe { std::mem::zeroed::<libc::mmsghdr>() };
        let no_bytes = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            headers: (0..HEADERS_MAX).map(|_| header()).collect(),
            iovecs: vec![no_bytes; PIECES_MAX].into(),
            controls: (0..HEADERS_MAX).map(|_| SegmentControl::new()).collect(),
        }
    }

    /// Sends messages of `plan` from `first` on and returns how many the kernel took: at least one,
    /// or the error of the first.
    ///
    /// # Safety
    /// The large frames that these messages carry are still where the plan says.
    pub(super) unsafe fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        plan: &Plan,
        first: usize,
        is_connected: bool,
    ) -> Result<usize, Errno> {
        let messages = &plan.messages()[first..];
        let messages = &messages[..messages.len().min(HEADERS_MAX)];
        let mut iovec_count = 0;
        for (index, message) in messages.iter().enumerate() {
            iovec_count += self.fill(index, iovec_count, plan, message);
        }
        if is_connected {
            self.headers[..messages.len()].iter_mut().for_each(leave_out_name);
        }
        self.connect(messages.len());
        // SAFETY: so many headers were just filled from a plan that is still borrowed; see the
        // module's documentation.
        let sent = unsafe { send_headers(socket, &mut self.headers[..messages.len()]) };
        sent.ok_or_else(last_errno)
    }

    /// Fills header `index` but for its pointers into this struct, and the pieces from
    /// `first_iovec` on; returns the number of pieces.
    fn fill(&mut self, index: usize, first_iovec: usize, plan: &Plan, message: &Message) -> usize {
        let mut count = 0;
        for (iovec, piece) in self.iovecs[first_iovec..].iter_mut().zip(plan.pieces_of(message)) {
            *iovec = piece;
            count += 1;
        }
        let (name, name_len) = plan.name_of(message).as_name();
        let header = &mut self.headers[index].msg_hdr;
        header.msg_name = name.cast_mut();
        header.msg_namelen = name_len;
        header.msg_iovlen = count as _;
        let is_grouped = message.datagram_count > 1;
        self.controls[index].segment_bytes = plan.segment_bytes(message) as u16;
        header.msg_controllen = if is_grouped { size_of::<SegmentControl>() as _ } else { 0 };
        count
    }

    /// Points the first `count` headers at their pieces and control messages. This comes when both
    /// arrays are written, so that no later borrow of them ends the pointers' validity.
    fn connect(&mut self, count: usize) {
        let mut iovecs = self.iovecs.as_mut_ptr();
        let mut control = self.controls.as_mut_ptr();
        for header in &mut self.headers[..count] {
            let header = &mut header.msg_hdr;
            header.msg_iov = iovecs;
            header.msg_control = control.cast();
            iovecs = iovecs.wrapping_add(header.msg_iovlen as _);
            control = control.wrapping_add(1);
        }
    }
}

fn leave_out_name(header: &mut libc::mmsghdr) {
    header.msg_hdr.msg_name = std::ptr::null_mut();
    header.msg_hdr.msg_namelen = 0;
}

/// Gives how many messages the kernel took, at least one, or `None`, the reason being in `errno`.
///
/// One message goes without the array around it, and a datagram in one piece without the header
/// around that: of the 1000 ns that a datagram takes from socket to socket this saves 20, and 50
/// more.
///
/// # Safety
/// All pointers in the headers are to live memory of the sizes that the headers say.
unsafe fn send_headers(socket: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> Option<usize> {
    let (socket, flags) = (socket.as_raw_fd(), libc::MSG_NOSIGNAL);
    let [libc::mmsghdr { msg_hdr: only, .. }] = headers else {
        let count = headers.len() as libc::c_uint;
        // SAFETY: by this function's contract.
        let sent = unsafe { libc::sendmmsg(socket, headers.as_mut_ptr(), count, flags as _) };
        return usize::try_from(sent).ok().filter(|&sent| sent > 0);
    };
    // SAFETY: by this function's contract; a message has one piece at least.
    let sent = unsafe {
        if only.msg_iovlen == 1 && only.msg_controllen == 0 {
            let piece = *only.msg_iov;
            let (name, name_len) = (only.msg_name.cast(), only.msg_namelen);
            libc::sendto(socket, piece.iov_base, piece.iov_len, flags, name, name_len)
        } else {
            libc::sendmsg(socket, only, flags)
        }
    };
    (sent >= 0).then_some(1)
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What to do about a message that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// Try again: the error was a signal, or the belated news of an earlier datagram.
    Retry,
    /// No room: this and all later frames stay with the caller.
    Blocked,
    /// The kernel or device cannot segment this: send the datagrams one by one from now on.
    Ungroup,
    /// This message cannot be sent; the others may.
    Drop,
}

/// The reaction to `error` for a message of one or (`grouped`) more datagrams that was tried
/// `tries` times before.
///
/// An ICMP error of an earlier datagram is reported by the next call, which does nothing else; so
/// every error that may be such news is given another chance. A closed port is never anything else.
pub(super) fn reaction(error: Errno, grouped: bool, tries: u32) -> Reaction {
    match error {
        Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => Reaction::Blocked,
        Errno::INTR if tries < INTERRUPTS_MAX => Reaction::Retry,
        Errno::INTR => Reaction::Blocked,
        Errno::CONNREFUSED if tries < NEWS_MAX => Reaction::Retry,
        Errno::MSGSIZE if tries == 0 => Reaction::Retry,
        Errno::IO | Errno::INVAL | Errno::MSGSIZE if grouped => Reaction::Ungroup,
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
            assert_eq!(reaction(refused, false, 1), Reaction::Drop);
        }
        assert_eq!(reaction(Errno::CONNREFUSED, true, 0), Reaction::Retry);
        assert_eq!(reaction(Errno::CONNREFUSED, true, NEWS_MAX), Reaction::Drop);
        assert_eq!(reaction(Errno::HOSTUNREACH, false, 0), Reaction::Retry);
        assert_eq!(reaction(Errno::HOSTUNREACH, false, 1), Reaction::Drop);
        assert_eq!(reaction(Errno::INTR, false, 1), Reaction::Retry);
        assert_eq!(reaction(Errno::INTR, false, INTERRUPTS_MAX), Reaction::Blocked);
    }

    #[test]
    fn segment_control__is_laid_out_as_the_kernel_reads_it() {
        // SAFETY: these compute sizes and access no memory.
        let (len, space) = unsafe { (libc::CMSG_LEN(2), libc::CMSG_SPACE(2)) };
        let control = SegmentControl::new();
        assert_eq!(control.header.cmsg_len as u64, u64::from(len));
        assert_eq!(size_of::<SegmentControl>(), space as usize);
        assert_eq!(std::mem::offset_of!(SegmentControl, segment_bytes) as u32, len - 2);
    }
}
