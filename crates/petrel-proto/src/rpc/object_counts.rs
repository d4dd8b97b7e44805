//! The contents of a core at one moment, for checkers: a core at rest holds nothing.

use crate::session::client::ClientSession;
use crate::session::server::{ServerSession, ServerState};

/// Counts of everything that a core holds. Not for applications: the fields follow the code.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Pending calls: in slots, and in queues before them.
    pub calls: usize,
    /// Pending calls that wait for a slot.
    pub waiting: usize,
    /// Client slots that wait for a credit or for the session's pace.
    pub held_back: usize,
    /// Credits not free in open client sessions, and slots counted as waiting with a credit.
    pub credits_out: usize,
    /// Boxes kept by free client slots and idle server slots.
    pub parts: usize,
    /// Requests that arrive or run.
    pub requests: usize,
    /// Memory held by requests and answers of several packets.
    pub held_bytes: u64,
    /// Slots in the transmit queue, waiting CANCELs, and messages to groups.
    pub to_send: usize,
    /// Events not yet taken by the owner.
    pub events: usize,
    /// Entries of the timer wheel, which stay until they come due.
    pub timers: usize,
    /// Allocated slots, in both roles. The timeouts' entries are no more than these, plus two for every
    /// session.
    pub slots: usize,
}

impl ObjectCounts {
    /// Returns a kind of object left over when no call is pending and no handler runs; `None` if nothing is
    /// left.
    pub fn left_at_rest(&self) -> Option<(&'static str, u64)> {
        let all = [
            ("calls", self.calls as u64),
            ("slots that wait for a credit or their pace", self.held_back as u64),
            ("credits that are not back", self.credits_out as u64),
            ("requests that arrive or run", self.requests as u64),
            ("boxes of slots without a message", self.parts as u64),
            ("slots with something to send", self.to_send as u64),
            ("events", self.events as u64),
        ];
        all.into_iter().find(|&(_, count)| count > 0)
    }

    pub(super) fn add_client<B, T>(&mut self, client: &ClientSession<B, T>) {
        client.assert_sound();
        self.calls += client.pending_calls();
        self.waiting += client.backlog().len();
        self.held_back += client.held_back_count();
        let (available, agreed) = client.credits();
        self.credits_out += (agreed - available) as usize;
        self.credits_out += client.waiting_slots() as usize;
        self.slots += client.slots().len();
        let with_box =
            client.slots().iter().filter(|slot| slot.is_free() && slot.parts().is_some());
        self.parts += with_box.count();
    }

    pub(super) fn add_server<B>(&mut self, server: &ServerSession<B>) {
        self.slots += server.slots().len();
        for slot in server.slots() {
            let is_busy = matches!(slot.state(), ServerState::Arriving | ServerState::Running);
            self.requests += usize::from(is_busy);
            self.parts += usize::from(slot.state() == ServerState::Idle && slot.boxes().0);
        }
    }
}
