//! The latency budget of one small call, stage by stage (RAMCloud's slide on the causes of latency).
//!
//! Both ends read the clock at the application's places: before and after the call is made, at the begin and the end of
//! the handler, and in the continuation. The clocks of the two CPUs are the same counter. A stage that ends at the other
//! end contains the medium; the bare medium beside it has a round trip of its own.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use petrel::endpoint::SessionId;
use petrel::{Context, Endpoint, MsgBuf, Reply};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_transport::clock;
use serde::Serialize;

use super::ends::{ClientEnd, Side};
use super::figure::{Baseline, Quantity};
use super::library::{Answerer, Caller, EndConfig};
use super::measurement::{Measurement, SessionPlan};
use super::pairs::{Schedule, alternate};
use super::statistics::median;
use super::test_bed::{Cores, TestBed};
use super::window::Window;
use crate::args::{BenchTransport, BudgetArgs};

/// Bytes of a call; the first 8 are its number.
const CALL_BYTES: usize = 32;

/// The method.
const STAMPED: u16 = 1;

/// Calls whose stamps the server keeps, and most calls of a window.
const CALLS_MAX: usize = 1 << 15;

/// The server's readings of the clock: at the begin and the end of the handler, by the call's number.
static STAMPS: [[AtomicU64; 2]; CALLS_MAX] =
    [const { [const { AtomicU64::new(0) }; 2] }; CALLS_MAX];

/// The stages in their order.
const STAGES: [&str; 5] = [
    "call: made, and into the medium if it goes at once",
    "medium and receipt, up to the handler",
    "handler: an echo, with the answer's way into the medium",
    "medium and receipt, up to the continuation",
    "continuation: the answer is compared",
];

/// The times of a stage, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Row {
    bench: &'static str,
    transport: &'static str,
    stage: &'static str,
    /// Median of the windows' medians.
    ns: f64,
    windows: usize,
    calls: u64,
    mismatched: u64,
    command: String,
}

/// The client's readings for a call.
#[derive(Clone, Copy, Default)]
struct Stamps {
    begun_ns: u64,
    called_ns: u64,
    answered_ns: u64,
    compared_ns: u64,
}

/// The medians of each window, by stage.
type Medians = Rc<RefCell<Vec<[f64; STAGES.len()]>>>;

/// One call after the other: the state of the calling endpoint.
struct Stages {
    session: Option<SessionId>,
    stamps: Vec<Stamps>,
    end_ns: u64,
    started_ns: u64,
    mismatched: u64,
    failed: bool,
    is_active: bool,
    buffers: Option<(MsgBuf, MsgBuf)>,
    medians: Medians,
}

