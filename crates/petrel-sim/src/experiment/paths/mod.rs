//! Experiments with several paths between hosts (after MP-RDMA, NSDI 2018, §5).
//!
//! Sessions send long requests back to back, or flows of published sizes, over networks with equal and
//! unequal paths. [`Policy`] says how a session chooses among its paths.
//!
//! | module | concern |
//! | --- | --- |
//! | `network` | the networks, by name |
//! | `streams` | sessions with long requests, and the packets that arrive |
//! | `throughput` | loss, unequal paths, permutations, the fabric, incast: goodput of sessions |
//! | `cut` | paths that go down and return: goodput over time |
//! | `flows`, `flow_caller` | open-loop flows and their completion times |

mod cut;
mod flow_caller;
mod flows;
mod network;
mod streams;
mod throughput;

use std::fmt;
use std::str::FromStr;

use petrel_proto::Recovery;
use serde::{Serialize, Serializer};

use super::{Controller, RECOVERIES};

pub use cut::{CutKind, CutRow, cut};
pub use flows::{FlowsConfig, FlowsRow, flows};
pub use network::{BuiltNetwork, PathNetwork};
pub use throughput::{PathUse, ThroughputRow, fabric, incast, loss, permutation, unequal};

/// How a session chooses the path of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// All packets take one path, which the hash of addresses and ports chooses.
    Single,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 1] = [Self::Single];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|policy| policy.name() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{text}' is no path policy; these are: {names}")
        })
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The settings of all experiments with paths.
#[derive(Clone, Debug)]
pub struct PathsConfig {
    /// Everything random follows from this seed. Run `n` of a figure has the seed plus `n`.
    pub seed: u64,
    /// The policies to compare.
    pub policies: Vec<Policy>,
    /// The recovery methods to compare.
    pub recoveries: Vec<Recovery>,
    /// The senders' congestion control.
    pub controller: Controller,
    /// Whether the experiment takes seconds only: shorter times, fewer runs, smaller networks.
    pub is_quick: bool,
}

impl PathsConfig {
    /// Returns the settings of the documented tables.
    pub fn full(seed: u64) -> Self {
        Self {
            seed,
            policies: Policy::ALL.to_vec(),
            recoveries: RECOVERIES.to_vec(),
            controller: Controller::Dcqcn,
            is_quick: false,
        }
    }

    /// Returns the settings of a short variant: seconds.
    pub fn quick(seed: u64) -> Self {
        Self { is_quick: true, ..Self::full(seed) }
    }

    /// Returns all combinations of policy and recovery.
    fn variants(&self) -> Vec<Variant> {
        let of = |policy: Policy| {
            let one = move |&recovery| Variant { policy, recovery, controller: self.controller };
            self.recoveries.iter().map(one)
        };
        self.policies.iter().flat_map(|&policy| of(policy)).collect()
    }
}

/// The protocol's part of a run.
#[derive(Clone, Copy, Debug)]
struct Variant {
    policy: Policy,
    recovery: Recovery,
    controller: Controller,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_str__takes_every_name_and_lists_them() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("all".parse::<Policy>().unwrap_err().contains("single"));
    }

    #[test]
    fn variants__are_all_combinations() {
        assert_eq!(PathsConfig::full(1).variants().len(), Policy::ALL.len() * RECOVERIES.len());
    }
}
