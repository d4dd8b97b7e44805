//! The library's events on standard error: `--log`.

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

/// The events to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventLevel {
    /// Failures that keep a server from working
    Error,
    /// Also refusals, sessions that ended because their peer was lost, links that could not be opened
    Warn,
    /// Also ends of links and connections, and the reason why shared memory is not used
    Info,
    /// Also every session, link, failed call and retry
    Debug,
}

/// Starts to write the events of this process.
pub(crate) fn start(level: Option<EventLevel>) {
    let Some(level) = level else { return };
    let level = match level {
        EventLevel::Error => LevelFilter::ERROR,
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
