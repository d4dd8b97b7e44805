//! The imports between the files of a crate, and their circles.
//!
//! A path counts for the file that defines the name, even if a parent module re-exports the name with
//! `use`. Among files, imports between parents and children are allowed, because a module and its parts are a unit. Among
//! rooms, the modules directly below the crate's root, each import of a part counts for its room.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, UseTree};

use crate::test_code::is_for_tests;

/// A module, by the names from the crate's root.
type Module = Vec<String>;

/// The paths that the files of a crate use.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    files: BTreeMap<Module, PathBuf>,
    /// The paths used in a file, from the crate's root.
    named: BTreeMap<Module, BTreeSet<Module>>,
    /// Names re-exported by a module, and their targets.
    handed_on: BTreeMap<Module, Vec<(String, Module)>>,
}

impl Imports {
    pub(crate) fn add(&mut self, path: &Path, file: &syn::File) {
        let module = module_of(path);
        let mut reader =
            Reader { module: module.clone(), named: BTreeSet::new(), handed_on: Vec::new() };
        reader.visit_file(file);
        self.files.insert(module.clone(), path.to_owned());
        self.named.insert(module.clone(), reader.named);
        self.handed_on.insert(module, reader.handed_on);
    }

    /// Returns groups of files with circular imports.
    pub(crate) fn circles(&self) -> Vec<Vec<PathBuf>> {
        let edges: BTreeMap<&Module, BTreeSet<&Module>> = self
            .named
            .iter()
            .map(|(from, names)| {
                let targets = names.iter().filter_map(|name| self.file_of(name, 0));
                (from, targets.filter(|to| !are_related(from, to)).collect())
            })
            .collect();
        let circles = circles_of(&edges).into_iter();
        circles
            .map(|circle| circle.into_iter().map(|module| self.files[module].clone()).collect())
            .collect()
    }

    /// Returns groups of rooms with circular imports, by name.
    pub(crate) fn circles_of_rooms(&self) -> Vec<Vec<String>> {
        let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, names) in &self.named {
            let Some(room) = from.first() else { continue };
            let targets = names.iter().filter_map(|name| self.file_of(name, 0)?.first());
            let others = targets.filter(|other| *other != room).map(String::as_str);
            edges.entry(room).or_default().extend(others);
        }
        let circles = circles_of(&edges).into_iter();
        circles.map(|circle| circle.into_iter().map(str::to_owned).collect()).collect()
    }

    /// Returns the file that defines a name.
    fn file_of(&self, name: &[String], depth: usize) -> Option<&Module> {
        let module_names =
            (0..=name.len()).rev().find(|end| self.files.contains_key(&name[..*end]))?;
        let (module, rest) = name.split_at(module_names);
        // A name may be re-exported repeatedly, up to this depth.
        if let Some(first) = rest.first()
            && depth < 8
        {
            let handed_on = self.handed_on.get(module).into_iter().flatten();
            let stands_for =
                handed_on.filter(|(name, _)| name == first).map(|(_, path)| path).next();
            if let Some(path) = stands_for
                && path.as_slice() != name
            {
                return self.file_of(path, depth + 1);
            }
        }
        self.files.get_key_value(module).map(|(module, _)| module)
    }
}

/// Returns the groups of mutually reachable nodes.
fn circles_of<N: Copy + Ord>(edges: &BTreeMap<N, BTreeSet<N>>) -> BTreeSet<BTreeSet<N>> {
    let reached: BTreeMap<N, BTreeSet<N>> =
        edges.keys().map(|from| (*from, reachable(*from, edges))).collect();
    let circle_of = |(from, to): (&N, &BTreeSet<N>)| {
        let comes_back = |to: &&N| reached.get(to).is_some_and(|back| back.contains(from));
        to.iter().filter(comes_back).copied().collect::<BTreeSet<N>>()
    };
    reached.iter().map(circle_of).filter(|circle| circle.len() > 1).collect()
}

fn reachable<N: Copy + Ord>(from: N, edges: &BTreeMap<N, BTreeSet<N>>) -> BTreeSet<N> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(node) = next.pop() {
        for to in edges.get(&node).into_iter().flatten() {
            if reached.insert(*to) {
                next.push(*to);
            }
        }
    }
    reached
}

/// Returns true if a module contains the other.
fn are_related(one: &Module, other: &Module) -> bool {
    let shorter = one.len().min(other.len());
    one[..shorter] == other[..shorter]
}

fn module_of(path: &Path) -> Module {
    let mut names: Module =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

struct Reader {
    module: Module,
    named: BTreeSet<Module>,
    handed_on: Vec<(String, Module)>,
}

impl Reader {
    /// Returns the path from the crate's root, for paths inside the crate.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let mut base = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => self.module.clone(),
            "super" => self.module.clone(),
            _ => return None,
        };
        let mut rest =
            path.iter().skip_while(|name| matches!(name.as_str(), "crate" | "self")).peekable();
        while rest.next_if(|name| *name == "super").is_some() {
            base.pop();
        }
        base.extend(rest.cloned());
        Some(base)
    }

    fn read_tree(&mut self, before: &mut Vec<String>, tree: &UseTree, is_handed_on: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.read_tree(before, &path.tree, is_handed_on);
                before.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.read_tree(before, tree, is_handed_on));
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.read_name(before, &name, name.clone(), is_handed_on);
            }
            UseTree::Rename(rename) => {
                let (name, alias) = (rename.ident.to_string(), rename.rename.to_string());
                self.read_name(before, &name, alias, is_handed_on);
            }
            UseTree::Glob(_) => self.named.extend(self.absolute(before)),
        }
    }

    fn read_name(&mut self, before: &[String], name: &str, alias: String, is_handed_on: bool) {
        let mut path = before.to_vec();
        if name != "self" {
            path.push(name.to_owned());
        }
        // `pub use child::Name` begins in the module itself.
        let absolute = self
            .absolute(&path)
            .or_else(|| is_handed_on.then(|| [self.module.clone(), path.clone()].concat()));
        let Some(absolute) = absolute else { return };
        if is_handed_on {
            self.handed_on.push((alias, absolute.clone()));
        }
        self.named.insert(absolute);
    }
}

impl<'s> Visit<'s> for Reader {
    fn visit_item_mod(&mut self, module: &'s ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'s ItemUse) {
        let is_handed_on = !matches!(item.vis, syn::Visibility::Inherited);
        self.read_tree(&mut Vec::new(), &item.tree, is_handed_on);
    }

    fn visit_path(&mut self, path: &'s syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.named.extend(self.absolute(&names));
        visit::visit_path(self, path);
    }
}
