//! Links to the other replicas: a session, and the queue of messages.
//!
//! Raft's messages travel as calls, and resulting messages return in the answers where possible. Few calls to a peer
//! are outstanding at a time: further messages wait, and consecutive appends are merged. Batches therefore grow with
//! the load by themselves.

use petrel::endpoint::SharedMsg;
use petrel::task::Session;
use petrel::{Context, MsgBuf, Reply};
use raft::eraftpb::{Message, MessageType};

use super::codec::{entry_bytes, frame_bytes, is_rejection, write_frame};
use super::methods;
use super::shared::Shared;

/// Most outstanding calls to a peer while only appends wait. Two keep a peer busy while an answer is in flight; the
/// others are for round trips that take longer than the work on a batch.
const CALLS_MAX: u32 = 4;

/// Most outstanding calls of any kind to a peer; further ones would carry no news.
const URGENT_CALLS_MAX: u32 = 7;

/// Approximate limit for the bytes of entries in one call; a single entry may be larger.
const APPEND_BYTES_MAX: usize = 256 << 10;

/// Most messages that wait for a peer. Further messages are dropped, and Raft recovers from the loss.
const OUTBOX_MAX: usize = 256;

/// Initial room for an answer: a few messages without entries. It grows for longer answers.
const ANSWER_BYTES: usize = 512;
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The reachable peers.
#[derive(Default)]
pub(super) struct Links {
    /// In the order of the peers' names, which makes runs repeatable.
    links: Vec<Link>,
    /// Peers with messages lost on this side.
    unreachable: Vec<u64>,
    /// Peers that did not get the offer of a snapshot.
    unoffered: Vec<u64>,
    frame: Vec<u8>,
    pub(super) counters: LinkCounters,
}

/// Counters of the traffic to peers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkCounters {
    pub(super) calls: u64,
    pub(super) failed: u64,
    pub(super) dropped: u64,
    pub(super) merged: u64,
    pub(super) shared: u64,
}

struct Link {
    peer: u64,
    session: Session,
    calls: u32,
    outbox: Vec<Message>,
    acknowledged: Acknowledged,
}

/// Term and start of the last call with a leader's message that the peer acknowledged. A later term counts more than a
/// later time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Acknowledged {
    term: u64,
    at_ns: u64,
}

/// The purpose of a call, for its continuation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) peer: u64,
    at_ns: u64,
    /// The term of a leader's message in the call; 0 without one.
    leader_term: u64,
    has_snapshot: bool,
}

impl Links {
    pub(super) fn add(&mut self, peer: u64, session: Session) {
        let link = Link {
            peer,
            session,
            calls: 0,
            outbox: Vec::new(),
            acknowledged: Acknowledged::default(),
        };
        match self.place(peer) {
            Ok(place) => self.links[place] = link,
            Err(place) => self.links.insert(place, link),
        }
    }

    /// Removes an ended session, unless the peer has a newer session.
    pub(super) fn remove(&mut self, peer: u64, session: &Session) {
        let is_session = |place: &usize| self.links[*place].session.id() == session.id();
        if let Some(place) = self.place(peer).ok().filter(is_session) {
            self.links.remove(place);
            self.unreachable.push(peer);
            // The peer will not continue to fetch a snapshot either, or could not report its failure.
            self.unoffered.push(peer);
        }
    }

    pub(super) fn session(&self, peer: u64) -> Option<&Session> {
        self.place(peer).ok().map(|place| &self.links[place].session)
    }

    /// The position of a peer's link, or where it would be inserted.
    fn place(&self, peer: u64) -> Result<usize, usize> {
        self.links.binary_search_by_key(&peer, |link| link.peer)
    }

    fn get_mut(&mut self, peer: u64) -> Option<&mut Link> {
        let place = self.place(peer).ok()?;
        self.links.get_mut(place)
    }

