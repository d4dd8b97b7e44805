//! Bar charts of ratios with their quartiles, and the files of plots.

use std::path::{Path, PathBuf};

use petrel_command::failure::Failure;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

// All lengths are in pixels.
const WIDTH: u32 = 1040;
const ROW_HEIGHT: u32 = 34;
/// Title and axis.
const FRAME_HEIGHT: u32 = 100;
/// The start of the bars, right of their names.
const LEFT: u32 = 470;
const RIGHT: u32 = 40;

const BAR: RGBColor = RGBColor(0x3b, 0x6e, 0xa5);
/// Colour of the lines behind the data.
pub(crate) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// The area of a plot.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// One bar.
pub(crate) struct Bar {
    label: String,
    length: f64,
    quartiles: Option<(f64, f64)>,
}

/// Draws bars, with a title and a label of the axis.
pub(crate) fn draw_bars(path: &Path, title: &str, axis: &str, bars: &[Bar]) -> Result<(), Failure> {
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
    pub(crate) fn new(label: String, length: f64, quartiles: Option<(f64, f64)>) -> Self {
        Self { label, length, quartiles }
    }

    /// Returns the right end of the bar and its quartiles.
    fn reach(&self) -> f64 {
        self.quartiles.map_or(self.length, |(_, q3)| q3).max(self.length)
    }
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
        chart.draw_series([Rectangle::new(corners, BAR.filled())])?;
        let quartiles = bar.quartiles.map(|(q1, q3)| [(q1, middle), (q3, middle)]);
        chart.draw_series(quartiles.map(|line| PathElement::new(line, BLACK)))?;
        let label = Text::new(bar.label.clone(), (-8, 0), name.clone());
        chart.draw_series([EmptyElement::at((0.0, middle)) + label])?;
    }
    Ok(())
}

/// Parses the path of a plot. Its folder must exist and be writable: the check happens before anything
/// is measured.
pub(crate) fn parse_plot(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => return Err(format!("'{text}' is no file")),
    };
    if path.is_dir() {
        return Err(format!("'{text}' is a folder"));
    }
    let target = if path.exists() { path.as_path() } else { folder };
    rustix::fs::access(target, rustix::fs::Access::WRITE_OK)
        .map_err(|error| format!("'{text}' cannot be written: {error}"))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render__has_a_bar_for_each_ratio() {
        let bars = [
            Bar::new("plain".to_owned(), 0.3, Some((0.2, 0.4))),
            Bar::new("batched".to_owned(), 2.0, None),
        ];
        assert_eq!((bars[0].reach(), bars[1].reach()), (0.4, 2.0));
        let svg = svg(size(&bars), |area| render(area, "Rates", "over plain", &bars)).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("plain") && svg.contains("batched"), "{svg}");
        assert_eq!(svg.matches("#3B6EA5").count(), 2, "{svg}");
    }

    #[test]
    fn draw_bars__says_which_file_cannot_be_written() {
        let path = Path::new("/no-such-folder/plot.svg");
        let failure = draw_bars(path, "title", "axis", &[]).unwrap_err();
        assert!(failure.to_string().contains("/no-such-folder/plot.svg"), "{failure}");
    }
}
