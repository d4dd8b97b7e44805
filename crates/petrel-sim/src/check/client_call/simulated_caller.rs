//! Simulated callers: the clients of a node, and the calls made with them. All draws come from a separate
//! stream: worlds without client calls stay unchanged.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::time::Duration;

use petrel::Client;
use petrel::client::{Balance, ClientConfig};
use petrel::endpoint::{CallKey, CallOptions, SessionState};
use petrel::overload::BackoffConfig;
use petrel::task::Task;

use super::{ClientCall, Destinations, Outcome, Work, redirect};
use crate::check::node::{Node, Open, Phase, Shared, Target};
use crate::check::pattern::ID_BYTES;
use crate::fabric::SimAddr;
use crate::rng::Rng;

/// Maximum number of clients of a node.
const CLIENTS_MAX: u64 = 3;

/// Maximum number of calls begun at once.
const BURST_MAX: u64 = 6;

/// Timeout for a call made after faults have ended, which must succeed.
const PROBE_NS: u64 = 20_000_000_000;

/// Timeout where servers have no room for sessions: the call may fail, and clients ask for sessions
/// meanwhile.
const FEW_SESSIONS_PROBE_NS: u64 = 1_000_000_000;

pub(in crate::check) struct SimulatedCaller {
    pub(super) rng: Rng,
    clients: Vec<ClientState>,
    running: Vec<Running>,
    left: u32,
    next_number: u32,
}

/// A client with the checker's state.
struct ClientState {
    number: u32,
    client: Client,
    servers: Vec<SimAddr>,
    /// Earlier servers, kept until the endpoint's event loop has processed the change.
    former: Rc<RefCell<Vec<SimAddr>>>,
    attempts_max: u32,
    /// Whether one of the servers leads, and the others redirect.
    is_led: bool,
}

/// A client call that has not ended.
struct Running {
    id: u32,
    client: u32,
    handle: CallHandle,
}

enum CallHandle {
    Task(Task<()>),
    /// The call has a continuation, and may be cancelled.
    Key(CallKey),
    /// The call has a continuation.
    Nothing,
}

impl CallHandle {
    fn may_give_up(&self) -> bool {
        !matches!(self, CallHandle::Nothing)
    }
}

#[derive(Clone, Copy, Debug)]
struct CallSettings {
    options: CallOptions,
    timeout_ns: u64,
    is_idempotent: bool,
}

impl SimulatedCaller {
    pub(in crate::check) fn new(rng: Rng, client_calls: u32) -> Self {
        Self { rng, clients: Vec::new(), running: Vec::new(), left: client_calls, next_number: 0 }
    }

    /// Adds up the statistics of a client before the client is dropped.
    fn retire(state: &ClientState, shared: &Shared) {
        let stats = state.client.stats();
        let counts = &mut shared.ledger().client_call_counts;
        counts.retries += stats.retries;
        counts.hedges += stats.hedges;
        counts.hedges_won += stats.hedges_won;
        counts.sessions_opened += stats.sessions_opened;
        counts.connects_failed += stats.connects_failed;
    }

    /// Drops the clients: their sessions are closed when the last call has ended.
    pub(in crate::check) fn retire_all(&mut self, shared: &Shared) {
        self.clients.iter().for_each(|state| Self::retire(state, shared));
        self.clients.clear();
    }

    /// Describes the clients' servers and waiting calls.
    pub(in crate::check) fn describe(&self) -> String {
        let clients = self.clients.iter().map(|state| format!("{:?}", state.client));
        clients.collect::<Vec<_>>().join(", ")
    }
}

impl Node {
    /// Begins some calls, drops some, and sometimes drops a client with outstanding calls.
    pub(in crate::check) fn run_client_calls(&mut self) {
        let Some(mut caller) = self.caller.take() else { return };
        let ledger = Rc::clone(&self.shared.common.ledger);
        let is_pending = |id: u32| {
            ledger
                .borrow()
                .client_call(id)
                .is_some_and(|client_call| client_call.outcome == Outcome::Pending)
        };
        caller.running.retain(|running| is_pending(running.id));
        self.renew_clients(&mut caller);
        let burst = caller.rng.between(0, BURST_MAX) as u32;
        for _ in 0..burst.min(caller.left) {
            caller.left -= 1;
            if caller.rng.below(4) == 0 {
                self.call_group(&mut caller);
            } else {
                self.call_by_client(&mut caller, None);
            }
        }
        if !caller.running.is_empty() && caller.rng.below(6) == 0 {
            let place = caller.rng.below(caller.running.len() as u64) as usize;
            if caller.running[place].handle.may_give_up() {
                let Running { id, handle, .. } = caller.running.swap_remove(place);
                self.give_up(id, handle);
            }
        }
        self.caller = Some(caller);
    }

