//! Encryption and identity beside neither: the same workloads with credentials and without, in turn.
//!
//! The command issues credentials of its own, in a directory that it removes. Rows of processes run benchmarks of `petrel`, with the
//! credentials and without: their figures are those of users.

mod args;
mod cipher;
mod connects;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use petrel_command::Outcome;
use petrel_command::args::BenchTransport;
use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::units::exact_duration;
use petrel_tls::Credentials;
use petrel_tls::issue::{Authority, Subject};
use serde::Serialize;
use serde_json::Value;

use self::args::Part;
pub(crate) use self::args::SealedArgs;
use self::connects::{Handshake, PerSecond};
use petrel_bench::measure::directory::Directory;
use petrel_bench::measure::ends::Side;
use petrel_bench::measure::figure::{Baseline, Figure, Quantity};
use petrel_bench::measure::measurement::{Beside, Measurement, SessionPlan, Shape};
use petrel_bench::measure::pairs::Pace;
use petrel_bench::measure::statistics::{format_ratio, median};
use petrel_bench::measure::test_bed::{Cores, TestBed};
use petrel_bench::measure::veth;

/// How long the credentials are valid.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Bytes of a packet between the namespaces.
const JUMBO: u16 = 9_000;

/// Bytes of the datagrams of [`Part::Cipher`]: a small one, one of Ethernet, and a jumbo frame.
const DATAGRAM_BYTES: [usize; 3] = [64, 1_400, 8_900];

/// The folder of another identity, below that of the credentials.
const OTHER: &str = "other";

const KIB: f64 = 1_024.0;

/// A figure with credentials, beside the same without.
#[derive(Debug, Serialize)]
struct Row {
    bench: &'static str,
    part: &'static str,
    what: String,
    unit: &'static str,
    plain: Option<f64>,
    sealed: f64,
    /// Median of the rounds' ratios.
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reached: Option<bool>,
    command: String,
}

/// The value that a row has to reach.
enum Bar {
    RatioAtLeast(f64),
    RatioAtMost(f64),
    AtLeast(f64),
    AtMost(f64),
    /// The plain value and this.
    PlainAnd(f64),
}

impl Row {
    /// Compares with a bar, the bound included.
    fn judge(self, bar: &Bar) -> Self {
        let ratio = self.ratio.unwrap_or(f64::NAN);
        let (target, reached) = match *bar {
            Bar::RatioAtLeast(bound) => (format!("ratio >= {bound}"), ratio >= bound),
            Bar::RatioAtMost(bound) => (format!("ratio <= {bound}"), ratio <= bound),
            Bar::AtLeast(bound) => (format!(">= {bound}"), self.sealed >= bound),
            Bar::AtMost(bound) => (format!("<= {bound}"), self.sealed <= bound),
            Bar::PlainAnd(bound) => {
                let plain = self.plain.unwrap_or(f64::NAN);
                (format!("plain + {bound}"), self.sealed <= plain + bound)
            }
        };
        Self { target: Some(target), reached: Some(reached), ..self }
    }
}

/// The measurement: its arguments, and the credentials.
struct Bench<'a> {
    args: &'a SealedArgs,
    folder: Directory,
    output: Output,
    rows: Vec<Row>,
    skipped: Vec<String>,
}

/// Runs the parts and prints their figures.
pub(crate) fn run(args: &SealedArgs, output: Output) -> Result<Outcome, Failure> {
    let folder = Directory::within(&std::env::temp_dir(), "sealed")?;
    issue(folder.path())?;
    let credentials = Credentials::from_dir(folder.path())?;
    petrel_command::credentials::set(Arc::new(credentials), folder.path());
    let mut bench = Bench { args, folder, output, rows: Vec::new(), skipped: Vec::new() };
    for part in &args.part {
        match part {
            Part::Cipher => bench.cipher()?,
            Part::Polling => bench.polling()?,
            Part::Calls => bench.calls()?,
            Part::Large => bench.large()?,
            Part::Connects => bench.connects()?,
            Part::Store => bench.store()?,
            Part::Flood => bench.flood()?,
            Part::Quota => bench.quota()?,
        }
    }
    output.line(output.rows(&COLUMNS, COLUMNS.len(), &bench.rows))?;
    for skipped in &bench.skipped {
        output.line(format!("skipped: {skipped}"))?;
    }
    output.line(format!("Again:\n  {}", command(args, &args.part)))?;
    let is_short = bench.rows.iter().any(|row| row.reached == Some(false));
    Ok(if is_short { Outcome::Failure } else { Outcome::Success })
}

