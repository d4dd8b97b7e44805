//! The workload of nodes: they open sessions, make calls in bursts, and close sessions at bad moments.

use petrel::{Context, MsgBuf};

use super::call::{GROWN_BYTES, Method, Spec};
use super::node::{Node, Open, Phase};
use super::pattern::ID_BYTES;
use super::swarm::Feature;
use crate::rng::Rng;

/// The first and the longest interval between attempts to open a missing session.
const RETRY_NS: u64 = 2_000_000;
const RETRY_NS_MAX: u64 = 128_000_000;

/// Minimum pause between actions of the workload.
const WORK_NS_MIN: u64 = 1_000;

impl Node {
    /// Performs the actions that are due.
    pub(super) fn work(&mut self, now_ns: u64) {
        let phase = self.shared.common.phase.get();
        if self.begun < phase {
            self.begun = phase;
            self.begin(phase);
        }
        if now_ns < self.next_work_ns {
            return;
        }
        self.next_work_ns = u64::MAX;
        if phase == Phase::Active {
            self.sweep();
            self.open_some();
            self.issue_some();
            self.run_client_calls();
            self.run_region_calls();
            self.disturb();
            self.next_work_ns = self.draw_next_work_ns(now_ns);
        } else if phase == Phase::Draining {
            // Handlers still make calls.
            self.sweep();
            self.open_nested_sessions();
            self.next_work_ns = now_ns + self.retry_ns;
            self.retry_ns = (2 * self.retry_ns).min(RETRY_NS_MAX);
        }
    }

    fn begin(&mut self, phase: Phase) {
        match phase {
            Phase::Active => {}
            Phase::Draining => {
                self.shared.free_list.borrow_mut().clear();
                self.retry_ns = RETRY_NS;
            }
            Phase::Probing => self.probe(),
            Phase::Resting => self.retire_clients(),
            Phase::Measuring => {}
            Phase::Closing => self.close_all(),
        }
    }

    fn draw_next_work_ns(&self, now_ns: u64) -> u64 {
        let scenario = &self.shared.common.scenario;
        let rounds = u64::from(scenario.calls) / (scenario.burst_max / 2).max(1) + 2;
        let mean_ns = (scenario.active_ns / rounds).max(WORK_NS_MIN);
        let pause_ns = self.shared.rng.borrow_mut().between(WORK_NS_MIN, 2 * mean_ns);
        now_ns + pause_ns.min(RETRY_NS)
    }

    /// Opens the missing sessions.
    fn open_some(&mut self) {
        self.open_nested_sessions();
        let wanted = self.shared.common.scenario.sessions_per_target;
        for target in self.targets.clone() {
            let is_same = |open: &&Open| open.target == target && !open.is_nested;
            let plain = self.open.iter().filter(is_same).count() as u64;
            if plain < wanted && self.shared.rng.borrow_mut().below(1 + 3 * plain) == 0 {
                self.connect(target, false);
            }
        }
    }

    fn open_nested_sessions(&mut self) {
        for target in self.targets.clone() {
            if !self.open.iter().any(|open| open.target == target && open.is_nested) {
                self.connect(target, true);
            }
        }
    }

    fn issue_some(&mut self) {
        let burst_max = self.shared.common.scenario.burst_max;
        let burst = self.shared.rng.borrow_mut().between(0, burst_max) as u32;
        let plain: Vec<Open> = self.open.iter().filter(|open| !open.is_nested).copied().collect();
        if plain.is_empty() {
            return;
        }
        let stays = self.shared.rng.borrow_mut().below(2) == 0;
        let mut chosen = self.pick(&plain);
        for _ in 0..burst.min(self.calls_left) {
            if !stays {
                chosen = self.pick(&plain);
            }
            let spec = self.draw_spec(chosen);
            self.issue(chosen, spec);
        }
    }

    fn pick(&self, from: &[Open]) -> Open {
        from[self.shared.rng.borrow_mut().below(from.len() as u64) as usize]
    }

    pub(super) fn issue(&mut self, open: Open, spec: Spec) {
        self.calls_left = self.calls_left.saturating_sub(1);
        let moved = u64::from(spec.request_len) + u64::from(spec.response_len);
        self.bytes_left = self.bytes_left.saturating_sub(moved);
        let to = (open.session, open.target.at);
        let nothing = |_: &mut Context<'_>, _: Option<MsgBuf>| {};
        self.shared.call(&mut self.endpoint.context(), to, spec, None, nothing);
    }

    /// Closes sessions with pending calls, and uses some ended sessions.
    fn disturb(&mut self) {
        if let Some(over) = self.over.pop() {
            // The name is stale, even if its index was reused for a new session.
            self.close(over.session);
            let spec = Spec {
                method: Method::Echo,
                request_len: 20,
                response_len: 20,
                slack: 0,
                delay_ns: 0,
            };
            self.issue(over, spec);
        }
        if !self.shared.common.scenario.closes_sessions {
            return;
        }
        let [as_client, as_server] =
            std::array::from_fn(|_| self.shared.rng.borrow_mut().below(20) == 0);
        if as_client && !self.open.is_empty() {
            let victim = self.pick(&self.open);
            if !victim.is_nested {
                self.close(victim.session);
            }
        }
        if as_server {
            self.close_served();
        }
    }

