//! The bounds of the project's language, its links, and the imports among its rooms.

use petrel_house::language::{self, Figures, Kind, Sentence};
use petrel_house::{links, shape, source};

/// Vague pronouns, in per cent of the words.
const VAGUE_PERCENT_MAX: f64 = 6.0;

/// Words of a document's sentence, on average.
const WORDS_MEAN_MAX: f64 = 18.0;

fn sentences(kind: Kind) -> Vec<Sentence> {
    // The tests of the measurement contain bad examples.
    let is_measured = |sentence: &Sentence| !sentence.path.ends_with("house/src/language.rs");
    let all = language::sentences(&source::root(), kind).unwrap();
    all.into_iter().filter(is_measured).collect()
}

#[test]
fn comments__name_their_subjects() {
    let sentences = sentences(Kind::Comments);
    let figures = Figures::of(&sentences);
    assert!(figures.sentences > 10_000, "the sources are found: {figures:?}");
    assert!(figures.vague_percent <= VAGUE_PERCENT_MAX, "{figures:?}");
    let unclear: Vec<&Sentence> =
        sentences.iter().filter(|s| s.has_clause_subject() || s.has_no_subject()).collect();
    assert!(unclear.is_empty(), "{unclear:#?}");
}

#[test]
fn documents__are_short_and_name_their_subjects() {
    let sentences = sentences(Kind::Documents);
    let figures = Figures::of(&sentences);
    assert!(figures.sentences > 1_000, "the documents are found: {figures:?}");
    assert!(figures.words_mean <= WORDS_MEAN_MAX, "{figures:?}");
    assert!(figures.vague_percent <= VAGUE_PERCENT_MAX, "{figures:?}");
    let unclear: Vec<&Sentence> =
        sentences.iter().filter(|s| s.has_clause_subject() || s.has_no_subject()).collect();
    assert!(unclear.is_empty(), "{unclear:#?}");
}

#[test]
fn links__of_the_documents_lead_somewhere() {
    let (followed, broken) = links::follow(&source::root()).unwrap();
    assert!(followed > 50, "the documents are found: {followed} links");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A room is a module directly below the root of a crate.
#[test]
fn rooms__of_the_library_import_each_other_in_no_circle() {
    for folder in ["crates/petrel-proto", "crates/petrel-transport", "crates/petrel"] {
        let shape = shape::of_crate(&source::root().join(folder)).unwrap();
        assert!(shape.lines > 10_000, "the sources of {folder} are found: {} lines", shape.lines);
        assert!(shape.room_circles.is_empty(), "{folder}: {:#?}", shape.room_circles);
    }
}
