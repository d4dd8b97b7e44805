//! The store against a model: an ordered map.

use std::collections::BTreeMap;

use petrel_kv::api::{Applied, Outcome, Pair, Refusal, WriteReply};
use petrel_kv::command::{BatchBuffer, Command, Expected, Op};
use petrel_kv::store::{BuildError, Builder, Image, Store};
use proptest::collection::vec;
use proptest::prelude::*;

/// Keys with their revisions and values.
type Model = BTreeMap<Vec<u8>, Written>;

/// A revision and a value.
type Written = (u64, Vec<u8>);

/// An operation that owns its bytes.
#[derive(Debug, Clone)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Cas(Vec<u8>, Expectation, Vec<u8>),
    CasDelete(Vec<u8>, Expectation),
    Batch(Vec<Step>),
    /// Puts or deletes many consecutive keys, to split and join pages.
    Fill(u16, u16, usize),
    Clear(u16, u16),
    Image,
}

#[derive(Debug, Clone)]
enum Expectation {
    Absent,
    Present,
    Value(Vec<u8>),
    Revision(u64),
}

/// A store with its expected content, and images with theirs.
#[derive(Default)]
struct Checked {
    store: Store,
    model: Model,
    images: Vec<(Image, Model)>,
    session: u64,
    sequence: u64,
}

impl Checked {
    fn new() -> Checked {
        let mut checked = Checked::default();
        let reply = apply(&mut checked.store, Command::OpenSession);
        checked.session = applied(&reply).index;
        checked
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Fill(from, count, len) => {
                for number in *from..from.saturating_add(*count) {
                    self.step(&Step::Put(numbered(number), vec![number as u8; *len]));
                }
            }
            Step::Clear(from, count) => {
                for number in *from..from.saturating_add(*count) {
                    self.step(&Step::Delete(numbered(number)));
                }
            }
            Step::Image => self.images.push((self.store.image(), self.model.clone())),
            step => self.write(step),
        }
    }

    fn write(&mut self, step: &Step) {
        let mut buffer = BatchBuffer::default();
        let op = self.op(step, &mut buffer);
        let index = self.store.applied() + 1;
        let outcome = execute(&mut self.model, index, &op);
        let (session, sequence) = (self.session, self.sequence);
        self.sequence += 1;
        let reply = apply(
            &mut self.store,
            Command::Write { session, sequence, first_pending: sequence, op },
        );
        assert_eq!(applied(&reply), Applied { index, outcome });
    }

    fn op<'a>(&self, step: &'a Step, buffer: &'a mut BatchBuffer) -> Op<'a> {
        match step {
            Step::Put(key, value) => Op::Put { key, value },
            Step::Delete(key) => Op::Delete { key },
            Step::Cas(key, expectation, value) => {
                Op::Cas { key, expected: self.expected(key, expectation), value }
            }
            Step::CasDelete(key, expectation) => {
                Op::CasDelete { key, expected: self.expected(key, expectation) }
            }
            Step::Batch(steps) => {
                for step in steps {
                    buffer.push(&self.op(step, &mut BatchBuffer::default())).unwrap();
                }
                Op::Batch(buffer.batch())
            }
            other => panic!("{other:?} is no operation"),
        }
    }

    fn expected<'a>(&self, key: &[u8], expectation: &'a Expectation) -> Expected<'a> {
        match expectation {
            Expectation::Absent => Expected::Absent,
            Expectation::Present => {
                Expected::Revision(self.model.get(key).map_or(7, |(revision, _)| *revision))
            }
            Expectation::Revision(revision) => Expected::Revision(*revision),
            Expectation::Value(value) => Expected::Value(value),
        }
    }
}

/// The effect of an operation on the model.
fn execute(model: &mut Model, index: u64, op: &Op<'_>) -> Outcome {
    if let Op::Batch(batch) = op {
        let mut after = model.clone();
        for (position, op) in (0..).zip(batch.ops()) {
            if let Outcome::Mismatch { revision, .. } = execute(&mut model.clone(), index, &op) {
                return Outcome::Mismatch { position, revision };
            }
            match op {
                Op::Put { key, value } | Op::Cas { key, value, .. } => {
                    after.insert(key.into(), (index, value.into()));
                }
                Op::Delete { key } | Op::CasDelete { key, .. } => drop(after.remove(key)),
                _ => unreachable!(),
            }
        }
        *model = after;
        return Outcome::Batch;
    }
    match op {
        Op::Cas { key, expected, .. } | Op::CasDelete { key, expected } => {
            let found = model.get(*key);
            let holds = match expected {
                Expected::Absent => found.is_none(),
                Expected::Revision(expected) => {
                    found.map(|(revision, _)| revision) == Some(expected)
                }
                Expected::Value(expected) => found.map(|(_, value)| &value[..]) == Some(expected),
            };
            if !holds {
                let revision = found.map(|(revision, _)| *revision);
                return Outcome::Mismatch { position: 0, revision };
            }
        }
        _ => {}
    }
    match op {
        Op::Put { key, value } | Op::Cas { key, value, .. } => {
            let replaced = model.insert(key.to_vec(), (index, value.to_vec())).is_some();
            Outcome::Put { replaced }
        }
        Op::Delete { key } | Op::CasDelete { key, .. } => {
            Outcome::Deleted { existed: model.remove(*key).is_some() }
        }
        _ => unreachable!(),
    }
}

