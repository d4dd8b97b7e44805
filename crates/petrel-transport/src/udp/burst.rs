//! From the frames of a burst to the kernel, and what its refusals lead to.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::Udp;
use super::plan::{Loose, SMALL_FRAME_BYTES_MAX};
use super::send::{self, Reaction, reaction};
use crate::transport::PeerId;

impl Udp {
    /// Sends what was pushed, or tries a backlog again.
    #[inline(never)]
    pub(super) fn send_pushed(&mut self) {
        if !self.send_loose() {
            self.send_planned();
        }
    }

    /// Sends the plan, if that is one datagram of small frames. False: it is more, may need a control
    /// message, or the kernel refused it, for which there is the general way.
    #[inline]
    pub(super) fn send_loose(&mut self) -> bool {
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

    /// Sends messages.
    pub(super) fn send_planned(&mut self) {
        if !self.plan.is_sealed() {
            self.plan.seal();
        }
        match self.send_messages() {
            None => {
                self.plan.clear();
                self.is_backlog = false;
            }
            Some(next) => self.keep(next),
        }
    }

    /// Sends the messages, up to the one that is returned, for which there was no room.
    pub(super) fn send_messages(&mut self) -> Option<usize> {
        let (mut next, mut tries) = (0, 0);
        while next < self.plan.messages().len() {
            self.stats.tx_syscalls += 1;
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

    /// # Safety
    /// That of [`Sender::send`].
    pub(super) unsafe fn send_from(&mut self, first: usize) -> Result<usize, Errno> {
        let Self { socket, plan, association, sender, peers, ecn, .. } = self;
        let ecn = ecn.is_by_message().then_some(&*peers);
        // SAFETY: by this function's contract.
        unsafe { sender.send(socket.as_fd(), plan, first, association.is_made(), ecn) }
    }

    pub(super) fn is_grouped(&self, message: usize) -> bool {
        self.plan.messages()[message].datagram_count > 1
    }

    pub(super) fn count_sent(&mut self, first: usize, count: usize) {
        for message in &self.plan.messages()[first..first + count] {
            let load = self.plan.load_of(message);
            self.stats.tx_datagrams += message.datagram_count as u64;
            self.stats.tx_frames += load.frames;
            self.stats.tx_bytes += load.frame_bytes;
        }
    }

    /// The frames of all messages from `first` on wait for room. This burst asks no more.
    #[cold]
    pub(super) fn keep(&mut self, first: usize) {
        self.plan.keep(first);
        self.has_asked_for_room = true;
        if !self.is_backlog {
            self.is_backlog = true;
            let messages = self.plan.messages().iter();
            self.stats.tx_kept += messages.map(|m| self.plan.load_of(m).frames).sum::<u64>();
        }
    }

    /// Whether frames are kept for which the kernel had no room, after another try if this burst
    /// has made none.
    #[cold]
    #[inline(never)]
    pub(super) fn is_backlog_left(&mut self) -> bool {
        if !self.has_asked_for_room {
            self.send_pushed();
        }
        self.is_backlog
    }

    /// Devices and routes change while a socket is open, so that the kernel may refuse at any time
    /// what it took before. There is no way back: it would cost an error each time to ask again.
    #[cold]
    pub(super) fn disable_gso(&mut self, first: usize) {
        self.capabilities.gso = false;
        self.stats.gso_disabled += 1;
        self.plan.ungroup(first);
    }

    pub(super) fn drop_message(&mut self, message: usize) {
        let load = self.plan.load_of(&self.plan.messages()[message]);
        self.stats.tx_dropped_error += load.frames;
    }

    /// Adds a frame to the burst that the short way did not take.
    ///
    /// # Safety
    /// That of [`Transport::push`].
    #[inline(never)]
    pub(super) unsafe fn push_slowly(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if !self.plan.has_room() && !self.is_backlog {
            self.send_pushed();
        }
        if self.is_backlog && self.is_backlog_left() {
            self.stats.tx_blocked += 1;
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
    pub(super) unsafe fn plan_frame(&mut self, peer: PeerId, head: &[u8], body: &[u8]) {
        let bytes = head.len() + body.len();
        let Some(target) = self.peers.target(peer) else {
            self.stats.tx_dropped_no_peer += 1;
            return;
        };
        if !(1..=target.datagram_bytes_max).contains(&bytes) {
            self.stats.tx_dropped_oversize += 1;
        } else if bytes <= SMALL_FRAME_BYTES_MAX {
            self.plan.add_small(target, head, body);
        } else {
            // SAFETY: by this function's contract, the frame stays until `flush` has returned,
            // which clears the plan or keeps a copy.
            unsafe { self.plan.add_large(target, head, body) };
        }
    }
}
