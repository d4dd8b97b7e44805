//! Measurements: two ends make calls in windows, and figures follow from the windows.
//!
//! | module | concern |
//! | --- | --- |
//! | [`measurement`] | latency, rate and bandwidth: the ends and the baseline of each |
//! | [`ends`] | the traits of the ends; a window of calls |
//! | [`library`], [`load`] | the library's ends; the calls and the check of their replies |
//! | `baseline` | the ends of the baselines |
//! | [`test_bed`], [`server_thread`] | threads, CPUs and addresses, and the creation of the ends |
//! | `veth` | two network namespaces in place of loopback |
//! | `memif` | two processes joined by DPDK |
//! | [`pairs`], `probe` | alternating windows; the selection of valid windows |
//! | [`window`], [`statistics`], [`figure`] | the counts, and the figures computed from them |
//! | [`target`] | the values that figures must reach |
//! | [`process`] | this command as another process |

mod baseline;
#[cfg(feature = "full")]
pub mod directory;
pub mod ends;
pub mod figure;
pub mod library;
pub mod load;
pub mod measurement;
#[cfg(feature = "full")]
pub mod memif;
pub mod pairs;
mod probe;
#[cfg(feature = "full")]
pub mod process;
pub mod server_thread;
pub mod statistics;
pub mod target;
pub mod test_bed;
#[cfg(feature = "full")]
pub mod veth;
pub mod window;
