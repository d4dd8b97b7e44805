//! `petrel-experiment card`: HERD's comparison with Pilaf and FaRM, on a model of its network card in
//! virtual time. The output does not depend on the machine.

mod queues;
mod schemes;

use fastrand::Rng;
use petrel_cache::Hasher;
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use serde::Serialize;

use crate::args::CardArgs;
use crate::report::chart::{self, Axis, Chart};
use crate::report::rows::{Column, Report, Row, digits};
use petrel_bench::cache::Popularity;

pub(crate) use self::schemes::Scheme;

/// Processes of clients, with four requests each (§5.1), and cores of the server.
const CLIENTS: usize = 51 * 4;
const CORES: usize = 6;

/// Operations of a run.
const COUNT: u64 = 200_000;

/// The value of an item of 48 bytes (§5.3).
const VALUE_BYTES: u64 = 32;

/// A random access to memory: 60 to 120 ns (§4.1.1).
const ACCESS_PS: u64 = 90_000;

/// Keys of the skewed load.
const KEYS: u32 = 8_000_000;

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PaperFigure {
    /// Throughput by number of random accesses and cores, with prefetching and without
    #[value(name = "7")]
    Prefetching,
    /// Throughput by share of GETs, for items of 48 bytes
    #[value(name = "9")]
    Mixes,
    /// Throughput by size of the value, with 95 % GETs
    #[value(name = "10")]
    Sizes,
    /// Throughput of each core, uniform and skewed
    #[value(name = "14")]
    Skew,
}

/// A point of a figure.
#[derive(Clone, Debug, Serialize)]
struct Point {
    experiment: &'static str,
    figure: u8,
    line: String,
    x: f64,
    mops: f64,
    latency_us: f64,
    /// The paper's figure, if the text gives a number.
    paper_mops: Option<f64>,
}

impl PaperFigure {
    fn number(self) -> u8 {
        match self {
            Self::Prefetching => 7,
            Self::Mixes => 9,
            Self::Sizes => 10,
            Self::Skew => 14,
        }
    }

    fn axes(self) -> (&'static str, &'static str) {
        match self {
            Self::Prefetching => ("Prefetching on the modelled card", "cores"),
            Self::Mixes => ("Items of 48 bytes on the modelled card", "GETs, %"),
            Self::Sizes => ("95 % GETs on the modelled card", "bytes of the value"),
            Self::Skew => ("Each core on the modelled card", "core"),
        }
    }

    fn points(self, schemes: &[Scheme]) -> Vec<Point> {
        match self {
            Self::Prefetching => prefetching(),
            Self::Mixes => {
                let mixes = [0, 50, 95, 100].into_iter();
                let all = mixes.flat_map(|get| schemes.iter().map(move |it| (*it, get)));
                all.map(|(scheme, get)| mix(self, scheme, get, VALUE_BYTES)).collect()
            }
            Self::Sizes => {
                let sizes = [4, 8, 16, 32, 60, 64, 96, 128, 144, 192, 256, 512, 1024].into_iter();
                let all = sizes.flat_map(|bytes| schemes.iter().map(move |it| (*it, bytes)));
                all.map(|(scheme, bytes)| mix(self, scheme, 95, bytes)).collect()
            }
            Self::Skew => skew(),
        }
    }
}

/// Runs a mix of GETs and PUTs; the figure says which of the two numbers is drawn.
fn mix(figure: PaperFigure, scheme: Scheme, get: u8, value_bytes: u64) -> Point {
    let mut rng = Rng::with_seed(7);
    let outcome = queues::run(CLIENTS, CORES, COUNT, || {
        let core = rng.usize(..CORES);
        match rng.u8(..100) < get {
            true => scheme.get(value_bytes, core, &mut rng),
            false => scheme.put(value_bytes, core),
        }
    });
    let paper_mops = match (scheme, get, value_bytes) {
        (Scheme::Herd, _, ..=60) => Some(26.0),
        (Scheme::Pilaf, 100, VALUE_BYTES) => Some(9.9),
        (Scheme::Farm, 100, VALUE_BYTES) => Some(17.2),
        (Scheme::FarmVar, 100, VALUE_BYTES) => Some(11.4),
        _ => None,
    };
    let x = if figure == PaperFigure::Mixes { f64::from(get) } else { value_bytes as f64 };
    let line = scheme.name().to_owned();
    point(figure, line, x, outcome.mops, outcome.latency_us, paper_mops)
}

/// ECHOs of HERD with random accesses: with prefetching, they overlap with the work on other requests (§4.1.1).
fn prefetching() -> Vec<Point> {
    let mut points = Vec::new();
    for (accesses, prefetches) in [(2, true), (8, true), (2, false), (8, false)] {
        for cores in 1..=CORES {
            let waits_ps = if prefetches { 0 } else { accesses * ACCESS_PS };
            let mut rng = Rng::with_seed(7);
            let outcome = queues::run(CLIENTS, cores, COUNT, || {
                let core =
                    (queues::Stage::Core(rng.usize(..cores)), schemes::HERD_CORE_PS + waits_ps);
                [&queues::write_in(VALUE_BYTES)[..], &[core], &queues::send_out(VALUE_BYTES)]
                    .concat()
            });
            let how = if prefetches { "prefetched" } else { "plain" };
            let line = format!("{accesses} accesses, {how}");
            let paper = (prefetches && cores == 5).then_some(26.0);
            let (mops, us) = (outcome.mops, outcome.latency_us);
            points.push(point(PaperFigure::Prefetching, line, cores as f64, mops, us, paper));
        }
    }
    points
}

