//! Decodes arbitrary bytes as the files of a log.

use codeq::{Decode, Encode};

use super::change::Change;
use super::checkpoint_file;
use super::head::Head;
use super::mark::Mark;
use super::record::Record;
use crate::frame::read_frame;
use crate::store::Store;

pub(crate) fn check(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    match choice % 5 {
        0 => record(rest),
        1 => changes(rest),
        2 => head(rest),
        3 => {
            if let Some(mark) = Mark::decode(rest) {
                assert_eq!(mark.encode().as_bytes(), rest);
            }
        }
        _ => checkpoint(rest),
    }
}

/// Decodes bytes as a record: only exactly the encoded form of a record is accepted.
fn record(bytes: &[u8]) {
    let mut input = bytes;
    if let Ok(record) = Record::decode(&mut input) {
        let mut again = Vec::new();
        record.encode(&mut again).expect("a vector takes all bytes");
        assert_eq!(again, bytes[..bytes.len() - input.len()]);
    }
}

/// Decodes bytes as the bodies of records with a correct check. The log's state either accepts a body or reports its
/// defect.
fn changes(bytes: &[u8]) {
    let mut head = Head::default();
    let mut rest = bytes;
    while let Some((length, behind)) = rest.split_first() {
        let (body, behind) = behind.split_at(behind.len().min((*length).into()));
        rest = behind;
        let Ok(change) = Change::decode(body) else { continue };
        assert_eq!(Change::decode(&change.encode()).ok().as_ref(), Some(&change));
        let _ = (change.is_empty(), head.must_sync(&change));
        if let Err(error) = head.note(&change) {
            assert!(!error.is_empty());
            return;
        }
    }
}

fn head(bytes: &[u8]) {
    let Ok(head) = Head::decode(bytes) else { return };
    let mut again = Vec::new();
    head.encode(&mut again).expect("a vector takes all bytes");
    assert_eq!(Head::decode(&again[..]).ok(), Some(head));
}

/// Decodes bytes as the frames of a checkpoint's file, and as the head of one.
fn checkpoint(bytes: &[u8]) {
    let mut input = bytes;
    while let Ok(frame) = read_frame(&mut input) {
        assert!(frame.len() <= bytes.len());
        let _ = checkpoint_file::parse_head(&frame, &Store::new());
    }
    if let Ok(checkpoint) = checkpoint_file::parse_head(bytes, &Store::new()) {
        let again = checkpoint_file::head(&checkpoint);
        let again = checkpoint_file::parse_head(&again, &Store::new())
            .expect("what is written can be read");
        assert_eq!(
            (again.index, again.term, again.membership),
            (checkpoint.index, checkpoint.term, checkpoint.membership)
        );
        assert_eq!(again.conf_state, checkpoint.conf_state);
    }
}