    /// Drops or cancels a call on behalf of its caller.
    fn give_up(&mut self, id: u32, handle: CallHandle) {
        let is_pending = |client_call: &ClientCall| client_call.outcome == Outcome::Pending;
        if !self.shared.ledger().client_call(id).is_some_and(is_pending) {
            return;
        }
        match handle {
            CallHandle::Task(task) => {
                self.shared.ledger().drop_client_call(id);
                self.shared.pending.set(self.shared.pending.get() - 1);
                task.abort();
            }
            // The continuation runs: with CANCELLED, or with the outcome that the call already has.
            CallHandle::Key(key) => {
                if self.endpoint.context().cancel(key) {
                    self.shared.ledger().cancel_client_call(id);
                }
            }
            CallHandle::Nothing => {}
        }
    }

    /// Returns true if some calls have yet to begin.
    pub(in crate::check) fn has_client_calls_left(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.left > 0)
    }

    /// Drops a client, changes another's servers, and makes new clients, now and then.
    fn renew_clients(&mut self, caller: &mut SimulatedCaller) {
        let rng = &mut caller.rng;
        if !caller.clients.is_empty() && rng.below(10) == 0 {
            let place = rng.below(caller.clients.len() as u64) as usize;
            SimulatedCaller::retire(&caller.clients.swap_remove(place), &self.shared);
        }
        if !caller.clients.is_empty() && caller.rng.below(10) == 0 {
            self.change_targets(caller);
        }
        while (caller.clients.len() as u64) < CLIENTS_MAX && caller.rng.below(3) > 0 {
            let mut config = draw_config(&mut caller.rng);
            let attempts_max = config.attempts_max;
            let targets = draw_targets(&mut caller.rng, &self.targets);
            let servers = targets.iter().map(|target| target.at).collect();
            let number = caller.next_number;
            caller.next_number += 1;
            let has_leaders = self.shared.common.scenario.has_leaders;
            let is_led = has_leaders && number.is_multiple_of(3);
            config.judge = is_led.then(|| redirect::judge(&targets));
            let client = self.endpoint.client(addresses(&targets), config);
            caller.clients.push(ClientState {
                number,
                client,
                servers,
                former: Rc::default(),
                attempts_max,
                is_led,
            });
        }
    }

    /// Changes the servers of a client. Its outstanding calls may go to old and new servers.
    fn change_targets(&mut self, caller: &mut SimulatedCaller) {
        let place = caller.rng.below(caller.clients.len() as u64) as usize;
        let targets = draw_targets(&mut caller.rng, &self.targets);
        let state = &mut caller.clients[place];
        if state.is_led {
            // Its judge knows these servers.
            return;
        }
        let servers = targets.iter().map(|target| target.at).collect();
        state.former.borrow_mut().extend(mem::replace(&mut state.servers, servers));
        state.client.set_targets(addresses(&targets)).expect("addresses are not looked up");
        for running in caller.running.iter().filter(|running| running.client == state.number) {
            self.shared.ledger().add_servers(running.id, &state.servers);
        }
        // Tasks run after the event loop has processed its mailbox.
        let former = Rc::clone(&state.former);
        self.endpoint.handle().spawn(async move { former.borrow_mut().clear() });
        self.shared.ledger().client_call_counts.target_changes += 1;
    }

    /// Begins a drawn call of any client, or a call of the client `probed`, which must succeed.
    fn call_by_client(&mut self, caller: &mut SimulatedCaller, probed: Option<usize>) {
        let count = caller.clients.len() as u64;
        if count == 0 {
            return;
        }
        let place = probed.unwrap_or_else(|| caller.rng.below(count) as usize);
        let has_few_sessions = self.shared.common.scenario.has_few_sessions;
        let settings = match probed {
            Some(_) => CallSettings::within(if has_few_sessions {
                FEW_SESSIONS_PROBE_NS
            } else {
                PROBE_NS
            }),
            None => CallSettings::draw(&mut caller.rng),
        };
        let state = &caller.clients[place];
        let ClientState { number, client, servers, former, attempts_max, is_led } = state;
        let destinations = Destinations::Client {
            attempts_max: *attempts_max,
            is_idempotent: settings.is_idempotent,
        };
        let client_call = ClientCall {
            must_succeed: probed.is_some(),
            ..self.draw_client_call(
                &mut caller.rng,
                destinations,
                [&servers[..], &former.borrow()].concat(),
            )
        };
        let work = match (*is_led, probed) {
            (true, _) => Work::Led,
            // Worker pools may be overloaded.
            (false, Some(_)) => Work::Later,
            (false, None) => client_call.work,
        };
        let client_call = ClientCall { work, ..client_call };
        let (client, number) = (client.clone(), *number);
        let (id, request) = self.shared.ledger().issue_client_call(client_call);
        self.shared.pending.set(self.shared.pending.get() + 1);
        let style = caller.rng.below(3);
        let handle = self.call_in_style(style, &client, (id, work), &request, settings);
        caller.running.push(Running { id, client: number, handle });
    }

    /// Makes a client call: awaited in a task, or with a continuation.
    fn call_in_style(
        &mut self,
        style: u64,
        client: &Client,
        (id, work): (u32, Work),
        request: &[u8],
        settings: CallSettings,
    ) -> CallHandle {
        let shared = Rc::clone(&self.shared);
        if style == 0 {
            let (client, request) = (client.clone(), request.to_vec());
            return CallHandle::Task(self.endpoint.handle().spawn(async move {
                shared.begin_client_call(id, Some(settings.timeout_ns));
                let outcome = client.call(work.number(), request).options(settings.options).await;
                shared.client_ends(id, outcome.as_deref());
            }));
        }
        let ended = Rc::clone(&shared);
        let mut cx = self.endpoint.context();
        shared.begin_client_call(id, Some(settings.timeout_ns));
        let call = cx.call(client, work.number(), request).options(settings.options);
        let made = match style {
            1 => {
                let made = call
                    .then_cancellable(move |_, _, reply| ended.client_ends(id, reply.message()));
                made.map(CallHandle::Key)
            }
            _ => {
                let made = call.then(move |_, _, reply| ended.client_ends(id, reply.message()));
                made.map(|()| CallHandle::Nothing)
            }
        };
        made.unwrap_or_else(|rejected| {
            shared.client_ends(id, Err(&rejected.into()));
            CallHandle::Nothing
        })
    }

    pub(super) fn draw_client_call(
        &self,
        rng: &mut Rng,
        destinations: Destinations,
        servers: Vec<SimAddr>,
    ) -> ClientCall {
        let delay_ns = rng.between(0, self.shared.common.scenario.deferred_ns_max);
        ClientCall {
            work: Work::ALL[rng.below(4) as usize],
            destinations,
            client: self.shared.endpoint_number,
            client_at: self.shared.at,
            servers,
            request_len: draw_len(rng).max(ID_BYTES as u32),
            response_len: draw_len(rng),
            delay_ns,
            seed: 0,
            must_succeed: false,
            issued_ns: self.shared.ledger().now_ns,
            deadline_ns: None,
            attempts: Default::default(),
            left_ns: Default::default(),
            sessions: Default::default(),
            latest: None,
            redirects: Vec::new(),
            executions: Default::default(),
            must_not_execute: Default::default(),
            is_cancelled: false,
            dropped_ns: None,
            outcome: Outcome::Pending,
        }
    }

    /// Makes one call with every client, after the faults.
    pub(in crate::check) fn probe_clients(&mut self) {
        let Some(mut caller) = self.caller.take() else { return };
        for place in 0..caller.clients.len() {
            self.call_by_client(&mut caller, Some(place));
        }
        self.caller = Some(caller);
    }

    pub(in crate::check) fn retire_clients(&mut self) {
        if let Some(caller) = &mut self.caller {
            caller.retire_all(&self.shared);
        }
        if let Some(caller) = &mut self.region_caller {
            caller.retire();
        }
    }

    /// Draws open sessions for a group.
    pub(super) fn draw_members(&self, rng: &mut Rng) -> Vec<Open> {
        debug_assert!(self.shared.common.phase.get() == Phase::Active);
        let is_open = |open: &Open| {
            !open.is_nested && self.endpoint.session_state(open.session) == SessionState::Open
        };
        let mut members: Vec<Open> = self.open.iter().copied().filter(is_open).collect();
        let count = rng.between(1, 5) as usize;
        while members.len() > count {
            members.swap_remove(rng.below(members.len() as u64) as usize);
        }
        members
    }
}

