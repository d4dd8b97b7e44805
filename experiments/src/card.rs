//! `petrel-experiment card`: HERD's comparison with Pilaf and FaRM, on a model of its network card in
//! virtual time. The output does not depend on the machine.
//!
//! The card's costs are fitted to Figures 3 to 6 ([`costs`]); Figures 7 and 9 to 14 are predictions ([`predictions`]).

mod costs;
mod predictions;
mod queues;
mod schemes;

use fastrand::Rng;
use petrel_cache::Hasher;
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use serde::Serialize;

use self::costs::{Costs, FitRow};
use self::queues::{Load, Stage};
use crate::args::CardArgs;
use crate::report::chart::{self, Axis, Chart};
use crate::report::rows::{Column, Report, Row, digits};
use petrel_bench::cache::Popularity;

pub(crate) use self::costs::CONTEXTS;
pub(crate) use self::schemes::Scheme;

/// Processes of clients, requests of each, and cores of the server (§5.1).
const CLIENTS: usize = 51;
const WINDOW: usize = 4;
const CORES: usize = 6;

/// Operations of a run.
const COUNT: usize = 50_000;

/// The value of an item of 48 bytes (§5.3).
const VALUE_BYTES: u64 = 32;

/// Accesses to memory of an operation of HERD (§4.1.1).
const ACCESSES: usize = 2;

/// Keys of the skewed load.
const KEYS: u32 = 8_000_000;

/// A figure of the paper, in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PaperFigure {
    /// eRPC's Figure 1: the rate of verbs by number of connections, as a share of the rate over few
    #[value(name = "1")]
    Connections,
    /// Throughput by number of random accesses and cores, with prefetching and without
    #[value(name = "7")]
    Prefetching,
    /// Throughput by share of GETs, for items of 48 bytes
    #[value(name = "9")]
    Mixes,
    /// Throughput by size of the value, with 95 % GETs
    #[value(name = "10")]
    Sizes,
    /// Latency by throughput, with more and more clients
    #[value(name = "11")]
    Loads,
    /// Throughput by number of clients, with windows of 4 and 16 requests
    #[value(name = "12")]
    Clients,
    /// Throughput by number of cores, for PUTs
    #[value(name = "13")]
    Cores,
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
    /// Mean, fifth percentile and 95th.
    latency_us: [f64; 3],
}

impl PaperFigure {
    fn number(self) -> u8 {
        match self {
            Self::Connections => 1,
            Self::Prefetching => 7,
            Self::Mixes => 9,
            Self::Sizes => 10,
            Self::Loads => 11,
            Self::Clients => 12,
            Self::Cores => 13,
            Self::Skew => 14,
        }
    }

    fn axes(self) -> [&'static str; 3] {
        const MOPS: &str = "million operations a second";
        match self {
            Self::Connections => {
                ["Connections on the modelled card", "connections", "share of the rate"]
            }
            Self::Prefetching => ["Prefetching on the modelled card", "cores", MOPS],
            Self::Mixes => ["Items of 48 bytes on the modelled card", "GETs, %", MOPS],
            Self::Sizes => ["95 % GETs on the modelled card", "bytes of the value", MOPS],
            Self::Loads => ["Latency on the modelled card", MOPS, "mean latency, us"],
            Self::Clients => ["HERD on the modelled card", "clients", MOPS],
            Self::Cores => ["PUTs on the modelled card", "cores", MOPS],
            Self::Skew => ["Each core on the modelled card", "core", MOPS],
        }
    }

    fn points(self, costs: &Costs, schemes: &[Scheme]) -> Vec<Point> {
        let by_scheme = |xs: &[usize], run: &dyn Fn(Scheme, usize) -> Mix| -> Vec<Point> {
            let all = xs.iter().flat_map(|x| schemes.iter().map(move |scheme| (*scheme, *x)));
            let point = |(scheme, x): (Scheme, usize)| {
                self.point(scheme.name(), x as f64, run(scheme, x).run(costs, scheme))
            };
            all.map(point).collect()
        };
        match self {
            Self::Connections => predictions::connections(costs),
            Self::Prefetching => prefetching(costs),
            Self::Mixes => by_scheme(&[0, 50, 95, 100], &|_, get| Mix { get, ..Mix::READ }),
            Self::Sizes => {
                let sizes = [4, 8, 16, 32, 60, 64, 96, 128, 144, 192, 256, 512, 1024];
                by_scheme(&sizes, &|_, bytes| Mix { value_bytes: bytes as u64, ..Mix::READ })
            }
            Self::Loads => {
                let clients = [1, 2, 4, 6, 8, 10, 12, 15, 18, 21, 24, 28, 32, 36, 44, 51];
                let run = |_, clients| Mix { clients, ..Mix::READ };
                let mut points = by_scheme(&clients, &run);
                points.iter_mut().for_each(|point| point.x = point.mops);
                points
            }
            Self::Clients => {
                let clients = [10, 36, 51, 100, 200, 260, 300, 400, 500];
                let all = [WINDOW, 16].into_iter().flat_map(|it| clients.map(|count| (it, count)));
                let point = |(window, clients): (usize, usize)| {
                    let outcome = Mix { clients, window, ..Mix::READ }.run(costs, Scheme::Herd);
                    self.point(&format!("HERD, window {window}"), clients as f64, outcome)
                };
                all.map(point).collect()
            }
            Self::Cores => {
                by_scheme(&[1, 2, 3, 4, 5, 6, 7], &|_, cores| Mix { get: 0, cores, ..Mix::READ })
            }
            Self::Skew => skew(costs),
        }
    }

