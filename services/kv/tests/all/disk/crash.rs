//! Crashes: whichever part of the last writes reached the disk, all durable writes return, and a prefix of the others.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::{Content, LogModel, Step, copy, files, open, quick_directory};

/// Small, to have many segments.
const SEGMENT_BYTES: usize = 700;

/// A segment's first record may be whole or cut, but not partly zero.
const SEGMENT_HEAD_BYTES: u64 = 128;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u64, 1..4u64, 0..300usize)
            .prop_map(|(back, count, bytes)| Step::Append { back, count, bytes }),
        1 => Just(Step::Vote),
        2 => (1..4u64).prop_map(Step::Commit),
        1 => Just(Step::Empty),
        1 => (1..9u64, any::<bool>())
            .prop_map(|(ahead, has_entry)| Step::Reset { ahead, has_entry }),
        1 => Just(Step::Checkpoint),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn open__after_a_crash_has_all_that_was_durable(
        before in vec(step(), 0..8),
        after in vec((step(), any::<bool>()), 1..8),
        cut in any::<prop::sample::Index>(),
        how in any::<[bool; 3]>(),
    ) {
        let dir = quick_directory();
        let [live, kept, crashed] = ["live", "kept", "crashed"].map(|name| dir.path().join(name));
        write_before(&live, &before);
        let begin = end(&live);
        let history = write_after(&live, &kept, &after);
        let begin = begin.max(without_gap(&kept));
        let cut = begin + cut.index((end(&live) - begin) as usize + 1) as u64;
        crash(&kept, &crashed, cut, how);

        let found = LogModel::resume(&crashed, SEGMENT_BYTES).content;
        let certain = history.durable.iter().rposition(|(place, _)| *place <= cut);
        let certain = certain.map_or(0, |at| history.durable[at].1);
        let possible = &history.contents[certain..];
        prop_assert!(
            possible.iter().any(|content| is_same(content, &found)),
            "cut at {cut}: {found:?} is none of {possible:?}"
        );
        prop_assert!(found.commit >= found.base.0);
        prop_assert!(possible.iter().any(|content| content.commit >= found.commit));
        check_continues(&crashed, found);
    }
}

fn write_before(path: &Path, steps: &[Step]) {
    let mut model = LogModel::begin(path, SEGMENT_BYTES);
    steps.iter().for_each(|step| model.take(step));
}

struct History {
    /// The content of the log before the first step, and after each step.
    contents: Vec<Content>,
    /// The end of the log when a step was reported as durable, and the step's place in `contents`.
    durable: Vec<(u64, usize)>,
}

/// Keeps all files, including files removed by the log.
fn write_after(path: &Path, kept: &Path, steps: &[(Step, bool)]) -> History {
    let mut model = LogModel::resume(path, SEGMENT_BYTES);
    let mut history = History { contents: vec![model.content.clone()], durable: vec![] };
    for (step, waits) in steps {
        let removes = matches!(step, Step::Reset { .. } | Step::Checkpoint);
        if removes {
            model.wait();
        }
        keep(path, kept);
        model.take(step);
        if *waits || removes {
            model.wait();
            history.durable.push((end(path), history.contents.len()));
        }
        history.contents.push(model.content.clone());
        keep(path, kept);
    }
    drop(model.log);
    keep(path, kept);
    history
}

/// Links every file under a second name: later writes appear under both names.
fn keep(path: &Path, kept: &Path) {
    fs::create_dir_all(kept.join("log")).unwrap();
    for file in files(path) {
        // The file may have been removed since, or linked before.
        let _ = fs::hard_link(&file, kept.join(file.strip_prefix(path).unwrap()));
    }
}

/// Removes the segments before a gap, left by a segment with too short a life to be kept. Returns the first place for a
/// cut: 0 without a gap, else the end of the log.
fn without_gap(kept: &Path) -> u64 {
    let mut next = end(kept);
    for (begin, path) in segments(kept).into_iter().rev() {
        if begin + fs::metadata(&path).unwrap().len() == next {
            next = begin;
        } else {
            fs::remove_file(&path).unwrap();
        }
    }
    if next == 0 { 0 } else { end(kept) }
}

/// The segments with their offsets.
fn segments(path: &Path) -> Vec<(u64, PathBuf)> {
    let begin = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix("r-")?.strip_suffix(".wal")?;
        name.replace('_', "").parse().ok()
    };
    files(path).into_iter().filter_map(|path| Some((begin(&path)?, path))).collect()
}

fn end(path: &Path) -> u64 {
    segments(path).last().map_or(0, |(begin, path)| begin + fs::metadata(path).unwrap().len())
}