    /// Closes a session as its server.
    fn close_served(&mut self) {
        let mut served = self.shared.served.borrow_mut();
        let count = served.len() as u64;
        let index = self.shared.rng.borrow_mut().below(count) as usize;
        let Some(&session) = served.iter().nth(index) else { return };
        served.remove(&session);
        drop(served);
        if self.endpoint.core().agreed(session).is_some() {
            let hosts = self.targets.iter().map(|target| target.at.host);
            let now_ns = self.shared.common.fabric.now_ns();
            let all: Vec<_> = hosts.chain([self.shared.at.host]).collect();
            self.shared.ledger().fault_windows.add(all, now_ns, 0);
            self.endpoint.close(session);
        }
    }

    /// Draws the method, lengths and delay of a call.
    fn draw_spec(&self, open: Open) -> Spec {
        let rng = &mut *self.shared.rng.borrow_mut();
        let scenario = &self.shared.common.scenario;
        let packet = self.packet_bytes(open);
        let method = scenario.swarm.method(draw_method(rng));
        let request_len = self.draw_len(rng, packet).max(ID_BYTES as u32);
        let response_len = self.draw_len(rng, packet);
        let delay_ns = rng.between(0, scenario.deferred_ns_max);
        let slack = draw_slack(rng);
        let slack = if scenario.swarm.allows(Feature::Slack) { slack } else { 0 };
        let plain = Spec { method, request_len, response_len, slack, delay_ns };
        match method {
            Method::Echo => Spec { response_len: request_len, ..plain },
            Method::TinyEcho => {
                let len = rng.below(2) as u32;
                Spec { request_len: len, response_len: len, ..plain }
            }
            Method::TinyGrow => {
                Spec { request_len: rng.below(2) as u32, response_len: GROWN_BYTES, ..plain }
            }
            Method::Fail => Spec { response_len: rng.below(3_000) as u32, ..plain },
            Method::Huge if scenario.message_bytes_max <= 512 << 10 => {
                Spec { response_len: scenario.message_bytes_max + 1, ..plain }
            }
            Method::Huge => Spec { method: Method::Echo, response_len: request_len, ..plain },
            Method::Unknown if scenario.message_bytes_max <= 512 << 10 && rng.below(2) == 0 => {
                Spec { request_len: scenario.message_bytes_max + 1, ..plain }
            }
            _ => plain,
        }
    }

    fn packet_bytes(&self, open: Open) -> u32 {
        self.endpoint.core().agreed(open.session).map_or(1_440, |agreed| agreed.packet_bytes)
    }

    /// Draws a length near the boundaries of behaviour, within the remaining bytes.
    fn draw_len(&self, rng: &mut Rng, packet: u32) -> u32 {
        let scenario = &self.shared.common.scenario;
        let near = |rng: &mut Rng, len: u32| (len + rng.below(3) as u32).saturating_sub(1);
        // The first classes have one packet.
        let classes = if scenario.swarm.allows(Feature::Large) { 20 } else { 8 };
        let len = match rng.below(classes) {
            0..6 => rng.below(100) as u32,
            6..8 => near(rng, 1),
            8..13 => near(rng, packet),
            13..16 => {
                let packets = rng.between(2, 8) as u32;
                near(rng, packet * packets)
            }
            16..18 => rng.below(50_000) as u32,
            18 => {
                // Across the window.
                let packets = rng.between(250, 300) as u32;
                near(rng, packet * packets)
            }
            _ if scenario.has_large => scenario.message_bytes_max - rng.below(2) as u32,
            _ => rng.below(400_000) as u32,
        };
        let affordable = u64::from(len) <= self.bytes_left / 2;
        let len = if affordable { len } else { rng.below(2 * u64::from(packet)) as u32 };
        len.min(scenario.message_bytes_max)
    }

    /// Makes one call to every target over a new session.
    fn probe(&mut self) {
        self.probed = true;
        self.probe_clients();
        self.probe_regions();
        self.sweep();
        for target in self.targets.clone() {
            if self.connect(target, false).is_some() {
                let open = self.open[self.open.len() - 1];
                let spec = Spec {
                    method: Method::Transform,
                    request_len: 3_000,
                    response_len: 5_000,
                    slack: 0,
                    delay_ns: 0,
                };
                self.issue(open, spec);
            }
        }
    }

    fn close_all(&mut self) {
        for open in std::mem::take(&mut self.open) {
            self.close(open.session);
        }
    }
}

fn draw_method(rng: &mut Rng) -> Method {
    match rng.below(100) {
        0..25 => Method::Echo,
        25..55 => Method::Transform,
        55..65 => Method::Deferred,
        65..75 => Method::Nested,
        75..80 => Method::Fail,
        80..83 => Method::Drop,
        83..85 => Method::Huge,
        85..91 => Method::TinyEcho,
        91..97 => Method::TinyGrow,
        _ => Method::Unknown,
    }
}

/// Draws the difference between the caller's buffer and the answer.
fn draw_slack(rng: &mut Rng) -> i64 {
    match rng.below(20) {
        0 => -(rng.between(1, 3_000) as i64),
        1..4 => rng.below(300_000) as i64,
        4..8 => rng.below(10_000) as i64,
        _ => 0,
    }
}
