//! Sessions of several paths over this machine's kernel, beside sessions of one path: under loss, while links are cut,
//! and several clients at once.
//!
//! The equivalent of `petrel-experiment paths` with real packets: two namespaces joined by four links, the kernel's
//! choice among them by ports, and the transport's further source ports.

mod clients;
mod mptcp;
mod network;

use std::cell::RefCell;
use std::time::Duration;

use petrel::endpoint::{Disorder, EndpointConfig, PathPolicy};
use petrel_command::failure::Failure;
use petrel_proto::Recovery;
use serde::Serialize;

use self::clients::Clients;
use self::network::{LINK_MBIT, LINKS, Links};
use petrel_bench::measure::ends::Side;
use petrel_bench::measure::figure::Quantity;
use petrel_bench::measure::library::Adjust;
use petrel_bench::measure::load::Exchange;
use petrel_bench::measure::measurement::{Beside, Measurement, SessionPlan, Shape};
use petrel_bench::measure::pairs::Pace;
use petrel_bench::measure::test_bed::{Cores, TestBed};
use petrel_bench::measure::veth;
use petrel_bench::measure::window::Window;
use petrel_command::args::BenchTransport;

/// Bytes of a request.
const REQUEST_BYTES: usize = 256 << 10;

/// Requests in flight: the next ones fill the links while a session waits for responses.
const REQUESTS_IN_FLIGHT: u16 = 4;

/// Further source ports of both ends.
const FURTHER_PORTS: u8 = 15;

/// Time in which a kernel notices a link without carrier: the threads that do it have no real-time priority.
const NOTICE: Duration = Duration::from_millis(200);

/// A way to use the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) policy: PathPolicy,
    pub(crate) recovery: Recovery,
}

impl Column {
    /// Sessions of one path, with either recovery.
    const ONE_PATH: [Self; 2] = [
        Self { policy: PathPolicy::Single, recovery: Recovery::Selective },
        Self { policy: PathPolicy::Single, recovery: Recovery::GoBackN },
    ];

    /// Returns these policies, with go-back-N after selective recovery for one path.
    pub(crate) fn of(policies: &[PathPolicy]) -> Vec<Self> {
        let of = |&policy: &PathPolicy| match policy {
            PathPolicy::Single => Self::ONE_PATH.to_vec(),
            _ => vec![Self { policy, recovery: Recovery::Selective }],
        };
        policies.iter().flat_map(of).collect()
    }

    /// Returns the names of the policy and of the recovery.
    fn names(self) -> (&'static str, &'static str) {
        (self.policy.name(), crate::sim::recovery_name(self.recovery))
    }

    fn adjust(self) -> Adjust {
        fn several(config: &mut EndpointConfig, policy: PathPolicy) {
            config.host.udp.further_ports = FURTHER_PORTS;
            config.sessions.path_policy = policy;
        }
        match (self.policy, self.recovery) {
            (PathPolicy::Single, Recovery::GoBackN) => {
                |config| config.protocol.recovery = Recovery::GoBackN
            }
            (PathPolicy::Single, _) => |_| (),
            (PathPolicy::Plb, _) => |config| several(config, PathPolicy::Plb),
            (PathPolicy::Coupled, _) => |config| several(config, PathPolicy::Coupled),
            (PathPolicy::MpRdma(_), _) => {
                |config| several(config, PathPolicy::MpRdma(Disorder::WINDOW))
            }
        }
    }
}

/// The extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathsPlan {
    /// Fresh sessions of each row: sessions of one path have different links.
    pub(crate) sessions: u32,
    pub(crate) window: Duration,
    /// Whether both threads have real-time priority in windows.
    pub(crate) is_realtime: bool,
    /// Whether the kernel's MPTCP is measured beside, under loss.
    pub(crate) beside_mptcp: bool,
}

/// The names of the kernel's own transport.
const MPTCP: (&str, &str) = ("mptcp", "of the kernel");

/// A row: a state of the network, and a way of use.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VethRow {
    /// The network: packets of the kernel, no simulation.
    pub(crate) network: &'static str,
    /// `loss`, `cut` or `permutation`.
    pub(crate) experiment: &'static str,
    /// The state of the network.
    pub(crate) case: String,
    /// The same as a number.
    pub(crate) level: f64,
    /// The choice of paths.
    pub(crate) policy: &'static str,
    /// `selective` or `go-back-n`.
    pub(crate) recovery: &'static str,
    /// Goodput in Mbit/s: the mean over the sessions, or the sum of the clients.
    pub(crate) goodput_mbit: f64,
    /// Goodput, divided by the payload that the links carry.
    pub(crate) share: f64,
    /// Goodput, relative to the first case with this policy and recovery.
    pub(crate) relative: f64,
    /// Goodput of the slowest and of the fastest session.
    pub(crate) least_mbit: f64,
    pub(crate) most_mbit: f64,
    /// Requests answered, all correctly.
    pub(crate) answered: u64,
    pub(crate) retransmissions: u64,
    /// Retransmitted packets that the other end had.
    pub(crate) duplicates: u64,
    pub(crate) timeouts: u64,
    pub(crate) probes: u64,
    pub(crate) sessions: usize,
    pub(crate) window_ns: u64,
}

