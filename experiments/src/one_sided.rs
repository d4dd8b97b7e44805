//! `petrel-experiment one-sided`: GETs of HERD, Pilaf and FaRM by the verbs that the papers send, on a card, over real tables.
//!
//! A table lies in memory of the server, and the client finds items by READs of its card (Pilaf, FaRM), or writes its request into the
//! server's memory and gets the answer by a datagram (HERD). The probes of a table are made and counted, and not drawn.

mod farm;
mod herd;
mod pilaf;

use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use petrel::Status;
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_transport::verbs::{AccessError, Accessor, Card, Kind, Lending, Rights};
use petrel_transport::words::WordMemory;
use serde::Serialize;

use crate::args::OneSidedArgs;
use crate::card::Scheme;
use crate::report::chart::{Axis, Chart};
use crate::report::rows::{Column, Report, Row, digits, us_of};

/// Bytes of a key (HERD §5.2).
const KEY_BYTES: usize = 16;

type Key = [u8; KEY_BYTES];

/// The GETs of a scheme.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OneSidedRow {
    experiment: &'static str,
    scheme: &'static str,
    value_bytes: usize,
    items: usize,
    gets: usize,
    /// READs, WRITEs and SENDs of a GET, and the payload of all of them.
    reads: f64,
    writes: f64,
    sends: f64,
    bytes: f64,
    p50_ns: u64,
    p99_ns: u64,
}

/// What the card has carried.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    reads: u64,
    writes: u64,
    sends: u64,
    bytes: u64,
}

/// A client of a scheme.
trait Gets {
    /// Returns the value of a key, or `None` if the table has no such key.
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, AccessError>;

    fn carried(&self) -> Carried;
}

/// Memory of the server that a client reads, with a count of the reads.
struct Remote {
    near: Accessor,
    // The connection ends with this value.
    _lent: Lending,
    carried: Carried,
}

impl Remote {
    fn connect(card: &Arc<Card>, memory: &Arc<WordMemory>) -> Result<Self, Failure> {
        let rights = Rights { read: true, write: false };
        let (near, lent) = connect(card, Kind::Reliable, memory, rights)?;
        Ok(Self { near, _lent: lent, carried: Carried::default() })
    }

    fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        self.carried.reads += 1;
        self.carried.bytes += to.len() as u64;
        self.near.read(offset, to)
    }
}

/// Connects two queue pairs of a card, of which the first accesses memory at the second.
fn connect(
    card: &Arc<Card>,
    kind: Kind,
    memory: &Arc<WordMemory>,
    rights: Rights,
) -> Result<(Accessor, Lending), Failure> {
    let words: fn(&WordMemory) -> &WordMemory = |memory| memory;
    let mut near = Accessor::open(card, kind).map_err(Failure::because)?;
    let lent = Lending::open(card, kind, (Arc::clone(memory), words), rights, &near.address());
    let lent = lent.map_err(Failure::because)?;
    let place = lent.lend().map_err(Failure::because)?.expect("lent memory was not taken back");
    near.connect(&lent.address(), place).map_err(Failure::because)?;
    Ok((near, lent))
}

/// Returns the key of an item.
fn key_of(item: u64) -> Key {
    let mixed = hash(item, 0x9E37_79B9_7F4A_7C15);
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&mixed.to_le_bytes());
    key[8..].copy_from_slice(&item.to_le_bytes());
    key
}

/// Returns the value of an item, which differs from that of each other one.
fn value_of(item: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(item);
    (0..bytes).map(|_| rng.u8(..)).collect()
}

/// A hash function of a family (the finaliser of splitmix64).
fn hash(word: u64, seed: u64) -> u64 {
    let mut mixed = word ^ seed;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Returns the place of a key by a function of the family.
fn place_of(key: &Key, function: u64, places: usize) -> usize {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| key[at + i]));
    (hash(word(0) ^ hash(word(8), function), function) % places as u64) as usize
}

/// Returns zeroed memory for a table.
fn memory(bytes: usize) -> Result<WordMemory, Failure> {
    WordMemory::private(bytes as u64).map_err(Failure::because)
}

