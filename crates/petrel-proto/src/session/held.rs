//! Accounts for the memory that server slots hold for messages of several packets: half-arrived requests and
//! kept answers (`docs/wire-protocol.md` §6.4).
//!
//! Every holding has an entry in one of two lists, the longest untouched in front. A touch writes one field;
//! the entry moves to the back when a search finds it in front. Thus a packet costs one store, and a search
//! for idle holdings ends at the first young holding.
//!
//! Small answers have no entry: they stay in the slot for the next answer, and the fast path does not use
//! this module.

use std::collections::BTreeMap;

use super::{PeerKey, SessionId};
use crate::limits::{
    ARRIVING_NS_PER_BYTE, ARRIVING_SHORT_NS, HELD_LOOKS_MAX, HELD_SHARE_OF_ACCOUNT,
    HELD_SHARE_OF_ALL, HELD_SHARE_OF_PEER, HELD_SHARE_OF_SESSION,
};

const NIL: u32 = u32::MAX;

/// Most entries in [`Held::by_peer`] before entries of peers without holdings are removed.
const PEERS_KEPT_MAX: usize = 1024;

/// Entries that need no allocation later: messages of few clients. How many arrive at a time is the scheduler's choice.
const ENTRIES_AT_START: usize = 32;

/// Names a holding. A slot without a holding has [`HoldingId::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldingId(u32);

impl HoldingId {
    pub(crate) const NONE: Self = Self(NIL);

    #[inline(always)]
    pub(crate) fn is_some(self) -> bool {
        self.0 != NIL
    }
}

/// The kind of message that a slot holds memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldingKind {
    Arriving,
    Answer,
    /// A complete request that waits for earlier requests (§14.6). Short memory does not end it.
    Early,
}

/// The slot, session and peer that hold the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) session: SessionId,
    pub(crate) slot: usize,
    pub(crate) peer: PeerKey,
}

/// The limit that a holding would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The share of a session.
    Session(SessionId),
    /// The share of a peer.
    Peer(PeerKey),
    /// The share of an account.
    Account(u64),
    /// The memory of the endpoint.
    All,
}

#[derive(Clone, Copy, Debug)]
struct Holding {
    holder: Holder,
    /// The account of the holder's peer when the holding began.
    account: Option<u64>,
    kind: HoldingKind,
    bytes: u64,
    began_ns: u64,
    /// The time by which the list is ordered, and the time of the last touch.
    since_ns: u64,
    touched_ns: u64,
    before: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

/// All holdings of an endpoint.
#[derive(Debug)]
pub(crate) struct Held {
    nodes: Vec<Holding>,
    free: u32,
    lists: [List; 3],
    count: u32,
    bytes: u64,
    /// Bytes held, by the index of the session.
    by_session: Vec<u64>,
    /// Bytes held by peer. Entries of peers without holdings remain for a while, to save allocations.
    by_peer: BTreeMap<u32, u64>,
    /// The accounts of peers that have one.
    accounts: BTreeMap<u32, u64>,
    /// Bytes held by account, for accounts with holdings.
    by_account: BTreeMap<u64, u64>,
    session_bytes_max: u64,
    peer_bytes_max: u64,
    account_bytes_max: u64,
    bytes_max: u64,
    /// The current time, at most a few frames old.
    now_ns: u64,
}

impl Held {
    /// Starts the account of an endpoint that has `memory_bytes` for messages.
    pub(crate) fn new(now_ns: u64, memory_bytes: u64) -> Self {
        Self {
            nodes: Vec::with_capacity(ENTRIES_AT_START),
            free: NIL,
            lists: [List { first: NIL, last: NIL }; 3],
            count: 0,
            bytes: 0,
            by_session: Vec::new(),
            by_peer: BTreeMap::new(),
            accounts: BTreeMap::new(),
            by_account: BTreeMap::new(),
            session_bytes_max: memory_bytes / HELD_SHARE_OF_SESSION,
            peer_bytes_max: memory_bytes / HELD_SHARE_OF_PEER,
            account_bytes_max: memory_bytes / HELD_SHARE_OF_ACCOUNT,
            bytes_max: memory_bytes - memory_bytes / HELD_SHARE_OF_ALL,
            now_ns,
        }
    }