fn apply(store: &mut Store, command: Command<'_>) -> Vec<u8> {
    let (bytes, mut reply) = (command.to_vec(), Vec::new());
    let index = store.applied() + 1;
    let is_precomputed =
        matches!(command, Command::Write { op, .. } if !matches!(op, Op::Batch(_)));
    let precomputed = store.precompute(index, &bytes);
    store.apply(index, &bytes, &mut reply);
    assert_eq!(precomputed, is_precomputed.then(|| reply.clone()));
    reply
}

fn applied(reply: &[u8]) -> Applied {
    match WriteReply::decode(reply) {
        Ok(WriteReply::Applied(applied)) => applied,
        other => panic!("{other:?}"),
    }
}

fn numbered(number: u16) -> Vec<u8> {
    format!("a common beginning/{number:05}").into_bytes()
}

fn as_model<'a>(pairs: impl Iterator<Item = Pair<'a>>) -> Vec<(Vec<u8>, Written)> {
    pairs.map(|pair| (pair.key.to_vec(), (pair.revision, pair.value.to_vec()))).collect()
}

fn assert_has(store: &Store, model: &Model) {
    let expected: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(as_model(store.scan(b"", None)), expected);
    assert_eq!(store.keys(), model.len() as u64);
    let bytes: usize = model.iter().map(|(key, (_, value))| key.len() + value.len()).sum();
    assert_eq!(store.bytes(), bytes as u64);
    for (key, (revision, value)) in model {
        assert_eq!(store.get(key), Some((&value[..], *revision)));
    }
}

fn chunks(image: &Image, bytes_max: usize) -> Vec<Vec<u8>> {
    image.chunks(bytes_max).collect()
}

/// Keys that are often equal, often have a common prefix, have about 16 bytes, or end in zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0..300u16).prop_map(numbered),
        2 => vec(prop_oneof![Just(0), Just(1), Just(255)], 1..4),
        2 => (14..19usize, 0..3u8).prop_map(|(len, last)| [vec![0; len], vec![last]].concat()),
        1 => vec(any::<u8>(), 1..40),
        1 => (4090..=4096usize).prop_map(|len| vec![b'k'; len]),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..9),
        2 => (0..200usize).prop_map(|len| vec![1; len]),
        1 => (1000..1100usize).prop_map(|len| vec![2; len]),
    ]
}

fn expectation() -> impl Strategy<Value = Expectation> {
    prop_oneof![
        Just(Expectation::Absent),
        Just(Expectation::Present),
        (0..50u64).prop_map(Expectation::Revision),
        value().prop_map(Expectation::Value),
    ]
}

fn single() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| Step::Put(key, value)),
        2 => key().prop_map(Step::Delete),
        1 => (key(), expectation(), value()).prop_map(|(k, e, v)| Step::Cas(k, e, v)),
        1 => (key(), expectation()).prop_map(|(key, e)| Step::CasDelete(key, e)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        16 => single(),
        2 => vec(single(), 0..6).prop_map(Step::Batch),
        2 => (0..400u16, 0..200u16, 0..400usize).prop_map(|(at, n, len)| Step::Fill(at, n, len)),
        2 => (0..400u16, 0..200u16).prop_map(|(at, n)| Step::Clear(at, n)),
        1 => Just(Step::Image),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn store__is_as_the_model_and_images_stay_as_they_were(
        steps in vec(step(), 1..60),
        bounds in vec((key(), key()), 4),
        chunk_bytes in 0..3000usize,
    ) {
        let mut checked = Checked::new();
        for step in &steps {
            checked.step(step);
        }
        checked.step(&Step::Image);
        assert_has(&checked.store, &checked.model);
        for (from, until) in &bounds {
            let expected: Vec<_> = if from < until {
                checked.model.range(from.clone()..until.clone()).map(|(k, v)| (k.clone(), v.clone())).collect()
            } else {
                Vec::new()
            };
            prop_assert_eq!(as_model(checked.store.scan(from, Some(until))), expected);
        }
        for (image, model) in &checked.images {
            let built = Builder::build(image.chunks(chunk_bytes)).unwrap();
            assert_has(&built, model);
            prop_assert_eq!(built.digest(), image.digest());
            prop_assert_eq!(built.applied(), image.applied());
        }
        let digest = checked.store.digest();
        prop_assert_eq!(checked.images.last().unwrap().0.digest(), digest);
    }
}

#[test]
fn builder__damage_of_any_byte_is_found() {
    let chunk = whole_image();
    for at in 0..chunk.len() {
        for bit in [0, 3, 7] {
            let mut damaged = chunk.clone();
            damaged[at] ^= 1 << bit;
            assert!(Builder::build([&damaged]).is_err(), "bit {bit} of byte {at}");
        }
    }
    Builder::build([&chunk]).unwrap();
}

