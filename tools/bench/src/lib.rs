//! The benchmarks of the command: `petrel bench` has the library beside the baseline, in alternating
//! windows; `cache` is `petrel cache bench`, and `demo` is `petrel demo`.
//!
//! | module | concern |
//! | --- | --- |
//! | [`measure`] | the ends, the baselines, alternating windows, and the figures computed from them |
//! | `report` | figures as tables and plots |
//! | `args` | arguments that several benchmarks share |
//! | `command` | `petrel bench`: latency, rate and bandwidth, and all figures that Petrel must reach |
//! | `defaults` | a user's figures: two processes, nothing set |
//! | `sessions` | many sessions: their calls, their memory |
//! | `instructions` | instructions per RPC, by callgrind |
//! | `attacks` | the cost of hostile peers for honest clients of the same server |
//! | `regions` | operations on regions beside calls |
//! | `streams` | messages of streams, beside calls |
//! | `cache`, `kv` | the services beside echoes and raw calls |
//!
//! The arguments of a command stand in the module of the command. Without the feature `full` the crate is `petrel demo` alone.
//!
//! The papers' tables and figures are experiments, in a workspace of their own (`experiments/`), which build on [`measure`],
//! `report` and `args`.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]
// Without the feature `full`, the demonstration uses a part of the measurements.
#![cfg_attr(not(feature = "full"), allow(dead_code))]

pub mod demo;
pub mod measure;
pub mod report;

#[cfg(feature = "full")]
pub mod args;
#[cfg(feature = "full")]
pub mod attacks;
#[cfg(feature = "full")]
pub mod cache;
#[cfg(feature = "full")]
pub mod command;
#[cfg(feature = "full")]
pub mod defaults;
#[cfg(feature = "full")]
mod instructions;
#[cfg(feature = "full")]
mod kv;
#[cfg(feature = "full")]
mod regions;
#[cfg(feature = "full")]
pub mod sessions;
#[cfg(feature = "full")]
mod streams;
