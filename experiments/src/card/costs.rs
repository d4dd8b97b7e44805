//! The costs of the modelled card, fitted to HERD's Figures 3 to 6 alone.
//!
//! An observation is a rate that the paper's text reads from one of these figures. The fit searches the costs with which the model has
//! these rates. No figure of the paper's §5 is known here: the model predicts those.

use serde::Serialize;

use super::queues::{Stage, Step};

/// Bytes before the payload in a descriptor that a core writes to the card (ConnectX-3: control 16, remote address 16 or address of a
/// datagram 48, inline header 4). A WRITE of more than 28 bytes needs a second line, as Figure 4 has it.
const WRITE_DESCRIPTOR_BYTES: u64 = 36;
const SEND_DESCRIPTOR_BYTES: u64 = 68;

/// Bytes around the payload on the link: InfiniBand's LRH, BTH and checksums, and RETH, DETH or AETH.
const WRITE_HEAD_BYTES: u64 = 42;
const SEND_HEAD_BYTES: u64 = 34;
const READ_HEAD_BYTES: u64 = 30;

/// Values from this size on are not inlined: HERD's choice (§5.3).
const FETCHED_BYTES_MIN: u64 = 144;

/// One way through the network: half a round trip (§2.2.1: 1 us).
const WIRE_PS: u64 = 1_000_000;

/// Contexts of connections that the card holds. Figures 3 and 4 have all their rate with 16 connections, and Figure 6 has lost most of
/// it with 256; the text tells no more. The default is the geometric mean of both.
pub(crate) const CONTEXTS: u16 = 64;

/// The share of uniformly drawn connections whose context a cache of some contexts does not hold.
pub(super) fn missing(connections: usize, contexts: f64) -> f64 {
    (1.0 - contexts / connections as f64).max(0.0)
}

/// The costs of the card, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Costs {
    ns: [f64; NAMES.len()],
    contexts: f64,
}

/// The names of the costs, in the order of the constants below.
const NAMES: [&str; 10] = [
    "a WRITE, either way",
    "a READ, inbound",
    "a READ, outbound",
    "a RECV of an inbound SEND",
    "a message of either direction",
    "a line of 64 bytes, written by a core",
    "a message that the card fetches",
    "a byte of the link",
    "a missing context, inbound",
    "a missing context, outbound",
];
const WRITE: usize = 0;
const READ_IN: usize = 1;
const READ_OUT: usize = 2;
const RECV: usize = 3;
const MESSAGE: usize = 4;
const LINE: usize = 5;
const FETCHED: usize = 6;
const BYTE: usize = 7;
const CONTEXT_IN: usize = 8;
const CONTEXT_OUT: usize = 9;

impl Costs {
    fn ps(&self, cost: usize, count: f64) -> u64 {
        (self.ns[cost] * count * 1e3).round() as u64
    }

    /// The share of a verb's time that misses of contexts add, in verbs over one of many connections.
    pub(super) fn miss_of_write(&self) -> f64 {
        self.ns[CONTEXT_OUT] / self.ns[WRITE]
    }

    /// The steps of a READ of some bytes, at the server, with both ways.
    pub(super) fn read(&self, bytes: u64, connections: usize) -> Vec<Step> {
        let missing = self.ps(CONTEXT_IN, missing(connections, self.contexts));
        vec![
            (Stage::Wire, WIRE_PS),
            (Stage::Receiver, self.ps(READ_IN, 1.0) + missing),
            (Stage::BytesOut, self.ps(BYTE, (READ_HEAD_BYTES + bytes) as f64)),
            (Stage::Wire, WIRE_PS),
        ]
    }

    /// The steps of a READ that the server makes.
    fn read_out(&self, bytes: u64) -> Vec<Step> {
        let bytes = (READ_HEAD_BYTES + bytes) as f64;
        vec![(Stage::Sender, self.ps(READ_OUT, 1.0)), (Stage::BytesIn, self.ps(BYTE, bytes))]
    }

    /// The steps of a request that a client WRITEs.
    pub(super) fn write_in(&self, bytes: u64, connections: usize) -> Vec<Step> {
        let missing = self.ps(CONTEXT_IN, missing(connections, self.contexts));
        self.request(self.ps(WRITE, 1.0) + missing, WRITE_HEAD_BYTES + bytes)
    }

    /// The steps of a request that a client SENDs, for which the server posts a RECV.
    pub(super) fn send_in(&self, bytes: u64) -> Vec<Step> {
        self.request(self.ps(WRITE, 1.0) + self.ps(RECV, 1.0), SEND_HEAD_BYTES + bytes)
    }