impl Shared {
    /// Records the beginning of a call. The call itself makes the next reading of the clock.
    pub(super) fn begin_client_call(&self, id: u32, timeout_ns: Option<u64>) {
        let from_ns = self.common.fabric.next_reading_ns();
        let deadline_ns = timeout_ns.map(|timeout_ns| from_ns + timeout_ns);
        self.ledger().begin_client_call(id, deadline_ns);
    }
}

impl Shared {
    /// Records the end of a client's call.
    fn client_ends(&self, id: u32, outcome: Result<&[u8], &petrel::Error>) {
        self.pending.set(self.pending.get() - 1);
        self.ledger().end_client_call(id, outcome);
    }
}

fn draw_targets(rng: &mut Rng, all: &[Target]) -> Vec<Target> {
    let mut targets = all.to_vec();
    let count = rng.between(1, targets.len() as u64) as usize;
    while targets.len() > count {
        targets.swap_remove(rng.below(targets.len() as u64) as usize);
    }
    targets
}

fn addresses(targets: &[Target]) -> Vec<petrel::client::Target> {
    targets.iter().map(|target| (target.remote, target.endpoint).into()).collect()
}

impl CallSettings {
    fn draw(rng: &mut Rng) -> Self {
        let timeout_ns = match rng.below(4) {
            0 => rng.between(20_000, 2_000_000),
            _ => 1 << rng.between(20, 28),
        };
        let is_idempotent = rng.below(2) == 0;
        let mut options = CallOptions::new().timeout(Duration::from_nanos(timeout_ns));
        if is_idempotent {
            options = options.idempotent();
            if rng.below(2) == 0 {
                options = options.hedge_after(Duration::from_nanos(1 << rng.between(14, 22)));
            }
        }
        if rng.below(3) == 0 {
            options = options.wait_for_ready();
        }
        if rng.below(4) == 0 {
            options = options.key(&rng.below(8).to_le_bytes());
        }
        Self { options, timeout_ns, is_idempotent }
    }

