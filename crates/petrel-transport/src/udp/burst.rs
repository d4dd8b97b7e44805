//! Sends the frames of a burst to the kernel, and handles its refusals.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::Udp;
use super::device::{Leaving, Sent};
use super::peers::PeerTable;
use super::plan::{Loose, Plan, SMALL_FRAME_BYTES_MAX};
use super::send::{self, Reaction, reaction};
use super::socket::allow_fragments;
use crate::device::either::{EitherNic, EitherWays};
use crate::transport::{PeerId, TransportStats};

/// The kernel's room for messages, and further source ports with frames to send. One byte, which the common case compares
/// with zero.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room(u8);

/// The plan holds frames for which the kernel had no room.
const BACKLOG: u8 = 1;

/// The current burst has found no room, and does not ask again.
const ASKED: u8 = 2;

/// A further source port may have frames to send.
const FURTHER: u8 = 4;

/// A device is configured.
const DEVICE: u8 = 8;

impl Room {
    #[inline]
    pub(super) fn is_backlog(self) -> bool {
        self.0 & BACKLOG != 0
    }

    fn note_backlog(&mut self) {
        self.0 |= BACKLOG;
    }

    /// Notes that no backlog is left. The next flush asks again, even if an earlier poll has found no room: after a flush the plan has no
    /// pointers to frames.
    fn end_backlog(&mut self) {
        self.0 &= !(BACKLOG | ASKED);
    }

    #[inline]
    pub(super) fn has_asked(self) -> bool {
        self.0 & ASKED != 0
    }

    fn note_asked(&mut self) {
        self.0 |= ASKED;
    }

    /// The next burst may ask again.
    #[inline]
    pub(super) fn end_burst(&mut self) {
        self.0 &= !ASKED;
    }

    pub(super) fn is_further_pushed(self) -> bool {
        self.0 & FURTHER != 0
    }

    pub(super) fn set_further_pushed(&mut self, is_pushed: bool) {
        self.set(FURTHER, is_pushed);
    }

    pub(super) fn note_device(&mut self) {
        self.0 |= DEVICE;
    }

    /// Returns true if a burst begins and ends without a look at backlogs and further source ports.
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        self.0 & (ASKED | FURTHER) == 0
    }

    /// Returns true if a poll begins without a backlog that is to be offered to the kernel again, and without a device.
    #[inline]
    pub(super) fn is_plain_poll(self) -> bool {
        self.0 & (BACKLOG | FURTHER | DEVICE) == 0
    }

    fn set(&mut self, flag: u8, on: bool) {
        self.0 = if on { self.0 | flag } else { self.0 & !flag };
    }
}

/// The state a burst needs.
pub(super) struct Burst<'a> {
    pub(super) plan: &'a mut Plan,
    pub(super) peers: &'a mut PeerTable,
    pub(super) stats: &'a mut TransportStats,
    pub(super) room: &'a mut Room,
    /// Whether the kernel cuts messages into datagrams.
    pub(super) has_gso: &'a mut bool,
}

impl Outlet for Udp {
    #[inline(always)]
    fn burst(&mut self) -> Burst<'_> {
        let Self { plan, peers, stats, room, capabilities, .. } = self;
        Burst { plan, peers, stats, room, has_gso: &mut capabilities.gso }
    }

    #[inline]
    fn send_loose(&mut self, is_to_seal: bool) -> bool {
        if !self.sends_bare {
            return self.send_loose_otherwise(is_to_seal);
        }
        let Self { socket, plan, peers, association, stats, .. } = self;
        let peers = is_to_seal.then_some(peers);
        send_loose(socket.as_fd(), (plan, peers), association.is_made(), stats)
    }

    #[cold]
    fn allow_fragments(&mut self) {
        allow_fragments(&self.socket);
    }

    #[inline]
    unsafe fn send_by_device(&mut self, first: usize) -> Option<Sent> {
        // SAFETY: by this function's contract.
        self.leaving().map(|leaving| unsafe { leaving.send_from(first) })
    }

    unsafe fn send_by_kernel(&mut self, messages: Range<usize>) -> Result<usize, Errno> {
        let Self { socket, plan, association, sender, peers, ecn, .. } = self;
        let (messages, ecn) = (&plan.messages()[messages], ecn.is_by_message().then_some(&*peers));
        // SAFETY: by this function's contract.
        unsafe { sender.send(socket.as_fd(), plan, messages, association.is_made(), ecn) }
    }
}

impl Udp {
    /// Sends a plan of one datagram of small frames by the device, if there is one.
    #[cold]
    #[inline(never)]
    fn send_loose_otherwise(&mut self, is_to_seal: bool) -> bool {
        self.leaving().is_some_and(|leaving| leaving.send_loose(is_to_seal))
    }

