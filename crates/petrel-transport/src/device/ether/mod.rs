//! Ethernet, IP and UDP without the kernel's stack: the heads of frames, and the ways to peers.
//!
//! | module | concern |
//! | --- | --- |
//! | [`frame`] | heads from templates; the parser, which says why it refuses a frame |
//! | [`sum`] | the Internet checksum |
//! | [`ways`] | routes, neighbours and the state of the link, asked of the kernel |
//!
//! IP options, extension headers, fragments and VLANs are left to the kernel's socket, as is every peer without a known way.

pub mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod netlink;
pub mod sum;
pub mod ways;

#[cfg(test)]
pub(crate) mod tests;
