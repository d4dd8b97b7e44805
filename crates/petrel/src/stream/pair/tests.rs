//! Two pairs that exchange batches in any order, against queues of messages.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::stream::wire::{self, DATA, Head, Writer};

type Ends = Pair<()>;

/// Messages of one direction of a stream, in order.
#[derive(Debug, Default)]
struct Direction {
    sent: VecDeque<Vec<u8>>,
    /// The part of the next message that has come.
    begun: Vec<u8>,
    received: usize,
}

/// One side of a model: the pair, the batches on their way to the other side, and the streams by number.
struct Side {
    pair: Ends,
    on_way: Vec<(u64, Vec<u8>)>,
    keys: BTreeMap<u32, Key>,
    ends: BTreeMap<u32, Result<(), Status>>,
}

impl Side {
    fn new(role: Role) -> Self {
        let config = StreamConfig::default();
        Self {
            pair: Pair::new(role, config),
            on_way: vec![],
            keys: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }

    fn transmit(&mut self, now_ns: u64) {
        while self.pair.wants_batch() {
            let mut memory = vec![0; self.pair.room_bytes()];
            let Some((len, sequence)) = self.pair.next_batch(now_ns, &mut memory) else { break };
            memory.truncate(len);
            assert!(len <= wire::BATCH_BYTES_MAX);
            self.on_way.push((sequence, memory));
            assert!(self.on_way.len() as u64 <= UNDER_WAY_MAX);
        }
    }

    fn number(&mut self, key: Key) -> u32 {
        self.pair.stream(key).number
    }

    fn events(&mut self) {
        while let Some(event) = self.pair.pop_event() {
            match event {
                Event::Opened(key, method) => {
                    let number = self.number(key);
                    assert_eq!(method, 7);
                    assert!(self.keys.insert(number, key).is_none(), "a stream opens once");
                }
                // No handle is left.
                Event::Ended(key) if self.pair.streams.get(key).is_none() => {}
                Event::Ended(key) => {
                    let number = self.number(key);
                    let how = self.pair.stream(key).over.clone().expect("it is over");
                    let how = how.map_err(|error| error.status);
                    assert!(self.ends.insert(number, how).is_none(), "a stream ends once");
                }
                Event::Readable(_) | Event::Writable(_) => {}
            }
        }
    }
}

/// Both sides, and the messages of each direction: to the server at 0, to the client at 1.
struct Model {
    sides: [Side; 2],
    messages: BTreeMap<(usize, u32), Direction>,
    now_ns: u64,
}

impl Model {
    fn new() -> Self {
        let sides = [Side::new(Role::Client), Side::new(Role::Server)];
        Self { sides, messages: BTreeMap::new(), now_ns: 1 }
    }

    fn open(&mut self, end_ns: u64) -> u32 {
        let client = &mut self.sides[0];
        let key = client.pair.open(7, end_ns, Metadata::new()).unwrap();
        let number = client.number(key);
        client.keys.insert(number, key);
        number
    }

    fn send(&mut self, by: usize, number: u32, len: usize) -> bool {
        let Some(&key) = self.sides[by].keys.get(&number) else { return false };
        let fill = self.messages.len() as u8 ^ len as u8;
        let message: Vec<u8> = (0..len).map(|at| fill.wrapping_add((at % 251) as u8)).collect();
        let sent = self.sides[by].pair.send(key, |out| out.extend_from_slice(&message)).is_ok();
        if sent {
            self.messages.entry((by, number)).or_default().sent.push_back(message);
        }
        sent
    }

    /// Delivers a batch of a side, and its answer.
    fn deliver(&mut self, by: usize, which: usize) {
        let side = &mut self.sides[by];
        if side.on_way.is_empty() {
            return;
        }
        let (sequence, batch) = side.on_way.swap_remove(which % side.on_way.len());
        self.sides[1 - by].pair.handle_batch(self.now_ns, &batch).unwrap();
        self.sides[by].pair.acknowledge(sequence);
        self.sides.iter_mut().for_each(Side::events);
    }

