//! Operations on regions beside calls: a task on the client's own endpoint runs one after the other.
//!
//! | kind | operation |
//! | --- | --- |
//! | `call` | a call with 64 B each way, answered by a handler |
//! | `read` | a READ of 64 B, executed by the server's endpoint |
//! | `fetch-add` | a FETCH_ADD of a word |
//! | `mapped` | 64 B copied from the mapped region, without the server |
//! | `bulk-call` | a call with a large request, whose handler looks at two words |
//! | `bulk-write` | a WRITE of as many bytes |
//! | `mapped-write` | as many bytes copied to the mapped region, without the server |
//! | `mapped-read` | as many bytes copied from there |
//!
//! The kinds take turns, so other load on the machine affects all of them.

mod args;

use std::thread;
use std::time::{Duration, Instant};

use petrel::client::Background;
use petrel::endpoint::{AllowedTransports, EndpointConfig};
use petrel::region::{Access, MappedRights, Region, RegionMemory, Regions, RemoteRegion};
use petrel::server::RunningServer;
use petrel::{Client, Error, Server};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::latency::{Latencies, LatencySummary};
use petrel_command::output::{Column, Output};
use petrel_command::text::again;
use petrel_command::units::format_ns;
use serde::Serialize;

pub(crate) use self::args::RegionsArgs;
use petrel_command::args::BenchTransport;

/// The handler of `call`: answers with the request.
const ECHO: u16 = 1;
/// The handler of `bulk-call`: answers with the first and the last word.
const ENDS: u16 = 2;

const SMALL_BYTES: usize = 64;
/// Bytes of a large operation; with the header of a WRITE, the largest message by default.
const BULK_BYTES: usize = (8 << 20) - 24;
/// The words that small reads visit.
const TABLE_BYTES: u64 = 1 << 20;
/// The word of `fetch-add`, behind the table.
const COUNTER_OFFSET: u64 = TABLE_BYTES;

/// Copies of a sample of `mapped`: one copy is shorter than a reading of the clock.
const COPIES: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Call,
    Read,
    FetchAdd,
    Mapped,
    BulkCall,
    BulkWrite,
    MappedWrite,
    MappedRead,
}

const KINDS: [Kind; 8] = [
    Kind::Call,
    Kind::Read,
    Kind::FetchAdd,
    Kind::Mapped,
    Kind::BulkCall,
    Kind::BulkWrite,
    Kind::MappedWrite,
    Kind::MappedRead,
];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Call => "call",
            Kind::Read => "read",
            Kind::FetchAdd => "fetch-add",
            Kind::Mapped => "mapped",
            Kind::BulkCall => "bulk-call",
            Kind::BulkWrite => "bulk-write",
            Kind::MappedWrite => "mapped-write",
            Kind::MappedRead => "mapped-read",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Kind::FetchAdd => 8,
            Kind::BulkCall | Kind::BulkWrite | Kind::MappedWrite | Kind::MappedRead => BULK_BYTES,
            _ => SMALL_BYTES,
        }
    }

    /// Returns true for an operation with a large message.
    fn has_bulk(self) -> bool {
        matches!(self, Kind::BulkCall | Kind::BulkWrite | Kind::MappedWrite)
    }

    /// Returns true for an operation on the mapped region, or one that is checked there.
    fn needs_mapping(self) -> bool {
        matches!(self, Kind::Mapped | Kind::BulkWrite | Kind::MappedWrite | Kind::MappedRead)
    }

    fn reference(self) -> Kind {
        if self.bytes() == BULK_BYTES { Kind::BulkCall } else { Kind::Call }
    }
}

/// A kind over a transport, as `--json` prints it.
#[derive(Serialize)]
struct Row {
    bench: &'static str,
    transport: &'static str,
    kind: &'static str,
    bytes: usize,
    command: String,
    latency: LatencySummary,
    /// The median, divided by the median of the call of this size.
    of_call: f64,
    /// 10⁹ bits a second of the median.
    gigabits_per_second: f64,
    checked: u64,
    mismatched: u64,
}

/// The outcome of all windows of a kind.
#[derive(Default)]
struct Counts {
    latencies: Latencies,
    checked: u64,
    mismatched: u64,
}

/// Runs the benchmark and prints its figures.
pub(super) fn run(args: &RegionsArgs, output: Output) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for transport in &args.transport {
        rows.extend(measure(args, *transport, output)?);
    }
    rows.iter().try_for_each(|row| output.record(row))?;
    output.line(output.rows(&COLUMNS, COLUMNS.len(), &rows))?;
    output.line(format!("Again:\n  {}", again()))?;
    let is_valid = rows.iter().all(|row| row.checked > 0 && row.mismatched == 0);
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

