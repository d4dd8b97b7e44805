//! The plot: latency, rate and bandwidth of all rows side by side, on logarithmic scales.

use std::ops::Range;
use std::path::Path;

use peers_common::Failure;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::host::Host;
use crate::probe::Distance;
use crate::summary::Row;
use crate::table::{count, number};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const ROW_HEIGHT: u32 = 24;
const NAMES_WIDTH: u32 = 300;
const PANEL_WIDTH: u32 = 330;
const HEAD_HEIGHT: u32 = 34;
const AXIS_HEIGHT: u32 = 28;
const CAPTION_HEIGHT: u32 = 30;

const INK: RGBColor = RGBColor(34, 34, 34);
const PETREL: RGBColor = RGBColor(200, 80, 10);
const OTHERS: RGBColor = RGBColor(60, 100, 150);
const GRID: RGBColor = RGBColor(220, 220, 220);

/// A column of dots.
struct Panel {
    title: &'static str,
    value: fn(&Row) -> Option<f64>,
    text: fn(Option<f64>) -> String,
}

const PANELS: [Panel; 3] = [
    Panel { title: "latency p50, µs (less is better)", value: |row| row.p50_us, text: number },
    Panel { title: "32 B calls/s, 60 in flight", value: |row| row.calls_per_second, text: count },
    Panel { title: "8 MiB requests, Gbit/s", value: bandwidth, text: number },
];

/// Returns the better of the bandwidths with one and with four requests at a time.
fn bandwidth(row: &Row) -> Option<f64> {
    [row.gbit_per_second_1, row.gbit_per_second_4].into_iter().flatten().reduce(f64::max)
}

pub(crate) fn draw(path: &Path, rows: &[Row], host: &Host) -> Result<(), Failure> {
    let height = HEAD_HEIGHT + CAPTION_HEIGHT + AXIS_HEIGHT + ROW_HEIGHT * rows.len() as u32;
    let width = NAMES_WIDTH + PANEL_WIDTH * PANELS.len() as u32;
    let root = SVGBackend::new(path, (width, height)).into_drawing_area();
    root.fill(&WHITE)?;
    draw_head(&root, host)?;
    let (_, body) = root.split_vertically(HEAD_HEIGHT);
    let (names, mut rest) = body.split_horizontally(NAMES_WIDTH);
    draw_names(&names, rows)?;
    for panel in &PANELS {
        let (area, right) = rest.split_horizontally(PANEL_WIDTH);
        draw_panel(&area, panel, rows)?;
        rest = right;
    }
    root.present()?;
    Ok(())
}

fn text(size: u32, color: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color).pos(Pos::new(horizontal, VPos::Center))
}

fn color(row: &Row) -> RGBColor {
    if row.peer == "petrel" { PETREL } else { OTHERS }
}

fn draw_head(root: &Area<'_>, host: &Host) -> Result<(), Failure> {
    let head = format!(
        "{}, {} CPUs ({}), Linux {}; filled: near cores, hollow: far",
        host.date, host.cpus, host.processor, host.kernel
    );
    root.draw(&Text::new(head, (8, HEAD_HEIGHT as i32 / 2), text(13, INK, HPos::Left)))?;
    Ok(())
}

/// Returns the vertical centre of a row, in an area.
fn middle(index: usize) -> i32 {
    (CAPTION_HEIGHT + ROW_HEIGHT * index as u32 + ROW_HEIGHT / 2) as i32
}

fn draw_names(area: &Area<'_>, rows: &[Row]) -> Result<(), Failure> {
    for (index, row) in rows.iter().enumerate() {
        let name = format!("{} ({}, {})", row.title, row.waits.name(), row.cores.name());
        let place = (NAMES_WIDTH as i32 - 8, middle(index));
        area.draw(&Text::new(name, place, text(13, color(row), HPos::Right)))?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel, rows: &[Row]) -> Result<(), Failure> {
    let title = (PANEL_WIDTH as i32 / 2, CAPTION_HEIGHT as i32 / 2);
    area.draw(&Text::new(panel.title, title, text(14, INK, HPos::Center)))?;
    let Some(scale) = Scale::of(rows.iter().filter_map(panel.value)) else { return Ok(()) };
    let bottom = (CAPTION_HEIGHT + ROW_HEIGHT * rows.len() as u32) as i32;
    for power in scale.powers.clone() {
        let value = 10f64.powi(power);
        let x = scale.place(value);
        area.draw(&PathElement::new([(x, CAPTION_HEIGHT as i32), (x, bottom)], GRID))?;
        let place = (x, bottom + AXIS_HEIGHT as i32 / 2);
        area.draw(&Text::new(label(value), place, text(12, INK, HPos::Center)))?;
    }
    for (index, row) in rows.iter().enumerate() {
        let Some(value) = (panel.value)(row) else { continue };
        let place = (scale.place(value), middle(index));
        let style = ShapeStyle {
            color: color(row).to_rgba(),
            filled: row.cores == Distance::Near,
            stroke_width: 2,
        };
        area.draw(&Circle::new(place, 5, style))?;
        let beside = (place.0 + 9, place.1);
        let words = (panel.text)(Some(value));
        area.draw(&Text::new(words, beside, text(12, color(row), HPos::Left)))?;
    }
    Ok(())
}

/// Returns the label of a grid line.
fn label(value: f64) -> String {
    if value >= 1e3 {
        count(Some(value)).replace(".00", "").replace(".0", "")
    } else {
        format!("{value}")
    }
}

/// A logarithmic scale over whole powers of ten.
struct Scale {
    powers: std::ops::RangeInclusive<i32>,
    pixels: Range<f64>,
}

impl Scale {
    /// Returns a scale with room for all values; `None` without values.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let least = values.clone().reduce(f64::min).filter(|least| *least > 0.0)?;
        let most = values.reduce(f64::max)?;
        let first = least.log10().floor() as i32;
        let last = (most.log10().ceil() as i32).max(first + 1);
        // Space on the right for the number beside the last dot.
        Some(Self { powers: first..=last, pixels: 14.0..f64::from(PANEL_WIDTH) - 54.0 })
    }

    fn place(&self, value: f64) -> i32 {
        let (first, last) = (f64::from(*self.powers.start()), f64::from(*self.powers.end()));
        let part = (value.log10() - first) / (last - first);
        (self.pixels.start + part * (self.pixels.end - self.pixels.start)).round() as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale__holds_all_values_between_powers_of_ten() {
        let scale = Scale::of([0.4, 70.0].into_iter()).unwrap();
        assert_eq!(scale.powers, -1..=2);
        assert_eq!(scale.place(0.1), 14);
        assert_eq!(scale.place(100.0), PANEL_WIDTH as i32 - 54);
        assert!(scale.place(1.0) < scale.place(2.0));
        assert!(Scale::of([].into_iter()).is_none());
    }
}
