//! Restores: an empty store becomes a copy of a saved one, and its revisions go on from there.
//!
//! A revision is the log index of a write, plus a base. The base is 0 until a restore from a store whose log was longer.

use super::map::Map;
use crate::api::{Pairs, RestoreOutcome};
use crate::command::Restore;
use crate::pair_check::PairCheck;

/// The base of revisions, and the unfinished restore.
#[derive(Debug, Clone, Default)]
pub(super) struct Restores {
    base: u64,
    current: Option<Restoring>,
}

/// A restore that has not ended.
#[derive(Debug, Clone)]
pub(super) struct Restoring {
    /// The revision of the command that began the restore.
    pub(super) id: u64,
    /// The revision of the saved store.
    pub(super) revision: u64,
    pub(super) check: PairCheck,
}

impl Restores {
    /// The state in an image.
    pub(super) fn resume(base: u64, current: Option<Restoring>) -> Self {
        Self { base, current }
    }

    /// The difference between revisions and log indices.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The revision of the command at a log index.
    #[inline]
    pub(super) fn revision(&self, index: u64) -> u64 {
        self.base + index
    }

    #[inline]
    pub(super) fn is_unfinished(&self) -> bool {
        self.current.is_some()
    }

    pub(super) fn current(&self) -> Option<&Restoring> {
        self.current.as_ref()
    }

    /// Executes a step at a log index.
    pub(super) fn step(&mut self, map: &mut Map, index: u64, step: &Restore<'_>) -> RestoreOutcome {
        match *step {
            Restore::Begin { .. } if !self.is_unfinished() && map.keys() > 0 => {
                RestoreOutcome::NotEmpty
            }
            Restore::Begin { revision } => {
                *map = Map::default();
                let id = self.revision(index);
                self.current = Some(Restoring { id, revision, check: PairCheck::default() });
                RestoreOutcome::Begun
            }
            Restore::Pairs { restore, pairs } => match self.of(restore) {
                Some(restoring) => restoring.add(map, &pairs),
                None => RestoreOutcome::Superseded,
            },
            Restore::End { restore, keys, check } => {
                let found =
                    self.of(restore).map(|it| (it.revision, it.check.keys(), it.check.value()));
                match found {
                    None => RestoreOutcome::Superseded,
                    Some((_, found_keys, found)) if (found_keys, found) != (keys, check) => {
                        RestoreOutcome::Damaged
                    }
                    Some((revision, ..)) => {
                        // The next command's revision is greater than this one's, and than the saved one.
                        self.base = self.base.max(revision.saturating_sub(index));
                        self.current = None;
                        RestoreOutcome::Done
                    }
                }
            }
            Restore::Abandon => {
                if self.current.take().is_some() {
                    *map = Map::default();
                }
                RestoreOutcome::Abandoned
            }
        }
    }

    fn of(&mut self, id: u64) -> Option<&mut Restoring> {
        self.current.as_mut().filter(|restoring| restoring.id == id)
    }
}

impl Restoring {
    fn add(&mut self, map: &mut Map, pairs: &Pairs<'_>) -> RestoreOutcome {
        for pair in pairs.iter() {
            let is_known = (1..=self.revision).contains(&pair.revision);
            if !is_known || self.check.add(&pair).is_err() {
                return RestoreOutcome::OutOfPlace;
            }
            map.put(pair.key, pair.value, pair.revision);
        }
        RestoreOutcome::Taken
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Builder, Store};
    use super::*;
    use crate::api::{Applied, Outcome, Pair, PairsBuffer, Refusal, WriteReply};
    use crate::command::{Command, Expected, Op};

    /// A store with a session, whose writes follow each other.
    struct Client {
        store: Store,
        session: u64,
        sequence: u64,
    }

    impl Client {
        fn new() -> Self {
            let mut client = Self { store: Store::new(), session: 0, sequence: 0 };
            client.open();
            client
        }

        fn open(&mut self) {
            let applied = self.apply(Command::OpenSession).unwrap();
            (self.session, self.sequence) = (applied.index, 0);
        }

        fn apply(&mut self, command: Command<'_>) -> Result<Applied, String> {
            // Chunks of images come from stores at all steps.
            let image = self.store.image();
            self.store = Builder::build(image.chunks(50)).unwrap();
            assert_eq!(self.store.digest(), image.digest());
            let mut reply = Vec::new();
            self.store.apply(self.store.applied() + 1, &command.to_vec(), &mut reply);
            match WriteReply::decode(&reply).unwrap() {
                WriteReply::Applied(applied) => Ok(applied),
                WriteReply::Refused(refusal) => Err(format!("{refusal:?}")),
            }
        }

        fn write(&mut self, op: Op<'_>) -> Result<Applied, String> {
            let (session, sequence) = (self.session, self.sequence);
            self.sequence += 1;
            self.apply(Command::Write { session, sequence, first_pending: sequence, op })
        }

        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, String> {
            self.write(Op::Put { key, value }).map(|applied| applied.index)
        }

        fn step(&mut self, step: Restore<'_>) -> (u64, RestoreOutcome) {
            match self.write(Op::Restore(step)).unwrap() {
                Applied { index, outcome: Outcome::Restore(outcome) } => (index, outcome),
                other => panic!("{other:?}"),
            }
        }

