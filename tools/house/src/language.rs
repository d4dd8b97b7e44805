//! The language of comments and documents.
//!
//! Sentences of eight and more words count. Vague pronouns are words for a subject that the reader has
//! to find elsewhere: 4 to 5 % of the words of comments in quinn, rustls and smoltcp.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use crate::{Failure, source};

/// Shorter sentences are headings and labels.
const WORDS_MIN: usize = 8;

const VAGUE: [&str; 29] = [
    "it", "its", "that", "this", "what", "which", "so", "one", "those", "such", "others", "other",
    "nobody", "somebody", "whoever", "who", "whom", "them", "they", "these", "there", "anybody",
    "whose", "same", "both", "each", "none", "anyone", "someone",
];

static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[A-Za-z']+").expect("a pattern"));

/// A sentence with a clause as its subject ("What was sent is …").
static CLAUSE_SUBJECT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(?:What|Whoever|Who) [a-z]+").expect("a pattern"));

/// A sentence about an indefinite person.
static NO_SUBJECT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b(?i:nobody|somebody|anybody|whoever)\b").expect("a pattern"));

static COMMENT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^\s*//[/!]? ?(.*)").expect("a pattern"));

static LIST_ITEM: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^\s*(?:[-*] )?(.*)").expect("a pattern"));

/// A sentence with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The file, relative to the folder that was measured.
    pub path: PathBuf,
    /// The line at which its paragraph begins.
    pub line: usize,
    /// The sentence.
    pub text: String,
    /// The number of words.
    pub words: usize,
    /// The number of vague pronouns.
    pub vague: usize,
}

/// The figures of many sentences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Sentences that count.
    pub sentences: usize,
    /// Words on average.
    pub words_mean: f64,
    /// Vague pronouns, in per cent of the words.
    pub vague_percent: f64,
    /// Sentences with a clause of "what" or "who" as the subject.
    pub clause_subjects: usize,
    /// Sentences about nobody, somebody or anybody.
    pub no_subjects: usize,
}

/// Returns all sentences of the comments of Rust files, or of Markdown files, under a folder.
///
/// # Errors
/// A file that cannot be read.
pub fn sentences(folder: &Path, kind: Kind) -> Result<Vec<Sentence>, Failure> {
    let mut all = Vec::new();
    for file in source::files(folder, &[kind.extension()])? {
        let text = source::read(&file)?;
        let path = file.strip_prefix(folder).unwrap_or(&file);
        all.extend(of_text(path, &text, kind));
    }
    Ok(all)
}

/// The kind of files with sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In comments of Rust.
    Comments,
    /// In Markdown, outside of tables, headings and code.
    Documents,
}

impl Kind {
    fn extension(self) -> &'static str {
        match self {
            Kind::Comments => "rs",
            Kind::Documents => "md",
        }
    }
}

/// Returns the sentences of a text.
pub fn of_text(path: &Path, text: &str, kind: Kind) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    let (mut begins, mut is_fenced) = (0, false);
    for (line, content) in (1..).zip(text.lines().chain([""])) {
        match prose_of(content, kind, &mut is_fenced) {
            Some(prose) => {
                if paragraph.is_empty() {
                    begins = line;
                } else {
                    paragraph.push(' ');
                }
                paragraph.push_str(prose);
            }
            None => {
                found.extend(split(&paragraph).filter_map(|text| sentence(path, begins, text)));
                paragraph.clear();
            }
        }
    }
    found
}

fn prose_of<'t>(line: &'t str, kind: Kind, is_fenced: &mut bool) -> Option<&'t str> {
    let pattern = match kind {
        Kind::Comments => &COMMENT,
        Kind::Documents if line.starts_with(['|', '#']) => return None,
        Kind::Documents => &LIST_ITEM,
    };
    let prose = pattern.captures(line).and_then(|found| found.get(1));
    let Some(prose) = prose.map(|prose| prose.as_str().trim()) else {
        *is_fenced = false;
        return None;
    };
    if prose.starts_with("```") {
        *is_fenced = !*is_fenced;
        return None;
    }
    Some(prose).filter(|prose| !prose.is_empty() && !*is_fenced)
}