    /// Reads the messages of a stream that have come to a side, and compares them.
    fn read(&mut self, at: usize, number: u32) {
        let Some(&key) = self.sides[at].keys.get(&number) else { return };
        let mut records = Vec::new();
        if !matches!(self.sides[at].pair.take(key, &mut records), Taken::Records) {
            return;
        }
        let direction = self.messages.get_mut(&(1 - at, number)).expect("messages were sent");
        let mut rest = &records[..];
        while let Some(head) = Head::read(rest) {
            let (record, next) = rest.split_at(head.record_len());
            rest = next;
            direction.begun.extend_from_slice(&record[wire::HEAD..]);
            if head.kind == DATA {
                let expected = direction.sent.pop_front().expect("it was sent");
                assert_eq!(std::mem::take(&mut direction.begun), expected);
                direction.received += 1;
            }
        }
    }

    fn transmit(&mut self) {
        let now_ns = self.now_ns;
        self.sides.iter_mut().for_each(|side| side.transmit(now_ns));
    }

    /// Goes on until nothing moves.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.transmit();
            let numbers: Vec<u32> = self.sides[0].keys.keys().copied().collect();
            for at in 0..2 {
                numbers.iter().for_each(|number| self.read(at, *number));
            }
            self.transmit();
            if self.sides.iter().all(|side| side.on_way.is_empty()) {
                return;
            }
            (0..2).for_each(|by| self.deliver(by, 0));
        }
        panic!("batches without end");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open(u64),
    Send(usize, u32, usize),
    Transmit,
    Deliver(usize, usize),
    Read(usize, u32),
    Finish(usize, u32),
    Reset(usize, u32),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0_u32..6;
    let len = prop_oneof![6 => 0_usize..200, 2 => 0_usize..70_000, 1 => 60_000_usize..600_000];
    prop_oneof![
        2 => prop_oneof![3 => Just(u64::MAX), 1 => 1_u64..2_000].prop_map(Step::Open),
        12 => (0_usize..2, stream.clone(), len).prop_map(|(by, of, len)| Step::Send(by, of, len)),
        6 => Just(Step::Transmit),
        12 => (0_usize..2, 0_usize..4).prop_map(|(by, which)| Step::Deliver(by, which)),
        6 => (0_usize..2, stream.clone()).prop_map(|(at, of)| Step::Read(at, of)),
        1 => (0_usize..2, stream.clone()).prop_map(|(by, of)| Step::Finish(by, of)),
        1 => (0_usize..2, stream).prop_map(|(by, of)| Step::Reset(by, of)),
        1 => (1_u64..500).prop_map(Step::Wait),
    ]
}

