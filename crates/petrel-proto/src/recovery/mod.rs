//! Recovery from loss: round-trip times and timeouts.

pub mod rtt;