/// Runs the benchmark and prints its figures.
pub(super) fn run(args: &BudgetArgs, output: Output) -> Result<Outcome, Failure> {
    let (mut rows, mut is_valid) = (Vec::new(), true);
    for transport in &args.transport {
        let group = measure(args, *transport)?;
        group.iter().try_for_each(|row| output.record(row))?;
        is_valid &= group.iter().all(|row| row.mismatched == 0 && row.calls > 0);
        rows.extend(group);
    }
    let mut table = output.table(&["over", "stage", "ns"]);
    for row in &rows {
        table.add_row([row.transport, row.stage, &format!("{:.0}", row.ns)]);
    }
    output.line(table)?;
    output.line(format!(
        "A reading of the clock, some 10 to 20 ns, is in each stage.\nAgain:\n  {}",
        command(args)
    ))?;
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

fn measure(args: &BudgetArgs, transport: BenchTransport) -> Result<Vec<Row>, Failure> {
    let pace = args.windows.pace();
    let test_bed = TestBed::new(Cores::requested(2), pace.is_realtime)?;
    let medians = Medians::default();
    let mut library = library(&test_bed, transport, Rc::clone(&medians))?;
    let bare = Measurement {
        quantity: Quantity::Latency,
        transport,
        cores: test_bed.cores(),
        size: CALL_BYTES,
        in_flight: 1,
        batch: 1,
        pace,
        plan: SessionPlan::Default,
        is_beside_raised: false,
        connect: None,
    };
    let mut bare = bare.baseline(&test_bed, Baseline::BareMedium)?;
    let probe = test_bed.probe()?;
    let beside = Some(bare.as_mut() as &mut dyn Side);
    let pairs = alternate(Schedule::new(pace), library.as_mut(), beside, probe.as_ref(), |_| ())?;
    let windows = || pairs.kept.iter().chain(&pairs.dropped);
    let calls = windows().map(|pair| pair.library.checked).sum();
    let mismatched = windows().map(|pair| pair.library.mismatched).sum();
    let medians = medians.borrow();
    let row = |stage, ns: Option<f64>| Row {
        bench: "budget",
        transport: transport.name(),
        stage,
        ns: ns.unwrap_or_default(),
        windows: medians.len(),
        calls,
        mismatched,
        command: command(args),
    };
    let of_stage = |stage: usize| median(medians.iter().map(|window| window[stage]));
    let mut rows: Vec<Row> =
        STAGES.iter().enumerate().map(|(at, stage)| row(*stage, of_stage(at))).collect();
    let whole = median(medians.iter().map(|window| window[..4].iter().sum()));
    rows.push(row("first to fourth, a round trip", whole));
    let bare = windows().filter_map(|pair| pair.baseline.as_ref());
    rows.push(row(
        "the bare medium's round trip",
        median(bare.map(|window| window.p50_ns() as f64)),
    ));
    Ok(rows)
}

/// Creates the two ends.
fn library(
    test_bed: &TestBed,
    transport: BenchTransport,
    medians: Medians,
) -> Result<Box<dyn Side>, Failure> {
    let [_, server_address] = test_bed.addresses;
    let config = EndConfig::new(transport, server_address);
    let (sender, receiver) = mpsc::channel();
    let make_server = move || {
        let answerer = Answerer::start((server_address, 0).into(), &config, register)?;
        // The result is received in any case.
        let _ = sender.send(answerer.address());
        Ok(answerer)
    };
    test_bed.create_ends(make_server, |meanwhile| {
        let address = receiver.recv().map_err(Failure::because)?;
        let config = EndConfig::towards(transport, address.ip());
        let mut caller = Caller::start(address, &config, Stages::new(medians))?;
        caller.open((address, 0), 1, meanwhile)?;
        let session = caller.sessions[0];
        caller.endpoint.with(|stages, cx| stages.prepare(cx, session))?;
        Ok(caller)
    })
}

/// Registers the stamped echo.
fn register(endpoint: &mut Endpoint) {
    endpoint.on(STAMPED, |(), cx, request| {
        let begun_ns = clock::now_ns();
        let message: [u8; CALL_BYTES] = request.data().try_into().unwrap_or_default();
        let [begin, end] = &STAMPS[number(&message) as usize % CALLS_MAX];
        begin.store(begun_ns, Ordering::Release);
        let handled = request.reply(cx, &message);
        end.store(clock::now_ns(), Ordering::Release);
        handled
    });
}

/// Returns the number in a message; 0 for one that is too short.
fn number(message: &[u8]) -> u64 {
    message.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Stages {
    fn new(medians: Medians) -> Self {
        Self {
            session: None,
            stamps: Vec::with_capacity(CALLS_MAX),
            end_ns: 0,
            started_ns: 0,
            mismatched: 0,
            failed: false,
            is_active: false,
            buffers: None,
            medians,
        }
    }

    fn prepare(&mut self, cx: &mut Context<'_, Self>, session: SessionId) -> Result<(), Failure> {
        let alloc = || cx.alloc(CALL_BYTES).map_err(Failure::because);
        self.buffers = Some((alloc()?, alloc()?));
        self.session = Some(session);
        Ok(())
    }

    /// Makes the next call, unless the window is over.
    fn next(&mut self, cx: &mut Context<'_, Self>) {
        self.is_active = false;
        let now_ns = clock::now_ns();
        if now_ns >= self.end_ns || self.failed || self.stamps.len() == CALLS_MAX {
            return;
        }
        let Some(session) = self.session else { return };
        let Some((mut request, response)) = self.buffers.take() else { return };
        request.set_len(CALL_BYTES);
        request.fill(0);
        request[..8].copy_from_slice(&(self.stamps.len() as u64).to_le_bytes());
        self.stamps.push(Stamps { begun_ns: clock::now_ns(), ..Stamps::default() });
        let place = self.stamps.len() - 1;
        let made = cx.call(session, STAMPED, request).into_buffer(response).then(Self::on_reply);
        self.stamps[place].called_ns = clock::now_ns();
        match made {
            Ok(()) => self.is_active = true,
            Err(rejected) => {
                self.failed = true;
                self.buffers = rejected.request.zip(rejected.response);
            }
        }
    }

    fn on_reply(&mut self, cx: &mut Context<'_, Self>, reply: Reply) {
        let answered_ns = clock::now_ns();
        let is_right = reply.outcome.is_ok() && reply.response[..] == reply.request[..];
        self.failed |= reply.outcome.is_err();
        self.mismatched += u64::from(!is_right);
        self.buffers = Some((reply.request, reply.response));
        if let Some(stamps) = self.stamps.last_mut() {
            stamps.answered_ns = answered_ns;
            stamps.compared_ns = clock::now_ns();
        }
        self.next(cx);
    }

    /// Ends the window, and adds its medians. The server may not have left the handler of the last call.
    fn finish(&mut self) -> Window {
        let whole = self.stamps.len().saturating_sub(1);
        let stages: Vec<[f64; STAGES.len()]> = self.stamps[..whole]
            .iter()
            .enumerate()
            .map(|(call, stamps)| stages(stamps, STAMPS[call].each_ref().map(load)))
            .collect();
        if !stages.is_empty() {
            let of = |stage: usize| median(stages.iter().map(|call| call[stage])).unwrap_or(0.0);
            self.medians.borrow_mut().push(std::array::from_fn(of));
        }
        let mismatched = self.mismatched + u64::from(self.failed);
        let calls = self.stamps.len() as u64;
        let elapsed_ns = clock::now_ns() - self.started_ns;
        Window { calls, checked: calls, mismatched, elapsed_ns, ..Window::new(None) }
    }
}

fn load(stamp: &AtomicU64) -> u64 {
    stamp.load(Ordering::Acquire)
}

/// Returns the stages of a call, from the readings of client and server.
fn stages(client: &Stamps, [handler_ns, replied_ns]: [u64; 2]) -> [f64; STAGES.len()] {
    let places = [
        client.begun_ns,
        client.called_ns,
        handler_ns,
        replied_ns,
        client.answered_ns,
        client.compared_ns,
    ];
    // A handler on another CPU can begin before the call has returned: then the stage is negative.
    std::array::from_fn(|stage| places[stage + 1] as f64 - places[stage] as f64)
}

impl ClientEnd for Caller<Stages> {
    fn begin(&mut self, end_ns: u64) {
        self.endpoint.with(|stages, cx| {
            stages.stamps.clear();
            (stages.mismatched, stages.failed) = (0, false);
            (stages.end_ns, stages.started_ns) = (end_ns, clock::now_ns());
            stages.next(cx);
        });
    }

    fn poll_once(&mut self) {
        self.endpoint.run_once();
    }

    fn is_over(&self) -> bool {
        !self.endpoint.state().is_active
    }

    fn give_up(&mut self, _timeout: Duration) {
        self.endpoint.state_mut().end_ns = 0;
        self.sessions.iter().for_each(|session| self.endpoint.close(*session));
    }

    fn finish(&mut self) -> Window {
        self.endpoint.state_mut().finish()
    }
}

fn command(args: &BudgetArgs) -> String {
    let transports: Vec<_> = args.transport.iter().map(|transport| transport.name()).collect();
    format!(
        "petrel bench budget --transport {}{}",
        transports.join(","),
        args.windows.pace().flags()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages__are_the_differences_of_the_readings() {
        let client = Stamps { begun_ns: 10, called_ns: 30, answered_ns: 100, compared_ns: 105 };
        assert_eq!(stages(&client, [60, 75]), [20.0, 30.0, 15.0, 25.0, 5.0]);
        assert_eq!(
            stages(&client, [25, 75])[1],
            -5.0,
            "the handler began before the call returned"
        );
    }

    #[test]
    fn number__is_that_of_the_first_bytes() {
        assert_eq!(number(&[3, 1, 0, 0, 0, 0, 0, 0, 9]), 259);
        assert_eq!(number(&[3]), 0);
    }
}
