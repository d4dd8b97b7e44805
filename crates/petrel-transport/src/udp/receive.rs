//! Taking datagrams from the kernel by `recvmmsg`, and cutting apart what it joined.
//!
//! One call fills several buffers of 64 KiB; with receive offload each may hold many datagrams of
//! equal size from one peer. They are handed out one by one, from where they lie, and the next call
//! is made when all are handed out, so that a caller may stop at any datagram.
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

/// Room for the control message with the size of the joined datagrams: the only one that this
/// socket asks for. Laid out as `cmsg(3)` says.
#[repr(C, align(8))]
struct GroControl {
    header: libc::cmsghdr,
    segment_bytes: libc::c_int,
}

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
    controls: Box<[GroControl]>,
    /// Buffers that the last call filled.
    filled: usize,
    /// The buffer to hand out from, and where in it.
    buffer: usize,
    offset: usize,
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
        })
    }

    /// Whether there are datagrams to hand out without a system call.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        self.buffer < self.filled
    }

    /// Fills the buffers, which must all be handed out. Returns how many system calls that took,
    /// and whether the socket may hold more.
    pub(super) fn refill(&mut self, socket: BorrowedFd<'_>) -> (u64, bool) {
        debug_assert!(!self.has_ready());
        for tries in 1..=TRIES_MAX {
            match self.receive(socket) {
                Ok(filled) => return (u64::from(tries), filled == self.headers.len()),
                Err(Errno::AGAIN) => return (u64::from(tries), false),
                Err(_) => {}
            }
        }
        (u64::from(TRIES_MAX), false)
    }

    fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        (self.filled, self.buffer, self.offset) = (0, 0, 0);
        self.prepare();
        let (headers, count) = (self.headers.as_mut_ptr(), self.headers.len() as libc::c_uint);
        let no_timeout = std::ptr::null_mut();
        // SAFETY: all `count` headers were just prepared with live memory and its true sizes; see
        // the module's documentation.
        let filled = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers, count, libc::MSG_DONTWAIT as _, no_timeout)
        };
        self.filled = usize::try_from(filled).map_err(|_| last_errno())?;
        Ok(self.filled)
    }

    /// Points each header at its buffer, name and control message.
    fn prepare(&mut self) {
        let mut buffer = self.region.start().as_ptr();
        for iovec in &mut self.iovecs {
            *iovec = libc::iovec { iov_base: buffer.cast(), iov_len: BUFFER_BYTES };
            buffer = buffer.wrapping_add(BUFFER_BYTES);
        }
        let mut iovec = self.iovecs.as_mut_ptr();
        let mut name = self.names.as_mut_ptr();
        let mut control = self.controls.as_mut_ptr();
        for header in &mut self.headers {
            let header = &mut header.msg_hdr;
            header.msg_name = name.cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            header.msg_iov = iovec;
            header.msg_iovlen = 1;
            header.msg_control = control.cast();
            header.msg_controllen = size_of::<GroControl>() as _;
            iovec = iovec.wrapping_add(1);
            name = name.wrapping_add(1);
            control = control.wrapping_add(1);
        }
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
        let (header, control) = (&self.headers[index].msg_hdr, &self.controls[index]);
        let is_joined = header.msg_controllen >= size_of::<GroControl>() as _
            && control.header.cmsg_level == libc::SOL_UDP
            && control.header.cmsg_type == libc::UDP_GRO
            && control.segment_bytes > 0;
        if is_joined { control.segment_bytes as usize } else { BUFFER_BYTES }
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

/// Structures of the system's C library that may be all zero.
trait Plain {}
impl Plain for libc::mmsghdr {}
impl Plain for libc::iovec {}
impl Plain for libc::sockaddr_in6 {}
impl Plain for GroControl {}

fn zeroed_array<T: Plain>(count: usize) -> Box<[T]> {
    // SAFETY: `Plain` types consist of integers and nullable pointers.
    (0..count).map(|_| unsafe { std::mem::zeroed() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gro_control__is_laid_out_as_the_kernel_writes_it() {
        // SAFETY: these compute sizes and access no memory.
        let (len, space) = unsafe { (libc::CMSG_LEN(4), libc::CMSG_SPACE(4)) };
        assert_eq!(size_of::<GroControl>(), space as usize);
        assert_eq!(std::mem::offset_of!(GroControl, segment_bytes) as u32, len - 4);
    }
}
