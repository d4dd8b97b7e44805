//! A reopened log returns everything.

use std::io::Read;
use std::process::Command;

use petrel_kv::persist::{Batch, LogStore};
use raft::eraftpb::HardState;

use super::model::{Content, LogModel, Step, checkpoint, directory, files, open, wait};

#[test]
fn open__an_empty_directory_has_nothing() {
    let dir = directory();
    let path = dir.path().join("made/when/opened");
    for _ in 0..2 {
        let (mut log, recovered) = open(&path);
        assert!(recovered.is_none());
        assert!(!log.is_volatile());
        assert_eq!(log.durable().unwrap(), 0);
    }
}

#[test]
fn open__finds_all_kinds_of_batches() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    for step in [
        Step::Append { back: 0, count: 5, bytes: 100 },
        Step::Vote,
        Step::Append { back: 2, count: 2, bytes: 0 },
        Step::Commit(2),
        Step::Checkpoint,
        Step::Empty,
        Step::Append { back: 0, count: 1, bytes: 100_000 },
        Step::Commit(1),
    ] {
        model.take(&step);
        let content = model.content;
        drop(model.log);
        model = LogModel::resume(dir.path(), 1 << 20);
        assert_eq!(model.content, content, "after {step:?}");
    }
    model.take(&Step::Reset { ahead: 30, has_entry: true });
    let content = model.content;
    drop(model.log);
    assert_eq!(LogModel::resume(dir.path(), 1 << 20).content, content);
}

#[test]
fn checkpoint__removes_what_it_replaces() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 2000);
    let count_max = |model: &mut LogModel| {
        for _ in 0..40 {
            model.take(&Step::Append { back: 0, count: 4, bytes: 100 });
            model.wait();
        }
        model.take(&Step::Commit(1000));
    };
    count_max(&mut model);
    let before = files(dir.path()).len();
    model.take(&Step::Checkpoint);
    for _ in 0..3 {
        count_max(&mut model);
        model.take(&Step::Checkpoint);
    }
    let content = model.content;
    drop(model.log);
    let after = files(dir.path()).len();
    assert!(before > 5 && after <= before / 2, "{before} files, then {after}");
    assert_eq!(LogModel::resume(dir.path(), 2000).content, content);
}

#[test]
fn write__without_content_is_durable_at_once_when_nothing_is_before_it() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    model.take(&Step::Append { back: 0, count: 3, bytes: 10 });
    model.wait();
    let syncs = model.log.stats().syncs;
    for step in [Step::Empty, Step::Commit(1), Step::Empty, Step::Commit(1)] {
        model.take(&step);
        assert_eq!(model.log.durable().unwrap(), model.number);
    }
    model.take(&Step::Vote);
    model.wait();
    assert_eq!(model.log.stats().syncs, syncs + 1, "the vote alone was synced");
}

#[test]
fn write__commit_index_without_a_sync_is_at_least_the_checkpoints() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    model.take(&Step::Append { back: 0, count: 3, bytes: 10 });
    model.content.commit = 3;
    // The log never received this commit index.
    model.take(&Step::Checkpoint);
    let content = model.content;
    drop(model.log);
    let (_, recovered) = open(dir.path());
    let recovered = recovered.unwrap();
    assert_eq!(recovered.hard_state, HardState { term: 1, commit: 3, ..HardState::default() });
    assert_eq!(Content::of(&recovered), content);
}

#[test]
fn checkpoint__does_not_hold_up_the_log() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    model.take(&Step::Append { back: 0, count: 3, bytes: 10 });
    model.wait();
    // A write to a pipe blocks until a reader opens it.
    let pipe = dir.path().join("checkpoint-2.new");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    model.log.checkpoint(checkpoint(2, 1));
    for _ in 0..20 {
        model.take(&Step::Append { back: 0, count: 1, bytes: 10 });
        model.wait();
    }
    assert_eq!(model.log.stats().checkpoints, 0);
    let mut image = Vec::new();
    std::fs::File::open(&pipe).unwrap().read_to_end(&mut image).unwrap();
    assert!(!image.is_empty());
    // A pipe cannot be synced.
    let failure = loop {
        match model.log.durable() {
            Ok(_) => std::thread::park(),
            Err(failure) => break failure,
        }
    };
    assert!(failure.0.contains("checkpoint-2.new"), "{failure}");
}

#[test]
fn checkpoint__older_than_one_that_came_is_dropped() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    model.take(&Step::Append { back: 0, count: 3, bytes: 10 });
    model.take(&Step::Reset { ahead: 10, has_entry: true });
    model.wait();
    model.log.checkpoint(checkpoint(3, 1));
    while model.log.stats().checkpoint_bytes == 0 {
        model.log.durable().unwrap();
        std::thread::park();
    }
    model.take(&Step::Append { back: 0, count: 1, bytes: 10 });
    let content = model.content;
    drop(model.log);
    assert_eq!(files(dir.path()).len(), 3, "mark, segment and the checkpoint that counts");
    assert_eq!(LogModel::resume(dir.path(), 1 << 20).content, content);
}

#[test]
fn write__a_checkpoint_forgets_entries_after_it() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    model.take(&Step::Append { back: 0, count: 5, bytes: 10 });
    model.take(&Step::Reset { ahead: 2, has_entry: false });
    let content = model.content;
    assert_eq!((content.base.0, content.last()), (3, 3));
    drop(model.log);
    assert_eq!(LogModel::resume(dir.path(), 1 << 20).content, content);
}

#[test]
fn write__many_batches_share_syncs() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    // The reset needs a file and some syncs: the other batches gather meanwhile.
    model.take(&Step::Reset { ahead: 5, has_entry: true });
    for _ in 0..500 {
        model.take(&Step::Append { back: 0, count: 1, bytes: 10 });
    }
    model.wait();
    let syncs = model.log.stats().syncs;
    assert!(syncs < 250, "{syncs} syncs for 500 batches");
    let content = model.content;
    drop(model.log);
    assert_eq!(LogModel::resume(dir.path(), 1 << 20).content, content);
}

#[test]
fn write__entries_that_do_not_follow_are_a_failure() {
    let dir = directory();
    let mut model = LogModel::begin(dir.path(), 1 << 20);
    let entries = vec![super::model::entry(9, 1, 10)];
    model.write(Batch { entries, ..Batch::default() });
    let failure = wait(&mut model.log, model.number).unwrap_err();
    assert!(failure.0.contains("do not follow"), "{failure}");
}
