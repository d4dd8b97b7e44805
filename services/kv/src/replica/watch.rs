//! Watchers: streams of the changes of a range (`docs/kv-protocol.md` §11).
//!
//! A watcher reads the history of the store by a position of its own, and has no queue but the windows of its stream.
//! So a slow watcher delays nothing, and ends when the history has lost the next changes. A watcher that has all
//! changes is *idle*, and costs nothing until a change of its range comes: watchers of one key or of a prefix are found by
//! the key. Each change is compared with all other ranges.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use petrel::service::Ctx;
use petrel::stream::Sender;
use petrel::{Error, Status};

use super::shared::{Shared, State};
use crate::api::{Changes, Compacted, WatchMessage, WatchRequest, Watching};
use crate::limits::WATCH_MESSAGE_BYTES_MAX;
use crate::store::{History, Store};
use crate::wire::after_prefix;

/// Time without a message after which an idle watcher is told the revision, if that has risen: a client that begins
/// again needs no older history then.
const PROGRESS: Duration = Duration::from_secs(1);

/// Changes that a watcher looks at in one piece.
const SEARCH_MAX: usize = 2_048;

/// Bytes that a watcher sends in one piece, if it finds them at once.
const PIECE_BYTES_MAX: usize = 16 << 10;

/// Bytes that a look at a change counts for: either limit ends a piece.
const LOOK_BYTES: usize = PIECE_BYTES_MAX / SEARCH_MAX;

/// Watchers that go on with a further piece in a round of the event loop: the replica's own work waits for them.
const TURNS: usize = 8;

/// Election timeouts without a leader after which watchers end: the replica may be cut off, and another one not.
pub(super) const LEADERLESS_ELECTIONS: usize = 2;

/// All watchers of a replica.
pub(super) struct Watchers {
    most: usize,
    all: BTreeMap<u64, Watcher>,
    last_id: u64,
    by_key: HashMap<Box<[u8]>, BTreeSet<u64>>,
    by_prefix: HashMap<Box<[u8]>, BTreeSet<u64>>,
    /// The numbers of different prefixes by their lengths.
    prefix_lengths: BTreeMap<usize, usize>,
    by_range: BTreeSet<u64>,
    /// Watchers that are not idle, by the next revision that each needs.
    behind: BTreeSet<(u64, u64)>,
    /// The last revision that was compared with the ranges of idle watchers.
    noted: u64,
    /// Turns that no watcher has, and the watchers that wait for one.
    turns: usize,
    waiting: VecDeque<u64>,
    /// Watchers that have ended because the history had lost their next changes.
    overtaken: u64,
}

struct Watcher {
    from: Box<[u8]>,
    until: Option<Box<[u8]>>,
    /// The next revision that the watcher needs. None: it is idle.
    next: Option<u64>,
    turn: Turn,
    waker: Option<Waker>,
}

/// Whether a watcher with much to send goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    None,
    Waits,
    Has,
}

/// How a watcher is found by a key.
enum Kind<'a> {
    Key(&'a [u8]),
    Prefix(&'a [u8]),
    Range,
}

impl Watcher {
    fn has(&self, key: &[u8]) -> bool {
        key >= &*self.from && self.until.as_deref().is_none_or(|until| key < until)
    }

    fn kind(&self) -> Kind<'_> {
        let (from, until) = (&*self.from, self.until.as_deref());
        if until.is_some_and(|until| until.strip_prefix(from) == Some(&[0])) {
            Kind::Key(from)
        } else if until == after_prefix(from).as_deref() {
            Kind::Prefix(from)
        } else {
            Kind::Range
        }
    }
}

impl Watchers {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            all: BTreeMap::new(),
            last_id: 0,
            by_key: HashMap::new(),
            by_prefix: HashMap::new(),
            prefix_lengths: BTreeMap::new(),
            by_range: BTreeSet::new(),
            behind: BTreeSet::new(),
            noted: 0,
            turns: TURNS,
            waiting: VecDeque::new(),
            overtaken: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn overtaken(&self) -> u64 {
        self.overtaken
    }

    /// Adds a watcher, and returns its number; none if there are as many as may.
    fn add(&mut self, wanted: &WatchRequest<'_>) -> Option<u64> {
        if self.all.len() >= self.most {
            return None;
        }
        self.last_id += 1;
        let (from, until) = (wanted.from.into(), wanted.until.map(Into::into));
        let next = Some(wanted.revision);
        let watcher = Watcher { from, until, next, turn: Turn::None, waker: None };
        match watcher.kind() {
            Kind::Key(key) => self.by_key.entry(key.into()).or_default().insert(self.last_id),
            Kind::Prefix(prefix) => {
                let same = self.by_prefix.entry(prefix.into()).or_default();
                if same.is_empty() {
                    *self.prefix_lengths.entry(prefix.len()).or_default() += 1;
                }
                same.insert(self.last_id)
            }
            Kind::Range => self.by_range.insert(self.last_id),
        };
        self.behind.insert((wanted.revision, self.last_id));
        self.all.insert(self.last_id, watcher);
        Some(self.last_id)
    }

