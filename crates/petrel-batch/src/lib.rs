#![no_std]
#![doc = include_str!("../README.md")]

#[cfg(test)]
extern crate std;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod check;
mod list;
mod prefetch;
mod question;

pub use petrel_batch_macros::batched;

pub use crate::check::check;
pub use crate::prefetch::{Address, prefetch, prefetch_lines, prefetch_write};

/// A mark outside of a batched function, which is an error: see [`batched`].
#[macro_export]
macro_rules! prefetch {
    ($($anything:tt)*) => {
        ::core::compile_error!(
            "`prefetch!` is a mark of a function with `#[batched]`: add the attribute, or call the function `petrel_batch::prefetch`"
        )
    };
}

/// A mark outside of a batched function, which is an error: see [`batched`].
#[macro_export]
macro_rules! switch {
    ($($anything:tt)*) => {
        ::core::compile_error!(
            "`switch!` is a mark of a function with `#[batched]`: add the attribute"
        )
    };
}
