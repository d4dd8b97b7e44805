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
//! # Why the unsafe code is sound
//!
//! [`Receiver::receive`] writes every pointer that the kernel follows anew, from arrays that live in
//! `self`, directly before the system call, which has ended when it returns. The kernel writes to
//! them only during the call, which holds `&mut self`; datagrams are lent out of `&self` afterwards.
//! The buffers' memory is initialised from the start.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::addr::AddrKey;
use super::send::last_errno;
use crate::buf::Region;

/// Holds the largest UDP datagram, and the largest run of datagrams that the kernel joins.
const BUFFER_BYTES: usize = 64 << 10;

/// Buffers per call where each can hold a run of datagrams: enough to spread the call's cost, few
/// enough that they stay in the second-level cache.
const BUFFERS_WITH_GRO: usize = 8;

/// Buffers per call where each holds one datagram.
const BUFFERS_WITHOUT_GRO: usize = 16;

/// Times that a call is repeated after a signal, or after an error that a datagram sent earlier
/// caused and that this call reports.
const TRIES_MAX: u32 = 8;

/// A control message with one 32-bit number, laid out as `cmsg(3)` says.
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    number: u32,
}

/// Room for the control messages that this socket asks for: the size of joined datagrams, and how
/// many were dropped for lack of room so far.
type Controls = [Control; 2];

/// The control message with the size of joined datagrams.
const SEGMENT_BYTES: (libc::c_int, libc::c_int) = (libc::SOL_UDP, libc::UDP_GRO);

/// The control message with the number of dropped datagrams.
const DROPPED: (libc::c_int, libc::c_int) = (libc::SOL_SOCKET, libc::SO_RXQ_OVFL);

/// One datagram, or what is left of it.
pub(super) enum Received<'a> {
    Datagram {
        from: AddrKey,
        bytes: &'a [u8],
    },
    /// The kernel had to cut the datagram, or the size of the joined ones.
    Truncated,
}

/// The receive buffers, and how far they are handed out.
pub(super) struct Receiver {
    region: Region,
    headers: Box<[libc::mmsghdr]>,
    iovecs: Box<[libc::iovec]>,
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[Controls]>,
    /// Buffers that the last call filled.
    filled: usize,
    /// The buffer to hand out from, and where in it.
    buffer: usize,
    offset: usize,
    /// Whether the next call asks for several datagrams.
    wants_several: bool,
    /// Datagrams that the kernel has dropped so far, as far as it has said. It counts with 32 bits.
    dropped: u32,
}