/// Splits a paragraph into sentences: after a full stop, before a capital, a name in code, a link or
/// emphasis.
fn split(paragraph: &str) -> impl Iterator<Item = &str> {
    let mut begins = vec![0];
    for (end, _) in paragraph.match_indices(['.', '!', '?']) {
        let rest = &paragraph[end + 1..];
        let next = rest.trim_start();
        let is_new =
            next.starts_with(|first: char| first.is_ascii_uppercase() || "`[*".contains(first));
        if next.len() < rest.len() && is_new {
            begins.push(paragraph.len() - next.len());
        }
    }
    begins.push(paragraph.len());
    let ends: Vec<(usize, usize)> = begins.windows(2).map(|pair| (pair[0], pair[1])).collect();
    ends.into_iter().map(|(begin, end)| paragraph[begin..end].trim())
}

fn sentence(path: &Path, line: usize, text: &str) -> Option<Sentence> {
    let lower = text.to_lowercase();
    let words: Vec<&str> = WORD.find_iter(&lower).map(|word| word.as_str()).collect();
    let vague = words.iter().filter(|word| VAGUE.contains(word)).count();
    let (path, text) = (path.to_owned(), text.to_owned());
    (words.len() >= WORDS_MIN).then_some(Sentence { path, line, text, words: words.len(), vague })
}

impl Sentence {
    /// Returns true if the subject is a clause.
    pub fn has_clause_subject(&self) -> bool {
        CLAUSE_SUBJECT.is_match(&self.text)
    }

    /// Returns true if the subject is an indefinite person.
    pub fn has_no_subject(&self) -> bool {
        NO_SUBJECT.is_match(&self.text)
    }

    /// Returns the vague pronouns, in per cent of the words.
    pub fn vague_percent(&self) -> f64 {
        percent(self.vague, self.words)
    }
}

impl Figures {
    /// Returns the figures of some sentences.
    pub fn of<'s>(sentences: impl IntoIterator<Item = &'s Sentence>) -> Self {
        let mut figures = Self::default();
        let (mut words, mut vague) = (0, 0);
        for sentence in sentences {
            figures.sentences += 1;
            words += sentence.words;
            vague += sentence.vague;
            figures.clause_subjects += usize::from(sentence.has_clause_subject());
            figures.no_subjects += usize::from(sentence.has_no_subject());
        }
        figures.words_mean = percent(words, figures.sentences) / 100.0;
        figures.vague_percent = percent(vague, words);
        figures
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, kind: Kind) -> Vec<(usize, String)> {
        let sentences = of_text(Path::new("x"), text, kind);
        sentences.into_iter().map(|sentence| (sentence.line, sentence.text)).collect()
    }

    #[test]
    fn of_text__joins_the_lines_of_a_comment_and_leaves_code_out() {
        let text = "\
//! The session returns a credit for each packet
//! that the server has read. Short one.
//!
//! ```
//! let a = \"these words are the code of an example here\";
//! ```
fn f() {
    // `Slot` and window are private to the session object here.
    let s = \"// a string that holds a comment does not begin a line\";
}";
        assert_eq!(
            found(text, Kind::Comments),
            [
                (
                    1,
                    "The session returns a credit for each packet that the server has read."
                        .to_owned()
                ),
                (8, "`Slot` and window are private to the session object here.".to_owned()),
            ]
        );
    }

    #[test]
    fn of_text__of_a_document_has_no_tables_and_headings() {
        let text = "\
# A heading of as many words as a sentence has here

| a table | with a cell of as many words as a sentence |
- An item of a list is a paragraph
  that goes on in the next line. And a second sentence follows in the same item.

```
code in a fence that is as long as any sentence
```
";
        assert_eq!(
            found(text, Kind::Documents),
            [
                (4, "An item of a list is a paragraph that goes on in the next line.".to_owned()),
                (4, "And a second sentence follows in the same item.".to_owned()),
            ]
        );
    }

    #[test]
    fn figures__count_pronouns_and_subjects() {
        let text = "\
// What was sent is what those expect who wait for it.

// Nobody waits for the answer of a call that was cancelled.

// The leader replicates the entry to each of its followers first.";
        let sentences = of_text(Path::new("x"), text, Kind::Comments);
        let figures = Figures::of(&sentences);
        assert_eq!((figures.sentences, figures.clause_subjects, figures.no_subjects), (3, 1, 1));
        // "what" twice, "those", "who", "it"; "nobody", "that"; "each", "its"; of 33 words.
        assert!((figures.words_mean - 33.0 / 3.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.vague_percent - 100.0 * 9.0 / 33.0).abs() < 1e-9, "{figures:?}");
        assert_eq!(Figures::of(&[]), Figures::default());
    }
}
