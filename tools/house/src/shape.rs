//! The shape of a crate's code: lines, assertions, private fields, objects in several files, circles of imports. Test
//! code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Fields, ItemImpl, ItemMod, ItemStruct, Macro, Type, Visibility};

use crate::imports::Imports;
use crate::{Failure, source};

/// The figures of a crate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// Lines, those of tests left out.
    pub lines: usize,
    /// Assertions that release builds have.
    pub assertions: usize,
    /// Fields of structs.
    pub fields: usize,
    /// Fields private to their module.
    pub private_fields: usize,
    /// Types, by the number of files with their `impl` blocks, the most first.
    pub scattered: Vec<(usize, String)>,
    /// Circles of imports, except between parents and children.
    pub circles: Vec<Vec<PathBuf>>,
}

impl Shape {
    /// Returns the assertions per 1 000 lines.
    pub fn assertions_per_1000(&self) -> f64 {
        1_000.0 * self.assertions as f64 / self.lines.max(1) as f64
    }

    /// Returns the private fields, in per cent.
    pub fn private_percent(&self) -> f64 {
        100.0 * self.private_fields as f64 / self.fields.max(1) as f64
    }
}

/// Measures the sources of a crate, in the folder `src`.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn of_crate(folder: &Path) -> Result<Shape, Failure> {
    let root = folder.join("src");
    let mut parsed = Vec::new();
    for path in source::files(&root, &["rs"])? {
        let text = source::read(&path)?;
        let file = syn::parse_file(&text)
            .map_err(|error| Failure::Syntax { path: path.clone(), error })?;
        parsed.push((path.strip_prefix(&root).unwrap_or(&path).to_owned(), text, file));
    }
    let tests = test_modules(&parsed);
    let mut shape = Shape::default();
    let mut files_of: BTreeMap<String, BTreeSet<&Path>> = BTreeMap::new();
    let mut imports = Imports::default();
    for (path, text, file) in &parsed {
        if is_test(path, &tests) {
            continue;
        }
        let mut counter = Counter::default();
        counter.visit_file(file);
        shape.lines += text.lines().count() - counter.test_lines;
        shape.assertions += counter.assertions;
        shape.fields += counter.fields;
        shape.private_fields += counter.private_fields;
        for name in counter.implemented {
            files_of.entry(name).or_default().insert(path);
        }
        imports.add(path, file);
    }
    let mut scattered: Vec<_> =
        files_of.into_iter().map(|(name, files)| (files.len(), name)).collect();
    scattered.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    shape.scattered = scattered;
    shape.circles = imports.circles();
    Ok(shape)
}

/// Returns the files and folders of modules for tests only.
fn test_modules(parsed: &[(PathBuf, String, syn::File)]) -> BTreeSet<PathBuf> {
    let mut tests = BTreeSet::new();
    for (path, _, file) in parsed {
        for item in &file.items {
            if let syn::Item::Mod(module) = item
                && module.content.is_none()
                && is_for_tests(&module.attrs)
            {
                let folder = folder_of(path);
                tests.insert(folder.join(format!("{}.rs", module.ident)));
                tests.insert(folder.join(module.ident.to_string()));
            }
        }
    }
    tests
}

/// Returns the folder of a file's modules.
fn folder_of(path: &Path) -> PathBuf {
    let parent = path.parent().unwrap_or(Path::new("")).to_owned();
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") | None => parent,
        Some(stem) => parent.join(stem),
    }
}

fn is_test(path: &Path, tests: &BTreeSet<PathBuf>) -> bool {
    path.ancestors().any(|part| tests.contains(part))
        || path.file_name().is_some_and(|name| name == "tests.rs")
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

#[derive(Debug, Default)]
struct Counter {
    test_lines: usize,
    assertions: usize,
    fields: usize,
    private_fields: usize,
    implemented: BTreeSet<String>,
}

impl<'s> Visit<'s> for Counter {
    fn visit_item_mod(&mut self, module: &'s ItemMod) {
        if is_for_tests(&module.attrs) {
            let span = module.span();
            self.test_lines += span.end().line + 1 - span.start().line;
        } else {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'s ItemStruct) {
        if let Fields::Named(fields) = &item.fields {
            self.fields += fields.named.len();
            let is_private = |field: &&syn::Field| matches!(field.vis, Visibility::Inherited);
            self.private_fields += fields.named.iter().filter(is_private).count();
        }
    }

    fn visit_item_impl(&mut self, item: &'s ItemImpl) {
        if item.trait_.is_none()
            && let Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
        {
            self.implemented.insert(last.ident.to_string());
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_macro(&mut self, item: &'s Macro) {
        let is_assertion = |name: &str| item.path.is_ident(name);
        self.assertions +=
            usize::from(["assert", "assert_eq", "assert_ne"].into_iter().any(is_assertion));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_crate__leaves_tests_out() {
        let folder = std::env::temp_dir().join(format!("petrel-shape-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = folder.join("src").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "lib.rs",
            "mod slot;\nmod session;\n#[cfg(test)]\nmod scripts;\npub struct Core { a: u8, pub b: u8 }\nimpl Core {\n    fn f(&self) { assert!(self.a > 0); debug_assert!(true); }\n}\n#[cfg(test)]\nmod tests {\n    fn t() { assert_eq!(1, 1); }\n}\n",
        );
        write(
            "slot.rs",
            "use crate::session::Session;\nimpl crate::Core {}\npub struct Slot { pub(crate) c: Session }\n",
        );
        write("session/mod.rs", "mod table;\npub use table::Session;\n");
        write("session/table.rs", "use crate::slot::Slot;\npub struct Session(Box<Slot>);\n");
        write("scripts.rs", "fn s() { assert!(true); }\n");
        let shape = of_crate(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((shape.lines, shape.assertions), (6 + 3 + 2 + 2, 1));
        assert_eq!((shape.fields, shape.private_fields), (3, 1));
        assert_eq!(shape.scattered, [(2, "Core".to_owned())]);
        assert_eq!(shape.circles, [[PathBuf::from("session/table.rs"), PathBuf::from("slot.rs")]]);
    }
}
