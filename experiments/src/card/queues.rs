//! The network card of HERD's measurements as a queueing model in virtual time.
//!
//! A request passes stages, in its order of arrival: the card's parts, the link, and the server's cores. A stage serves one
//! request at a time. Constants are the figures of the paper (Kalia et al., SIGCOMM 2014), each with its section; one, the
//! bandwidth, is fitted to a figure of §5.3. The card's cache of queue pairs is left out: the model has no more clients than
//! §5.1.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One way through the network: half a round trip (§2.2.1: 1 µs).
pub(super) const WIRE_PS: u64 = 1_000_000;

/// An inbound WRITE of up to 128 bytes: 35 million a second (§3.2.2).
const WRITE_PS: u64 = 1_000_000 / 35;

/// An inbound READ: 26 million a second (§3.2.2).
const READ_PS: u64 = 1_000_000 / 26;

/// An inbound SEND, whose receiver posts a RECV: ECHOs by SEND alone reach 21 million a second (Figure 5).
const SEND_PS: u64 = 1_000_000 / 21;

/// A message in either direction: 60 million a second, as ECHOs of 16 bytes show (§3.2.3).
const MESSAGE_PS: u64 = 1_000_000 / 60;

/// A cache line that a core writes to the card: outbound SENDs of 60 bytes take two, and reach 26 million a second (§5.3).
const LINE_PS: u64 = 1_000_000 / 52;

/// An outbound message that the card fetches from memory. It is never slower than half a READ (§3.2.2).
const FETCHED_PS: u64 = 2 * READ_PS;

/// Bytes before the payload of an inlined message: WRITEs above 28 bytes need a second line (§3.2.3); SENDs over UD have
/// a larger header, and need a third above 60 bytes (§5.3).
const WRITE_HEAD_BYTES: u64 = 36;
const SEND_HEAD_BYTES: u64 = 68;

/// Values from this size on are not inlined (§5.3).
const FETCHED_BYTES_MIN: u64 = 144;

/// Picoseconds a byte of the link and the bus: fitted to 17.2 million READs of 288 bytes a second (§5.3).
const BYTE_PS: u64 = 1_000_000_000 / 17_200 / 288;

/// A stage of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The part of the card for inbound requests.
    Inbound,
    /// The part of the card for all messages.
    Messages,
    /// Writes of the cores to the card, or the card's fetches of messages.
    Outbound,
    /// The link and the bus, by direction.
    BytesIn,
    BytesOut,
    /// A core.
    Core(usize),
    /// The network: any number of requests at a time.
    Wire,
}

/// A stage, and the time of a request in the stage.
pub(super) type Step = (Stage, u64);

/// The steps of a READ of some bytes, at the server, with both ways.
pub(super) fn read(bytes: u64) -> Vec<Step> {
    vec![
        (Stage::Wire, WIRE_PS),
        (Stage::Inbound, READ_PS),
        (Stage::BytesOut, bytes * BYTE_PS),
        (Stage::Wire, WIRE_PS),
    ]
}

/// The steps of a request that a client WRITEs.
pub(super) fn write_in(bytes: u64) -> [Step; 4] {
    request(WRITE_PS, bytes)
}

/// The steps of a request that a client SENDs.
pub(super) fn send_in(bytes: u64) -> [Step; 4] {
    request(SEND_PS, bytes)
}

fn request(inbound_ps: u64, bytes: u64) -> [Step; 4] {
    [
        (Stage::Wire, WIRE_PS),
        (Stage::Inbound, inbound_ps),
        (Stage::Messages, MESSAGE_PS),
        (Stage::BytesIn, bytes * BYTE_PS),
    ]
}

/// The steps of a response by WRITE.
pub(super) fn write_out(bytes: u64) -> [Step; 4] {
    response(WRITE_HEAD_BYTES, bytes)
}

/// The steps of a response by SEND.
pub(super) fn send_out(bytes: u64) -> [Step; 4] {
    response(SEND_HEAD_BYTES, bytes)
}

fn response(head_bytes: u64, bytes: u64) -> [Step; 4] {
    let outbound_ps = match bytes >= FETCHED_BYTES_MIN {
        true => FETCHED_PS,
        false => (head_bytes + bytes).div_ceil(64) * LINE_PS,
    };
    [
        (Stage::Outbound, outbound_ps),
        (Stage::Messages, MESSAGE_PS),
        (Stage::BytesOut, bytes * BYTE_PS),
        (Stage::Wire, WIRE_PS),
    ]
}

