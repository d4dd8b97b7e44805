//! A replica: an endpoint's handlers, the Raft core, and the code between them.
//!
//! Everything runs on the endpoint's thread. Handlers accept the messages of clients and peers. After each turn of the
//! event loop, [`Replica::turn`] proposes the clients' writes as one piece, sends, persists, applies and answers.
//! Batches therefore form by themselves, and no write waits for a batch to fill.

mod bootstrap;
mod codec;
mod config;
mod ending;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hello;
mod links;
mod log;
mod member;
pub(crate) mod membership;
mod methods;
mod reads;
mod reconfiguration;
pub(crate) mod rng;
mod saves;
mod shared;
mod snapshot;
mod status;
mod watch;
mod writes;

use petrel::unstable::control::ControlPlane;
use petrel::{Context, Endpoint};
use petrel_transport::Transport;

pub use config::{ReadMode, ReplicaConfig};

use crate::api::{self, Status};
use crate::persist::{LogStore, Recovered};
use member::Member;
use shared::Shared;

/// The reason why a replica cannot start, or has to stop.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The settings break a rule.
    #[error("{0}")]
    Config(&'static str),
    /// The log cannot be written, or is not valid.
    #[error("{0}")]
    Log(String),
    /// The Raft core reported an error.
    #[error("Raft: {0}")]
    Raft(String),
    /// Another replica has the node's place in the cluster.
    #[error(
        "node {node} is at {address} now: another replica has taken the place of this one, which is not needed"
    )]
    Replaced {
        /// The node.
        node: u16,
        /// The address of the other replica.
        address: String,
    },
    /// The log belongs to another node.
    #[error("the log is that of node {found}, not of node {expected}")]
    OtherNode {
        /// The node in the settings.
        expected: u16,
        /// The node that the log belongs to.
        found: u16,
    },
}

/// Counters since the start of the replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaStats {
    /// Raft messages that were processed.
    pub messages: u64,
    /// Raft messages that were ignored.
    pub messages_ignored: u64,
    /// Proposals, with one or more writes.
    pub proposals: u64,
    /// Entries appended to the log.
    pub entries: u64,
    /// Entries applied.
    pub applied: u64,
    /// Elections won by this replica.
    pub elections_won: u64,
    /// Handovers begun because this leader was slower than its followers.
    pub handovers: u64,
    /// Snapshots made.
    pub snapshots_made: u64,
    /// Snapshot fetches begun.
    pub snapshots_fetched: u64,
}

/// A replica on an endpoint. Run the endpoint's event loop, with [`Replica::turn`] after every turn; or use
/// [`Replica::run`].
pub struct Replica {
    shared: Shared,
}

impl Replica {
    /// Starts a replica on an endpoint and registers its handlers. `recovered` is the log's content of an earlier run.
    ///
    /// # Errors
    /// [`ReplicaError`] if the settings or the log are not usable.
    pub fn start<T: Transport, C: ControlPlane<T::Link>>(
        endpoint: &mut Endpoint<(), T, C>,
        config: ReplicaConfig,
        disk: Box<dyn LogStore>,
        recovered: Option<Recovered>,
    ) -> Result<Self, ReplicaError> {
        config.check().map_err(ReplicaError::Config)?;
        let now_ns = endpoint.context().now().as_ns();
        let handle = endpoint.handle();
        let (member, disk) = match recovered {
            Some(recovered) => {
                let (expected, found) =
                    (config.node, membership::node_of(recovered.identity.replica));
                if found != expected {
                    return Err(ReplicaError::OtherNode { expected, found });
                }
                (Some(Member::resume(&config, recovered, disk, now_ns)?), None)
            }
            None => (None, Some(disk)),
        };
        let is_member = member.is_some();
        let shared = Shared::new(config, handle.clone(), member, disk);
        register(endpoint, &shared);
        shared.borrow_mut().connect_members(&shared);
        shared.borrow_mut().try_bootstrap(&shared);
        handle.spawn(shared.clone().run_ticks());
        if is_member {
            handle.spawn(shared.clone().wake_on_durable());
        }
        Ok(Self { shared })
    }

    /// Does the work that follows a turn of the event loop. Returns true if more work remains for after the next turn,
    /// even if no message arrives.
    ///
    /// # Errors
    /// [`ReplicaError`] if the replica has to stop; the process should stop, too.
    pub fn turn(&self, cx: &mut Context<'_>) -> Result<bool, ReplicaError> {
        self.shared.turn(cx)
    }

    /// Runs the endpoint and the replica until `stop` returns true.
    ///
    /// # Errors
    /// As [`Replica::turn`].
    pub fn run<T: Transport, C: ControlPlane<T::Link>>(
        &self,
        endpoint: &mut Endpoint<(), T, C>,
        mut stop: impl FnMut() -> bool,
    ) -> Result<(), ReplicaError> {
        let mut outcome = Ok(());
        endpoint.run_until(|_, cx| {
            outcome = self.turn(cx).map(drop);
            outcome.is_err() || stop()
        });
        outcome
    }

    /// The state of the replica.
    pub fn status(&self) -> Status {
        self.shared.borrow().status()
    }

    /// The replica's counters.
    pub fn stats(&self) -> ReplicaStats {
        let state = self.shared.borrow();
        state.member.as_ref().map_or_else(ReplicaStats::default, |member| member.stats)
    }

    /// Returns true if the replica believes to be the leader.
    pub fn is_leader(&self) -> bool {
        self.shared.borrow().member.as_ref().is_some_and(Member::leads)
    }

    /// Returns whether the replica's state has a lease; none before the replica has applied the grant.
    pub fn has_lease(&self, lease: u64) -> Option<bool> {
        let state = self.shared.borrow();
        let store = &state.member.as_ref()?.store;
        (store.revision() >= lease).then(|| store.lease(lease).is_some())
    }

    /// A digest of all keys, and the applied index: equal on replicas with equal applied entries.
    pub fn digest(&self) -> Option<(u64, u64)> {
        let state = self.shared.borrow();
        let member = state.member.as_ref()?;
        Some((member.applied_index(), member.store.digest()))
    }
}

fn register<T: Transport, C: ControlPlane<T::Link>>(
    endpoint: &mut Endpoint<(), T, C>,
    shared: &Shared,
) {
    let mut on = |method: u16, handler: Handler| {
        let shared = shared.clone();
        endpoint.on(method, move |_, cx, request| handler(&shared, cx, request));
    };
    on(api::methods::WRITE, Shared::handle_write);
    on(api::methods::GET, Shared::handle_read);
    on(api::methods::SCAN, Shared::handle_read);
    on(api::methods::SAVE, Shared::handle_read);
    on(api::methods::LEASE, Shared::handle_read);
    on(api::methods::REVISION, Shared::handle_read);
    on(api::methods::STATUS, Shared::handle_status);
    on(api::methods::MEMBER, Shared::handle_member);
    on(api::methods::TRANSFER, Shared::handle_transfer);
    on(methods::RAFT, Shared::handle_raft);
    on(methods::HELLO, Shared::handle_hello);
    on(methods::JOIN, Shared::handle_join);
    on(methods::SNAPSHOT, Shared::handle_snapshot);
    on(methods::SNAPSHOT_FAILED, Shared::handle_snapshot_failed);
    endpoint.serve(api::WatchingServer::new(shared.clone()));
}

type Handler = fn(&Shared, &mut Context<'_>, petrel::Request<'_>) -> petrel::endpoint::Handled;
