//! The crates with mutants.

/// A crate with mutants.
#[derive(Debug)]
pub(super) struct Crate {
    pub(super) name: &'static str,
    /// From the root of the workspace.
    pub(super) directory: &'static str,
}

const fn of(name: &'static str, directory: &'static str) -> Crate {
    Crate { name, directory }
}

/// Names of the library's crates. The mutants of all three meet equal steps.
pub(super) const LIBRARY: &[&str] = &["petrel-proto", "petrel-transport", "petrel-rpc"];

/// All crates with mutants. Mutants are numbered in this order.
pub(super) const CRATES: [Crate; 7] = [
    of("petrel-proto", "crates/petrel-proto"),
    of("petrel-transport", "crates/petrel-transport"),
    of("petrel-rpc", "crates/petrel"),
    of("petrel-batch", "crates/petrel-batch"),
    of("petrel-cache", "services/cache"),
    of("petrel-index", "services/index"),
    of("petrel-kv", "services/kv"),
];
