//! How a member starts: by bootstrap, by joining a cluster, or after a restart.

use std::collections::{BTreeMap, VecDeque};

use hdrhistogram::Histogram;
use raft::RawNode;
use raft::eraftpb::{ConfState, Entry, HardState};

use super::lease_clock::LeaseClock;
use super::slowness::Slowness;
use super::snapshot::unpack;
use super::{Configured, Member};
use crate::persist::{Batch, Checkpoint, Identity, LogStore, Recovered};
use crate::replica::config::{ReplicaConfig, TICKS_PER_HEARTBEAT};
use crate::replica::log::{Base, Log};
use crate::replica::membership::{Members, Membership};
use crate::replica::reads::Reads;
use crate::replica::rng::Rng;
use crate::replica::saves::Saves;
use crate::replica::snapshot::Snapshots;
use crate::replica::writes::Writes;
use crate::replica::{ReplicaError, ReplicaStats};
use crate::store::Store;

/// Most bytes of entries in one message of the core, and most messages in flight.
const MESSAGE_BYTES_MAX: u64 = 256 << 10;
const MESSAGES_IN_FLIGHT_MAX: usize = 256;

/// Most bytes of uncommitted entries; beyond, the leader refuses writes.
const UNCOMMITTED_BYTES_MAX: u64 = 256 << 20;

/// Most bytes of committed entries applied at once.
const APPLIED_BYTES_MAX: u64 = 1 << 20;

/// The longest write time in the histogram; longer times count as this value.
const WRITE_NS_MAX: u64 = 60_000_000_000;

/// Index and term of the base of a new cluster's log. Because the base is not 0, every replica that joins later gets a
/// snapshot with the bootstrap configuration.
const FIRST_BASE: u64 = 1;

/// The state from which a member starts.
struct Begin {
    identity: Identity,
    base: Base,
    entries: Vec<Entry>,
    store: Store,
    membership: Membership,
    initial_members: Members,
}

impl Begin {
    /// The beginning without any state.
    fn of(identity: Identity) -> Self {
        Self {
            identity,
            base: Base::default(),
            entries: vec![],
            store: Store::new(),
            membership: Membership::default(),
            initial_members: Members::new(),
        }
    }
}

impl Member {
    /// An initial member of a new cluster.
    pub(crate) fn bootstrap(
        config: &ReplicaConfig,
        identity: Identity,
        initial_members: Members,
        disk: Box<dyn LogStore>,
    ) -> Result<Self, ReplicaError> {
        let voters: Vec<u64> = initial_members.keys().copied().collect();
        let base = Base {
            index: FIRST_BASE,
            term: FIRST_BASE,
            hard_state: HardState { term: FIRST_BASE, commit: FIRST_BASE, ..HardState::default() },
            conf_state: ConfState::from((voters, vec![])),
        };
        let membership = Membership { members: initial_members.clone(), ..Membership::default() };
        let begin = Begin { base, membership, initial_members, ..Begin::of(identity) };
        Self::begin_anew(config, begin, disk)
    }

    /// A replica that joins an existing cluster, without any state.
    pub(crate) fn join(
        config: &ReplicaConfig,
        identity: Identity,
        disk: Box<dyn LogStore>,
    ) -> Result<Self, ReplicaError> {
        Self::begin_anew(config, Begin::of(identity), disk)
    }

    /// A replica that was a member before its restart.
    pub(crate) fn resume(
        config: &ReplicaConfig,
        recovered: Recovered,
        disk: Box<dyn LogStore>,
        now_ns: u64,
    ) -> Result<Self, ReplicaError> {
        let Recovered { identity, hard_state, checkpoint, store, entries } = recovered;
        let Checkpoint { index, term, conf_state, membership, .. } = checkpoint;
        let (membership, initial_members) =
            unpack(&membership).map_err(|error| ReplicaError::Log(error.to_string()))?;
        let base = Base { index, term, hard_state, conf_state };
        let begin = Begin { identity, base, entries, store, membership, initial_members };
        let mut member = Self::begin(config, begin, disk)?;
        member.no_votes_until_ns = now_ns + config.election.as_nanos() as u64;
        Ok(member)
    }

    /// Starts with an empty log, which must be durable before the replica sends anything.
    fn begin_anew(
        config: &ReplicaConfig,
        begin: Begin,
        disk: Box<dyn LogStore>,
    ) -> Result<Self, ReplicaError> {
        let mut member = Self::begin(config, begin, disk)?;
        let hard_state = raft::Storage::initial_state(&member.log).map(|state| state.hard_state);
        let checkpoint = member.checkpoint();
        // Number 0, because the core's own batches begin at 1.
        member.disk.write(Batch {
            identity: Some(member.identity),
            checkpoint: Some(checkpoint),
            hard_state: hard_state.ok(),
            ..Batch::default()
        });
        Ok(member)
    }

    fn begin(
        config: &ReplicaConfig,
        begin: Begin,
        disk: Box<dyn LogStore>,
    ) -> Result<Self, ReplicaError> {
        let Begin { identity, base, entries, mut store, membership, initial_members } = begin;
        store.set_history_bytes_max(config.history_bytes_max);
        let applied = (base.index, base.term);
        let configured = Configured::of(base.index, &base.conf_state);
        let log = Log::new(base, entries);
        let raft =
            RawNode::new(&core_config(config, identity, applied.0), log.clone(), &config.logger)
                .map_err(|error| ReplicaError::Raft(error.to_string()))?;
        let role = (raft.raft.term, raft.raft.state);
        let mut member = Self {
            identity,
            raft,
            log,
            store,
            membership,
            initial_members,
            applied,
            writes: Writes::default(),
            reads: Reads::default(),
            changes: Vec::new(),
            handovers: Vec::new(),
            configured,
            last_membership_change: 0,
            disk,
            held: VecDeque::new(),
            durable: 0,
            installing: None,
            snapshots: Snapshots::default(),
            saves: Saves::new(config.address.to_string(), config.seed ^ identity.replica),
            incoming: None,
            offers: BTreeMap::new(),
            joining: BTreeMap::new(),
            learner_goals: BTreeMap::new(),
            slowness: Slowness::default(),
            role,
            no_lease_in: 0,
            lease: None,
            lease_clock: LeaseClock::default(),
            no_votes_until_ns: 0,
            is_deferred: false,
            rng: Rng::new(config.seed ^ identity.replica),
            reply: Vec::new(),
            stats: ReplicaStats::default(),
            write_times: Histogram::new_with_bounds(1, WRITE_NS_MAX, 2)
                .map_err(|error| ReplicaError::Raft(error.to_string()))?,
        };
        member.draw_election_timeout(config);
        Ok(member)
    }
}

fn core_config(config: &ReplicaConfig, identity: Identity, applied: u64) -> raft::Config {
    let election_tick = config.election_ticks();
    raft::Config {
        id: identity.replica,
        applied,
        election_tick,
        heartbeat_tick: TICKS_PER_HEARTBEAT,
        // The range for `draw_election_timeout`, which replaces the core's own draw.
        min_election_tick: election_tick,
        max_election_tick: 2 * election_tick,
        max_size_per_msg: MESSAGE_BYTES_MAX,
        max_inflight_msgs: MESSAGES_IN_FLIGHT_MAX,
        max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
        max_committed_size_per_ready: APPLIED_BYTES_MAX,
        check_quorum: true,
        pre_vote: true,
        // Followers learn the commit index with the next append or heartbeat.
        skip_bcast_commit: true,
        ..raft::Config::default()
    }
}
