//! The outcomes of a run's calls, compared with the server's log.

use std::collections::HashMap;
use std::time::Duration;

use petrel::Execution;

use super::{Ended, Executed, Outage, Plan, TIMEOUT, Way};

/// The result of a plan.
pub(crate) struct Report {
    plan: Plan,
    calls: usize,
    /// The number of failed calls for each reason.
    failures: HashMap<String, usize>,
    /// Calls executed more than once.
    twice: usize,
    /// Calls executed more or less often than reported to their callers.
    untrue: usize,
    /// Executions that began after the caller's deadline, and the latest.
    late: usize,
    latest: Duration,
    /// Calls answered during a complete cut.
    through: usize,
    outages: Vec<Duration>,
    /// Sorted: how much longer calls took than the outage they met.
    beyond: Vec<Duration>,
    /// Sorted: how long calls took that met no outage, nor its consequences.
    apart: Vec<Duration>,
}

/// The time before and after an outage in which calls count as calls that meet it: later ones wait for the machine, not for
/// the server.
const NEAR: Duration = Duration::from_millis(100);

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        heard: &HashMap<u64, Ended>,
        executions: &Executed,
        outages: &[Outage],
    ) -> Self {
        let (mut failures, mut beyond, mut apart) = (HashMap::new(), Vec::new(), Vec::new());
        let (mut twice, mut untrue, mut through) = (0, 0, 0);
        let (mut late, mut latest) = (0, Duration::ZERO);
        for (number, ended) in heard {
            let times = executions.get(number).map_or(&[][..], Vec::as_slice);
            let count = times.len();
            for at_ns in times.iter().filter(|at_ns| **at_ns > ended.deadline_ns) {
                late += 1;
                latest = latest.max(Duration::from_nanos(at_ns - ended.deadline_ns));
            }
            twice += usize::from(count > 1);
            let is_true = match &ended.failure {
                None | Some((Execution::Answered, _)) => count >= 1,
                Some((Execution::NotSent | Execution::Refused, _)) => count == 0,
                Some(_) => true,
            };
            untrue += usize::from(!is_true);
            through += usize::from(ended.failure.is_none() && is_within_cut(ended, outages));
            match &ended.failure {
                None => beyond.push(beyond_outages(ended, outages)),
                Some((_, why)) => *failures.entry(why.clone()).or_insert(0) += 1,
            }
            if ended.failure.is_none() && outages.iter().all(|outage| is_apart(ended, outage)) {
                apart.push(ended.end - ended.begin);
            }
        }
        beyond.sort_unstable();
        apart.sort_unstable();
        let outages = outages.iter().map(|outage| outage.end - outage.begin).collect();
        let (plan, calls) = (plan.clone(), heard.len());
        Self { plan, calls, failures, twice, untrue, late, latest, through, outages, beyond, apart }
    }

    /// Returns true if all calls kept the rules of the plan.
    pub(crate) fn is_right(&self) -> bool {
        let is_idempotent = self.plan.is_idempotent;
        let is_drained = matches!(self.plan.way, Way::Drain | Way::Replace);
        // A short time limit may end within an outage.
        let is_patient = self.plan.timeout >= TIMEOUT;
        let no_call_may_fail = is_patient && (is_idempotent || is_drained);
        let once = is_idempotent || self.twice == 0;
        once && self.untrue + self.through == 0 && (self.failures.is_empty() || !no_call_may_fail)
    }
}

/// Returns the text for sorted durations.
fn quantiles(sorted: &[Duration]) -> String {
    let last = sorted.len().saturating_sub(1) as f64;
    let [half, most, nearly_all] = [0.5, 0.99, 0.999]
        .map(|share| sorted.get((last * share) as usize).copied().unwrap_or_default());
    format!("p50 {half:.1?}, p99 {most:.1?}, p99.9 {nearly_all:.1?}")
}

/// Returns true if a call began and ended far from an outage.
fn is_apart(ended: &Ended, outage: &Outage) -> bool {
    ended.end + NEAR < outage.begin || outage.end + NEAR < ended.begin
}

/// Returns how long a call took beyond the time without a server.
fn beyond_outages(ended: &Ended, outages: &[Outage]) -> Duration {
    let without = |outage: &Outage| {
        let begin = ended.begin.max(outage.begin);
        ended.end.min(outage.end).saturating_duration_since(begin)
    };
    (ended.end - ended.begin).saturating_sub(outages.iter().map(without).sum())
}

/// Returns true if a call began and ended within a cut.
fn is_within_cut(ended: &Ended, outages: &[Outage]) -> bool {
    let mut cuts = outages.iter().filter_map(|outage| outage.cut_off);
    cuts.any(|[begin, end]| begin <= ended.begin && ended.end <= end)
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plan { way, transport, rate, rounds, is_idempotent, .. } = &self.plan;
        let kind = if *is_idempotent { "idempotent" } else { "not idempotent" };
        let way = match way {
            Way::Cut(cut) => format!("{cut:?}"),
            way => format!("{way:?}"),
        };
        writeln!(f, "{way}, {rounds} times, over {transport}: {rate} calls a second, {kind}")?;
        let longest = self.outages.iter().max().copied().unwrap_or_default();
        writeln!(f, "  longest time without a server: {longest:.1?}")?;
        writeln!(f, "  calls: {}, failed: {}", self.calls, self.failures.values().sum::<usize>())?;
        for (why, count) in &self.failures {
            writeln!(f, "    {count}: {why}")?;
        }
        writeln!(f, "  executed more than once: {}", self.twice)?;
        writeln!(f, "  executed otherwise than the caller was told: {}", self.untrue)?;
        let (late, latest) = (self.late, self.latest);
        writeln!(f, "  begun after the caller's deadline: {late}, the latest {latest:.1?} after")?;
        if let Way::Cut(_) = self.plan.way {
            writeln!(f, "  answered through a network that was cut: {}", self.through)?;
        }
        writeln!(f, "  beyond that time: {}", quantiles(&self.beyond))?;
        write!(f, "  calls more than {NEAR:?} from an outage: {}", quantiles(&self.apart))
    }
}
