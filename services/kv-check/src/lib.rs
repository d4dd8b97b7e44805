//! The key-value store in a simulated network that fails, and what must hold there.
//!
//! A seed draws a cluster, its settings, its clients and all that goes wrong. Real replicas run on real endpoints in
//! the simulator's virtual time; clients write and read a few keys, and go on until they have an answer. Then the
//! troubles end, and everything has to become well. What is drawn and what is checked stands in
//! `docs/kv-correctness.md`.
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
//! | module | what it has |
//! | --- | --- |
//! | `scenario`, `nemesis` | what is drawn: settings, and what goes wrong when |
//! | `world`, `node` | who runs, from the first operation to the last check |
//! | `disk` | a log store that loses what was not synced |
//! | `client`, `line`, `operator` | who calls the store, request by request |
//! | `product`, `operation`, `script` | who uses the store's own client, here and in `chaos` |
//! | `history`, `observer` | rules for what clients are told, and for replicas |
//! | `linearizable` | the way to porcupine |
//! | `runner` | seeds, one or many |
//! | `chaos` | the same with real processes, in network namespaces |

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

mod chaos;
mod client;
mod common;
mod disk;
mod history;
mod latency;
mod line;
mod linearizable;
mod logger;
mod nemesis;
mod node;
mod observer;
mod operation;
mod operator;
mod product;
mod runner;
mod scenario;
mod script;
mod value;
mod world;

pub use chaos::{
    ChaosError, ChaosOptions, ChaosOutcome, ChaosReport, ChaosSummary, run_chaos,
    serve_chaos_replica,
};
pub use latency::{Costs, LatencyReport, ROUND_TRIP_NS, Times, simulate_latency};
pub use petrel_sim::seeds::{Failure, Summary};
pub use runner::{Report, Runner, run_seeds};
