//! Two protocol cores that talk over a medium which the input directs.
//!
//! The input is a list of steps: open a session, call, answer, send, and then for each frame on its
//! way whether it arrives, and when, and how often. In an *honest* world that is all. At the end,
//! everything still on its way arrives, and every call must have ended, with the right bytes if it
//! succeeded.
//!
//! In another world there are steps that *forge* frames: right session and token, so that they get
//! as far as a frame from a hostile peer, and anything in the rest. The bytes of messages are the
//! hostile peer's business then; but neither core may panic, send an unsound frame, lose count of
//! its credits, end a call twice, or run a request number twice.
//!
//! Some calls have deadlines and some are cancelled; some requests are watched, and each of those
//! must be answered or told of.
//!
//! With `PETREL_FUZZ_TRACE` set, each step and each frame is printed.

mod check;
mod forge;
mod steps;
mod world;

use crate::input::Input;
use world::World;

/// Steps of one input: bounds the time that it takes.
const STEPS_MAX: usize = 400;

/// Runs the input's steps and checks the world after each.
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
