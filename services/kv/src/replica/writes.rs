//! Writes between request and answer.

use std::collections::VecDeque;

use bytes::Bytes;
use petrel::Context;
use petrel::endpoint::Responder;

/// A write that a client waits for.
pub(super) struct Write {
    /// Time of arrival, on the endpoint's clock.
    pub(super) at_ns: u64,
    pub(super) command: Bytes,
    /// None once the write is answered.
    pub(super) responder: Option<Responder>,
    /// The answer, if computed before the write is applied.
    pub(super) precomputed: Option<Vec<u8>>,
}

/// Queued and proposed writes.
#[derive(Default)]
pub(super) struct Writes {
    queued: Vec<Write>,
    /// By ascending index; all of one term.
    proposed: VecDeque<(u64, Write)>,
}

impl Writes {
    pub(super) fn len(&self) -> usize {
        self.queued.len() + self.proposed.len()
    }

    pub(super) fn queue(&mut self, write: Write) {
        self.queued.push(write);
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// The commands to propose.
    pub(super) fn queued(&self) -> impl Iterator<Item = &Bytes> {
        self.queued.iter().map(|write| &write.command)
    }

    /// Notes the log indices of the queued writes, from `first` on.
    pub(super) fn note_proposed(&mut self, first: u64) {
        self.proposed.extend((first..).zip(self.queued.drain(..)));
    }

    /// Removes and returns the next write with a waiting client, if it has this index.
    pub(super) fn take(&mut self, index: u64) -> Option<Write> {
        if self.proposed.front()?.0 != index {
            return None;
        }
        self.proposed.pop_front().map(|(_, write)| write)
    }

    /// The next writes with waiting clients, from `index` on.
    pub(super) fn next(&self, index: u64) -> impl Iterator<Item = &[u8]> {
        let is_next = self.next_index() == Some(index);
        let all = self.proposed.iter().take(if is_next { usize::MAX } else { 0 });
        all.map(|(_, write)| &write.command[..])
    }

    /// The index of the next write that a client waits for.
    pub(super) fn next_index(&self) -> Option<u64> {
        self.proposed.front().map(|(index, _)| *index)
    }

    /// Returns the next write with a waiting client, if it has this index.
    pub(super) fn peek(&self, index: u64) -> Option<&Write> {
        self.proposed.front().filter(|(next, _)| *next == index).map(|(_, write)| write)
    }

    /// The mutable form of [`Writes::peek`].
    pub(super) fn next_mut(&mut self, index: u64) -> Option<&mut Write> {
        self.proposed.front_mut().filter(|(next, _)| *next == index).map(|(_, write)| write)
    }

    /// Returns true for exactly one proposed write.
    pub(super) fn is_alone(&self) -> bool {
        self.proposed.len() == 1
    }

    /// Answers the queued writes, which were not proposed and will not be.
    pub(super) fn refuse_queued(&mut self, cx: &mut Context<'_>, refusal: &[u8]) {
        for responder in self.queued.drain(..).filter_map(|write| write.responder) {
            responder.reply(cx, refusal);
        }
    }

    /// Answers all writes after the end of leadership. The outcome of proposed writes will remain unknown here.
    pub(super) fn fail_all(&mut self, cx: &mut Context<'_>, not_leader: &[u8], unknown: &[u8]) {
        self.refuse_queued(cx, not_leader);
        for responder in self.proposed.drain(..).filter_map(|(_, write)| write.responder) {
            responder.reply(cx, unknown);
        }
    }
}
