//! The library's events on standard error: `--log`.

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

/// Which events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventLevel {
    /// Refusals, sessions that ended for want of their peer, links that could not be had
    Warn,
    /// Ends of links and connections, and why shared memory is not used, too
    Info,
    /// Each session, link, failed call and retry, too
    Debug,
}

/// Has the events of this process written from now on.
pub(crate) fn start(level: Option<EventLevel>) {
    let Some(level) = level else { return };
    let level = match level {
        EventLevel::Warn => LevelFilter::WARN,
        EventLevel::Info => LevelFilter::INFO,
        EventLevel::Debug => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}
