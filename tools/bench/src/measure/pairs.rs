//! Two sides in alternating windows, and the evaluation of the pairs of windows.
//!
//! The order is A B A B: a disturbance of a second slows both sides. Every pair yields a ratio; the
//! median of the ratios is the result, so a few disturbed pairs do not count. Before, between and after
//! the windows of a pair the CPUs' distance is probed: a pair with a changed distance is dropped.

use std::thread;
use std::time::Duration;

use petrel_command::failure::Failure;
use petrel_command::interrupt;
use petrel_command::units::exact_duration;

use super::ends::Side;
use super::probe::{Distance, Probe, ProbeResult};
use super::window::Window;

/// Longest warm-up of a side: caches, tables and clocks have settled by then.
const WARM_UP_MAX: Duration = Duration::from_millis(200);

/// Fewest pairs from which a median is taken.
const PAIRS_MIN: u32 = 3;

/// If pairs are dropped, more are made, up to this multiple of the requested number.
const EXTENSION_MAX: u32 = 2;

/// The length and number of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Length of every window.
    pub window: Duration,
    /// Requested pairs of windows.
    pub pairs: u32,
    /// Pause after every pair, for other threads.
    pub rest: Duration,
}

/// The duration of a measurement, and its windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Duration of all windows together.
    pub duration: Duration,
    /// Longest window.
    pub window: Duration,
    /// Whether both threads have real-time priority in windows.
    pub is_realtime: bool,
}

impl Pace {
    /// Returns the flags that set this pace.
    pub fn flags(&self) -> String {
        let realtime = if self.is_realtime { " --realtime" } else { "" };
        let [duration, window] = [self.duration, self.window].map(exact_duration);
        format!(" --duration {duration} --window {window}{realtime}")
    }
}

impl Schedule {
    /// Plans windows of at most the pace's length, and the number of pairs that fit into the duration,
    /// but at least three.
    pub fn new(pace: Pace) -> Self {
        let Pace { duration: total, window, is_realtime } = pace;
        let window = window.min(total / (2 * PAIRS_MIN)).max(Duration::from_millis(1));
        let fitting = total.as_nanos() / (2 * window.as_nanos());
        let pairs = u32::try_from(fitting).unwrap_or(u32::MAX).max(PAIRS_MIN);
        // The rest is for other threads, which the real-time priority kept waiting.
        let rest = if is_realtime { window / 5 } else { Duration::ZERO };
        Self { window, pairs, rest }
    }
}

/// The windows of one pair. Without a baseline there is no second window.
pub struct Pair {
    pub library: Window,
    pub baseline: Option<Window>,
    /// Distance of the CPUs; `None` if the ends share a CPU or without a probe.
    pub distance: Option<Distance>,
    /// Time of a cache line's round trip between the CPUs.
    pub line_ns: Option<u64>,
}

/// All windows of a measurement.
#[derive(Default)]
pub struct Pairs {
    pub kept: Vec<Pair>,
    pub dropped: Vec<Pair>,
}

