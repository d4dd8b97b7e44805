//! Line charts, as SVG.

use std::path::Path;

use petrel_command::failure::Failure;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{digits, probability};

// All lengths are in pixels.
const WIDTH: i32 = 900;
const HEIGHT: i32 = 480;
const LEFT: i32 = 80;
const RIGHT: i32 = 220;
const TOP: i32 = 60;
const BOTTOM: i32 = 60;

/// Distances of marks on a linear axis, times a power of ten.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];
const TICKS_MAX: f64 = 8.0;

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
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// The contents of a chart.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) title: &'static str,
    pub(super) scale: Scale,
}

/// The division of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// From zero, evenly.
    Linear,
    /// Logarithmic. Values of zero and less are not drawn.
    Log,
}

/// The points of a line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Chart {
    /// Creates a chart without lines.
    pub(super) fn new(title: &'static str, x: Axis, y: Axis) -> Self {
        Self { title, x, y, lines: Vec::new() }
    }

    /// Adds a point to the line of this name, which is created if necessary.
    pub(super) fn add(&mut self, name: &str, point: (f64, f64)) {
        match self.lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => self.lines.push(Line { name: name.to_owned(), points: vec![point] }),
        }
    }
}

impl Axis {
    pub(super) const fn linear(title: &'static str) -> Self {
        Self { title, scale: Scale::Linear }
    }

    pub(super) const fn log(title: &'static str) -> Self {
        Self { title, scale: Scale::Log }
    }
}

/// Draws a chart into a file.
pub(super) fn draw(path: &Path, chart: &Chart) -> Result<(), Failure> {
    let svg = render(chart).map_err(|error| Failure::because(error.to_string()))?;
    std::fs::write(path, svg).map_err(|error| {
        Failure::because(format!("cannot write the plot to {}: {error}", path.display()))
    })
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// An axis with its ends: converts values to shares of the axis.
struct AxisLayout {
    scale: Scale,
    from: f64,
    to: f64,
}

impl AxisLayout {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let shown = values.filter(|&value| scale == Scale::Linear || value > 0.0);
        let ends = (f64::INFINITY, f64::NEG_INFINITY);
        let (least, most) = shown.fold(ends, |(a, b), value| (a.min(value), b.max(value)));
        let (from, to) = match scale {
            _ if least > most => (0.0, 1.0),
            Scale::Linear => (0.0, (most * 1.05).max(f64::MIN_POSITIVE)),
            Scale::Log => {
                let (from, to) = (least.log10().floor(), most.log10().ceil());
                (from, to.max(from + 1.0))
            }
        };
        Self { scale, from, to }
    }

    /// Returns the place of a value, from 0 to 1; `None` outside of the axis.
    fn position(&self, value: f64) -> Option<f64> {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log if value > 0.0 => value.log10(),
            Scale::Log => return None,
        };
        Some((value - self.from) / (self.to - self.from))
    }

    fn ticks(&self) -> Vec<f64> {
        if self.scale == Scale::Log {
            return (self.from as i32..=self.to as i32).map(|power| 10f64.powi(power)).collect();
        }
        let power = 10f64.powf((self.to / TICKS_MAX).log10().floor());
        let steps = (0..2).flat_map(|more| STEPS.map(|step| step * power * 10f64.powi(more)));
        let step = { steps }.find(|step| self.to / step <= TICKS_MAX).unwrap_or(self.to);
        // A division may yield slightly less than a whole number.
        (0..=(self.to / step + 1e-9) as u32).map(|count| f64::from(count) * step).collect()
    }

    fn label(&self, value: f64) -> String {
        match self.scale {
            Scale::Log if !(1e-2..1e5).contains(&value) => probability(value),
            _ if value.fract() == 0.0 => format!("{value:.0}"),
            _ => digits(value),
        }
    }
}