/// Issues one certificate for both ends of all measurements, and another identity.
fn issue(folder: &Path) -> Result<(), Failure> {
    let mut subject = Subject::new(DAY).name("localhost").name("127.0.0.1");
    for address in veth::ADDRESSES {
        subject = subject.name(address.to_string());
    }
    let authority = Authority::new("authority of a benchmark", DAY)?;
    authority.issue(&subject)?.write(folder)?;
    authority.issue(&subject)?.write(folder.join(OTHER))?;
    Ok(())
}

impl Bench<'_> {
    /// Returns a row: the medians of both sides' values, and of their ratios.
    fn row(
        &self,
        part: Part,
        (what, unit): (impl Into<String>, &'static str),
        pairs: &[(f64, f64)],
    ) -> Row {
        let median_of = |value: fn(&(f64, f64)) -> f64| median(pairs.iter().map(value));
        Row {
            bench: "sealed",
            part: part.name(),
            what: what.into(),
            unit,
            plain: median_of(|(plain, _)| *plain).filter(|plain| plain.is_finite()),
            sealed: median_of(|(_, sealed)| *sealed).unwrap_or(f64::NAN),
            ratio: median_of(|(plain, sealed)| sealed / plain).filter(|ratio| ratio.is_finite()),
            target: None,
            reached: None,
            command: command(self.args, &[part]),
        }
    }

    /// Adds a row, and prints it as JSON.
    fn add(&mut self, row: Row) -> Result<(), Failure> {
        self.output.record(&row)?;
        self.rows.push(row);
        Ok(())
    }

    fn cipher(&mut self) -> Result<(), Failure> {
        for size in DATAGRAM_BYTES {
            let cost = cipher::measure(size)?;
            for (at, verb) in ["seal", "open"].into_iter().enumerate() {
                let pair = (cost.alone_ns[at], cost.library_ns[at]);
                let what = format!("{verb} {size} B, beside the cipher alone");
                let row = self.row(Part::Cipher, (what, "ns"), &[pair]);
                // The ratio of the windows, in place of that of the medians.
                let row = Row { ratio: Some(cost.ratio[at]), ..row };
                self.add(row.judge(&Bar::RatioAtMost(1.15)))?;
            }
        }
        Ok(())
    }

    fn polling(&mut self) -> Result<(), Failure> {
        let test_bed = TestBed::new(Cores::Two, false)?;
        let rate = self.compare(&test_bed, (Quantity::Rate, 32, 60))?;
        let row = self.row_of((Part::Polling, "32 B, 60 in flight, polling"), &rate);
        self.add(row.judge(&Bar::RatioAtLeast(0.75)))?;
        let latency = self.compare(&test_bed, (Quantity::Latency, 32, 1))?;
        let row = self.row_of((Part::Polling, "32 B, p50, polling"), &latency);
        self.add(row.judge(&Bar::PlainAnd(450.0)))
    }

    fn large(&mut self) -> Result<(), Failure> {
        let cost = cipher::measure(DATAGRAM_BYTES[2])?;
        let cipher = DATAGRAM_BYTES[2] as f64 * 8.0 / cost.alone_ns[0].max(cost.alone_ns[1]);
        let figure = veth::between(JUMBO, false, |test_bed| match test_bed {
            Ok(test_bed) => Ok(Ok(self.compare(&test_bed, (Quantity::Bandwidth, 8 << 20, 1))?)),
            Err(failure) => Ok(Err(failure.to_string())),
        })?;
        match figure {
            Err(reason) => self.skipped.push(format!("large: {reason}")),
            Ok(figure) => {
                let row = self.row_of((Part::Large, "8 MiB, jumbo frames, polling"), &figure);
                self.add(row.judge(&Bar::RatioAtLeast(0.45)))?;
                // A core does the work of plain messages and the cipher's, one after the other.
                let plain = figure.bare.unwrap_or(f64::NAN);
                let both = plain * cipher / (plain + cipher);
                let what = ("the same, beside plain and the cipher in turn", figure.unit);
                let row = self.row(Part::Large, what, &[(both, figure.value)]);
                self.add(row.judge(&Bar::RatioAtLeast(0.85)))?;
            }
        }
        Ok(())
    }

    /// Measures a workload over UDP with credentials, beside the same without.
    fn compare(
        &self,
        test_bed: &TestBed,
        (quantity, size, in_flight): (Quantity, usize, u16),
    ) -> Result<Figure, Failure> {
        let window = self.args.duration / 3;
        let duration = self.args.duration * 2 * u32::from(self.args.rounds);
        let measurement = Measurement {
            quantity,
            transport: BenchTransport::Udp,
            cores: Cores::Two,
            size,
            in_flight,
            batch: in_flight.min(3),
            pace: Pace { duration, window, is_realtime: false },
            plan: SessionPlan::Default { sessions: 1 },
            beside: Beside::Bare,
            connect: None,
        };
        let shape = Shape { is_sealed: true, ..measurement.shape() };
        let mut sealed = measurement.library(test_bed, &shape)?;
        let mut plain = measurement.library(test_bed, &measurement.shape())?;
        let baseline = Baseline::Other { name: "plain", text: "the same without credentials" };
        let plain: &mut dyn Side = plain.as_mut();
        let beside = Some((plain, baseline));
        let describe = |setting| setting;
        let figure =
            measurement.compare(test_bed, (sealed.as_mut(), beside), describe, |_, _| ())?;
        match figure.is_valid() {
            true => Ok(figure),
            false => Err(Failure::because("a reply was wrong or missing")),
        }
    }

    /// Returns the row of a figure.
    fn row_of(&self, (part, what): (Part, &str), figure: &Figure) -> Row {
        let (sealed, plain, unit) = match (figure.value_ns, figure.bare_ns) {
            (Some(sealed), Some(plain)) => (sealed as f64, plain as f64, "ns"),
            _ => (figure.value, figure.bare.unwrap_or(f64::NAN), figure.unit),
        };
        let row = self.row(part, (what, unit), &[(plain, sealed)]);
        Row { ratio: figure.ratio.or(row.ratio), ..row }
    }

    fn calls(&mut self) -> Result<(), Failure> {
        let duration = exact_duration(self.args.duration);
        let words = ["bench", "defaults", "--transport", "udp", "--rounds", "1", "--duration"];
        let words = [&words[..], &[&duration]].concat();
        let rounds = self.alternate(&words)?;
        for (way, in_flight) in [("endpoint", 60), ("client, tokio", 60)] {
            let fields = [("way", way.into()), ("in_flight", in_flight.into())];
            let pairs = pick(&rounds, &fields, "calls_per_s")?;
            let what = (format!("{way}, 32 B, {in_flight} in flight"), "calls/s");
            self.add(self.row(Part::Calls, what, &pairs).judge(&Bar::RatioAtLeast(0.75)))?;
        }
        for way in ["endpoint", "client, a thread"] {
            let pairs = pick(&rounds, &[("way", way.into()), ("in_flight", 1.into())], "p50_ns")?;
            let what = (format!("{way}, 32 B, p50"), "ns");
            self.add(self.row(Part::Calls, what, &pairs).judge(&Bar::PlainAnd(450.0)))?;
        }
        Ok(())
    }

    fn connects(&mut self) -> Result<(), Failure> {
        let (petrel, folder) = (&self.args.petrel, self.folder.path().to_owned());
        for (handshake, what, least) in [
            (Handshake::Full, "connects per server core, full", 2_500.0),
            (Handshake::Resumed, "connects per server core, resumed", 6_000.0),
        ] {
            let round = |_| {
                let plain = connects::per_second(petrel, &folder, Handshake::None)?;
                Ok((plain, connects::per_second(petrel, &folder, handshake)?))
            };
            let pairs = (0..self.args.rounds).map(round).collect::<Result<Vec<_>, Failure>>()?;
            let of = |rate: fn(&PerSecond) -> f64| -> Vec<_> {
                pairs.iter().map(|(plain, sealed)| (rate(plain), rate(sealed))).collect()
            };
            let row = self.row(Part::Connects, (what, "1/s"), &of(|rates| rates.process));
            self.add(row.judge(&Bar::AtLeast(least)))?;
            let what = (format!("{what}, control plane alone"), "1/s");
            self.add(self.row(Part::Connects, what, &of(|rates| rates.control_plane)))?;
        }
        let plain = connects::memory(petrel, &folder, Handshake::None)?;
        let sealed = connects::memory(petrel, &folder, Handshake::Resumed)?;
        // 10 KiB for the connection, and one for the link.
        let what = ("memory of a connection with a link, server", "KiB");
        let row = self.row(Part::Connects, what, &[(plain / KIB, sealed / KIB)]);
        self.add(row.judge(&Bar::PlainAnd(11.0)))
    }

    fn store(&mut self) -> Result<(), Failure> {
        let duration = exact_duration(self.args.duration);
        let words = ["bench", "kv", "--transport", "udp", "--clients", "1", "--keys", "100000"];
        let words = [&words[..], &["--duration", &duration]].concat();
        let rounds = self.alternate(&words)?;
        let pairs = pick(&rounds, &[("what", "put".into())], "p50_ns")?;
        self.add(self.row(Part::Store, ("put, p50", "ns"), &pairs).judge(&Bar::RatioAtMost(1.3)))
    }

    fn flood(&mut self) -> Result<(), Failure> {
        let rounds = self.args.rounds.to_string();
        let window = exact_duration(self.args.duration);
        let words = ["bench", "attacks", "--attack", "half-open-tls", "--rounds", &rounds];
        let records = self.child(&[&words[..], &["--window", &window]].concat(), true)?;
        let record = records.first().ok_or_else(|| Failure::because("no figure of the flood"))?;
        let number = |name: &str| number(record, name);
        let failed = number("failed")? + number("newcomers_failed")?;
        let (calm, attacked) = (number("calm_per_s")?, number("attacked_per_s")?);
        // A flood takes CPU time from all of the host: the attacked server's part shows beside a flood at another server.
        let what = ("honest calls, the flood at another server or here", "calls/s");
        let row = self.row(Part::Flood, what, &[(number("ratio_beside")? * calm, attacked)]);
        self.add(row.judge(&Bar::RatioAtLeast(0.9)))?;
        let what = ("honest calls, without the flood and with it", "calls/s");
        self.add(self.row(Part::Flood, what, &[(calm, attacked)]))?;
        let what = ("failed calls and newcomers", "calls");
        self.add(self.row(Part::Flood, what, &[(f64::NAN, failed)]).judge(&Bar::AtMost(0.0)))
    }

    fn quota(&mut self) -> Result<(), Failure> {
        let rounds = self.args.rounds.to_string();
        let window = exact_duration(self.args.duration);
        let other = self.folder.path().join(OTHER).display().to_string();
        let words = ["bench", "attacks", "--attack", "beyond-quota", "--attacker", &other];
        let words = [&words[..], &["--rounds", &rounds, "--window", &window]].concat();
        let records = self.child(&words, true)?;
        let record = records.first().ok_or_else(|| Failure::because("no figure of the attack"))?;
        let number = |name: &str| number(record, name);
        let failed = number("failed")? + number("newcomers_failed")?;
        let rates = (number("calm_per_s")?, number("attacked_per_s")?);
        let what = ("honest calls, without and beside an identity beyond its quota", "calls/s");
        let row = self.row(Part::Quota, what, &[rates]);
        let row = Row { ratio: Some(number("ratio")?), ..row };
        self.add(row.judge(&Bar::RatioAtLeast(0.9)))?;
        let what = ("failed calls and newcomers beside that", "calls");
        self.add(self.row(Part::Quota, what, &[(f64::NAN, failed)]).judge(&Bar::AtMost(0.0)))
    }

    /// Runs a benchmark of `petrel` in each round, without credentials and with them. Returns the records that it prints.
    fn alternate(&self, words: &[&str]) -> Result<Vec<[Vec<Value>; 2]>, Failure> {
        let round = |_| Ok([self.child(words, false)?, self.child(words, true)?]);
        (0..self.args.rounds).map(round).collect()
    }

    fn child(&self, words: &[&str], is_sealed: bool) -> Result<Vec<Value>, Failure> {
        let mut command = Command::new(&self.args.petrel);
        command.args(words).arg("--json").stdin(Stdio::null()).stderr(Stdio::inherit());
        match is_sealed {
            true => command.env("PETREL_CREDENTIALS", self.folder.path()),
            false => command.env_remove("PETREL_CREDENTIALS"),
        };
        let printed = String::from_utf8_lossy(&command.output()?.stdout).into_owned();
        let records = printed.lines().map(|line| {
            serde_json::from_str(line)
                .map_err(|_| Failure::because(format!("a process printed: {line}")))
        });
        records.collect()
    }
}