    /// Removes and returns the peers found unreachable since the last call.
    pub(super) fn take_unreachable(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unreachable)
    }

    /// Removes and returns the peers with a lost snapshot offer since the last call.
    pub(super) fn take_unoffered(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unoffered)
    }

    /// The start of the last call that the peer acknowledged, with a leader's message of term `term`.
    pub(super) fn acknowledged_ns(&self, peer: u64, term: u64) -> Option<u64> {
        let acknowledged = self.links[self.place(peer).ok()?].acknowledged;
        (acknowledged.term == term).then_some(acknowledged.at_ns)
    }

    /// Queues a message for its addressee.
    pub(super) fn push(&mut self, message: Message) {
        let Some(link) = self.get_mut(message.to) else {
            self.note_dropped(&message);
            return;
        };
        if let Some(last) = link.outbox.last_mut().filter(|last| follows(last, &message)) {
            merge(last, message);
            self.counters.merged += 1;
            return;
        }
        if link.outbox.len() < OUTBOX_MAX {
            link.outbox.push(message);
        } else {
            self.note_dropped(&message);
        }
    }

    fn note_dropped(&mut self, message: &Message) {
        self.counters.dropped += 1;
        if !self.unreachable.contains(&message.to) {
            self.unreachable.push(message.to);
        }
        self.unoffered.extend(message.has_snapshot().then_some(message.to));
    }

    /// Sends the queued messages of every peer below its limit of calls.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, cluster: u64, shared: &Shared) {
        let (mut last, mut frame) = (None, Frame::None);
        for link in &mut self.links {
            if link.outbox.is_empty() || !may_send(link) {
                continue;
            }
            let messages = std::mem::take(&mut link.outbox);
            if is_repeated(&mut last, &messages) {
                self.counters.shared += 1;
            } else {
                frame = Frame::new(cx, cluster, &messages, &mut self.frame);
            }
            let leader_term = messages.iter().map(leader_term).max().unwrap_or(0);
            let has_snapshot = messages.iter().any(Message::has_snapshot);
            let sent = Sent { peer: link.peer, at_ns: cx.now().as_ns(), leader_term, has_snapshot };
            self.counters.calls += 1;
            if start(cx, link, &frame, sent, shared, &self.frame) {
                link.calls += 1;
            } else {
                self.counters.failed += 1;
                self.unreachable.push(link.peer);
                self.unoffered.extend(has_snapshot.then_some(link.peer));
            }
        }
    }

    pub(super) fn ended(&mut self, sent: Sent, reply: &Reply) {
        if reply.outcome.is_err() {
            self.counters.failed += 1;
            self.unreachable.push(sent.peer);
            self.unoffered.extend(sent.has_snapshot.then_some(sent.peer));
        }
        let Some(link) = self.get_mut(sent.peer) else { return };
        if link.session.id() != reply.session {
            return;
        }
        link.calls -= 1;
        let is_acknowledged = reply.message().is_ok_and(|answer| !is_rejection(answer));
        if is_acknowledged && sent.leader_term != 0 {
            link.acknowledged =
                link.acknowledged.max(Acknowledged { term: sent.leader_term, at_ns: sent.at_ns });
        }
    }
}

/// The term of a leader's message, else 0. A peer that processes a leader's message knows the leader, and votes for no
/// other replica for an election timeout.
pub(super) fn leader_term(message: &Message) -> u64 {
    match message.get_msg_type() {
        MessageType::MsgAppend | MessageType::MsgHeartbeat => message.term,
        _ => 0,
    }
}

/// Appends may wait for earlier calls; elections and heartbeats may not.
fn may_send(link: &Link) -> bool {
    let is_append = |message: &Message| message.get_msg_type() == MessageType::MsgAppend;
    link.calls < CALLS_MAX || (link.calls < URGENT_CALLS_MAX && !link.outbox.iter().all(is_append))
}

/// Returns true if an append's entries continue the previous append's.
fn follows(last: &Message, message: &Message) -> bool {
    let are_appends = [last, message].iter().all(|message| {
        message.get_msg_type() == MessageType::MsgAppend && message.term == last.term
    });
    are_appends
        && last
            .entries
            .last()
            .is_some_and(|entry| (entry.index, entry.term) == (message.index, message.log_term))
        && last.entries.iter().map(entry_bytes).sum::<usize>() <= APPEND_BYTES_MAX
}

/// Adds an append's entries to the previous append.
fn merge(last: &mut Message, mut message: Message) {
    last.entries.extend(message.take_entries());
    last.commit = last.commit.max(message.commit);
}

/// The identity of an append: two peers with equal values are sent equal frames.
#[derive(PartialEq, Eq)]
struct FrameKey {
    from: u64,
    term: u64,
    before: (u64, u64),
    commit: u64,
    entries: usize,
}

impl FrameKey {
    fn of(messages: &[Message]) -> Option<Self> {
        let [message] = messages else { return None };
        (message.get_msg_type() == MessageType::MsgAppend).then(|| Self {
            from: message.from,
            term: message.term,
            before: (message.index, message.log_term),
            commit: message.commit,
            entries: message.entries.len(),
        })
    }
}

/// Returns true if `messages` have the same frame as the previous messages, described by `last`. Messages without an
/// identity replace `last`, too, because their frame overwrites the previous frame.
fn is_repeated(last: &mut Option<FrameKey>, messages: &[Message]) -> bool {
    let this = FrameKey::of(messages);
    let is_same = this.is_some() && this == *last;
    *last = this;
    is_same
}

