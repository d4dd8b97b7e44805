//! Sessions: a write takes effect once, whatever the network does with its copies.

use std::collections::BTreeMap;

use petrel_kv::api::{Applied, Outcome, Refusal, WriteReply};
use petrel_kv::command::{Command, Op};
use petrel_kv::limits::{PENDING_WRITES_MAX, SESSIONS_MAX};
use petrel_kv::store::{Builder, Store};
use proptest::collection::vec;
use proptest::prelude::*;

fn apply(store: &mut Store, command: &Command<'_>) -> Vec<u8> {
    let (bytes, mut reply) = (command.to_vec(), Vec::new());
    let index = store.applied() + 1;
    let precomputed = store.precompute(index, &bytes);
    store.apply(index, &bytes, &mut reply);
    // The answer to a new write is computed in advance, and no other.
    let is_write = matches!(command, Command::Write { .. });
    let is_new = matches!(WriteReply::decode(&reply), Ok(WriteReply::Applied(applied)) if applied.index == index);
    assert_eq!(precomputed, (is_write && is_new).then(|| reply.clone()));
    reply
}

fn open(store: &mut Store) -> u64 {
    let reply = apply(store, &Command::OpenSession);
    let applied = Applied { index: store.applied(), outcome: Outcome::SessionOpened };
    assert_eq!(WriteReply::decode(&reply), Ok(WriteReply::Applied(applied)));
    applied.index
}

fn put(session: u64, sequence: u64, first_pending: u64) -> Command<'static> {
    Command::Write {
        session,
        sequence,
        first_pending,
        op: Op::Put { key: b"key", value: b"value" },
    }
}

fn refused<'a>(reply: &'a [u8]) -> Refusal<'a> {
    match WriteReply::decode(reply) {
        Ok(WriteReply::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Copies a store by means of an image.
fn through_image(store: &Store) -> Store {
    Builder::build(store.image().chunks(100)).unwrap()
}

/// The next event.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A client sends another write.
    Send { client: usize },
    /// A copy of a sent write arrives. Further copies may follow.
    Arrive { which: usize },
    /// The client gets the reply to an arrived copy.
    Answer { which: usize },
    /// The replica is rebuilt from an image.
    Restore,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..3usize).prop_map(|client| Event::Send { client }),
        8 => any::<usize>().prop_map(|which| Event::Arrive { which }),
        3 => any::<usize>().prop_map(|which| Event::Answer { which }),
        1 => Just(Event::Restore),
    ]
}

#[derive(Debug, Default)]
struct Client {
    session: u64,
    next: u64,
    /// Writes without an answer, to the client's knowledge.
    pending: std::collections::BTreeSet<u64>,
}

