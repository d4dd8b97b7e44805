//! The figures of a command: each is printed as JSON as soon as available, and the table at the end.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::interrupt;
use petrel_command::output::Output;
use petrel_command::units::format_bytes;
use serde::Serialize;

use super::progress_bar;
use super::table::{footer, table};
use crate::measure::figure::{self, Figure};
use crate::measure::measurement::Measurement;

/// The reason for a skipped measurement, as `--json` prints it.
#[derive(Serialize)]
pub(crate) struct Skipped<'a> {
    pub(crate) bench: &'a str,
    pub(crate) transport: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<&'a str>,
    pub(crate) size_bytes: usize,
    pub(crate) skipped: &'a str,
    pub(crate) command: String,
}

/// The figures so far.
pub struct Figures {
    output: Output,
    figures: Vec<Figure>,
    skipped: Vec<String>,
    /// Whether a measurement was left out after Ctrl-C.
    is_cut: bool,
}

impl Figures {
    /// Creates a report without figures.
    pub fn new(output: Output) -> Self {
        Self { output, figures: Vec::new(), skipped: Vec::new(), is_cut: false }
    }

    /// Returns the figures so far.
    pub fn all(&self) -> &[Figure] {
        &self.figures
    }

    /// Returns true after Ctrl-C, if there are figures to show: no further measurement begins. The first measurement has a
    /// pair of windows in any case.
    pub fn is_interrupted(&mut self) -> bool {
        self.is_cut |= interrupt::is_noted() && !self.figures.is_empty();
        self.is_cut
    }

    /// Returns a progress bar over pairs of windows.
    pub fn progress_bar(&self, title: &str) -> impl FnMut(u32, u32) + Send + use<> {
        progress_bar(self.output, title)
    }

    /// Adds a figure, and prints it as JSON.
    pub fn add(&mut self, figure: Figure) -> Result<(), Failure> {
        self.output.record(&figure)?;
        self.figures.push(figure);
        Ok(())
    }

    /// Runs a measurement, and adds the figure that `judge` returns.
    pub fn measure(
        &mut self,
        measurement: &Measurement,
        judge: impl Fn(Figure) -> Figure,
    ) -> Result<(), Failure> {
        if self.is_interrupted() {
            return Ok(());
        }
        let figure = measurement.run(self.progress_bar(&measurement.title()))?;
        self.add(judge(figure))
    }

    /// Adds the reason why a measurement is missing.
    pub(crate) fn skip(&mut self, skipped: &Skipped<'_>) -> Result<(), Failure> {
        self.output.record(skipped)?;
        let Skipped { bench, transport, network, size_bytes, skipped: reason, .. } = skipped;
        let (over, size) = (network.unwrap_or(transport), format_bytes(*size_bytes as u64));
        self.skipped.push(format!("skipped: {bench} over {over}, {size}: {reason}"));
        Ok(())
    }

    /// Prints the table and the footer.
    pub fn show(self) -> Result<Outcome, Failure> {
        let Self { output, figures, skipped, is_cut } = self;
        if !figures.is_empty() {
            output.line(table(&figures, output))?;
        }
        skipped.iter().try_for_each(|line| output.line(line))?;
        if is_cut {
            output.line("Interrupted: the further measurements were left out.")?;
        }
        if !figures.is_empty() {
            output.line(footer(&figures))?;
        }
        Ok(figure::outcome(&figures))
    }
}
