//! An overloaded server on this machine: two processes, calls in an open loop, and workers that sleep
//! for every request. So the capacity of the workers is small beside that of the event loop.
//!
//! The capacity is measured first, with enough calls outstanding to keep all workers busy. The rest is
//! as in the experiment of the same name (`docs/overload.md`).

mod args;
mod client;
mod policy;
mod server;
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use petrel::Endpoint;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId};
use serde::{Deserialize, Serialize};

use self::client::{Arrivals, OfferedLoad, Outcomes};
pub(crate) use self::server::run as run_server;
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::latency::{LatencySummary, format_percentile};
use petrel_command::output::{Column, Output};
use petrel_command::units::exact_duration;

use self::args::WorkArgs;
pub(crate) use self::args::{OverloadMeasuredArgs, OverloadServerArgs};
pub use self::policy::Policy;
use self::wire::Done;
use petrel_bench::measure::library::{Caller, EndConfig};
use petrel_bench::measure::process::{Process, parse};

/// The warm-up takes this fraction of the measured time.
const WARM_UP_SHARE: u32 = 4;

/// Calls per worker that keep the worker busy while answers are in flight.
const CALLS_PER_WORKER: u16 = 4;

const CAPACITY_ATTEMPTS: usize = 3;

/// The figures of one policy under one load.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    bench: &'static str,
    transport: &'static str,
    policy: &'static str,
    back_pressure: bool,
    workers: u16,
    /// Measured capacity of the server, in answers per second.
    capacity_per_s: f64,
    /// Offered load divided by the capacity.
    load: f64,
    offered_per_s: f64,
    /// Answers in time, per second.
    goodput_per_s: f64,
    of_capacity: f64,
    /// Goodput divided by the best of this policy at any load.
    of_best: f64,
    latency: Option<LatencySummary>,
    refusal: Option<LatencySummary>,
    offered: u64,
    good: u64,
    late: u64,
    refused: u64,
    expired: u64,
    held_back: u64,
    unsent: u64,
    wrong: u64,
    /// Requests executed, from the first call of the figure to the last, and the executed requests that ended too late.
    executed: u64,
    wasted: u64,
    /// Mean time that a worker was busy with a request.
    service_ns: u64,
    command: String,
}

/// A server process, and sessions to it.
struct Pair {
    _process: Process,
    caller: Caller,
    /// A session for questions that must not wait behind calls.
    side: SessionId,
}

#[derive(Deserialize)]
struct Ready {
    address: SocketAddr,
}

