//! Two cores over a medium that loses, repeats, delays and damages frames, from proptest's seeds.
//! A small sibling of the simulator, for the core alone.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::counters::Counters;

/// A frame on its way: when it arrives, to which side, and its bytes.
struct Flight {
    at: u64,
    order: u64,
    to_server: bool,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Faults {
    loss: u64,
    duplication: u64,
    damage: u64,
    jitter_ns: u64,
}

struct Chaos {
    pair: Pair,
    random: u64,
    faults: Faults,
    flights: Vec<Flight>,
    order: u64,
    runs: HashMap<u64, u32>,
    deferred: Vec<(u64, RequestHandle, Vec<u8>)>,
    done: HashMap<u64, bool>,
}

impl Chaos {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn happens(&mut self, per_1000: u64) -> bool {
        self.next() % 1000 < per_1000
    }

    fn launch(&mut self, to_server: bool, mut bytes: Vec<u8>) {
        let copies = if self.happens(self.faults.loss) { 0 } else { 1 }
            + u64::from(self.happens(self.faults.duplication));
        if self.happens(self.faults.damage) {
            // What names the session: other damage is for the medium's checksums to find.
            let at = 2 + (self.next() % 6) as usize;
            bytes[at] ^= 1 << (self.next() % 8);
        }
        for copy in 0..copies {
            // A second copy may be a replay from long ago.
            let late = if copy > 0 && self.happens(300) { self.next() % 1_000_000_000 } else { 0 };
            let at = self.pair.now + 5_000 + self.next() % self.faults.jitter_ns + late;
            self.order += 1;
            self.flights.push(Flight { at, order: self.order, to_server, bytes: bytes.clone() });
        }
    }

    fn send_all(&mut self) {
        for frame in self.pair.client_sends() {
            self.launch(true, frame);
        }
        for frame in self.pair.server_sends() {
            self.launch(false, frame);
        }
    }

    /// Requests begin with their tag; a response is the request, reversed.
    fn on_request(&mut self, handle: RequestHandle, request: Vec<u8>) {
        let tag = u64::from_le_bytes(*request.first_chunk().expect("requests have a tag"));
        *self.runs.entry(tag).or_default() += 1;
        let response: Vec<u8> = request.iter().rev().copied().collect();
        let delay = if self.happens(200) { self.next() % 30_000_000 } else { 0 };
        self.deferred.push((self.pair.now + delay, handle, response));
    }

    fn on_completion(&mut self, completion: Completion<HeapBuffer>) {
        let request = completion.request.message();
        assert_eq!(u64::from_le_bytes(*request.first_chunk().unwrap()), completion.tag);
        if completion.outcome.is_ok() {
            let expected: Vec<u8> = request.iter().rev().copied().collect();
            assert!(completion.response.message() == expected, "the response differs");
        }
        let former = self.done.insert(completion.tag, completion.outcome.is_ok());
        assert_eq!(former, None, "a call completes once");
    }

    fn deliver_due(&mut self) {
        self.flights.sort_by_key(|flight| (flight.at, flight.order));
        while self.flights.first().is_some_and(|flight| flight.at <= self.pair.now) {
            let flight = self.flights.remove(0);
            let got = if flight.to_server {
                self.pair.at_server(&flight.bytes)
            } else {
                self.pair.at_client(&flight.bytes)
            };
            match got {
                Got::Nothing => {}
                Got::Request(handle, request) => self.on_request(handle, request),
                Got::Completed(completion) => self.on_completion(completion),
            }
        }
        let now = self.pair.now;
        let (due, later) = self.deferred.drain(..).partition(|(at, ..)| *at <= now);
        self.deferred = later;
        let due: Vec<(u64, RequestHandle, Vec<u8>)> = due;
        for (_, handle, response) in due {
            // Refused when the client gave up meanwhile: legal.
            let (server, response) = (&mut self.pair.server, buffer(&response));
            // At once or later: what the client does with the two is not the same.
            let _ = match handle.number % 3 {
                0 => server.respond(handle, Status::Ok, response),
                _ => server.respond_at_once(handle, response, &mut nowhere()),
            };
        }
    }

    fn step(&mut self) {
        self.send_all();
        let timer = self.pair.client.next_timeout_ns();
        let flight = self.flights.iter().map(|flight| flight.at).min();
        let answer = self.deferred.iter().map(|(at, ..)| *at).min();
        let next = [timer, flight, answer].into_iter().flatten().min().unwrap_or(0);
        self.pair.now = next.max(self.pair.now + 1);
        self.deliver_due();
        self.pair.client.handle_timeouts(self.pair.now);
        while let Some(Event::Completed(completion)) = self.pair.client.poll_event() {
            self.on_completion(completion);
        }
    }
}

/// What a run came to: when it ended, both cores' counters, and which calls succeeded.
type Outcome = (u64, [Counters; 2], HashMap<u64, bool>);

fn chaos(seed: u64, sizes: &[usize], faults: Faults, shape: Shape, short_ways: bool) -> Outcome {
    let mut chaos = Chaos {
        pair: Pair::by(shape, short_ways),
        random: seed | 1,
        faults,
        flights: Vec::new(),
        order: 0,
        runs: HashMap::new(),
        deferred: Vec::new(),
        done: HashMap::new(),
    };
    for (tag, &size) in sizes.iter().enumerate() {
        let mut request = (tag as u64).to_le_bytes().to_vec();
        request.extend(pattern(size, seed));
        chaos.pair.call(&request, request.len(), tag as u64);
    }
    for _ in 0..200_000 {
        if chaos.done.len() == sizes.len() {
            break;
        }
        chaos.step();
    }
    assert_eq!(chaos.done.len(), sizes.len(), "every call ends");
    assert!(chaos.runs.values().all(|runs| *runs == 1), "at most once: {:?}", chaos.runs);
    for (tag, succeeded) in &chaos.done {
        assert!(!succeeded || chaos.runs.contains_key(tag), "a success was executed");
        // Eleven losses in a row do not happen at low rates of loss.
        assert!(*succeeded || faults.loss > 50, "call {tag} failed");
    }
    chaos.pair.assert_credits_back();
    let Chaos { pair, done, .. } = chaos;
    (pair.now, [*pair.client.counters(), *pair.server.counters()], done)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// And the short ways of the common case differ from the general one in nothing but length.
    #[test]
    fn every_call_ends_once_and_unharmed(
        seed in any::<u64>(),
        sizes in prop::collection::vec(
            prop_oneof![0usize..40, 1190usize..1240, 2000usize..60_000, 300_000usize..400_000], 1..20),
        loss in prop_oneof![Just(0u64), 1u64..300],
        duplication in 0u64..300,
        damage in 0u64..50,
        jitter_ns in prop_oneof![Just(1u64), 1u64..40_000, 1u64..4_000_000],
        slots in prop_oneof![Just(1u8), Just(2), Just(8), Just(64)],
        credits in prop_oneof![Just(1u16), Just(2), 3u16..64, Just(1000)],
    ) {
        let shape = Shape { slots, credits, ..Shape::default() };
        let faults = Faults { loss, duplication, damage, jitter_ns };
        let short = chaos(seed, &sizes, faults, shape, true);
        let general = chaos(seed, &sizes, faults, shape, false);
        prop_assert_eq!(short, general);
    }
}