    /// Has the further holdings of a peer count for an account, or for none.
    pub(crate) fn set_account(&mut self, peer: PeerKey, account: Option<u64>) {
        match account {
            Some(account) => self.accounts.insert(peer.0, account),
            None => self.accounts.remove(&peer.0),
        };
    }

    /// Returns the current time, at most a few frames old.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    #[inline]
    pub(crate) fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks that `bytes` more are within all limits. A session, peer or account without holdings may hold one
    /// message of any size.
    pub(crate) fn check(&self, holder: Holder, bytes: u64) -> Result<(), Shortage> {
        let of_session = self.of_session(holder.session);
        let of_peer = self.by_peer.get(&holder.peer.0).copied().unwrap_or(0);
        let account = self.accounts.get(&holder.peer.0);
        let of_account = account.and_then(|account| self.by_account.get(account)).copied();
        if of_session > 0 && of_session + bytes > self.session_bytes_max {
            Err(Shortage::Session(holder.session))
        } else if of_peer > 0 && of_peer + bytes > self.peer_bytes_max {
            Err(Shortage::Peer(holder.peer))
        } else if of_account.is_some_and(|held| held + bytes > self.account_bytes_max) {
            Err(Shortage::Account(*account.expect("an account with holdings")))
        } else if self.bytes + bytes > self.bytes_max {
            Err(Shortage::All)
        } else {
            Ok(())
        }
    }

    /// Returns the bytes that a session holds.
    pub(crate) fn of_session(&self, session: SessionId) -> u64 {
        self.by_session.get(session.index as usize).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, kind: HoldingKind, holder: Holder, bytes: u64) -> HoldingId {
        assert!(bytes > 0, "a holding has bytes");
        let now_ns = self.now_ns;
        let account = self.accounts.get(&holder.peer.0).copied();
        let holding = Holding {
            holder,
            account,
            kind,
            bytes,
            began_ns: now_ns,
            since_ns: now_ns,
            touched_ns: now_ns,
            before: NIL,
            next: NIL,
        };
        let index = self.allocate(holding);
        self.append(index);
        self.count += 1;
        self.bytes += bytes;
        let place = holder.session.index as usize;
        if self.by_session.len() <= place {
            self.by_session.resize(place + 1, 0);
        }
        self.by_session[place] += bytes;
        assert!(
            self.count as usize <= self.nodes.len() && self.by_session[place] <= self.bytes,
            "a holding has an entry, and a session holds no more than its endpoint"
        );
        if self.by_peer.len() >= PEERS_KEPT_MAX && !self.by_peer.contains_key(&holder.peer.0) {
            self.by_peer.retain(|_, bytes| *bytes > 0);
        }
        let of_peer = self.by_peer.entry(holder.peer.0).or_insert(0);
        *of_peer += bytes;
        assert!(*of_peer <= self.bytes, "a peer holds no more than the endpoint");
        if let Some(account) = account {
            *self.by_account.entry(account).or_insert(0) += bytes;
        }
        HoldingId(index)
    }

    pub(crate) fn remove(&mut self, id: &mut HoldingId) {
        let HoldingId(index) = std::mem::replace(id, HoldingId::NONE);
        let Holding { holder, account, bytes, .. } = *self.live(index);
        self.unlink(index);
        assert!(
            self.count > 0 && bytes <= self.bytes,
            "no more memory is released than the endpoint holds"
        );
        assert!(
            bytes <= self.of_session(holder.session),
            "no more memory is released than the session holds"
        );
        // No live holding is empty.
        self.nodes[index as usize].bytes = 0;
        self.nodes[index as usize].next = self.free;
        self.free = index;
        self.count -= 1;
        self.bytes -= bytes;
        self.by_session[holder.session.index as usize] -= bytes;
        let of_peer = self.by_peer.get_mut(&holder.peer.0).expect("the peer holds something");
        assert!(bytes <= *of_peer, "no more memory is released than the peer holds");
        *of_peer -= bytes;
        if let Some(account) = account {
            let of_account =
                self.by_account.get_mut(&account).expect("the account holds something");
            assert!(bytes <= *of_account, "no more memory is released than the account holds");
            *of_account -= bytes;
            if *of_account == 0 {
                self.by_account.remove(&account);
            }
        }
        assert!(self.count > 0 || self.bytes == 0, "who holds nothing holds no bytes");
    }

