//! A leader that is slower than its followers hands leadership over.
//!
//! Followers elect no other leader while heartbeats arrive, and heartbeats need neither a fast disk nor much of a CPU.
//! The leader therefore watches itself. A tick is slow if the leader's log lacks entries that a majority stored some
//! ticks ago, or if the leader's thread missed the ticks before.

use std::collections::VecDeque;

use raft::{ProgressState, StateRole};

use super::Member;
use crate::replica::config::ReplicaConfig;

/// Ticks by which a leader's log may lag the commit index: a heartbeat.
const LAG_TICKS: usize = 2;

/// Election timeouts of slow ticks after which a leader gives up: a second by default. One sync of a busy disk, or one
/// pause of a thread, is no reason.
const SLOW_ELECTIONS: u64 = 2;

/// The weight of a slow tick against another: writes come and go, and a slow disk shows only while they come.
const SLOW_TICK_SCORE: u64 = 2;

/// Election timeouts between two handovers: ten seconds by default. If all replicas are slow, leadership stays.
const PAUSE_ELECTIONS: u64 = 20;

/// The account of a leader's slow ticks.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    ticked_ns: u64,
    /// Commit indices at the last ticks, the oldest first.
    committed: VecDeque<u64>,
    /// Slow ticks, with their weight, less the others.
    score: u64,
    /// Time before which the leader keeps leadership.
    patient_until_ns: u64,
}

impl Slowness {
    /// Begins a pause without handovers.
    pub(super) fn pause(&mut self, now_ns: u64, config: &ReplicaConfig) {
        self.score = 0;
        self.patient_until_ns = now_ns + PAUSE_ELECTIONS * config.election.as_nanos() as u64;
    }

    /// Forgets what happened before this replica led.
    pub(super) fn restart(&mut self, now_ns: u64) {
        self.committed.clear();
        (self.score, self.ticked_ns) = (0, now_ns);
    }

    /// Notes a tick of a leader. Returns true if another replica should lead.
    fn note_tick(
        &mut self,
        now_ns: u64,
        config: &ReplicaConfig,
        persisted: u64,
        committed: u64,
    ) -> bool {
        let since_ns = now_ns - std::mem::replace(&mut self.ticked_ns, now_ns);
        let election_ticks = config.election_ticks() as u64;
        let ticks = since_ns / config.tick().as_nanos() as u64;
        // A single pause counts for half an election timeout at most.
        let missed = ticks.saturating_sub(1).min(election_ticks / 2);
        self.committed.push_back(committed);
        let stored_long_ago =
            if self.committed.len() > LAG_TICKS { self.committed.pop_front() } else { None };
        let lags = stored_long_ago.is_some_and(|index| persisted < index);
        if lags || missed >= LAG_TICKS as u64 {
            self.score += SLOW_TICK_SCORE * (1 + missed);
        } else {
            self.score = self.score.saturating_sub(1);
        }
        let most = SLOW_TICK_SCORE * SLOW_ELECTIONS * election_ticks;
        self.score > most && now_ns >= self.patient_until_ns
    }
}

impl Member {
    /// Hands leadership over if this replica leads and has been slow for long.
    pub(super) fn give_up_if_slow(&mut self, now_ns: u64, config: &ReplicaConfig) {
        let raft = &self.raft.raft;
        let (log, leads) = (&raft.raft_log, raft.state == StateRole::Leader);
        if !leads || !self.slowness.note_tick(now_ns, config, log.persisted, log.committed) {
            return;
        }
        let Some(successor) = self.successor().filter(|_| self.is_settled()) else { return };
        self.slowness.pause(now_ns, config);
        self.stats.handovers += 1;
        slog::warn!(config.logger, "this leader is slower than its followers, and hands over";
            "to" => format!("{successor:x}"), "log behind" => log_lag(&self.raft.raft.raft_log));
        self.hand_over_to(successor);
    }

    /// The voter with the longest log, if its log has all committed entries.
    fn successor(&self) -> Option<u64> {
        let (raft, own) = (&self.raft.raft, self.identity.replica);
        let voters = raft.prs().conf().to_conf_state().voters;
        let is_fit = |(peer, progress): &(&u64, &raft::Progress)| {
            **peer != own
                && voters.contains(peer)
                && progress.recent_active
                && progress.state == ProgressState::Replicate
                && progress.matched >= raft.raft_log.committed
        };
        let best = raft.prs().iter().filter(is_fit).max_by_key(|(_, progress)| progress.matched);
        best.map(|(peer, _)| *peer)
    }
}

fn log_lag<T: raft::Storage>(log: &raft::RaftLog<T>) -> u64 {
    log.committed.saturating_sub(log.persisted)
}

