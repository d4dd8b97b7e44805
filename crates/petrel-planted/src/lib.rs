//! Planted defects: every defect breaks one line of the library or of a service on purpose, for the
//! tests to find.
//!
//! ```
//! fn window(credits: u32) -> u32 {
//!     if petrel_planted::planted("proto_credit_too_many") { credits + 1 } else { credits }
//! }
//! assert_eq!(window(8), 8);
//! ```
//!
//! In ordinary builds [`planted`] is a constant `false`, and the compiler removes the defects. A build
//! with `RUSTFLAGS='--cfg petrel_break'` contains all defects, and the environment variable [`VARIABLE`]
//! chooses at most one per process. `cargo run -p petrel-probe -- planted` tests all [`DEFECTS`]
//! (`docs/testing.md`).
//!
//! [`panics!`] states in a line a test of an assertion.
//!
//! The crate is separate because the protocol core, the independent transports and the services all
//! contain defects. It has no dependencies.

mod table;

pub use table::{DEFECTS, Defect};

/// The environment variable with the name of the active defect in a build with `--cfg petrel_break`.
pub const VARIABLE: &str = "PETREL_BREAK";

/// Returns whether the named defect is active: never in an ordinary build.
#[cfg(not(petrel_break))]
#[inline(always)]
pub const fn planted(_name: &str) -> bool {
    false
}

/// Returns whether the named defect is active: whether [`VARIABLE`] names it.
///
/// # Panics
/// If the variable names a defect that [`DEFECTS`] lacks: a passing test would prove nothing.
#[cfg(petrel_break)]
pub fn planted(name: &str) -> bool {
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<&'static str>> = OnceLock::new();
    let choose = || {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty())?;
        let found = DEFECTS.iter().find(|defect| name == defect.name);
        Some(found.unwrap_or_else(|| panic!("{VARIABLE}={name:?}: no such defect")).name)
    };
    *CHOSEN.get_or_init(choose) == Some(name)
}

/// Tests of invariants: each expression must panic, with the given words in its message.
///
/// ```
/// petrel_planted::panics! {
///     expect__of_nothing: "an empty list" => Vec::<u8>::new().pop().expect("an empty list");
/// }
/// ```
#[macro_export]
macro_rules! panics {
    ($($name:ident: $why:literal => $body:expr;)+) => {
        $(
            #[test]
            #[should_panic(expected = $why)]
            fn $name() {
                $body;
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defects__have_names_of_their_own_in_order() {
        let in_order = |pair: &[Defect]| pair[0].name < pair[1].name;
        assert!(DEFECTS.windows(2).all(in_order), "sorted by name, and each name once");
    }

    #[test]
    #[cfg(not(petrel_break))]
    fn planted__never_in_an_ordinary_build() {
        const { assert!(!planted("kv_applies_twice")) }
    }
}
