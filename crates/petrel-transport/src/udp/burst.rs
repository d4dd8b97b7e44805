//! From the frames of a burst to the kernel, and what its refusals lead to.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::Udp;
use super::peers::PeerTable;
use super::plan::{Loose, Plan, SMALL_FRAME_BYTES_MAX};
use super::send::{self, Reaction, reaction};
use crate::transport::{PeerId, TransportStats};

/// Whether the kernel had room.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// The plan holds frames for which the kernel had none.
    pub(super) is_backlog: bool,
    /// The current burst has found that there is none, and does not ask again.
    pub(super) has_asked: bool,
}

/// What a burst is made of.
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
    fn send_loose(&mut self) -> bool {
        if self.ecn.is_by_message() {
            return false;
        }
        let Self { socket, plan, association, stats, .. } = self;
        let Some(Loose { name, piece, load }) = plan.loose() else { return false };
        stats.tx_syscalls += 1;
        // SAFETY: the piece lies in the plan, which is borrowed.
        if !unsafe { send::send_datagram(socket.as_fd(), name, association.is_made(), &piece) } {
            return false;
        }
        stats.tx_datagrams += 1;
        stats.tx_frames += load.frames;
        stats.tx_bytes += load.frame_bytes;
        plan.clear_loose();
        true
    }

    unsafe fn send_from(&mut self, first: usize) -> Result<usize, Errno> {
        let Self { socket, plan, association, sender, peers, ecn, .. } = self;
        let ecn = ecn.is_by_message().then_some(&*peers);
        // SAFETY: by this function's contract.
        unsafe { sender.send(socket.as_fd(), plan, first, association.is_made(), ecn) }
    }
}

/// Where bursts leave: a socket, or what a simulator has in its place. All but its first three methods are the same
/// for both.
pub(super) trait Outlet {
    fn burst(&mut self) -> Burst<'_>;

    /// Sends the plan, if that is one datagram of small frames. False: it is more, may need a control
    /// message, or the kernel refused it, for which there is the general way.
    fn send_loose(&mut self) -> bool;

    /// Sends messages from `first` on, and tells how many the kernel took: at least one, or the error of the first.
    ///
    /// # Safety
    /// The large frames that these messages carry are still where the plan says.
    unsafe fn send_from(&mut self, first: usize) -> Result<usize, Errno>;

    /// Sends what was pushed, or tries a backlog again.
    #[inline(never)]
    fn send_pushed(&mut self) {
        if !self.send_loose() {
            self.send_planned();
        }
    }

    /// Sends messages.
    fn send_planned(&mut self) {
        let plan = self.burst().plan;
        if !plan.is_sealed() {
            plan.seal();
        }
        match self.send_messages() {
            None => {
                let Burst { plan, room, .. } = self.burst();
                plan.clear();
                room.is_backlog = false;
            }
            Some(next) => self.keep(next),
        }
    }

    /// Sends the messages, up to the one that is returned, for which there was no room.
    fn send_messages(&mut self) -> Option<usize> {
        let (mut next, mut tries) = (0, 0);
        while next < self.burst().plan.messages().len() {
            self.burst().stats.tx_syscalls += 1;
            // SAFETY: the large frames of this burst are there until `flush` returns, which is the
            // contract of `push`; a backlog's were copied.
            match unsafe { self.send_from(next) } {
                Ok(count) => {
                    self.count_sent(next, count);
                    (next, tries) = (next + count, 0);
                }
                Err(error) => match reaction(error, self.is_grouped(next), tries) {
                    Reaction::Retry => tries += 1,
                    Reaction::Blocked => return Some(next),
                    Reaction::Ungroup => self.disable_gso(next),
                    Reaction::Drop => {
                        self.drop_message(next);
                        (next, tries) = (next + 1, 0);
                    }
                },
            }
        }
        None
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

    /// The frames of all messages from `first` on wait for room. This burst asks no more.
    #[cold]
    fn keep(&mut self, first: usize) {
        let Burst { plan, room, stats, .. } = self.burst();
        plan.keep(first);
        room.has_asked = true;
        if !room.is_backlog {
            room.is_backlog = true;
            let messages = plan.messages().iter();
            stats.tx_kept += messages.map(|message| plan.load_of(message).frames).sum::<u64>();
        }
    }

    /// Whether frames are kept for which the kernel had no room, after another try if this burst
    /// has made none.
    #[cold]
    #[inline(never)]
    fn is_backlog_left(&mut self) -> bool {
        if !self.burst().room.has_asked {
            self.send_pushed();
        }
        self.burst().room.is_backlog
    }

    /// Devices and routes change while a socket is open, so that the kernel may refuse at any time
    /// what it took before. There is no way back: it would cost an error each time to ask again.
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

    /// Adds a frame to the burst that the short way did not take.
    ///
    /// # Safety
    /// That of [`Transport::push`].
    #[inline(never)]
    unsafe fn push_slowly(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let Burst { plan, room, .. } = self.burst();
        if !plan.has_room() && !room.is_backlog {
            self.send_pushed();
        }
        if self.burst().room.is_backlog && self.is_backlog_left() {
            self.burst().stats.tx_blocked += 1;
            return false;
        }
        // SAFETY: by this function's contract.
        unsafe { self.plan_frame(peer, head, body) };
        true
    }

    /// Adds a frame to the burst. There is room for it.
    ///
    /// # Safety
    /// That of [`Transport::push`].
    #[inline]
    unsafe fn plan_frame(&mut self, peer: PeerId, head: &[u8], body: &[u8]) {
        let bytes = head.len() + body.len();
        let Burst { plan, peers, stats, .. } = self.burst();
        let Some(target) = peers.target(peer) else {
            stats.tx_dropped_no_peer += 1;
            return;
        };
        if !(1..=target.datagram_bytes_max).contains(&bytes) {
            stats.tx_dropped_oversize += 1;
        } else if bytes <= SMALL_FRAME_BYTES_MAX {
            plan.add_small(target, head, body);
        } else {
            // SAFETY: by this function's contract, the frame stays until `flush` has returned,
            // which clears the plan or keeps a copy.
            unsafe { plan.add_large(target, head, body) };
        }
    }
}
