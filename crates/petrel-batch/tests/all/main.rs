//! Batches give the results of their plain functions, for each construct of the language that they may contain.
//!
//! Each function reads a table of numbers that are places in the table. A property test compares the batch with the plain
//! function, for random tables and for groups of 0 to 1 000 inputs.

#![allow(
    clippy::all,
    reason = "the functions have each form that users may write, the clumsy ones included"
)]

mod branches;
mod generics;
mod hygiene;
mod leaving;
mod locals;
mod loops;
mod marks;
mod same;
mod values;