fn measure(
    args: &RegionsArgs,
    transport: BenchTransport,
    output: Output,
) -> Result<Vec<Row>, Failure> {
    let world = World::start(transport)?;
    let mut all = KINDS.map(|_| Counts::default());
    let title = format!("regions over {}", transport.name());
    let mut progress = output.progress(u64::from(args.rounds), &title);
    for round in 0..args.rounds {
        for (kind, counts) in KINDS.into_iter().zip(&mut all) {
            world.window(kind, args.window, counts)?;
        }
        progress.set(u64::from(round) + 1);
    }
    let p50_ns = |kind: Kind| {
        let place = KINDS.iter().position(|other| *other == kind);
        let summary = place.and_then(|place| all[place].latencies.summary());
        summary.map_or(1, |latency| latency.p50_ns.max(1))
    };
    let row = |(kind, counts): (Kind, &Counts)| {
        let latency = counts.latencies.summary()?;
        Some(Row {
            bench: "regions",
            transport: transport.name(),
            kind: kind.name(),
            bytes: kind.bytes(),
            command: again(),
            latency,
            of_call: latency.p50_ns as f64 / p50_ns(kind.reference()) as f64,
            gigabits_per_second: 8.0 * kind.bytes() as f64 / latency.p50_ns.max(1) as f64,
            checked: counts.checked,
            mismatched: counts.mismatched,
        })
    };
    let rows: Option<Vec<Row>> = KINDS.into_iter().zip(&all).map(row).collect();
    rows.ok_or_else(|| Failure::because("a window was too short for a single operation"))
}

/// A server of a region, and a client.
struct World {
    client: Client,
    region: Region,
    _server: RunningServer,
}

impl World {
    fn start(transport: BenchTransport) -> Result<Self, Failure> {
        let mut config = EndpointConfig::default();
        let udp = transport == BenchTransport::Udp;
        config.transports = AllowedTransports { udp, shm: !udp, stream: false, verbs: false };
        let regions = Regions::new();
        let bytes = COUNTER_OFFSET + BULK_BYTES as u64;
        let memory = RegionMemory::shared(bytes, MappedRights::ReadWrite)?;
        memory.populate()?;
        let all = Access::READ | Access::WRITE | Access::ATOMIC | Access::MAP;
        let region = regions.register(memory, all)?;
        for offset in (0..TABLE_BYTES).step_by(8) {
            region.store(offset, offset)?;
        }
        let server = Server::bind("127.0.0.1:0").endpoint(config.clone());
        let server = server.serve(
            |_| (),
            move |endpoint| {
                endpoint.on(ECHO, |_, cx, request| {
                    request.reply_with(cx, SMALL_BYTES, |data, out| {
                        let count = data.len().min(out.len());
                        out[..count].copy_from_slice(&data[..count]);
                        count
                    })
                });
                endpoint.on(ENDS, |_, cx, request| {
                    let answer = ends(request.data());
                    request.reply(cx, &answer)
                });
                endpoint.serve_regions(&regions);
            },
        );
        let server = server.start()?;
        let background = Background::builder().endpoint(config).start()?;
        let client = Client::builder().background(&background).connect_wait(server.local_addr())?;
        Ok(Self { client, region, _server: server })
    }

    /// Runs operations of a kind, one after the other, on the thread of the client's endpoint.
    fn window(&self, kind: Kind, length: Duration, counts: &mut Counts) -> Result<(), Failure> {
        let remote = RemoteRegion::new(&self.client, self.region.key());
        let mapped = kind.needs_mapping().then(|| remote.map_wait()).transpose()?;
        let client = self.client.clone();
        let task = self.client.spawn(async move |_| {
            let seen = Vec::new();
            let mut caller = Caller { client, remote, mapped, number: 0, last: None, seen };
            let mut counts = Counts::default();
            caller.prepare(kind)?;
            let end = Instant::now() + length;
            while Instant::now() < end {
                let (took, is_right) = caller.run(kind).await?;
                let copies = if kind == Kind::Mapped { COPIES } else { 1 };
                counts.latencies.record(took.as_nanos() as u64 / copies);
                counts.checked += 1;
                counts.mismatched += u64::from(!is_right);
            }
            Ok::<Counts, Error>(counts)
        });
        let window = petrel::client::wait(task)??;
        counts.latencies.add(&window.latencies);
        counts.checked += window.checked;
        counts.mismatched += window.mismatched;
        // The endpoint sleeps between windows, as it does between the calls of an idle client.
        thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}

/// Runs operations, and checks their results.
struct Caller {
    client: Client,
    remote: RemoteRegion,
    mapped: Option<RegionMemory>,
    number: u64,
    /// The last result of FETCH_ADD.
    last: Option<u64>,
    /// The bytes of `mapped-read`.
    seen: Vec<u8>,
}

impl Caller {
    /// Writes the bytes that `mapped-read` reads, and provides memory for them.
    fn prepare(&mut self, kind: Kind) -> Result<(), Error> {
        if kind == Kind::MappedRead {
            self.mapped().write(COUNTER_OFFSET, &bulk(0))?;
            self.seen = vec![0; BULK_BYTES];
        }
        Ok(())
    }