/// Returns a number of the record with these fields, plain and sealed, of each round.
fn pick(
    rounds: &[[Vec<Value>; 2]],
    fields: &[(&str, Value)],
    name: &str,
) -> Result<Vec<(f64, f64)>, Failure> {
    let find = |records: &[Value]| {
        let mut all = records.iter();
        let found = all.find(|record| fields.iter().all(|(name, value)| record[name] == *value));
        number(found.ok_or_else(|| Failure::because(format!("no row with {fields:?}")))?, name)
    };
    rounds.iter().map(|[plain, sealed]| Ok((find(plain)?, find(sealed)?))).collect()
}

fn number(record: &Value, name: &str) -> Result<f64, Failure> {
    let value = record[name].as_f64();
    value.ok_or_else(|| Failure::because(format!("a record has no number {name}: {record}")))
}

const COLUMNS: [Column<Row>; 7] = [
    ("what", |row| row.what.clone()),
    ("plain", |row| row.plain.map_or_else(String::new, format_value)),
    ("sealed", |row| format_value(row.sealed)),
    ("unit", |row| row.unit.to_owned()),
    ("ratio", |row| format_ratio(row.ratio)),
    ("target", |row| row.target.clone().unwrap_or_default()),
    ("reached", |row| match row.reached {
        None => String::new(),
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
    }),
];

