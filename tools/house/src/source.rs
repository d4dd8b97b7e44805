//! The measured files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;

/// Folders that hold no source of the project: build outputs, and inputs and outputs of fuzzers.
const SKIPPED: [&str; 4] = ["target", "corpus", "artifacts", "node_modules"];

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("the crate lies in tools/house").to_owned()
}

/// Returns all files under a folder with one of the extensions, in the order of their paths. Symbolic
/// links are not followed: a file counts once.
///
/// # Errors
/// A folder that cannot be read.
pub fn files(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    collect(folder, extensions, &mut found)?;
    found.sort();
    Ok(found)
}

/// Returns the text of a file.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::Read { path: path.to_owned(), error })
}

/// Parses the text of a file.
///
/// # Errors
/// The text is not Rust.
pub(crate) fn parse(path: &Path, text: &str) -> Result<syn::File, Failure> {
    syn::parse_file(text).map_err(|error| Failure::Syntax { path: path.to_owned(), error })
}

fn collect(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error| Failure::Read { path: folder.to_owned(), error };
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (kind, name) = (entry.file_type().map_err(failed)?, entry.file_name());
        let name = name.to_string_lossy();
        if kind.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&&*name) {
            collect(&entry.path(), extensions, found)?;
        }
        let is_wanted =
            |extension: &&str| entry.path().extension().is_some_and(|e| e == *extension);
        if kind.is_file() && extensions.iter().any(is_wanted) {
            found.push(entry.path());
        }
    }
    Ok(())
}