#[cfg(test)]
mod tests {
    use super::super::{test_endpoint, test_leader_with};
    use super::*;
    use crate::persist::{Batch, Checkpoint, LogFailure, LogStore};
    use crate::replica::links::Links;
    use crate::replica::membership::replica_name;
    use raft::eraftpb::{Message, MessageType};

    const TICK_NS: u64 = 25_000_000;

    /// A disk that never syncs.
    struct Stuck;

    impl LogStore for Stuck {
        fn is_volatile(&self) -> bool {
            false
        }
        fn write(&mut self, _: Batch) {}
        fn checkpoint(&mut self, _: Checkpoint) {
            panic!("a checkpoint of entries that the log lacks");
        }
        fn durable(&mut self) -> Result<u64, LogFailure> {
            Ok(0)
        }
        fn set_waker(&mut self, _: std::task::Waker) {}
    }

    /// The settings, and a leader of three whose disk is stuck and whose term has begun.
    fn stuck_leader() -> (ReplicaConfig, Member) {
        let (config, mut member) = test_leader_with(3, Box::new(Stuck));
        let (term, last) = (member.raft.raft.term, member.raft.raft.raft_log.last_index());
        member.raft.raft.raft_log.committed = last;
        member.applied = (last, term);
        (config, member)
    }

    /// Queues and proposes a write; returns its index.
    fn propose(member: &mut Member, cx: &mut petrel::Context<'_>) -> u64 {
        let op = crate::command::Op::Put { key: b"key", value: b"value" };
        let command =
            crate::command::Command::Write { session: 9, sequence: 0, first_pending: 0, op };
        member.writes.queue(crate::replica::writes::Write {
            at_ns: 0,
            command: command.to_vec().into(),
            responder: None,
            precomputed: None,
        });
        assert!(member.propose(cx));
        member.raft.raft.raft_log.last_index()
    }

    /// Both followers have stored the log up to `index`.
    fn acknowledge(member: &mut Member, index: u64) {
        let (to, term) = (member.identity.replica, member.raft.raft.term);
        for node in [2, 3] {
            let mut response =
                Message { from: replica_name(node, 5), to, term, index, ..Message::default() };
            response.set_msg_type(MessageType::MsgAppendResponse);
            member.raft.raft.step(response).unwrap();
        }
    }

    #[test]
    fn answerable__an_entry_that_a_majority_without_the_leader_has() {
        let (mut config, mut member) = stuck_leader();
        let mut endpoint = test_endpoint();
        let cx = &mut endpoint.context();
        let index = propose(&mut member, cx);
        let mut links = Links::default();
        member.handle_ready(cx, &mut links).unwrap();
        acknowledge(&mut member, index);
        assert!(member.raft.raft.raft_log.persisted < index);
        assert_eq!(member.answerable(), index);
        // As if the write had been answered: no checkpoint may come before the log.
        member.applied.0 = index;
        (config.log_entries_max, config.log_entries_kept) = (0, 0);
        member.compact_log(&config);
    }

    #[test]
    fn give_up_if_slow__after_two_election_timeouts_behind_the_majority_and_once() {
        let (config, mut member) = stuck_leader();
        let mut endpoint = test_endpoint();
        let cx = &mut endpoint.context();
        let mut now_ns = TICK_NS;
        member.slowness.restart(now_ns);
        for _ in 0..2 * config.election_ticks() + LAG_TICKS {
            let index = propose(&mut member, cx);
            acknowledge(&mut member, index);
            now_ns += TICK_NS;
            member.give_up_if_slow(now_ns, &config);
            assert_eq!(member.raft.raft.lead_transferee, None);
        }
        member.give_up_if_slow(now_ns + TICK_NS, &config);
        assert!(member.raft.raft.lead_transferee.is_some());
        assert_eq!((member.stats.handovers, member.no_lease_in), (1, member.raft.raft.term));
        member.raft.raft.abort_leader_transfer();
        for tick in 2..4 * config.election_ticks() as u64 {
            member.give_up_if_slow(now_ns + tick * TICK_NS, &config);
        }
        assert_eq!(member.stats.handovers, 1, "the next handover may come after a pause only");
    }

    #[test]
    fn note_tick__missed_ticks_count_and_one_pause_is_no_reason() {
        let config = test_leader_with(1, Box::<crate::persist::Volatile>::default()).0;
        let mut now_ns = 1_000 * TICK_NS;
        let mut slowness = Slowness::default();
        slowness.restart(now_ns);
        let mut tick = |slowness: &mut Slowness, ticks| {
            now_ns += ticks * TICK_NS;
            slowness.note_tick(now_ns, &config, 7, 7)
        };
        assert!(!tick(&mut slowness, 200), "a pause");
        assert!((0..200).all(|_| !tick(&mut slowness, 2)), "a busy host");
        // One per cent of a CPU, in pieces of a millisecond.
        let slices = (1..100).find(|_| tick(&mut slowness, 4));
        assert_eq!(slices, Some(11), "a second");
    }
}
