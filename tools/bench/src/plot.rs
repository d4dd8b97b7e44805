//! Figures as a bar chart: the ratio of every figure and its quartiles, or, if there are targets, the
//! reached share of the target.

use std::path::Path;

use petrel_command::failure::Failure;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figure::Figure;
use super::table::three_digits;

// All lengths are in pixels.
const WIDTH: i32 = 1040;
const ROW_HEIGHT: i32 = 34;
const TOP: i32 = 50;
const BOTTOM: i32 = 50;
/// The start of the bars, right of their names.
const LEFT: i32 = 470;
const RIGHT: i32 = 40;

/// Distances of marks on the axis, of which the smallest with few enough marks is chosen.
const STEPS: [f64; 8] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0];
const TICKS_MAX: f64 = 8.0;

const REACHED: RGBColor = RGBColor(0x2a, 0x7f, 0x62);
const MISSED: RGBColor = RGBColor(0xc0, 0x4a, 0x35);
const PLAIN: RGBColor = RGBColor(0x3b, 0x6e, 0xa5);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// One bar.
pub(crate) struct Bar {
    label: String,
    length: f64,
    quartiles: Option<(f64, f64)>,
    colour: RGBColor,
}

/// Larger shares of a target are cut off: they would make all other bars short.
const SHARE_MAX: f64 = 2.0;

/// Draws all figures with a target, or without targets all figures with a ratio.
pub(super) fn draw(path: &Path, title: &str, figures: &[Figure]) -> Result<(), Failure> {
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
pub(crate) fn draw_bars(path: &Path, title: &str, axis: &str, bars: &[Bar]) -> Result<(), Failure> {
    let svg = render(title, axis, bars).map_err(|error| Failure::because(error.to_string()))?;
    std::fs::write(path, svg).map_err(|error| {
        Failure::because(format!("cannot write the plot to {}: {error}", path.display()))
    })
}

impl Bar {
    /// Creates a bar for a ratio, with its quartiles.
    pub(crate) fn new(label: String, length: f64, quartiles: Option<(f64, f64)>) -> Self {
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

fn render(title: &str, axis: &str, bars: &[Bar]) -> Result<String, Box<dyn std::error::Error>> {
    let height = TOP + ROW_HEIGHT * bars.len() as i32 + BOTTOM;
    let most = bars.iter().map(Bar::reach).fold(1.0, f64::max) * 1.05;
    let x = |ratio: f64| LEFT + (ratio / most * f64::from(WIDTH - LEFT - RIGHT)) as i32;
    let mut svg = String::new();
    {
        let area =
            SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        write(&area, title, (WIDTH / 2, TOP / 2), 18, HPos::Center)?;
        for tick in ticks(most) {
            draw_tick(&area, height, x, tick)?;
        }
        write(&area, axis, (WIDTH / 2, height - 14), 13, HPos::Center)?;
        area.draw(&PathElement::new([(x(1.0), TOP), (x(1.0), height - BOTTOM)], BLACK))?;
        for (row, bar) in (0..).zip(bars) {
            draw_bar(&area, TOP + ROW_HEIGHT * row + ROW_HEIGHT / 2, x, bar)?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// Returns the marks of an axis up to `most`.
fn ticks(most: f64) -> impl Iterator<Item = f64> {
    let step = STEPS.into_iter().find(|step| most / step <= TICKS_MAX).unwrap_or(most);
    // A division may yield slightly less than a whole number.
    (0..=(most / step + 1e-9) as u32).map(move |count| f64::from(count) * step)
}

fn draw_tick(area: &Area<'_>, height: i32, x: impl Fn(f64) -> i32, ratio: f64) -> DrawResult {
    let (x, bottom) = (x(ratio), height - BOTTOM);
    area.draw(&PathElement::new([(x, TOP), (x, bottom)], GRID.stroke_width(1)))?;
    write(area, &format!("{ratio:.2}"), (x, bottom + 12), 12, HPos::Center)
}

/// Draws a bar whose vertical centre is `y`.
fn draw_bar(area: &Area<'_>, y: i32, x: impl Fn(f64) -> i32, bar: &Bar) -> DrawResult {
    let corners = [(x(0.0), y - 9), (x(bar.length), y + 9)];
    area.draw(&Rectangle::new(corners, bar.colour.filled()))?;
    if let Some((q1, q3)) = bar.quartiles {
        area.draw(&PathElement::new([(x(q1), y), (x(q3), y)], BLACK.stroke_width(1)))?;
    }
    write(area, &bar.label, (LEFT - 8, y), 13, HPos::Right)
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), size: i32, side: HPos) -> DrawResult {
    let style = ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(text.to_owned(), at, style))?)
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::super::target::Requirement;
    use super::*;

    #[test]
    fn render__has_a_bar_for_each_figure() {
        let (mut missed, mut reached) = (figure(), figure());
        missed.target = Some(Requirement::RatioAtLeast(0.6).judge(&missed));
        reached.target = Some(Requirement::RatioAtLeast(0.1).judge(&reached));
        let figures = [missed, reached, figure()];
        let shares: Vec<Bar> = figures.iter().filter_map(Bar::share).collect();
        assert_eq!(shares.iter().map(|bar| bar.length).collect::<Vec<_>>(), [0.5, SHARE_MAX]);
        let svg = render("Targets", "share", &shares).unwrap();
        assert_eq!(svg.matches("rate over shm, one core").count(), 2, "{svg}");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("#C04A35") && svg.contains("#2A7F62"), "missed, reached: {svg}");
    }

    #[test]
    fn ticks__are_round_numbers() {
        assert_eq!(ticks(2.1).collect::<Vec<_>>(), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(ticks(0.3).count(), 7);
        assert_eq!(ticks(1_000.0).collect::<Vec<_>>(), [0.0, 1_000.0]);
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
