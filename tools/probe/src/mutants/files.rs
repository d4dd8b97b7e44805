//! The source files compiled into a crate's library, found in the compiler's way.

use std::path::{Path, PathBuf};

use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

use crate::Outcome;
use crate::failure::Failure;

/// Modules for tests, or without effect in the build. `ObjectCounts` reports an endpoint's objects to the
/// simulator's rules, and has no further caller. Its mutants weaken a check, and no test of the product
/// can find mutants of a check. Likewise, only the simulator uses a transport `detached` from the
/// system. `prefetch` changes only the speed.
const LEFT_OUT: [&str; 6] =
    ["conformance", "events", "object_counts", "table_sizes", "detached", "prefetch"];

/// A source file.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) parsed: syn::File,
}

/// Returns the files of the library with this root, in the order of their paths, without modules for
/// tests.
pub(super) fn of_library(root: &Path) -> Outcome<Vec<Source>> {
    let mut found = Found::default();
    let directory = root.parent().unwrap_or(Path::new("."));
    visit(root.to_owned(), directory, &mut found)?;
    found.check_all_of(directory)?;
    found.sources.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found.sources)
}

/// The files of a library.
#[derive(Default)]
struct Found {
    sources: Vec<Source>,
    /// Files of modules for tests, and the directories of their child modules.
    left_out: Vec<PathBuf>,
}

impl Found {
    /// Returns an error if the library's directory has a source file neither read nor left out on
    /// purpose, for instance a module declared in an inline module or by a macro.
    fn check_all_of(&self, directory: &Path) -> Outcome<()> {
        let what = || format!("reading {}", directory.display());
        for entry in std::fs::read_dir(directory).map_err(Failure::io(what()))? {
            let path = entry.map_err(Failure::io(what()))?.path();
            let is_known = self.sources.iter().any(|source| source.path == path)
                || self.left_out.iter().any(|left_out| path.starts_with(left_out));
            if path.is_dir() {
                self.check_all_of(&path)?;
            } else if path.extension().is_some_and(|end| end == "rs") && !is_known {
                let why = "no module declaration that the probe follows leads to the file";
                return Err(Failure::Uncopied { file: path, why: why.to_owned() });
            }
        }
        Ok(())
    }
}

/// Reads a file whose child modules lie in `directory`.
fn visit(path: PathBuf, directory: &Path, found: &mut Found) -> Outcome<()> {
    let text = std::fs::read_to_string(&path)
        .map_err(Failure::io(format!("reading {}", path.display())))?;
    let parsed = syn::parse_file(&text)
        .map_err(|error| Failure::Syntax { file: path.clone(), why: error.to_string() })?;
    if parsed.attrs.iter().any(leaves_out) {
        found.left_out.extend([path, directory.to_owned()]);
        return Ok(());
    }
    for item in &parsed.items {
        if let Item::Mod(module) = item {
            visit_module(module, &path, directory, found)?;
        }
    }
    found.sources.push(Source { path, text, parsed });
    Ok(())
}

fn visit_module(
    module: &ItemMod,
    parent: &Path,
    directory: &Path,
    found: &mut Found,
) -> Outcome<()> {
    let name = module.ident.to_string();
    let is_out = module.attrs.iter().any(leaves_out) || LEFT_OUT.contains(&name.as_str());
    if module.content.is_some() {
        return Ok(());
    }
    let (path, inner) = match module.attrs.iter().find_map(path_of) {
        Some(named) => {
            let path = parent.parent().unwrap_or(directory).join(named);
            let inner = path.parent().unwrap_or(directory).to_owned();
            (path, inner)
        }
        None => {
            let inner = directory.join(&name);
            let beside = directory.join(format!("{name}.rs"));
            (if beside.is_file() { beside } else { inner.join("mod.rs") }, inner)
        }
    };
    if !is_out {
        return visit(path, &inner, found);
    }
    // A file with a path attribute shares the directory with modules of the build.
    found.left_out.extend((inner != *directory).then_some(inner));
    found.left_out.push(path);
    Ok(())
}

/// Returns true if an item with this attribute is not in the build, or only for tests.
pub(super) fn leaves_out(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
    let words = ["test", "loom", "shuttle", "fuzzing", "feature", "petrel_break", "not"];
    let has_word = |text: String| {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| words.contains(&word))
    };
    list.path.is_ident("cfg") && has_word(list.tokens.to_string())
}

fn path_of(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    match &pair.value {
        Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) if pair.path.is_ident("path") => {
            Some(path.value())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_library__names_a_file_that_no_module_leads_to() {
        let name = format!("petrel-probe-files-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(directory.join("inline")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        write("lib.rs", "mod a; #[cfg(test)] mod tests; mod inline { mod b; }");
        ["a.rs", "tests.rs"].iter().for_each(|name| write(name, ""));
        let files = || of_library(&directory.join("lib.rs"));
        assert_eq!(files().unwrap().len(), 2);
        write("inline/b.rs", "");
        let failure = files().err().unwrap().to_string();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(failure.contains("inline/b.rs"), "{failure}");
    }
}
