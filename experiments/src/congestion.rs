//! The cost of congestion controls without network congestion: the library with the control, beside the
//! library without one, over UDP on loopback. Other programs may run meanwhile; a control may take
//! the delays by these programs for delays of the network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use petrel_bench::report::figures::Figures;
use petrel_command::Outcome;
use petrel_command::args::BenchTransport;
use petrel_command::failure::Failure;
use petrel_command::interrupt;
use petrel_command::output::Output;
use petrel_proto::congestion::{
    CongestionConfig, CongestionControl, DcqcnConfig, Rate, SwiftConfig, TimelyConfig,
};
use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;

use crate::args::CongestionArgs;
use petrel_bench::measure::ends::Side;
use petrel_bench::measure::figure::{Baseline, Figure, Quantity, Setting};
use petrel_bench::measure::library::Adjust;
use petrel_bench::measure::measurement::{Beside, Measurement, SessionPlan, Shape};
use petrel_bench::measure::pairs::Pace;
use petrel_bench::measure::test_bed::{Cores, TestBed};

/// The configured line rate, as by default; loopback has none.
const LINE_GBIT: u64 = 100;

/// Messages of medium size: some packets each.
const MIDDLE_BYTES: usize = 64 << 10;

/// A congestion control, and the function for its configuration.
struct Control {
    name: &'static str,
    set: Adjust,
}

const CONTROLS: [Control; 3] = [
    Control {
        name: "dcqcn",
        set: |config| {
            config.protocol.congestion = control(CongestionConfig::Dcqcn(DcqcnConfig::default()));
        },
    },
    Control {
        name: "timely",
        set: |config| {
            let line = Rate::gbit(LINE_GBIT);
            config.protocol.congestion =
                control(CongestionConfig::Timely(TimelyConfig::for_line(line)));
        },
    },
    Control {
        name: "swift",
        set: |config| {
            config.protocol.congestion = control(CongestionConfig::Swift(SwiftConfig::new()));
        },
    },
];

const NO_CONTROL: Adjust = |config| config.protocol.congestion = control(CongestionConfig::None);

fn control(config: CongestionConfig) -> CongestionControl {
    CongestionControl::new(config).expect("a control's own defaults are valid")
}

/// The baseline: the library without congestion control.
const WITHOUT: Baseline =
    Baseline::Other { name: "no-control", text: "the same without congestion control" };

/// Runs the experiment, and prints its figures.
pub(crate) fn run(args: &CongestionArgs, output: Output) -> Result<Outcome, Failure> {
    // Before any thread starts.
    interrupt::note()?;
    let mut report = Figures::new(output);
    let (cores, busy, pace) = (Cores::requested(args.cores), args.busy, args.windows.pace());
    Congestion { cores, busy, pace }.add_to(&mut report)?;
    report.show()
}

/// The measurement of all controls.
#[derive(Clone, Debug)]
struct Congestion {
    cores: Cores,
    /// Threads that compute meanwhile.
    busy: u16,
    pace: Pace,
}

impl Congestion {
    /// Measures all controls with all workloads.
    fn add_to(&self, report: &mut Figures) -> Result<(), Failure> {
        let mut watch = report.progress_bar("congestion controls");
        let workloads = self.workloads();
        let rounds = (workloads.len() * CONTROLS.len()) as u32;
        let jobs =
            workloads.iter().flat_map(|workload| CONTROLS.iter().map(move |c| (workload, c)));
        let _busy = Busy::start(self.busy);
        for (round, (workload, control)) in (0..).zip(jobs) {
            let figure = self.one(workload, control, |pairs, total| {
                watch(round * total + pairs, rounds * total);
            })?;
            report.add(figure)?;
        }
        Ok(())
    }

    fn one(
        &self,
        workload: &Measurement,
        control: &Control,
        watch: impl FnMut(u32, u32),
    ) -> Result<Figure, Failure> {
        let test_bed = TestBed::new(self.cores, self.pace.is_realtime)?;
        let shape = |adjust| Shape { adjust, ..workload.shape() };
        let mut with = workload.library(&test_bed, &shape(control.set))?;
        let mut without = workload.library(&test_bed, &shape(NO_CONTROL))?;
        let without: &mut dyn Side = without.as_mut();
        let beside = Some((without, WITHOUT));
        let describe = |setting| self.describe(setting, control);
        workload.compare(&test_bed, (with.as_mut(), beside), describe, watch)
    }

    /// Returns the workloads: one small call at a time, many at a time, messages of some packets, and
    /// large messages.
    fn workloads(&self) -> [Measurement; 4] {
        let small = Measurement {
            quantity: Quantity::Rate,
            transport: BenchTransport::Udp,
            cores: self.cores,
            size: 32,
            in_flight: 60,
            batch: 3,
            pace: self.pace,
            plan: SessionPlan::Raised,
            beside: Beside::Bare,
            connect: None,
        };
        let quantity = Quantity::Bandwidth;
        let middle =
            Measurement { quantity, size: MIDDLE_BYTES, in_flight: 8, batch: 1, ..small.clone() };
        let large =
            Measurement { size: MESSAGE_BYTES_DEFAULT as usize, in_flight: 3, ..middle.clone() };
        let quantity = Quantity::Latency;
        let alone = Measurement { quantity, in_flight: 1, batch: 1, ..small.clone() };
        [alone, small, middle, large]
    }

    fn describe(&self, setting: Setting, control: &Control) -> Setting {
        let change = Some(format!("with {}", control.name));
        let further =
            BTreeMap::from([("busy", self.busy.into()), ("congestion", control.name.into())]);
        Setting { bench: "congestion", change, further, command: self.command(), ..setting }
    }

    fn command(&self) -> String {
        let (cores, busy) = (self.cores.count(), self.busy);
        format!("petrel-experiment congestion --cores {cores} --busy {busy}{}", self.pace.flags())
    }
}

/// Computing threads, until the guard is dropped.
struct Busy {
    is_over: Arc<AtomicBool>,
}

impl Busy {
    fn start(count: u16) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..count {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self { is_over }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use petrel::endpoint::EndpointConfig;

    use super::*;

    #[test]
    fn controls__are_all_different() {
        let adjusts = CONTROLS.iter().map(|control| control.set).chain([NO_CONTROL]);
        let texts = adjusts.map(|adjust| {
            let mut config = EndpointConfig::default();
            adjust(&mut config);
            format!("{:?}", config.protocol.congestion)
        });
        let mut texts: Vec<_> = texts.collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), CONTROLS.len() + 1, "{texts:?}");
    }
}
