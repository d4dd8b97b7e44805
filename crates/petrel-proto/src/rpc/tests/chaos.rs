//! Two cores over a medium that loses, repeats, delays and damages frames, seeded by proptest. A small
//! version of the simulator, for the core alone.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::counters::Counters;

/// A frame in flight: time of arrival, side, and bytes.
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
    /// The earliest time at which a call may expire, by its deadline or the default timeout.
    deadlines: HashMap<u64, u64>,
    /// Expired calls.
    late: HashSet<u64>,
    /// The times at which calls are to be cancelled.
    cancels: Vec<(u64, u64)>,
    /// Calls reported as not executed.
    spared: HashSet<u64>,
    /// Watched requests without a notice so far.
    watched: HashSet<RequestHandle>,
    /// Frames sent by the client and the server, and frames passed to them.
    sent: [u64; 2],
    taken: [u64; 2],
    /// Answers given by the server's application.
    answers: u64,
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
            // Damages the session and token only: a medium's checksum finds other damage.
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
            self.sent[0] += 1;
            self.launch(true, frame);
        }
        for frame in self.pair.server_sends() {
            self.sent[1] += 1;
            self.launch(false, frame);
        }
    }

    /// Requests begin with their tag; a response is the request, reversed.
    fn on_request(&mut self, handle: RequestHandle, request: Vec<u8>) {
        let tag = u64::from_le_bytes(*request.first_chunk().expect("requests have a tag"));
        *self.runs.entry(tag).or_default() += 1;
        if tag % 2 == 1 && self.pair.server.watch(handle) {
            self.watched.insert(handle);
        }
        let response: Vec<u8> = request.iter().rev().copied().collect();
        let delay = if self.happens(200) { self.next() % 30_000_000 } else { 0 };
        self.deferred.push((self.pair.now + delay, handle, response));
    }

    fn on_completion(&mut self, completion: Completion<HeapBuffer>) {
        let request = completion.request.message();
        assert_eq!(u64::from_le_bytes(*request.first_chunk().unwrap()), completion.tag);
        if let Err(failure) = &completion.outcome {
            self.on_failure(completion.tag, failure);
        } else {
            let expected: Vec<u8> = request.iter().rev().copied().collect();
            assert!(completion.response.message() == expected, "the response differs");
        }
        let former = self.done.insert(completion.tag, completion.outcome.is_ok());
        assert_eq!(former, None, "a call completes once");
    }

    fn on_failure(&mut self, tag: u64, failure: &CallFailure) {
        if matches!(failure.execution, Execution::NotSent | Execution::Refused) {
            self.spared.insert(tag);
        }
        if failure.status == Status::DeadlineExceeded {
            // A server may refuse slightly early, because the time left is rounded down.
            let slack_ns = u64::from(failure.execution == Execution::Refused) * 1_000;
            assert!(self.deadlines[&tag] <= self.pair.now + slack_ns, "call {tag} ended too early");
            self.late.insert(tag);
        }
    }

    /// Makes a call, sometimes with a deadline, or to be cancelled later.
    fn call(&mut self, tag: u64, request: &[u8], gives_up: bool) {
        self.deadlines.insert(tag, self.pair.now + Config::default().call_timeout_ns);
        if !gives_up {
            return self.pair.call(request, request.len(), tag);
        }
        if self.happens(200) {
            let at = self.pair.now + self.next() % 10_000_000;
            self.cancels.push((at, tag));
        }
        if self.happens(500) {
            return self.pair.call(request, request.len(), tag);
        }
        let ahead_ns = self.next() % [1_000, 100_000, 3_000_000, 100_000_000][tag as usize % 4];
        let deadline_ns = self.pair.now + ahead_ns;
        self.deadlines.insert(tag, deadline_ns);
        self.pair.call_until(request, request.len(), tag, deadline_ns);
    }

    fn cancel_due(&mut self) {
        let now = self.pair.now;
        for (_, tag) in self.cancels.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            let ended = self.pair.client.cancel(self.pair.session, |other| *other == tag);
            assert_eq!(ended.is_none(), self.done.contains_key(&tag));
            if let Some(completion) = ended {
                assert_eq!(completion.outcome.as_ref().unwrap_err().status, Status::Cancelled);
                self.on_completion(completion);
            }
        }
    }

    fn take_server_events(&mut self) {
        while let Some(event) = self.pair.server.poll_event() {
            let Event::Cancelled(handle) = event else { panic!("{event:?}") };
            assert!(self.watched.remove(&handle), "{handle:?} is told of without need");
            assert!(!self.pair.server.is_awaited(handle));
        }
    }

    fn deliver_due(&mut self) {
        self.flights.sort_by_key(|flight| (flight.at, flight.order));
        while self.flights.first().is_some_and(|flight| flight.at <= self.pair.now) {
            let flight = self.flights.remove(0);
            self.taken[usize::from(flight.to_server)] += 1;
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
            // Refused if the client has given up meanwhile, as allowed.
            if self.pair.server.is_awaited(handle) {
                self.watched.remove(&handle);
            }
            let (server, response) = (&mut self.pair.server, buffer(&response));
            self.answers += 1;
            // Answered later or at once: the client treats the two cases differently.
            let _ = match handle.number % 3 {
                0 => server.respond(handle, Status::Ok, response),
                _ => server.respond_at_once(handle, response, &mut nowhere()),
            };
        }
    }

    fn counters(&self) -> [Counters; 2] {
        [*self.pair.client.counters(), *self.pair.server.counters()]
    }

    /// Checks that every call, frame and answer is counted once, in one category.
    fn check_counters(&mut self, calls: u64) {
        // Empties the queues, to send all created frames.
        self.send_all();
        let [client, server] = self.counters();
        assert_eq!(client.calls_started, calls);
        let succeeded = self.done.values().filter(|succeeded| **succeeded).count() as u64;
        assert_eq!((client.calls_succeeded, client.calls_failed), (succeeded, calls - succeeded));
        assert_eq!(server.requests_received, self.runs.len() as u64);
        // The core itself answers requests already expired on arrival.
        let answers = self.answers + server.requests_expired;
        assert_eq!(server.responses_sent + server.answers_discarded, answers);
        for (place, counters) in [client, server].iter().enumerate() {
            let all = |prefix: &str| -> u64 {
                counters.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
            };
            let sent = all("packets_") + counters.control_frames_sent;
            assert_eq!(sent, self.sent[place], "frames sent: {counters:?}");
            let taken = counters.frames_accepted + all("dropped_");
            assert_eq!(taken, self.taken[place], "frames taken, or dropped: {counters:?}");
        }
    }

    /// Delivers late frames after all calls have ended.
    fn let_all_arrive(&mut self) {
        while !self.flights.is_empty() {
            let next = self.flights.iter().map(|flight| flight.at).min();
            self.pair.now = next.unwrap_or(0).max(self.pair.now);
            self.deliver_due();
            self.take_server_events();
        }
    }

    fn step(&mut self) {
        self.send_all();
        let timer = self.pair.client.next_timeout_ns();
        let flight = self.flights.iter().map(|flight| flight.at).min();
        let answer = self.deferred.iter().map(|(at, ..)| *at).min();
        let cancel = self.cancels.iter().map(|(at, _)| *at).min();
        let next = [timer, flight, answer, cancel].into_iter().flatten().min().unwrap_or(0);
        self.pair.now = next.max(self.pair.now + 1);
        self.deliver_due();
        self.take_server_events();
        self.cancel_due();
        self.pair.client.handle_timeouts(self.pair.now);
        while let Some(Event::Completed(completion)) = self.pair.client_event() {
            self.on_completion(completion);
        }
    }
}