    /// Returns options for a call that is retried until its timeout.
    fn within(timeout_ns: u64) -> Self {
        let options = CallOptions::new().timeout(Duration::from_nanos(timeout_ns));
        let options = options.idempotent().wait_for_ready();
        Self { options, timeout_ns, is_idempotent: true }
    }
}

fn draw_config(rng: &mut Rng) -> ClientConfig {
    let mut config = ClientConfig::default();
    let pauses = |rng: &mut Rng, first: (u64, u64), max_ns, growth_percent| BackoffConfig {
        first: Duration::from_nanos(1 << rng.between(first.0, first.1)),
        max: Duration::from_nanos(max_ns),
        growth_percent,
    };
    config.attempts_max = rng.between(1, 5) as u32;
    config.retry_backoff = pauses(rng, (12, 20), 5_000_000, 200);
    config.connect_backoff = pauses(rng, (14, 22), 60_000_000, 125);
    if rng.below(2) == 0 {
        config.concurrency = None;
    }
    if rng.below(4) == 0 {
        config.balance = Balance::TwoChoices;
    }
    config
}

fn draw_len(rng: &mut Rng) -> u32 {
    match rng.below(8) {
        0..5 => rng.below(100) as u32,
        5 => rng.between(1_190, 1_460) as u32,
        _ => rng.below(20_000) as u32,
    }
}
