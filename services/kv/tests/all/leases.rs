//! Leases of the store, against a model: a list of leases and a map of keys.

use std::collections::BTreeMap;

use petrel_kv::api::{Applied, LeaseOutcome, Outcome, WriteReply};
use petrel_kv::command::{BatchBuffer, Command, Expected, LeaseOp, Op};
use petrel_kv::limits::{LEASE_ENDS_MAX, LEASE_KEYS_MAX, LEASES_MAX};
use petrel_kv::store::{BuildError, Builder, Store};
use proptest::collection::vec;
use proptest::prelude::*;

/// A store with a session.
struct Client {
    store: Store,
    session: u64,
    sequence: u64,
}

impl Client {
    fn new() -> Self {
        let mut client = Self { store: Store::new(), session: 0, sequence: 0 };
        client.session = client.apply(Command::OpenSession).unwrap().index;
        client
    }

    fn apply(&mut self, command: Command<'_>) -> Option<Applied> {
        let (bytes, mut reply) = (command.to_vec(), Vec::new());
        let index = self.store.applied() + 1;
        let precomputed = self.store.precompute(index, &bytes);
        self.store.apply(index, &bytes, &mut reply);
        assert!(precomputed.is_none_or(|precomputed| precomputed == reply));
        match WriteReply::decode(&reply) {
            Ok(WriteReply::Applied(applied)) => Some(applied),
            Err(_) if reply.is_empty() => None,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, op: Op<'_>) -> Applied {
        let (session, sequence) = (self.session, self.sequence);
        self.sequence += 1;
        self.apply(Command::Write { session, sequence, first_pending: sequence, op }).unwrap()
    }

    fn lease_op(&mut self, op: LeaseOp) -> LeaseOutcome {
        match self.write(Op::Lease(op)).outcome {
            Outcome::Lease(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    fn grant(&mut self, ttl_ms: u64) -> u64 {
        let applied = self.write(Op::Lease(LeaseOp::Grant { ttl_ms }));
        assert_eq!(applied.outcome, Outcome::Lease(LeaseOutcome::Granted));
        applied.index
    }

    fn put(&mut self, key: &[u8], lease: u64) -> Outcome {
        self.write(Op::LeasedPut { key, lease, expected: None, value: b"v" }).outcome
    }

    fn advance(&mut self, clock_ms: u64) {
        assert_eq!(self.apply(Command::Advance { clock_ms }), None);
    }

    /// Goes on with a copy of the store.
    fn copy(&mut self, chunk_bytes: usize) {
        let image = self.store.image();
        self.store = Builder::build(image.chunks(chunk_bytes)).unwrap();
        assert_eq!(self.store.digest(), image.digest());
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Grant {
        ttl_ms: u64,
    },
    KeepAlive {
        which: usize,
    },
    Revoke {
        which: usize,
    },
    Put {
        key: u8,
        which: usize,
        is_conditional: bool,
    },
    Plain {
        key: u8,
    },
    Delete {
        key: u8,
    },
    /// A compare and set of a key and a leased put of the next.
    Batch {
        key: u8,
        which: usize,
    },
    Advance {
        by_ms: u64,
    },
    Copy {
        chunk_bytes: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (key, which) = (0..6u8, 0..5usize);
    prop_oneof![
        1 => (10..200u64).prop_map(|ttl_ms| Step::Grant { ttl_ms }),
        2 => which.clone().prop_map(|which| Step::KeepAlive { which }),
        1 => which.clone().prop_map(|which| Step::Revoke { which }),
        4 => (key.clone(), which.clone(), any::<bool>())
            .prop_map(|(key, which, is_conditional)| Step::Put { key, which, is_conditional }),
        1 => key.clone().prop_map(|key| Step::Plain { key }),
        1 => key.clone().prop_map(|key| Step::Delete { key }),
        2 => (key, which).prop_map(|(key, which)| Step::Batch { key, which }),
        3 => (0..80u64).prop_map(|by_ms| Step::Advance { by_ms }),
        1 => (0..300usize).prop_map(|chunk_bytes| Step::Copy { chunk_bytes }),
    ]
}

/// The naive store. A lease is its time, and the clock after which the lease ends.
#[derive(Default)]
struct Model {
    clock_ms: u64,
    leases: BTreeMap<u64, (u64, Option<u64>)>,
    keys: BTreeMap<u8, Option<u64>>,
    granted: Vec<u64>,
}

impl Model {
    /// A lease that exists, or has ended, or never began.
    fn lease(&self, which: usize) -> u64 {
        self.granted.iter().rev().nth(which).copied().unwrap_or(1_000_000)
    }

    fn end(&mut self, lease: u64) -> u32 {
        let before = self.keys.len();
        self.leases.remove(&lease);
        self.keys.retain(|_, of| *of != Some(lease));
        (before - self.keys.len()) as u32
    }

    fn set(&mut self, key: u8, lease: Option<u64>) -> Outcome {
        Outcome::Put { replaced: self.keys.insert(key, lease).is_some() }
    }

    fn advance(&mut self, clock_ms: u64) {
        self.clock_ms = clock_ms;
        for (ttl_ms, end_ms) in self.leases.values_mut() {
            end_ms.get_or_insert(clock_ms + *ttl_ms);
        }
        let over = self.leases.iter().filter(|(_, (_, end))| end.is_some_and(|end| end < clock_ms));
        let over: Vec<u64> = over.map(|(lease, _)| *lease).collect();
        for lease in over {
            self.end(lease);
        }
    }
}

const UNKNOWN: LeaseOutcome = LeaseOutcome::Unknown;

fn perform(client: &mut Client, model: &mut Model, step: Step) {
    match step {
        Step::Grant { ttl_ms } => {
            let lease = client.grant(ttl_ms);
            model.leases.insert(lease, (ttl_ms, None));
            model.granted.push(lease);
        }
        Step::KeepAlive { which } => {
            let lease = model.lease(which);
            let expected = match model.leases.get_mut(&lease) {
                Some((_, end_ms)) => {
                    *end_ms = None;
                    LeaseOutcome::Kept
                }
                None => UNKNOWN,
            };
            assert_eq!(client.lease_op(LeaseOp::KeepAlive { lease }), expected);
        }
        Step::Revoke { which } => {
            let lease = model.lease(which);
            let exists = model.leases.contains_key(&lease);
            let keys = model.end(lease);
            let expected = if exists { LeaseOutcome::Revoked { keys } } else { UNKNOWN };
            assert_eq!(client.lease_op(LeaseOp::Revoke { lease }), expected);
        }
        Step::Put { key, which, is_conditional } => {
            let lease = model.lease(which);
            let expected = is_conditional.then_some(Expected::Absent);
            let op = Op::LeasedPut { key: &[key], lease, expected, value: b"v" };
            let outcome = client.write(op).outcome;
            match outcome {
                Outcome::Mismatch { position: 0, revision: Some(_) } => {
                    assert!(is_conditional && model.keys.contains_key(&key));
                }
                Outcome::Lease(UNKNOWN) => assert!(!model.leases.contains_key(&lease)),
                other => {
                    assert!(model.leases.contains_key(&lease));
                    assert_eq!(other, model.set(key, Some(lease)));
                }
            }
        }
        Step::Plain { key } => {
            let outcome = client.write(Op::Put { key: &[key], value: b"v" }).outcome;
            assert_eq!(outcome, model.set(key, None));
        }
        Step::Delete { key } => {
            let outcome = client.write(Op::Delete { key: &[key] }).outcome;
            assert_eq!(outcome, Outcome::Deleted { existed: model.keys.remove(&key).is_some() });
        }
        Step::Batch { key, which } => {
            let (lease, next) = (model.lease(which), key + 1);
            let mut batch = BatchBuffer::default();
            let (absent, value) = (Expected::Absent, &b"v"[..]);
            batch.push(&Op::Cas { key: &[key], expected: absent, value }).unwrap();
            batch.push(&Op::LeasedPut { key: &[next], lease, expected: None, value }).unwrap();
            let is_free = !model.keys.contains_key(&key);
            let has_lease = model.leases.contains_key(&lease);
            match client.write(Op::Batch(batch.batch())).outcome {
                Outcome::Mismatch { position: 0, revision: Some(_) } => assert!(!is_free),
                Outcome::Lease(UNKNOWN) => assert!(is_free && !has_lease),
                other => {
                    assert_eq!(other, Outcome::Batch);
                    assert!(is_free && has_lease);
                    model.set(key, None);
                    model.set(next, Some(lease));
                }
            }
        }
        Step::Advance { by_ms } => {
            let clock_ms = model.clock_ms + by_ms;
            client.advance(clock_ms);
            model.advance(clock_ms);
        }
        Step::Copy { chunk_bytes } => client.copy(chunk_bytes),
    }
    let keys: Vec<u8> = client.store.scan(b"", None).map(|pair| pair.key[0]).collect();
    assert!(keys.iter().eq(model.keys.keys()), "{keys:?} and {:?}", model.keys);
    let leased = model.keys.values().flatten().count() as u64;
    assert_eq!(client.store.leased_keys(), leased);
    assert_eq!(client.store.leases(), model.leases.len() as u64);
}

proptest! {
    #[test]
    fn leases__are_as_the_model(steps in vec(step(), 1..80)) {
        let (mut client, mut model) = (Client::new(), Model::default());
        steps.into_iter().for_each(|step| perform(&mut client, &mut model, step));
    }
}

/// The time of a lease never begins before its keep-alive, and the clock never goes back.
#[test]
fn advance__counts_from_the_first_advance_after_a_keep_alive() {
    let mut client = Client::new();
    let lease = client.grant(100);
    client.put(b"k", lease);
    client.advance(1_000);
    client.advance(1_100);
    assert_eq!(client.store.leases(), 1, "its time is just over, but for the rounding");
    assert_eq!(client.lease_op(LeaseOp::KeepAlive { lease }), LeaseOutcome::Kept);
    client.advance(1_090);
    assert_eq!(client.store.lease_clock_ms(), 1_100);
    client.advance(1_200);
    assert_eq!(client.store.leases(), 1);
    client.advance(1_201);
    assert_eq!((client.store.leases(), client.store.keys()), (0, 0));
}

#[test]
fn leases__have_bounds() {
    let mut client = Client::new();
    let lease = client.grant(50);
    for number in 0..LEASE_KEYS_MAX as u32 {
        assert_eq!(client.put(&number.to_be_bytes(), lease), Outcome::Put { replaced: false });
    }
    assert_eq!(client.put(b"more", lease), Outcome::Lease(LeaseOutcome::TooManyKeys));
    assert_eq!(client.put(&[0; 4], lease), Outcome::Put { replaced: true });
    client.write(Op::Put { key: &[0; 4], value: b"free" });
    let mut batch = BatchBuffer::default();
    for key in [b"one", b"two"] {
        batch.push(&Op::LeasedPut { key, lease, expected: None, value: b"" }).unwrap();
    }
    let outcome = client.write(Op::Batch(batch.batch())).outcome;
    assert_eq!(outcome, Outcome::Lease(LeaseOutcome::TooManyKeys));
    assert_eq!(client.store.keys(), LEASE_KEYS_MAX as u64, "a part of the batch");
    client.copy(64 << 10);
    assert_eq!(client.put(b"one", lease), Outcome::Put { replaced: false });
    while client.store.leases() < LEASES_MAX as u64 {
        client.grant(50);
    }
    assert_eq!(client.lease_op(LeaseOp::Grant { ttl_ms: 50 }), LeaseOutcome::TooMany);
    client.copy(64 << 10);
    client.advance(1);
    client.advance(100);
    // The first lease takes half of the step.
    let (ended, half) = (LEASES_MAX as u64 - client.store.leases(), LEASE_ENDS_MAX as u64 / 2);
    assert!((half - 2..half + 2).contains(&ended), "{ended}");
    while client.store.leases() > 0 {
        client.advance(100);
    }
    assert_eq!(client.store.keys(), 1);
}

/// A store without leases is written as by the versions before, which can then read it.
#[test]
fn image__has_the_version_that_it_needs() {
    let version = |client: &Client| client.store.image().chunks(1 << 20).next().unwrap()[1];
    let mut client = Client::new();
    client.write(Op::Put { key: b"k", value: b"v" });
    assert_eq!(version(&client), 1);
    let lease = client.grant(50);
    assert_eq!(version(&client), 3);
    client.put(b"k", lease);
    client.advance(7);
    client.lease_op(LeaseOp::Revoke { lease });
    assert_eq!(version(&client), 3, "the clock has to go on");
    client.copy(30);
    assert_eq!(client.store.lease_clock_ms(), 7);
}

#[test]
fn image__impossible_leases_are_refused() {
    let mut client = Client::new();
    let lease = client.grant(50);
    client.put(b"k", lease);
    client.advance(100);
    let chunk = client.store.image().chunks(1 << 20).next().unwrap();
    for at in 0..chunk.len() {
        let mut damaged = chunk.clone();
        damaged[at] ^= 1;
        assert!(Builder::build([&damaged]).is_err(), "byte {at}");
    }
    // A lease record: kind, number, time, whether it has an end, the end. Then a key.
    let at = chunk.windows(9).position(|it| it == [&[5][..], &lease.to_le_bytes()].concat());
    let at = at.unwrap();
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut damaged = chunk.clone();
        change(&mut damaged);
        Builder::build([&damaged]).unwrap_err()
    };
    let set = |place: usize, number: u64| {
        error(&move |bytes| bytes[place..place + 8].copy_from_slice(&number.to_le_bytes()))
    };
    let is_wrong = |error| matches!(error, BuildError::Wrong(_));
    assert!(is_wrong(set(at + 1, 99)), "a number from the future");
    assert!(matches!(set(at + 9, 1), BuildError::Malformed(_)), "too short a time");
    assert!(is_wrong(set(at + 18, 151)), "an end too late");
    let key = chunk[at + 26..at + 30].to_vec();
    assert_eq!(key, [6, 1, 0, b'k']);
    assert!(is_wrong(error(&|bytes| bytes[at + 29] = b'j')), "a key that does not exist");
    let twice = error(&|bytes| drop(bytes.splice(at + 26..at + 26, key.clone())));
    assert!(matches!(twice, BuildError::OutOfPlace(_)));
}
