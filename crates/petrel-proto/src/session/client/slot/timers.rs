//! The timers of a client slot: looks for loss, and the time limit of the call (`docs/wire-protocol.md` §7).

use petrel_planted::planted;

use super::super::parts::ClientParts;
use super::{ClientSlot, ClientState, Expires, SendPath, WheelEntry};
use crate::recovery::Recovery;
use crate::recovery::loss_timer::LossTimer;
use crate::recovery::rtt::RtoBounds;
use crate::session::backlog::{Expiry, NEVER};
use crate::session::free_list::FreeList;
use crate::timer::{TimerKey, TimerWheel};

/// The timers of a slot: looks for loss, and the time limit of the call.
impl<B, T> ClientSlot<B, T> {
    /// Returns the timer for lost packets.
    #[inline(always)]
    pub(crate) fn timer(&self) -> &LossTimer {
        &self.timer
    }

    /// Returns the timer for lost packets, for a change.
    #[inline(always)]
    pub(crate) fn timer_mut(&mut self) -> &mut LossTimer {
        &mut self.timer
    }

    /// Returns true if the next step is the server's.
    pub(crate) fn is_waiting_for_server(&self) -> bool {
        let acknowledged = |parts: &ClientParts| parts.request().acknowledged_count();
        let received = |parts: &ClientParts| parts.response().received_count();
        match self.state {
            ClientState::Free => false,
            ClientState::Sending => self.parts().map_or(0, acknowledged) < self.request_sent,
            ClientState::Waiting => true,
            ClientState::Receiving => self.parts().map_or(0, received) < self.response_limit,
        }
    }

    /// Returns true if a timeout is a sign of congestion. The first timeout of a request that may still be
    /// running is not.
    pub(crate) fn is_silence(&self) -> bool {
        let has_unacknowledged = self.request_packets > 1 && self.state == ClientState::Sending;
        has_unacknowledged || self.state == ClientState::Receiving || self.timer.unanswered() > 0
    }

    /// Selects the packets to send again after a probe or a timeout at `now_ns` (§7.2). In RECEIVING the round trip of the question
    /// is measured.
    pub(crate) fn repeat_late(
        &mut self,
        now_ns: u64,
        recovery: Recovery,
        spare: &mut FreeList<ClientParts>,
    ) {
        let is_receiving = self.state == ClientState::Receiving;
        let has_asked = is_receiving && self.timer.take_question().is_some();
        self.repeat(recovery, spare);
        if is_receiving && (!has_asked || planted("proto_second_question_measured")) {
            self.timer.measure_question(now_ns);
        }
    }

    /// Selects the packets to send again (§7.2).
    pub(crate) fn repeat(&mut self, recovery: Recovery, spare: &mut FreeList<ClientParts>) {
        assert!(self.is_waiting_for_server(), "a timeout looks for packets of the server");
        if self.state == ClientState::Sending {
            let sent = self.request_sent;
            let parts = self.parts_mut(spare);
            if parts.request_mut().lose(sent, recovery) {
                parts.announce_again();
            }
            return;
        }
        // A response may now answer the repetition.
        self.timer.measure_nothing();
        self.timer.ask();
        let limit = self.response_limit;
        self.parts_mut(spare).response_mut().ask_again(limit, recovery);
    }

    /// Asks the server about the call without a repetition (§7.2), over a medium that loses nothing. The slot has waited since
    /// `since_ns`: in RECEIVING the wait until the next packet of the response is measured.
    pub(crate) fn ask_server(&mut self, since_ns: u64) {
        assert!(self.is_waiting_for_server(), "a question is about packets of the server");
        // The CREDIT in reply comes long after the measured packet, and takes the general path.
        self.path = SendPath::General;
        self.timer.ask();
        if self.state != ClientState::Receiving {
            self.timer.measure_nothing();
        } else if !self.timer.is_measuring() {
            self.timer.measure_question(since_ns);
        }
    }

    /// Returns true if the entry in the timer wheel comes due soon enough for any deadline.
    #[inline(always)]
    pub(crate) fn wakes_soon(&self) -> bool {
        self.wheel == WheelEntry::Soon
    }