/// The server in virtual time.
struct Server {
    /// For every stage, the time at which all arrivals are served.
    free_ps: Vec<u64>,
    served: Vec<u64>,
}

impl Server {
    fn index(stage: Stage) -> usize {
        match stage {
            Stage::Inbound => 0,
            Stage::Messages => 1,
            Stage::Outbound => 2,
            Stage::BytesIn => 3,
            Stage::BytesOut => 4,
            Stage::Core(number) => 5 + number,
            Stage::Wire => unreachable!("the network serves any number at a time"),
        }
    }

    /// Serves a request from its arrival on; returns the time of the end.
    fn serve(&mut self, now_ps: u64, (stage, cost_ps): Step) -> u64 {
        if stage == Stage::Wire {
            return now_ps + cost_ps;
        }
        let index = Self::index(stage);
        let free_ps = &mut self.free_ps[index];
        *free_ps = now_ps.max(*free_ps) + cost_ps;
        self.served[index] += 1;
        *free_ps
    }
}

/// The outcome of a run.
pub(super) struct Outcome {
    /// Operations a second, in millions.
    pub(super) mops: f64,
    /// The mean latency, in microseconds.
    pub(super) latency_us: f64,
    /// Operations a second of each core, in millions.
    pub(super) cores_mops: Vec<f64>,
}

/// Runs `clients` closed loops until `count` operations have ended. `next` makes the steps of an operation.
pub(super) fn run(
    clients: usize,
    cores: usize,
    count: u64,
    mut next: impl FnMut() -> Vec<Step>,
) -> Outcome {
    let mut server = Server { free_ps: vec![0; 5 + cores], served: vec![0; 5 + cores] };
    let mut operations: Vec<(Vec<Step>, usize, u64)> =
        (0..clients).map(|_| (next(), 0, 0)).collect();
    let mut queue: BinaryHeap<_> = (0..clients).map(|client| Reverse((0, client))).collect();
    let (mut ended, mut latency_ps, mut last_ps) = (0, 0, 0);
    while let Some(Reverse((now_ps, client))) = queue.pop() {
        let (steps, step, begun_ps) = &mut operations[client];
        if let Some(next) = steps.get(*step) {
            *step += 1;
            queue.push(Reverse((server.serve(now_ps, *next), client)));
            continue;
        }
        ended += 1;
        latency_ps += now_ps - *begun_ps;
        last_ps = now_ps;
        if ended == count {
            break;
        }
        operations[client] = (next(), 0, now_ps);
        queue.push(Reverse((now_ps, client)));
    }
    // Operations in a picosecond are a million of millions a second.
    let mops = |count: u64| count as f64 * 1e6 / last_ps as f64;
    Outcome {
        mops: mops(ended),
        latency_us: latency_ps as f64 / ended as f64 / 1e6,
        cores_mops: server.served[5..].iter().map(|served| mops(*served)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate of the busiest stage with operations of the given steps.
    fn bound(steps: &[Step]) -> f64 {
        let steps = steps.to_vec();
        run(200, 1, 50_000, || steps.clone()).mops
    }

    fn is_near(value: f64, paper: f64, share: f64) -> bool {
        (value / paper - 1.0).abs() <= share
    }

    #[test]
    fn run__reaches_the_rates_of_the_verbs() {
        assert!(is_near(bound(&read(32)), 26.0, 0.01), "READs of §3.2.2");
        assert!(is_near(bound(&write_in(32)), 35.0, 0.01), "WRITEs of §3.2.2");
        assert!(is_near(bound(&read(288)), 17.2, 0.01), "READs of §5.3, the fitted figure");
        let echo = |request: [Step; 4], response: [Step; 4]| bound(&[request, response].concat());
        assert!(is_near(echo(write_in(32), write_out(32)), 26.0, 0.01), "Figure 5, WRITE");
        assert!(is_near(echo(write_in(32), send_out(32)), 26.0, 0.01), "Figure 5, WRITE and SEND");
        assert!(is_near(echo(send_in(32), send_out(32)), 21.0, 0.01), "Figure 5, SEND");
        assert!(is_near(echo(write_in(16), write_out(16)), 30.0, 0.01), "§3.2.3, 16 bytes");
    }

    #[test]
    fn run__of_one_client_has_the_latency_of_its_steps() {
        let outcome = run(1, 1, 100, || read(32));
        let steps_ps: u64 = read(32).iter().map(|step| step.1).sum();
        assert!((outcome.latency_us * 1e6 - steps_ps as f64).abs() < 1.0);
    }
}
