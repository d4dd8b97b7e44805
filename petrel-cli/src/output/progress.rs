//! Progress bars that stay out of the way.
//!
//! A bar that flashes up for a blink is noise, and a bar in a log file is worse. So a bar draws
//! nothing until its work has lasted [`SHOW_AFTER`], and nothing at all where the output is for
//! programs. It clears itself when it is dropped.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work shorter than this shows no bar: a person begins to wonder after about a second, and half of
/// that leaves the bar time to be read.
const SHOW_AFTER: Duration = Duration::from_millis(500);

/// A progress bar on standard error, or nothing.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    waits_to_show: bool,
}

impl Progress {
    /// A bar over `total` steps. With `wanted` false it never draws.
    pub(super) fn new(wanted: bool, total: u64, title: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        bar.set_style(style());
        bar.set_message(title.to_owned());
        Self { bar, started: Instant::now(), waits_to_show: wanted }
    }

    /// Sets how many steps are done. Reads the clock: call it per batch of work, not per step.
    pub(crate) fn set(&mut self, done: u64) {
        if self.waits_to_show && self.started.elapsed() >= SHOW_AFTER {
            self.waits_to_show = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done);
    }

    /// Steps done so far.
    #[cfg(test)]
    fn done(&self) -> u64 {
        self.bar.position()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    // The template is a constant; were it broken, the default look would do.
    ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set__unwanted_bar_counts_but_never_draws() {
        let mut progress = Progress::new(false, 10, "calls");
        progress.set(7);
        assert_eq!(progress.done(), 7);
        assert!(progress.bar.is_hidden());
    }

    #[test]
    fn style__template_is_valid() {
        assert!(
            ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {eta}").is_ok()
        );
    }
}
