//! Explicit Congestion Notification (RFC 3168): saying of packets that they may be marked instead of
//! dropped, and reading the marks of those that come in.
//!
//! Both are for peers that agreed to it ([`UdpLink::ecn`](super::UdpLink::ecn)), because each has a
//! price. A packet that says ECT(0) to a peer that echoes no marks is one that congestion cannot
//! reach. And the mark of a datagram comes in a control message, for which `recvmsg` takes some
//! 50 ns more than `recvfrom` without (see `receive`).
//!
//! | peers | what is sent | what is read |
//! | --- | --- | --- |
//! | none agreed | Not-ECT | no marks |
//! | all agreed | ECT(0), which the socket puts into every packet: no call has more to do | marks |
//! | some agreed | ECT(0) to those, by a control message with each message | marks |
//!
//! Tried on Linux 6.18: the kernel does not join datagrams of different codepoints (GRO), and the
//! segments of a message (GSO) all have its codepoint, so that a mark is one for all of a train.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use super::addr::RawAddr;
use super::option::set_int_option;
use super::peers::PeerTable;

/// ECN-Capable Transport: the sender reacts to marks. In the low bits of the traffic class.
pub(super) const ECT_0: libc::c_int = 0b10;

/// Not ECN-capable, nor of any other class.
const NOT_ECT: libc::c_int = 0;

/// Congestion Experienced: a router marked the packet.
const CE: u8 = 0b11;

/// What a control message says of a marked datagram, in either family's layout on a little-endian machine.
pub(super) const MARK: [u8; 4] = [CE, 0, 0, 0];

/// The option, by family, with which a socket gives its packets a traffic class; also the kind of
/// the control message that does it for one, and of the one that says what came in.
const fn traffic_class(v6: bool) -> (libc::c_int, libc::c_int) {
    if v6 { (libc::SOL_IPV6, libc::IPV6_TCLASS) } else { (libc::SOL_IP, libc::IP_TOS) }
}

/// The option with which a socket gives each datagram's traffic class in a control message.
const fn wants_traffic_class(v6: bool) -> (libc::c_int, libc::c_int) {
    if v6 { (libc::SOL_IPV6, libc::IPV6_RECVTCLASS) } else { (libc::SOL_IP, libc::IP_RECVTOS) }
}

/// The kind of control message with which a message gets a traffic class of its own.
#[inline]
pub(super) fn control_kind(to: &RawAddr) -> (libc::c_int, libc::c_int) {
    traffic_class(matches!(to, RawAddr::V6(_)))
}

/// Whether a control message of this kind and first byte says that its datagram was marked. The kernel
/// writes a byte for IPv4 and an `int` for IPv6.
#[inline]
pub(super) fn is_mark(kind: (libc::c_int, libc::c_int), value: [u8; 4]) -> bool {
    let class = match kind {
        (libc::SOL_IP, libc::IP_TOS) => value[0],
        (libc::SOL_IPV6, libc::IPV6_TCLASS) => i32::from_ne_bytes(value) as u8,
        _ => NOT_ECT as u8,
    };
    class & CE == CE
}

/// Has the kernel say of each datagram whether it was marked, or not.
pub(super) fn read_marks(socket: BorrowedFd<'_>, v6: bool, on: bool) -> io::Result<()> {
    let (level, name) = wants_traffic_class(v6);
    set_int_option(socket, level, name, on.into())
}

fn set_capable(socket: BorrowedFd<'_>, v6: bool, on: bool) -> io::Result<()> {
    let (level, name) = traffic_class(v6);
    set_int_option(socket, level, name, if on { ECT_0 } else { NOT_ECT })
}

/// Whether the kernel, or a sandbox around it, takes the options. They are off afterwards.
pub(super) fn is_possible(socket: BorrowedFd<'_>, v6: bool) -> bool {
    let try_all = |on| set_capable(socket, v6, on).and_then(|()| read_marks(socket, v6, on));
    try_all(true).and_then(|()| try_all(false)).is_ok()
}

/// What the socket says of its packets.
pub(super) struct Ecn {
    v6: bool,
    /// Whether every packet is ECT(0), whoever gets it.
    socket_is_capable: bool,
    /// Whether packets to those who agreed get ECT(0) by control messages.
    by_message: bool,
}

impl Ecn {
    /// Of a new socket.
    pub(super) fn new(local: SocketAddr) -> Self {
        Self { v6: local.is_ipv6(), socket_is_capable: false, by_message: false }
    }

    /// The socket's family, as [`read_marks`] wants it.
    pub(super) fn v6(&self) -> bool {
        self.v6
    }

    /// Whether a message to a peer that agreed needs a control message.
    #[inline]
    pub(super) fn is_by_message(&self) -> bool {
        self.by_message
    }

    /// Adapts the socket to its peers. `is_idle`: nothing waits that was for a peer which has gone.
    ///
    /// # Errors
    /// What the system said. No packet says more than its receiver agreed to then, unless a peer was
    /// just added.
    pub(super) fn adapt(
        &mut self,
        socket: BorrowedFd<'_>,
        peers: &PeerTable,
        is_idle: bool,
    ) -> io::Result<()> {
        let have_some_agreed = peers.ecn_count() > 0;
        let have_all_agreed = have_some_agreed && peers.ecn_count() == peers.len();
        let is_capable = have_all_agreed && (is_idle || self.socket_is_capable);
        if is_capable != self.socket_is_capable {
            set_capable(socket, self.v6, is_capable)?;
            self.socket_is_capable = is_capable;
        }
        self.by_message = have_some_agreed && !is_capable;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_mark__takes_what_the_kernel_wrote_and_no_more() {
        let v4 = traffic_class(false);
        assert!(is_mark(v4, [3, 0, 0, 0]));
        // The other bits are of the class, and the other bytes of nobody.
        assert!(is_mark(v4, [0xBB, 9, 9, 9]));
        (0..3).for_each(|codepoint| assert!(!is_mark(v4, [0xB8 | codepoint, 3, 3, 3])));
        let v6 = traffic_class(true);
        assert!(is_mark(v6, 0xBB_i32.to_ne_bytes()));
        (0..3).for_each(|codepoint| assert!(!is_mark(v6, i32::to_ne_bytes(0xB8 | codepoint))));
        assert!(!is_mark((libc::SOL_UDP, libc::UDP_GRO), [3, 0, 0, 0]));
    }
}
