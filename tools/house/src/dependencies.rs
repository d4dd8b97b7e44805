//! The dependencies of all crates: each licence has to be among those that `deny.toml` allows, and each
//! source must be the public registry or a folder of this repository.
//!
//! `cargo deny` checks the same rules and more. It takes minutes to build, so `.ci/nightly` runs it; this
//! check runs with the tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{CargoOpt, MetadataCommand, Package};
use spdx::{Expression, LicenseReq, ParseMode};

use crate::{Failure, source};

/// The registry that all foreign crates come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A dependency that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The crate's name and version.
    pub package: String,
    /// The broken rule.
    pub why: String,
}

/// Checks the dependencies that the workspace in `folder` has on this platform; returns their number, and
/// the refused ones. Cargo fetches dependencies that no build has needed so far.
///
/// # Errors
/// A `deny.toml` without a list of licences, or a workspace that Cargo cannot resolve.
pub fn check(folder: &Path) -> Result<(usize, Vec<Refused>), Failure> {
    let allowed = allowed_licences(&folder.join("deny.toml"))?;
    let platform = ["--locked", "--filter-platform", env!("PETREL_TARGET")];
    let metadata = MetadataCommand::new()
        .manifest_path(folder.join("Cargo.toml"))
        .features(CargoOpt::AllFeatures)
        .other_options(platform.map(str::to_owned))
        .exec()
        .map_err(|error| Failure::Cargo { error: Box::new(error) })?;
    let refused = metadata.packages.iter().filter_map(|package| {
        let why = why_refused(package.license.as_deref(), source_of(package), &allowed)?;
        Some(Refused { package: format!("{} {}", package.name, package.version), why })
    });
    Ok((metadata.packages.len(), refused.collect()))
}

/// Returns where a crate comes from; `None` for a crate of the repository.
fn source_of(package: &Package) -> Option<&str> {
    package.source.as_ref().map(|source| source.repr.as_str())
}

fn why_refused(
    licence: Option<&str>,
    source: Option<&str>,
    allowed: &BTreeSet<String>,
) -> Option<String> {
    if let Some(source) = source.filter(|source| *source != REGISTRY) {
        return Some(format!("comes from {source}, not from the public registry"));
    }
    let Some(licence) = licence else {
        return Some("names no licence".to_owned());
    };
    // Crates of former years write `MIT/Apache-2.0`, which the lax mode understands.
    let is_allowed = |requirement: &LicenseReq| allowed.contains(&requirement.to_string());
    match Expression::parse_mode(licence, ParseMode::LAX) {
        Ok(expression) if expression.evaluate(is_allowed) => None,
        Ok(_) => Some(format!("is under {licence}, which deny.toml does not allow")),
        Err(error) => Some(format!("names the licence {licence:?}: {error}")),
    }
}

/// Reads the licences that `deny.toml` allows.
fn allowed_licences(path: &Path) -> Result<BTreeSet<String>, Failure> {
    let missing = || Failure::Rules { path: PathBuf::from(path) };
    let rules: toml::Table = source::read(path)?.parse().map_err(|_| missing())?;
    let allowed = rules.get("licenses").and_then(|licenses| licenses.get("allow"));
    let allowed = allowed.and_then(toml::Value::as_array).ok_or_else(missing)?;
    allowed.iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(missing)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> BTreeSet<String> {
        ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned).into()
    }

    #[test]
    fn why_refused__of_licences() {
        let why = |licence| why_refused(Some(licence), Some(REGISTRY), &allowed());
        for good in
            ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"]
        {
            assert_eq!(why(good), None, "{good}");
        }
        for bad in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "Apache-2.0 WITH LLVM-exception"] {
            let expected = format!("is under {bad}, which deny.toml does not allow");
            assert_eq!(why(bad), Some(expected));
        }
        assert!(why("my own").unwrap().starts_with("names the licence"));
        assert!(why_refused(None, Some(REGISTRY), &allowed()).is_some());
    }

    #[test]
    fn why_refused__of_sources() {
        let why = |source| why_refused(Some("MIT"), source, &allowed());
        assert_eq!(why(None), None, "a crate of the repository");
        assert_eq!(why(Some(REGISTRY)), None);
        assert!(why(Some("git+https://example.org/a")).is_some());
        assert!(why(Some("registry+https://example.org/index")).is_some());
    }

    #[test]
    fn allowed_licences__of_a_file_without_the_list() {
        let path = std::env::temp_dir().join(format!("petrel-deny-{}.toml", std::process::id()));
        std::fs::write(&path, "[licenses]\nallow = \"MIT\"\n").unwrap();
        let read = allowed_licences(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read, Err(Failure::Rules { .. })), "{read:?}");
    }
}
