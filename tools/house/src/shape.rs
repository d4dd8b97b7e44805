//! The shape of a crate's code: lines, assertions, private fields, objects in several files, circles of imports. Test
//! code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{
    Fields, GenericArgument, ImplItemFn, ItemImpl, ItemMod, ItemStruct, Macro, PathArguments, Type,
    Visibility,
};

use crate::imports::Imports;
use crate::test_code::{TestModules, is_for_tests, test_lines};
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
    /// Fields of structs that change: a method takes `&mut self`. Structs of the same name count as the same.
    pub changing_fields: usize,
    /// Fields of structs that change, private to their module.
    pub private_changing_fields: usize,
    /// Types, by the number of files with their `impl` blocks, the most first.
    pub scattered: Vec<(usize, String)>,
    /// Circles of imports among files, except between parents and children.
    pub circles: Vec<Vec<PathBuf>>,
    /// Circles of imports among the modules directly below the crate's root, each with all its files.
    pub room_circles: Vec<Vec<String>>,
}

impl Shape {
    /// Returns the assertions per 1 000 lines.
    pub fn assertions_per_1000(&self) -> f64 {
        1_000.0 * self.assertions as f64 / self.lines.max(1) as f64
    }

    /// Returns the private fields, in per cent.
    pub fn private_percent(&self) -> f64 {
        percent(self.private_fields, self.fields)
    }

    /// Returns the private fields of structs that change, in per cent.
    pub fn private_changing_percent(&self) -> f64 {
        percent(self.private_changing_fields, self.changing_fields)
    }
}

fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
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
        let file = source::parse(&path, &text)?;
        parsed.push((path.strip_prefix(&root).unwrap_or(&path).to_owned(), text, file));
    }
    let tests = TestModules::of(parsed.iter().map(|(path, _, file)| (&**path, file)));
    let mut shape = Shape::default();
    let mut files_of: BTreeMap<String, BTreeSet<&Path>> = BTreeMap::new();
    let mut imports = Imports::default();
    let (mut structs, mut changing) = (Vec::new(), BTreeSet::new());
    for (path, text, file) in &parsed {
        if tests.contain(path) {
            continue;
        }
        let mut counter = Counter::default();
        counter.visit_file(file);
        shape.lines += text.lines().count() - test_lines(file).len();
        shape.assertions += counter.assertions;
        structs.append(&mut counter.structs);
        changing.append(&mut counter.changing);
        for name in counter.implemented {
            files_of.entry(name).or_default().insert(path);
        }
        imports.add(path, file);
    }
    for Struct { name, fields, private_fields } in structs {
        shape.fields += fields;
        shape.private_fields += private_fields;
        if changing.contains(&name) {
            shape.changing_fields += fields;
            shape.private_changing_fields += private_fields;
        }
    }
    let mut scattered: Vec<_> =
        files_of.into_iter().map(|(name, files)| (files.len(), name)).collect();
    scattered.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    shape.scattered = scattered;
    shape.circles = imports.circles();
    shape.room_circles = imports.circles_of_rooms();
    Ok(shape)
}

#[derive(Debug, Default)]
struct Counter {
    assertions: usize,
    structs: Vec<Struct>,
    /// Types of which a method takes `&mut self`.
    changing: BTreeSet<String>,
    implemented: BTreeSet<String>,
}

/// A struct with named fields.
#[derive(Debug)]
struct Struct {
    name: String,
    fields: usize,
    private_fields: usize,
}

/// Returns the name of the type of an `impl` block.
fn implemented(item: &ItemImpl) -> Option<String> {
    match &*item.self_ty {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        _ => None,
    }
}

/// Returns true if a method may change its object: it takes `&mut self`, or a pin of it.
fn takes_itself_mutably(method: &ImplItemFn) -> bool {
    method.sig.receiver().is_some_and(|receiver| is_mutable(&receiver.ty))
}

fn is_mutable(receiver: &Type) -> bool {
    match receiver {
        Type::Reference(reference) => reference.mutability.is_some(),
        Type::Path(path) => path.path.segments.iter().any(|segment| match &segment.arguments {
            PathArguments::AngleBracketed(arguments) => arguments.args.iter().any(
                |argument| matches!(argument, GenericArgument::Type(inner) if is_mutable(inner)),
            ),
            _ => false,
        }),
        _ => false,
    }
}

impl<'s> Visit<'s> for Counter {
    fn visit_item_mod(&mut self, module: &'s ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'s ItemStruct) {
        if let Fields::Named(fields) = &item.fields {
            let is_private = |field: &&syn::Field| matches!(field.vis, Visibility::Inherited);
            self.structs.push(Struct {
                name: item.ident.to_string(),
                fields: fields.named.len(),
                private_fields: fields.named.iter().filter(is_private).count(),
            });
        }
    }

