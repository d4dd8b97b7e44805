//! A server of a form and a client take turns on the thread.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use petrel::endpoint::{EndpointId, SessionState};
use petrel::{Endpoint, Nexus};
use petrel_batch_bench::served::{Service, Workload};
use petrel_command::failure::Failure;
use petrel_transport::clock;

use super::Form;
use super::calls::{Calls, Counts, LOOK_UP, first_word};
use crate::endpoints::polling;
use crate::turns::Turns;
use petrel_command::args::BenchTransport;

/// Sessions between client and server.
const SESSIONS: usize = 8;

/// How long to wait for sessions, and for calls after the end of a window.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A server and its client.
pub(super) struct Side<S: Service> {
    server: Endpoint,
    client: Endpoint<Calls<S>>,
}

/// The figures of a window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// The server's time per call.
    pub(super) server_ns: f64,
    /// The client's time per call.
    pub(super) client_ns: f64,
    pub(super) checked: u64,
    pub(super) wrong: u64,
    /// The latency of a call in microseconds: median, 99th percentile.
    pub(super) latency_us: [f64; 2],
}

impl<S: Service> Side<S> {
    pub(super) fn start(
        form: Form,
        transport: BenchTransport,
        workload: &Arc<Workload<S>>,
        in_flight: u16,
        group: usize,
    ) -> Result<Self, Failure> {
        let listen = ([127, 0, 0, 1], 0).into();
        let nexus = Nexus::builder().listen(listen).transports(transport.only()).start()?;
        let mut server = nexus.endpoint(polling(transport, true)).map_err(Failure::because)?;
        register(&mut server, (form, group), workload);
        let address = nexus.local_addr().unwrap_or(listen);
        let nexus = Nexus::builder().transports(transport.only()).start()?;
        let calls = Calls::new(Arc::clone(workload), form.is_echo());
        let client = nexus.endpoint_with(polling(transport, false), calls);
        let mut side = Self { server, client: client.map_err(Failure::because)? };
        let sessions = (0..SESSIONS).map(|_| side.client.connect_to(address, EndpointId(0)));
        let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
        side.run_until("all sessions are open", |client| {
            sessions.iter().all(|session| client.session_state(*session) == SessionState::Open)
        })?;
        side.client.with(|calls, cx| calls.set_sessions(cx, &sessions, in_flight.into()))?;
        Ok(side)
    }

    /// Runs both ends until a condition holds.
    fn run_until(
        &mut self,
        what: &str,
        holds: impl Fn(&Endpoint<Calls<S>>) -> bool,
    ) -> Result<(), Failure> {
        let end = Instant::now() + WAIT_MAX;
        while !holds(&self.client) {
            if Instant::now() > end {
                return Err(Failure::because(format!("{WAIT_MAX:?} passed before {what}")));
            }
            self.client.run_once();
            self.server.run_once();
            // The control plane's threads need the CPU as well.
            thread::yield_now();
        }
        Ok(())
    }

    /// Makes calls for a while, and times the turns of both ends.
    pub(super) fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        self.client.with(|calls, cx| calls.begin(cx));
        let [mut client_turns, mut server_turns] = [Turns::default(), Turns::default()];
        let mut now_ns = clock::now_ns();
        let end_ns = now_ns.saturating_add(length.as_nanos() as u64);
        // A busy machine may run another program for a whole window.
        while now_ns < end_ns
            || (self.client.state().ended() == 0 && self.client.state().active() > 0)
        {
            self.client.run_once();
            now_ns = client_turns.add(now_ns);
            self.server.run_once();
            now_ns = server_turns.add(now_ns);
        }
        let ended = self.client.state().ended();
        self.client.state_mut().stop();
        self.run_until("all calls have ended", |client| client.state().active() == 0)?;
        let Counts { right, wrong, mut latencies_ns, first_failure } =
            self.client.state_mut().take_counts();
        latencies_ns.sort_unstable();
        let at = |share: usize| {
            let place = latencies_ns.len() * share / 100;
            latencies_ns.get(place).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        match first_failure {
            Some(text) => Err(Failure::because(format!("a call failed: {text}"))),
            None => Ok(Window {
                server_ns: server_turns.total_ns() / ended as f64,
                client_ns: client_turns.total_ns() / ended as f64,
                checked: right + wrong,
                wrong,
                latency_us: [at(50), at(99)],
            }),
        }
    }
}

/// Sets the server's handler; batches have a size at most.
fn register<S: Service>(
    endpoint: &mut Endpoint,
    (form, group): (Form, usize),
    workload: &Arc<Workload<S>>,
) {
    let kept = Arc::clone(workload);
    match form {
        Form::Echo => endpoint.on(LOOK_UP, |(), cx, request| {
            let answer = first_word(request.data());
            request.reply(cx, &answer)
        }),
        Form::BatchedEcho => endpoint.on_batch(LOOK_UP, |(), cx, batch| {
            for (index, message) in batch.messages().enumerate() {
                batch.reply(cx, index, &first_word(message));
            }
        }),
        Form::Plain | Form::Prefetched => endpoint.on(LOOK_UP, move |(), cx, request| {
            let answer = kept.service.find(S::key(request.data())).to_le_bytes();
            request.reply(cx, &answer)
        }),
        Form::Batched => endpoint.on_batch(LOOK_UP, move |(), cx, batch| {
            let count = batch.messages().count();
            for first in (0..count).step_by(group) {
                let keys = batch.messages().skip(first).take(group).map(S::key);
                kept.service.find_batch(keys, |index, found| {
                    batch.reply(cx, first + index, &found.to_le_bytes());
                });
            }
        }),
    }
    if form == Form::Prefetched {
        let workload = Arc::clone(workload);
        endpoint.prefetch(LOOK_UP, move |message| workload.service.first_line(S::key(message)));
    }
}
