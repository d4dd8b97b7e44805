//! Who runs errands: a node's channels, and what it asks of them. All of it is drawn from a stream of its
//! own, so that worlds without errands stay what they were.

use std::rc::Rc;
use std::time::Duration;

use petrel::overload::BackoffConfig;
use petrel::{CallOptions, Channel, ChannelConfig, SessionState, Task};

use super::{Errand, Fate, Spread, Work};
use crate::check::node::{Node, Open, Phase, Shared, Target};
use crate::check::pattern::ID_BYTES;
use crate::fabric::SimAddr;
use crate::rng::Rng;

/// Channels of a node.
const CHANNELS_MAX: u64 = 3;

/// Errands begun at once.
const BURST_MAX: u64 = 6;

/// How long one may take whose success is certain after the storm.
const PROBE_NS: u64 = 20_000_000_000;

/// How long one may take where servers have no room for sessions: it may fail, and channels ask for sessions all the while.
const CROWDED_PROBE_NS: u64 = 1_000_000_000;

/// A node's errands.
pub(in crate::check) struct Patron {
    pub(super) rng: Rng,
    channels: Vec<Kept>,
    running: Vec<(u32, Task<()>)>,
    left: u32,
}

/// A channel, and what the rules need to know of it.
struct Kept {
    channel: Channel,
    servers: Vec<SimAddr>,
    attempts_max: u32,
}

/// What the caller of a channel says.
#[derive(Clone, Copy, Debug)]
struct Wish {
    options: CallOptions,
    timeout_ns: u64,
    is_idempotent: bool,
}

impl Patron {
    pub(in crate::check) fn new(rng: Rng, errands: u32) -> Self {
        Self { rng, channels: Vec::new(), running: Vec::new(), left: errands }
    }

    /// Takes note of what a channel did that is going to be dropped.
    fn retire(kept: &Kept, shared: &Shared) {
        let stats = kept.channel.stats();
        let counts = &mut shared.ledger().errand_counts;
        counts.retries += stats.retries;
        counts.hedges += stats.hedges;
        counts.hedges_won += stats.hedges_won;
        counts.sessions_opened += stats.sessions_opened;
        counts.connects_failed += stats.connects_failed;
    }

    /// Drops the channels: their sessions are closed when the last errand has ended.
    pub(in crate::check) fn retire_all(&mut self, shared: &Shared) {
        self.channels.iter().for_each(|kept| Self::retire(kept, shared));
        self.channels.clear();
    }

    /// The channels' servers, and who waits for what.
    pub(in crate::check) fn describe(&self) -> String {
        let channels = self.channels.iter().map(|kept| format!("{:?}", kept.channel));
        channels.collect::<Vec<_>>().join(", ")
    }
}

impl Node {
    /// Begins some errands, drops some, and sometimes a channel with them under way.
    pub(in crate::check) fn run_errands(&mut self) {
        let Some(mut patron) = self.patron.take() else { return };
        let ledger = Rc::clone(&self.shared.common.ledger);
        let is_pending =
            |id: u32| ledger.borrow().errand(id).is_some_and(|errand| errand.fate == Fate::Pending);
        patron.running.retain(|(id, _)| is_pending(*id));
        self.renew_channels(&mut patron);
        let burst = patron.rng.between(0, BURST_MAX) as u32;
        for _ in 0..burst.min(patron.left) {
            patron.left -= 1;
            if patron.rng.below(4) == 0 {
                self.call_company(&mut patron);
            } else {
                self.call_by_channel(&mut patron, None);
            }
        }
        if !patron.running.is_empty() && patron.rng.below(6) == 0 {
            let place = patron.rng.below(patron.running.len() as u64) as usize;
            let (id, task) = patron.running.swap_remove(place);
            if is_pending(id) {
                self.shared.ledger().drop_errand(id);
                self.shared.pending.set(self.shared.pending.get() - 1);
                task.abort();
            }
        }
        self.patron = Some(patron);
    }

    /// Whether errands are left to be begun.
    pub(in crate::check) fn has_errands_left(&self) -> bool {
        self.patron.as_ref().is_some_and(|patron| patron.left > 0)
    }