/// A sent write.
#[derive(Debug, Clone, Copy)]
struct Sent {
    client: usize,
    sequence: u64,
    first_pending: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Every write has its own key. The key's revision shows when the write took effect.
    #[test]
    fn writes__that_come_again_and_in_any_order_take_effect_once(events in vec(event(), 1..300)) {
        let mut store = Store::new();
        let mut clients: Vec<Client> =
            (0..3).map(|_| Client { session: open(&mut store), ..Client::default() }).collect();
        let mut sent: Vec<Sent> = Vec::new();
        let mut replies: BTreeMap<(usize, u64), Vec<u8>> = BTreeMap::new();
        let mut forgotten = [0; 3];
        for event in events {
            match event {
                Event::Send { client } => {
                    let Client { next, pending, .. } = &mut clients[client];
                    pending.insert(*next);
                    let first_pending = *pending.first().unwrap();
                    sent.push(Sent { client, sequence: *next, first_pending });
                    *next += 1;
                }
                Event::Arrive { which } if !sent.is_empty() => {
                    let Sent { client, sequence, first_pending } = sent[which % sent.len()];
                    let key = format!("{client}/{sequence}");
                    let session = clients[client].session;
                    let op = Op::Put { key: key.as_bytes(), value: b"" };
                    let before = store.keys();
                    let reply = apply(&mut store, &Command::Write { session, sequence, first_pending, op });
                    forgotten[client] = first_pending.max(forgotten[client]);
                    if sequence < forgotten[client] {
                        prop_assert_eq!(refused(&reply), Refusal::SequenceTooOld);
                        prop_assert_eq!(store.keys(), before);
                    } else if let Some(first) = replies.get(&(client, sequence)) {
                        prop_assert_eq!(&reply, first);
                        prop_assert_eq!(store.keys(), before);
                    } else {
                        let outcome = Outcome::Put { replaced: false };
                        let applied = Applied { index: store.applied(), outcome };
                        prop_assert_eq!(WriteReply::decode(&reply), Ok(WriteReply::Applied(applied)));
                        replies.insert((client, sequence), reply);
                    }
                }
                Event::Answer { which } if !replies.is_empty() => {
                    let (client, sequence) = *replies.keys().nth(which % replies.len()).unwrap();
                    clients[client].pending.remove(&sequence);
                }
                Event::Restore => {
                    let restored = through_image(&store);
                    prop_assert_eq!(restored.digest(), store.digest());
                    store = restored;
                }
                Event::Arrive { .. } | Event::Answer { .. } => {}
            }
        }
        prop_assert_eq!(store.keys(), replies.len() as u64);
        for ((client, sequence), reply) in &replies {
            let Ok(WriteReply::Applied(applied)) = WriteReply::decode(reply) else { panic!() };
            let key = format!("{client}/{sequence}");
            prop_assert_eq!(store.get(key.as_bytes()), Some((&b""[..], applied.index)));
        }
    }
}

#[test]
fn write__of_an_unknown_session_is_refused() {
    let mut store = Store::new();
    let session = open(&mut store);
    for unknown in [0, session + 1, u64::MAX] {
        assert_eq!(refused(&apply(&mut store, &put(unknown, 0, 0))), Refusal::SessionUnknown);
    }
    assert_eq!(store.keys(), 0);
}

#[test]
fn write__too_far_ahead_is_refused_until_the_client_has_its_answers() {
    let mut store = Store::new();
    let session = open(&mut store);
    apply(&mut store, &put(session, PENDING_WRITES_MAX - 1, 0));
    let ahead = put(session, PENDING_WRITES_MAX, 0);
    assert_eq!(refused(&apply(&mut store, &ahead)), Refusal::TooManyPending);
    let far = put(session, u64::MAX, 0);
    assert_eq!(refused(&apply(&mut store, &far)), Refusal::TooManyPending);
    let reply = apply(&mut store, &put(session, PENDING_WRITES_MAX, 1));
    assert!(matches!(WriteReply::decode(&reply), Ok(WriteReply::Applied(_))));
    let reply = apply(&mut store, &put(session, u64::MAX, u64::MAX));
    assert!(matches!(WriteReply::decode(&reply), Ok(WriteReply::Applied(_))));
}

#[test]
fn write__that_forgets_itself_is_malformed() {
    let mut store = Store::new();
    let session = open(&mut store);
    assert!(matches!(refused(&apply(&mut store, &put(session, 3, 4))), Refusal::Malformed(_)));
}

#[test]
fn sessions__the_least_recently_used_one_ends_for_another() {
    let mut store = Store::new();
    let sessions: Vec<u64> = (0..SESSIONS_MAX).map(|_| open(&mut store)).collect();
    apply(&mut store, &put(sessions[0], 0, 0));
    apply(&mut store, &put(sessions[2], 0, 0));
    let mut restored = through_image(&store);
    for store in [&mut store, &mut restored] {
        let added = [open(store), open(store)];
        assert_eq!(store.sessions(), SESSIONS_MAX as u64);
        for ended in [sessions[1], sessions[3]] {
            assert_eq!(refused(&apply(store, &put(ended, 1, 1))), Refusal::SessionUnknown);
        }
        for alive in [sessions[0], sessions[2], sessions[4], added[0], added[1]] {
            let reply = apply(store, &put(alive, 1, 1));
            assert!(matches!(WriteReply::decode(&reply), Ok(WriteReply::Applied(_))), "{alive}");
        }
    }
    assert_eq!(store.digest(), restored.digest());
}
