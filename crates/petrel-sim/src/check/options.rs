//! The options of a run of seeds.

use crate::rng::Rng;

/// Options for running seeds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Whether [`run_seeds`](super::run_seeds) continues after a failure.
    pub keep_going: bool,
    /// Whether every world has all features, no world is large, and every frame of every endpoint is a
    /// packet, like the worlds of the seeds on the regression list. Otherwise half of the worlds omit about
    /// half of the features: features must occur alone, too.
    pub has_everything: bool,
    /// Whether handlers get the requests of a receive burst together, by
    /// [`Endpoint::on_batch`](petrel::Endpoint::on_batch). A seed draws the same scenario either way.
    pub has_batches: bool,
    /// The draws of a world's settings, of its features and of its faults, a byte for each; for the fuzzer, which learns from the
    /// code that a script reaches. Without a script all follow from the seed.
    pub script: Option<Vec<u8>>,
}

/// Bytes of a script for the settings and for the features; the faults have the rest.
const SETTINGS_BYTES: usize = 48;
const FEATURES_BYTES: usize = 24;

impl Options {
    /// Returns the generators of settings and features.
    pub(super) fn generators(&self, seed: u64) -> [Rng; 2] {
        let [settings, features] = [0, 1].map(|index| Rng::stream(seed, u32::MAX, index));
        match &self.script {
            None => [settings, features],
            Some(script) => {
                let (first, rest) = split(script, SETTINGS_BYTES);
                let (second, _) = split(rest, FEATURES_BYTES);
                [Rng::scripted(seed, first), Rng::scripted(seed, second)]
            }
        }
    }

    /// Returns the generator of faults, which is `plain` without a script.
    pub(super) fn faults(&self, seed: u64, plain: Rng) -> Rng {
        match &self.script {
            None => plain,
            Some(script) => {
                let (_, rest) = split(script, SETTINGS_BYTES + FEATURES_BYTES);
                Rng::scripted(seed, rest)
            }
        }
    }
}

fn split(script: &[u8], at: usize) -> (&[u8], &[u8]) {
    script.split_at(at.min(script.len()))
}
