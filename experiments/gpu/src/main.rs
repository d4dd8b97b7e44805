//! Compares a GPU with CPU cores that look up in batches (G-Opt §2.4 to §2.6, §4): the time to involve a GPU, rates of
//! random accesses, chains and hashes of growing length, and four look-ups of packet processing. All results are checked.

#![cfg_attr(test, allow(non_snake_case))]

mod device;
mod hash;
mod rates;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use comfy_table::Table;
use petrel_batch_bench::served::{self, Service, Size, Workload};

use self::device::{Device, Kernel, Polling};
use self::hash::Hashes;
use self::rates::{Checked, Form, Offload, median_time};

type Failure = Box<dyn std::error::Error>;

/// Packets that arrive at 40 Gbit/s within some 100 µs (G-Opt §2.6.1).
const BATCH: usize = 8_192;
/// Batches in flight, where the rate counts and not the time of a batch.
const LANES: usize = 4;
const ROUNDS: usize = 200;
const KEYS: usize = 1 << 23;

/// The unit of the tables that compare cores with a GPU step by step.
const CROSSING: &str = "millions of keys per second by steps, batches of 8192";

/// Compare a GPU with CPU cores that look up in batches
#[derive(Debug, Parser)]
struct Arguments {
    /// The experiments, in turn; all of them by default
    #[arg(value_enum)]
    experiments: Vec<Experiment>,

    /// CUDA's compiler
    #[arg(long, default_value = "nvcc")]
    nvcc: PathBuf,

    /// Divides the sizes of all structures, for a quick look
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    smaller: u32,

    /// Duration of a window, in milliseconds; a rate is the median of five windows
    #[arg(long, default_value_t = 100)]
    window_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// The time from inputs in the host's memory to results there, with hardly any computation
    Involve,
    /// Random accesses per second
    Random,
    /// Rates of chains of dependent accesses, with the way to the GPU and back
    Chains,
    /// Rates of computations, with the way to the GPU and back
    Hashes,
    /// Rates and times of look-ups: IPv4, IPv6, Ethernet switch, named data
    Lookups,
}

