//! A world of the simulator: its settings, features and faults are the bytes of the input, and all its rules hold.

/// Runs the world of an input.
///
/// # Panics
/// When a rule is broken.
pub fn check(data: &[u8]) {
    if let Err(failure) = petrel_sim::check::run_script(data) {
        panic!("{failure}");
    }
}
