//! Checks the key-value store in a simulated network with faults.
//!
//! A seed determines a cluster, its settings, its clients and all faults. Real replicas run on real endpoints in the
//! simulator's virtual time. Clients write and read a few keys, and repeat operations until an answer arrives. Then the
//! faults end, and the cluster has to recover. `docs/kv-correctness.md` lists the parameters and the rules.
//!
//! ```
//! use petrel_kv_check::Runner;
//! use petrel_sim::Trace;
//!
//! let mut runner = Runner::new();
//! let report = runner.run(7, Trace::off())?;
//! assert_eq!(runner.run(7, Trace::off())?.digest, report.digest);
//! # Ok::<(), petrel_kv_check::Failure>(())
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `scenario`, `nemesis` | the parameters of a seed, and the plan of faults |
//! | `world`, `node` | the nodes, and the run from the first operation to the last check |
//! | `disk` | a log store that loses unsynced data |
//! | `client`, `connection`, `operator` | callers of the store's methods |
//! | `leases` | users of leases, and the rules for the ends of leases |
//! | `watches` | users of watches, and the rules for the changes that they see |
//! | `kv_client`, `operation`, `script` | users of the store's own client, here and in `chaos` |
//! | `history`, `observer` | rules for answers to clients, and for replicas |
//! | `linearizable` | the interface to porcupine |
//! | `runner` | seeds, one or many |
//! | `chaos` | the same checks with real processes, in network namespaces |

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

#[cfg(test)]
mod cache_histories;
mod chaos;
mod client;
mod common;
mod connection;
mod disk;
mod history;
mod kv_client;
mod leases;
mod linearizable;
mod logger;
mod nemesis;
mod node;
mod observer;
mod operation;
mod operator;
mod runner;
mod scenario;
mod script;
mod value;
mod watches;
mod world;

pub use chaos::{
    ChaosError, ChaosOptions, ChaosOutcome, ChaosReport, ChaosSummary, run_chaos,
    serve_chaos_replica,
};
pub use petrel_sim::seeds::{Failure, Summary};
pub use runner::{Report, Runner, run_seeds};
