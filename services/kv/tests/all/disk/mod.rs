//! The log on disk: what comes back after it was closed, cut off, damaged, killed, or has found no room.

mod crash;
mod damage;
mod failure;
mod kill;
mod refusal;
mod rig;
mod round_trip;