/// Runs the benchmark and prints its figures.
pub(crate) fn run(args: &OverloadMeasuredArgs, output: Output) -> Result<Outcome, Failure> {
    check(args)?;
    let capacity_per_s = Pair::start(args, Policy::None)?.capacity_per_s(args)?;
    let mut figures = Vec::new();
    for &policy in &args.policy {
        let mut pair = Pair::start(args, policy)?;
        for back_pressure in [false, true] {
            let series = pair.series(args, policy, back_pressure, capacity_per_s)?;
            series.iter().try_for_each(|figure| output.record(figure))?;
            figures.extend(series);
        }
    }
    show(&figures, args, output)?;
    let is_valid = figures.iter().all(|figure| figure.wrong == 0 && figure.offered > 0);
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

fn check(args: &OverloadMeasuredArgs) -> Result<(), Failure> {
    let (service, slo) = (args.work.service, args.slo);
    match service.is_zero() || args.duration.is_zero() || slo <= service {
        true => {
            Err(Failure::because("--service and --duration are above zero, and --slo above both"))
        }
        false => Ok(()),
    }
}

impl Pair {
    fn start(args: &OverloadMeasuredArgs, policy: Policy) -> Result<Self, Failure> {
        let WorkArgs { workers, service, target } = args.work;
        let (workers, service) = (workers.to_string(), exact_duration(service));
        let target = exact_duration(target);
        let transport = args.transport.name();
        let mut process = Process::start(&[
            "overload-server",
            "--json",
            "--transport",
            transport,
            "--policy",
            policy.name(),
            "--workers",
            &workers,
            "--service",
            &service,
            "--target",
            &target,
        ])?;
        let Ready { address } = parse(&process.line()?)?;
        let config = EndConfig {
            // The two ends sleep when they can: the scheduler preempts a polling thread more often on a busy machine.
            adjust: |config: &mut EndpointConfig| {
                config.host.shm.never_sleeps = false;
                config.idle = IdlePolicy::default();
            },
            ..EndConfig::towards(args.transport, address.ip())
        };
        let mut caller = Caller::start(address, &config, ())?;
        caller.open((address, 0), usize::from(args.sessions) + 1, || ())?;
        let side =
            caller.sessions.pop().ok_or_else(|| Failure::because("no session was opened"))?;
        Ok(Self { _process: process, caller, side })
    }

    fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.caller.endpoint
    }

    /// Returns the capacity of permanently busy workers: the maximum of some attempts, because other
    /// load of the machine only reduces the figure.
    fn capacity_per_s(&mut self, args: &OverloadMeasuredArgs) -> Result<f64, Failure> {
        let calls = args.work.workers.saturating_mul(CALLS_PER_WORKER);
        let offered_load =
            OfferedLoad { has_deadlines: false, ..offered_load(args, Arrivals::Closed { calls }) };
        let mut most = 0;
        for _ in 0..CAPACITY_ATTEMPTS {
            let (outcomes, _) = self.measure(offered_load)?;
            most = most.max(outcomes.good + outcomes.late);
            if outcomes.wrong > 0 {
                return Err(Failure::because("what the server can do was not seen: wrong answers"));
            }
        }
        match most {
            0 => Err(Failure::because("the server has answered nothing")),
            _ => Ok(most as f64 / args.duration.as_secs_f64()),
        }
    }

    /// Measures a policy under each load.
    fn series(
        &mut self,
        args: &OverloadMeasuredArgs,
        policy: Policy,
        back_pressure: bool,
        capacity_per_s: f64,
    ) -> Result<Vec<Figure>, Failure> {
        let loads = args.load.iter().map(|&percent| f64::from(percent) / 100.0);
        let figures = loads.map(|load| {
            let gap_mean_ns = 1e9 / (capacity_per_s * load);
            let offered_load = OfferedLoad {
                has_deadlines: policy.has_deadlines(),
                has_back_pressure: back_pressure,
                ..offered_load(args, Arrivals::Poisson { gap_mean_ns })
            };
            let (outcomes, done) = self.measure(offered_load)?;
            Ok(figure(args, policy, offered_load, (load, capacity_per_s), &outcomes, done))
        });
        let mut figures = figures.collect::<Result<Vec<_>, Failure>>()?;
        let best =
            figures.iter().map(|figure| figure.goodput_per_s).fold(f64::MIN_POSITIVE, f64::max);
        figures.iter_mut().for_each(|figure| figure.of_best = figure.goodput_per_s / best);
        Ok(figures)
    }

    fn measure(&mut self, offered_load: OfferedLoad) -> Result<(Outcomes, Done), Failure> {
        self.take()?;
        let outcomes =
            client::run(&mut self.caller.endpoint, &self.caller.sessions, offered_load, 1)?;
        if !outcomes.is_balanced() {
            return Err(Failure::because("an internal error: calls were lost count of"));
        }
        Ok((outcomes, self.take()?))
    }

    /// Returns the server's counts since the last question.
    fn take(&mut self) -> Result<Done, Failure> {
        let side = self.side;
        let bytes = self.endpoint().call(side, wire::TAKE, &[]).wait()?;
        Done::from_bytes(&bytes)
            .ok_or_else(|| Failure::because("the server's counts are malformed"))
    }
}

