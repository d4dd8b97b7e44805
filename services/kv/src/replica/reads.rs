//! Linearizable reads, which see every previously answered write (Raft dissertation §6.4).

use std::collections::VecDeque;

use petrel::Context;
use petrel::endpoint::Responder;

use petrel_planted::planted;

use crate::api::{
    Consistency, GetReply, GetRequest, LeaseRequest, Refusal, RevisionReply, RevisionRequest,
    SaveRequest, ScanRequest, methods,
};
use crate::store::{PREFETCH_MAX, PREFETCH_MIN, Store};

/// A read that cannot be answered yet.
pub(super) struct Read {
    pub(super) method: u16,
    pub(super) request: Vec<u8>,
    pub(super) responder: Responder,
}

/// Waiting reads: first for a majority to confirm the leader, then for the log to be applied.
///
/// A single question is in flight at a time. Later reads share the next question. With few reads, the extra wait is at
/// most a round trip; with many reads, all share a question's cost. The next heartbeat repeats a question whose
/// messages were lost.
pub(super) struct Reads<R = Read> {
    queued: Vec<R>,
    /// The number of the question in flight, and its reads.
    asked: Option<(u64, Vec<R>)>,
    /// Reads waiting for an index to be applied.
    confirmed: VecDeque<(u64, Vec<R>)>,
    questions: u64,
}

impl<R> Default for Reads<R> {
    fn default() -> Self {
        Self { queued: Vec::new(), asked: None, confirmed: VecDeque::new(), questions: 0 }
    }
}

impl<R> Reads<R> {
    pub(super) fn len(&self) -> usize {
        let batches = self.asked.iter().chain(&self.confirmed);
        self.queued.len() + batches.map(|(_, reads)| reads.len()).sum::<usize>()
    }

    /// Number of questions asked so far.
    pub(super) fn questions(&self) -> u64 {
        self.questions
    }

    pub(super) fn queue(&mut self, read: R) {
        self.queued.push(read);
    }

    /// Returns true if reads wait and a question may be asked for them now.
    pub(super) fn may_ask(&self) -> bool {
        !self.queued.is_empty() && self.asked.is_none()
    }

    /// Begins a question on behalf of all queued reads, and returns its number.
    pub(super) fn ask(&mut self) -> u64 {
        assert!(self.may_ask(), "one question at a time, and none for nothing");
        self.questions += 1;
        self.asked = Some((self.questions, std::mem::take(&mut self.queued)));
        self.questions
    }

    /// A majority has confirmed the leader: the question's reads may be answered once this index is applied.
    pub(super) fn confirm(&mut self, question: u64, index: u64) {
        if let Some((_, reads)) = self.asked.take_if(|(number, _)| *number == question) {
            self.confirmed.push_back((index, reads));
        }
    }

    /// Removes and returns reads that may be answered once `applied` is applied.
    pub(super) fn take_due(&mut self, applied: u64) -> Option<Vec<R>> {
        let applied = applied + u64::from(planted("kv_read_one_early"));
        if self.confirmed.front()?.0 > applied {
            return None;
        }
        self.confirmed.pop_front().map(|(_, reads)| reads)
    }
}

impl Reads {
    /// Answers all reads because this replica no longer leads; `not_leader` refers the clients to another replica.
    pub(super) fn fail_all(&mut self, cx: &mut Context<'_>, not_leader: &[u8]) {
        let batches = self.asked.take().into_iter().chain(self.confirmed.drain(..));
        let reads = batches.flat_map(|(_, reads)| reads).chain(self.queued.drain(..));
        for read in reads {
            read.responder.reply(cx, not_leader);
        }
    }
}