    /// Ensures that the timer wheel wakes the slot by its deadline.
    #[inline]
    pub(crate) fn keep_in_wheel(
        &mut self,
        now_ns: u64,
        key: TimerKey,
        bounds: &RtoBounds,
        timers: &mut TimerWheel,
    ) {
        if self.wheel != WheelEntry::Absent {
            if !timers.comes_after(self.entry, self.timer.deadline_ns()) {
                return;
            }
            self.leave_wheel(timers);
        }
        self.enter_wheel(now_ns, key, bounds, timers);
    }

    pub(crate) fn enter_wheel(
        &mut self,
        now_ns: u64,
        key: TimerKey,
        bounds: &RtoBounds,
        timers: &mut TimerWheel,
    ) {
        assert!(self.wheel == WheelEntry::Absent, "a slot has one entry in the timer wheel");
        let deadline_ns = self.timer.deadline_ns();
        self.entry = timers.insert(key, deadline_ns);
        let is_soon = deadline_ns <= now_ns + bounds.soon_ns();
        self.wheel = if is_soon { WheelEntry::Soon } else { WheelEntry::Late };
    }

    /// The slot's entry in the timer wheel has come due.
    #[inline]
    pub(crate) fn note_due(&mut self) {
        assert!(self.wheel != WheelEntry::Absent, "a timer comes due that the slot has not set");
        self.wheel = WheelEntry::Absent;
    }

    /// Removes the slot's entry from the timer wheel, if present: the call has ended, or needs an earlier
    /// timer.
    #[cold]
    #[inline(never)]
    pub(crate) fn leave_wheel(&mut self, timers: &mut TimerWheel) {
        if self.wheel != WheelEntry::Absent {
            timers.remove(self.entry);
            self.note_due();
        }
    }

    /// Returns the call's time limit, if set.
    #[inline]
    pub(crate) fn expiry(&self) -> Expiry {
        let at_ns = self.expiry_ns;
        match self.expires {
            Expires::Unset => Expiry::NONE,
            Expires::Default => Expiry { at_ns, ..Expiry::NONE },
            Expires::Caller => {
                let inherited_ns = self.parts().map_or(NEVER, ClientParts::inherited_ns);
                Expiry { at_ns, is_on_wire: true, inherited_ns }
            }
            Expires::Inherited => Expiry { at_ns, is_on_wire: true, inherited_ns: at_ns },
        }
    }

    /// Returns true if the request carries the call's deadline to the server.
    #[inline(always)]
    pub(crate) fn is_on_wire(&self) -> bool {
        self.expires as u8 >= Expires::Caller as u8
    }

    /// Returns the deadline that the request carries to the server.
    #[inline(always)]
    pub(crate) fn wire_deadline_ns(&self) -> Option<u64> {
        self.is_on_wire().then_some(self.expiry_ns)
    }

    /// Sets the caller's deadline, after [`ClientSlot::note_begun`].
    #[inline(always)]
    pub(crate) fn expire_at(&mut self, deadline_ns: u64) {
        self.expires = Expires::Caller;
        self.expiry_ns = deadline_ns;
    }

    /// Sets the default timeout.
    pub(crate) fn expire_by_default_at(&mut self, at_ns: u64) {
        assert!(!self.is_on_wire(), "a default timeout replaces no deadline");
        self.expires = Expires::Default;
        self.expiry_ns = at_ns;
    }

    /// Sets a deadline that is carried on the wire, the caller's or an inherited one.
    pub(crate) fn set_expiry(&mut self, expiry: Expiry, spare: &mut FreeList<ClientParts>) {
        assert!(expiry.is_on_wire, "a deadline is carried on the wire, a default timeout is not");
        assert!(
            expiry.at_ns <= expiry.inherited_ns,
            "a call ends at its inherited deadline at the latest"
        );
        assert!(self.expires == Expires::Unset, "a call gets its deadline once");
        self.expire_at(expiry.at_ns);
        if expiry.inherited_ns == expiry.at_ns {
            self.expires = Expires::Inherited;
        } else if expiry.inherited_ns != NEVER {
            self.parts_mut(spare).set_inherited_ns(expiry.inherited_ns);
        }
    }
}
