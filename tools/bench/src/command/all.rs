//! All measurements of the table in PERFORMANCE.md, each with its required value. The duration of a row
//! is limited, so all rows take ten minutes at most.

use std::time::Duration;

use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;

use crate::instructions::{self, Workload};
use crate::measure::figure::{Figure, Quantity};
use crate::measure::measurement::Beside;
use crate::measure::measurement::{Measurement, SessionPlan};
use crate::measure::pairs::Pace;
use crate::measure::target::Requirement;
use crate::measure::test_bed::Cores;
use crate::sessions::Sessions;
use petrel_command::args::BenchTransport;

/// Number of rows that take `--duration` each, or up to twice as long with dropped windows. The
/// other rows take some seconds, and all instruction counts together half a minute.
const ROWS: u32 = 12;

/// Time limit for all rows together.
const TIME_MAX: Duration = Duration::from_secs(500);

pub(super) struct Row {
    pub(super) job: Job,
    /// `None` for a row that serves only for comparison.
    pub(super) requirement: Option<Requirement>,
}

/// The measurement of a row.
pub(super) enum Job {
    Pair(Measurement),
    Veth(Measurement),
    Sessions(Sessions),
    Memory(BenchTransport),
    Instructions(&'static Workload),
}

pub(super) fn rows(pace: Pace, session_count: usize) -> Vec<Row> {
    let duration = pace.duration.min(TIME_MAX / (2 * ROWS));
    let pace = Pace { duration, ..pace };
    let small = |quantity, transport, cores| Measurement {
        quantity,
        transport,
        cores: Cores::available(cores),
        size: 32,
        in_flight: if quantity == Quantity::Latency { 1 } else { 60 },
        batch: if quantity == Quantity::Latency { 1 } else { 3 },
        pace,
        plan: SessionPlan::DEFAULT,
        beside: Beside::Bare,
        connect: None,
    };
    let large = |transport| Measurement {
        size: MESSAGE_BYTES_DEFAULT as usize,
        in_flight: 1,
        batch: 1,
        ..small(Quantity::Bandwidth, transport, Cores::Two)
    };
    let sessions = |transport, hints| Sessions {
        calls: small(Quantity::Rate, transport, Cores::Two),
        count: session_count,
        hints,
        has_steps: false,
    };
    let row = |job, requirement| Row { job, requirement: Some(requirement) };
    use BenchTransport::{Shm, Udp};
    use Quantity::{Latency, Rate};
    let counted = [Shm, Udp].into_iter().flat_map(instructions::rows).map(|workload| Row {
        job: Job::Instructions(workload),
        requirement: workload.requirement(),
    });
    let measured = [
        row(Job::Pair(small(Rate, Shm, Cores::One)), Requirement::NsPerCallAtMost(45.0)),
        row(Job::Pair(small(Rate, Shm, Cores::Two)), Requirement::RatioAtLeast(0.16)),
        row(Job::Pair(small(Latency, Shm, Cores::Two)), Requirement::DifferenceAtMost(90.0)),
        row(Job::Pair(small(Rate, Udp, Cores::Two)), Requirement::RatioAtLeast(0.6)),
        row(Job::Veth(small(Rate, Udp, Cores::Two)), Requirement::ValueOrRatioAtLeast(3.0, 10.0)),
        row(Job::Pair(small(Latency, Udp, Cores::Two)), Requirement::RatioAtMost(1.1)),
        row(Job::Pair(large(Udp)), Requirement::RatioAtLeast(0.7)),
        row(Job::Pair(large(Shm)), Requirement::RatioAtLeast(0.6)),
        row(Job::Sessions(sessions(Udp, &[false])), Requirement::RatioAtLeast(0.35)),
        row(Job::Sessions(sessions(Udp, &[true])), Requirement::RatioAtLeast(0.5)),
        row(Job::Sessions(sessions(Shm, &[false])), Requirement::RatioAtLeast(0.35)),
        row(Job::Sessions(sessions(Shm, &[true])), Requirement::RatioAtLeast(0.5)),
        row(Job::Memory(Udp), Requirement::ValueAtMost(4.0)),
        row(Job::Memory(Shm), Requirement::ValueAtMost(4.0)),
    ];
    counted.chain(measured).collect()
}

impl Row {
    /// Adds the row's required value, if any, to a figure.
    pub(super) fn judge(&self, mut figure: Figure) -> Figure {
        figure.target = self.requirement.map(|requirement| requirement.judge(&figure));
        figure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows__take_ten_minutes_at_most() {
        let pace = Pace {
            duration: Duration::from_secs(3_600),
            window: Duration::from_millis(300),
            is_realtime: false,
        };
        let durations = rows(pace, 20_000).into_iter().filter_map(|row| match row.job {
            Job::Pair(measurement) | Job::Veth(measurement) => Some(measurement.pace.duration),
            Job::Sessions(sessions) => Some(sessions.calls.pace.duration),
            Job::Memory(_) | Job::Instructions(_) => None,
        });
        let durations: Vec<Duration> = durations.collect();
        assert_eq!(durations.len(), ROWS as usize);
        assert!(2 * durations.iter().sum::<Duration>() <= TIME_MAX);
    }
}