    /// The device with the burst.
    #[inline]
    fn leaving(&mut self) -> Option<Leaving<'_, EitherNic, EitherWays>> {
        let Self { device, plan, peers, stats, local, .. } = self;
        let port = device.as_mut()?.port()?;
        Some(Leaving { port, plan, peers, stats, source_port: local.port() })
    }
}

/// Sends a plan of one datagram of small frames: see [`Outlet::send_loose`]. The peers are there if the datagram is to be sealed.
#[inline(always)]
pub(super) fn send_loose(
    socket: BorrowedFd<'_>,
    (plan, peers): (&mut Plan, Option<&mut PeerTable>),
    is_connected: bool,
    stats: &mut TransportStats,
) -> bool {
    let loose = match peers {
        None => plan.loose(),
        Some(peers) => plan.seal_loose(peers),
    };
    let Some(Loose { name, piece, load, .. }) = loose else { return false };
    stats.tx_syscalls += 1;
    // SAFETY: the piece lies in the plan, which is borrowed.
    if !unsafe { send::send_datagram(socket, name, is_connected, &piece) } {
        return false;
    }
    stats.tx_datagrams += 1;
    stats.tx_frames += load.frames;
    stats.tx_bytes += load.frame_bytes;
    plan.clear_loose();
    true
}

/// The exit of bursts: a socket, or a simulator's replacement. The two share all but the first
/// five methods.
pub(super) trait Outlet {
    fn burst(&mut self) -> Burst<'_>;

    /// Sends the plan, if it is one datagram of small frames, which is to be sealed or not. Returns
    /// false if the plan is larger, may need a control message, or was refused by the kernel; the
    /// general path then follows.
    fn send_loose(&mut self, is_to_seal: bool) -> bool;

    /// Sends messages from `first` on by the device. Returns `None` without a device.
    ///
    /// # Safety
    /// The large frames of these messages are still in place.
    unsafe fn send_by_device(&mut self, first: usize) -> Option<Sent>;

    /// Sends messages by the socket, and returns how many the kernel accepted: at least one, or the
    /// error of the first.
    ///
    /// # Safety
    /// As for [`Outlet::send_by_device`].
    unsafe fn send_by_kernel(&mut self, messages: Range<usize>) -> Result<usize, Errno>;

    /// Lets the kernel send datagrams above the MTU of their path in fragments, because a path has become smaller than the
    /// frames that its sessions agreed on. Sessions opened later have smaller frames.
    fn allow_fragments(&mut self);

    /// Sends the pushed frames, or retries a backlog.
    #[inline(never)]
    fn send_pushed(&mut self) {
        if !self.send_loose(false) {
            self.send_planned();
        }
    }

    /// Closes the plan and sends its messages.
    fn send_planned(&mut self) {
        let plan = self.burst().plan;
        if plan.is_open_and_plain() {
            plan.close();
        } else if self.seal() {
            return;
        }
        match self.send_messages() {
            None => {
                let Burst { plan, room, .. } = self.burst();
                plan.clear();
                room.end_backlog();
            }
            Some(next) => self.keep(next),
        }
    }

    /// Seals a plan, and closes it. Returns true if that was a datagram of small frames, which is sent. The plan of a backlog is closed.
    #[inline(never)]
    fn seal(&mut self) -> bool {
        if self.burst().plan.is_closed() {
            return false;
        }
        if self.send_loose(true) {
            return true;
        }
        let Burst { plan, peers, stats, .. } = self.burst();
        stats.tx_dropped_no_peer += plan.close_and_seal(peers);
        false
    }

    /// Sends the messages. Returns the first message without room, if any.
    fn send_messages(&mut self) -> Option<usize> {
        let (mut next, mut tries) = (0, 0);
        while next < self.burst().plan.messages().len() {
            self.burst().stats.tx_syscalls += 1;
            // SAFETY: the large frames of this burst stay until `flush` returns, by the contract of
            // `push`; a backlog's large frames were copied.
            match unsafe { self.send_from(next) } {
                Ok(count) => {
                    self.count_sent(next, count);
                    (next, tries) = (next + count, 0);
                }
                Err(error) => match reaction(error, self.is_grouped(next), tries) {
                    Reaction::Retry => tries += 1,
                    Reaction::Blocked => return Some(next),
                    Reaction::Ungroup => self.disable_gso(next),
                    Reaction::Fragment => {
                        self.allow_fragments();
                        tries += 1;
                    }
                    Reaction::Drop => {
                        self.drop_message(next);
                        (next, tries) = (next + 1, 0);
                    }
                },
            }
        }
        None
    }

