//! Unobtrusive progress bars.
//!
//! A bar that flashes up briefly is noise, and a bar in a log file is worse. So a bar draws nothing
//! until its work has lasted `SHOW_AFTER`, and nothing at all if programs read the output. Dropping a
//! bar clears it.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter work shows no bar: users begin to wonder after about a second; half a second leaves the bar
/// time to be read.
const SHOW_AFTER: Duration = Duration::from_millis(500);

/// A progress bar on standard error, or nothing.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    waits_to_show: bool,
}

impl Progress {
    /// Creates a bar over `total` steps. With `wanted` false the bar never draws.
    pub(super) fn new(is_enabled: bool, total: u64, title: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        bar.set_style(style());
        bar.set_message(title.to_owned());
        Self { bar, started: Instant::now(), waits_to_show: is_enabled }
    }

    /// Sets the number of finished steps. Reads the clock: call the function per batch of work, not per
    /// step.
    pub fn set(&mut self, done: u64) {
        if self.waits_to_show && self.started.elapsed() >= SHOW_AFTER {
            self.waits_to_show = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {eta}")
        .expect("the template is valid")
}
