//! A copy of the workspace whose chosen crates contain all of their mutants in one build.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::crates::CRATES;
use super::equivalent;
use super::files::{self, Source};
use super::points::{self, Point};
use super::render::{Numbered, Rendered, render};
use crate::Outcome;
use crate::failure::Failure;

/// The module that chooses mutants at run time: a part of `petrel-planted` in the copy, a
/// dependency of all crates with mutants.
const RUNTIME: &str = include_str!("runtime.rs");
const RUNTIME_FILE: &str = "crates/petrel-planted/src/lib.rs";

/// Largest distance between two places of an error in a function.
const FUNCTION_BYTES_MAX: usize = 4_000;

/// Distance from an error within which a mutant is sought if there is none at the error itself.
const NEARBY_BYTES: usize = 400;

/// All mutants, and the copy of the workspace with the mutants that compile.
#[derive(Default)]
pub(super) struct Copy {
    pub(super) root: PathBuf,
    /// Places in [`CRATES`]. The mutants of the remaining crates have numbers, and are not in the copy.
    chosen: BTreeSet<usize>,
    files: Vec<File>,
    /// Mutants that do not compile.
    dropped: BTreeSet<u32>,
    /// Mutants without effect.
    equivalent: BTreeSet<u32>,
    pub(super) mutants: Vec<Mutant>,
}

/// A source file of the library.
struct File {
    /// From the root of the workspace.
    name: String,
    /// The place in [`CRATES`].
    crate_: usize,
    text: String,
    points: Vec<Point>,
    /// The number of the first mutant of every point.
    first_ids: Vec<u32>,
    rendered: Rendered,
}

impl File {
    /// Returns a key of the file's name and contents.
    fn key(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        format!("{} {:016x}", self.name, hasher.finish())
    }

    fn first_id(&self) -> u32 {
        self.first_ids.first().copied().unwrap_or_default()
    }

    fn mutants(&self) -> u32 {
        self.points.iter().map(|point| point.variants.len() as u32).sum()
    }
}

/// One mutant.
pub(super) struct Mutant {
    pub(super) id: u32,
    /// The place in [`CRATES`].
    pub(super) crate_: usize,
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) operator: String,
    pub(super) source: String,
}

impl Copy {
    /// Copies the workspace at `from`, with all mutants of the named crates.
    pub(super) fn make(from: &Path, root: PathBuf, crates: &[&str]) -> Outcome<Self> {
        let mut copy = Self::read(from, root)?;
        copy.chosen =
            (0..CRATES.len()).filter(|crate_| crates.contains(&CRATES[*crate_].name)).collect();
        copy.equivalent = equivalent::among(&copy.mutants);
        copy.copy_others(from)?;
        copy.recall();
        copy.write()?;
        Ok(copy)
    }

    #[cfg(test)]
    pub(super) fn mutants_of(from: &Path) -> Outcome<Vec<Mutant>> {
        Ok(Self::read(from, PathBuf::new())?.mutants)
    }

    fn read(from: &Path, root: PathBuf) -> Outcome<Self> {
        let mut copy = Self { root, ..Self::default() };
        for (crate_, one) in CRATES.iter().enumerate() {
            for source in files::of_library(&from.join(one.directory).join("src/lib.rs"))? {
                copy.add(crate_, from, &source)?;
            }
        }
        Ok(copy)
    }

    /// Copies all files without mutants. Cargo rebuilds every file with a new modification time, so
    /// unchanged files are not written.
    fn copy_others(&self, from: &Path) -> Outcome<()> {
        let names = tracked(from)?;
        remove_others(&self.root, &self.root, &names)?;
        let mutated: BTreeSet<&Path> =
            self.files.iter().map(|file| Path::new(&file.name)).collect();
        for name in names.iter().filter(|name| !mutated.contains(name.as_path())) {
            let what = || format!("copying {}", name.display());
            let mut text = std::fs::read(from.join(name)).map_err(Failure::io(what()))?;
            if name == Path::new(RUNTIME_FILE) {
                text.push(b'\n');
                text.extend_from_slice(RUNTIME.as_bytes());
            }
            if CRATES.iter().any(|one| *name == Path::new(one.directory).join("Cargo.toml")) {
                text = with_runtime(name, text)?;
            }
            write_if_new(&self.root.join(name), &text)?;
        }
        Ok(())
    }

    /// Removes at once the mutants of the last compiler errors, in unchanged files: the copies stay
    /// unchanged, and cargo need not rebuild.
    fn recall(&mut self) {
        let text = std::fs::read_to_string(self.memory()).unwrap_or_default();
        let known: BTreeMap<String, Vec<u32>> = serde_json::from_str(&text).unwrap_or_default();
        for file in &self.files {
            let places = known.get(&file.key()).into_iter().flatten();
            self.dropped.extend(places.map(|place| file.first_id() + place));
        }
    }

