//! The worth of the optimisations: the library with an optimisation switched off, beside the library
//! with all optimisations on (eRPC §6.2, table 3).

use std::collections::BTreeMap;

use petrel::endpoint::EndpointConfig;
use petrel_bench::report::figures::Figures;
use petrel_command::Outcome;
use petrel_command::args::BenchTransport;
use petrel_command::failure::Failure;
use petrel_command::interrupt;
use petrel_command::output::Output;
use petrel_proto::congestion::{CongestionConfig, CongestionControl, Rate, TimelyConfig};
use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;
use petrel_transport::udp::{MTU_BYTES_MIN, Mtu};

use crate::args::FactorsArgs;
use petrel_bench::measure::ends::Side;
use petrel_bench::measure::figure::{Baseline, Figure, Quantity, Setting};
use petrel_bench::measure::library::Adjust;
use petrel_bench::measure::measurement::{Measurement, SessionPlan, Shape};
use petrel_bench::measure::test_bed::TestBed;

/// An optimisation that can be switched off.
#[derive(Clone, Copy, Debug)]
struct Factor {
    name: &'static str,
    /// The replacement while the optimisation is off.
    instead: &'static str,
    /// Transports on which the optimisation makes a difference.
    transports: &'static [BenchTransport],
    /// Sets what both sides of the comparison have in common, beside the defaults.
    both: Adjust,
    /// Switches the optimisation off, at either end.
    switch_off: Adjust,
}

const UDP: &[BenchTransport] = &[BenchTransport::Udp];
const SHM: &[BenchTransport] = &[BenchTransport::Shm];
const BOTH: &[BenchTransport] = &[BenchTransport::Udp, BenchTransport::Shm];

/// All optimisations.
const FACTORS: [Factor; 16] = [
    Factor {
        name: "short ways",
        instead: "the general state machines for every frame",
        transports: BOTH,
        switch_off: |config| config.protocol.fast_path = false,
        ..PLAIN
    },
    Factor {
        name: "one timestamp per turn",
        instead: "a reading of the clock for each frame",
        transports: BOTH,
        switch_off: |config| config.optimisations.clock_once_per_turn = false,
        ..PLAIN
    },
    Factor {
        name: "preallocated responses",
        instead: "a buffer from the pool for each answer",
        transports: BOTH,
        switch_off: |config| config.optimisations.preallocated_responses = false,
        ..PLAIN
    },
    Factor {
        name: "zero-copy requests",
        instead: "a copy of each small request before its handler",
        transports: BOTH,
        switch_off: |config| config.optimisations.zero_copy_requests = false,
        ..PLAIN
    },
    Factor {
        name: "immediate sends",
        instead: "answers and calls wait in a queue for the end of the burst",
        transports: SHM,
        switch_off: |config| config.optimisations.immediate_sends = false,
        ..PLAIN
    },
    Factor {
        name: "bursts",
        instead: "each frame is handed to the medium on its own",
        transports: BOTH,
        switch_off: |config| config.optimisations.bursts = false,
        ..PLAIN
    },
    Factor {
        name: "response grants",
        instead: "a large response waits for another round trip",
        transports: BOTH,
        switch_off: |config| config.protocol.response_grants = false,
        ..PLAIN
    },
    Factor {
        name: "segmentation offload",
        instead: "a system call's entry for each datagram",
        transports: UDP,
        switch_off: |config| config.host.udp.gso = false,
        ..PLAIN
    },
    Factor {
        name: "receive offload",
        instead: "datagrams are received one by one",
        transports: UDP,
        switch_off: |config| config.host.udp.gro = false,
        ..PLAIN
    },
    Factor {
        name: "jumbo frames",
        instead: "packets of the smallest MTU",
        transports: UDP,
        switch_off: |config| config.host.udp.mtu = Mtu::Fixed(MTU_BYTES_MIN),
        ..PLAIN
    },
    Factor {
        name: "fence-free publication",
        instead: "a memory fence for each burst, in case the peer sleeps",
        transports: SHM,
        switch_off: |config| {
            config.host.shm.never_sleeps = false;
            config.optimisations.fence_free = false;
        },
        ..PLAIN
    },
    Factor {
        name: "large ring frames",
        instead: "frames of the size of an Ethernet packet",
        transports: SHM,
        switch_off: |config| config.host.shm.max_frame_bytes = 1_536,
        ..PLAIN
    },
    Factor {
        name: "credits for a burst",
        instead: "four packets in flight per session",
        transports: BOTH,
        switch_off: |config| config.sessions.credits = 4,
        ..PLAIN
    },
    Factor {
        name: "many slots",
        instead: "one call in flight per session, the others wait in its queue",
        transports: BOTH,
        switch_off: |config| config.sessions.slots = 1,
        ..PLAIN
    },
    Factor {
        name: "bypass of Timely",
        instead: "Timely hears of a round trip of each burst; both sides with Timely",
        transports: UDP,
        both: |config| set_timely(config, |_| ()),
        switch_off: |config| set_timely(config, |timely| timely.bypass = false),
    },
    Factor {
        name: "bypass of the pacer",
        instead: "Timely paces all packets at the line rate; both sides with Timely",
        transports: UDP,
        both: |config| set_timely(config, |_| ()),
        switch_off: |config| set_timely(config, |timely| timely.pacer_bypass = false),
    },
];