    fn visit_item_impl(&mut self, item: &'s ItemImpl) {
        if let Some(name) = implemented(item) {
            let is_method = |item: &syn::ImplItem| match item {
                syn::ImplItem::Fn(method) => takes_itself_mutably(method),
                _ => false,
            };
            if item.items.iter().any(is_method) {
                self.changing.insert(name.clone());
            }
            if item.trait_.is_none() {
                self.implemented.insert(name);
            }
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

    /// Measures a crate of these files.
    fn shape_of(test: &str, files: &[(&str, &str)]) -> Shape {
        let name = format!("petrel-shape-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for (name, text) in files {
            let path = folder.join("src").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let shape = of_crate(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        shape
    }

    #[test]
    fn of_crate__counts_the_fields_of_structs_that_change_by_themselves() {
        let plain = "pub struct Config { pub a: u8, pub b: u8 }\nimpl Config { fn c(&self) {} }\n";
        let slot = "pub struct Slot { a: u8, pub b: u8 }\n";
        let changes = [
            "impl Slot { fn set(&mut self) {} }\n",
            "impl crate::Slot { fn set(self: &mut Self) {} }\n",
            "impl<'a> Future for Slot<'a> { fn poll(self: Pin<&mut Self>, cx: &mut C) {} }\n",
        ];
        let keeps = "impl Slot { fn get(&self, other: &mut u8) {} fn into(mut self) {} fn of(a: &mut Self) {} }\n";
        let figures = |test: &str, other: &str| {
            let shape = shape_of(test, &[("lib.rs", &[plain, slot].concat()), ("other.rs", other)]);
            assert_eq!((shape.fields, shape.private_fields), (4, 1));
            (shape.changing_fields, shape.private_changing_fields)
        };
        assert_eq!(figures("keeps", keeps), (0, 0));
        for (index, change) in changes.iter().enumerate() {
            assert_eq!(figures(&format!("changes-{index}"), change), (2, 1), "{change}");
        }
        let in_tests = format!("#[cfg(test)]\nmod tests {{ {} }}\n", changes[0]);
        assert_eq!(figures("in-tests", &in_tests), (0, 0));
    }

    #[test]
    fn of_crate__leaves_tests_out() {
        let lib = (
            "lib.rs",
            "mod slot;\nmod session;\n#[cfg(test)]\nmod scripts;\npub struct Core { a: u8, pub b: u8 }\nimpl Core {\n    fn f(&self) { assert!(self.a > 0); debug_assert!(true); }\n}\n#[cfg(test)]\nmod tests {\n    fn t() { assert_eq!(1, 1); }\n}\n",
        );
        let slot = (
            "slot.rs",
            "use crate::session::Session;\nimpl crate::Core {}\npub struct Slot { pub(crate) c: Session }\n",
        );
        let session = ("session/mod.rs", "mod table;\npub use table::Session;\n");
        let table =
            ("session/table.rs", "use crate::slot::Slot;\npub struct Session(Box<Slot>);\n");
        let scripts = ("scripts.rs", "fn s() { assert!(true); }\n");
        let shape = shape_of("tests", &[lib, slot, session, table, scripts]);
        assert_eq!((shape.lines, shape.assertions), (6 + 3 + 2 + 2, 1));
        assert_eq!((shape.fields, shape.private_fields), (3, 1));
        assert_eq!(shape.scattered, [(2, "Core".to_owned())]);
        assert_eq!(shape.circles, [[PathBuf::from("session/table.rs"), PathBuf::from("slot.rs")]]);
        assert_eq!(shape.room_circles, [["session", "slot"]]);
    }

    /// A circle through `mod.rs` is none of files, since each file is related to the next.
    #[test]
    fn of_crate__sees_circles_of_rooms_through_their_parents() {
        let lib = ("lib.rs", "mod call;\nmod engine;\nmod word;\n");
        let call = ("call/mod.rs", "mod state;\nuse crate::engine::Engine;\npub struct Options;\n");
        let state = ("call/state.rs", "use super::Options;\nuse crate::word::Word;\n");
        let engine = ("engine/mod.rs", "mod turn;\npub use turn::Turn;\npub struct Engine;\n");
        let turn = ("engine/turn.rs", "use crate::call::Options;\npub struct Turn;\n");
        let word = ("word.rs", "pub struct Word;\n");
        let shape = shape_of("rooms", &[lib, call, state, engine, turn, word]);
        assert!(shape.circles.is_empty(), "{:?}", shape.circles);
        assert_eq!(shape.room_circles, [["call", "engine"]]);
    }
}