    /// Runs an operation. Returns its time, without making the message and checking the result, and true if the result is right.
    async fn run(&mut self, kind: Kind) -> Result<(Duration, bool), Error> {
        self.number += 1;
        let offset = self.number * SMALL_BYTES as u64 % TABLE_BYTES;
        let message = match kind {
            Kind::Call => words(self.number).to_vec(),
            _ if kind.has_bulk() => bulk(self.number),
            _ => Vec::new(),
        };
        let expected = if kind == Kind::Call { message.clone() } else { ends(&message) };
        let began = Instant::now();
        Ok(match kind {
            Kind::Call => {
                let answer = self.client.call(ECHO, message).await?;
                (began.elapsed(), answer == expected)
            }
            Kind::Read => {
                let seen = self.remote.read(offset, SMALL_BYTES as u32).await?;
                (began.elapsed(), seen == words(offset))
            }
            Kind::FetchAdd => {
                let former = self.remote.fetch_add(COUNTER_OFFSET, 1).await?;
                let took = began.elapsed();
                (took, self.last.replace(former).is_none_or(|last| former == last + 1))
            }
            Kind::Mapped => {
                let is_right = self.copy_mapped(offset)?;
                (began.elapsed(), is_right)
            }
            Kind::BulkCall => {
                let answer = self.client.call(ENDS, message).await?;
                (began.elapsed(), answer == expected)
            }
            Kind::BulkWrite => {
                self.remote.write(COUNTER_OFFSET, message).await?;
                let took = began.elapsed();
                (took, self.has_written(&expected)?)
            }
            Kind::MappedWrite => {
                self.mapped().write(COUNTER_OFFSET, &message)?;
                let took = began.elapsed();
                (took, self.has_written(&expected)?)
            }
            Kind::MappedRead => {
                let mut seen = std::mem::take(&mut self.seen);
                self.mapped().read(COUNTER_OFFSET, &mut seen)?;
                let took = began.elapsed();
                let is_right = self.is_bulk(0, &seen);
                self.seen = seen;
                (took, is_right)
            }
        })
    }

    fn mapped(&self) -> &RegionMemory {
        self.mapped.as_ref().expect("the window has mapped the region")
    }

    /// Returns true if the region has the `expected` first and last word of a large write, and all bytes of the window's first write.
    fn has_written(&mut self, expected: &[u8]) -> Result<bool, Error> {
        // The write covers the counter.
        self.last = None;
        if self.number == 1 {
            let mut seen = vec![0; BULK_BYTES];
            self.mapped().read(COUNTER_OFFSET, &mut seen)?;
            return Ok(self.is_bulk(self.number, &seen));
        }
        let mut seen = vec![0; 16];
        let (first, last) = seen.split_at_mut(8);
        self.mapped().read(COUNTER_OFFSET, first)?;
        self.mapped().read(COUNTER_OFFSET + BULK_BYTES as u64 - 8, last)?;
        Ok(seen == expected)
    }

    /// Returns true if `seen` has the ends of a large message, and all bytes of the window's first message.
    fn is_bulk(&self, number: u64, seen: &[u8]) -> bool {
        match self.number {
            1 => seen == bulk(number),
            _ => ends(seen) == bulk_ends(number).concat(),
        }
    }

    fn copy_mapped(&self, start: u64) -> Result<bool, Error> {
        let mapped = self.mapped();
        let mut is_right = true;
        for copy in 0..COPIES {
            let offset = (start + copy * SMALL_BYTES as u64) % TABLE_BYTES;
            let mut seen = [0; SMALL_BYTES];
            mapped.read(offset, &mut seen)?;
            is_right &= seen == words(offset);
        }
        Ok(is_right)
    }
}

/// Returns the bytes of a table's row: each word is its own offset.
fn words(offset: u64) -> [u8; SMALL_BYTES] {
    let mut bytes = [0; SMALL_BYTES];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (offset + 8 * place as u64).to_le_bytes();
    }
    bytes
}

fn bulk(number: u64) -> Vec<u8> {
    // With room for the header of a WRITE, for each kind of operation.
    let mut message = Vec::with_capacity(BULK_BYTES + 24);
    message.resize(BULK_BYTES, number as u8);
    let [first, last] = bulk_ends(number);
    message[..8].copy_from_slice(&first);
    message[BULK_BYTES - 8..].copy_from_slice(&last);
    message
}

/// The first and the last word of a large message.
fn bulk_ends(number: u64) -> [[u8; 8]; 2] {
    [number.to_le_bytes(), (!number).to_le_bytes()]
}

/// Returns the first and the last word of a message.
fn ends(message: &[u8]) -> Vec<u8> {
    let first = message.first_chunk::<8>().copied().unwrap_or_default();
    let last = message.last_chunk::<8>().copied().unwrap_or_default();
    [first, last].concat()
}

const COLUMNS: [Column<Row>; 8] = [
    ("operation", |row| row.kind.to_owned()),
    ("over", |row| row.transport.to_owned()),
    ("bytes", |row| row.bytes.to_string()),
    ("p50", |row| format_ns(row.latency.p50_ns)),
    ("p99", |row| format_ns(row.latency.p99_ns)),
    ("of a call", |row| format!("{:.2}", row.of_call)),
    ("Gbit/s", |row| format!("{:.1}", row.gigabits_per_second)),
    ("checked", |row| row.checked.to_string()),
];
