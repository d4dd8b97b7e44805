//! Frames beside a naive implementation, and beside the kernel of two network namespaces.

mod frames;
mod kernel;
pub(crate) mod network;
mod ways;