/// Payload of a packet of 1 500 bytes, and its bytes on the link, as the token bucket counts them.
const PAYLOAD_SHARE: f64 = 1_440.0 / 1_514.0;

type OnRow<'a> = &'a mut (dyn FnMut(&VethRow) + Send);

/// Loss on three of the four links, by percent.
pub(crate) fn loss(
    plan: PathsPlan,
    columns: &[Column],
    loss_ppm: &[u32],
    on_row: OnRow<'_>,
) -> Result<Vec<VethRow>, Failure> {
    between(plan, |test_bed| {
        let mut rows = Vec::new();
        for &column in columns {
            let sides = plan.sides(test_bed, column)?;
            for &ppm in loss_ppm {
                let loss_ppm = [ppm, ppm, ppm, 0];
                network::set_links(test_bed, Links { loss_ppm, ..Links::default() })?;
                let windows = plan.windows(&sides)?;
                network::set_links(test_bed, Links::default())?;
                let percent = f64::from(ppm) / 1e4;
                let case = (format!("{percent} % on 3 of 4"), percent);
                push(&mut rows, plan.row("loss", case, column.names(), (LINKS, &windows)), on_row);
            }
        }
        if plan.beside_mptcp {
            let side = mptcp::connect(test_bed)?;
            let sides = [RefCell::new(side)];
            for &ppm in loss_ppm {
                let loss_ppm = [ppm, ppm, ppm, 0];
                let links = Links { loss_ppm, is_tcp: true, ..Links::default() };
                network::set_links(test_bed, links)?;
                let windows = plan.windows(&sides)?;
                let percent = f64::from(ppm) / 1e4;
                let case = (format!("{percent} % on 3 of 4"), percent);
                push(&mut rows, plan.row("loss", case, MPTCP, (LINKS, &windows)), on_row);
            }
        }
        Ok(rows)
    })
}

/// Two links go down, and come back.
pub(crate) fn cut(
    plan: PathsPlan,
    columns: &[Column],
    on_row: OnRow<'_>,
) -> Result<Vec<VethRow>, Failure> {
    // With a single link left, one source port in sixteen works in both directions, and calls may fail before a session
    // has found it.
    const CHANGES: [(&str, Option<(usize, bool)>); 5] = [
        ("none", None),
        ("cut 1", Some((0, false))),
        ("cut 2", Some((1, false))),
        ("back 1", Some((0, true))),
        ("back 2", Some((1, true))),
    ];
    between(plan, |test_bed| {
        let mut rows = Vec::new();
        for (kind, is_silent) in [("silent", true), ("link-down", false)] {
            for &column in columns {
                if is_silent && column.policy == PathPolicy::Single {
                    // Its calls end after 3.5 s without an answer, if the link is its own.
                    continue;
                }
                let sides = plan.sides(test_bed, column)?;
                let mut links = Links::default();
                let mut is_up = [true; LINKS];
                for (number, (name, change)) in (0u32..).zip(CHANGES) {
                    if let Some((link, up)) = change {
                        is_up[link] = up;
                        links.silent[link] = !up;
                        match is_silent {
                            true => network::set_links(test_bed, links)?,
                            false => {
                                network::set_up_link(link, up)?;
                                std::thread::sleep(NOTICE);
                            }
                        }
                    }
                    let windows = plan.windows(&sides)?;
                    let count = is_up.iter().filter(|is_up| **is_up).count();
                    let case = (format!("{kind}, {name}"), f64::from(number));
                    push(
                        &mut rows,
                        plan.row("cut", case, column.names(), (count, &windows)),
                        on_row,
                    );
                }
            }
        }
        Ok(rows)
    })
}

/// Four clients call at once, over separate sessions.
pub(crate) fn permutation(
    plan: PathsPlan,
    columns: &[Column],
    on_row: OnRow<'_>,
) -> Result<Vec<VethRow>, Failure> {
    between(plan, |test_bed| {
        let mut rows = Vec::new();
        for &column in columns {
            let (mut sums, mut shares) = (Vec::new(), Vec::new());
            for _ in 0..plan.sessions {
                let (mut side, by_client) = Clients::four(&plan, test_bed, column)?;
                sums.push(check(side.window(plan.window)?)?);
                shares.extend(by_client.take());
            }
            let case = ("4 clients".to_owned(), 1.0);
            let mut row = plan.row("permutation", case, column.names(), (LINKS, &sums));
            shares.sort_unstable_by(f64::total_cmp);
            row.least_mbit = shares.first().copied().unwrap_or(0.0);
            row.most_mbit = shares.last().copied().unwrap_or(0.0);
            push(&mut rows, row, on_row);
        }
        Ok(rows)
    })
}