// SAFETY: the pointers inside are written and followed within one call of `receive`.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(super) fn new(gro: bool) -> std::io::Result<Self> {
        let count = if gro { BUFFERS_WITH_GRO } else { BUFFERS_WITHOUT_GRO };
        Ok(Self {
            region: Region::zeroed(count * BUFFER_BYTES, false)?,
            headers: zeroed_array(count),
            iovecs: zeroed_array(count),
            names: zeroed_array(count),
            controls: zeroed_array(count),
            filled: 0,
            buffer: 0,
            offset: 0,
            wants_several: false,
            dropped: 0,
        })
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
            let asked = if self.wants_several { self.headers.len() } else { 1 };
            match self.receive(socket, asked) {
                Ok(filled) => {
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

    /// Asks for up to `count` datagrams.
    fn receive(&mut self, socket: BorrowedFd<'_>, count: usize) -> Result<usize, Errno> {
        (self.filled, self.buffer, self.offset) = (0, 0, 0);
        self.prepare(count);
        // SAFETY: so many headers were just prepared with live memory and its true sizes; see the
        // module's documentation.
        let filled = unsafe { receive_headers(socket, &mut self.headers[..count]) };
        self.filled = filled.ok_or_else(last_errno)?;
        Ok(self.filled)
    }

    /// Points the first `count` headers each at its buffer, name and control messages.
    fn prepare(&mut self, count: usize) {
        let mut buffer = self.region.start().as_ptr();
        for iovec in &mut self.iovecs[..count] {
            *iovec = libc::iovec { iov_base: buffer.cast(), iov_len: BUFFER_BYTES };
            buffer = buffer.wrapping_add(BUFFER_BYTES);
        }
        let mut iovec = self.iovecs.as_mut_ptr();
        let mut name = self.names.as_mut_ptr();
        let mut control = self.controls.as_mut_ptr();
        for header in &mut self.headers[..count] {
            let header = &mut header.msg_hdr;
            header.msg_name = name.cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            header.msg_iov = iovec;
            header.msg_iovlen = 1;
            header.msg_control = control.cast();
            header.msg_controllen = size_of::<Controls>() as _;
            iovec = iovec.wrapping_add(1);
            name = name.wrapping_add(1);
            control = control.wrapping_add(1);
        }
    }

    /// Datagrams that the kernel dropped for lack of room since the last call, as it said with
    /// those that were handed out.
    pub(super) fn take_dropped(&mut self) -> u64 {
        let last = (0..self.filled).rev().find_map(|index| self.control(index, DROPPED));
        let dropped = last.unwrap_or(self.dropped);
        u64::from(dropped.wrapping_sub(std::mem::replace(&mut self.dropped, dropped)))
    }

    /// The next datagram that was received and not yet handed out.
    #[inline]
    pub(super) fn next_datagram(&mut self) -> Option<Received<'_>> {
        if !self.has_ready() {
            return None;
        }
        let (buffer, start) = (self.buffer, self.offset);
        let total = self.headers[buffer].msg_len as usize;
        let is_cut = self.is_cut(buffer);
        let end = if is_cut { total } else { total.min(start + self.segment_bytes(buffer)) };
        if end == total {
            (self.buffer, self.offset) = (buffer + 1, 0);
        } else {
            self.offset = end;
        }
        if is_cut {
            return Some(Received::Truncated);
        }
        let from = AddrKey::from_name(&self.names[buffer]);
        Some(Received::Datagram { from, bytes: &self.bytes(buffer)[start..end] })
    }

    fn is_cut(&self, index: usize) -> bool {
        self.headers[index].msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0
    }

    /// The size of each datagram in a buffer, but for a shorter last one: what the control message
    /// says, or where there is none, all.
    #[inline]
    fn segment_bytes(&self, index: usize) -> usize {
        match self.control(index, SEGMENT_BYTES) {
            Some(bytes) if bytes > 0 => bytes as usize,
            _ => BUFFER_BYTES,
        }
    }

    /// The number in the control message of this kind that came with a buffer, if one did.
    #[inline]
    fn control(&self, index: usize, (level, kind): (libc::c_int, libc::c_int)) -> Option<u32> {
        let bytes: usize = self.headers[index].msg_hdr.msg_controllen as _;
        let mut controls = self.controls[index].iter().take(bytes / size_of::<Control>());
        let is_it = |c: &&Control| (c.header.cmsg_level, c.header.cmsg_type) == (level, kind);
        controls.find(is_it).map(|control| control.number)
    }

    #[inline]
    fn bytes(&self, index: usize) -> &[u8] {
        assert!(index < self.headers.len());
        // SAFETY: the region has a buffer for each header, initialised, and the kernel writes to it
        // only while `receive` borrows `self` exclusively.
        unsafe {
            std::slice::from_raw_parts(
                self.region.start().add(index * BUFFER_BYTES).as_ptr(),
                BUFFER_BYTES,
            )
        }
    }
}

/// Gives how many headers the kernel filled, or `None`, the reason being in `errno`.
///
/// # Safety
/// All pointers in the headers are to live memory of the sizes that the headers say, which nobody
/// else uses.
unsafe fn receive_headers(socket: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> Option<usize> {
    let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    let [only] = headers else {
        let (count, no_timeout) = (headers.len() as libc::c_uint, std::ptr::null_mut());
        // SAFETY: by this function's contract.
        let filled =
            unsafe { libc::recvmmsg(socket, headers.as_mut_ptr(), count, flags as _, no_timeout) };
        return usize::try_from(filled).ok();
    };
    // SAFETY: by this function's contract.
    let length = unsafe { libc::recvmsg(socket, &raw mut only.msg_hdr, flags) };
    only.msg_len = libc::c_uint::try_from(length).ok()?;
    Some(1)
}

/// Structures of the system's C library that may be all zero.
trait Plain {}
impl Plain for libc::mmsghdr {}
impl Plain for libc::iovec {}
impl Plain for libc::sockaddr_in6 {}
impl Plain for Controls {}

fn zeroed_array<T: Plain>(count: usize) -> Box<[T]> {
    // SAFETY: `Plain` types consist of integers and nullable pointers.
    (0..count).map(|_| unsafe { std::mem::zeroed() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control__is_laid_out_as_the_kernel_writes_it() {
        // SAFETY: these compute sizes and access no memory.
        let (len, space) = unsafe { (libc::CMSG_LEN(4), libc::CMSG_SPACE(4)) };
        assert_eq!(size_of::<Control>(), space as usize);
        assert_eq!(std::mem::offset_of!(Control, number) as u32, len - 4);
    }
}
