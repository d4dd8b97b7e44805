//! A process is killed while writing: the log has everything that was reported as durable.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use petrel_kv::persist::LogStore;

use super::model::{Content, LogModel, Step, directory, entry, open_with_segments};

/// Set for the process to be killed: its directory.
const INSIDE: &str = "PETREL_KV_TEST_KILLED";
const SEGMENT_BYTES: usize = 64 << 10;
const ROUNDS: usize = 5;
const ENTRY_BYTES: usize = 120;

#[test]
fn open__after_a_kill_has_all_that_was_acknowledged() {
    if let Some(path) = std::env::var_os(INSIDE) {
        write_until_killed(path.as_ref());
    }
    let dir = directory();
    for round in 0..ROUNDS {
        let acknowledged = run_and_kill(dir.path(), 300 + 50 * round);
        let (_, recovered) = open_with_segments(dir.path(), SEGMENT_BYTES);
        let found = Content::of(&recovered.unwrap());
        assert!(found.last() >= acknowledged, "{} of {acknowledged}", found.last());
        for found in &found.entries {
            assert_eq!(*found, entry(found.index, 1, ENTRY_BYTES));
        }
    }
}

/// Kills the writer while it is writing. Returns the last entry that was reported as durable.
fn run_and_kill(path: &Path, lines: usize) -> u64 {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &super::full_name(module_path!(), "open__after_a_kill_has_all_that_was_acknowledged"),
        ])
        .arg("--nocapture")
        .env(INSIDE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(writer.stdout.take().unwrap());
    let mut acknowledged = output.lines().map_while(Result::ok);
    let number =
        |line: String| line.strip_prefix("durable ").and_then(|number| number.parse().ok());
    let seen: Vec<u64> = acknowledged.by_ref().filter_map(number).take(lines).collect();
    assert_eq!(seen.len(), lines, "the writer has ended on its own");
    writer.kill().unwrap();
    writer.wait().unwrap();
    // Lines from just before the end; the last line may be cut.
    let rest: Vec<String> = acknowledged.collect();
    let rest = rest.iter().rev().skip(1).cloned().filter_map(number);
    rest.chain(seen.into_iter().rev()).next().unwrap()
}

/// Keeps several batches outstanding, and writes a checkpoint from time to time.
fn write_until_killed(path: &Path) -> ! {
    let mut model = match path.join("petrel-kv").exists() {
        true => LogModel::resume(path, SEGMENT_BYTES),
        false => LogModel::begin(path, SEGMENT_BYTES),
    };
    let mut last = model.content.last();
    let mut told = 0;
    let mut handed = std::collections::VecDeque::new();
    loop {
        let count = 1 + model.number % 5;
        model.take(&Step::Append { back: 0, count, bytes: ENTRY_BYTES });
        last += count;
        handed.push_back((model.number, last));
        while handed.len() > 8 {
            let durable = model.log.durable().unwrap();
            while handed.front().is_some_and(|(number, _)| *number <= durable) {
                told = handed.pop_front().unwrap().1;
                println!("durable {told}");
            }
            if handed.len() > 8 {
                std::thread::park();
            }
        }
        if model.number % 64 == 0 && told > model.content.base.0 {
            model.take(&Step::Commit(count * 32));
            model.log.checkpoint(super::model::checkpoint(model.content.commit, 1));
        }
    }
}
