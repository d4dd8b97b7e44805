//! Builds the programs of the peers. A peer that does not build is skipped, and the reason is printed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use peers_common::Failure;

use crate::catalog::{Peer, Source, Variant};
use crate::record::{Record, Recorder};

/// A variant of a peer whose program exists.
pub(crate) struct Entry {
    pub(crate) peer: &'static Peer,
    pub(crate) variant: &'static Variant,
    pub(crate) program: PathBuf,
    pub(crate) version: Option<String>,
}

/// Builds the selected peers.
pub(crate) fn build(
    selected: &[(&'static Peer, Vec<&'static Variant>)],
    recorder: &mut Recorder,
) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    for (peer, variants) in selected {
        eprintln!("building {}", peer.name);
        match build_peer(peer) {
            Ok(program) => entries.extend(variants.iter().map(|variant| Entry {
                peer,
                variant,
                program: program.clone(),
                version: locked_version(peer.source),
            })),
            Err(why) => {
                println!("{}: skipped: {why}", peer.name);
                let why = why.to_string();
                recorder.put(&Record::Skipped { peer: peer.name, why: &why })?;
            }
        }
    }
    Ok(entries)
}

/// Returns the directory of this workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn build_peer(peer: &Peer) -> Result<PathBuf, Failure> {
    let directory = programs()?;
    let program = directory.join(format!("peer-{}", peer.name));
    let mut command = match peer.source {
        Source::Cargo { .. } => cargo(peer, &directory),
        Source::Make => make(peer, &directory),
    };
    let output = command.output().map_err(|error| {
        format!("{} cannot be started: {error}", command.get_program().display())
    })?;
    if !output.status.success() {
        return Err(last_error(&String::from_utf8_lossy(&output.stderr)).into());
    }
    if !program.is_file() {
        return Err(format!("building left no {}", program.display()).into());
    }
    Ok(program)
}

/// Returns the directory of this program; all programs are built with its profile.
fn programs() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    Ok(program.parent().ok_or("this program is in no directory")?.to_owned())
}

fn cargo(peer: &Peer, directory: &Path) -> Command {
    // The invoking cargo command may have set the target directory by a flag.
    let target = directory.parent().unwrap_or(directory);
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(workspace()).args(["build", "--locked", "--package"]);
    command.arg(format!("peer-{}", peer.name)).arg("--target-dir").arg(target);
    if directory.file_name() == Some(OsStr::new("release")) {
        command.arg("--release");
    }
    command
}

fn make(peer: &Peer, directory: &Path) -> Command {
    let mut out = std::ffi::OsString::from("OUT=");
    out.push(directory);
    let mut command = Command::new("make");
    command.arg("-C").arg(workspace().join(peer.name)).arg(out);
    command
}

/// Returns the line that best explains why a build failed.
fn last_error(output: &str) -> &str {
    let lines = || output.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_error = |line: &&str| line.contains("error") || line.contains("panicked");
    let is_trailer =
        |line: &&str| line.starts_with("error: could not compile") || line.starts_with("make");
    let mut errors = lines().filter(|line| is_error(line) && !is_trailer(line));
    errors.next_back().or_else(|| lines().next_back()).unwrap_or("it did not say why")
}

/// Returns the version of a package in the lock file.
fn locked_version(source: Source) -> Option<String> {
    let Source::Cargo { package } = source else { return None };
    let lock = fs::read_to_string(workspace().join("Cargo.lock")).ok()?;
    version_in(&lock, package).map(str::to_owned)
}

fn version_in<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error__prefers_the_last_line_that_is_one() {
        let output = "warning: x\nerror: no such library\nerror: could not compile `a`\nwarning: build failed\n";
        assert_eq!(last_error(output), "error: no such library");
        assert_eq!(last_error("gone\n\n"), "gone");
        assert_eq!(last_error("make: *** [all] Error 1\n"), "make: *** [all] Error 1");
        assert_eq!(last_error(""), "it did not say why");
    }

    #[test]
    fn version_in__finds_the_package_and_no_other() {
        let lock = "[[package]]\nname = \"ab\"\nversion = \"2.0\"\n\n[[package]]\nname = \"a\"\nversion = \"1.5.0\"\n";
        assert_eq!(version_in(lock, "a"), Some("1.5.0"));
        assert_eq!(version_in(lock, "b"), None);
    }
}
