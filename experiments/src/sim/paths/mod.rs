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
//! | `small` | small calls while a path is dead: latency |
//! | `ordered` | ordered calls, beside callers that wait |
//! | `shares` | sessions that come and go: fairness, and two sessions that meet on one path |
//! | `flows`, `flow_caller` | open-loop flows and their completion times |

mod cut;
mod flow_caller;
mod flows;
mod network;
mod ordered;
mod shares;
mod small;
mod streams;
mod throughput;

use std::fmt;
use std::str::FromStr;

use petrel_proto::Recovery;
use petrel_proto::path::PathPolicy;
use serde::{Serialize, Serializer};

use super::cluster::Paths;
use super::{Controller, RECOVERIES, recovery_name};

pub use cut::{CutKind, CutRow, cut};
pub use flows::{FlowsConfig, FlowsRow, flows};
pub use network::{BuiltNetwork, PathNetwork};
pub use ordered::{OrderedRow, ordered};
pub use shares::{FairRow, PinnedRow, fair, pinned};
pub use small::{SmallRow, small};
pub use throughput::{PathUse, ThroughputRow, fabric, incast, loss, permutation, unequal};

/// How a session chooses the path of a packet. Sessions of `single` have one source port, and the hash of
/// addresses and ports chooses their path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub PathPolicy);

impl Policy {
    /// One path.
    pub const SINGLE: Self = Self(PathPolicy::Single);

    /// A window for each path.
    pub const COUPLED: Self = Self(PathPolicy::Coupled);

    /// Returns every policy.
    pub fn all() -> impl Iterator<Item = Self> {
        PathPolicy::ALL.into_iter().map(Self)
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        self.0.name()
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
        let known = Self::all().find(|policy| policy.name() == text);
        known.ok_or_else(|| {
            let names = PathPolicy::ALL.map(PathPolicy::name).join(", ");
            format!("'{text}' is no path policy; these are: {names}")
        })
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Source ports by default. With 16 ports, chance leaves one of four links without any once in 25 sessions.
const PORTS: u8 = 16;

/// The settings of all experiments with paths.
#[derive(Clone, Debug)]
pub struct PathsConfig {
    /// Everything random follows from this seed. Run `n` of a figure has the seed plus `n`.
    pub seed: u64,
    /// The policies to compare.
    pub policies: Vec<Policy>,
    /// Source ports of the endpoints whose sessions have several paths, 2 to 32.
    pub ports: u8,
    /// The recovery methods to compare. Sessions of several paths have selective recovery only.
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
            policies: Policy::all().collect(),
            ports: PORTS,
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
        let one = |policy, recovery| {
            let ports = if policy == Policy::SINGLE { 1 } else { self.ports };
            Variant { policy, ports, recovery, controller: self.controller }
        };
        let of = |policy: Policy| match policy {
            Policy::SINGLE => self.recoveries.iter().map(|&with| one(policy, with)).collect(),
            _ => vec![one(policy, Recovery::Selective)],
        };
        self.policies.iter().flat_map(|&policy| of(policy)).collect()
    }
}

/// The settings of the sessions of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The choice of paths.
    pub policy: Policy,
    /// Source ports of each endpoint.
    pub ports: u8,
    /// `selective` or `go-back-n`.
    pub recovery: &'static str,
    /// The senders' congestion control. Sessions of several paths have the windows of their policy instead.
    pub controller: Controller,
}

impl Setting {
    /// Returns the name of the control that bounds the packets in flight.
    pub fn control(&self) -> String {
        match self.policy {
            Policy::SINGLE => self.controller.to_string(),
            _ => "policy".to_owned(),
        }
    }
}

/// The protocol's part of a run.
#[derive(Clone, Copy, Debug)]
struct Variant {
    policy: Policy,
    ports: u8,
    recovery: Recovery,
    controller: Controller,
}

impl Variant {
    fn paths(self) -> Paths {
        Paths { policy: self.policy.0, ports: self.ports }
    }

    fn setting(self) -> Setting {
        let Self { policy, ports, recovery, controller } = self;
        Setting { policy, ports, recovery: recovery_name(recovery), controller }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_str__takes_every_name_and_lists_them() {
        for policy in Policy::all() {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("all".parse::<Policy>().unwrap_err().contains("single"));
    }

    #[test]
    fn variants__are_all_combinations() {
        let variants = PathsConfig::full(1).variants();
        assert_eq!(variants.len(), RECOVERIES.len() + PathPolicy::ALL.len() - 1);
        for Variant { policy, ports, recovery, .. } in variants {
            let is_single = policy == Policy::SINGLE;
            assert_eq!(ports, if is_single { 1 } else { PORTS });
            assert!(is_single || recovery == Recovery::Selective);
        }
    }
}