    fn remove(&mut self, id: u64) {
        self.give_turn_back(id);
        let watcher = self.all.remove(&id).expect("a watcher is removed once");
        if let Some(next) = watcher.next {
            self.behind.remove(&(next, id));
        }
        match watcher.kind() {
            Kind::Key(key) => drop(forget(&mut self.by_key, key, id)),
            Kind::Prefix(prefix) => {
                if forget(&mut self.by_prefix, prefix, id) {
                    let length = self.prefix_lengths.get_mut(&prefix.len());
                    let count = length.expect("the lengths of all prefixes are counted");
                    *count -= 1;
                    if *count == 0 {
                        self.prefix_lengths.remove(&prefix.len());
                    }
                }
            }
            Kind::Range => assert!(self.by_range.remove(&id), "a range is found among the ranges"),
        }
    }

    /// Takes a turn if one is left and no other watcher has waited for longer.
    fn poll_turn(&mut self, id: u64, cx: &Context<'_>) -> Poll<()> {
        let is_first = self.waiting.front().is_none_or(|first| *first == id);
        if self.turns == 0 || !is_first {
            let watcher = self.all.get_mut(&id).expect("the watcher exists");
            if watcher.turn == Turn::None {
                watcher.turn = Turn::Waits;
                self.waiting.push_back(id);
            }
            return self.wait(id, cx);
        }
        self.waiting.pop_front();
        self.turns -= 1;
        self.all.get_mut(&id).expect("the watcher exists").turn = Turn::Has;
        self.wake_first();
        Poll::Ready(())
    }

    /// Ends the turn of a watcher, or its wait for one.
    fn give_turn_back(&mut self, id: u64) {
        let watcher = self.all.get_mut(&id).expect("the watcher exists");
        match std::mem::replace(&mut watcher.turn, Turn::None) {
            Turn::None => return,
            Turn::Waits => self.waiting.retain(|other| *other != id),
            Turn::Has => self.turns += 1,
        }
        assert!(self.turns <= TURNS, "a turn is given back once");
        self.wake_first();
    }

    /// Wakes the watcher that has the next turn, if one is left.
    fn wake_first(&mut self) {
        if let (1.., Some(first)) = (self.turns, self.waiting.front()) {
            self.all.get_mut(first).expect("the watcher exists").wake();
        }
    }

    /// Sets the next revision that a watcher needs. None makes it idle.
    fn set(&mut self, id: u64, next: Option<u64>) {
        let watcher = self.all.get_mut(&id).expect("the watcher exists");
        if watcher.next == next {
            return;
        }
        let before = std::mem::replace(&mut watcher.next, next);
        if let Some(before) = before {
            self.behind.remove(&(before, id));
        }
        if let Some(next) = next {
            self.behind.insert((next, id));
        }
    }

    /// The next revision that a watcher needs, or that it has not been compared with.
    fn next(&self, id: u64) -> u64 {
        self.all[&id].next.unwrap_or(self.noted + 1)
    }

    /// Wakes the idle watchers whose ranges have new changes, and those whose next changes are gone.
    pub(super) fn note(&mut self, store: &Store) {
        let (history, noted) = (store.history(), self.noted);
        self.noted = store.revision();
        if self.all.is_empty() {
            return;
        }
        let first = history.first();
        if first > noted + 1 {
            // The changes between are unknown: the state was replaced, or the history is short.
            let idle = self.all.iter().filter(|(_, watcher)| watcher.next.is_none());
            let idle: Vec<u64> = idle.map(|(id, _)| *id).collect();
            idle.into_iter().for_each(|id| self.set(id, Some(noted + 1)));
        }
        for revision in history.from(first.max(noted + 1)) {
            for change in revision.changes() {
                self.note_change(change.key, revision.number);
            }
        }
        for (_, id) in self.behind.range(..(first, 0)) {
            self.all.get_mut(id).expect("the watcher exists").wake();
        }
    }