struct Bench {
    device: Device,
    smaller: usize,
    window: Duration,
    /// The numbers of cores to compare with.
    cores: Vec<usize>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let folder = std::env::temp_dir();
    let device = match Device::open(&arguments.nvcc, &folder) {
        Ok(device) => device,
        Err(error) => {
            println!("skipped: no GPU can be used: {error}");
            return ExitCode::SUCCESS;
        }
    };
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let bench = Bench {
        device,
        smaller: arguments.smaller as usize,
        window: Duration::from_millis(arguments.window_ms),
        cores: [1, 2, 4, 8, 16].into_iter().filter(|cores| *cores <= most).collect(),
    };
    println!("{}; {most} cores of {}", bench.device.name, processor());
    let experiments = match &*arguments.experiments {
        [] => Experiment::value_variants(),
        experiments => experiments,
    };
    for experiment in experiments {
        if let Err(error) = bench.run(*experiment) {
            eprintln!("{experiment:?}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The model of the processor, where the kernel tells it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or("an unknown processor", |(_, name)| name).to_owned()
}

impl Bench {
    fn run(&self, experiment: Experiment) -> Result<(), Failure> {
        let (title, table) = match experiment {
            Experiment::Involve => {
                ("time to involve the GPU, us (medians)".to_owned(), self.involve()?)
            }
            Experiment::Random => self.random()?,
            Experiment::Chains => self.chains()?,
            Experiment::Hashes => self.hashes()?,
            Experiment::Lookups => return self.lookups(),
        };
        println!("\n{title}\n{table}");
        Ok(())
    }

    /// The parts of a round by asynchronous functions, and whole rounds by other ways (G-Opt Fig. 2 and 3).
    fn involve(&self) -> Result<Table, Failure> {
        let mut table = Table::new();
        table.set_header([
            "inputs", "copy in", "launch", "copy out", "wait", "round", "mapped", "polling",
        ]);
        let nothing = self.device.table(&[])?;
        for count in [1, 16, 256, 1024, 4096, 16_384, 65_536] {
            let keys: Vec<u32> = (0..count as u32).map(|index| index * 7).collect();
            let right: Vec<u32> = keys.iter().map(|key| key + 1).collect();
            let mut lane = self.device.lane(count)?;
            lane.fill(&keys);
            let mut parts = [(); 7].map(|()| Vec::new());
            for _ in 0..ROUNDS {
                lane.spoil();
                let begin = Instant::now();
                lane.copy_in()?;
                let copied = Instant::now();
                lane.launch(Kernel::Increment, &nothing)?;
                let launched = Instant::now();
                lane.copy_out()?;
                let copied_out = Instant::now();
                lane.wait()?;
                let end = Instant::now();
                assert!(lane.results() == right, "wrong results");
                let times = [begin, copied, launched, copied_out, end];
                for (part, pair) in parts.iter_mut().zip(times.windows(2)) {
                    part.push(pair[1] - pair[0]);
                }
                parts[4].push(end - begin);
                lane.spoil();
                let begin = Instant::now();
                lane.launch_mapped(Kernel::Increment, &nothing)?;
                lane.wait()?;
                parts[5].push(begin.elapsed());
                assert!(lane.results() == right, "wrong results");
            }
            let mut polling = Polling::start(&mut lane)?;
            for _ in 0..ROUNDS {
                polling.lane().spoil();
                let begin = Instant::now();
                polling.round();
                parts[6].push(begin.elapsed());
                assert!(polling.lane().results() == right, "wrong results");
            }
            let times = parts.map(|times| microseconds(median_time(times)));
            table.add_row(std::iter::once(count.to_string()).chain(times));
        }
        Ok(table)
    }

    /// G-Opt Table 1: ten dependent accesses per chain, and keys that are where they are needed.
    fn random(&self) -> Result<(String, Table), Failure> {
        const STEPS: usize = 10;
        let mut workload = served::chain(self.size());
        workload.set_steps(STEPS);
        let checked = Checked::new(&workload);
        let mut table = Table::new();
        table.set_header(["by", "one after another, M/s", "batched, M/s"]);
        let mut row = |by: String, plain: Option<f64>, batched: f64| {
            let plain = plain.map_or(String::new(), |rate| millions(rate * STEPS as f64));
            table.add_row([by, plain, millions(batched * STEPS as f64)]);
        };
        for cores in &self.cores {
            let plain = checked.on_cores(*cores, Form::Plain, self.window);
            let batched = checked.on_cores(*cores, Form::Batched, self.window);
            row(named(*cores, ["core", "cores"]), Some(plain), batched);
        }
        let mut offload = Offload::new(&self.device, Kernel::Chain, &workload.service)?;
        offload.table.set_steps(STEPS);
        for batch in [1 << 13, 1 << 16, 1 << 19, 1 << 22] {
            if batch <= workload.keys.len() {
                row(
                    format!("GPU, {batch} chains"),
                    None,
                    checked.resident(&offload, batch, ROUNDS)?,
                );
            }
        }
        Ok((format!("{}: accesses, {STEPS} per chain", workload.title), table))
    }

    /// G-Opt Fig. 4a.
    fn chains(&self) -> Result<(String, Table), Failure> {
        let mut workload = served::chain(self.size());
        let mut offload = Offload::new(&self.device, Kernel::Chain, &workload.service)?;
        let mut table = self.crossing();
        for steps in [1, 2, 3, 4, 6, 8, 12, 16, 32] {
            workload.set_steps(steps);
            offload.table.set_steps(steps);
            table.add_row(self.cross(steps, &Checked::new(&workload), &offload)?);
        }
        Ok((format!("{}: {CROSSING}", workload.title), table))
    }

    /// G-Opt Fig. 4b.
    fn hashes(&self) -> Result<(String, Table), Failure> {
        let mut table = self.crossing();
        let count = self.size().requests;
        for steps in [1, 2, 3, 4, 6, 8, 12, 16, 32, 64] {
            let workload = Hashes::workload(count, steps);
            let mut offload = Offload::new(&self.device, Kernel::Sip, &workload.service)?;
            offload.table.set_steps(steps);
            table.add_row(self.cross(steps, &Checked::new(&workload), &offload)?);
        }
        Ok((format!("SipHash-2-4 of 8 bytes: {CROSSING}"), table))
    }

    /// Requests touch more lines than the caches of a CPU or of a GPU hold.
    fn size(&self) -> Size {
        Size { smaller: self.smaller, requests: KEYS / self.smaller }
    }

    fn crossing(&self) -> Table {
        let mut table = Table::new();
        let cores = self.cores.iter().map(|cores| named(*cores, ["core", "cores"]));
        let gpu = ["GPU, 1 batch", "GPU, 4 batches", "GPU in cores"].map(str::to_owned);
        table.set_header(std::iter::once("steps".to_owned()).chain(cores).chain(gpu));
        table
    }

    /// The rates of all cores and of the GPU, in millions per second.
    fn cross<S: Service + Sync>(
        &self,
        steps: usize,
        checked: &Checked<'_, S>,
        offload: &Offload<'_>,
    ) -> Result<Vec<String>, Failure> {
        let rate = |cores: &usize| checked.on_cores(*cores, Form::Batched, self.window);
        let cores: Vec<f64> = self.cores.iter().map(rate).collect();
        let one = checked.on_gpu(offload, 1, BATCH, self.window)?;
        let several = checked.on_gpu(offload, LANES, BATCH, self.window)?;
        let mut row = vec![steps.to_string()];
        row.extend(cores.iter().chain([&one, &several]).map(|rate| millions(*rate)));
        row.push(format!("{:.1}", several / cores[0]));
        Ok(row)
    }

    /// G-Opt §4.4 and §4.5, without a network.
    fn lookups(&self) -> Result<(), Failure> {
        self.lookup(Kernel::Ipv4, &served::ipv4(self.size()))?;
        self.lookup(Kernel::Ipv6, &served::ipv6(self.size()))?;
        self.lookup(Kernel::Switch, &served::switch(self.size()))?;
        self.lookup(Kernel::Names, &served::ndn(self.size()))
    }

    fn lookup<S: Service + Sync>(
        &self,
        kernel: Kernel,
        workload: &Workload<S>,
    ) -> Result<(), Failure> {
        let checked = Checked::new(workload);
        let mut table = Table::new();
        table.set_header(["by", "M/s", "a round, us"]);
        let plain = checked.on_cores(1, Form::Plain, self.window);
        table.add_row(["1 core, one after another".to_owned(), millions(plain), String::new()]);
        for cores in &self.cores {
            let rate = checked.on_cores(*cores, Form::Batched, self.window);
            table.add_row([
                format!("{}, batched", named(*cores, ["core", "cores"])),
                millions(rate),
                String::new(),
            ]);
        }
        let offload = Offload::new(&self.device, kernel, &workload.service)?;
        for batch in [512, 2048, BATCH, 32_768] {
            if batch > workload.keys.len() {
                continue;
            }
            let round = microseconds(checked.round(&offload, batch, ROUNDS)?);
            for lanes in [1, LANES] {
                let rate = checked.on_gpu(&offload, lanes, batch, self.window)?;
                let by = format!("GPU, {} of {batch}", named(lanes, ["batch", "batches"]));
                table.add_row([
                    by,
                    millions(rate),
                    if lanes == 1 { round.clone() } else { String::new() },
                ]);
            }
        }
        println!("\n{}\n{table}", workload.title);
        Ok(())
    }
}

/// Returns a number with a noun in the singular or the plural.
fn named(count: usize, [one, many]: [&str; 2]) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn microseconds(time: Duration) -> String {
    format!("{:.1}", time.as_nanos() as f64 / 1e3)
}

fn millions(rate: f64) -> String {
    format!("{:.1}", rate / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes__both_forms_are_those_of_the_standard_library() {
        let workload = Hashes::workload(10, 3);
        let checked: Vec<u32> =
            workload.keys.iter().map(|key| workload.service.find(*key)).collect();
        assert_eq!(checked, workload.answers);
        let mut batched = vec![0; 10];
        workload
            .service
            .find_batch(workload.keys.iter().copied(), |index, found| batched[index] = found);
        assert_eq!(batched, workload.answers);
    }
}
