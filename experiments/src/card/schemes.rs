//! HERD, Pilaf and FaRM as steps of the model.
//!
//! As in §5.1, Pilaf and FaRM have no data structures behind their messages: the steps are those of the network and of the
//! cores that answer PUTs.

use fastrand::Rng;

use super::costs::Costs;
use super::queues::{POST_PS, Stage, Step};

/// Bytes of a key (§5.2).
const KEY_BYTES: u64 = 16;

/// Bytes of a bucket of Pilaf's (§5.1.1).
const BUCKET_BYTES: u64 = 32;

/// Items in a neighbourhood of FaRM's table (§5.1.2).
const NEIGHBOURS: u64 = 6;

/// Bytes of a pointer in FaRM's table: a word.
const POINTER_BYTES: u64 = 8;

/// Bytes of the answer to a PUT, which fits in the least message.
const DONE_BYTES: u64 = 8;

/// A key-value system of the paper's comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scheme {
    /// Requests by WRITE, responses by SEND, executed by the owner of the key
    Herd,
    /// READs of 1.6 buckets and of the value; PUTs by SEND
    Pilaf,
    /// A READ of six items; PUTs by WRITE
    Farm,
    /// A READ of six keys with pointers, and one of the value; PUTs by WRITE
    FarmVar,
}

impl Scheme {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Herd => "HERD",
            Self::Pilaf => "Pilaf",
            Self::Farm => "FaRM",
            Self::FarmVar => "FaRM, variable",
        }
    }

    /// The steps of a GET of a value, by the core that owns the key, over one of a number of connections.
    pub(super) fn get(
        self,
        costs: &Costs,
        connections: usize,
        value_bytes: u64,
        core: usize,
        rng: &mut Rng,
    ) -> Vec<Step> {
        let read = |bytes| costs.read(bytes, connections);
        match self {
            Self::Herd => {
                let core = vec![(Stage::Pipeline(core), POST_PS)];
                [costs.write_in(KEY_BYTES, connections), core, costs.send_out(value_bytes)].concat()
            }
            Self::Pilaf => {
                let mut steps: Vec<Step> =
                    (0..probes(rng)).flat_map(|_| read(BUCKET_BYTES)).collect();
                steps.extend(read(value_bytes));
                steps
            }
            Self::Farm => read(NEIGHBOURS * (KEY_BYTES + value_bytes)),
            Self::FarmVar => {
                [read(NEIGHBOURS * (KEY_BYTES + POINTER_BYTES)), read(value_bytes)].concat()
            }
        }
    }

    /// The steps of a PUT of a value. A core of the others sends the answer, and does nothing else (§5.1).
    pub(super) fn put(
        self,
        costs: &Costs,
        connections: usize,
        value_bytes: u64,
        core: usize,
    ) -> Vec<Step> {
        let bytes = KEY_BYTES + value_bytes;
        let (request, stage, response) = match self {
            Self::Herd => {
                let request = costs.write_in(bytes, connections);
                (request, Stage::Pipeline(core), costs.send_out(DONE_BYTES))
            }
            Self::Pilaf => (costs.send_in(bytes), Stage::Core(core), costs.send_out(DONE_BYTES)),
            Self::Farm | Self::FarmVar => {
                let response = costs.write_out(DONE_BYTES, connections);
                (costs.write_in(bytes, connections), Stage::Core(core), response)
            }
        };
        [request, vec![(stage, POST_PS)], response].concat()
    }
}

/// The buckets that a GET of Pilaf reads: up to three, 1.6 on average (§5.1.1).
fn probes(rng: &mut Rng) -> usize {
    match rng.u8(..20) {
        0..11 => 1,
        11..17 => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes__are_1_6_on_average() {
        let mut rng = Rng::with_seed(1);
        let sum: usize = (0..100_000).map(|_| probes(&mut rng)).sum();
        assert!((159_000..161_000).contains(&sum), "{sum}");
    }
}