fn run(model: &mut Model, step: Step) {
    match step {
        Step::Open(after) => {
            model.open(model.now_ns.saturating_add(after));
        }
        Step::Send(by, of, len) => {
            model.send(by, of, len);
        }
        Step::Transmit => model.transmit(),
        Step::Deliver(by, which) => model.deliver(by, which),
        Step::Read(at, of) => model.read(at, of),
        Step::Finish(by, of) => {
            if let Some(&key) = model.sides[by].keys.get(&of) {
                model.sides[by].pair.finish(key, Ok(()), Metadata::new());
            }
        }
        Step::Reset(by, of) => {
            if let Some(&key) = model.sides[by].keys.get(&of) {
                model.sides[by].pair.reset(key, Status::Cancelled, "dropped");
            }
        }
        Step::Wait(ns) => {
            model.now_ns += ns;
            let now_ns = model.now_ns;
            model.sides.iter_mut().for_each(|side| side.pair.expire(now_ns));
        }
    }
    model.sides.iter_mut().for_each(Side::events);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever the order of steps: messages come in order, once, and whole. Each stream ends once at each side, and a server's
    /// end that its client sees is the server's.
    #[test]
    fn streams__are_queues_that_end_once(steps in prop::collection::vec(step(), 1..120)) {
        let mut model = Model::new();
        steps.into_iter().for_each(|step| run(&mut model, step));
        model.settle();
        for (&(by, number), direction) in &model.messages {
            // A stream without an end has delivered everything.
            if (0..2).all(|side| !model.sides[side].ends.contains_key(&number)) {
                prop_assert_eq!(direction.sent.len(), 0, "stream {} of {}", number, by);
            }
        }
        // The end of a stream at one side is known at the other, once all batches have come.
        let keys: Vec<u32> = model.sides[1].keys.keys().copied().collect();
        for number in keys {
            let ends = [0, 1].map(|side| model.sides[side].ends.get(&number).copied());
            prop_assert_eq!(ends[0].is_some(), ends[1].is_some(), "{} {:?}", number, ends);
            if ends[0] == Some(Ok(())) {
                prop_assert_eq!(ends[1], Some(Ok(())));
                prop_assert_eq!(model.messages.get(&(1, number)).map_or(0, |one| one.sent.len()), 0);
            }
        }
        for side in &mut model.sides {
            let keys: Vec<Key> = side.keys.values().copied().collect();
            keys.into_iter().for_each(|key| side.pair.release(key));
        }
        model.sides.iter_mut().for_each(Side::events);
        model.settle_ends();
        prop_assert!(model.sides.iter().all(|side| side.pair.is_empty() && side.pair.held_bytes == 0));
    }

    /// Batches of a stranger break streams or the pair, and nothing else.
    #[test]
    fn handle_batch__of_any_records(
        batches in prop::collection::vec(prop::collection::vec((0_u32..4, 0_u8..9, 0_usize..40), 0..20), 1..20),
    ) {
        for role in [Role::Client, Role::Server] {
            let mut side = Side::new(role);
            if role == Role::Client {
                (0..2).for_each(|_| drop(side.pair.open(7, u64::MAX, Metadata::new())));
                side.transmit(1);
            }
            for (sequence, records) in batches.iter().enumerate() {
                let mut memory = vec![0; 4_096];
                let mut batch = Writer::new(&mut memory);
                for &(stream, kind, len) in records {
                    batch.record(stream, kind, &[&[7; 40][..len]]);
                }
                let len = batch.finish(sequence as u64);
                if side.pair.handle_batch(1, &memory[..len]).is_err() {
                    side.pair.fail(&Error::new(Status::Internal, "a breach"));
                }
                side.transmit(1);
                while let Some((sequence, _)) = side.on_way.pop() {
                    side.pair.acknowledge(sequence);
                }
            }
        }
    }
}

impl Model {
    /// Exchanges batches until nothing moves, without readers.
    fn settle_ends(&mut self) {
        for _ in 0..100 {
            self.transmit();
            (0..2).for_each(|by| self.deliver(by, 0));
        }
    }
}

fn server_of(records: &[(u32, u8, Vec<u8>)]) -> (Side, Result<(), wire::Breach>) {
    let mut side = Side::new(Role::Server);
    let mut memory = vec![0; 1 << 20];
    let mut batch = Writer::new(&mut memory);
    for (stream, kind, bytes) in records {
        batch.record(*stream, *kind, &[bytes]);
    }
    let len = batch.finish(0);
    let done = side.pair.handle_batch(1, &memory[..len]);
    side.events();
    (side, done)
}

