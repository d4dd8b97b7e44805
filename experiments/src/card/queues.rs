//! The server of HERD's measurements as queues in virtual time.
//!
//! A request passes stages, in its order of arrival: the card's parts, the link, and the server's cores. A stage serves one
//! request at a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A random access to memory: 60 to 120 ns (§4.1.1).
pub(super) const ACCESS_PS: u64 = 90_000;

/// A core's call that sends the response: about 150 ns (§4.1.1).
pub(super) const POST_PS: u64 = 150_000;

/// Lines that a core of the paper's server (Sandy Bridge) can fetch at a time.
const FILL_BUFFERS: usize = 10;

/// A core without new requests advances its pipeline after 100 looks (§4.1.1), of 10 ns each: an assumption.
const IDLE_PS: u64 = 1_000_000;

/// A stage of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The part of the card for inbound verbs.
    Receiver,
    /// The part of the card for outbound verbs.
    Sender,
    /// The part of the card for all messages.
    Messages,
    /// Writes of the cores to the card.
    Lines,
    /// The link and the bus, by direction.
    BytesIn,
    BytesOut,
    /// A core.
    Core(usize),
    /// A core that makes its accesses ahead, in a pipeline of requests.
    Pipeline(usize),
    /// The network: any number of requests at a time.
    Wire,
}

/// Stages of the card and the link.
const CARD_STAGES: usize = 6;

/// A stage, and the time of a request in the stage.
pub(super) type Step = (Stage, u64);

/// A core and its pipeline.
#[derive(Debug, Default)]
struct Core {
    free_ps: u64,
    served: u64,
    /// Requests of clients, or places without request, whose next access is ready at a time; the oldest first.
    pipeline: VecDeque<(Option<usize>, u64)>,
    /// The times at which the fill buffers are free.
    buffers: [u64; FILL_BUFFERS],
    pushes: u64,
}

impl Core {
    /// Takes a request: requests in the pipeline make the access that was fetched, and fetch the next one; the oldest is answered.
    /// Returns the answered client, and the time.
    fn push(
        &mut self,
        now_ps: u64,
        client: Option<usize>,
        accesses: usize,
        post_ps: u64,
    ) -> (Option<usize>, u64) {
        let mut at_ps = now_ps.max(self.free_ps);
        self.pushes += 1;
        self.pipeline.push_back((client, 0));
        let answered = (self.pipeline.len() > accesses).then(|| self.pipeline.pop_front());
        let (answered, ready_ps) = answered.flatten().unwrap_or((None, 0));
        at_ps = at_ps.max(ready_ps);
        for (_, ready_ps) in &mut self.pipeline {
            at_ps = at_ps.max(*ready_ps);
            let buffer = self.buffers.iter_mut().min().expect("a core has fill buffers");
            at_ps = at_ps.max(*buffer);
            *buffer = at_ps + ACCESS_PS;
            *ready_ps = *buffer;
        }
        if answered.is_some() {
            at_ps += post_ps;
            self.served += 1;
        }
        self.free_ps = at_ps;
        (answered, at_ps)
    }

    fn is_waiting(&self) -> bool {
        self.pipeline.iter().any(|(client, _)| client.is_some())
    }
}

/// The load of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Closed loops: the requests that all clients have in flight.
    pub(super) loops: usize,
    pub(super) cores: usize,
    /// Accesses to memory of a request in a pipeline.
    pub(super) accesses: usize,
}

/// The outcome of a run.
pub(super) struct Outcome {
    /// Operations a second, in millions.
    pub(super) mops: f64,
    /// The latency in microseconds: mean, fifth percentile, 95th.
    pub(super) latency_us: [f64; 3],
    /// Operations a second of each core, in millions.
    pub(super) cores_mops: Vec<f64>,
}

/// An event: a client's operation goes on, or a core looks whether requests came since a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Next(usize),
    Idle { core: usize, pushes: u64 },
}