/// The result of a run: its end time, the counters of both cores, and the success of every call.
type Outcome = (u64, [Counters; 2], HashMap<u64, bool>);

fn chaos(
    seed: u64,
    sizes: &[usize],
    faults: Faults,
    shape: Shape,
    [fast_path, gives_up]: [bool; 2],
) -> Outcome {
    let mut chaos = Chaos {
        pair: Pair::by(shape, fast_path),
        random: seed | 1,
        faults,
        flights: Vec::new(),
        order: 0,
        runs: HashMap::new(),
        deferred: Vec::new(),
        done: HashMap::new(),
        deadlines: HashMap::new(),
        late: HashSet::new(),
        cancels: Vec::new(),
        spared: HashSet::new(),
        watched: HashSet::new(),
        sent: [0; 2],
        taken: [0; 2],
        answers: 0,
    };
    for (tag, &size) in sizes.iter().enumerate() {
        let mut request = (tag as u64).to_le_bytes().to_vec();
        request.extend(pattern(size, seed));
        chaos.call(tag as u64, &request, gives_up);
    }
    for _ in 0..200_000 {
        if chaos.done.len() == sizes.len() {
            break;
        }
        chaos.step();
    }
    assert_eq!(chaos.done.len(), sizes.len(), "every call ends");
    let (end_ns, counters) = (chaos.pair.now, chaos.counters());
    chaos.let_all_arrive();
    assert!(chaos.runs.values().all(|runs| *runs == 1), "at most once: {:?}", chaos.runs);
    assert!(chaos.spared.iter().all(|tag| !chaos.runs.contains_key(tag)), "{:?}", chaos.spared);
    for (tag, succeeded) in &chaos.done {
        assert!(!succeeded || chaos.runs.contains_key(tag), "a success was executed");
        // Eleven losses in a row do not happen at low rates of loss. But this number of large messages can
        // take more than a minute: with one credit, every packet takes milliseconds.
        let may_fail = faults.loss > 50 || gives_up || chaos.late.contains(tag);
        assert!(*succeeded || may_fail, "call {tag} failed");
    }
    chaos.pair.assert_credits_back();
    chaos.check_counters(sizes.len() as u64);
    chaos.pair.server.close(chaos.pair.server_session, Status::Unavailable, "over");
    chaos.take_server_events();
    assert!(chaos.watched.is_empty(), "nobody told of {:?}", chaos.watched);
    (end_ns, counters, chaos.done)
}

