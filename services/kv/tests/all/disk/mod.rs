//! The log on disk: its content after a close, a cut, damage, a kill, and a full disk.

mod crash;
mod damage;
mod failure;
mod kill;
mod model;
mod refusal;
mod round_trip;
