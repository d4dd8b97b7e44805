//! The bounds of the project's language, and its links.

use petrel_house::{links, source};

#[test]
fn links__of_the_documents_lead_somewhere() {
    let (followed, broken) = links::follow(&source::root()).unwrap();
    assert!(followed > 50, "the documents are found: {followed} links");
    assert!(broken.is_empty(), "{broken:#?}");
}
