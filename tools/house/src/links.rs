//! The links of the documents: a link must lead to a file of the repository, and to an existing heading
//! if the link names a heading.
//!
//! Links to other hosts are not followed: a check without a network has to pass.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::{Failure, source};

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
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            followed += 1;
            if let Some(why) = why_broken(folder, &documents, path, link) {
                broken.push(Broken { document: path.clone(), link: link.clone(), why });
            }
        }
    }
    Ok((followed, broken))
}

fn why_broken(
    folder: &Path,
    documents: &BTreeMap<PathBuf, Document>,
    from: &Path,
    link: &str,
) -> Option<&'static str> {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => from.to_owned(),
        _ => resolved(&from.parent().unwrap_or(Path::new("")).join(file)),
    };
    if !folder.join(&target).exists() {
        return Some("there is no such file");
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
        write("docs/b.md", "# There\n\n[up](../a.md#here) [down](./b.md#nowhere)\n");
        let found = follow(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let broken = |document: &str, link: &str, why| {
            let (document, link) = (PathBuf::from(document), link.to_owned());
            Broken { document, link, why }
        };
        let expected = vec![
            broken("a.md", "docs/c.md", "there is no such file"),
            broken("a.md", "#gone", "the document has no such heading"),
            broken("docs/b.md", "./b.md#nowhere", "the document has no such heading"),
        ];
        assert_eq!(found, (6, expected));
    }
}