    /// Records the mutants that do not compile, by their places in their files.
    fn remember(&self) -> Outcome<()> {
        let mut known = BTreeMap::new();
        for file in &self.files {
            let ids = file.first_id()..file.first_id() + file.mutants();
            let places = self.dropped.range(ids).map(|id| id - file.first_id());
            known.insert(file.key(), places.collect::<Vec<u32>>());
        }
        let text = serde_json::to_string(&known).unwrap_or_default();
        std::fs::write(self.memory(), text).map_err(Failure::io("what does not compile"))
    }

    fn memory(&self) -> PathBuf {
        self.root.with_extension("dropped.json")
    }

    fn add(&mut self, crate_: usize, from: &Path, source: &Source) -> Outcome<()> {
        let name = source.path.strip_prefix(from).ok().and_then(Path::to_str);
        let name = name.ok_or_else(|| uncopied(&source.path, "the name, or the place"))?.to_owned();
        let points = points::of(source);
        let mut first_ids = Vec::new();
        for point in &points {
            first_ids.push(self.mutants.len() as u32);
            let line = source.text.lines().nth(point.line - 1).unwrap_or_default().trim();
            for variant in &point.variants {
                let id = self.mutants.len() as u32;
                self.mutants.push(Mutant {
                    id,
                    crate_,
                    file: name.clone(),
                    line: point.line,
                    operator: variant.operator.split_whitespace().collect::<Vec<_>>().join(" "),
                    source: line.to_owned(),
                });
            }
        }
        let text = source.text.clone();
        let rendered = Rendered::default();
        self.files.push(File { name, crate_, text, points, first_ids, rendered });
        Ok(())
    }

    /// Writes all files of the libraries, with the remaining mutants of the chosen crates.
    fn write(&mut self) -> Outcome<()> {
        for file in &mut self.files {
            let mut numbered = Vec::new();
            for (point, first) in file.points.iter().zip(&file.first_ids) {
                let ids = (*first..).zip(0..point.variants.len());
                let is_in = self.chosen.contains(&file.crate_);
                let ids = ids.filter(|(id, _)| is_in && !self.dropped.contains(id)).collect();
                numbered.push(Numbered { point, ids });
            }
            file.rendered = render(&file.text, &numbered).map_err(|line| {
                uncopied(&file.name, format!("no room for a mutant of line {line}"))
            })?;
            let (path, text) = (self.root.join(&file.name), &file.rendered.text);
            if !is_written(&path, text.as_bytes()) {
                syn::parse_file(text)
                    .map_err(|error| uncopied(&file.name, format!("with its mutants, {error}")))?;
            }
            write_if_new(&path, text.as_bytes())?;
        }
        Ok(())
    }

    /// Removes the mutants that cause these compiler errors; returns their number.
    pub(super) fn drop_blamed(&mut self, errors: &[CompileError]) -> Outcome<usize> {
        let before = self.dropped.len();
        let mut blamed: Vec<u32> = errors.iter().flat_map(|error| self.blamed(error)).collect();
        // If some errors have a mutant at their place, further errors may be consequences.
        if blamed.is_empty() {
            blamed.extend(errors.iter().flat_map(|error| self.between(error)));
        }
        if let (true, Some(error)) = (blamed.is_empty(), errors.first()) {
            return Err(Failure::NotAMutant(format!("{} at {:?}", error.text, error.primary)));
        }
        self.dropped.extend(blamed);
        self.write()?;
        self.remember()?;
        Ok(self.dropped.len() - before)
    }

    /// Returns the mutants that cause an error: at the compiler's primary place, else at secondary
    /// places, for instance if a mutant removes a value; else all mutants of the line.
    fn blamed(&self, error: &CompileError) -> Vec<u32> {
        let rendered = |name: &str| {
            let file = self.files.iter().find(|file| file.name == name);
            file.map(|file| &file.rendered)
        };
        for places in [&error.primary, &error.secondary] {
            let of = |(name, range): &(String, Range<usize>)| Some(rendered(name)?.blamed(range));
            let blamed: Vec<u32> = places.iter().filter_map(of).flatten().collect();
            if !blamed.is_empty() {
                return blamed;
            }
        }
        let of_line = |(name, range): &(String, Range<usize>)| {
            let rendered = rendered(name)?;
            Some(rendered.within(&line_of(&rendered.text, range)))
        };
        error.primary.iter().filter_map(of_line).flatten().collect()
    }

