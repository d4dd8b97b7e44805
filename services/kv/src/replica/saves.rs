//! Saves: images that clients read block by block, from the replica that made them.

use crate::api::{Certainty, Refusal, SaveReply, SaveRequest};
use crate::limits::{SAVE_BLOCK_BYTES_MAX, SAVES_MAX};
use crate::pair_check::PairCheck;
use crate::store::{Image, PairCursor, Store};

use super::rng::Rng;

/// A save without a request for this time has lost its client, or its client's disk hangs.
const IDLE_NS_MAX: u64 = 30_000_000_000;

/// A save without a request for this time gives way to another. Blocks follow each other within milliseconds; a save
/// whose begin was repeated never had a request.
const YIELD_NS_MIN: u64 = 2_000_000_000;

/// The saves of a replica.
pub(super) struct Saves {
    address: String,
    /// Draws numbers that no former process of the replica used.
    rng: Rng,
    held: Vec<Held>,
}

struct Held {
    id: u64,
    image: Image,
    used_ns: u64,
    /// The number of the block that was read last, or 0.
    block: u64,
    /// Where this block begins, since its answer may be lost.
    begin: Place,
    /// Where the next block begins; none after the last.
    next: Option<Place>,
}

#[derive(Clone, Default)]
struct Place {
    cursor: PairCursor,
    check: PairCheck,
}

impl Saves {
    /// No saves. Clients reach the replica at this address.
    pub(super) fn new(address: String, seed: u64) -> Self {
        Self { address, rng: Rng::new(seed), held: Vec::new() }
    }

    /// Drops saves whose clients have gone.
    pub(super) fn drop_idle(&mut self, now_ns: u64) {
        self.held.retain(|held| held.idle_ns(now_ns) < IDLE_NS_MAX);
    }

    pub(super) fn answer(
        &mut self,
        now_ns: u64,
        store: &Store,
        request: &[u8],
        reply: &mut Vec<u8>,
    ) {
        let refuse = |reason| {
            let certainty = Certainty::NotApplied;
            SaveReply::Refused(Refusal::Unavailable { certainty, reason })
        };
        match SaveRequest::decode(request) {
            Ok(SaveRequest::Begin { .. }) => match self.begin(now_ns, store) {
                Some(begun) => begun.encode(reply),
                None => refuse("two saves are in progress here already").encode(reply),
            },
            Ok(SaveRequest::Block { save, block }) => {
                match self.held.iter_mut().find(|held| held.id == save) {
                    Some(held) => held.answer(now_ns, block, reply),
                    None => refuse(
                        "the save is lost: the replica was restarted, or had no request for 30 s",
                    )
                    .encode(reply),
                }
            }
            Ok(SaveRequest::End { save }) => {
                self.held.retain(|held| held.id != save);
                SaveReply::Ended.encode(reply);
            }
            Err(error) => Refusal::Malformed(&error.to_string()).encode(reply),
        }
    }

    /// Begins a save of the present state, if there is room.
    fn begin(&mut self, now_ns: u64, store: &Store) -> Option<SaveReply<'_>> {
        if self.held.len() == SAVES_MAX {
            let idle = (0..SAVES_MAX).max_by_key(|place| self.held[*place].idle_ns(now_ns))?;
            if self.held[idle].idle_ns(now_ns) < YIELD_NS_MIN {
                return None;
            }
            self.held.remove(idle);
        }
        let (id, image) = (self.rng.next(), store.image().without_leases());
        let (revision, keys, bytes) = (image.revision(), image.keys(), image.bytes());
        let (begin, next) = (Place::default(), Some(Place::default()));
        self.held.push(Held { id, image, used_ns: now_ns, block: 0, begin, next });
        Some(SaveReply::Begun { save: id, revision, keys, bytes, address: &self.address })
    }
}