fn render(chart: &Chart) -> Result<String, Box<dyn std::error::Error>> {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let x = AxisLayout::new(chart.x.scale, points().map(|point| point.0));
    let y = AxisLayout::new(chart.y.scale, points().map(|point| point.1));
    let mut svg = String::new();
    {
        let area =
            SVGBackend::with_string(&mut svg, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        write(&area, chart.title, ((LEFT + WIDTH - RIGHT) / 2, 20), 18, HPos::Center)?;
        write(&area, chart.x.title, ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16), 13, HPos::Center)?;
        write(&area, chart.y.title, (10, TOP - 16), 13, HPos::Left)?;
        draw_grid(&area, &x, &y)?;
        for (index, line) in chart.lines.iter().enumerate() {
            draw_line(&area, &x, &y, index, line)?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn pixel_x(share: f64) -> i32 {
    LEFT + (share * f64::from(WIDTH - LEFT - RIGHT)) as i32
}

fn pixel_y(share: f64) -> i32 {
    HEIGHT - BOTTOM - (share * f64::from(HEIGHT - TOP - BOTTOM)) as i32
}

fn draw_grid(area: &Area<'_>, x: &AxisLayout, y: &AxisLayout) -> DrawResult {
    for tick in x.ticks() {
        let Some(at) = x.position(tick).map(pixel_x) else { continue };
        let ends = [(at, pixel_y(0.0)), (at, pixel_y(1.0))];
        area.draw(&PathElement::new(ends, GRID.stroke_width(1)))?;
        write(area, &x.label(tick), (at, pixel_y(0.0) + 14), 12, HPos::Center)?;
    }
    for tick in y.ticks() {
        let Some(at) = y.position(tick).map(pixel_y) else { continue };
        let ends = [(pixel_x(0.0), at), (pixel_x(1.0), at)];
        area.draw(&PathElement::new(ends, GRID.stroke_width(1)))?;
        write(area, &y.label(tick), (pixel_x(0.0) - 8, at), 12, HPos::Right)?;
    }
    Ok(())
}

/// Draws a line, with its name in the legend.
fn draw_line(
    area: &Area<'_>,
    x: &AxisLayout,
    y: &AxisLayout,
    index: usize,
    line: &Line,
) -> DrawResult {
    let colour = COLOURS[index % COLOURS.len()];
    let position =
        |&(px, py): &(f64, f64)| Some((pixel_x(x.position(px)?), pixel_y(y.position(py)?)));
    let points: Vec<(i32, i32)> = line.points.iter().filter_map(position).collect();
    for &at in &points {
        area.draw(&Circle::new(at, 3, colour.filled()))?;
    }
    area.draw(&PathElement::new(points, colour.stroke_width(2)))?;
    let at = (WIDTH - RIGHT + 20, TOP + 10 + 20 * index as i32);
    area.draw(&PathElement::new([at, (at.0 + 20, at.1)], colour.stroke_width(3)))?;
    write(area, &line.name, (at.0 + 28, at.1), 12, HPos::Left)
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), size: i32, side: HPos) -> DrawResult {
    let style = ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(text.to_owned(), at, style))?)
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
        let svg = render(&chart()).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<circle").count(), 3, "zero is not on a logarithmic axis");
        assert!(svg.contains("one") && svg.contains("other") && svg.contains("1e-5"));
    }

    #[test]
    fn render__of_nothing_is_an_empty_plane() {
        let nothing = Chart { lines: Vec::new(), ..chart() };
        assert!(render(&nothing).unwrap().starts_with("<svg"));
    }

    #[test]
    fn ticks__are_round_numbers() {
        let linear = AxisLayout::new(Scale::Linear, [0.0, 24.0].into_iter());
        assert_eq!(linear.ticks(), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        let log = AxisLayout::new(Scale::Log, [0.0, 3e-3, 0.5].into_iter());
        assert_eq!((log.ticks().len(), log.position(1.0)), (4, Some(1.0)));
    }

    #[test]
    fn draw__says_which_file_cannot_be_written() {
        let failure = draw(Path::new("/no-such-folder/plot.svg"), &chart()).unwrap_err();
        assert!(failure.to_string().contains("/no-such-folder/plot.svg"), "{failure}");
    }
}