/// Runs the windows. `watch` gets the number of finished pairs.
pub fn alternate(
    schedule: Schedule,
    library: &mut dyn Side,
    mut baseline: Option<&mut (dyn Side + '_)>,
    probe: Option<&Probe>,
    mut watch: impl FnMut(u32),
) -> Result<Pairs, Failure> {
    let warm_up = schedule.window.min(WARM_UP_MAX);
    let first = library.window(warm_up)?;
    if let Some(baseline) = &mut baseline {
        baseline.window(warm_up)?;
    }
    let mut pairs = Pairs::default();
    if !is_valid(&first) {
        // The failure is known already; more windows would only repeat it.
        pairs.kept.push(Pair { library: first, baseline: None, distance: None, line_ns: None });
        return Ok(pairs);
    }
    let probe = || probe.map(Probe::run).transpose();
    let mut before = probe()?;
    for done in 1..=schedule.pairs.saturating_mul(EXTENSION_MAX) {
        let library = library.window(schedule.window)?;
        let between = probe()?;
        let baseline =
            baseline.as_mut().map(|baseline| baseline.window(schedule.window)).transpose()?;
        let after = probe()?;
        let has_defects = !is_valid(&library);
        let probes = [before, between, after].map(|probe| probe.map(|result| result.distance));
        let (distance, line_ns) =
            (probes[1], between.and_then(|result: ProbeResult| result.round_trip_ns));
        pairs.add(Pair { library, baseline, distance, line_ns }, is_steady(probes));
        before = after;
        watch(done.min(schedule.pairs));
        thread::sleep(schedule.rest);
        if has_defects || pairs.kept.len() as u32 >= schedule.pairs || interrupt::is_noted() {
            break;
        }
    }
    pairs.fall_back();
    Ok(pairs)
}

fn is_valid(window: &Window) -> bool {
    window.mismatched == 0 && window.failures.is_empty()
}

/// Returns true if all three probes found the same, known distance.
fn is_steady(probes: [Option<Distance>; 3]) -> bool {
    probes.iter().all(|probe| *probe == probes[0] && *probe != Some(Distance::Unknown))
}

impl Pairs {
    fn add(&mut self, pair: Pair, is_steady: bool) {
        let list = if is_steady { &mut self.kept } else { &mut self.dropped };
        list.push(pair);
    }

    /// Keeps all pairs, with an unknown distance, if the distance changed in each: better than no figure.
    fn fall_back(&mut self) {
        if self.kept.is_empty() {
            self.kept = std::mem::take(&mut self.dropped);
            self.kept.iter_mut().for_each(|pair| pair.distance = Some(Distance::Unknown));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Option<Distance> = Some(Distance::Near);
    const FAR: Option<Distance> = Some(Distance::Far);
    const UNKNOWN: Option<Distance> = Some(Distance::Unknown);

    fn schedule(total_ms: u64, window_ms: u64) -> Schedule {
        let [duration, window] = [total_ms, window_ms].map(Duration::from_millis);
        Schedule::new(Pace { duration, window, is_realtime: false })
    }

    #[test]
    fn schedule__fits_the_windows_into_the_time() {
        let of = |window_ms, pairs| Schedule {
            window: Duration::from_millis(window_ms),
            pairs,
            rest: Duration::ZERO,
        };
        assert_eq!(schedule(6_000, 300), of(300, 10));
        assert_eq!(schedule(600, 300), of(100, 3));
        assert_eq!(schedule(60, 5), of(5, 6));
        assert_eq!(schedule(0, 0), of(1, 3));
    }

    #[test]
    fn is_steady__only_where_all_probes_agree() {
        for steady in [[NEAR; 3], [FAR; 3], [None; 3]] {
            assert!(is_steady(steady));
        }
        for unsteady in [[NEAR, FAR, FAR], [NEAR, FAR, NEAR], [NEAR, NEAR, UNKNOWN], [UNKNOWN; 3]] {
            assert!(!is_steady(unsteady));
        }
    }

    #[test]
    fn fall_back__keeps_what_there_is_when_nothing_was_steady() {
        let pair =
            || Pair { library: Window::new(None), baseline: None, distance: NEAR, line_ns: None };
        let mut pairs = Pairs::default();
        pairs.add(pair(), false);
        pairs.fall_back();
        assert_eq!((pairs.kept.len(), pairs.dropped.len()), (1, 0));
        assert_eq!(pairs.kept[0].distance, UNKNOWN);
        pairs.add(pair(), false);
        pairs.fall_back();
        assert_eq!((pairs.kept.len(), pairs.dropped.len()), (1, 1));
    }

    /// Answers one call per window; the answer of window number `wrong` is wrong.
    struct Script {
        windows: u32,
        wrong: u32,
    }

    impl Side for Script {
        fn window(&mut self, _: Duration) -> Result<Window, Failure> {
            self.windows += 1;
            let mut window = Window::new(None);
            window.checked = 1;
            window.mismatched = u64::from(self.windows == self.wrong);
            Ok(window)
        }
    }

    #[test]
    fn alternate__makes_the_requested_number_of_pairs() {
        let (mut library, mut baseline) =
            (Script { windows: 0, wrong: 0 }, Script { windows: 0, wrong: 0 });
        let pairs =
            alternate(schedule(60, 5), &mut library, Some(&mut baseline), None, |_| ()).unwrap();
        assert_eq!((pairs.kept.len(), pairs.dropped.len()), (6, 0));
        assert_eq!((library.windows, baseline.windows), (7, 7), "and a warm-up each");
    }

    #[test]
    fn alternate__ends_with_the_first_wrong_answer() {
        for wrong in [1, 3] {
            let mut library = Script { windows: 0, wrong };
            let pairs = alternate(schedule(60, 5), &mut library, None, None, |_| ()).unwrap();
            assert_eq!(library.windows, wrong);
            assert_eq!(pairs.kept.iter().map(|pair| pair.library.mismatched).sum::<u64>(), 1);
        }
    }
}
