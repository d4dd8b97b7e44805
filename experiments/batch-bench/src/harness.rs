//! Rounds of all forms, the check of their results, and the table.

use std::fmt;
use std::time::Duration;

use comfy_table::Table;

/// The groups of each form.
pub(crate) const WIDTHS: [usize; 9] = [1, 2, 4, 8, 16, 24, 32, 48, 64];

/// Calls `$forms::<WIDTH>(arguments)` for each group.
macro_rules! for_each_width {
    ($forms:ident ( $($argument:expr),* )) => {
        [
            $forms::<1>($($argument),*), $forms::<2>($($argument),*), $forms::<4>($($argument),*),
            $forms::<8>($($argument),*), $forms::<16>($($argument),*), $forms::<24>($($argument),*),
            $forms::<32>($($argument),*), $forms::<48>($($argument),*), $forms::<64>($($argument),*),
        ]
    };
}

pub(crate) use for_each_width;

/// How long to measure.
pub struct Pace {
    /// Rounds of all forms.
    pub rounds: usize,
    /// Divides the sizes of all structures.
    pub smaller: usize,
}

/// The sum of the results of some inputs, by one form of a lookup.
pub(crate) type Run<'a, I> = Box<dyn Fn(&[I]) -> u64 + 'a>;

/// Returns a form with an addition for every input.
pub(crate) fn summed<'a, I>(run: impl Fn(&[I], &mut u64) + 'a) -> Run<'a, I> {
    Box::new(move |inputs| {
        let mut sum = 0;
        run(inputs, &mut sum);
        sum
    })
}

/// The forms with one group.
pub(crate) struct Forms<'a, I> {
    pub(crate) batched: Run<'a, I>,
    pub(crate) by_hand: Option<Run<'a, I>>,
    pub(crate) futures: Run<'a, I>,
}

/// A lookup with all its forms.
pub(crate) struct Measured<'a, I> {
    pub(crate) title: String,
    /// More than the last-level cache holds the lines of.
    pub(crate) inputs: Vec<I>,
    /// The inputs that a form gets in a round.
    pub(crate) inputs_per_round: usize,
    /// The right result, by other means than the lookup.
    pub(crate) answer: Run<'a, I>,
    pub(crate) naive: Run<'a, I>,
    pub(crate) forms: [Forms<'a, I>; WIDTHS.len()],
}

/// The nanoseconds per input of one form, round by round.
type Times = Vec<f64>;

/// The times of all forms, as a table for human readers.
pub struct Report {
    title: String,
    naive: Times,
    /// By group: batched, by hand, futures.
    groups: Vec<[Option<Times>; 3]>,
}

impl<I: Copy> Measured<'_, I> {
    /// Measures all forms.
    ///
    /// # Panics
    /// If a form's results are wrong.
    pub(crate) fn run(self, pace: &Pace) -> Report {
        let Self { title, inputs, inputs_per_round, answer, naive, forms } = self;
        let mut windows =
            Windows { inputs: &inputs, size: (inputs_per_round / pace.smaller).max(64), next: 0 };
        let mut time = |form: &Run<'_, I>| {
            let inputs = windows.next();
            let begin = time_on_cpu();
            let sum = form(inputs);
            let taken = time_on_cpu() - begin;
            assert_eq!(sum, answer(inputs), "{title}: wrong results");
            taken.as_nanos() as f64 / inputs.len() as f64
        };
        let mut report = Report {
            title: title.clone(),
            naive: Times::new(),
            groups: forms
                .iter()
                .map(|forms| {
                    [
                        Some(Times::new()),
                        forms.by_hand.as_ref().map(|_| Times::new()),
                        Some(Times::new()),
                    ]
                })
                .collect(),
        };
        for round in 0..pace.rounds {
            report.naive.push(time(&naive));
            let mut turn: Vec<_> = forms
                .iter()
                .zip(&mut report.groups)
                .flat_map(|(forms, times)| {
                    let list = [Some(&forms.batched), forms.by_hand.as_ref(), Some(&forms.futures)];
                    list.into_iter().zip(times)
                })
                .collect();
            // No form always runs before another.
            if round % 2 == 1 {
                turn.reverse();
            }
            for (form, times) in turn {
                if let (Some(form), Some(times)) = (form, times) {
                    times.push(time(form));
                }
            }
        }
        report
    }
}

/// The CPU time of the thread. Unlike the time of day, the CPU time leaves out further programs of the machine.
fn time_on_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Inputs that go round in a circle.
struct Windows<'a, I> {
    inputs: &'a [I],
    size: usize,
    next: usize,
}

impl<'a, I> Windows<'a, I> {
    fn next(&mut self) -> &'a [I] {
        if self.next + self.size > self.inputs.len() {
            self.next = 0;
        }
        let window = &self.inputs[self.next..self.next + self.size];
        self.next += self.size;
        window
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median of the ratios of two forms in the same rounds.
fn ratio(slow: &Times, fast: &Times) -> f64 {
    median(slow.iter().zip(fast).map(|(slow, fast)| slow / fast).collect())
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.set_header([
            "group",
            "batched ns",
            "over naive",
            "over by hand",
            "by hand ns",
            "over naive",
            "futures ns",
            "over naive",
        ]);
        for (width, [batched, by_hand, futures]) in WIDTHS.iter().zip(&self.groups) {
            let time = |times: &Option<Times>| {
                times
                    .as_ref()
                    .map_or(String::new(), |times| format!("{:.1}", median(times.clone())))
            };
            let over = |slow: Option<&Times>, fast: &Option<Times>| match (slow, fast) {
                (Some(slow), Some(fast)) => format!("{:.2}", ratio(slow, fast)),
                _ => String::new(),
            };
            let naive = Some(&self.naive);
            table.add_row([
                width.to_string(),
                time(batched),
                over(naive, batched),
                over(by_hand.as_ref(), batched),
                time(by_hand),
                over(naive, by_hand),
                time(futures),
                over(naive, futures),
            ]);
        }
        writeln!(
            formatter,
            "{}: naive {:.1} ns per input, {} rounds",
            self.title,
            median(self.naive.clone()),
            self.naive.len()
        )?;
        write!(formatter, "{table}")
    }
}
