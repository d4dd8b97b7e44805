//! Line charts, as SVG.

use std::ops::Range;
use std::path::Path;

use petrel_command::failure::Failure;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::plot::{self, Area, DrawResult, GRID};
use super::rows::{digits, probability};

// All lengths are in pixels.
const SIZE: (u32, u32) = (900, 480);
/// The legend, right of the lines.
const LEGEND: u32 = 220;
const FRAME: u32 = 60;

const COLOURS: [RGBColor; 8] = [
    RGBColor(0x3b, 0x6e, 0xa5),
    RGBColor(0xc0, 0x4a, 0x35),
    RGBColor(0x2a, 0x7f, 0x62),
    RGBColor(0x8a, 0x5a, 0xa8),
    RGBColor(0xb8, 0x86, 0x1b),
    RGBColor(0x44, 0x44, 0x44),
    RGBColor(0x2a, 0x9d, 0xb0),
    RGBColor(0x9c, 0x38, 0x6b),
];
/// The contents of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) title: &'static str,
    pub(crate) scale: Scale,
}

/// The division of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero, evenly.
    Linear,
    /// A logarithmic scale, which does not show values of zero and less.
    Log,
}

/// The points of a line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Chart {
    /// Creates a chart without lines.
    pub(crate) fn new(title: &'static str, x: Axis, y: Axis) -> Self {
        Self { title, x, y, lines: Vec::new() }
    }

    /// Adds a point to the line of this name, which is created if necessary.
    pub(crate) fn add(&mut self, name: &str, point: (f64, f64)) {
        match self.lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => self.lines.push(Line { name: name.to_owned(), points: vec![point] }),
        }
    }
}

impl Axis {
    pub(crate) const fn linear(title: &'static str) -> Self {
        Self { title, scale: Scale::Linear }
    }

    pub(crate) const fn log(title: &'static str) -> Self {
        Self { title, scale: Scale::Log }
    }
}

/// Draws a chart into a file.
pub(crate) fn draw(path: &Path, chart: &Chart) -> Result<(), Failure> {
    plot::save(path, SIZE, |area| render(area, chart))
}

impl Axis {
    /// Returns true if a value has a place on the axis.
    fn shows(self, value: f64) -> bool {
        self.scale == Scale::Linear || value > 0.0
    }

    /// Returns the ends of an axis for these values.
    fn range(self, values: impl Iterator<Item = f64>) -> Range<f64> {
        let ends = (f64::INFINITY, f64::NEG_INFINITY);
        let shown = values.filter(|&value| self.shows(value));
        let (least, most) = shown.fold(ends, |(a, b), value| (a.min(value), b.max(value)));
        match self.scale {
            Scale::Linear => 0.0..(most * 1.05).max(f64::MIN_POSITIVE),
            Scale::Log if least > most => 1.0..10.0,
            Scale::Log => {
                let (from, to) = (least.log10().floor(), most.log10().ceil());
                // The first mark stands inside, whatever the rounding.
                0.999 * 10f64.powf(from)..10f64.powf(to.max(from + 1.0))
            }
        }
    }

    fn label(self, value: f64) -> String {
        // Marks of a logarithmic axis are powers of ten, except for rounding.
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log => 10f64.powi(value.log10().round() as i32),
        };
        match self.scale {
            Scale::Log if !(1e-2..1e5).contains(&value) => probability(value),
            _ if value.fract() == 0.0 => format!("{value:.0}"),
            _ => digits(value),
        }
    }
}

fn render(area: &Area<'_>, chart: &Chart) -> DrawResult {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let x = chart.x.range(points().map(|point| point.0));
    let y = chart.y.range(points().map(|point| point.1));
    match (chart.x.scale, chart.y.scale) {
        (Scale::Linear, Scale::Linear) => render_on(area, chart, x, y),
        (Scale::Linear, Scale::Log) => render_on(area, chart, x, y.log_scale()),
        (Scale::Log, Scale::Linear) => render_on(area, chart, x.log_scale(), y),
        (Scale::Log, Scale::Log) => render_on(area, chart, x.log_scale(), y.log_scale()),
    }
}

fn render_on<X, Y>(area: &Area<'_>, chart: &Chart, x: X, y: Y) -> DrawResult
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut plot = ChartBuilder::on(area)
        .caption(chart.title, ("sans-serif", 18))
        .margin_right(LEGEND)
        .x_label_area_size(FRAME)
        .y_label_area_size(FRAME)
        .build_cartesian_2d(x, y)?;
    plot.configure_mesh()
        .max_light_lines(0)
        .bold_line_style(GRID)
        .x_labels(8)
        .y_labels(8)
        .x_label_formatter(&|value| chart.x.label(*value))
        .y_label_formatter(&|value| chart.y.label(*value))
        .x_desc(chart.x.title)
        .y_desc(chart.y.title)
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 13))
        .draw()?;
    for (row, (line, colour)) in (1..).zip(chart.lines.iter().zip(COLOURS.iter().cycle())) {
        let has_place = |point: &&(f64, f64)| chart.x.shows(point.0) && chart.y.shows(point.1);
        let points: Vec<_> = line.points.iter().filter(has_place).copied().collect();
        plot.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
        plot.draw_series([PathElement::new(points, colour.stroke_width(2))])?;
        let (x, y) = ((SIZE.0 - LEGEND) as i32 + 20, FRAME as i32 + 20 * row);
        area.draw(&PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3)))?;
        area.draw(&Text::new(line.name.as_str(), (x + 28, y - 6), ("sans-serif", 12)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let mut chart = Chart::new("T", Axis::log("loss"), Axis::linear("share"));
        chart.add("one", (1e-5, 1.0));
        chart.add("other", (1e-5, 0.5));
        chart.add("one", (0.0, 1.0));
        chart.add("one", (1e-1, 0.25));
        chart
    }

    #[test]
    fn render__has_each_line_and_leaves_out_what_has_no_place() {
        let svg = plot::svg(SIZE, |area| render(area, &chart())).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<circle").count(), 3, "zero is not on a logarithmic axis");
        assert!(svg.contains("one") && svg.contains("other") && svg.contains("1e-5"));
    }

    #[test]
    fn render__of_nothing_is_an_empty_plane() {
        let nothing = Chart { lines: Vec::new(), ..chart() };
        assert!(plot::svg(SIZE, |area| render(area, &nothing)).unwrap().starts_with("<svg"));
    }

    #[test]
    fn range__holds_all_values_with_a_place() {
        let linear = Axis::linear("").range([0.0, 24.0].into_iter());
        assert!(linear.start == 0.0 && linear.end > 24.0);
        let log = Axis::log("").range([0.0, 3e-3, 0.5].into_iter());
        assert!((9e-4..1e-3).contains(&log.start) && (0.9..1.1).contains(&log.end), "{log:?}");
        assert_eq!(Axis::log("").label(log.start), "1e-3");
    }

    #[test]
    fn draw__says_which_file_cannot_be_written() {
        let failure = draw(Path::new("/no-such-folder/plot.svg"), &chart()).unwrap_err();
        assert!(failure.to_string().contains("/no-such-folder/plot.svg"), "{failure}");
    }
}