/// A frame: small frames are in `Links::frame`, others in memory shared by the calls.
enum Frame {
    Last,
    Shared(SharedMsg),
    /// No memory was available for the frame.
    None,
}

/// Least size of a frame that all recipients share; below, a copy is cheaper (see `petrel::endpoint::SharedMsg`).
const SHARED_BYTES_MIN: usize = 1025;

impl Frame {
    fn new(cx: &Context<'_>, cluster: u64, messages: &[Message], last: &mut Vec<u8>) -> Self {
        let bytes = frame_bytes(messages);
        if bytes < SHARED_BYTES_MIN {
            last.resize(bytes, 0);
            write_frame(cluster, messages, last);
            return Frame::Last;
        }
        let Ok(mut message) = cx.alloc(bytes) else { return Frame::None };
        message.set_len(bytes);
        write_frame(cluster, messages, &mut message);
        Frame::Shared(SharedMsg::from(message))
    }
}

fn start(
    cx: &mut Context<'_>,
    link: &Link,
    frame: &Frame,
    sent: Sent,
    shared: &Shared,
    last: &[u8],
) -> bool {
    let Ok(answer) = answer_buffer(cx) else { return false };
    let (session, shared) = (link.session.id(), shared.clone());
    let ended = move |cx: &mut Context<'_>, reply: Reply| shared.raft_ended(cx, sent, &reply);
    match frame {
        Frame::Last => match cx.alloc_message(last) {
            Ok(request) => cx
                .call(session, methods::RAFT, request)
                .into_buffer(answer)
                .then(move |_, cx, reply| ended(cx, reply))
                .is_ok(),
            Err(_) => false,
        },
        Frame::Shared(message) => cx
            .call(session, methods::RAFT, message)
            .into_buffer(answer)
            .then(move |_, cx, reply| ended(cx, reply))
            .is_ok(),
        Frame::None => false,
    }
}

fn answer_buffer(cx: &Context<'_>) -> Result<MsgBuf, petrel::Error> {
    let mut answer = cx.alloc(ANSWER_BYTES)?;
    answer.set_growth(ANSWER_BYTES_MAX);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::eraftpb::Entry;

    fn append(term: u64, index: u64, log_term: u64, entries: u64) -> Message {
        let mut message = Message { term, index, log_term, commit: index, ..Message::default() };
        message.set_msg_type(MessageType::MsgAppend);
        let entry = |place| Entry { index: index + place, term, ..Entry::default() };
        message.entries = (1..=entries).map(entry).collect::<Vec<_>>().into();
        message
    }

    #[test]
    fn merge__what_follows_in_one_term() {
        let (mut last, next) = (append(3, 10, 2, 2), append(3, 12, 3, 1));
        assert!(follows(&last, &next));
        merge(&mut last, next);
        assert_eq!(last.entries.iter().map(|entry| entry.index).collect::<Vec<_>>(), [11, 12, 13]);
        assert_eq!((last.index, last.log_term, last.commit), (10, 2, 12));
    }

    #[test]
    fn merge__nothing_else() {
        let last = append(3, 10, 2, 2);
        for other in [append(3, 13, 3, 1), append(3, 12, 2, 1), append(4, 12, 3, 1)] {
            assert!(!follows(&last, &other));
        }
        let mut heartbeat = append(3, 12, 3, 0);
        heartbeat.set_msg_type(MessageType::MsgHeartbeat);
        assert!(!follows(&last, &heartbeat));
        assert!(!follows(&append(3, 10, 2, 0), &append(3, 10, 2, 1)));
    }

    #[test]
    fn repeated__only_the_frame_before() {
        let (one, other) = ([append(3, 10, 2, 2)], [append(3, 12, 3, 1)]);
        let several = [append(3, 10, 2, 2), append(3, 9, 2, 1)];
        let mut last = None;
        assert!(!is_repeated(&mut last, &one));
        assert!(is_repeated(&mut last, &one));
        assert!(!is_repeated(&mut last, &other));
        assert!(!is_repeated(&mut last, &one), "the frame of another is there now");
        assert!(!is_repeated(&mut last, &several) && !is_repeated(&mut last, &several));
        assert!(!is_repeated(&mut last, &one), "that of several messages is there now");
    }

    #[test]
    fn acknowledged__the_later_term_counts() {
        let acknowledged = |term, at_ns| Acknowledged { term, at_ns };
        assert_eq!(acknowledged(3, 900).max(acknowledged(4, 800)), acknowledged(4, 800));
        assert_eq!(acknowledged(4, 900).max(acknowledged(4, 800)), acknowledged(4, 900));
        assert_eq!(acknowledged(4, 900).max(acknowledged(3, 950)), acknowledged(4, 900));
    }
}