/// A possible state after a crash that lost all writes from `cut` on.
fn crash(from: &Path, to: &Path, cut: u64, [zeros, has_empty, has_new]: [bool; 3]) {
    copy(from, to);
    for (begin, path) in segments(to) {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        if cut <= begin && !(cut == begin && has_empty) {
            fs::remove_file(&path).unwrap();
        } else if cut < begin + length {
            file.set_len(cut - begin).unwrap();
            if zeros && cut - begin >= SEGMENT_HEAD_BYTES {
                file.set_len(length).unwrap();
            }
        }
    }
    if has_new {
        fs::write(to.join("checkpoint-99.new"), b"the beginning of a che").unwrap();
    }
}

/// Compares without the commit index, which is never synced alone.
fn is_same(one: &Content, other: &Content) -> bool {
    Content { commit: 0, ..one.clone() } == Content { commit: 0, ..other.clone() }
}

/// The recovered content persists, and the log accepts more.
fn check_continues(path: &Path, found: Content) {
    let mut model = LogModel::resume(path, SEGMENT_BYTES);
    assert_eq!(model.content, found);
    model.take(&Step::Append { back: 1, count: 3, bytes: 50 });
    model.take(&Step::Vote);
    model.wait();
    let content = model.content;
    drop(model.log);
    assert_eq!(LogModel::resume(path, SEGMENT_BYTES).content, content);
    assert!(files(path).iter().all(|path| path.extension().is_none_or(|end| end != "new")));
}

/// From an empty directory to the first durable batch, with a crash after each file that is created or renamed.
#[test]
fn open__after_a_crash_at_each_step_of_the_first_start_begins_anew() {
    let dir = quick_directory();
    let live = dir.path().join("live");
    drop(open(&live).0);
    let [mark, segment] = ["petrel-kv", "log"].map(|name| live.join(name));
    let mark = fs::read(mark).unwrap();
    let (_, segment) = segments(segment.parent().unwrap()).pop().unwrap();
    let content = fs::read(&segment).unwrap();
    let segment = segment.strip_prefix(&live).unwrap().to_owned();
    // Dropping the log waits until everything is written.
    drop(LogModel::begin(&live, SEGMENT_BYTES).log);
    let checkpoint = fs::read(live.join("checkpoint-1")).unwrap();
    let begun = fs::read(live.join("petrel-kv")).unwrap();
    assert_ne!(mark, begun);

    let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let steps: [(PathBuf, Vec<u8>); 9] = [
        ("log/LOCK".into(), vec![]),
        ("petrel-kv.new".into(), half(&mark)),
        ("petrel-kv".into(), mark),
        (segment.clone(), vec![]),
        (segment.clone(), half(&content)),
        (segment, content),
        ("checkpoint-1.new".into(), half(&checkpoint)),
        ("checkpoint-1".into(), checkpoint),
        ("petrel-kv.new".into(), begun),
    ];
    let crashed = dir.path().join("crashed");
    for count in 0..=steps.len() {
        fs::create_dir_all(crashed.join("log")).unwrap();
        for (name, content) in &steps[..count] {
            fs::write(crashed.join(name), content).unwrap();
        }
        let (log, recovered) = open(&crashed);
        assert!(recovered.is_none(), "after {count} steps");
        drop(log);
        drop(LogModel::begin(&crashed, SEGMENT_BYTES));
        drop(LogModel::resume(&crashed, SEGMENT_BYTES));
        fs::remove_dir_all(&crashed).unwrap();
    }
}

#[test]
fn open__after_a_crash_before_the_first_batch_has_nothing() {
    let dir = quick_directory();
    let live = dir.path().join("live");
    drop(open(&live).0);
    let begin = end(&live);
    let mark = fs::read(live.join("petrel-kv")).unwrap();
    let mut model = LogModel::begin(&live, SEGMENT_BYTES);
    model.wait();
    drop(model.log);
    for cut in 0..end(&live) {
        let crashed = dir.path().join(format!("crashed-{cut}"));
        crash(&live, &crashed, cut, [false; 3]);
        // The mark is updated only after the sync of the first batch.
        fs::write(crashed.join("petrel-kv"), &mark).unwrap();
        let (log, recovered) = open(&crashed);
        assert!(recovered.is_none(), "cut at {cut}");
        drop(log);
        let left = files(&crashed).iter().filter(|file| file.starts_with(&crashed)).count();
        assert!(left <= 4 && begin > 0);
        fs::remove_dir_all(&crashed).unwrap();
    }
}