/// What most optimisations have in common.
const PLAIN: Factor =
    Factor { name: "", instead: "", transports: BOTH, both: |_| (), switch_off: |_| () };

/// Gives the endpoint Timely, for a line of 100 Gbit/s, with changed parameters.
fn set_timely(config: &mut EndpointConfig, change: fn(&mut TimelyConfig)) {
    let mut timely = TimelyConfig::for_line(Rate::gbit(100));
    change(&mut timely);
    let control = CongestionControl::new(CongestionConfig::Timely(timely));
    config.protocol.congestion = control.expect("the parameters are valid");
}

/// The baseline: the library with all optimisations.
const EVERYTHING_ON: Baseline =
    Baseline::Other { name: "everything-on", text: "the same with everything switched on" };

/// Runs the experiment, and prints its figures.
pub(crate) fn run(args: &FactorsArgs, output: Output) -> Result<Outcome, Failure> {
    // Before any thread starts.
    interrupt::note()?;
    let mut report = Figures::new(output);
    for transport in &args.transport {
        let plan = SessionPlan::Raised;
        let small = args.calls.rate(*transport, args.cores, &args.windows, plan);
        Factors { small }.add_to(&mut report)?;
    }
    report.show()
}

/// The measurement of all optimisations.
#[derive(Clone, Debug)]
struct Factors {
    /// Small messages, whose rate is measured.
    small: Measurement,
}

impl Factors {
    /// Measures small messages, then large ones.
    fn add_to(&self, report: &mut Figures) -> Result<(), Failure> {
        if report.is_interrupted() {
            return Ok(());
        }
        let title = format!("factors over {}", self.small.transport.name());
        let mut watch = report.progress_bar(&title);
        let factors: Vec<Factor> = self.factors().collect();
        let workloads = [self.small.clone(), self.large()];
        let rounds = (factors.len() * workloads.len()) as u32;
        let jobs = workloads.iter().flat_map(|workload| factors.iter().map(move |f| (workload, f)));
        for (round, (workload, factor)) in (0..).zip(jobs) {
            let figure = self.one(workload, factor, |pairs, total| {
                watch(round * total + pairs, rounds * total);
            })?;
            report.add(figure)?;
        }
        Ok(())
    }

    /// Returns the optimisations that make a difference on the transport.
    fn factors(&self) -> impl Iterator<Item = Factor> {
        let transport = self.small.transport;
        FACTORS.into_iter().filter(move |factor| factor.transports.contains(&transport))
    }