fn open(number: u32) -> (u32, u8, Vec<u8>) {
    (number, wire::OPEN, [7, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec())
}

#[test]
fn handle_batch__that_breaks_a_stream_leaves_the_others() {
    let data = |number, len| (number, wire::DATA, vec![1; len]);
    let piece = |len| (0, wire::PART, vec![1; len]);
    let credit = |limit: u64| (0, wire::CREDIT, limit.to_le_bytes().to_vec());
    let end = (0, wire::END, vec![0, 0]);
    let cases: [&[_]; 8] = [
        &[data(0, 65_537)],
        &[data(0, 65_000), data(0, 65_000), data(0, 65_000), data(0, 60_000), data(0, 40_000)][..],
        &[piece(0)],
        &[piece(3), end.clone()],
        &[end.clone(), end.clone()],
        &[end.clone(), data(0, 1)],
        &[credit(5)],
        &[(0, wire::CREDIT, vec![1; 7])],
    ];
    for case in cases {
        let records = [&[open(0), open(1)], case, &[data(1, 5)]].concat();
        let len: usize = records.iter().map(|(_, _, bytes)| 8 + bytes.len()).sum();
        let (mut side, done) = server_of(&records);
        if len > wire::BATCH_BYTES_MAX {
            assert!(done.is_err());
            continue;
        }
        assert_eq!(done, Ok(()), "{:?}", case[0]);
        assert_eq!(side.ends.get(&0), Some(&Err(Status::Internal)), "{:?}", case[0]);
        let other = side.keys[&1];
        assert!(matches!(side.pair.take(other, &mut Vec::new()), Taken::Records));
        side.transmit(1);
        let (_, batch) = &side.on_way[0];
        let head = Head::read(&batch[wire::BATCH_HEAD..]).expect("a record");
        assert_eq!((head.stream, head.kind), (0, wire::RESET));
    }
}

#[test]
fn handle_batch__that_breaks_the_pair() {
    for records in [
        vec![(3, wire::DATA, vec![1])],
        vec![open(1), open(1)],
        vec![open(1), open(0)],
        vec![open(u32::MAX)],
    ] {
        let (_, done) = server_of(&records);
        assert!(done.is_err(), "{records:?}");
    }
    let mut client = Side::new(Role::Client);
    let mut memory = vec![0; 100];
    let mut batch = Writer::new(&mut memory);
    batch.record(0, wire::OPEN, &[&[0; 10]]);
    let len = batch.finish(0);
    assert!(client.pair.handle_batch(1, &memory[..len]).is_err());
    let mut server = Side::new(Role::Server);
    let mut handle = |sequence: u64, rest: &[u8]| {
        server.pair.handle_batch(1, &[&sequence.to_le_bytes(), rest].concat())
    };
    assert_eq!(handle(1, &[]), Ok(()));
    assert!(handle(1, &[]).is_err(), "twice, before its time");
    assert!(handle(4, &[]).is_err(), "too far ahead");
    assert!(handle(0, &[1, 2, 3]).is_err(), "half a head");
    assert!(handle(0, &[0, 0, 0, 0, DATA, 9, 0, 0, 1]).is_err(), "half a record");
    assert_eq!(handle(0, &[]), Ok(()));
    assert!(handle(0, &[]).is_err(), "an old one");
    assert_eq!(handle(2, &[]), Ok(()));
}

#[test]
fn open__beyond_the_limits_is_refused_alone() {
    let config = StreamConfig { streams_max: 2, ..StreamConfig::default() };
    let mut side = Side { pair: Pair::new(Role::Server, config), ..Side::new(Role::Server) };
    let mut memory = vec![0; 4_096];
    let mut batch = Writer::new(&mut memory);
    for number in 0..3 {
        let (number, kind, bytes) = open(number);
        batch.record(number, kind, &[&bytes]);
    }
    batch.record(3, wire::OPEN, &[&[1, 2]]);
    let len = batch.finish(0);
    side.pair.handle_batch(1, &memory[..len]).unwrap();
    side.events();
    assert_eq!(side.keys.keys().copied().collect::<Vec<_>>(), [0, 1]);
    side.transmit(1);
    let mut client = Side::new(Role::Client);
    for _ in 0..4 {
        let key = client.pair.open(7, u64::MAX, Metadata::new()).unwrap();
        let number = client.number(key);
        client.keys.insert(number, key);
    }
    client.transmit(1);
    client.pair.handle_batch(1, &side.on_way[0].1).unwrap();
    client.events();
    let refused = [(2, Err(Status::ResourceExhausted)), (3, Err(Status::InvalidArgument))];
    assert_eq!(client.ends.into_iter().collect::<Vec<_>>(), refused);
    let third = client.pair.stream(client.keys[&2]).over.clone();
    assert_eq!(third.unwrap().unwrap_err().execution, Execution::Refused);
    let client = &mut Pair::<()>::new(Role::Client, config);
    assert!(
        client.open(7, u64::MAX, Metadata::new()).is_ok()
            && client.open(7, u64::MAX, Metadata::new()).is_ok()
    );
    let error = client.open(7, u64::MAX, Metadata::new()).unwrap_err();
    assert_eq!((error.status, error.execution), (Status::ResourceExhausted, Execution::NotSent));
}

#[test]
fn fail__of_streams_that_the_peer_knows_or_not() {
    let mut client = Side::new(Role::Client);
    let first = client.pair.open(7, u64::MAX, Metadata::new()).unwrap();
    client.transmit(1);
    let second = client.pair.open(7, 5_000, Metadata::new()).unwrap();
    let lost = Error::of(Status::Unavailable, "lost", Execution::MayHaveExecuted);
    client.pair.fail(&lost);
    client.pair.fail(&Error::new(Status::Internal, "again"));
    let execution = |side: &mut Side, key| match side.pair.take(key, &mut Vec::new()) {
        Taken::Failed(error) => (error.status, error.execution),
        other => panic!("{other:?}"),
    };
    let unavailable = Status::Unavailable;
    assert_eq!(execution(&mut client, first), (unavailable, Execution::MayHaveExecuted));
    assert_eq!(execution(&mut client, second), (unavailable, Execution::NotSent));
    client.events();
    assert_eq!(client.ends.len(), 2);
    assert!(!client.pair.wants_batch());
    assert!(matches!(client.pair.send(first, |_| {}), Err(NotSent::Ended(_))));
    assert_eq!(
        client.pair.open(7, u64::MAX, Metadata::new()).unwrap_err().execution,
        Execution::NotSent
    );
    [first, second].into_iter().for_each(|key| client.pair.release(key));
    assert!(client.pair.is_empty());
}

#[test]
fn send__without_a_reader_stops_at_both_windows_and_others_go_on() {
    let mut model = Model::new();
    let (stuck, other) = (model.open(u64::MAX), model.open(u64::MAX));
    let mut sent = 0;
    for _ in 0..1_000 {
        while model.send(0, stuck, 1_000) {
            sent += 1;
        }
        model.transmit();
        (0..2).for_each(|by| model.deliver(by, 0));
    }
    assert!((508..=522).contains(&sent), "{sent} messages of 1 008 bytes in two windows");
    assert_eq!(model.sides[1].pair.held_bytes / 1_008, 260);
    for _ in 0..1_000 {
        assert!(model.send(0, other, 5_000));
        model.transmit();
        (0..2).for_each(|by| model.deliver(by, 0));
        model.read(1, other);
    }
    assert_eq!(model.messages[&(0, other)].received, 1_000);
    model.settle();
    assert_eq!(model.messages[&(0, stuck)].sent.len(), 0, "the reader has come");
}

#[test]
fn next_batch__of_idle_streams_is_none() {
    let mut model = Model::new();
    for _ in 0..1_000 {
        model.open(u64::MAX);
    }
    model.settle();
    assert_eq!(model.sides[1].keys.len(), 1_000);
    model.now_ns += 1_000_000_000_000;
    model.sides.iter_mut().for_each(|side| side.pair.expire(1_000_000_000_000));
    assert!(model.sides.iter().all(|side| !side.pair.wants_batch()));
    assert!(size_of::<Stream<[usize; 6]>>() <= 300, "{}", size_of::<Stream<[usize; 6]>>());
}