/// Each core of HERD, with keys drawn uniformly and by Zipf's law. The cache's own hash chooses the core.
fn skew() -> Vec<Point> {
    let hasher = Hasher::new(1);
    let mut points = Vec::new();
    for (line, exponent) in [("uniform", 0.0), ("Zipf .99", 0.99)] {
        let popularity = Popularity::new(KEYS, exponent);
        let mut rng = Rng::with_seed(7);
        let outcome = queues::run(CLIENTS, CORES, COUNT, || {
            let bytes = popularity.draw(&mut rng).to_le_bytes();
            let key = hasher.key(&bytes).expect("a key of four bytes");
            let core = key.partition(CORES);
            match rng.u8(..100) < 95 {
                true => Scheme::Herd.get(VALUE_BYTES, core, &mut rng),
                false => Scheme::Herd.put(VALUE_BYTES, core),
            }
        });
        for (core, mops) in (1..).zip(&outcome.cores_mops) {
            let paper = (exponent == 0.0).then_some(4.32);
            let (core, us) = (f64::from(core), outcome.latency_us);
            points.push(point(PaperFigure::Skew, line.to_owned(), core, *mops, us, paper));
        }
    }
    points
}

fn point(
    figure: PaperFigure,
    line: String,
    x: f64,
    mops: f64,
    latency_us: f64,
    paper_mops: Option<f64>,
) -> Point {
    let (experiment, figure) = ("card", figure.number());
    Point { experiment, figure, line, x, mops, latency_us, paper_mops }
}

impl Row for Point {
    const COLUMNS: &'static [Column<Self>] = &[
        ("figure", |row| row.figure.to_string()),
        ("line", |row| row.line.clone()),
        ("x", |row| row.x.to_string()),
        ("million/s", |row| digits(row.mops)),
        ("latency us", |row| digits(row.latency_us)),
        ("the paper's million/s", |row| row.paper_mops.map_or(String::new(), digits)),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let of = |line: &str| {
            rows.iter().find(|row| row.figure == 9 && row.x == 95.0 && row.line == line)
        };
        let herd = of("HERD");
        let others = [of("Pilaf"), of("FaRM"), of("FaRM, variable")];
        let ratios = others.into_iter().flatten().zip(std::iter::repeat(herd));
        let ratio = |(other, herd): (&Self, Option<&Self>)| {
            Some(format!("HERD over {}, 95 % GETs: {:.2}", other.line, herd?.mops / other.mops))
        };
        ratios.filter_map(ratio).collect()
    }

    fn chart(rows: &[Self]) -> Chart {
        let all =
            [PaperFigure::Prefetching, PaperFigure::Mixes, PaperFigure::Sizes, PaperFigure::Skew];
        let figure =
            rows.first().and_then(|row| all.into_iter().find(|it| it.number() == row.figure));
        let (title, x) = figure.unwrap_or(PaperFigure::Mixes).axes();
        let mut chart =
            Chart::new(title, Axis::linear(x), Axis::linear("million operations a second"));
        rows.iter().for_each(|row| chart.add(&row.line, (row.x, row.mops)));
        chart
    }
}

/// Runs the chosen figures, and prints them.
pub(crate) fn run(args: &CardArgs, output: Output) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for figure in &args.figure {
        rows.extend(figure.points(&args.scheme));
    }
    for row in &rows {
        output.record(row)?;
    }
    let numbers: Vec<_> = args.figure.iter().map(|figure| figure.number().to_string()).collect();
    let schemes: Vec<_> = args.scheme.iter().map(|scheme| scheme.flag()).collect();
    let command = format!(
        "petrel-experiment card --scheme {} --figure {}",
        schemes.join(","),
        numbers.join(",")
    );
    Report { rows: &rows, command: &command }.print(output)?;
    if let Some(path) = &args.plot {
        if args.figure.len() > 1 {
            return Err(Failure::because("a plot has one figure: choose it by --figure"));
        }
        chart::draw(path, &Point::chart(&rows))?;
    }
    Ok(Outcome::Success)
}

impl Scheme {
    fn flag(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or(String::new(), |it| it.get_name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mops(scheme: Scheme, get: u8, value_bytes: u64) -> f64 {
        mix(PaperFigure::Mixes, scheme, get, value_bytes).mops
    }

    #[test]
    fn mix__has_the_ratios_of_figure_9() {
        let herd = mops(Scheme::Herd, 95, VALUE_BYTES);
        assert!(herd / mops(Scheme::Pilaf, 95, VALUE_BYTES) >= 2.0);
        assert!(herd / mops(Scheme::FarmVar, 95, VALUE_BYTES) >= 1.4);
        for get in [0, 50, 100] {
            assert!(
                (mops(Scheme::Herd, get, VALUE_BYTES) / herd - 1.0).abs() < 0.1,
                "{get} % GETs"
            );
        }
    }

    #[test]
    fn mix__of_herd_is_flat_to_60_bytes() {
        let rates = [4, 16, 32, 60].map(|bytes| mops(Scheme::Herd, 95, bytes));
        assert!(rates.iter().all(|rate| (rate / rates[0] - 1.0).abs() < 0.02), "{rates:?}");
        assert!(mops(Scheme::Herd, 95, 64) < 0.8 * rates[0]);
    }

    #[test]
    fn skew__costs_less_than_a_twentieth() {
        let points = skew();
        let sum = |line: &str| -> f64 {
            points.iter().filter(|point| point.line == line).map(|point| point.mops).sum()
        };
        assert!(sum("Zipf .99") >= 0.95 * sum("uniform"), "{points:?}");
    }
}
