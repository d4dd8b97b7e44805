//! The shared build of all programs that a probe runs, and their paths.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::Outcome;
use crate::failure::Failure;

/// A cargo build: several invocations share target directory and flags.
#[derive(Debug)]
pub(crate) struct Build<'a> {
    pub(crate) root: &'a Path,
    pub(crate) target: PathBuf,
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// The built programs.
#[derive(Debug, Default)]
pub(crate) struct Artifacts {
    by_name: BTreeMap<(String, String), Artifact>,
}

/// A built program.
#[derive(Clone, Debug)]
pub(crate) struct Artifact {
    pub(crate) path: PathBuf,
    /// The directory of the package, in which cargo runs tests.
    pub(crate) directory: PathBuf,
}

/// The relevant fields of a line of cargo's output.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Build<'_> {
    /// Runs a cargo build, and records its programs. `arguments` begin with `test` or `build`.
    pub(crate) fn run(&self, arguments: &[String], artifacts: &mut Artifacts) -> Outcome<()> {
        let mut cargo = Command::new(cargo());
        cargo.args(arguments).arg("--message-format=json-render-diagnostics");
        cargo.arg("--target-dir").arg(&self.target).current_dir(self.root);
        cargo.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        let mut child = cargo.stdout(Stdio::piped()).spawn().map_err(Failure::io("cargo"))?;
        let stdout = child.stdout.take().ok_or(Failure::Build)?;
        for line in BufReader::new(stdout).lines() {
            artifacts.note(&line.map_err(Failure::io("reading what cargo says"))?);
        }
        let status = child.wait().map_err(Failure::io("waiting for cargo"))?;
        if status.success() { Ok(()) } else { Err(Failure::Build) }
    }
}

impl Build<'_> {
    /// Runs a cargo check. Returns whether it passed, and its output, errors included, as lines of JSON.
    pub(crate) fn check(&self, arguments: &[String]) -> Outcome<(bool, String)> {
        let mut cargo = Command::new(cargo());
        cargo.args(arguments).arg("--message-format=json").arg("--target-dir").arg(&self.target);
        cargo.arg("--quiet").current_dir(self.root).stderr(Stdio::inherit());
        cargo.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        let output = cargo.output().map_err(Failure::io("cargo check"))?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }
}

impl Artifacts {
    /// Returns a program of a package: `lib` for its unit tests, else the name of the test or example.
    pub(crate) fn get(&self, package: &str, target: &str) -> Outcome<&Artifact> {
        let key = (package.to_owned(), target.to_owned());
        self.by_name.get(&key).ok_or_else(|| Failure::NoArtifact(format!("{target} of {package}")))
    }

    fn note(&mut self, line: &str) {
        let Ok(message) = serde_json::from_str::<Message>(line) else { return };
        if message.reason != "compiler-artifact" {
            return;
        }
        let (Some(target), Some(path), Some(manifest)) =
            (message.target, message.executable, message.manifest_path)
        else {
            return;
        };
        let Some(directory) = manifest.parent().map(Path::to_owned) else { return };
        // Packages are identified by their directories, because the message lacks the bare name.
        let package = directory.file_name().map(|name| name.to_string_lossy().into_owned());
        let is_lib = target.kind.iter().any(|kind| kind == "lib");
        let name = if is_lib { "lib".to_owned() } else { target.name };
        self.by_name.insert((package.unwrap_or_default(), name), Artifact { path, directory });
    }
}

/// Returns the cargo program of the parent, or the default.
fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Returns the directory of Petrel's workspace, from which this program was built.
pub(crate) fn workspace() -> Outcome<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().map_err(Failure::io(format!("{}", root.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note__takes_programs_by_package_and_target() {
        let mut artifacts = Artifacts::default();
        let line = |kind: &str, name: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/petrel/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"{name}"}},"executable":{executable}}}"#
            )
        };
        artifacts.note(&line("lib", "petrel", "null"));
        assert!(artifacts.get("petrel", "lib").is_err(), "a library is no program");
        artifacts.note(&line("lib", "petrel", r#""/w/target/petrel-1""#));
        artifacts.note(&line("test", "all", r#""/w/target/all-2""#));
        artifacts.note("no message at all");
        assert_eq!(artifacts.get("petrel", "lib").unwrap().path, Path::new("/w/target/petrel-1"));
        assert_eq!(
            artifacts.get("petrel", "all").unwrap().directory,
            Path::new("/w/crates/petrel")
        );
    }
}
