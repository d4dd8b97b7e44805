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
    /// If given, no time is measured: the form runs for a program that counts its instructions.
    pub counted: Option<Counted>,
}

/// A form that runs to be counted. The difference of two counts with different `parts` is that of the lookups alone.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// The form.
    pub form: Form,
    /// The parts of the inputs that are looked up, of [`PARTS`].
    pub parts: usize,
}

/// The parts of the inputs that can be counted.
pub const PARTS: usize = 4;

/// A form whose time and instructions are compared; groups have [`COUNTED_WIDTH`] inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// One input after another
    Naive,
    /// Batches that `#[batched]` wrote
    Batched,
    /// Groups with prefetches by hand
    ByHand,
}

/// The group of [`Form`].
pub const COUNTED_WIDTH: usize = 32;

fn counted_width() -> usize {
    let index = WIDTHS.iter().position(|width| *width == COUNTED_WIDTH);
    index.expect("the group is one of those measured")
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
    /// The inputs of which a count runs its parts.
    inputs: usize,
    naive: Times,
    /// By group: batched, by hand, futures.
    groups: Vec<[Option<Times>; 3]>,
}

impl Report {
    /// The kind and the size of the structure.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Inputs that a count of some parts looks up.
    pub fn counted_inputs(&self, parts: usize) -> usize {
        self.inputs / PARTS * parts
    }

    /// Nanoseconds per input, the median of the rounds; `None` if the lookup lacks the form.
    pub fn time_ns(&self, form: Form) -> Option<f64> {
        let [batched, by_hand, _] = &self.groups[counted_width()];
        let times = match form {
            Form::Naive => Some(&self.naive),
            Form::Batched => batched.as_ref(),
            Form::ByHand => by_hand.as_ref(),
        };
        times.filter(|times| !times.is_empty()).map(|times| median(times.clone()))
    }
}

impl<I: Copy> Measured<'_, I> {
    /// Measures all forms.
    ///
    /// # Panics
    /// If a form's results are wrong.
    pub(crate) fn run(self, pace: &Pace) -> Report {
        if let Some(counted) = pace.counted {
            return self.run_counted(counted);
        }
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
            inputs: inputs.len(),
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

impl<I: Copy> Measured<'_, I> {
    /// Runs a form. The answers of all inputs are computed, whatever the parts, so that they are in no difference of two counts.
    fn run_counted(self, counted: Counted) -> Report {
        let part = self.inputs.len() / PARTS;
        let answers: Vec<u64> =
            self.inputs.chunks_exact(part).map(|inputs| (self.answer)(inputs)).collect();
        let forms = &self.forms[counted_width()];
        let form = match counted.form {
            Form::Naive => Some(&self.naive),
            Form::Batched => Some(&forms.batched),
            Form::ByHand => forms.by_hand.as_ref(),
        };
        let inputs = self.inputs.chunks_exact(part).take(counted.parts);
        if let Some(form) = form {
            let sums: Vec<u64> = inputs.map(form).collect();
            assert_eq!(sums[..], answers[..counted.parts], "{}: wrong results", self.title);
        }
        let inputs = self.inputs.len();
        Report { title: self.title, inputs, naive: Times::new(), groups: Vec::new() }
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