/// Runs closed loops until `count` operations have ended. `next` makes the steps of an operation.
pub(super) fn run(load: Load, count: usize, mut next: impl FnMut() -> Vec<Step>) -> Outcome {
    let mut card = [0u64; CARD_STAGES];
    let mut cores: Vec<Core> = (0..load.cores).map(|_| Core::default()).collect();
    let mut operations: Vec<(Vec<Step>, usize, u64)> =
        (0..load.loops).map(|_| (next(), 0, 0)).collect();
    let mut queue: BinaryHeap<_> =
        (0..load.loops).map(|client| Reverse((0, Event::Next(client)))).collect();
    let (mut latencies_ps, mut last_ps) = (Vec::with_capacity(count), 0);
    while latencies_ps.len() < count {
        let Reverse((now_ps, event)) =
            queue.pop().expect("every loop has an event, or a core does");
        // The core that takes a request, or nothing, into its pipeline.
        let (core, client, post_ps) = match event {
            Event::Idle { core, pushes } if cores[core].pushes == pushes => (core, None, POST_PS),
            Event::Idle { .. } => continue,
            Event::Next(client) => {
                let (steps, step, begun_ps) = &mut operations[client];
                let Some(&(stage, cost_ps)) = steps.get(*step) else {
                    latencies_ps.push(now_ps - *begun_ps);
                    last_ps = now_ps;
                    operations[client] = (next(), 0, now_ps);
                    queue.push(Reverse((now_ps, Event::Next(client))));
                    continue;
                };
                *step += 1;
                let free_ps = match stage {
                    Stage::Wire => &mut { now_ps },
                    Stage::Receiver => &mut card[0],
                    Stage::Sender => &mut card[1],
                    Stage::Messages => &mut card[2],
                    Stage::Lines => &mut card[3],
                    Stage::BytesIn => &mut card[4],
                    Stage::BytesOut => &mut card[5],
                    Stage::Core(core) => {
                        cores[core].served += 1;
                        &mut cores[core].free_ps
                    }
                    Stage::Pipeline(core) => {
                        push(&mut cores, core, (now_ps, Some(client)), load, cost_ps, &mut queue);
                        continue;
                    }
                };
                *free_ps = now_ps.max(*free_ps) + cost_ps;
                queue.push(Reverse((*free_ps, Event::Next(client))));
                continue;
            }
        };
        push(&mut cores, core, (now_ps, client), load, post_ps, &mut queue);
    }
    // Operations in a picosecond are a million of millions a second.
    let mops = |count: u64| count as f64 * 1e6 / last_ps as f64;
    latencies_ps.sort_unstable();
    let at = |share: usize| latencies_ps[count * share / 100] as f64 / 1e6;
    let mean = latencies_ps.iter().sum::<u64>() as f64 / count as f64 / 1e6;
    Outcome {
        mops: mops(count as u64),
        latency_us: [mean, at(5), at(95)],
        cores_mops: cores.iter().map(|core| mops(core.served)).collect(),
    }
}

/// Pushes a request into a core's pipeline; the answered client goes on, and a core with requests looks again.
fn push(
    cores: &mut [Core],
    core: usize,
    (now_ps, client): (u64, Option<usize>),
    load: Load,
    post_ps: u64,
    queue: &mut BinaryHeap<Reverse<(u64, Event)>>,
) {
    let (answered, at_ps) = cores[core].push(now_ps, client, load.accesses, post_ps);
    queue.extend(answered.map(|client| Reverse((at_ps, Event::Next(client)))));
    if cores[core].is_waiting() {
        let pushes = cores[core].pushes;
        queue.push(Reverse((at_ps + IDLE_PS, Event::Idle { core, pushes })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(loops: usize, accesses: usize) -> Outcome {
        let load = Load { loops, cores: 1, accesses };
        run(load, 10_000, || vec![(Stage::Wire, 1_000_000), (Stage::Pipeline(0), POST_PS)])
    }

    #[test]
    fn run__of_one_client_has_the_latency_of_its_steps() {
        let load = Load { loops: 1, cores: 1, accesses: 0 };
        let steps = vec![(Stage::Wire, 1_000_000), (Stage::Receiver, 50_000)];
        let outcome = run(load, 100, || steps.clone());
        assert_eq!(outcome.latency_us, [1.05; 3]);
    }

    #[test]
    fn pipeline__hides_accesses_up_to_its_fill_buffers() {
        let rates = [0, 8, 10, 16, 32].map(|accesses| one(100, accesses).mops);
        assert!((rates[0] / 6.667 - 1.0).abs() < 0.01, "{rates:?}");
        assert!(rates[..3].iter().all(|rate| (rate / rates[0] - 1.0).abs() < 0.01), "{rates:?}");
        assert!(rates[3] < 0.99 * rates[0], "sixteen accesses wait for buffers: {rates:?}");
        assert!(rates[4] < 0.6 * rates[0], "{rates:?}");
    }

    #[test]
    fn pipeline__of_one_client_advances_without_further_requests() {
        let latency_us = one(1, 2).latency_us[0];
        assert!((latency_us - 3.15).abs() < 0.01, "1 us of network, two pauses: {latency_us}");
    }
}
