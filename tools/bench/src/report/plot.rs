//! Plots as SVG files. Figures become a bar chart: the ratio of every figure and its quartiles, or, if
//! there are targets, the reached share of the target.

use std::path::Path;

use petrel_command::failure::Failure;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::table::three_digits;
use crate::measure::figure::Figure;

// All lengths are in pixels.
const WIDTH: u32 = 1040;
const ROW_HEIGHT: u32 = 34;
/// Title and axis.
const FRAME_HEIGHT: u32 = 100;
/// The start of the bars, right of their names.
const LEFT: u32 = 470;
const RIGHT: u32 = 40;

const REACHED: RGBColor = RGBColor(0x2a, 0x7f, 0x62);
const MISSED: RGBColor = RGBColor(0xc0, 0x4a, 0x35);
const PLAIN: RGBColor = RGBColor(0x3b, 0x6e, 0xa5);
/// Colour of the lines behind the data.
pub(crate) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// The area of a plot.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// One bar.
pub struct Bar {
    label: String,
    length: f64,
    quartiles: Option<(f64, f64)>,
    colour: RGBColor,
}

/// Larger shares of a target are cut off: they would make all other bars short.
const SHARE_MAX: f64 = 2.0;

/// Draws all figures with a target, or without targets all figures with a ratio.
pub(crate) fn draw(path: &Path, title: &str, figures: &[Figure]) -> Result<(), Failure> {
    let shares: Vec<Bar> = figures.iter().filter_map(Bar::share).collect();
    let ratios: Vec<Bar> = figures.iter().filter_map(Bar::ratio).collect();
    match shares.is_empty() {
        true => draw_bars(
            path,
            title,
            "ratio to what it is compared with; thin line: quartiles",
            &ratios,
        ),
        false => draw_bars(path, title, "share of the target: from 1 on it is reached", &shares),
    }
}

/// Draws bars, with a title and a label of the axis.
pub fn draw_bars(path: &Path, title: &str, axis: &str, bars: &[Bar]) -> Result<(), Failure> {
    save(path, size(bars), |area| render(area, title, axis, bars))
}

/// Writes a plot of a size in pixels to a file.
pub(crate) fn save(
    path: &Path,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> DrawResult,
) -> Result<(), Failure> {
    let svg = svg(size, draw).map_err(|error| Failure::because(error.to_string()))?;
    std::fs::write(path, svg).map_err(|error| {
        Failure::because(format!("cannot write the plot to {}: {error}", path.display()))
    })
}

/// Returns the text of a plot.
pub(crate) fn svg(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> DrawResult,
) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
    }
    Ok(text)
}

impl Bar {
    /// Creates a bar for a ratio, with its quartiles.
    pub fn new(label: String, length: f64, quartiles: Option<(f64, f64)>) -> Self {
        Self { label, length, quartiles, colour: PLAIN }
    }

    fn ratio(figure: &Figure) -> Option<Self> {
        Some(Self {
            label: label(figure),
            length: figure.ratio?,
            quartiles: figure.ratio_spread.map(|spread| (spread.q1, spread.q3)),
            colour: PLAIN,
        })
    }

    fn share(figure: &Figure) -> Option<Self> {
        let target = figure.target.as_ref()?;
        Some(Self {
            label: format!("{}; {}", label(figure), target.target),
            length: target.share.min(SHARE_MAX),
            quartiles: None,
            colour: if target.reached == "yes" { REACHED } else { MISSED },
        })
    }

    /// Returns the right end of the bar and its quartiles.
    fn reach(&self) -> f64 {
        self.quartiles.map_or(self.length, |(_, q3)| q3).max(self.length)
    }
}

fn label(figure: &Figure) -> String {
    let setting = &figure.setting;
    let cores = match setting.cores {
        Some(1) => ", one core",
        _ => "",
    };
    let sessions = match setting.bench {
        "sessions" => format!(", {} sessions", setting.sessions),
        _ => String::new(),
    };
    let ratio = figure.ratio.map_or(String::new(), |ratio| format!(", {}", three_digits(ratio)));
    let value = format!("{} {}{ratio}", three_digits(figure.value), figure.unit);
    format!("{}{cores}{sessions}: {value}", figure.title())
}

fn size(bars: &[Bar]) -> (u32, u32) {
    (WIDTH, FRAME_HEIGHT + ROW_HEIGHT * bars.len() as u32)
}

fn render(area: &Area<'_>, title: &str, axis: &str, bars: &[Bar]) -> DrawResult {
    let most = bars.iter().map(Bar::reach).fold(1.0, f64::max) * 1.05;
    let rows = bars.len() as f64;
    // The first row is at the top.
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin_right(RIGHT)
        .x_label_area_size(FRAME_HEIGHT / 2)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(0.0..most, rows..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .max_light_lines(0)
        .bold_line_style(GRID)
        .x_labels(8)
        .x_label_formatter(&|ratio| format!("{ratio:.2}"))
        .x_desc(axis)
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 13))
        .draw()?;
    chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, rows)], BLACK)])?;
    let right = Pos::new(HPos::Right, VPos::Center);
    let name = ("sans-serif", 13).into_font().color(&BLACK).pos(right);
    for (row, bar) in bars.iter().enumerate() {
        let (top, middle) = (row as f64 + 0.24, row as f64 + 0.5);
        let corners = [(0.0, top), (bar.length, 2.0 * middle - top)];
        chart.draw_series([Rectangle::new(corners, bar.colour.filled())])?;
        let quartiles = bar.quartiles.map(|(q1, q3)| [(q1, middle), (q3, middle)]);
        chart.draw_series(quartiles.map(|line| PathElement::new(line, BLACK)))?;
        let label = Text::new(bar.label.clone(), (-8, 0), name.clone());
        chart.draw_series([EmptyElement::at((0.0, middle)) + label])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::figure::tests::figure;
    use crate::measure::target::Requirement;

    #[test]
    fn render__has_a_bar_for_each_figure() {
        let (mut missed, mut reached) = (figure(), figure());
        missed.target = Some(Requirement::RatioAtLeast(0.6).judge(&missed));
        reached.target = Some(Requirement::RatioAtLeast(0.1).judge(&reached));
        let figures = [missed, reached, figure()];
        let shares: Vec<Bar> = figures.iter().filter_map(Bar::share).collect();
        assert_eq!(shares.iter().map(|bar| bar.length).collect::<Vec<_>>(), [0.5, SHARE_MAX]);
        let svg = svg(size(&shares), |area| render(area, "Targets", "share", &shares)).unwrap();
        assert_eq!(svg.matches("rate over shm, one core").count(), 2, "{svg}");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("#C04A35") && svg.contains("#2A7F62"), "missed, reached: {svg}");
    }

    #[test]
    fn ratio__has_the_quartiles() {
        let bar = Bar::ratio(&figure()).unwrap();
        assert_eq!((bar.length, bar.reach()), (0.3, 0.4));
    }

    #[test]
    fn draw__says_which_file_cannot_be_written() {
        let path = Path::new("/no-such-folder/plot.svg");
        let failure = draw(path, "title", &[figure()]).unwrap_err();
        assert!(failure.to_string().contains("/no-such-folder/plot.svg"), "{failure}");
    }
}