    fn note_change(&mut self, key: &[u8], revision: u64) {
        let of_key = self.by_key.get(key).into_iter().flatten();
        let prefixes = self.prefix_lengths.range(..=key.len()).map(|(length, _)| &key[..*length]);
        let of_prefix = prefixes.filter_map(|prefix| self.by_prefix.get(prefix)).flatten();
        let of_range = self.by_range.iter().filter(|id| self.all[*id].has(key));
        let idle = of_key.chain(of_prefix).chain(of_range);
        let idle = idle.filter(|id| self.all[*id].next.is_none());
        let idle: Vec<u64> = idle.copied().collect();
        for id in idle {
            self.set(id, Some(revision));
            self.all.get_mut(&id).expect("the watcher exists").wake();
        }
    }

    /// Wakes all watchers: they end.
    pub(super) fn wake_all(&mut self) {
        self.all.values_mut().for_each(Watcher::wake);
    }
}

/// Removes a watcher. Returns true if it was the last one of its key or prefix.
fn forget(found_by: &mut HashMap<Box<[u8]>, BTreeSet<u64>>, bytes: &[u8], id: u64) -> bool {
    let same = found_by.get_mut(bytes).expect("a watcher is found by its key or prefix");
    assert!(same.remove(&id), "a watcher is found by its key or prefix");
    let is_last = same.is_empty();
    if is_last {
        found_by.remove(bytes);
    }
    is_last
}

impl Watcher {
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Returns true if watchers may see changes here: the replica leads, or hears of a leader. A learner that hears of none for long
    /// still remembers the last one.
    pub(super) fn serves_watchers(&self) -> bool {
        let most = LEADERLESS_ELECTIONS * self.config.election_ticks();
        let Some(member) = &self.member else { return false };
        let hears = self.leaderless_ticks() < most && member.raft.raft.election_elapsed < most;
        hears || member.leads()
    }

    fn compacted(&self, history: &History) -> Error {
        Compacted { first: history.first(), node: self.config.node }.error()
    }
}

/// The place of a watcher in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    revision: u64,
    /// Changes of the range and the revision that were sent.
    sent: usize,
}

/// What a history has for a watcher.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The message has changes.
    Changes,
    /// Nothing yet, but the search is not at its end.
    More,
    Nothing,
}

impl Position {
    /// Looks for the next changes of a range, puts them into `message`, and goes behind them. The history ends with the
    /// revision `last`. Returns the number of changes that it looked at, too.
    fn search(
        &mut self,
        history: &History,
        last: u64,
        wanted: &WatchRequest<'_>,
        message: &mut Vec<u8>,
    ) -> (Found, usize) {
        let (mut changes, mut looked) = (Vec::new(), 0);
        for revision in history.from(self.revision) {
            if looked >= SEARCH_MAX {
                return (Found::More, looked);
            }
            if revision.number > self.revision {
                *self = Self { revision: revision.number, sent: 0 };
            }
            let mut is_last = true;
            let own = revision.changes().inspect(|_| looked += 1);
            for change in own.filter(|change| wanted.has(change.key)).skip(self.sent) {
                is_last =
                    changes.is_empty() || changes.len() + change.len() <= WATCH_MESSAGE_BYTES_MAX;
                if !is_last {
                    break;
                }
                change.write(&mut changes);
                self.sent += 1;
            }
            if is_last {
                *self = Self { revision: revision.number + 1, sent: 0 };
            }
            if !changes.is_empty() {
                let (revision, changes) = (revision.number, Changes::of(&changes));
                WatchMessage::Changes { revision, is_last, changes }.encode(message);
                return (Found::Changes, looked);
            }
        }
        self.revision = self.revision.max(last + 1);
        (Found::Nothing, looked)
    }
}

/// A watcher's place among all of a replica, until it is dropped.
struct Place {
    shared: Shared,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.borrow_mut().watchers.remove(self.id);
    }
}

impl Watching for Shared {
    async fn watch(
        &self,
        _: &Ctx,
        request: Vec<u8>,
        mut stream: Sender<Vec<u8>>,
    ) -> Result<(), Error> {
        let wanted = WatchRequest::decode(&request)
            .map_err(|error| Error::new(Status::InvalidArgument, error.to_string()))?;
        let place = Place::new(self, &wanted)?;
        let handle = self.borrow().handle.clone();
        let mut at = Position { revision: wanted.revision, sent: 0 };
        // The first message says that the watcher has its place, even if nothing has changed.
        let (mut is_due, mut told, mut message) = (true, None, Vec::new());
        let mut piece_bytes = 0;
        loop {
            message.clear();
            message.shrink_to(2 * WATCH_MESSAGE_BYTES_MAX);
            let (found, revision) =
                place.search(&wanted, &mut at, &mut message, &mut piece_bytes)?;
            match found {
                Found::Changes => {
                    place.send(&mut stream, &message, at.revision).await?;
                    (is_due, told) = (false, Some(at.revision - 1));
                }
                Found::More => {}
                Found::Nothing if is_due && told.is_none_or(|told| revision > told) => {
                    WatchMessage::Progress { revision }.encode(&mut message);
                    place.send(&mut stream, &message, at.revision).await?;
                    (is_due, told) = (false, Some(revision));
                }
                Found::Nothing => {
                    piece_bytes = 0;
                    is_due = handle.timeout(PROGRESS, place.change()).await.is_err();
                }
            }
            if piece_bytes >= PIECE_BYTES_MAX {
                piece_bytes = 0;
                place.turn().await;
            }
        }
    }
}