/// Returns true if a request accepts a stale answer.
///
/// # Errors
/// The reason why the request is malformed.
pub(super) fn may_be_stale(method: u16, request: &[u8]) -> Result<bool, String> {
    let consistency = match method {
        methods::GET => GetRequest::decode(request).map(|request| request.consistency),
        methods::LEASE => LeaseRequest::decode(request).map(|request| request.consistency()),
        methods::REVISION => RevisionRequest::decode(request).map(|request| request.consistency),
        methods::SAVE => SaveRequest::decode(request).map(|request| match request {
            SaveRequest::Begin { consistency } => consistency,
            // The state is that of the save's begin.
            SaveRequest::Block { .. } | SaveRequest::End { .. } => Consistency::Stale,
        }),
        _ => ScanRequest::decode(request).map(|request| request.consistency),
    };
    consistency.map(|how| how == Consistency::Stale).map_err(|error| error.to_string())
}

/// Prefetches memory for the first of these reads with overlapping cache misses. Returns their number: at least one,
/// unless `reads` is empty.
pub(super) fn prefetch_reads(store: &Store, reads: &[Read]) -> usize {
    let together = &reads[..reads.len().min(PREFETCH_MAX)];
    if together.len() >= PREFETCH_MIN {
        let is_get = |read: &&Read| read.method == methods::GET;
        let keys = together.iter().filter(is_get).filter_map(|read| {
            let request = GetRequest::decode(&read.request);
            request.ok().map(|request| request.key)
        });
        store.prefetch_keys(keys);
    }
    together.len()
}

/// Answers a read of keys, or of the revision.
pub(super) fn answer(store: &Store, method: u16, request: &[u8], reply: &mut Vec<u8>) {
    let answered = match method {
        methods::GET => GetRequest::decode(request).map(|request| {
            GetReply::from_found(store.get(request.key)).encode(reply);
        }),
        methods::REVISION => RevisionRequest::decode(request).map(|_| {
            let (revision, first) = (store.revision(), store.history().first());
            RevisionReply::At { revision, first }.encode(reply);
        }),
        _ => ScanRequest::decode(request)
            .map(|request| request.answer(store.scan(request.from, request.until), reply)),
    };
    if let Err(error) = answered {
        Refusal::Malformed(&error.to_string()).encode(reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn may_ask__once_for_all_that_came_while_a_question_was_on_its_way() {
        let mut reads = Reads::default();
        assert!(!reads.may_ask());
        reads.queue('a');
        assert_eq!(reads.ask(), 1);
        reads.queue('b');
        reads.queue('c');
        assert!(!reads.may_ask(), "they came after the question, and wait for the next");
        reads.confirm(1, 7);
        assert_eq!((reads.take_due(6), reads.take_due(7)), (None, Some(vec!['a'])));
        assert!(reads.may_ask());
        assert_eq!(reads.ask(), 2);
        assert_eq!(reads.len(), 2);
        reads.confirm(2, 7);
        assert_eq!(reads.take_due(7), Some(vec!['b', 'c']));
        assert_eq!((reads.len(), reads.questions()), (0, 2));
    }

    #[test]
    fn may_be_stale__a_save_begins_as_the_client_wants_and_goes_on_at_any_replica() {
        let of = |request: SaveRequest| may_be_stale(methods::SAVE, &request.to_vec());
        let begin = |consistency| of(SaveRequest::Begin { consistency });
        assert_eq!(
            begin(Consistency::Linearizable),
            Ok(false),
            "the leader confirms that it leads"
        );
        assert_eq!(begin(Consistency::Stale), Ok(true));
        assert_eq!(of(SaveRequest::Block { save: 1, block: 1 }), Ok(true));
        assert_eq!(of(SaveRequest::End { save: 1 }), Ok(true));
        assert!(may_be_stale(methods::SAVE, &[9]).is_err());
    }

    #[test]
    fn confirm__knows_an_old_answer() {
        let mut reads = Reads::default();
        reads.queue('a');
        assert_eq!(reads.ask(), 1);
        reads.confirm(1, 3);
        reads.queue('b');
        assert_eq!(reads.ask(), 2);
        reads.confirm(1, 4);
        assert_eq!(reads.take_due(9), Some(vec!['a']));
        assert_eq!(reads.take_due(9), None, "nobody has confirmed the second question");
    }
}