/// Faults of a network, from the mildest to the worst.
fn any_faults() -> impl Strategy<Value = Faults> {
    let jitter_ns = prop_oneof![Just(1u64), 1u64..40_000, 1u64..4_000_000];
    let drawn = (prop_oneof![Just(0u64), 1u64..300], 0u64..300, 0u64..50, jitter_ns);
    drawn.prop_map(|(loss, duplication, damage, jitter_ns)| Faults {
        loss,
        duplication,
        damage,
        jitter_ns,
    })
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let slots = prop_oneof![Just(1u8), Just(2), Just(8), Just(64)];
    let credits = prop_oneof![Just(1u16), Just(2), 3u16..64, Just(1000)];
    (slots, credits).prop_map(|(slots, credits)| Shape {
        slots: slots.into(),
        credits,
        ..Shape::default()
    })
}

fn any_sizes() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![0usize..40, 1190usize..1240, 2000usize..60_000, 300_000usize..400_000];
    prop::collection::vec(size, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The fast paths and the general path have equal results.
    #[test]
    fn every_call_ends_once_and_unharmed(
        (seed, sizes, faults, shape) in (any::<u64>(), any_sizes(), any_faults(), any_shape()),
    ) {
        let short = chaos(seed, &sizes, faults, shape, [true, false]);
        let general = chaos(seed, &sizes, faults, shape, [false, false]);
        prop_assert_eq!(short, general);
    }

    /// The same with callers that give up.
    #[test]
    fn every_call_that_is_given_up_ends_once_and_unharmed(
        (seed, sizes, faults, shape) in (any::<u64>(), any_sizes(), any_faults(), any_shape()),
    ) {
        let short = chaos(seed, &sizes, faults, shape, [true, true]);
        let general = chaos(seed, &sizes, faults, shape, [false, true]);
        prop_assert_eq!(short, general);
    }
}
