//! Predictions of the fitted card beside the paper's numbers for Figures 7 and 9 to 14, and of eRPC's Figure 1.
//!
//! Each number stands in the paper's text, in the section of its row. A curve without a number in the text has no row.

use serde::Serialize;

use super::costs::{Costs, missing};
use super::schemes::Scheme;
use super::{CLIENTS, CORES, Mix, PaperFigure, Point};
use crate::report::chart::{Axis, Chart};
use crate::report::rows::{Column, Row, digits};

/// A prediction is good within this share.
const GOOD_SHARE: f64 = 0.15;

/// The rate at which the load no longer grows with clients, as a share of the greatest.
const SATURATED_SHARE: f64 = 0.99;

/// The greatest number of clients for which Figure 12 is looked at.
const CLIENTS_MAX: usize = 1_600;

/// eRPC §4.1.2: a connection takes 375 bytes of a card with 2 MB of memory.
const CONTEXTS_AT_MOST: f64 = 2e6 / 375.0;

/// A quantity of a figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Prediction {
    experiment: &'static str,
    figure: &'static str,
    what: &'static str,
    unit: &'static str,
    model: f64,
    /// The least and the most that the paper's text allows.
    paper_least: f64,
    paper_most: Option<f64>,
    place: &'static str,
    /// The distance from what the text allows, as a share of it.
    error: f64,
}

