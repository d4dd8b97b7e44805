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
    let mut found = Vec::new();
    let directory = root.parent().unwrap_or(Path::new("."));
    visit(root.to_owned(), directory, &mut found)?;
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

/// Reads a file whose child modules lie in `directory`.
fn visit(path: PathBuf, directory: &Path, found: &mut Vec<Source>) -> Outcome<()> {
    let text = std::fs::read_to_string(&path)
        .map_err(Failure::io(format!("reading {}", path.display())))?;
    let parsed = syn::parse_file(&text)
        .map_err(|error| Failure::Syntax { file: path.clone(), why: error.to_string() })?;
    if parsed.attrs.iter().any(leaves_out) {
        return Ok(());
    }
    for item in &parsed.items {
        if let Item::Mod(module) = item {
            visit_module(module, &path, directory, found)?;
        }
    }
    found.push(Source { path, text, parsed });
    Ok(())
}

fn visit_module(
    module: &ItemMod,
    parent: &Path,
    directory: &Path,
    found: &mut Vec<Source>,
) -> Outcome<()> {
    let name = module.ident.to_string();
    let is_out = module.attrs.iter().any(leaves_out) || LEFT_OUT.contains(&name.as_str());
    if is_out || module.content.is_some() {
        return Ok(());
    }
    if let Some(named) = module.attrs.iter().find_map(path_of) {
        let path = parent.parent().unwrap_or(directory).join(named);
        let directory = path.parent().unwrap_or(directory).to_owned();
        return visit(path, &directory, found);
    }
    let inner = directory.join(&name);
    let beside = directory.join(format!("{name}.rs"));
    let path = if beside.is_file() { beside } else { inner.join("mod.rs") };
    visit(path, &inner, found)
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