    fn request(&self, receiver_ps: u64, bytes: u64) -> Vec<Step> {
        vec![
            (Stage::Wire, WIRE_PS),
            (Stage::Receiver, receiver_ps),
            (Stage::Messages, self.ps(MESSAGE, 1.0)),
            (Stage::BytesIn, self.ps(BYTE, bytes as f64)),
        ]
    }

    /// The steps of a response by WRITE.
    pub(super) fn write_out(&self, bytes: u64, connections: usize) -> Vec<Step> {
        let missing = self.ps(CONTEXT_OUT, missing(connections, self.contexts));
        self.response(missing, [WRITE_DESCRIPTOR_BYTES, WRITE_HEAD_BYTES], bytes)
    }

    /// The steps of a response by SEND over a datagram queue, whose only context the card holds.
    pub(super) fn send_out(&self, bytes: u64) -> Vec<Step> {
        self.response(0, [SEND_DESCRIPTOR_BYTES, SEND_HEAD_BYTES], bytes)
    }

    fn response(&self, missing_ps: u64, [descriptor, head]: [u64; 2], bytes: u64) -> Vec<Step> {
        let is_fetched = bytes >= FETCHED_BYTES_MIN;
        let lines = if is_fetched { 1 } else { (descriptor + bytes).div_ceil(64) };
        let sender = if is_fetched { FETCHED } else { WRITE };
        vec![
            (Stage::Lines, self.ps(LINE, lines as f64)),
            (Stage::Sender, self.ps(sender, 1.0) + missing_ps),
            (Stage::Messages, self.ps(MESSAGE, 1.0)),
            (Stage::BytesOut, self.ps(BYTE, (head + bytes) as f64)),
            (Stage::Wire, WIRE_PS),
        ]
    }
}

/// A rate of Figures 3 to 6.
struct Observation {
    name: &'static str,
    /// Where the paper's text has the number.
    place: &'static str,
    mops: f64,
    steps: fn(&Costs) -> Vec<Step>,
}

fn echo(request: Vec<Step>, response: Vec<Step>) -> Vec<Step> {
    [request, response].concat()
}

const OBSERVATIONS: [Observation; 12] = [
    Observation {
        name: "inbound WRITE, 32 B",
        place: "Fig. 3, §3.2.2",
        mops: 35.0,
        steps: |costs| costs.write_in(32, 1),
    },
    Observation {
        name: "inbound WRITE, 128 B, the last size at this rate",
        place: "Fig. 3, §3.2.2",
        mops: 35.0,
        steps: |costs| costs.write_in(128, 1),
    },
    Observation {
        name: "inbound READ, 32 B",
        place: "Fig. 3, §3.2.2",
        mops: 26.0,
        steps: |costs| costs.read(32, 1),
    },
    Observation {
        name: "outbound WRITE, 16 B",
        place: "Fig. 4, §3.2.3",
        mops: 35.0,
        steps: |costs| costs.write_out(16, 1),
    },
    Observation {
        name: "outbound READ, 32 B",
        place: "Fig. 4, §3.2.3",
        mops: 22.0,
        steps: |costs| costs.read_out(32),
    },
    Observation {
        name: "outbound SEND, 192 B, half of READ",
        place: "Fig. 4, §3.2.2",
        mops: 11.0,
        steps: |costs| costs.send_out(192),
    },
    Observation {
        name: "ECHO by WRITE, 16 B",
        place: "beside Fig. 5, §3.2.3",
        mops: 30.0,
        steps: |costs| echo(costs.write_in(16, 1), costs.write_out(16, 1)),
    },
    Observation {
        name: "ECHO by WRITE, 32 B",
        place: "Fig. 5, §3.2.3",
        mops: 26.0,
        steps: |costs| echo(costs.write_in(32, 1), costs.write_out(32, 1)),
    },
    Observation {
        name: "ECHO by WRITE and SEND, 32 B",
        place: "Fig. 5, §3.2.3",
        mops: 26.0,
        steps: |costs| echo(costs.write_in(32, 1), costs.send_out(32)),
    },
    Observation {
        name: "ECHO by SEND, 32 B",
        place: "Fig. 5, §3.2.3",
        mops: 21.0,
        steps: |costs| echo(costs.send_in(32), costs.send_out(32)),
    },
    Observation {
        name: "outbound WRITE, 256 connections, 0.21 of 35",
        place: "Fig. 6, §3.3",
        mops: 0.21 * 35.0,
        steps: |costs| costs.write_out(32, 256),
    },
    Observation {
        name: "inbound WRITE, 1 600 connections",
        place: "beside Fig. 6, §3.3",
        mops: 30.0,
        steps: |costs| costs.write_in(32, 1_600),
    },
];

