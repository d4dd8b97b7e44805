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
//! chooses at most one per process. `cargo probe planted` tests all [`defects`] (`docs/testing.md`).
//!
//! [`panics!`] states in a line a test of an assertion.
//!
//! The crate is separate because the protocol core, the independent transports and the services all
//! contain defects. It has no dependencies.

mod table;

pub use table::{Defect, defects};

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
/// If the variable names a defect that [`defects`] lacks: a passing test would prove nothing.
#[cfg(petrel_break)]
pub fn planted(name: &str) -> bool {
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<&'static str>> = OnceLock::new();
    let choose = || {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty())?;
        let found = defects().find(|defect| name == defect.name);
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
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn defects__have_names_of_their_own_in_order() {
        let names: Vec<&str> = defects().map(|defect| defect.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "sorted by name, and each name once");
    }

    /// Collects the names in calls of `planted("…")`, with their files.
    fn planted_in(directory: &Path, found: &mut BTreeMap<String, Vec<PathBuf>>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                planted_in(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                // As a single literal, the text would look like a call.
                for part in text.split(concat!("planted", "(\"")).skip(1) {
                    let name = part.split('"').next().unwrap_or_default();
                    found.entry(name.to_owned()).or_default().push(path.clone());
                }
            }
        }
    }

    #[test]
    fn defects__are_those_in_the_sources_once_each() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = BTreeMap::new();
        for crate_ in ["petrel-proto", "petrel-transport", "petrel"] {
            planted_in(&root.join("crates").join(crate_).join("src"), &mut found);
        }
        for service in ["cache", "index", "kv"] {
            planted_in(&root.join("services").join(service).join("src"), &mut found);
        }
        let planted: Vec<&str> = found.keys().map(String::as_str).collect();
        let table: Vec<&str> = defects().map(|defect| defect.name).collect();
        assert_eq!(planted, table, "planted in the sources, and in the table");
        assert!(found.values().all(|files| files.len() == 1), "in one place each: {found:?}");
    }

    #[test]
    #[cfg(not(petrel_break))]
    fn planted__never_in_an_ordinary_build() {
        const { assert!(!planted("kv_applies_twice")) }
    }
}
