//! The log on disk: its content after a close, a cut, damage, a kill, and a full disk.

mod crash;
mod damage;
mod failure;
mod kept;
mod kill;
mod model;
mod refusal;
mod round_trip;

/// The full name of a test of a module, for a separate process.
fn full_name(module: &str, test: &str) -> String {
    let (_program, module) = module.split_once("::").expect("a module of the program");
    format!("{module}::{test}")
}
