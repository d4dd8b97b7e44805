//! The time until a batch of entries is durable, compared with the same bytes appended to a file and synced.
//!
//! `cargo bench --locked -p petrel-kv --bench disk_log [-- DIRECTORY [BATCHES]]`
//!
//! The directory selects the disk: syncs of another disk may take a hundred times as long. Rounds alternate, because a
//! disk may be slow for a while.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use petrel_kv::disk::{DiskLog, DiskOptions};
use petrel_kv::persist::{Batch, Checkpoint, Identity, LogStore};
use petrel_kv::store::Store;
use raft::eraftpb::{ConfState, Entry, HardState};

const ENTRY_BYTES: usize = 120;
const ENTRIES: [u64; 2] = [1, 64];
const OUTSTANDING: usize = 64;
const ROUNDS: usize = 3;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let path = words.first().map_or(env!("CARGO_TARGET_TMPDIR"), String::as_str);
    let batches = words.get(1).map_or(2000, |word| word.parse().expect("a number of batches"));
    let path = PathBuf::from(path).join(format!("disk_log-{}", std::process::id()));
    println!("entries of {ENTRY_BYTES} B, {batches} batches, in {}", path.display());
    for round in 0..ROUNDS {
        for entries in ENTRIES {
            let path = path.join(format!("{round}-{entries}"));
            std::fs::create_dir_all(&path).unwrap();
            baseline(&path, batches, entries);
            disk_log(&path.join("one"), batches, entries, 1);
            disk_log(&path.join("many"), batches, entries, OUTSTANDING);
        }
    }
    std::fs::remove_dir_all(&path).unwrap();
}

fn baseline(path: &Path, batches: u64, entries: u64) {
    let mut file = File::create(path.join("baseline")).unwrap();
    let bytes = vec![7; ENTRY_BYTES * entries as usize];
    let mut times = Vec::new();
    let start = Instant::now();
    for _ in 0..batches {
        let begin = Instant::now();
        file.write_all(&bytes).unwrap();
        file.sync_data().unwrap();
        times.push(begin.elapsed().as_nanos() as u64);
    }
    report("append, fdatasync", entries, start, times, batches);
}

/// With up to `outstanding` batches at any time.
fn disk_log(path: &Path, batches: u64, entries: u64, outstanding: usize) {
    let mut log = begin(path);
    let syncs = log.stats().syncs;
    let mut times = Vec::new();
    let mut handed = VecDeque::new();
    let start = Instant::now();
    for number in 1..=batches {
        handed.push_back((number + 1, Instant::now()));
        log.write(batch(number, entries));
        while handed.len() >= outstanding || (number == batches && !handed.is_empty()) {
            let durable = log.durable().unwrap();
            if handed[0].0 > durable {
                std::thread::park();
            }
            while handed.front().is_some_and(|(number, _)| *number <= durable) {
                times.push(handed.pop_front().unwrap().1.elapsed().as_nanos() as u64);
            }
        }
    }
    let syncs = log.stats().syncs - syncs;
    report(&format!("log, {outstanding} on their way"), entries, start, times, syncs);
    drop(log);
    let (_, recovered) = DiskLog::open(path, &DiskOptions::of_node(1)).unwrap();
    assert_eq!(recovered.unwrap().entries.len() as u64, batches * entries, "all are there");
}

fn begin(path: &Path) -> DiskLog {
    let (mut log, recovered) = DiskLog::open(path, &DiskOptions::of_node(1)).unwrap();
    assert!(recovered.is_none());
    log.set_waker(Waker::from(Arc::new(Unpark(std::thread::current()))));
    let image = Store::new().image();
    let checkpoint = Checkpoint {
        index: 0,
        term: 0,
        conf_state: ConfState::default(),
        membership: vec![],
        image,
    };
    log.write(Batch {
        identity: Some(Identity { cluster: 1, replica: 1 << 48 }),
        checkpoint: Some(checkpoint),
        ..Batch::default()
    });
    let hard_state = Some(HardState { term: 1, vote: 1, ..HardState::default() });
    log.write(Batch { number: 1, hard_state, ..Batch::default() });
    while log.durable().unwrap() < 1 {
        std::thread::park();
    }
    log
}

fn batch(number: u64, entries: u64) -> Batch {
    let first = (number - 1) * entries + 1;
    let entry =
        |index| Entry { index, term: 1, data: vec![7; ENTRY_BYTES].into(), ..Entry::default() };
    // The bootstrap batch had the first number.
    let entries = (first..first + entries).map(entry).collect();
    Batch { number: number + 1, entries, ..Batch::default() }
}

fn report(name: &str, entries: u64, start: Instant, mut times: Vec<u64>, syncs: u64) {
    let seconds = start.elapsed().as_secs_f64();
    times.sort_unstable();
    let micros = |share: usize| times[times.len() * share / 100] as f64 / 1000.0;
    println!(
        "{name:22} x{entries:<3} {:9.0} entries/s, {syncs:5} syncs, batch p50 {:8.1} us, p99 {:8.1} us",
        times.len() as f64 * entries as f64 / seconds,
        micros(50),
        micros(99),
    );
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