    fn one(
        &self,
        workload: &Measurement,
        factor: &Factor,
        watch: impl FnMut(u32, u32),
    ) -> Result<Figure, Failure> {
        let test_bed = TestBed::new(workload.cores, workload.pace.is_realtime)?;
        let without = Shape { adjust: factor.switch_off, ..workload.shape() };
        let mut without = workload.library(&test_bed, &without)?;
        let with = Shape { adjust: factor.both, ..workload.shape() };
        let mut with = workload.library(&test_bed, &with)?;
        let with: &mut dyn Side = with.as_mut();
        let beside = Some((with, EVERYTHING_ON));
        let describe = |setting| self.describe(setting, factor);
        workload.compare(&test_bed, (without.as_mut(), beside), describe, watch)
    }

    fn large(&self) -> Measurement {
        Measurement {
            quantity: Quantity::Bandwidth,
            size: MESSAGE_BYTES_DEFAULT as usize,
            in_flight: 1,
            batch: 1,
            ..self.small.clone()
        }
    }

    fn describe(&self, setting: Setting, factor: &Factor) -> Setting {
        let Factor { name, instead, .. } = *factor;
        let change = Some(format!("without {name}"));
        let further = BTreeMap::from([("factor", name.into()), ("instead", instead.into())]);
        Setting { bench: "factors", change, further, command: self.command(), ..setting }
    }

    fn command(&self) -> String {
        let Measurement { transport, cores, size, in_flight, batch, pace, .. } = &self.small;
        format!(
            "petrel-experiment factors --transport {} --size {size} --in-flight {in_flight} --batch {batch} --cores {}{}",
            transport.name(),
            cores.count(),
            pace.flags(),
        )
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::congestion::{Ack, CongestionCounters, Flow};

    use super::*;

    /// Updates, times limited, and the sum of the rates while limited, for round trips with and without queues.
    fn decisions_of_timely(bypass: bool) -> (u64, u64, u64) {
        let timely = TimelyConfig { bypass, ..TimelyConfig::for_line(Rate::gbit(100)) };
        let control = CongestionControl::new(CongestionConfig::Timely(timely)).unwrap();
        let mut session = control.start(Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 });
        let (mut counters, mut rng) = (CongestionCounters::default(), fastrand::Rng::with_seed(1));
        let (mut now_ns, mut queue_ns, mut rates) = (0, 0, 0);
        for number in 0..1_000_000 {
            if number % 512 == 0 {
                queue_ns = [15_000, 30_000, 60_000, 150_000][rng.usize(..4)];
            }
            now_ns += rng.u64(1_000..3_000);
            let rtt_ns = Some(queue_ns / 2 + rng.u64(..queue_ns));
            let ack = Ack { now_ns, rtt_ns, packets: 1, bytes: 1408, ce: false };
            session.on_ack(&ack, &mut counters);
            rates += session.rate().map_or(0, Rate::get);
        }
        (counters.updates, counters.sessions_limited, rates)
    }

    #[test]
    fn bypass_of_timely__changes_no_decision() {
        let ((heard, limited, rates), without) =
            (decisions_of_timely(true), decisions_of_timely(false));
        assert!(limited > 100 && without.0 > heard, "{heard} and {without:?}");
        assert_eq!((limited, rates), (without.1, without.2));
    }

    #[test]
    fn factors__each_changes_the_configuration() {
        for factor in FACTORS {
            let (mut before, mut after) = (EndpointConfig::default(), EndpointConfig::default());
            (factor.both)(&mut before);
            (factor.switch_off)(&mut after);
            // For this factor the benchmark's own setting is the opposite of the default.
            if factor.name != "fence-free publication" {
                assert_ne!(format!("{before:?}"), format!("{after:?}"), "{}", factor.name);
            }
            assert!(!factor.transports.is_empty() && !factor.instead.is_empty());
        }
    }
}