/// Runs the GETs of each scheme, and prints the rows.
pub(crate) fn run(args: &OneSidedArgs, output: Output) -> Result<Outcome, Failure> {
    let card = Card::open(&args.card).map_err(Failure::because)?;
    let rows: Result<Vec<_>, _> =
        args.scheme.iter().map(|scheme| measure(&card, *scheme, args)).collect();
    let rows = rows?;
    rows.iter().try_for_each(|row| output.record(row))?;
    let command = format!(
        "petrel-experiment one-sided --card {} --items {} --value {} --gets {}",
        args.card, args.items, args.value, args.gets
    );
    Report { rows: &rows, command: &command }.print(output)?;
    Ok(Outcome::Success)
}

fn measure(card: &Arc<Card>, scheme: Scheme, args: &OneSidedArgs) -> Result<OneSidedRow, Failure> {
    let (items, value) = (args.items, args.value);
    match scheme {
        Scheme::Herd => timed(herd::Client::start(&args.card, card, items, value)?, scheme, args),
        Scheme::Pilaf => timed(pilaf::Client::open(card, items, value)?, scheme, args),
        Scheme::Farm => timed(farm::Client::inline(card, items, value)?, scheme, args),
        Scheme::FarmVar => timed(farm::Client::by_pointer(card, items, value)?, scheme, args),
    }
}

/// Makes the GETs, one after the other, and compares each value.
fn timed(
    mut client: impl Gets,
    scheme: Scheme,
    args: &OneSidedArgs,
) -> Result<OneSidedRow, Failure> {
    let absent = client.get(&key_of(args.items as u64)).map_err(Failure::because)?;
    if absent.is_some() {
        return Err(Failure::new(
            Status::Internal,
            format!("{}: a key without an item has a value", scheme.name()),
        ));
    }
    let (mut rng, before) = (Rng::with_seed(1), client.carried());
    let mut times = Vec::with_capacity(args.gets);
    for _ in 0..args.gets {
        let item = rng.u64(..args.items as u64);
        let began = Instant::now();
        let value = client.get(&key_of(item)).map_err(Failure::because)?;
        times.push(began.elapsed().as_nanos() as u64);
        if value != Some(value_of(item, args.value)) {
            return Err(Failure::new(
                Status::Internal,
                format!("{}: item {item} has a wrong value", scheme.name()),
            ));
        }
    }
    times.sort_unstable();
    let after = client.carried();
    let each = |before: u64, after: u64| (after - before) as f64 / args.gets as f64;
    Ok(OneSidedRow {
        experiment: "one-sided",
        scheme: scheme.name(),
        value_bytes: args.value,
        items: args.items,
        gets: args.gets,
        reads: each(before.reads, after.reads),
        writes: each(before.writes, after.writes),
        sends: each(before.sends, after.sends),
        bytes: each(before.bytes, after.bytes),
        p50_ns: times[times.len() / 2],
        p99_ns: times[times.len() * 99 / 100],
    })
}

impl Row for OneSidedRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("scheme", |row| row.scheme.to_owned()),
        ("value", |row| row.value_bytes.to_string()),
        ("READs a GET", |row| digits(row.reads)),
        ("WRITEs", |row| digits(row.writes)),
        ("SENDs", |row| digits(row.sends)),
        ("bytes", |row| digits(row.bytes)),
        ("p50 us", |row| us_of(row.p50_ns)),
        ("p99 us", |row| us_of(row.p99_ns)),
    ];

    fn remarks(_rows: &[Self]) -> Vec<String> {
        let text = "One GET after the other, by one client. On an emulated card (rdma_rxe) the times are those of the kernel's code: only the \
                    counts can be compared with the papers.";
        vec![text.to_owned()]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::log("bytes of the value");
        let mut chart = Chart::new("GETs by verbs", x, Axis::linear("verbs a GET"));
        for row in rows {
            let verbs = row.reads + row.writes + row.sends;
            chart.add(row.scheme, (row.value_bytes as f64, verbs));
        }
        chart
    }
}