impl Held {
    fn idle_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.used_ns)
    }

    /// Answers with the block of this number, from 1: the last block again, or the next one.
    fn answer(&mut self, now_ns: u64, block: u64, reply: &mut Vec<u8>) {
        self.used_ns = now_ns;
        match &self.next {
            Some(next) if block == self.block + 1 => {
                self.begin = next.clone();
                self.block = block;
            }
            _ if block == self.block && block > 0 => {}
            _ => return Refusal::Malformed("blocks are read in their order").encode(reply),
        }
        let Place { cursor, mut check } = self.begin.clone();
        let (pairs, next) = self.image.pairs(cursor, SAVE_BLOCK_BYTES_MAX, &mut check);
        let last = next.is_none().then_some(check.value());
        SaveReply::Block { pairs: pairs.pairs(), check: last }.encode(reply);
        self.next = next.map(|cursor| Place { cursor, check });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Consistency;
    use crate::command::{Command, LeaseOp, Op};

    fn store(keys: u32) -> Store {
        let mut store = Store::new();
        let mut apply = |command: Command<'_>| {
            let mut reply = Vec::new();
            store.apply(store.applied() + 1, &command.to_vec(), &mut reply);
        };
        apply(Command::OpenSession);
        for number in 0..keys {
            let (key, sequence) = (format!("{number:06}"), number.into());
            let op = Op::Put { key: key.as_bytes(), value: &[7; 1000] };
            apply(Command::Write { session: 1, sequence, first_pending: sequence, op });
        }
        store
    }

    /// Returns the decoded reply, as the closure reads it.
    fn ask<R>(
        saves: &mut Saves,
        store: &Store,
        now_ns: u64,
        request: SaveRequest,
        read: impl FnOnce(SaveReply<'_>) -> R,
    ) -> R {
        let mut reply = Vec::new();
        saves.answer(now_ns, store, &request.to_vec(), &mut reply);
        read(SaveReply::decode(&reply).unwrap())
    }

    fn begin(saves: &mut Saves, store: &Store, now_ns: u64) -> Option<u64> {
        let begin = SaveRequest::Begin { consistency: Consistency::Stale };
        ask(saves, store, now_ns, begin, |reply| match reply {
            SaveReply::Begun { save, .. } => Some(save),
            _ => None,
        })
    }

    /// The number of pairs in a block, and whether the block is the last; none for a refusal.
    fn block(saves: &mut Saves, store: &Store, save: u64, block: u64) -> Option<(usize, bool)> {
        ask(saves, store, 5, SaveRequest::Block { save, block }, |reply| match reply {
            SaveReply::Block { pairs, check } => Some((pairs.len(), check.is_some())),
            _ => None,
        })
    }

    #[test]
    fn answer__each_block_once_more_and_in_order() {
        let (store, mut saves) = (store(100), Saves::new("a:1".to_owned(), 3));
        let save = begin(&mut saves, &store, 5).unwrap();
        assert_eq!(block(&mut saves, &store, save, 0), None);
        assert_eq!(block(&mut saves, &store, save, 2), None);
        let first = block(&mut saves, &store, save, 1).unwrap();
        assert_eq!(block(&mut saves, &store, save, 1), Some(first), "its answer was lost");
        let second = block(&mut saves, &store, save, 2).unwrap();
        assert_eq!((first.0 + second.0, first.1, second.1), (100, false, true));
        assert_eq!(block(&mut saves, &store, save, 1), None);
        assert_eq!(block(&mut saves, &store, save, 3), None);
        assert_eq!(block(&mut saves, &store, save, 2), Some(second));
        ask(&mut saves, &store, 5, SaveRequest::End { save }, |reply| {
            assert_eq!(reply, SaveReply::Ended);
        });
        assert_eq!(block(&mut saves, &store, save, 2), None);
    }

    #[test]
    fn begin__leaves_out_keys_of_leases() {
        let (mut store, mut saves) = (store(3), Saves::new("a:1".to_owned(), 3));
        let lease = store.applied() + 1;
        let key = b"leased";
        let leased = Op::LeasedPut { key, lease, expected: None, value: b"v" };
        let grant = Op::Lease(LeaseOp::Grant { ttl_ms: 1_000 });
        for (sequence, op) in (3..).zip([grant, leased]) {
            let write = Command::Write { session: 1, sequence, first_pending: sequence, op };
            store.apply(store.applied() + 1, &write.to_vec(), &mut Vec::new());
        }
        assert_eq!((store.keys(), store.leased_keys()), (4, 1));
        let save = begin(&mut saves, &store, 0).unwrap();
        assert_eq!(block(&mut saves, &store, save, 1), Some((3, true)));
        assert!(store.get(key).is_some());
    }

    #[test]
    fn begin__two_at_a_time_and_idle_ones_give_way() {
        let (store, mut saves) = (store(1), Saves::new("a:1".to_owned(), 3));
        let first = begin(&mut saves, &store, 0).unwrap();
        let second = begin(&mut saves, &store, 1).unwrap();
        assert_eq!(begin(&mut saves, &store, YIELD_NS_MIN - 1), None);
        let third = begin(&mut saves, &store, YIELD_NS_MIN).unwrap();
        assert_eq!(block(&mut saves, &store, first, 1), None);
        assert!(block(&mut saves, &store, second, 1).is_some() && third != second);
        saves.drop_idle(IDLE_NS_MAX + 4);
        assert_eq!(saves.held.len(), 2);
        saves.drop_idle(IDLE_NS_MAX + 5);
        assert_eq!(saves.held.len(), 1, "the second was last used at 5");
    }
}