    /// Notes that the client has asked for an answer or sent more of a request.
    #[inline]
    pub(crate) fn touch(&mut self, id: HoldingId) {
        if id.is_some() {
            let now_ns = self.now_ns;
            let holding = &mut self.nodes[id.0 as usize];
            assert!(holding.bytes > 0, "a holding is touched before it is released");
            holding.touched_ns = now_ns;
        }
    }

    /// Returns a holding that was not released.
    fn live(&self, index: u32) -> &Holding {
        assert!(index != NIL, "a slot without a holding names none");
        let holding = &self.nodes[index as usize];
        assert!(holding.bytes > 0, "a holding is released once");
        holding
    }

    pub(crate) fn holder(&self, id: HoldingId) -> (Holder, HoldingKind) {
        let Holding { holder, kind, .. } = *self.live(id.0);
        (holder, kind)
    }

    /// Returns holdings that were untouched for `idle_ns` and whose end relieves the shortage, the longest
    /// untouched first. Stops when they hold `bytes` in total, or after [`HELD_LOOKS_MAX`] checks. Where
    /// memory is short, requests that arrive too slowly are included, touched or not.
    pub(crate) fn idle(
        &mut self,
        kind: HoldingKind,
        idle_ns: u64,
        shortage: Option<Shortage>,
        bytes: u64,
    ) -> Vec<HoldingId> {
        let now_ns = self.now_ns;
        let (mut found, mut found_bytes) = (Vec::new(), 0);
        let mut at = self.lists[kind as usize].first;
        for _ in 0..HELD_LOOKS_MAX {
            if at == NIL || found_bytes >= bytes {
                break;
            }
            let index = at;
            let node = self.nodes[index as usize];
            if now_ns.saturating_sub(node.since_ns) < idle_ns {
                break;
            }
            at = node.next;
            let is_idle = now_ns.saturating_sub(node.touched_ns) >= idle_ns;
            let is_wanted = match shortage {
                Some(Shortage::Session(session)) => node.holder.session == session,
                Some(Shortage::Peer(peer)) => node.holder.peer == peer,
                Some(Shortage::Account(account)) => node.account == Some(account),
                Some(Shortage::All) | None => true,
            };
            if is_idle || shortage.is_some() && node.is_too_slow(now_ns) {
                if is_wanted {
                    found.push(HoldingId(index));
                    found_bytes += node.bytes;
                }
                continue;
            }
            self.unlink(index);
            self.nodes[index as usize].since_ns = node.touched_ns;
            self.append(index);
        }
        assert!(found_bytes <= self.bytes, "no more is found than is held");
        found
    }

    fn append(&mut self, index: u32) {
        let Holding { kind, bytes, .. } = self.nodes[index as usize];
        assert!(bytes > 0, "a holding is in a list until it is released");
        let list = &mut self.lists[kind as usize];
        assert!((list.first == NIL) == (list.last == NIL), "a list has two ends or none");
        let last = std::mem::replace(&mut list.last, index);
        match last {
            NIL => list.first = index,
            last => self.nodes[last as usize].next = index,
        }
        let node = &mut self.nodes[index as usize];
        (node.before, node.next) = (last, NIL);
    }

    fn unlink(&mut self, index: u32) {
        let Holding { before, next, kind, .. } = self.nodes[index as usize];
        let list = &mut self.lists[kind as usize];
        let to_this = match before {
            NIL => &mut list.first,
            before => &mut self.nodes[before as usize].next,
        };
        assert!(*to_this == index, "a holding and the one before it name each other");
        *to_this = next;
        let to_this = match next {
            NIL => &mut list.last,
            next => &mut self.nodes[next as usize].before,
        };
        assert!(*to_this == index, "a holding and the one behind it name each other");
        *to_this = before;
    }