    /// Sends messages from `first` on, and returns how many were accepted: at least one, or the error
    /// of the first.
    ///
    /// # Safety
    /// As for [`Outlet::send_by_device`].
    #[inline]
    unsafe fn send_from(&mut self, first: usize) -> Result<usize, Errno> {
        // SAFETY: by this function's contract.
        let end = match unsafe { self.send_by_device(first) } {
            Some(Sent::Messages(count)) => return Ok(count),
            Some(Sent::NoRoom) => return Err(Errno::AGAIN),
            Some(Sent::ByKernel(count)) => first + count,
            None => self.burst().plan.messages().len(),
        };
        // SAFETY: by this function's contract.
        unsafe { self.send_by_kernel(first..end) }
    }

    fn is_grouped(&mut self, message: usize) -> bool {
        self.burst().plan.messages()[message].datagram_count > 1
    }

    fn count_sent(&mut self, first: usize, count: usize) {
        let Burst { plan, stats, .. } = self.burst();
        for message in &plan.messages()[first..first + count] {
            let load = plan.load_of(message);
            stats.tx_datagrams += message.datagram_count as u64;
            stats.tx_frames += load.frames;
            stats.tx_bytes += load.frame_bytes;
        }
    }

    /// Keeps the frames of all messages from `first` on until there is room. The burst asks no
    /// more.
    #[cold]
    fn keep(&mut self, first: usize) {
        let Burst { plan, room, stats, .. } = self.burst();
        plan.keep(first);
        room.note_asked();
        if !room.is_backlog() {
            room.note_backlog();
            let messages = plan.messages().iter();
            stats.tx_kept += messages.map(|message| plan.load_of(message).frames).sum::<u64>();
        }
    }

    /// Returns true if there is still a backlog, after a retry unless the burst has already asked.
    #[cold]
    #[inline(never)]
    fn is_backlog_left(&mut self) -> bool {
        if !self.burst().room.has_asked() {
            self.send_pushed();
        }
        self.burst().room.is_backlog()
    }

    /// Switches segmentation offload off. Devices and routes change while a socket is open, so the
    /// kernel may refuse at any time. Offload stays off: every later try could cost an error.
    #[cold]
    fn disable_gso(&mut self, first: usize) {
        let Burst { plan, stats, has_gso, .. } = self.burst();
        *has_gso = false;
        stats.gso_disabled += 1;
        plan.ungroup(first);
    }

    fn drop_message(&mut self, message: usize) {
        let Burst { plan, stats, .. } = self.burst();
        let load = plan.load_of(&plan.messages()[message]);
        stats.tx_dropped_error += load.frames;
    }

    /// Adds a frame that the fast path did not accept.
    ///
    /// # Safety
    /// As for [`Transport::push`].
    #[inline(never)]
    unsafe fn push_slowly(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let Burst { plan, room, .. } = self.burst();
        if !plan.has_room() && !room.is_backlog() {
            self.send_pushed();
        }
        if self.burst().room.is_backlog() && self.is_backlog_left() {
            self.burst().stats.tx_blocked += 1;
            return false;
        }
        // SAFETY: by this function's contract.
        unsafe { self.plan_frame(peer, head, body) };
        true
    }

    /// Adds a frame to a burst with room.
    ///
    /// # Safety
    /// As for [`Transport::push`].
    #[inline]
    unsafe fn plan_frame(&mut self, peer: PeerId, head: &[u8], body: &[u8]) {
        let bytes = head.len() + body.len();
        let Burst { plan, peers, stats, .. } = self.burst();
        let Some(target) = peers.target(peer) else {
            // SAFETY: by this function's contract.
            return unsafe { self.plan_sealed_frame(peer, head, body) };
        };
        if !(1..=target.datagram_bytes_max).contains(&bytes) {
            stats.tx_dropped_oversize += 1;
        } else if bytes <= SMALL_FRAME_BYTES_MAX {
            plan.add_small(target, head, body);
        } else {
            // SAFETY: by this function's contract, the frame stays until `flush` has returned;
            // `flush` clears the plan or keeps a copy.
            unsafe { plan.add_large(target, head, body) };
        }
    }

    /// Adds a frame to a sealed peer, or drops the frame of no peer. Cold, so that all other frames pass by without a jump: the cipher takes
    /// a hundred times as long.
    ///
    /// # Safety
    /// As for [`Transport::push`].
    #[cold]
    #[inline(never)]
    unsafe fn plan_sealed_frame(&mut self, peer: PeerId, head: &[u8], body: &[u8]) {
        let bytes = head.len() + body.len();
        let Burst { plan, peers, stats, .. } = self.burst();
        let Some(target) = peers.sealed_target(peer) else {
            stats.tx_dropped_no_peer += 1;
            return;
        };
        if !(1..=target.datagram_bytes_max).contains(&bytes) {
            stats.tx_dropped_oversize += 1;
        } else if bytes <= SMALL_FRAME_BYTES_MAX {
            plan.add_sealed_small(target, head, body);
        } else {
            // SAFETY: as in `plan_frame`.
            let is_full = unsafe { plan.add_sealed_large(target, head, body) };
            if is_full {
                self.send_pushed();
            }
        }
    }
}
