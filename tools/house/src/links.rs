//! The links of the documents: a link must lead to a file of the repository, and to an existing heading
//! if the link names a heading.
//!
//! Links to other hosts are not followed, since a check without a network has to pass. A link to a file of the repository by
//! its address on the forge counts as a link to the file: pages of the book link so to files outside of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::{Failure, source};

/// The addresses of the repository's files on the forge: as a page, and as they are, for pictures.
const FORGE: &str = "https://github.com/petrel-rpc/petrel/blob/main/";
const FORGE_RAW: &str = "https://github.com/petrel-rpc/petrel/raw/main/";

/// The folder of the book's pages, and the page that lists all pages.
const BOOK: &str = "docs";
const CONTENTS: &str = "docs/SUMMARY.md";

/// A link that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The document, relative to the folder that was searched.
    pub document: PathBuf,
    /// The link's text.
    pub link: String,
    /// The missing target.
    pub why: &'static str,
}

/// Follows the links of the documents under a folder; returns their number, and the broken links.
///
/// # Errors
/// A document that cannot be read.
pub fn follow(folder: &Path) -> Result<(usize, Vec<Broken>), Failure> {
    let mut documents = BTreeMap::new();
    for file in source::files(folder, &["md"])? {
        let path = file.strip_prefix(folder).unwrap_or(&file).to_owned();
        documents.insert(path, Document::of(&source::read(&file)?));
    }
    let mut followed = 0;
    let mut broken = Vec::new();
    for (path, document) in &documents {
        for link in &document.links {
            let on_forge = link.strip_prefix(FORGE).or_else(|| link.strip_prefix(FORGE_RAW));
            let (from, within) = match on_forge {
                Some(within) => (Path::new(""), within),
                None => (&**path, &**link),
            };
            if within.contains("://") || within.starts_with("mailto:") {
                continue;
            }
            followed += 1;
            let of_book = (path.starts_with(BOOK) && within == link).then_some(Path::new(BOOK));
            if let Some(why) = why_broken(folder, &documents, from, within, of_book) {
                broken.push(Broken { document: path.clone(), link: link.clone(), why });
            }
        }
    }
    broken.extend(unlisted(&documents));
    Ok((followed, broken))
}

/// Returns the pages of the book that its contents do not list.
fn unlisted(documents: &BTreeMap<PathBuf, Document>) -> Vec<Broken> {
    let Some(contents) = documents.get(Path::new(CONTENTS)) else { return Vec::new() };
    let listed: BTreeSet<PathBuf> =
        contents.links.iter().map(|link| Path::new(BOOK).join(link)).collect();
    let is_missing = |path: &&PathBuf| {
        path.starts_with(BOOK) && **path != Path::new(CONTENTS) && !listed.contains(*path)
    };
    let broken = |path: &PathBuf| Broken {
        document: CONTENTS.into(),
        link: path.display().to_string(),
        why: "the book does not list this page",
    };
    documents.keys().filter(is_missing).map(broken).collect()
}

/// Says why a link leads nowhere. A link of the book has to stay within `of_book`.
fn why_broken(
    folder: &Path,
    documents: &BTreeMap<PathBuf, Document>,
    from: &Path,
    link: &str,
    of_book: Option<&Path>,
) -> Option<&'static str> {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => from.to_owned(),
        _ => resolved(&from.parent().unwrap_or(Path::new("")).join(file)),
    };
    if !folder.join(&target).exists() {
        return Some("there is no such file");
    }
    if of_book.is_some_and(|book| !target.starts_with(book)) {
        return Some("a page of the book links to files outside by their address on the forge");
    }
    let headings = documents.get(&target).map(|document| &document.headings);
    let is_there = heading.is_empty() || headings.is_none_or(|all| all.contains(heading));
    (!is_there).then_some("the document has no such heading")
}

/// Returns a path without `.` and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved
}

#[derive(Debug, Default)]
struct Document {
    links: Vec<String>,
    /// The names that links use.
    headings: BTreeSet<String>,
}

impl Document {
    fn of(text: &str) -> Self {
        let mut document = Self::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => document.add(heading.take().unwrap_or_default()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        document
    }

    /// Adds a heading under GitHub's name for links, with numbers for repeated names.
    fn add(&mut self, heading: String) {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let name: String = heading.to_lowercase().chars().filter(kept).collect();
        let name = name.replace(' ', "-");
        let numbered = (1..).map(|number| format!("{name}-{number}"));
        let free =
            [name.clone()].into_iter().chain(numbered).find(|name| !self.headings.contains(name));
        self.headings.extend(free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings__have_the_names_that_links_use() {
        let document =
            Document::of("# One: `two`, and 3\n\n## Again\n\n## Again\n\nA [link](a.md#again).\n");
        let names: Vec<&str> = document.headings.iter().map(String::as_str).collect();
        assert_eq!(names, ["again", "again-1", "one-two-and-3"]);
        assert_eq!(document.links, ["a.md#again"]);
    }

    #[test]
    fn follow__finds_files_and_headings_that_are_missing() {
        let folder = std::env::temp_dir().join(format!("petrel-links-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("docs")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write(
            "a.md",
            "# Here\n\n[1](docs/b.md#there) [2](docs/c.md) [3](#here) [4](#gone) [5](https://x.org/y)\n",
        );
        write("docs/b.md", "# There\n\n[up](../a.md) [down](./b.md#nowhere)\n");
        let outside = format!("# Else\n\n[6]({FORGE}a.md#here) [7]({FORGE}a.md#gone)\n");
        write("docs/d.md", &outside);
        write("docs/SUMMARY.md", "[There](b.md)\n");
        let found = follow(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let broken = |document: &str, link: &str, why| {
            let (document, link) = (PathBuf::from(document), link.to_owned());
            Broken { document, link, why }
        };
        let expected = vec![
            broken("a.md", "docs/c.md", "there is no such file"),
            broken("a.md", "#gone", "the document has no such heading"),
            broken(
                "docs/b.md",
                "../a.md",
                "a page of the book links to files outside by their address on the forge",
            ),
            broken("docs/b.md", "./b.md#nowhere", "the document has no such heading"),
            broken("docs/d.md", &format!("{FORGE}a.md#gone"), "the document has no such heading"),
            broken("docs/SUMMARY.md", "docs/d.md", "the book does not list this page"),
        ];
        assert_eq!(found, (9, expected));
    }
}
