//! Experiments: real endpoints on a simulated network, measured in virtual time.

mod caller;
pub mod cc_cost;
mod cluster;
mod controller;
mod cpu;
mod error;
pub mod incast;
mod latency;
pub mod loss;
mod message;
mod node;
pub mod scale;
pub mod small_loss;

pub use controller::Controller;
pub use error::ExperimentError;
pub use latency::Latency;
use petrel_proto::Recovery;

/// What a way of recovery is called.
fn recovery_name(recovery: Recovery) -> &'static str {
    match recovery {
        Recovery::GoBackN => "go-back-n",
        _ => "selective",
    }
}
