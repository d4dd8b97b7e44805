//! Test code among the sources of a crate: modules that are compiled for tests only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod};

/// The files and folders of modules for tests only.
#[derive(Debug)]
pub(crate) struct TestModules(BTreeSet<PathBuf>);

impl TestModules {
    /// Finds the modules that these files declare for tests only.
    pub(crate) fn of<'f>(files: impl Iterator<Item = (&'f Path, &'f File)>) -> Self {
        let mut found = BTreeSet::new();
        for (path, file) in files {
            for item in &file.items {
                if let Item::Mod(module) = item
                    && module.content.is_none()
                    && is_for_tests(&module.attrs)
                {
                    let folder = folder_of(path);
                    found.insert(folder.join(format!("{}.rs", module.ident)));
                    found.insert(folder.join(module.ident.to_string()));
                }
            }
        }
        Self(found)
    }

    /// Returns true if a file belongs to one of the modules, or has the name of such a module.
    pub(crate) fn contain(&self, path: &Path) -> bool {
        path.ancestors().any(|part| self.0.contains(part))
            || path.file_name().is_some_and(|name| name == "tests.rs")
    }
}

/// Returns the folder of a file's modules.
fn folder_of(path: &Path) -> PathBuf {
    let parent = path.parent().unwrap_or(Path::new("")).to_owned();
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") | None => parent,
        Some(stem) => parent.join(stem),
    }
}

/// Returns true if an attribute is a `cfg` for tests only.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg")
            && condition.is_ok_and(|condition| {
                condition == "test"
                    || condition.starts_with("all (test")
                    || condition.starts_with("all(test")
            })
    })
}

/// Returns the numbers, from 1, of a file's lines in modules for tests only.
pub(crate) fn test_lines(file: &File) -> BTreeSet<usize> {
    let mut lines = ModuleLines::default();
    lines.visit_file(file);
    lines.0
}

#[derive(Debug, Default)]
struct ModuleLines(BTreeSet<usize>);

impl<'s> Visit<'s> for ModuleLines {
    fn visit_item_mod(&mut self, module: &'s ItemMod) {
        if is_for_tests(&module.attrs) {
            let span = module.span();
            self.0.extend(span.start().line..=span.end().line);
        } else {
            visit::visit_item_mod(self, module);
        }
    }
}