/// Adds a row, and its goodput relative to the first of its kind.
fn push(rows: &mut Vec<VethRow>, mut row: VethRow, on_row: OnRow<'_>) {
    let is_same = |first: &&VethRow| (first.policy, first.recovery) == (row.policy, row.recovery);
    let first = rows.iter().find(is_same).map_or(row.goodput_mbit, |row| row.goodput_mbit);
    row.relative = row.goodput_mbit / first;
    on_row(&row);
    rows.push(row);
}

fn between<T: Send>(
    plan: PathsPlan,
    work: impl FnOnce(&TestBed) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    veth::on_thread(|| network::set_up(plan.is_realtime).and_then(|test_bed| work(&test_bed)))
}

/// Returns the window, or an error if a call failed or was answered wrongly, which makes the figure invalid.
fn check(window: Window) -> Result<Window, Failure> {
    if let Some(failure) = window.failures.first() {
        return Err(Failure::because(failure));
    }
    match window.mismatched {
        0 if window.checked > 0 => Ok(window),
        0 => Err(Failure::because("no request was answered within a window")),
        count => Err(Failure::because(format!("{count} answers were wrong"))),
    }
}

fn mbit(window: &Window) -> f64 {
    window.bits_per_second() / 1e6
}

impl PathsPlan {
    fn measurement(&self) -> Measurement {
        Measurement {
            quantity: Quantity::Bandwidth,
            transport: BenchTransport::Udp,
            cores: Cores::Two,
            size: REQUEST_BYTES,
            in_flight: REQUESTS_IN_FLIGHT,
            batch: 1,
            pace: Pace {
                duration: self.window,
                window: self.window,
                is_realtime: self.is_realtime,
            },
            connect: None,
            plan: SessionPlan::Raised,
            beside: Beside::Bare,
        }
    }

    fn shape(&self, column: Column) -> Shape {
        let shape = self.measurement().shape();
        Shape { exchange: Exchange::Samples, adjust: column.adjust(), ..shape }
    }

    /// Creates the pairs of ends of a row, each with a session.
    fn sides(
        &self,
        test_bed: &TestBed,
        column: Column,
    ) -> Result<Vec<RefCell<Box<dyn Side>>>, Failure> {
        let one = |_| self.measurement().library(test_bed, &self.shape(column)).map(RefCell::new);
        (0..self.sessions).map(one).collect()
    }

    /// Runs a window of every session, in turn.
    fn windows(&self, sides: &[RefCell<Box<dyn Side>>]) -> Result<Vec<Window>, Failure> {
        sides.iter().map(|side| check(side.borrow_mut().window(self.window)?)).collect()
    }

    fn row(
        &self,
        experiment: &'static str,
        (case, level): (String, f64),
        (policy, recovery): (&'static str, &'static str),
        (links, windows): (usize, &[Window]),
    ) -> VethRow {
        let rates = || windows.iter().map(mbit);
        let sum = |of: fn(&Window) -> u64| windows.iter().map(of).sum();
        let goodput_mbit = rates().fold(0.0, |sum, rate| sum + rate) / windows.len() as f64;
        VethRow {
            network: "veth",
            experiment,
            case,
            level,
            policy,
            recovery,
            goodput_mbit,
            share: goodput_mbit / (links as f64 * LINK_MBIT as f64 * PAYLOAD_SHARE),
            relative: 1.0,
            least_mbit: rates().fold(f64::INFINITY, f64::min),
            most_mbit: rates().fold(0.0, f64::max),
            answered: sum(|window| window.checked),
            retransmissions: sum(|window| window.traffic.retransmissions),
            duplicates: sum(|window| window.traffic.duplicates),
            timeouts: sum(|window| window.traffic.timeouts),
            probes: sum(|window| window.traffic.probes),
            sessions: windows.len(),
            window_ns: self.window.as_nanos() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of__has_both_recoveries_of_one_path_only() {
        let columns = Column::of(&[PathPolicy::Coupled, PathPolicy::Single]);
        let names: Vec<_> = columns.iter().map(|column| column.names()).collect();
        let expected = [("coupled", "selective"), ("single", "selective"), ("single", "go-back-n")];
        assert_eq!(names, expected);
    }

    #[test]
    fn adjust__gives_further_ports_to_several_paths_alone() {
        for policy in PathPolicy::ALL {
            for column in Column::of(&[policy]) {
                let mut config = EndpointConfig::default();
                (column.adjust())(&mut config);
                let is_single = policy == PathPolicy::Single;
                assert_eq!(config.host.udp.further_ports > 0, !is_single);
                assert_eq!(config.sessions.path_policy, policy);
                assert_eq!(config.protocol.recovery, column.recovery);
            }
        }
    }
}