impl Place {
    fn new(shared: &Shared, wanted: &WatchRequest<'_>) -> Result<Self, Error> {
        let mut state = shared.borrow_mut();
        if !state.serves_watchers() {
            return Err(without_leader());
        }
        let most = state.config.watchers_max;
        let id = state.watchers.add(wanted).ok_or_else(|| {
            let text = format!("the replica has {most} watchers already");
            Error::new(Status::ResourceExhausted, text)
        })?;
        Ok(Self { shared: shared.clone(), id })
    }

    /// Looks for changes from a position on. Without any, the watcher is idle. Returns the revision of the store, too.
    fn search(
        &self,
        wanted: &WatchRequest<'_>,
        at: &mut Position,
        message: &mut Vec<u8>,
        piece_bytes: &mut usize,
    ) -> Result<(Found, u64), Error> {
        let state = &mut *self.shared.borrow_mut();
        if !state.serves_watchers() {
            return Err(without_leader());
        }
        let Some(member) = &state.member else { unreachable!("it serves watchers") };
        let (store, next) = (&member.store, state.watchers.next(self.id));
        if next > at.revision {
            *at = Position { revision: next, sent: 0 };
        }
        if at.revision < store.history().first() {
            state.watchers.overtaken += 1;
            return Err(state.compacted(store.history()));
        }
        let (found, looked) = at.search(store.history(), store.revision(), wanted, message);
        *piece_bytes += looked * LOOK_BYTES + message.len();
        let next = (found != Found::Nothing).then_some(at.revision);
        state.watchers.set(self.id, next);
        if next.is_none() {
            state.watchers.give_turn_back(self.id);
        }
        Ok((found, store.revision()))
    }

