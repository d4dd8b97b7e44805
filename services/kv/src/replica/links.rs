//! The way to the other replicas: one session each, and what waits to be sent on it.
//!
//! Raft's messages go as calls, and what they cause comes back as their answers where it can. To a peer there are
//! few calls at a time: what comes up meanwhile waits, and appends that follow each other become one. So the batches
//! grow with the load by themselves.

use petrel::endpoint::SharedMsg;
use petrel::task::Session;
use petrel::{Context, MsgBuf, Reply};
use raft::eraftpb::{Message, MessageType};

use super::codec::{entry_bytes, frame_bytes, is_denial, write_frame};
use super::methods;
use super::shared::Shared;

/// Calls to a peer with messages of a window's worth. Two keep a peer busy while an answer is on its way; the
/// rest is for round trips that are longer than the work on a batch.
const CALLS_MAX: u32 = 4;

/// Calls to a peer of any kind: more of them on the way tell it nothing new.
const URGENT_CALLS_MAX: u32 = 7;

/// Bytes of entries that go in one call, about; a single entry may be larger.
const APPEND_BYTES_MAX: usize = 256 << 10;

/// Messages that wait for a peer at most. What is more is lost, which Raft mends.
const OUTBOX_MAX: usize = 256;

/// Room for an answer: a few messages without entries. Longer ones get more when they come.
const ANSWER_BYTES: usize = 512;
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The peers that can be reached.
#[derive(Default)]
pub(super) struct Links {
    /// In the order of their names, so that a run that is to be repeatable is.
    links: Vec<Link>,
    /// Peers whose messages were lost on this side.
    unreachable: Vec<u64>,
    /// Peers that have not got the offer of a snapshot.
    unoffered: Vec<u64>,
    frame: Vec<u8>,
    pub(super) counters: LinkCounters,
}

/// What happened on the way to peers.
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
    heard: Heard,
}

/// When the last call began that the peer has answered and that told it of its leader. A later term counts more
/// than a later time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Heard {
    term: u64,
    at_ns: u64,
}

/// What a call was for, when it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) peer: u64,
    at_ns: u64,
    /// The term of a message that tells who leads; 0 without one.
    leads_in: u64,
    has_snapshot: bool,
}

impl Links {
    /// A peer can be reached.
    pub(super) fn add(&mut self, peer: u64, session: Session) {
        let link = Link { peer, session, calls: 0, outbox: Vec::new(), heard: Heard::default() };
        match self.place(peer) {
            Ok(place) => self.links[place] = link,
            Err(place) => self.links.insert(place, link),
        }
    }

    /// A session has ended, if it still is the peer's.
    pub(super) fn remove(&mut self, peer: u64, session: &Session) {
        let is_session = |place: &usize| self.links[*place].session.id() == session.id();
        if let Some(place) = self.place(peer).ok().filter(is_session) {
            self.links.remove(place);
            self.unreachable.push(peer);
            // It will not go on fetching one either, or not say so.
            self.unoffered.push(peer);
        }
    }

    pub(super) fn session(&self, peer: u64) -> Option<&Session> {
        self.place(peer).ok().map(|place| &self.links[place].session)
    }

    /// Where a peer's link is, or would be.
    fn place(&self, peer: u64) -> Result<usize, usize> {
        self.links.binary_search_by_key(&peer, |link| link.peer)
    }

    fn get_mut(&mut self, peer: u64) -> Option<&mut Link> {
        let place = self.place(peer).ok()?;
        self.links.get_mut(place)
    }

    /// Peers that were found unreachable since the last time.
    pub(super) fn take_unreachable(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unreachable)
    }

    /// Peers to which the offer of a snapshot was lost since the last time.
    pub(super) fn take_unoffered(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unoffered)
    }

    /// When a peer was last told, and has confirmed, that the caller leads in this term.
    pub(super) fn heard_ns(&self, peer: u64, term: u64) -> Option<u64> {
        let heard = self.links[self.place(peer).ok()?].heard;
        (heard.term == term).then_some(heard.at_ns)
    }

    /// Takes a message for its addressee.
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

    /// Sends what may be sent now.
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
            let leads_in = messages.iter().map(leads_in).max().unwrap_or(0);
            let has_snapshot = messages.iter().any(Message::has_snapshot);
            let sent = Sent { peer: link.peer, at_ns: cx.now_ns(), leads_in, has_snapshot };
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

    /// A call has ended.
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
        let is_heard = reply.message().is_ok_and(|answer| !is_denial(answer));
        if is_heard && sent.leads_in != 0 {
            link.heard = link.heard.max(Heard { term: sent.leads_in, at_ns: sent.at_ns });
        }
    }
}

/// A peer that hears this knows who leads, and votes for nobody else for an election timeout.
pub(super) fn leads_in(message: &Message) -> u64 {
    match message.get_msg_type() {
        MessageType::MsgAppend | MessageType::MsgHeartbeat => message.term,
        _ => 0,
    }
}

/// Appends may wait for each other; elections and heartbeats may not.
fn may_send(link: &Link) -> bool {
    let is_append = |message: &Message| message.get_msg_type() == MessageType::MsgAppend;
    link.calls < CALLS_MAX || (link.calls < URGENT_CALLS_MAX && !link.outbox.iter().all(is_append))
}

/// Whether an append's entries go on where those of the one before end.
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

/// Puts an append's entries behind those of the one before.
fn merge(last: &mut Message, mut message: Message) {
    last.entries.extend(message.take_entries());
    last.commit = last.commit.max(message.commit);
}

/// What tells that two peers are sent the same: an append from the same log, to the same place of it.
#[derive(PartialEq, Eq)]
struct Alike {
    from: u64,
    term: u64,
    before: (u64, u64),
    commit: u64,
    entries: usize,
}

impl Alike {
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

/// Whether the frame of these messages is the one before, which is remembered as `last`, again. A frame that can be
/// like no other takes its place, too: what was written for it is what would be sent.
fn is_repeated(last: &mut Option<Alike>, messages: &[Message]) -> bool {
    let this = Alike::of(messages);
    let is_same = this.is_some() && this == *last;
    *last = this;
    is_same
}

/// A frame: the last one written, if it is small, else in memory that the calls share.
enum Frame {
    Last,
    Shared(SharedMsg),
    /// There was no memory for it.
    None,
}

/// From here on messages lie in memory once for all who get them; below, a copy is cheaper
/// (see `petrel::endpoint::SharedMsg`).
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
    fn heard__the_later_term_counts() {
        let heard = |term, at_ns| Heard { term, at_ns };
        assert_eq!(heard(3, 900).max(heard(4, 800)), heard(4, 800));
        assert_eq!(heard(4, 900).max(heard(4, 800)), heard(4, 900));
        assert_eq!(heard(4, 900).max(heard(3, 950)), heard(4, 900));
    }
}