    /// Returns the mutants between the first and the last place of an error in a file, for instance if a
    /// value is used after it was moved.
    fn between(&self, error: &CompileError) -> Vec<u32> {
        let Some((name, primary)) = error.primary.first() else { return Vec::new() };
        let Some(file) = self.files.iter().find(|file| file.name == *name) else {
            return Vec::new();
        };
        let nearby = error.secondary.iter().filter(|(other, range)| {
            other == name && range.start.abs_diff(primary.start) < FUNCTION_BYTES_MAX
        });
        let all = nearby.fold(primary.clone(), |all, (_, range)| {
            all.start.min(range.start)..all.end.max(range.end)
        });
        let between = file.rendered.within(&all);
        if between.is_empty() {
            // For instance if a loop continues because a mutant does not leave it.
            let around = all.start.saturating_sub(NEARBY_BYTES)..all.end + NEARBY_BYTES;
            return file.rendered.within(&around);
        }
        between
    }

    pub(super) fn dropped_count(&self) -> usize {
        self.chosen().filter(|mutant| self.dropped.contains(&mutant.id)).count()
    }

    pub(super) fn chosen(&self) -> impl Iterator<Item = &Mutant> {
        self.mutants.iter().filter(|mutant| self.chosen.contains(&mutant.crate_))
    }

    /// Returns the mutants of the chosen crates that compile.
    pub(super) fn built(&self) -> impl Iterator<Item = &Mutant> {
        self.chosen().filter(|mutant| !self.dropped.contains(&mutant.id))
    }

    /// Returns the compiling mutants that a test could find.
    pub(super) fn candidates(&self) -> impl Iterator<Item = &Mutant> {
        self.built().filter(|mutant| !self.equivalent.contains(&mutant.id))
    }

    pub(super) fn equivalent_count(&self) -> usize {
        self.chosen().filter(|mutant| self.equivalent.contains(&mutant.id)).count()
    }
}

/// A compiler error.
#[derive(Debug)]
pub(super) struct CompileError {
    pub(super) text: String,
    /// The files and byte ranges that the error points to.
    pub(super) primary: Vec<(String, Range<usize>)>,
    pub(super) secondary: Vec<(String, Range<usize>)>,
}

/// Returns the range of the whole line with these bytes.
fn line_of(text: &str, range: &Range<usize>) -> Range<usize> {
    let start = text[..range.start].rfind('\n').map_or(0, |at| at + 1);
    let end = text[range.end..].find('\n').map_or(text.len(), |at| range.end + at);
    start..end
}

fn uncopied(file: impl AsRef<Path>, why: impl Into<String>) -> Failure {
    Failure::Uncopied { file: file.as_ref().to_owned(), why: why.into() }
}

/// Returns a manifest with a dependency on the crate of the runtime.
fn with_runtime(name: &Path, manifest: Vec<u8>) -> Outcome<Vec<u8>> {
    let text = String::from_utf8(manifest).map_err(|error| uncopied(name, error.to_string()))?;
    if text.contains("\npetrel-planted = ") {
        return Ok(text.into_bytes());
    }
    let title = "\n[dependencies]\n";
    let (before, after) =
        text.split_once(title).ok_or_else(|| uncopied(name, "it has no table of dependencies"))?;
    Ok(format!("{before}{title}petrel-planted = {{ workspace = true }}\n{after}").into_bytes())
}

/// Returns the files that belong to the workspace, and are not deleted.
fn tracked(root: &Path) -> Outcome<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(Failure::io("git ls-files"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::io("git ls-files")(std::io::Error::other(why)));
    }
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut files = BTreeSet::new();
    for name in names.map(|name| PathBuf::from(OsStr::from_bytes(name))) {
        let path = root.join(&name);
        if path.is_file() {
            files.insert(name);
        } else if path.symlink_metadata().is_ok() {
            return Err(uncopied(name, "it is no file"));
        }
    }
    Ok(files)
}

/// Removes files that the workspace no longer has: cargo would otherwise build a renamed test twice.
fn remove_others(root: &Path, directory: &Path, names: &BTreeSet<PathBuf>) -> Outcome<()> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            remove_others(root, &path, names)?;
        } else if path.strip_prefix(root).is_ok_and(|name| !names.contains(name)) {
            std::fs::remove_file(&path).map_err(Failure::io(format!("{}", path.display())))?;
        }
    }
    Ok(())
}

fn is_written(path: &Path, text: &[u8]) -> bool {
    std::fs::read(path).is_ok_and(|former| former == text)
}

/// Writes a file only if its text has changed, so cargo does not rebuild an unchanged file.
fn write_if_new(path: &Path, text: &[u8]) -> Outcome<()> {
    if is_written(path, text) {
        return Ok(());
    }
    let write = || {
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(path, text)
    };
    write().map_err(Failure::io(format!("{}", path.display())))
}
