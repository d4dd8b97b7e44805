//! Frames beside a naive implementation, and beside the kernel of two network namespaces.

mod frames;
mod kernel;
mod network;
mod ways;