    /// Lets other tasks run, and waits until few other watchers have much to send. Watchers that have fallen behind together,
    /// as after a change of the leader, would hold the replica's own work up.
    async fn turn(&self) {
        self.shared.borrow_mut().watchers.give_turn_back(self.id);
        yield_once().await;
        poll_fn(|cx| {
            let state = &mut *self.shared.borrow_mut();
            if state.serves_watchers() {
                state.watchers.poll_turn(self.id, cx)
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    /// Waits until a change of the range has come, or the watcher has to end.
    async fn change(&self) {
        poll_fn(|cx| {
            let state = &mut *self.shared.borrow_mut();
            let is_idle = state.serves_watchers() && state.watchers.all[&self.id].next.is_none();
            if is_idle { state.watchers.wait(self.id, cx) } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Sends a message. If the reader is slower than the history, the stream ends at once.
    async fn send(
        &self,
        stream: &mut Sender<Vec<u8>>,
        message: &[u8],
        next: u64,
    ) -> Result<(), Error> {
        let is_overtaken = {
            let mut sending = pin!(stream.send_bytes(message));
            poll_fn(|cx| match sending.as_mut().poll(cx) {
                Poll::Ready(sent) => Poll::Ready(sent.map(|()| false)),
                Poll::Pending => self.poll_overtaken(next, cx).map(|()| Ok(true)),
            })
            .await?
        };
        if !is_overtaken {
            return Ok(());
        }
        let state = &mut *self.shared.borrow_mut();
        let error = match &state.member {
            Some(member) if state.serves_watchers() => {
                state.watchers.overtaken += 1;
                state.compacted(member.store.history())
            }
            _ => without_leader(),
        };
        stream.reset(&error);
        Err(error)
    }

    /// Waits until the history has lost a revision, or the watcher has to end.
    fn poll_overtaken(&self, next: u64, cx: &Context<'_>) -> Poll<()> {
        let state = &mut *self.shared.borrow_mut();
        let is_there = |state: &State| {
            state.member.as_ref().is_some_and(|member| next >= member.store.history().first())
        };
        if !(state.serves_watchers() && is_there(state)) {
            return Poll::Ready(());
        }
        state.watchers.set(self.id, Some(next));
        // A reader without credit for more uses no turn.
        state.watchers.give_turn_back(self.id);
        state.watchers.wait(self.id, cx)
    }
}

impl Watchers {
    fn wait(&mut self, id: u64, cx: &Context<'_>) -> Poll<()> {
        self.all.get_mut(&id).expect("the watcher exists").waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Lets other tasks run.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn without_leader() -> Error {
    Error::new(Status::Unavailable, "this replica knows no leader, and may lack changes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Op};

    fn put(store: &mut Store, key: &[u8]) -> u64 {
        let op = Op::Put { key, value: b"value" };
        let sequence = store.applied();
        let write = Command::Write { session: 1, sequence, first_pending: sequence, op };
        store.apply(store.applied() + 1, &write.to_vec(), &mut Vec::new());
        store.revision()
    }

    fn store() -> Store {
        let mut store = Store::new();
        store.apply(1, &Command::OpenSession.to_vec(), &mut Vec::new());
        store
    }

    fn wanted<'a>(from: &'a [u8], until: Option<&'a [u8]>) -> WatchRequest<'a> {
        WatchRequest { revision: 1, from, until }
    }

    #[test]
    fn note__finds_the_idle_watchers_of_a_change() {
        let (mut store, mut watchers) = (store(), Watchers::new(4));
        let all = [
            wanted(b"a", Some(b"a\0")),
            wanted(b"b", Some(b"b\0")),
            wanted(b"b", Some(b"c")),
            wanted(b"am", None),
        ];
        let all = all.map(|wanted| watchers.add(&wanted).unwrap());
        assert_eq!(watchers.add(&wanted(b"a", None)), None, "there are as many as may");
        watchers.note(&store);
        let next = |watchers: &Watchers| all.map(|id| watchers.all[&id].next);
        assert_eq!(next(&watchers), [Some(1); 4], "none is idle");
        all.iter().for_each(|id| watchers.set(*id, None));
        let first = put(&mut store, b"b");
        put(&mut store, b"b");
        watchers.note(&store);
        assert_eq!(next(&watchers), [None, Some(first), Some(first), Some(first)]);
        assert_eq!(watchers.next(all[0]), store.revision() + 1);
        all.iter().for_each(|id| watchers.set(*id, None));
        let second = put(&mut store, b"bb");
        watchers.note(&store);
        assert_eq!(next(&watchers), [None, None, Some(second), Some(second)]);
        // The history loses changes before they were compared with the ranges.
        store.set_history_bytes_max(0);
        let third = [b"a", b"c"].map(|key| put(&mut store, key))[0];
        watchers.note(&store);
        assert_eq!(next(&watchers), [Some(third), Some(third), Some(second), Some(second)]);
        // Each of few watchers has a turn, and the next one is the one that has waited for longest.
        let turn = |watchers: &mut Watchers, id| {
            watchers.poll_turn(id, &Context::from_waker(Waker::noop())).is_ready()
        };
        watchers.turns = 2;
        let got = all.map(|id| turn(&mut watchers, id));
        assert_eq!(got, [true, true, false, false]);
        watchers.give_turn_back(all[1]);
        assert_eq!([3, 2].map(|at| turn(&mut watchers, all[at])), [false, true]);
        watchers.turns += TURNS - 2;
        all.into_iter().for_each(|id| watchers.remove(id));
        assert!(watchers.by_key.is_empty() && watchers.by_range.is_empty());
        assert!(watchers.by_prefix.is_empty() && watchers.prefix_lengths.is_empty());
        assert!(watchers.behind.is_empty() && watchers.len() == 0);
        assert!(watchers.turns == TURNS && watchers.waiting.is_empty());
    }

    #[test]
    fn search__goes_on_after_many_changes_of_other_keys() {
        let mut store = store();
        for _ in 0..SEARCH_MAX {
            put(&mut store, b"other");
        }
        let revision = put(&mut store, b"key");
        let wanted = wanted(b"key", Some(b"kez"));
        let mut message = Vec::new();
        let mut at = Position { revision: 1, sent: 0 };
        let mut search = |at: &mut Position| {
            message.clear();
            at.search(store.history(), store.revision(), &wanted, &mut message)
        };
        assert_eq!(search(&mut at), (Found::More, SEARCH_MAX));
        assert_eq!(search(&mut at), (Found::Changes, 1));
        assert_eq!(at, Position { revision: revision + 1, sent: 0 });
        assert_eq!(search(&mut at), (Found::Nothing, 0));
        assert_eq!(at.revision, store.revision() + 1);
    }
}
