//! For simulators, checkers and experiments: may change in any version.

/// The interface between an endpoint and its control plane, for custom control planes.
pub mod control {
    pub use crate::control::*;
}

#[doc(hidden)]
pub use crate::endpoint::ObjectCounts;
#[doc(hidden)]
pub use crate::local::LocalObjectCounts;
