//! Figures for human readers, and as JSON.
//!
//! | module | concern |
//! | --- | --- |
//! | [`table`] | figures of measurements as a table, with the lines below it |
//! | `figures` | the figures of a command: JSON at once, the table at the end |

#[cfg(feature = "full")]
pub mod figures;
pub mod table;

use petrel_command::output::Output;
use petrel_command::output::progress::Progress;

/// A progress bar over pairs of windows; hidden until the first pair is done.
pub fn progress_bar(output: Output, title: &str) -> impl FnMut(u32, u32) + Send + use<> {
    let title = format!("{title} (windows)");
    let mut progress: Option<Progress> = None;
    move |done, total| {
        progress.get_or_insert_with(|| output.progress(total.into(), &title)).set(done.into());
    }
}