    fn allocate(&mut self, holding: Holding) -> u32 {
        if self.free == NIL {
            assert_eq!(
                self.count as usize,
                self.nodes.len(),
                "each entry of a holding that was released is free again"
            );
            self.nodes.push(holding);
            return self.nodes.len() as u32 - 1;
        }
        let index = self.free;
        assert!(self.nodes[index as usize].bytes == 0, "a free entry holds nothing");
        self.free = self.nodes[index as usize].next;
        self.nodes[index as usize] = holding;
        index
    }
}

impl Holding {
    /// Returns true if a request's arrival takes longer than one second plus the time allowed for its bytes.
    fn is_too_slow(&self, now_ns: u64) -> bool {
        let allowed_ns = ARRIVING_SHORT_NS + self.bytes * ARRIVING_NS_PER_BYTE;
        self.kind == HoldingKind::Arriving && now_ns.saturating_sub(self.began_ns) > allowed_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holder(session: u32, peer: u32) -> Holder {
        let session = SessionId { index: session, generation: 0 };
        Holder { session, slot: 0, peer: PeerKey(peer) }
    }

    #[test]
    fn check__shares_of_session_peer_and_all() {
        let mut held = Held::new(0, 8_000);
        let first = holder(0, 0);
        assert_eq!(held.check(first, 5_000), Ok(()), "one message of any size");
        held.add(HoldingKind::Arriving, first, 900);
        assert_eq!(held.check(first, 100), Ok(()));
        assert_eq!(held.check(first, 101), Err(Shortage::Session(first.session)));
        held.add(HoldingKind::Answer, holder(1, 0), 900);
        assert_eq!(held.check(holder(2, 0), 200), Ok(()), "a quarter of all");
        assert_eq!(held.check(holder(2, 0), 201), Err(Shortage::Peer(PeerKey(0))));
        held.add(HoldingKind::Answer, holder(2, 0), 200);
        assert_eq!(held.check(holder(3, 0), 1), Err(Shortage::Peer(PeerKey(0))));
        assert_eq!(held.check(holder(3, 1), 5_000), Ok(()), "an eighth of all is left");
        assert_eq!(held.check(holder(3, 1), 5_001), Err(Shortage::All));
    }

    #[test]
    fn check__share_of_an_account_of_several_peers() {
        let mut held = Held::new(0, 8_000);
        (0..4).for_each(|peer| held.set_account(PeerKey(peer), Some(u64::from(peer / 3))));
        let mut ids: Vec<_> = (0..4)
            .map(|session| held.add(HoldingKind::Arriving, holder(session, session / 2), 950))
            .collect();
        assert_eq!(held.check(holder(4, 2), 200), Ok(()), "half of all");
        assert_eq!(held.check(holder(4, 2), 201), Err(Shortage::Account(0)));
        held.now_ns = 1;
        let of = |held: &mut Held, account| {
            held.idle(HoldingKind::Arriving, 1, Some(Shortage::Account(account)), u64::MAX)
        };
        assert_eq!((of(&mut held, 0), of(&mut held, 1)), (ids.clone(), vec![]));
        assert_eq!(held.check(holder(4, 3), 3_200), Ok(()), "another account");
        assert_eq!(held.check(holder(4, 9), 3_200), Ok(()), "no account");

        // A peer that comes under the name of another, with another account.
        held.set_account(PeerKey(0), None);
        held.set_account(PeerKey(1), Some(1));
        assert_eq!(held.check(holder(4, 2), 201), Err(Shortage::Account(0)));
        ids.iter_mut().for_each(|id| held.remove(id));
        assert!(held.by_account.is_empty());
        assert_eq!(held.check(holder(4, 2), 7_000), Ok(()), "one message of any size");
    }

    /// A session or peer with a single byte has a holding.
    #[test]
    fn check__who_holds_a_byte_has_no_message_of_any_size_left() {
        let mut held = Held::new(0, 8_000);
        let first = holder(0, 0);
        held.add(HoldingKind::Arriving, first, 1);
        assert_eq!(held.check(first, 5_000), Err(Shortage::Session(first.session)));
        assert_eq!(held.check(holder(1, 0), 5_000), Err(Shortage::Peer(PeerKey(0))));
        assert_eq!(held.check(holder(1, 1), 5_000), Ok(()));
    }

    /// Entries of peers without holdings are limited in number, and entries of holdings are reused.
    #[test]
    fn add__keeps_no_more_than_is_needed() {
        let mut held = Held::new(0, 1 << 30);
        held.add(HoldingKind::Arriving, holder(0, 0), 10);
        for peer in 1..PEERS_KEPT_MAX as u32 {
            let mut id = held.add(HoldingKind::Arriving, holder(1, peer), 1);
            held.remove(&mut id);
            assert_eq!((held.by_peer.len(), held.nodes.len()), (peer as usize + 1, 2));
        }
        let known = held.add(HoldingKind::Arriving, holder(1, 7), 1);
        assert_eq!(held.by_peer.len(), PEERS_KEPT_MAX, "one that is known");
        held.add(HoldingKind::Arriving, holder(2, u32::MAX), 3);
        let left: Vec<_> = held.by_peer.iter().map(|(peer, bytes)| (*peer, *bytes)).collect();
        assert_eq!(left, [(0, 10), (7, 1), (u32::MAX, 3)]);
        assert_eq!((held.nodes.len(), held.holder(known).0.slot), (3, 0));
    }

    #[test]
    fn idle__stops_at_enough_bytes_and_after_some_looks() {
        let mut held = Held::new(0, 1 << 30);
        let looks = HELD_LOOKS_MAX as u32;
        let ids: Vec<_> =
            (0..looks + 2).map(|at| held.add(HoldingKind::Answer, holder(at, at), 100)).collect();
        held.now_ns = 1_000;
        let mut found =
            |shortage, bytes| held.idle(HoldingKind::Answer, 500, Some(shortage), bytes);
        assert!(found(Shortage::All, 0).is_empty());
        for (bytes, count) in [(1, 1), (100, 1), (101, 2), (200, 2), (201, 3)] {
            assert_eq!(found(Shortage::All, bytes), ids[..count], "{bytes} bytes");
        }
        assert_eq!(found(Shortage::All, u64::MAX).len() as u32, looks);
        let of_session = Shortage::Session(holder(1, 1).session);
        assert_eq!(found(of_session, u64::MAX), ids[1..2]);
    }

    #[test]
    fn idle__the_longest_untouched_first_until_it_is_enough() {
        let mut held = Held::new(0, 1 << 30);
        let ids: Vec<_> = (0..4)
            .map(|at| {
                held.now_ns = u64::from(at) * 10;
                held.add(HoldingKind::Answer, holder(at, at), 100)
            })
            .collect();
        held.now_ns = 50;
        held.touch(ids[1]);
        held.now_ns = 100;
        let all = Some(Shortage::All);
        assert_eq!(held.idle(HoldingKind::Answer, 60, all, 1_000), [ids[0], ids[2], ids[3]]);
        assert_eq!(held.idle(HoldingKind::Answer, 60, all, 150), [ids[0], ids[2]]);
        assert_eq!(held.idle(HoldingKind::Answer, 90, all, 1_000), [ids[0]]);
        assert!(held.idle(HoldingKind::Arriving, 0, all, 1_000).is_empty());
        let of_peer = Some(Shortage::Peer(PeerKey(3)));
        assert_eq!(held.idle(HoldingKind::Answer, 60, of_peer, 1_000), [ids[3]]);
        // The holding moved to the back, and its time counts from the touch.
        assert_eq!(held.idle(HoldingKind::Answer, 50, all, 1_000).last(), Some(&ids[1]));
    }

    /// A touched holding in front goes to the back. Holdings behind the first young one stay, touched or not.
    #[test]
    fn idle__ends_at_the_first_that_is_young() {
        for (age_ns, is_old) in [(0, false), (59, false), (60, true), (61, true)] {
            for idle_since_touch in [false, true] {
                let mut held = Held::new(1_000, 1 << 30);
                let first = held.add(HoldingKind::Answer, holder(0, 0), 100);
                held.now_ns = 1_001;
                held.add(HoldingKind::Answer, holder(1, 1), 100);
                if !idle_since_touch {
                    held.touch(first);
                }
                held.now_ns = 1_000 + age_ns;
                let found = held.idle(HoldingKind::Answer, 60, Some(Shortage::All), 1);
                let is_found = is_old && (idle_since_touch || age_ns > 60);
                assert_eq!(found.contains(&first), is_found, "{age_ns} {idle_since_touch}");
                let is_moved = is_old && !is_found;
                let since_ns = if is_moved { 1_001 } else { 1_000 };
                assert_eq!(held.nodes[first.0 as usize].since_ns, since_ns);
                assert_eq!(held.lists[HoldingKind::Answer as usize].first == first.0, !is_moved);
            }
        }
    }

    /// Where memory is short a request may take a second and its bytes' time, though its packets keep coming.
    /// An answer requested by the client may take any time.
    #[test]
    fn idle__requests_that_arrive_too_slowly_where_memory_is_short() {
        let is_found = |kind, now_ns: u64, shortage| {
            let begin_ns = 7_000_000_000;
            let mut held = Held::new(begin_ns, 1 << 30);
            let id = held.add(kind, holder(0, 0), 1_000);
            held.now_ns = begin_ns + now_ns - 1;
            held.touch(id);
            held.now_ns = begin_ns + now_ns;
            !held.idle(kind, ARRIVING_SHORT_NS, shortage, 1_000).is_empty()
        };
        let (all, slow_ns) = (Some(Shortage::All), 1_000_000_000 + 1_000 * 1_000);
        assert!(!is_found(HoldingKind::Arriving, slow_ns, all));
        assert!(is_found(HoldingKind::Arriving, slow_ns + 1, all));
        assert!(!is_found(HoldingKind::Arriving, slow_ns + 1, None), "there is room");
        assert!(!is_found(HoldingKind::Answer, 10 * slow_ns, all));
    }

    proptest! {
        /// Compares with sums over a list.
        #[test]
        fn sums_match_model(steps in prop::collection::vec(
            (0u32..4, 0u32..3, 1u64..1_000, any::<bool>(), any::<prop::sample::Index>()), 1..200))
        {
            let mut held = Held::new(0, 1 << 30);
            let mut model: Vec<(HoldingId, u32, u32, u64)> = Vec::new();
            for (session, peer, bytes, adds, place) in steps {
                if adds || model.is_empty() {
                    let id = held.add(HoldingKind::Arriving, holder(session, peer), bytes);
                    model.push((id, session, peer, bytes));
                } else {
                    let (mut id, ..) = model.remove(place.index(model.len()));
                    held.remove(&mut id);
                    prop_assert!(!id.is_some());
                }
                prop_assert_eq!(held.bytes(), model.iter().map(|m| m.3).sum::<u64>());
                for at in 0..4 {
                    let sum: u64 = model.iter().filter(|m| m.1 == at).map(|m| m.3).sum();
                    prop_assert_eq!(held.of_session(holder(at, 0).session), sum);
                    let sum: u64 = model.iter().filter(|m| m.2 == at).map(|m| m.3).sum();
                    prop_assert_eq!(held.by_peer.get(&at).copied().unwrap_or(0), sum);
                }
                let listed = held.idle(HoldingKind::Arriving, 0, None, u64::MAX);
                let expected: Vec<_> = model.iter().map(|m| m.0).collect();
                prop_assert_eq!(listed, expected, "oldest first");
            }
        }
    }

    panics! {
        remove__of_a_slot_without_a_holding: "a slot without a holding names none" => {
            let mut none = HoldingId::NONE;
            Held::new(0, 1 << 20).remove(&mut none);
        };
        remove__twice: "a holding is released once" => {
            let mut held = Held::new(0, 1 << 20);
            let id = held.add(HoldingKind::Answer, holder(0, 0), 100);
            [id, id].iter_mut().for_each(|id| held.remove(id));
        };
        touch__of_a_holding_that_was_released: "a holding is touched before it is released" => {
            let mut held = Held::new(0, 1 << 20);
            let id = held.add(HoldingKind::Answer, holder(0, 0), 100);
            held.remove(&mut id.clone());
            held.touch(id);
        };
        remove__of_more_than_the_session_holds:
            "no more memory is released than the session holds" => {
            let mut held = Held::new(0, 1 << 20);
            let mut id = held.add(HoldingKind::Answer, holder(2, 0), 100);
            held.by_session[2] = 99;
            held.remove(&mut id);
        };
        remove__of_a_holding_that_stands_in_no_list:
            "a holding and the one before it name each other" => {
            let mut held = Held::new(0, 1 << 20);
            let mut id = held.add(HoldingKind::Answer, holder(0, 0), 100);
            held.unlink(id.0);
            held.remove(&mut id);
        };
        add__after_an_entry_was_lost: "each entry of a holding that was released is free again" => {
            let mut held = Held::new(0, 8_000);
            let mut id = held.add(HoldingKind::Answer, holder(0, 0), 5);
            held.remove(&mut id);
            held.free = NIL;
            held.add(HoldingKind::Answer, holder(0, 0), 5);
        };
    }
}
