//! For simulators, checkers and experiments: what changes with the code, in any version.

/// The interface between an endpoint and its control plane, for those who bring their own.
pub mod control {
    pub use crate::control::*;
}

#[doc(hidden)]
pub use crate::endpoint::census::{Census, LocalCensus};
pub use crate::endpoint::factors::Factors;