fn format_value(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn command(args: &SealedArgs, parts: &[Part]) -> String {
    let parts: Vec<_> = parts.iter().map(|part| part.name()).collect();
    format!(
        "petrel-experiment sealed --part {} --rounds {} --duration {} --petrel {}",
        parts.join(","),
        args.rounds,
        exact_duration(args.duration),
        args.petrel.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(plain: f64, sealed: f64) -> Row {
        Row {
            bench: "sealed",
            part: "calls",
            what: String::new(),
            unit: "ns",
            plain: Some(plain),
            sealed,
            ratio: Some(sealed / plain),
            target: None,
            reached: None,
            command: String::new(),
        }
    }

    #[test]
    fn judge__compares_with_the_bound() {
        for (bar, values, short) in [
            (Bar::RatioAtLeast(0.75), (100.0, 75.0), (100.0, 74.0)),
            (Bar::RatioAtMost(1.25), (100.0, 125.0), (100.0, 126.0)),
            (Bar::AtLeast(2_500.0), (9_000.0, 2_500.0), (9_000.0, 2_499.0)),
            (Bar::AtMost(0.0), (f64::NAN, 0.0), (f64::NAN, 1.0)),
            (Bar::PlainAnd(450.0), (20_000.0, 20_450.0), (20_000.0, 20_451.0)),
        ] {
            assert_eq!(row(values.0, values.1).judge(&bar).reached, Some(true));
            assert_eq!(row(short.0, short.1).judge(&bar).reached, Some(false));
            assert_eq!(row(f64::NAN, f64::NAN).judge(&bar).reached, Some(false), "no figure");
        }
    }

    #[test]
    fn pick__the_row_with_all_fields() {
        let record = |way: &str, rate: f64| serde_json::json!({ "way": way, "rate": rate });
        let round = [vec![record("a", 1.0), record("b", 2.0)], vec![record("b", 3.0)]];
        let rounds = [round];
        assert_eq!(pick(&rounds, &[("way", "b".into())], "rate").unwrap(), [(2.0, 3.0)]);
        assert!(pick(&rounds, &[("way", "a".into())], "rate").is_err(), "the sealed side has none");
        assert!(pick(&rounds, &[("way", "b".into())], "p50").is_err());
    }
}
