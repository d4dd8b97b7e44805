//! The options of a run of seeds.

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
}
