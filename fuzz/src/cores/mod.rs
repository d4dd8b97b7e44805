//! Two protocol cores that communicate over a medium under the input's control.
//!
//! The input is a list of steps: open a session, call, answer, send. For every frame in flight the input
//! also decides the time and number of its arrivals, if any. An *honest* world has no other steps. At
//! the end, all frames in flight arrive, and every call must have ended, with the right bytes on
//! success.
//!
//! Another world also has steps that *forge* frames. Their session and token are valid, and a core
//! processes the frames like a hostile peer's; the remaining fields are arbitrary. The bytes of messages
//! are then arbitrary too. But neither core may panic, send an invalid frame, miscount its credits, end
//! a call twice, or run a request number twice.
//!
//! Some calls have deadlines and some are cancelled. Some requests are watched: the server must answer,
//! or learn of the caller's cancellation.
//!
//! With `PETREL_FUZZ_TRACE` set, all steps and frames are printed.

mod check;
mod forge;
mod steps;
mod world;

use crate::input::Input;
use world::World;

/// Most steps of an input, to bound its running time.
const STEPS_MAX: usize = 400;

/// Runs the input's steps and checks the world after every step.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        steps::take(&mut world, &mut input);
        check::after_step(&mut world);
    }
    check::at_the_end(world);
}
