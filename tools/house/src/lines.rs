//! Lines of Rust, crate by crate: code, comments, blank lines, and tests by themselves.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

use crate::test_code::{TestModules, test_lines};
use crate::{Failure, source};

/// The numbers of lines of a crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Lines with code, outside tests.
    pub code: usize,
    /// Lines with a comment alone, outside tests.
    pub comments: usize,
    /// Lines with white space alone, outside tests.
    pub blank: usize,
    /// Lines of all kinds in tests: the folders `tests`, files named `tests.rs`, and modules for tests only.
    pub tests: usize,
}

impl Lines {
    /// Returns the lines outside tests.
    pub fn outside_tests(&self) -> usize {
        self.code + self.comments + self.blank
    }

    fn count(&mut self, line: &str) {
        match line.trim_start() {
            "" => self.blank += 1,
            text if text.starts_with("//") => self.comments += 1,
            _ => self.code += 1,
        }
    }
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.comments += other.comments;
        self.blank += other.blank;
        self.tests += other.tests;
    }
}

/// Counts the lines of each crate under a folder, by the crate's folder. A file belongs to the innermost crate around
/// it, and a source that another crate links counts once.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn of_crates(root: &Path) -> Result<BTreeMap<PathBuf, Lines>, Failure> {
    let manifests = source::files(root, &["toml"])?;
    let is_manifest = |path: &PathBuf| path.file_name().is_some_and(|name| name == "Cargo.toml");
    let mut crates: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for manifest in manifests.into_iter().filter(is_manifest) {
        if source::read(&manifest)?.contains("[package]") {
            crates.insert(manifest.parent().unwrap_or(root).to_owned(), Vec::new());
        }
    }
    for path in source::files(root, &["rs"])? {
        let innermost = path.ancestors().skip(1).find(|folder| crates.contains_key(*folder));
        if let Some(files) =
            innermost.map(Path::to_owned).and_then(|folder| crates.get_mut(&folder))
        {
            files.push(path);
        }
    }
    let relative = |folder: &Path| folder.strip_prefix(root).unwrap_or(folder).to_owned();
    crates
        .into_iter()
        .map(|(folder, files)| Ok((relative(&folder), of_files(&folder, &files)?)))
        .collect()
}

fn of_files(folder: &Path, files: &[PathBuf]) -> Result<Lines, Failure> {
    let mut lines = Lines::default();
    let mut parsed = Vec::new();
    for path in files {
        let (text, inside) = (source::read(path)?, path.strip_prefix(folder).unwrap_or(path));
        // Some of these are not meant to compile.
        if inside.starts_with("tests") {
            lines.tests += text.lines().count();
        } else {
            let file = source::parse(path, &text)?;
            parsed.push((inside, text, file));
        }
    }
    let modules = TestModules::of(parsed.iter().map(|(path, _, file)| (*path, file)));
    for (path, text, file) in &parsed {
        if modules.contain(path) {
            lines.tests += text.lines().count();
            continue;
        }
        let tests = test_lines(file);
        for (number, line) in (1..).zip(text.lines()) {
            if tests.contains(&number) { lines.tests += 1 } else { lines.count(line) }
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_crates__separates_code_comments_and_tests_and_gives_files_to_the_innermost_crate() {
        let root = std::env::temp_dir().join(format!("petrel-lines-{}", std::process::id()));
        let files = [
            ("Cargo.toml", "[workspace]\n"),
            ("stray.rs", "fn belongs_to_no_crate() {}\n"),
            ("outer/Cargo.toml", "[package]\n"),
            (
                "outer/src/lib.rs",
                "//! Root.\n\nmod a;\n#[cfg(test)]\nmod scripts;\n\n#[cfg(test)]\nmod tests {\n    // Here.\n}\n",
            ),
            ("outer/src/a.rs", "/// Returns.\nfn a() {} // And more.\n"),
            ("outer/src/scripts.rs", "fn s() {}\n"),
            ("outer/tests/all.rs", "not Rust\n\n"),
            ("outer/inner/Cargo.toml", "[package]\n"),
            ("outer/inner/src/main.rs", "fn main() {}\n"),
        ];
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = of_crates(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        let outer = Lines { code: 2, comments: 2, blank: 2, tests: 2 + 4 + 1 + 2 };
        let inner = Lines { code: 1, ..Lines::default() };
        assert_eq!(found, BTreeMap::from([("outer".into(), outer), ("outer/inner".into(), inner)]));
        assert_eq!(outer.outside_tests(), 6);
    }
}