fn offered_load(args: &OverloadMeasuredArgs, arrivals: Arrivals) -> OfferedLoad {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    OfferedLoad {
        arrivals,
        warm_up_ns: ns(args.duration / WARM_UP_SHARE),
        measured_ns: ns(args.duration),
        slo_ns: ns(args.slo),
        has_deadlines: true,
        has_back_pressure: false,
    }
}

fn figure(
    args: &OverloadMeasuredArgs,
    policy: Policy,
    offered_load: OfferedLoad,
    (load, capacity_per_s): (f64, f64),
    outcomes: &Outcomes,
    done: Done,
) -> Figure {
    let per_s = |count: u64| count as f64 / args.duration.as_secs_f64();
    let goodput_per_s = per_s(outcomes.good);
    Figure {
        bench: "overload",
        transport: args.transport.name(),
        policy: policy.name(),
        back_pressure: offered_load.has_back_pressure,
        workers: args.work.workers,
        capacity_per_s,
        load,
        offered_per_s: per_s(outcomes.offered),
        goodput_per_s,
        of_capacity: goodput_per_s / capacity_per_s,
        of_best: 1.0,
        latency: outcomes.latency.summary(),
        refusal: outcomes.refusal.summary(),
        offered: outcomes.offered,
        good: outcomes.good,
        late: outcomes.late,
        refused: outcomes.refused,
        expired: outcomes.expired,
        held_back: outcomes.held_back,
        unsent: outcomes.unsent,
        wrong: outcomes.wrong,
        executed: done.executed,
        wasted: done.wasted,
        service_ns: done.busy_ns / done.executed.max(1),
        command: command(args),
    }
}

fn command(args: &OverloadMeasuredArgs) -> String {
    let list = |values: Vec<String>| values.join(",");
    let OverloadMeasuredArgs { transport, load, policy, slo, sessions, duration, work } = args;
    let WorkArgs { workers, service, target } = work;
    format!(
        "petrel-experiment overload-measured --transport {} --load {} --policy {} --slo {} --sessions {sessions} \
         --duration {} --workers {workers} --service {} --target {}",
        transport.name(),
        list(load.iter().map(u16::to_string).collect()),
        list(policy.iter().map(|policy| policy.name().to_owned()).collect()),
        exact_duration(*slo),
        exact_duration(*duration),
        exact_duration(*service),
        exact_duration(*target),
    )
}

const COLUMNS: [Column<Figure>; 16] = [
    ("policy", |figure| figure.policy.to_owned()),
    ("back-pressure", |figure| if figure.back_pressure { "on" } else { "off" }.to_owned()),
    ("load", |figure| format!("{:.1}", figure.load)),
    ("goodput/s", |figure| format!("{:.0}", figure.goodput_per_s)),
    ("of best", |figure| format!("{:.3}", figure.of_best)),
    ("of capacity", |figure| format!("{:.3}", figure.of_capacity)),
    ("p50", |figure| format_percentile(&figure.latency, |latency| latency.p50_ns)),
    ("p99", |figure| format_percentile(&figure.latency, |latency| latency.p99_ns)),
    ("p99.9", |figure| format_percentile(&figure.latency, |latency| latency.p999_ns)),
    ("late", |figure| figure.late.to_string()),
    ("refused", |figure| figure.refused.to_string()),
    ("refusal p99", |figure| format_percentile(&figure.refusal, |latency| latency.p99_ns)),
    ("expired", |figure| figure.expired.to_string()),
    ("held back", |figure| figure.held_back.to_string()),
    ("executed", |figure| figure.executed.to_string()),
    ("wasted", |figure| figure.wasted.to_string()),
];

fn show(figures: &[Figure], args: &OverloadMeasuredArgs, output: Output) -> Result<(), Failure> {
    output.line(output.rows(&COLUMNS, 0, figures))?;
    output.line(format!(
        "{} workers, {} each; answers within {}, all checked. Latency: of the calls that were answered, from \
         when they were asked for.\nAgain:\n  {}",
        args.work.workers,
        exact_duration(args.work.service),
        exact_duration(args.slo),
        command(args)
    ))?;
    Ok(())
}
