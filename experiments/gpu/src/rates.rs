//! Rates of look-ups: by threads on CPUs of their own, and by the GPU with all that it takes to reach it.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use petrel_batch_bench::served::{Service, Workload};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Failure;
use crate::device::{Device, Kernel, Lane, Table};

/// Keys between two checks of the results on a CPU.
const CHECKED: usize = 8_192;
/// Windows of which a rate is the median.
const WINDOWS: usize = 5;

/// How a core looks up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain,
    Batched,
}

/// The keys of a workload with the sums of their right answers.
pub struct Checked<'a, S: Service> {
    pub workload: &'a Workload<S>,
    /// The sum of the answers before each key.
    sums: Vec<u64>,
}

impl<'a, S: Service + Sync> Checked<'a, S> {
    pub fn new(workload: &'a Workload<S>) -> Self {
        let mut sums = vec![0];
        sums.extend(workload.answers.iter().scan(0, |sum, answer| {
            *sum += u64::from(*answer);
            Some(*sum)
        }));
        Self { workload, sums }
    }

    /// # Panics
    /// If the sum of a range's answers is wrong.
    fn check(&self, range: std::ops::Range<usize>, sum: u64) {
        let right = self.sums[range.end] - self.sums[range.start];
        assert_eq!(sum, right, "{}: wrong results", self.workload.title);
    }

    /// The range of the next keys, which go round in a circle.
    fn next(&self, start: &mut usize, count: usize) -> std::ops::Range<usize> {
        if *start + count > self.workload.keys.len() {
            *start = 0;
        }
        let range = *start..*start + count;
        *start = range.end;
        range
    }

    /// Returns the keys per second of `cores` threads.
    pub fn on_cores(&self, cores: usize, form: Form, duration: Duration) -> f64 {
        median((0..WINDOWS).map(|_| self.window_on_cores(cores, form, duration)).collect())
    }

    fn window_on_cores(&self, cores: usize, form: Form, duration: Duration) -> f64 {
        let barrier = Barrier::new(cores);
        let run = |core: usize| {
            pin(core);
            let mut start = self.workload.keys.len() / cores * core;
            barrier.wait();
            let (begin, mut done) = (Instant::now(), 0);
            while begin.elapsed() < duration {
                let range = self.next(&mut start, CHECKED.min(self.workload.keys.len()));
                done += range.len();
                self.look_up(range, form);
            }
            done as f64 / begin.elapsed().as_secs_f64()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..cores).map(|core| scope.spawn(move || run(core))).collect();
            threads.into_iter().map(|thread| thread.join().expect("right results")).sum()
        })
    }

    fn look_up(&self, range: std::ops::Range<usize>, form: Form) {
        let (keys, service) = (&self.workload.keys[range.clone()], &self.workload.service);
        let mut sum = 0;
        match form {
            Form::Plain => keys.iter().for_each(|key| sum += u64::from(service.find(*key))),
            Form::Batched => {
                service.find_batch(keys.iter().copied(), |_, found| sum += u64::from(found));
            }
        }
        self.check(range, sum);
    }

    /// Returns the keys per second of a GPU with `lanes` batches in flight. One thread fills the batches and reads the results.
    pub fn on_gpu(
        &self,
        offload: &Offload<'_>,
        lanes: usize,
        batch: usize,
        duration: Duration,
    ) -> Result<f64, Failure> {
        let rates: Result<_, _> =
            (0..WINDOWS).map(|_| self.window_on_gpu(offload, lanes, batch, duration)).collect();
        Ok(median(rates?))
    }

    fn window_on_gpu(
        &self,
        offload: &Offload<'_>,
        lanes: usize,
        batch: usize,
        duration: Duration,
    ) -> Result<f64, Failure> {
        let mut lanes = (0..lanes)
            .map(|_| Ok((offload.device.lane(batch)?, None)))
            .collect::<Result<Vec<(Lane<'_, S::Key>, Option<std::ops::Range<usize>>)>, Failure>>(
            )?;
        let (mut start, mut done) = (0, 0);
        let begin = Instant::now();
        while begin.elapsed() < duration {
            for (lane, range) in &mut lanes {
                done += self.finish(lane, range)?;
                let next = self.next(&mut start, batch);
                lane.start(&self.workload.keys[next.clone()], offload.kernel, &offload.table)?;
                *range = Some(next);
            }
        }
        for (lane, range) in &mut lanes {
            done += self.finish(lane, range)?;
        }
        Ok(done as f64 / begin.elapsed().as_secs_f64())
    }

    /// Waits for a lane's batch. Returns the number of its keys.
    fn finish(
        &self,
        lane: &mut Lane<'_, S::Key>,
        range: &mut Option<std::ops::Range<usize>>,
    ) -> Result<usize, Failure> {
        let Some(range) = range.take() else { return Ok(0) };
        lane.wait()?;
        let count = range.len();
        self.check(range, lane.results().iter().map(|result| u64::from(*result)).sum());
        lane.spoil();
        Ok(count)
    }

    /// Returns the median time of a round with a single batch in flight: from keys to results in the host's memory.
    pub fn round(
        &self,
        offload: &Offload<'_>,
        batch: usize,
        rounds: usize,
    ) -> Result<Duration, Failure> {
        let mut lane = offload.device.lane(batch)?;
        let mut start = 0;
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let range = self.next(&mut start, batch);
            let begin = Instant::now();
            lane.start(&self.workload.keys[range.clone()], offload.kernel, &offload.table)?;
            lane.wait()?;
            times.push(begin.elapsed());
            assert!(
                lane.results() == &self.workload.answers[range],
                "{}: wrong results",
                self.workload.title
            );
            lane.spoil();
        }
        Ok(median_time(times))
    }

    /// Returns the dependent accesses or steps per second of the GPU alone: keys and results stay in its memory.
    pub fn resident(
        &self,
        offload: &Offload<'_>,
        batch: usize,
        rounds: usize,
    ) -> Result<f64, Failure> {
        let mut lane = offload.device.lane(batch)?;
        let keys = &self.workload.keys[..batch];
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            lane.fill(keys);
            lane.copy_in()?;
            lane.wait()?;
            let begin = Instant::now();
            lane.launch(offload.kernel, &offload.table)?;
            lane.wait()?;
            times.push(begin.elapsed());
            lane.copy_out()?;
            lane.wait()?;
            assert!(lane.results() == &self.workload.answers[..batch], "wrong results");
            lane.spoil();
        }
        Ok(batch as f64 / median_time(times).as_secs_f64())
    }
}

/// A table on the GPU with its look-up.
pub struct Offload<'a> {
    pub device: &'a Device,
    pub kernel: Kernel,
    pub table: Table<'a>,
}

impl<'a> Offload<'a> {
    pub fn new<S: Service>(
        device: &'a Device,
        kernel: Kernel,
        service: &S,
    ) -> Result<Self, Failure> {
        Ok(Self { device, kernel, table: device.table(&service.arrays())? })
    }
}

/// Gives the calling thread the `index`-th CPU of those that the process may use.
fn pin(index: usize) {
    let allowed = sched_getaffinity(None).expect("a thread may ask for its CPUs");
    let cpu = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).nth(index);
    let mut only = CpuSet::new();
    only.set(cpu.expect("as many CPUs as threads"));
    sched_setaffinity(None, &only).expect("a thread may choose among its CPUs");
}

pub fn median_time(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
