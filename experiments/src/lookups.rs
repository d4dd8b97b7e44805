//! `petrel-experiment lookups`: ways of looking the cache's items up, beside an echo (HERD's figures 7 and 14).
//!
//! | form | handler of GET |
//! | --- | --- |
//! | `echo` | no look-up: an echo of an item's size |
//! | `plain` | looks up one item |
//! | `prefetched` | the same; the endpoint prefetches the index's lines for the requests of a burst |
//! | `batched` | looks the items of a burst up together |
//! | `bare` | no server: the further accesses of `--accesses` alone, in groups as large as the largest burst |
//!
//! All forms look up in the same partitions, which go from one form's servers to the next's. The clients and all servers
//! take turns on one thread, and each turn is timed. So the time of each server is known without a CPU for each, and the
//! rate of servers with a CPU each follows from the busiest one. The forms take turns as well: other load on the machine
//! affects all of them.

mod accesses;
mod handlers;
mod report;
mod side;

use std::rc::Rc;
use std::thread;
use std::time::Duration;

use petrel::endpoint::prefetch;
use petrel_cache::{Hasher, Lookups, Mode, Partition, PartitionConfig, Store};
use petrel_command::Outcome;
use petrel_command::cores::{self, CpuPlacement};
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use self::accesses::Table;
use self::handlers::Served;
use self::report::Row;
use self::side::{Side, Window};
use petrel_bench::cache::{Items, Kind, Popularity};
use petrel_command::args::BenchTransport;

use crate::args::LookupsArgs;

/// Pause between windows: without CPU time, the control planes' threads take their peers for dead.
const PAUSE: Duration = Duration::from_millis(10);

/// Rounds before the first one that counts.
const WARM_UP_ROUNDS: u32 = 1;

/// Items that are stored together, with the index's lines prefetched.
const STORED_TOGETHER: u32 = 32;

/// The seed of the hash: all runs have the same partitions.
const SEED: u64 = 7;

/// The second at which the partitions' clocks stand: no item of the benchmark has an end.
const SECOND: u32 = 2;

/// The ways of looking items up, with their names.
const LOOKUPS: [(Lookups, &str); 3] =
    [(Lookups::Plain, "plain"), (Lookups::Prefetched, "prefetched"), (Lookups::Batched, "batched")];

/// Returns the way of a name.
pub(crate) fn parse_lookups(text: &str) -> Result<Lookups, String> {
    let found = LOOKUPS.into_iter().find(|(_, name)| *name == text);
    found
        .map(|(lookups, _)| lookups)
        .ok_or_else(|| "look-ups are `plain`, `prefetched` or `batched`".to_owned())
}

/// Returns the name of a way.
fn name_of(lookups: Lookups) -> &'static str {
    LOOKUPS[lookups as usize].1
}

/// How the servers answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Echo,
    /// Look-ups behind further, dependent accesses to memory.
    Items {
        lookups: Lookups,
        accesses: u8,
    },
    /// Further accesses alone.
    Bare {
        accesses: u8,
    },
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Items { lookups, .. } => name_of(lookups),
            Self::Bare { .. } => "bare",
        }
    }

    fn accesses(self) -> u8 {
        match self {
            Self::Echo => 0,
            Self::Items { accesses, .. } | Self::Bare { accesses } => accesses,
        }
    }
}

/// What is measured of a form.
enum Subject {
    Served(Box<Side>),
    Bare { accesses: u8, table: Rc<Table> },
}

impl Subject {
    fn form(&self) -> Form {
        match self {
            Self::Served(side) => side.form(),
            Self::Bare { accesses, .. } => Form::Bare { accesses: *accesses },
        }
    }

    /// Measures for a while. Takes the servers' memory, and returns it.
    fn window(
        &mut self,
        kind: &Kind,
        length: Duration,
        served: Vec<Served>,
    ) -> Result<(Window, Vec<Served>), Failure> {
        match self {
            Self::Served(side) => side.window(kind, length, served),
            Self::Bare { accesses, table } => Ok((table.window(*accesses, length), served)),
        }
    }
}

/// The windows of a form with keys of a distribution.
struct Series {
    form: Form,
    distribution: &'static str,
    kind: Kind,
    windows: Vec<Window>,
}