#[test]
fn builder__missing_repeated_and_exchanged_chunks_are_found() {
    let image = two_pages().store.image();
    let chunks = chunks(&image, 500);
    assert!(chunks.len() > 10);
    for left_out in 0..chunks.len() {
        let others = chunks.iter().enumerate().filter(|(at, _)| *at != left_out);
        assert!(Builder::build(others.map(|(_, chunk)| chunk)).is_err(), "without {left_out}");
        let twice =
            chunks.iter().enumerate().flat_map(|(at, c)| vec![c; 1 + usize::from(at == left_out)]);
        assert!(Builder::build(twice).is_err(), "{left_out} twice");
    }
    for at in 1..chunks.len() {
        let mut exchanged = chunks.clone();
        exchanged.swap(at - 1, at);
        let error = Builder::build(&exchanged).expect_err("a chunk too early");
        let at_once = matches!(error, BuildError::OutOfPlace(_));
        assert!(at_once || at == chunks.len() - 1, "{at} too early: {error}");
    }
    assert!(matches!(Builder::build(&chunks[..3]), Err(BuildError::Incomplete)));
}

#[test]
fn image__from_another_version_is_refused() {
    let mut chunk = whole_image();
    chunk[1] = 9;
    assert!(matches!(Builder::build([&chunk]), Err(BuildError::Version(9))));
}

#[test]
fn digest__tells_apart_what_differs_in_any_part() {
    let before = two_pages();
    let digest_after = |change: fn(&mut Checked)| {
        let mut after = Checked {
            store: Builder::build(before.store.image().chunks(1 << 20)).unwrap(),
            ..two_pages()
        };
        change(&mut after);
        after.store.digest()
    };
    let same = digest_after(|_| {});
    assert_eq!(same, before.store.digest());
    let digests = [
        same,
        digest_after(|checked| checked.step(&Step::Put(numbered(3), vec![9]))),
        digest_after(|checked| checked.step(&Step::Delete(numbered(3)))),
        digest_after(|checked| checked.step(&Step::Delete(b"not there".to_vec()))),
        digest_after(|checked| drop(apply(&mut checked.store, Command::OpenSession))),
    ];
    for (at, digest) in digests.iter().enumerate() {
        assert!(!digests[..at].contains(digest), "{at}");
    }
}

#[test]
fn apply__bytes_that_are_no_command_change_nothing_but_the_index() {
    let mut store = Store::new();
    for (index, bytes) in (1..).zip([&b""[..], b"\0", b"\x01 and more", &[2; 20], &[0xff; 300]]) {
        let mut reply = Vec::new();
        store.apply(index, bytes, &mut reply);
        let reply = WriteReply::decode(&reply);
        assert!(matches!(reply, Ok(WriteReply::Refused(Refusal::Malformed(_)))), "{reply:?}");
    }
    assert_eq!((store.applied(), store.keys(), store.sessions()), (5, 0, 0));
}

#[test]
#[should_panic(expected = "entry 1 after entry 1")]
fn apply__the_same_index_twice_is_a_mistake_of_the_caller() {
    let mut store = Store::new();
    store.apply(1, b"", &mut Vec::new());
    store.apply(1, b"", &mut Vec::new());
}

#[test]
fn values__of_any_length_replace_each_other() {
    let mut checked = Checked::new();
    let lengths = [0, 1, 1024, 1025, 1 << 20, 3, 1024, 5000, 1025, 0, 70_000, 70_000, 64];
    for round in 0..3 {
        for key in 0..40u8 {
            let len = lengths[(usize::from(key) + round) % lengths.len()];
            checked.step(&Step::Put(vec![key], vec![key + round as u8; len]));
        }
        checked.step(&Step::Image);
    }
    assert_has(&checked.store, &checked.model);
    for (image, model) in &checked.images {
        assert_has(&Builder::build(image.chunks(1 << 16)).unwrap(), model);
    }
}

#[test]
fn map__grows_to_many_directories_and_shrinks_to_nothing() {
    let mut checked = Checked::new();
    let key = |number: u32| (number.wrapping_mul(0x9E37_79B1)).to_be_bytes().to_vec();
    for number in 0..40_000 {
        checked.step(&Step::Put(key(number), vec![1; 3]));
    }
    checked.step(&Step::Image);
    for number in 0..40_000 {
        checked.step(&Step::Delete(key(number / 2 + number % 2 * 20_000)));
        if number % 8_000 == 0 {
            assert_has(&checked.store, &checked.model);
        }
    }
    assert_has(&checked.store, &Model::new());
    let (image, model) = &checked.images[0];
    assert_has(&Builder::build(image.chunks(1 << 16)).unwrap(), model);
}

fn two_pages() -> Checked {
    let mut checked = Checked::new();
    checked.step(&Step::Fill(0, 100, 20));
    drop(apply(&mut checked.store, Command::OpenSession));
    checked
}

fn whole_image() -> Vec<u8> {
    let mut checked = Checked::new();
    checked.step(&Step::Fill(0, 3, 2));
    let mut chunks = chunks(&checked.store.image(), 1 << 20);
    assert_eq!(chunks.len(), 1);
    chunks.remove(0)
}