    fn point(self, line: &str, x: f64, outcome: queues::Outcome) -> Point {
        let line = line.to_owned();
        let (mops, latency_us) = (outcome.mops, outcome.latency_us);
        Point { experiment: "card", figure: self.number(), line, x, mops, latency_us }
    }
}

/// A load of GETs and PUTs with uniform keys.
#[derive(Clone, Copy, Debug)]
struct Mix {
    clients: usize,
    window: usize,
    cores: usize,
    /// GETs, in percent.
    get: usize,
    value_bytes: u64,
}

impl Mix {
    /// The read-intensive load of §5.2.
    const READ: Self =
        Self { clients: CLIENTS, window: WINDOW, cores: CORES, get: 95, value_bytes: VALUE_BYTES };

    fn run(self, costs: &Costs, scheme: Scheme) -> queues::Outcome {
        let mut rng = Rng::with_seed(7);
        let loops = self.clients * self.window;
        queues::run(Load { loops, cores: self.cores, accesses: ACCESSES }, COUNT, || {
            let core = rng.usize(..self.cores);
            match rng.usize(..100) < self.get {
                true => scheme.get(costs, self.clients, self.value_bytes, core, &mut rng),
                false => scheme.put(costs, self.clients, self.value_bytes, core),
            }
        })
    }
}

/// ECHOs of HERD with random accesses, by accesses, cores, and whether they are prefetched.
fn prefetching(costs: &Costs) -> Vec<Point> {
    let lines = [(2, true), (8, true), (16, true), (32, true), (2, false), (8, false)];
    let all = lines.into_iter().flat_map(|it| (1..=CORES).map(move |cores| (it, cores)));
    let point = |((accesses, prefetches), cores)| {
        let how = if prefetches { "prefetched" } else { "plain" };
        let line = format!("{accesses} accesses, {how}");
        let outcome = echoes(costs, accesses, prefetches, cores);
        PaperFigure::Prefetching.point(&line, cores as f64, outcome)
    };
    all.map(point).collect()
}

/// Runs ECHOs with random accesses. With prefetching, the accesses of the requests in a core's pipeline overlap with each other
/// and with the sending of a response (§4.1.1), as far as the core has fill buffers.
fn echoes(costs: &Costs, accesses: usize, prefetches: bool, cores: usize) -> queues::Outcome {
    let mut rng = Rng::with_seed(7);
    queues::run(Load { loops: CLIENTS * WINDOW, cores, accesses }, COUNT, || {
        let core = rng.usize(..cores);
        let core = match prefetches {
            true => (Stage::Pipeline(core), queues::POST_PS),
            false => (Stage::Core(core), queues::POST_PS + accesses as u64 * queues::ACCESS_PS),
        };
        let request = costs.write_in(VALUE_BYTES, CLIENTS);
        [request, vec![core], costs.send_out(VALUE_BYTES)].concat()
    })
}

/// Each core of HERD, with keys drawn uniformly and by Zipf's law. The cache's own hash chooses the core.
fn skew(costs: &Costs) -> Vec<Point> {
    let hasher = Hasher::new(1);
    let mut points = Vec::new();
    for (line, exponent) in [("uniform", 0.0), ("Zipf .99", 0.99)] {
        let popularity = Popularity::new(KEYS, exponent);
        let mut rng = Rng::with_seed(7);
        let load = Load { loops: CLIENTS * WINDOW, cores: CORES, accesses: ACCESSES };
        let outcome = queues::run(load, COUNT, || {
            let bytes = popularity.draw(&mut rng).to_le_bytes();
            let key = hasher.key(&bytes).expect("a key of four bytes");
            let core = key.partition(CORES);
            match rng.u8(..100) < 95 {
                true => Scheme::Herd.get(costs, CLIENTS, VALUE_BYTES, core, &mut rng),
                false => Scheme::Herd.put(costs, CLIENTS, VALUE_BYTES, core),
            }
        });
        for (core, mops) in (1..).zip(&outcome.cores_mops) {
            let latency_us = outcome.latency_us;
            let of_core = queues::Outcome { mops: *mops, latency_us, cores_mops: Vec::new() };
            points.push(PaperFigure::Skew.point(line, f64::from(core), of_core));
        }
    }
    points
}