/// Measures all forms and prints their figures.
pub(crate) fn run(args: &LookupsArgs, output: Output) -> Result<Outcome, Failure> {
    let hasher = Hasher::new(SEED);
    let mut served = fill(args, &hasher, output)?;
    let stored: u64 = served.iter().map(|served| served.partition.items()).sum();
    let mut rows = Vec::new();
    for transport in &args.mix.transport {
        let (all, returned) = measure(args, *transport, &hasher, served, output)?;
        served = returned;
        rows.extend(all.iter().map(|series| Row::new(args, *transport, series, &all, stored)));
    }
    report::show(&rows, args, output)?;
    let is_valid = rows.iter().all(Row::is_valid);
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

/// Makes the partitions, and stores all items in them.
fn fill(args: &LookupsArgs, hasher: &Hasher, output: Output) -> Result<Vec<Served>, Failure> {
    let items = args.mix.item_sizes();
    let config = PartitionConfig {
        mode: Mode::Cache,
        item_bytes_expected: args.mix.item_bytes() as u32,
        ..PartitionConfig::new(args.mix.memory_bytes() as u64 / u64::from(args.mix.partitions))
    };
    let has_accesses = args.accesses.iter().any(|accesses| *accesses > 0);
    let table_bytes = if has_accesses { args.mix.memory_bytes() } else { 0 };
    let table = Rc::new(Table::new(table_bytes));
    let mut served = Vec::new();
    for _ in 0..args.mix.partitions {
        let mut partition = Partition::new(&config, hasher.clone()).map_err(Failure::because)?;
        partition.set_time(SECOND);
        served.push(Served { partition, table: Rc::clone(&table) });
    }
    let mut progress = output.progress(args.mix.items.into(), "stored");
    // The popular items last: the index evicts the oldest of a full bucket.
    let mut end = args.mix.items;
    while end > 0 {
        let first = end.saturating_sub(STORED_TOGETHER);
        store(items, (first..end).rev(), &mut served, hasher)?;
        end = first;
        if first.is_multiple_of(STORED_TOGETHER << 12) {
            progress.set((args.mix.items - first).into());
        }
    }
    Ok(served)
}

/// Stores a few items.
fn store(
    items: Items,
    numbers: impl Iterator<Item = u32> + Clone,
    served: &mut [Served],
    hasher: &Hasher,
) -> Result<(), Failure> {
    let (mut keys, mut value) = (Vec::new(), Vec::new());
    numbers.clone().for_each(|number| items.put_key(number, &mut keys));
    for bytes in keys.chunks(items.key_bytes) {
        let key = hasher.key(bytes).map_err(Failure::because)?;
        let partition = &served[key.partition(served.len())].partition;
        prefetch(partition.locator().address(key.hash()));
    }
    for (number, bytes) in numbers.zip(keys.chunks(items.key_bytes)) {
        value.clear();
        items.put_value(number, &mut value);
        let key = hasher.key(bytes).map_err(Failure::because)?;
        let partition = key.partition(served.len());
        let stored = served[partition].partition.store(&Store::set(key, &value));
        stored.map_err(Failure::because)?;
    }
    Ok(())
}

/// Measures all forms over a transport. Takes the partitions, and returns them.
fn measure(
    args: &LookupsArgs,
    transport: BenchTransport,
    hasher: &Hasher,
    mut served: Vec<Served>,
    output: Output,
) -> Result<(Vec<Series>, Vec<Served>), Failure> {
    let items = args.how.iter().flat_map(|lookups| {
        args.accesses.iter().map(|accesses| Form::Items { lookups: *lookups, accesses: *accesses })
    });
    let mut subjects = Vec::new();
    for form in [Form::Echo].into_iter().chain(items) {
        let (side, returned) = Side::start(form, args, transport, hasher, served)?;
        served = returned;
        subjects.push(Subject::Served(Box::new(side)));
    }
    let table = served.first().map(|served| Rc::clone(&served.table));
    let further = args.accesses.iter().filter(|accesses| **accesses > 0);
    subjects.extend(
        further.zip(table.iter().cycle()).map(|(accesses, table)| Subject::Bare {
            accesses: *accesses,
            table: Rc::clone(table),
        }),
    );
    let popularities = args.mix.popularities();
    let mut all: Vec<Vec<Series>> =
        subjects.iter().map(|subject| series(subject.form(), args, &popularities)).collect();
    let cpu = cores::pair().map(|[cpu, _]| cpu);
    let _placement = CpuPlacement { cpu, is_realtime: false }.apply()?;
    let mut progress = output.progress(u64::from(args.mix.rounds), transport.name());
    for round in 0..args.mix.rounds + WARM_UP_ROUNDS {
        let mut turn: Vec<_> = subjects.iter_mut().zip(&mut all).collect();
        // No form always runs before another.
        if round % 2 == 1 {
            turn.reverse();
        }
        for (subject, all) in turn {
            for series in all {
                thread::sleep(PAUSE);
                let (window, returned) = subject.window(&series.kind, args.mix.window, served)?;
                served = returned;
                if round >= WARM_UP_ROUNDS {
                    series.windows.push(window);
                }
            }
        }
        progress.set(round.into());
    }
    Ok((all.into_iter().flatten().collect(), served))
}

/// The windows of a form: an echo has no keys, and neither have accesses alone.
fn series(
    form: Form,
    args: &LookupsArgs,
    popularities: &[(&'static str, Rc<Popularity>)],
) -> Vec<Series> {
    let new = |distribution, kind| Series { form, distribution, kind, windows: Vec::new() };
    match form {
        Form::Echo | Form::Bare { .. } => vec![new("", Kind::Echo)],
        Form::Items { .. } => popularities
            .iter()
            .map(|(name, it)| new(*name, Kind::Mix(Rc::clone(it), args.mix.get)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: LookupsArgs,
    }

    #[test]
    fn names__are_read_as_written() {
        for (lookups, name) in LOOKUPS {
            assert_eq!((name_of(lookups), parse_lookups(name)), (name, Ok(lookups)));
        }
        assert!(parse_lookups("fast").is_err());
    }

    #[test]
    fn fill__stores_all_items_in_their_partitions() {
        let line = "lookups --items 5001 --partitions 3";
        let args = Command::parse_from(line.split(' ')).args;
        let hasher = Hasher::new(SEED);
        let mut served = fill(&args, &hasher, Output::new(false, true)).unwrap();
        assert_eq!(served.iter().map(|it| it.partition.items()).sum::<u64>(), 5_001);
        let items = args.mix.item_sizes();
        for number in [0, 1, 5_000] {
            let mut bytes = Vec::new();
            items.put_key(number, &mut bytes);
            let key = hasher.key(&bytes).unwrap();
            let item = served[key.partition(3)].partition.get(key).expect("it was stored");
            assert!(items.is_value(number, item.value));
        }
    }
}