/// The rate of operations of these steps, in millions a second: the busiest stage sets it.
fn bound_mops(steps: &[Step]) -> f64 {
    let time_in = |stage: Stage| -> u64 {
        steps.iter().filter(|step| step.0 == stage).map(|step| step.1).sum()
    };
    let stages = steps.iter().filter(|step| step.0 != Stage::Wire);
    1e6 / stages.map(|step| time_in(step.0)).max().unwrap_or(0).max(1) as f64
}

/// Fits the costs by a search along each cost and each pair, from costs that are too large: a cost ends as large as the figures allow.
pub(super) fn fit(contexts: u16) -> Costs {
    fit_from(100.0, contexts)
}

fn fit_from(start_ns: f64, contexts: u16) -> Costs {
    let error = |costs: &Costs| -> f64 {
        let share = |it: &Observation| bound_mops(&(it.steps)(costs)) / it.mops - 1.0;
        OBSERVATIONS.iter().map(|it| share(it).powi(2)).sum()
    };
    let mut costs = Costs { ns: [start_ns; NAMES.len()], contexts: contexts.into() };
    let (mut least, mut step) = (error(&costs), 0.1);
    while step > 1e-5 {
        let mut has_moved = false;
        let pairs =
            (0..NAMES.len()).flat_map(|one| (0..NAMES.len()).map(move |other| (one, other)));
        for (one, other) in pairs {
            for (factor, further) in [
                (1.0 - step, 1.0),
                (1.0 + step, 1.0),
                (1.0 - step, 1.0 + step),
                (1.0 - step, 1.0 - step),
            ] {
                let mut moved = costs;
                moved.ns[one] *= factor;
                moved.ns[other] *= further;
                let changed = error(&moved);
                // A cost that is in no rate yet grows, until it is.
                let grows = factor > 1.0 && one == other;
                if changed < least || grows && changed == least {
                    (costs, least, has_moved) = (moved, changed, true);
                }
            }
        }
        if !has_moved {
            step /= 2.0;
        }
    }
    costs
}

/// A line of the fit: a cost, or an observation with its residual.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FitRow {
    pub(super) experiment: &'static str,
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) cost_ns: Option<f64>,
    pub(super) mops: Option<f64>,
    pub(super) paper_mops: Option<f64>,
    /// The model over the paper, less one.
    pub(super) residual: Option<f64>,
}

/// Returns the fitted costs, and the observations with their residuals.
pub(super) fn fit_rows(contexts: u16) -> Vec<FitRow> {
    let costs = fit(contexts);
    let of_cost = |(name, cost_ns): (&&'static str, f64)| FitRow {
        experiment: "card-fit",
        name,
        place: "fitted",
        cost_ns: Some(cost_ns),
        mops: None,
        paper_mops: None,
        residual: None,
    };
    let of_observation = |it: &Observation| {
        let mops = bound_mops(&(it.steps)(&costs));
        FitRow {
            experiment: "card-fit",
            name: it.name,
            place: it.place,
            cost_ns: None,
            mops: Some(mops),
            paper_mops: Some(it.mops),
            residual: Some(mops / it.mops - 1.0),
        }
    };
    NAMES.iter().zip(costs.ns).map(of_cost).chain(OBSERVATIONS.iter().map(of_observation)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::queues::{Load, run};
    use super::*;

    #[test]
    fn fit__has_the_rates_of_figures_3_to_6() {
        for contexts in [16, CONTEXTS, 255] {
            let residuals = fit_rows(contexts).into_iter().filter_map(|row| row.residual);
            let most = residuals.map(f64::abs).fold(0.0, f64::max);
            assert!(most < 0.01, "{contexts} contexts: {most}");
        }
    }

    #[test]
    fn fit__does_not_depend_on_its_start() {
        let (one, other) = (fit_from(100.0, CONTEXTS), fit_from(170.0, CONTEXTS));
        for (cost, name) in NAMES.iter().enumerate() {
            assert!(
                (one.ns[cost] / other.ns[cost] - 1.0).abs() < 0.02,
                "{name}: {one:?} {other:?}"
            );
        }
    }

    #[test]
    fn run__has_the_rates_of_the_fit() {
        let costs = fit(CONTEXTS);
        for it in &OBSERVATIONS {
            let steps = (it.steps)(&costs);
            let load = Load { loops: 400, cores: 1, accesses: 0 };
            let mops = run(load, 50_000, || steps.clone()).mops;
            assert!((mops / it.mops - 1.0).abs() < 0.02, "{}: {mops}", it.name);
        }
    }

    #[test]
    fn missing__begins_when_the_cache_is_full() {
        assert_eq!([missing(1, 16.0), missing(16, 16.0), missing(64, 16.0)], [0.0, 0.0, 0.75]);
    }
}
