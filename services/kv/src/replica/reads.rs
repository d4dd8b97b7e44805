//! Reads that see every write that had been answered before they came (Raft dissertation §6.4).

use std::collections::VecDeque;

use petrel::{Context, Responder};

use crate::api::{Consistency, GetReply, GetRequest, Refusal, ScanRequest, methods};
use crate::store::Store;

/// A read whose time has not come.
pub(super) struct Read {
    pub(super) method: u16,
    pub(super) request: Vec<u8>,
    pub(super) responder: Responder,
}

/// Reads that wait: first for a majority to confirm who leads, then for the log to be applied.
#[derive(Default)]
pub(super) struct Reads {
    queued: Vec<Read>,
    /// Those for which a majority was asked, by the number of the question.
    asked: VecDeque<(u64, Vec<Read>)>,
    /// Those that wait for this index to be applied.
    confirmed: VecDeque<(u64, Vec<Read>)>,
    questions: u64,
}

impl Reads {
    pub(super) fn len(&self) -> usize {
        let batches = self.asked.iter().chain(&self.confirmed);
        self.queued.len() + batches.map(|(_, reads)| reads.len()).sum::<usize>()
    }

    pub(super) fn queue(&mut self, read: Read) {
        self.queued.push(read);
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// The number of a question on behalf of all that are queued.
    pub(super) fn ask(&mut self) -> u64 {
        self.questions += 1;
        self.asked.push_back((self.questions, std::mem::take(&mut self.queued)));
        self.questions
    }

    /// A majority has confirmed: what came before the question may be answered from this index on.
    pub(super) fn confirm(&mut self, question: u64, index: u64) {
        while self.asked.front().is_some_and(|(number, _)| *number <= question) {
            let (_, reads) = self.asked.pop_front().expect("there is a front");
            self.confirmed.push_back((index, reads));
        }
    }

    /// Takes reads that may be answered when so much is applied.
    pub(super) fn take_due(&mut self, applied: u64) -> Option<Vec<Read>> {
        if self.confirmed.front()?.0 > applied {
            return None;
        }
        self.confirmed.pop_front().map(|(_, reads)| reads)
    }

    /// This replica leads no more: sends the clients on.
    pub(super) fn give_up(&mut self, cx: &mut Context<'_>, not_leader: &[u8]) {
        let batches = self.asked.drain(..).chain(self.confirmed.drain(..));
        let reads = batches.flat_map(|(_, reads)| reads).chain(self.queued.drain(..));
        for read in reads {
            read.responder.reply(cx, not_leader);
        }
    }
}

/// Whether a request may be answered from what is here, without asking anybody; or why it is none.
pub(super) fn may_be_stale(method: u16, request: &[u8]) -> Result<bool, String> {
    let consistency = match method {
        methods::GET => GetRequest::decode(request).map(|request| request.consistency),
        _ => ScanRequest::decode(request).map(|request| request.consistency),
    };
    consistency.map(|how| how == Consistency::Stale).map_err(|error| error.to_string())
}

/// Answers a read from the store.
pub(super) fn answer(store: &Store, method: u16, request: &[u8], reply: &mut Vec<u8>) {
    let answered = match method {
        methods::GET => GetRequest::decode(request).map(|request| {
            GetReply::from_found(store.get(request.key)).encode(reply);
        }),
        _ => ScanRequest::decode(request)
            .map(|request| request.answer(store.scan(request.from, request.until), reply)),
    };
    if let Err(error) = answered {
        Refusal::Malformed(&error.to_string()).encode(reply);
    }
}
