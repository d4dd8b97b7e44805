//! Explicit Congestion Notification (RFC 3168): declares sent packets ECN-capable, so that switches
//! mark them instead of dropping them, and reads the marks of received packets.
//!
//! Sending and reading are for peers that agreed ([`UdpLink::ecn`](super::UdpLink::ecn)), because
//! of their price. Congestion cannot slow a sender of ECT(0) packets if the peer echoes no marks.
//! And the mark of a datagram comes in a control message: `recvmsg` then takes some 50 ns more than
//! `recvfrom` without (see `receive`).
//!
//! | peers | sent codepoint | marks |
//! | --- | --- | --- |
//! | none agreed | Not-ECT | not read |
//! | all agreed | ECT(0), which the socket puts into every packet at no cost per call | read |
//! | some agreed | ECT(0) to those, by a control message with each message | read |
//!
//! Tried on Linux 6.18: the kernel does not join datagrams of different codepoints (GRO), and the
//! segments of a message (GSO) all have the message's codepoint. A single mark thus covers a whole
//! train.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use super::addr::{Families, RawAddr};
use super::peers::PeerTable;
use crate::socket_option::set_int_option;

/// ECN-Capable Transport: the sender reacts to marks. In the low bits of the traffic class.
pub(super) const ECT_0: libc::c_int = 0b10;

/// Not ECN-capable, and of the default traffic class.
const NOT_ECT: libc::c_int = 0;

/// Congestion Experienced: a router marked the packet.
const CE: u8 = 0b11;

/// The control message's value for a marked datagram, in either family's layout on a little-endian
/// machine.
pub(super) const MARK: [u8; 4] = [CE, 0, 0, 0];

/// The option, by family, that sets a socket's traffic class. Control messages of this kind set the
/// class of a sent message, and report the class of a received datagram.
const fn traffic_class(v6: bool) -> (libc::c_int, libc::c_int) {
    if v6 { (libc::SOL_IPV6, libc::IPV6_TCLASS) } else { (libc::SOL_IP, libc::IP_TOS) }
}

/// The option that makes a socket report every datagram's traffic class in a control message.
const fn wants_traffic_class(v6: bool) -> (libc::c_int, libc::c_int) {
    if v6 { (libc::SOL_IPV6, libc::IPV6_RECVTCLASS) } else { (libc::SOL_IP, libc::IP_RECVTOS) }
}

/// The kind of control message that sets a message's own traffic class.
#[inline]
pub(super) fn control_kind(to: &RawAddr) -> (libc::c_int, libc::c_int) {
    traffic_class(to.addr().ip().to_canonical().is_ipv6())
}

/// Returns true if a control message of this kind and value reports a mark. The kernel writes a
/// byte for IPv4 and an `int` for IPv6.
#[inline]
pub(super) fn is_mark(kind: (libc::c_int, libc::c_int), value: [u8; 4]) -> bool {
    let class = match kind {
        (libc::SOL_IP, libc::IP_TOS) => value[0],
        (libc::SOL_IPV6, libc::IPV6_TCLASS) => i32::from_ne_bytes(value) as u8,
        _ => NOT_ECT as u8,
    };
    class & CE == CE
}

/// Switches the kernel's report of every datagram's mark on or off.
pub(super) fn read_marks(socket: BorrowedFd<'_>, families: Families, on: bool) -> io::Result<()> {
    set_for_each(socket, families, wants_traffic_class, on.into())
}

fn set_capable(socket: BorrowedFd<'_>, families: Families, on: bool) -> io::Result<()> {
    set_for_each(socket, families, traffic_class, if on { ECT_0 } else { NOT_ECT })
}

/// Sets the option of each family.
fn set_for_each(
    socket: BorrowedFd<'_>,
    families: Families,
    option: fn(bool) -> (libc::c_int, libc::c_int),
    value: libc::c_int,
) -> io::Result<()> {
    let (v4, v6) = families.contains();
    for (is_there, is_v6) in [(v4, false), (v6, true)] {
        if is_there {
            let (level, name) = option(is_v6);
            set_int_option(socket, level, name, value)?;
        }
    }
    Ok(())
}

/// Returns true if the kernel, or a sandbox around it, accepts the options. The options are off
/// afterwards.
pub(super) fn is_possible(socket: BorrowedFd<'_>, families: Families) -> bool {
    let try_all =
        |on| set_capable(socket, families, on).and_then(|()| read_marks(socket, families, on));
    try_all(true).and_then(|()| try_all(false)).is_ok()
}

/// The ECN state of the socket.
pub(super) struct Ecn {
    families: Families,
    /// Whether every packet is ECT(0), whatever its destination.
    socket_is_capable: bool,
    /// Whether packets to agreeing peers get ECT(0) by control messages.
    by_message: bool,
}

impl Ecn {
    /// The state of a new socket.
    pub(super) fn new(local: SocketAddr) -> Self {
        Self { families: Families::of(local), socket_is_capable: false, by_message: false }
    }

    /// The socket's families, as [`read_marks`] needs them.
    pub(super) fn families(&self) -> Families {
        self.families
    }

    /// Returns true if a message to an agreeing peer, or to a peer with a source address of its own, needs a control message.
    #[inline]
    pub(super) fn is_by_message(&self) -> bool {
        self.by_message
    }

    /// Adapts the socket to its peers. `is_idle`: no frames for removed peers are waiting.
    ///
    /// # Errors
    /// The system's error. No packet then claims more than its receiver agreed to, unless a peer
    /// was just added.
    pub(super) fn adapt(
        &mut self,
        socket: BorrowedFd<'_>,
        peers: &PeerTable,
        is_idle: bool,
    ) -> io::Result<()> {
        let have_some_agreed = peers.ecn_count() > 0;
        let have_all_agreed = have_some_agreed && peers.ecn_count() == peers.len();
        // A message with a source address has control messages in any case.
        let have_sources = peers.sourced_count() > 0;
        let have_all_agreed = have_all_agreed && !have_sources;
        let is_capable = have_all_agreed && (is_idle || self.socket_is_capable);
        if is_capable != self.socket_is_capable {
            set_capable(socket, self.families, is_capable)?;
            self.socket_is_capable = is_capable;
        }
        self.by_message = (have_some_agreed || have_sources) && !is_capable;
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
        // The upper bits belong to the traffic class, and the further bytes have no meaning.
        assert!(is_mark(v4, [0xBB, 9, 9, 9]));
        (0..3).for_each(|codepoint| assert!(!is_mark(v4, [0xB8 | codepoint, 3, 3, 3])));
        let v6 = traffic_class(true);
        assert!(is_mark(v6, 0xBB_i32.to_ne_bytes()));
        (0..3).for_each(|codepoint| assert!(!is_mark(v6, i32::to_ne_bytes(0xB8 | codepoint))));
        assert!(!is_mark((libc::SOL_UDP, libc::UDP_GRO), [3, 0, 0, 0]));
    }
}