impl Row for Point {
    const COLUMNS: &'static [Column<Self>] = &[
        ("figure", |row| row.figure.to_string()),
        ("line", |row| row.line.clone()),
        ("x", |row| digits(row.x)),
        ("million/s", |row| digits(row.mops)),
        ("latency us", |row| digits(row.latency_us[0])),
        ("p5", |row| digits(row.latency_us[1])),
        ("p95", |row| digits(row.latency_us[2])),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let is_share = rows.iter().any(|row| row.figure == PaperFigure::Connections.number());
        let text =
            "Figure 1 is eRPC's: the column of rates has shares of the rate over few connections.";
        is_share.then(|| text.to_owned()).into_iter().collect()
    }

    fn chart(rows: &[Self]) -> Chart {
        let all = <PaperFigure as clap::ValueEnum>::value_variants();
        let number = rows.first().map_or(PaperFigure::Mixes.number(), |row| row.figure);
        let figure = all.iter().find(|figure| figure.number() == number);
        let figure = figure.copied().unwrap_or(PaperFigure::Mixes);
        let [title, x, y] = figure.axes();
        let mut chart = Chart::new(title, Axis::linear(x), Axis::linear(y));
        let is_latency = figure == PaperFigure::Loads;
        for row in rows {
            let y = if is_latency { row.latency_us[0] } else { row.mops };
            chart.add(&row.line, (row.x, y));
        }
        chart
    }
}

impl Row for FitRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("cost, or rate of a figure", |row| row.name.to_owned()),
        ("read from", |row| row.place.to_owned()),
        ("ns", |row| row.cost_ns.map_or(String::new(), digits)),
        ("million/s", |row| row.mops.map_or(String::new(), digits)),
        ("the paper's", |row| row.paper_mops.map_or(String::new(), digits)),
        ("residual", |row| row.residual.map_or(String::new(), |it| format!("{:+.2} %", 1e2 * it))),
    ];

    fn remarks(_rows: &[Self]) -> Vec<String> {
        vec!["Costs are fitted to these rates alone.".to_owned()]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::linear("the paper's million/s");
        let mut chart = Chart::new("The fit of the card", x, Axis::linear("the model's"));
        for row in rows {
            row.mops.zip(row.paper_mops).into_iter().for_each(|(y, x)| chart.add("rates", (x, y)));
        }
        chart
    }
}

/// Runs the chosen figures, the fit or the predictions, and prints them.
pub(crate) fn run(args: &CardArgs, output: Output) -> Result<Outcome, Failure> {
    let contexts = args.contexts;
    if args.fit {
        let command = format!("petrel-experiment card --fit --contexts {contexts}");
        return show(&costs::fit_rows(contexts), &command, args, output);
    }
    let costs = costs::fit(contexts);
    if args.predict {
        let command = format!("petrel-experiment card --predict --contexts {contexts}");
        return show(&predictions::all(&costs), &command, args, output);
    }
    if args.plot.is_some() && args.figure.len() > 1 {
        return Err(Failure::because("a plot has one figure: choose it by --figure"));
    }
    let points = args.figure.iter().flat_map(|figure| figure.points(&costs, &args.scheme));
    let points: Vec<Point> = points.collect();
    let numbers: Vec<_> = args.figure.iter().map(|figure| figure.number().to_string()).collect();
    let schemes: Vec<_> = args.scheme.iter().map(|scheme| scheme.flag()).collect();
    let (schemes, numbers) = (schemes.join(","), numbers.join(","));
    let command = format!(
        "petrel-experiment card --scheme {schemes} --figure {numbers} --contexts {contexts}"
    );
    show(&points, &command, args, output)
}

fn show<R: Row>(
    rows: &[R],
    command: &str,
    args: &CardArgs,
    output: Output,
) -> Result<Outcome, Failure> {
    rows.iter().try_for_each(|row| output.record(row))?;
    Report { rows, command }.print(output)?;
    if let Some(path) = &args.plot {
        chart::draw(path, &R::chart(rows))?;
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

    fn mops(scheme: Scheme, mix: Mix) -> f64 {
        mix.run(&costs::fit(CONTEXTS), scheme).mops
    }

    #[test]
    fn mix__has_the_order_of_figure_9() {
        let herd = mops(Scheme::Herd, Mix::READ);
        assert!(herd / mops(Scheme::Pilaf, Mix::READ) >= 2.0);
        assert!(herd / mops(Scheme::FarmVar, Mix::READ) >= 1.4);
        for get in [0, 50, 100] {
            let mixed = mops(Scheme::Herd, Mix { get, ..Mix::READ });
            assert!((mixed / herd - 1.0).abs() < 0.1, "{get} % GETs");
        }
    }

    #[test]
    fn mix__of_herd_falls_with_the_third_line() {
        let rate = |value_bytes| mops(Scheme::Herd, Mix { value_bytes, ..Mix::READ });
        assert!((rate(60) / rate(4) - 1.0).abs() < 0.02);
        assert!(rate(64) < 0.8 * rate(60));
    }

    #[test]
    fn skew__costs_less_than_a_twentieth() {
        let points = skew(&costs::fit(CONTEXTS));
        let sum = |line: &str| -> f64 {
            points.iter().filter(|point| point.line == line).map(|point| point.mops).sum()
        };
        assert!(sum("Zipf .99") >= 0.95 * sum("uniform"), "{points:?}");
    }
}
