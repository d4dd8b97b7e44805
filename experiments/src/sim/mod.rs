//! Experiments: real endpoints on a simulated network, measured in virtual time.
//!
//! An experiment has a configuration with a full and a quick variant, a function that runs it, and rows of
//! results. The function passes on single rows, and returns all rows. `experiments/README.md` shows the
//! results.
//!
//! ```
//! use petrel_experiments::sim::loss::{self, LossConfig};
//!
//! let rows = loss::run(&LossConfig::quick(1), |row| println!("{row:?}"))?;
//! assert!(rows.iter().all(|row| row.loss > 0.0 || row.retransmissions == 0));
//! # Ok::<(), petrel_experiments::sim::ExperimentError>(())
//! ```
//!
//! | module | concern |
//! | --- | --- |
//! | [`responses`] | responses of several packets, without loss |
//! | [`loss`], [`small_loss`] | large and small calls over a link that loses packets |
//! | [`incast`] | many senders, one receiver |
//! | [`scale`] | a hundred hosts, all to all |
//! | [`overload`] | a server with more load than capacity |
//! | [`paths`] | several paths between hosts: loss, cuts, permutations, fabrics, flows |
//! | [`leaf_spine`], [`traffic`] | networks of two tiers; published sizes of messages, and the times of flows |
//! | [`cc_cost`] | congestion control without congestion |
//! | `cluster`, `node` | endpoints on a fabric, from the first session to the last answer |
//! | `caller`, `message` | simulated callers, and the check of every byte of the answers |
//! | `cpu` | the cost of computing |

mod caller;
pub mod cc_cost;
mod cluster;
mod controller;
mod cpu;
mod driver;
mod error;
pub mod incast;
mod latency;
pub mod leaf_spine;
pub mod loss;
mod message;
mod node;
pub mod overload;
pub mod paths;
pub mod responses;
pub mod scale;
pub mod small_loss;
pub mod traffic;

pub use controller::Controller;
pub use error::ExperimentError;
pub use latency::Latency;
pub use leaf_spine::LeafSpine;
use petrel_proto::Recovery;

/// Returns the recovery method of this name, or an error that lists all names.
///
/// # Errors
/// No method has the name.
pub fn recovery_of(name: &str) -> Result<Recovery, String> {
    let known = RECOVERIES.into_iter().find(|&recovery| recovery_name(recovery) == name);
    known.ok_or_else(|| {
        let names = RECOVERIES.map(recovery_name).join(", ");
        format!("'{name}' is no recovery method; these are: {names}")
    })
}

/// The methods that experiments compare.
const RECOVERIES: [Recovery; 2] = [Recovery::Selective, Recovery::GoBackN];

/// Returns the name of a recovery method.
pub fn recovery_name(recovery: Recovery) -> &'static str {
    match recovery {
        Recovery::GoBackN => "go-back-n",
        _ => "selective",
    }
}