    fn renew_channels(&mut self, patron: &mut Patron) {
        let rng = &mut patron.rng;
        if !patron.channels.is_empty() && rng.below(10) == 0 {
            let place = rng.below(patron.channels.len() as u64) as usize;
            Patron::retire(&patron.channels.swap_remove(place), &self.shared);
        }
        while (patron.channels.len() as u64) < CHANNELS_MAX && rng.below(3) > 0 {
            let mut targets = self.targets.clone();
            let count = rng.between(1, targets.len() as u64) as usize;
            while targets.len() > count {
                targets.swap_remove(rng.below(targets.len() as u64) as usize);
            }
            let config = draw_config(rng);
            let attempts_max = config.attempts_max;
            let servers = targets.iter().map(|target| target.at).collect();
            let addresses =
                targets.iter().map(|&Target { remote, endpoint, .. }| (remote, endpoint));
            let channel = self.endpoint.handle().channel(addresses, config);
            patron.channels.push(Kept { channel, servers, attempts_max });
        }
    }

    fn call_by_channel(&mut self, patron: &mut Patron, probed: Option<usize>) {
        let count = patron.channels.len() as u64;
        if count == 0 {
            return;
        }
        let place = probed.unwrap_or_else(|| patron.rng.below(count) as usize);
        let is_crowded = self.shared.common.scenario.is_crowded;
        let wish = match probed {
            Some(_) => Wish::within(if is_crowded { CROWDED_PROBE_NS } else { PROBE_NS }),
            None => Wish::draw(&mut patron.rng),
        };
        let Kept { channel, servers, attempts_max } = &patron.channels[place];
        let spread =
            Spread::Channel { attempts_max: *attempts_max, is_idempotent: wish.is_idempotent };
        let errand = Errand {
            must_succeed: probed.is_some(),
            ..self.draw_errand(&mut patron.rng, spread, servers.clone())
        };
        // Workers may have too much to do.
        let errand = match probed {
            Some(_) => Errand { work: Work::Later, ..errand },
            None => errand,
        };
        let (channel, work, shared) = (channel.clone(), errand.work, Rc::clone(&self.shared));
        let (id, request) = self.shared.ledger().send_out(errand);
        self.shared.pending.set(self.shared.pending.get() + 1);
        let task = self.endpoint.handle().spawn(async move {
            shared.begin_errand(id, Some(wish.timeout_ns));
            let outcome = channel.call(work.number(), &request, wish.options).await;
            shared.pending.set(shared.pending.get() - 1);
            shared.ledger().end_errand(id, &outcome);
        });
        patron.running.push((id, task));
    }

    /// What one is about.
    pub(super) fn draw_errand(
        &self,
        rng: &mut Rng,
        spread: Spread,
        servers: Vec<SimAddr>,
    ) -> Errand {
        let delay_ns = rng.between(0, self.shared.common.scenario.deferred_ns_max);
        Errand {
            work: Work::ALL[rng.below(4) as usize],
            spread,
            client: self.shared.party,
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
            executions: Default::default(),
            barred: Default::default(),
            fate: Fate::Pending,
        }
    }

    /// Calls once by each channel, after the storm.
    pub(in crate::check) fn probe_channels(&mut self) {
        let Some(mut patron) = self.patron.take() else { return };
        for place in 0..patron.channels.len() {
            self.call_by_channel(&mut patron, Some(place));
        }
        self.patron = Some(patron);
    }

    /// Drops all channels.
    pub(in crate::check) fn retire_channels(&mut self) {
        if let Some(patron) = &mut self.patron {
            patron.retire_all(&self.shared);
        }
    }

    /// Sessions that a group may have: some that are open.
    pub(super) fn draw_members(&self, rng: &mut Rng) -> Vec<Open> {
        debug_assert!(self.shared.common.phase.get() == Phase::Active);
        let is_open = |open: &Open| {
            !open.is_leaf && self.endpoint.session_state(open.session) == SessionState::Open
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
    /// The caller of an errand begins to wait. What reads the clock next is the call.
    pub(super) fn begin_errand(&self, id: u32, timeout_ns: Option<u64>) {
        let from_ns = self.common.fabric.next_reading_ns();
        let deadline_ns = timeout_ns.map(|timeout_ns| from_ns + timeout_ns);
        self.ledger().begin_errand(id, deadline_ns);
    }
}

impl Wish {
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
        Self { options, timeout_ns, is_idempotent }
    }

    /// One that is tried until its time is over.
    fn within(timeout_ns: u64) -> Self {
        let options = CallOptions::new().timeout(Duration::from_nanos(timeout_ns));
        let options = options.idempotent().wait_for_ready();
        Self { options, timeout_ns, is_idempotent: true }
    }
}

fn draw_config(rng: &mut Rng) -> ChannelConfig {
    let mut config = ChannelConfig::default();
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
    config
}

fn draw_len(rng: &mut Rng) -> u32 {
    match rng.below(8) {
        0..5 => rng.below(100) as u32,
        5 => rng.between(1_190, 1_460) as u32,
        _ => rng.below(20_000) as u32,
    }
}