impl Prediction {
    fn new(
        [figure, what, unit, place]: [&'static str; 4],
        model: f64,
        paper: impl Into<Range>,
    ) -> Self {
        let Range { least, most } = paper.into();
        let error = match most {
            Some(most) if model > most => model / most - 1.0,
            _ if model < least => model / least - 1.0,
            _ => 0.0,
        };
        let experiment = "card-prediction";
        let (paper_least, paper_most) = (least, most);
        Self { experiment, figure, what, unit, model, paper_least, paper_most, place, error }
    }

    fn is_good(&self) -> bool {
        self.error.abs() <= GOOD_SHARE
    }

    fn paper(&self) -> String {
        match self.paper_most {
            Some(most) if most == self.paper_least => digits(most),
            Some(most) => format!("{} to {}", digits(self.paper_least), digits(most)),
            None => format!("over {}", digits(self.paper_least)),
        }
    }
}

/// A number of the text, or a range without an upper end.
struct Range {
    least: f64,
    most: Option<f64>,
}

impl From<f64> for Range {
    fn from(number: f64) -> Self {
        Self { least: number, most: Some(number) }
    }
}

impl From<std::ops::RangeFrom<f64>> for Range {
    fn from(range: std::ops::RangeFrom<f64>) -> Self {
        Self { least: range.start, most: None }
    }
}

impl From<std::ops::RangeInclusive<f64>> for Range {
    fn from(range: std::ops::RangeInclusive<f64>) -> Self {
        Self { least: *range.start(), most: Some(*range.end()) }
    }
}

/// Returns all predictions.
pub(super) fn all(costs: &Costs) -> Vec<Prediction> {
    let mops = |scheme: Scheme, mix: Mix| mix.run(costs, scheme).mops;
    let get = |get| Mix { get, ..Mix::READ };
    let bytes = |value_bytes| Mix { value_bytes, ..Mix::READ };
    let puts = |cores| Mix { get: 0, cores, ..Mix::READ };
    let over = |mix, other| mops(Scheme::Herd, mix) / mops(other, mix);
    let peak = mops(Scheme::Herd, Mix::READ);
    let [herd, pilaf, farm_var] =
        [Scheme::Herd, Scheme::Pilaf, Scheme::FarmVar].map(|scheme| saturated(costs, scheme));

    const M: &str = "million/s";
    let mut rows = Vec::new();
    let mut add = |names, model, paper: Range| rows.push(Prediction::new(names, model, paper));
    add(
        ["7", "5 cores, 8 accesses", M, "§4.1.1"],
        super::echoes(costs, 8, true, 5).mops,
        26.0.into(),
    );
    add(["9", "HERD, 95 % GETs", M, "§5.3"], peak, 26.0.into());
    add(["9", "HERD, 50 % GETs", M, "§5.3"], mops(Scheme::Herd, get(50)), 26.0.into());
    add(["9", "Pilaf, GETs", M, "§5.3"], mops(Scheme::Pilaf, get(100)), 9.9.into());
    add(["9", "FaRM, GETs", M, "§5.3"], mops(Scheme::Farm, get(100)), 17.2.into());
    add(["9", "FaRM, variable, GETs", M, "§5.3"], mops(Scheme::FarmVar, get(100)), 11.4.into());
    let farm_puts = mops(Scheme::Farm, get(0)) / mops(Scheme::Farm, get(100));
    add(["9", "FaRM, PUTs over GETs", "", "§5.3"], farm_puts, (1.0..).into());
    add(["9", "HERD over Pilaf", "", "§5"], over(Mix::READ, Scheme::Pilaf), (2.0..).into());
    add(["10", "HERD, value of 60 B", M, "§5.3"], mops(Scheme::Herd, bytes(60)), 26.0.into());
    add(
        ["10", "HERD over Pilaf, 1 024 B", "", "§5.3"],
        over(bytes(1024), Scheme::Pilaf),
        (0.9..=1.1).into(),
    );
    add(
        ["10", "HERD over FaRM, 1 024 B", "", "§5.3"],
        over(bytes(1024), Scheme::Farm),
        (0.9..=1.1).into(),
    );
    add(
        ["10", "HERD over Pilaf, 144 B", "", "§5.3"],
        over(bytes(144), Scheme::Pilaf),
        (0.9..=1.1).into(),
    );
    add(["11", "HERD's latency, saturated", "us", "§5.4"], herd.1, 5.0.into());
    add(["11", "HERD's rate there", M, "§5.4"], herd.2, 26.0.into());
    add(["11", "clients that saturate HERD", "", "§5.1"], herd.0 as f64, 36.0.into());
    add(["11", "latency of Pilaf over HERD", "", "§5"], pilaf.1 / herd.1, (2.0..).into());
    add(
        ["11", "latency of FaRM, variable, over HERD", "", "§5"],
        farm_var.1 / herd.1,
        (2.0..).into(),
    );
    let clients = |clients| mops(Scheme::Herd, Mix { clients, ..Mix::READ });
    add(["12", "HERD, 260 clients", M, "§5.5"], clients(260), 26.0.into());
    add(
        ["12", "clients from which HERD declines", "", "§5.5"],
        knee(&clients) as f64,
        260.0.into(),
    );
    add(["13", "HERD, 1 core", M, "§5.7"], mops(Scheme::Herd, puts(1)), 6.3.into());
    let five = mops(Scheme::Herd, puts(5)) / mops(Scheme::Herd, puts(CORES));
    add(["13", "HERD, 5 cores over 6", "", "§5.6"], five, (0.95..=1.0).into());
    add(["13", "cores for FaRM's PUTs", "", "§5.6"], cores(costs, Scheme::Farm), (5.0..).into());
    add(["13", "cores for Pilaf's PUTs", "", "§5.6"], cores(costs, Scheme::Pilaf), (5.0..).into());
    let skewed = super::skew(costs);
    let of = |line: &str| -> Vec<f64> {
        skewed.iter().filter(|point| point.line == line).map(|point| point.mops).collect()
    };
    let least = |rates: &[f64]| rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    let (uniform, zipf) = (of("uniform"), of("Zipf .99"));
    let mean = uniform.iter().sum::<f64>() / CORES as f64;
    add(["14", "a core of six, uniform", M, "§5.7"], mean, 4.32.into());
    add(["14", "most over least loaded core", "", "§5.7"], most(&zipf) / least(&zipf), 1.5.into());
    let share = |contexts| share(costs, 5_000, contexts);
    add(
        ["eRPC 1", "5 000 connections, all memory for them", "", "§4.1.2"],
        share(CONTEXTS_AT_MOST),
        0.5.into(),
    );
    rows
}

/// The clients that a scheme needs for its greatest rate with 95 % GETs, its mean latency in microseconds there, and the rate.
fn saturated(costs: &Costs, scheme: Scheme) -> (usize, f64, f64) {
    let run = |clients| Mix { clients, ..Mix::READ }.run(costs, scheme);
    let most = run(CLIENTS).mops;
    let clients = first(1, CLIENTS, |clients| run(clients).mops >= SATURATED_SHARE * most);
    let outcome = run(clients);
    (clients, outcome.latency_us[0], outcome.mops)
}

/// The clients from which a rate declines, or the greatest number that is looked at.
fn knee(mops: &dyn Fn(usize) -> f64) -> usize {
    let most = mops(CLIENTS);
    first(CLIENTS, CLIENTS_MAX, |clients| mops(clients) < SATURATED_SHARE * most)
}

/// The cores with which PUTs have their greatest rate.
fn cores(costs: &Costs, scheme: Scheme) -> f64 {
    let mops = |cores| Mix { get: 0, cores, ..Mix::READ }.run(costs, scheme).mops;
    let most = mops(10);
    first(1, 10, |cores| mops(cores) >= SATURATED_SHARE * most) as f64
}

/// The first number of a range from which a condition holds, or the last number.
fn first(mut least: usize, mut most: usize, holds: impl Fn(usize) -> bool) -> usize {
    while least < most {
        let middle = least.midpoint(most);
        if holds(middle) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    most
}

/// The rate of verbs over uniformly drawn connections, as a share of that over few, with HERD's cost of a missing context.
fn share(costs: &Costs, connections: usize, contexts: f64) -> f64 {
    1.0 / (1.0 + costs.miss_of_write() * missing(connections, contexts))
}

/// The contexts with which the share at 5 000 connections is that of eRPC's Figure 1.
fn contexts_of_half(costs: &Costs) -> f64 {
    5_000.0 * (1.0 - 1.0 / costs.miss_of_write()).max(0.0)
}

/// eRPC's Figure 1: connections, with a card that holds as many as its memory has room for, or as many as the figure's half tells;
/// and datagrams, whose only context is of the sender's queue.
pub(super) fn connections(costs: &Costs) -> Vec<Point> {
    let half = contexts_of_half(costs);
    let lines = [
        (format!("card of {CONTEXTS_AT_MOST:.0} contexts"), CONTEXTS_AT_MOST),
        (format!("card of {half:.0} contexts, fitted"), half),
        ("datagrams".to_owned(), f64::INFINITY),
    ];
    let all = lines.iter().flat_map(|line| (0..=20).map(move |x| (line, x * 1_000)));
    let point = |((line, contexts), connections): (&(String, f64), usize)| {
        let mops = share(costs, connections.max(1), *contexts);
        let figure = PaperFigure::Connections.number();
        let line = line.clone();
        Point {
            experiment: "card",
            figure,
            line,
            x: connections as f64,
            mops,
            latency_us: [0.0; 3],
        }
    };
    all.map(point).collect()
}

impl Row for Prediction {
    const COLUMNS: &'static [Column<Self>] = &[
        ("figure", |row| row.figure.to_owned()),
        ("what", |row| row.what.to_owned()),
        ("unit", |row| row.unit.to_owned()),
        ("model", |row| digits(row.model)),
        ("paper", Self::paper),
        ("read from", |row| row.place.to_owned()),
        ("error", |row| format!("{:+.1} %", 1e2 * row.error)),
        ("within 15 %", |row| if row.is_good() { "yes" } else { "NO" }.to_owned()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let good = rows.iter().filter(|row| row.is_good()).count();
        vec![format!("{good} of {} predictions are within 15 %.", rows.len())]
    }

    fn chart(rows: &[Self]) -> Chart {
        let mut chart = Chart::new(
            "Predictions",
            Axis::linear("row"),
            Axis::linear("model over paper, less one"),
        );
        for (row, prediction) in (1u32..).zip(rows) {
            chart.add("error", (f64::from(row), prediction.error.abs()));
        }
        chart
    }
}
