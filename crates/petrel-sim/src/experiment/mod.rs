//! Experiments: real endpoints on a simulated network, measured in virtual time.
//!
//! Each has a configuration with a full and a quick variant, a function that runs it, and rows, which it
//! gives one by one and together. `docs/experiments.md` shows what came of them.
//!
//! ```
//! use petrel_sim::experiment::loss::{self, LossConfig};
//!
//! let rows = loss::run(&LossConfig::quick(1), |row| println!("{row:?}"))?;
//! assert!(rows.iter().all(|row| row.loss > 0.0 || row.retransmissions == 0));
//! # Ok::<(), petrel_sim::experiment::ExperimentError>(())
//! ```
//!
//! | module | concern |
//! | --- | --- |
//! | [`loss`], [`small_loss`] | large and small calls over a link that loses packets |
//! | [`incast`] | many senders, one receiver |
//! | [`scale`] | a hundred hosts, all to all |
//! | [`overload`] | a server that is asked for more than it can do |
//! | [`cc_cost`] | congestion control where nothing is congested |
//! | `cluster`, `node` | endpoints on a fabric, from the first session to the last answer |
//! | `caller`, `message` | who calls, and how every byte of the answers is checked |
//! | `cpu` | what computing costs |

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
pub mod overload;
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
