//! HERD, Pilaf and FaRM as steps of the model.
//!
//! As in §5.1, Pilaf and FaRM have no data structures behind their messages: the steps are those of the network and of the
//! cores that answer PUTs.

use fastrand::Rng;

use super::queues::{Stage, Step, read, send_in, send_out, write_in, write_out};

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

/// A request of HERD at its core: one core reaches 6.3 million a second (§5.7).
pub(super) const HERD_CORE_PS: u64 = 1_000_000_000 / 6_300;

/// A PUT of the others at its core. "Over 5 cores" reach the greatest rate (§5.6): that of ECHOs by WRITE and by SEND.
const FARM_CORE_PS: u64 = 5 * 1_000_000 / 26;
const PILAF_CORE_PS: u64 = 5 * 1_000_000 / 21;

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

    /// The steps of a GET of a value, by the core that owns the key.
    pub(super) fn get(self, value_bytes: u64, core: usize, rng: &mut Rng) -> Vec<Step> {
        match self {
            Self::Herd => {
                let core = [(Stage::Core(core), HERD_CORE_PS)];
                [&write_in(KEY_BYTES)[..], &core, &send_out(value_bytes)].concat()
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

    /// The steps of a PUT of a value.
    pub(super) fn put(self, value_bytes: u64, core: usize) -> Vec<Step> {
        let bytes = KEY_BYTES + value_bytes;
        let core = |cost_ps| [(Stage::Core(core), cost_ps)];
        match self {
            Self::Herd => {
                [&write_in(bytes)[..], &core(HERD_CORE_PS), &send_out(DONE_BYTES)].concat()
            }
            Self::Pilaf => {
                [&send_in(bytes)[..], &core(PILAF_CORE_PS), &send_out(DONE_BYTES)].concat()
            }
            Self::Farm | Self::FarmVar => {
                [&write_in(bytes)[..], &core(FARM_CORE_PS), &write_out(DONE_BYTES)].concat()
            }
        }
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