        fn begin(&mut self, revision: u64) -> u64 {
            let (restore, outcome) = self.step(Restore::Begin { revision });
            assert_eq!(outcome, RestoreOutcome::Begun);
            restore
        }

        fn add(&mut self, restore: u64, pairs: &[Pair<'_>]) -> RestoreOutcome {
            let mut buffer = PairsBuffer::default();
            pairs.iter().for_each(|pair| buffer.push(pair));
            self.step(Restore::Pairs { restore, pairs: buffer.pairs() }).1
        }

        fn end(&mut self, restore: u64, pairs: &[Pair<'_>]) -> RestoreOutcome {
            let mut found = PairCheck::default();
            found.add_all(pairs.iter().copied()).unwrap();
            let (keys, check) = (found.keys(), found.value());
            self.step(Restore::End { restore, keys, check }).1
        }
    }

    fn pair<'a>(key: &'a [u8], revision: u64, value: &'a [u8]) -> Pair<'a> {
        Pair { key, revision, value }
    }

    #[test]
    fn restore__keeps_revisions_and_goes_on_from_the_saved_one() {
        let pairs = [pair(b"a", 900, b"1"), pair(b"b", 17, b"2"), pair(b"c", 1_000, b"")];
        let mut client = Client::new();
        let restore = client.begin(1_000);
        assert_eq!(client.add(restore, &pairs[..2]), RestoreOutcome::Taken);
        let refusal = format!("{:?}", Refusal::Restoring);
        assert_eq!(client.put(b"a", b"x"), Err(refusal));
        assert!(client.store.is_restoring());
        assert_eq!(client.add(restore, &pairs[2..]), RestoreOutcome::Taken);
        assert_eq!(client.end(restore, &pairs), RestoreOutcome::Done);
        assert!(!client.store.is_restoring());
        assert!(client.store.scan(b"", None).eq(pairs));
        assert!(client.store.applied() < 20 && client.store.revision() >= 1_000);

        let expected = Expected::Revision(17);
        let cas = client.write(Op::Cas { key: b"b", expected, value: b"3" }).unwrap();
        assert_eq!(cas.outcome, Outcome::Put { replaced: true });
        assert_eq!(client.store.get(b"b"), Some((&b"3"[..], cas.index)));
        assert!(cas.index > 1_000);
        client.open();
        assert!(client.session > cas.index);
        assert!(client.put(b"d", b"4").unwrap() > client.session);
    }

    /// The log of this cluster is longer than that of the saved one.
    #[test]
    fn restore__revisions_never_go_back() {
        let mut client = Client::new();
        let before = (0..50).map(|_| client.put(b"k", b"v").unwrap()).max().unwrap();
        client.write(Op::Delete { key: b"k" }).unwrap();
        let restore = client.begin(5);
        assert_eq!(client.add(restore, &[pair(b"a", 5, b"")]), RestoreOutcome::Taken);
        assert_eq!(client.end(restore, &[pair(b"a", 5, b"")]), RestoreOutcome::Done);
        assert!(client.put(b"k", b"v").unwrap() > before);
        assert_eq!(client.store.revision(), client.store.applied());
    }

    #[test]
    fn restore__only_into_an_empty_store() {
        let mut client = Client::new();
        client.put(b"k", b"v").unwrap();
        assert_eq!(client.step(Restore::Begin { revision: 9 }).1, RestoreOutcome::NotEmpty);
        assert_eq!(client.store.get(b"k"), Some((&b"v"[..], 2)));
        assert_eq!(client.step(Restore::Abandon).1, RestoreOutcome::Abandoned);
        assert_eq!(client.store.keys(), 1, "there was none to abandon");
        let outcome = client.step(Restore::End { restore: 4, keys: 0, check: 0 }).1;
        assert_eq!(outcome, RestoreOutcome::Superseded);
    }

    #[test]
    fn restore__what_is_not_whole_does_not_end() {
        let pairs = [pair(b"a", 1, b"1"), pair(b"b", 2, b"2")];
        let mut client = Client::new();
        let first = client.begin(9);
        assert_eq!(client.add(first, &pairs[..1]), RestoreOutcome::Taken);
        assert_eq!(client.end(first, &pairs), RestoreOutcome::Damaged);
        assert!(client.store.is_restoring());

        let second = client.begin(9);
        assert_eq!(client.store.keys(), 0, "the keys of the first are gone");
        assert_eq!(client.add(first, &pairs), RestoreOutcome::Superseded);
        assert_eq!(client.end(first, &[]), RestoreOutcome::Superseded);
        assert_eq!(client.add(second, &pairs[1..]), RestoreOutcome::Taken);
        assert_eq!(client.add(second, &pairs[..1]), RestoreOutcome::OutOfPlace);
        assert_eq!(client.end(second, &pairs), RestoreOutcome::Damaged);
        for impossible in [0, 10] {
            let third = client.begin(9);
            let outcome = client.add(third, &[pair(b"a", impossible, b"")]);
            assert_eq!(outcome, RestoreOutcome::OutOfPlace);
        }
        assert_eq!(client.step(Restore::Abandon).1, RestoreOutcome::Abandoned);
        client.put(b"k", b"v").unwrap();
        assert_eq!(client.store.keys(), 1);
    }
}
