//! Mutants without effect, in the judgement of a reader: no test can find any.
//!
//! A line of `equivalent.tsv` is a file, the change, the source line, and the reason. Line numbers would
//! be wrong after the next change of the file; a changed source line is judged again.

use std::collections::BTreeSet;

use super::copy::Mutant;

const JUDGED: &str = include_str!("equivalent.tsv");

/// A line of `equivalent.tsv`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Judged<'a> {
    file: &'a str,
    operator: &'a str,
    source: &'a str,
    reason: &'a str,
}

fn judged(text: &str) -> impl Iterator<Item = Judged<'_>> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [file, operator, source, reason] => Judged { file, operator, source, reason },
            _ => panic!("a line of equivalent.tsv has four columns: {line}"),
        }
    })
}

/// Returns the numbers of the equivalent mutants among `mutants`.
pub(super) fn among(mutants: &[Mutant]) -> BTreeSet<u32> {
    let judged: BTreeSet<_> =
        judged(JUDGED).map(|one| (one.file, one.operator, one.source)).collect();
    let is_equivalent = |mutant: &&Mutant| {
        judged.contains(&(&mutant.file[..], &mutant.operator[..], &mutant.source[..]))
    };
    mutants.iter().filter(is_equivalent).map(|mutant| mutant.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::copy::Copy;

    #[test]
    fn judged__takes_four_columns_and_leaves_comments() {
        let text = "# a comment\n\na.rs\t< -> <=\tif a < b {\tboth ways end the same\n";
        let (file, operator, source) = ("a.rs", "< -> <=", "if a < b {");
        let reason = "both ways end the same";
        assert!(judged(text).eq([Judged { file, operator, source, reason }]));
    }

    #[test]
    fn equivalent__each_is_a_mutant_of_the_sources_and_has_a_reason() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mutants = Copy::mutants_of(&root.canonicalize().unwrap()).unwrap();
        let known: BTreeSet<_> =
            mutants.iter().map(|one| (&one.file[..], &one.operator[..], &one.source[..])).collect();
        for one in judged(JUDGED) {
            assert!(
                known.contains(&(one.file, one.operator, one.source)),
                "no such mutant: {one:?}"
            );
            assert!(one.reason.len() > 10, "{one:?}");
        }
    }
}
