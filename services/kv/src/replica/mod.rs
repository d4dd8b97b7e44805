//! A replica: an endpoint's handlers, the Raft core, and what connects them.
//!
//! All of it runs on the endpoint's thread. Handlers take in what clients and peers send; after each turn of the
//! event loop [`Replica::turn`] does what follows: proposes what clients have written, in one piece, sends, keeps,
//! applies, answers. So batches form by themselves, and nothing waits for one.

pub(crate) mod book;
mod codec;
mod config;
mod ending;
mod founding;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hello;
mod links;
mod log;
mod member;
mod members;
mod methods;
mod reads;
pub(crate) mod rng;
mod shared;
mod snapshot;
mod status;
mod writes;

use petrel::unstable::control::ControlPlane;
use petrel::{Context, Endpoint};
use petrel_transport::Transport;

pub use config::{ReadMode, ReplicaConfig};

use crate::api::{self, Status};
use crate::persist::{LogStore, Recovered};
use member::Member;
use shared::Shared;

/// Why a replica cannot begin, or has to stop.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The settings break a rule.
    #[error("{0}")]
    Config(&'static str),
    /// The log cannot be kept, or is not what it should be.
    #[error("{0}")]
    Log(String),
    /// The Raft core refuses to go on.
    #[error("Raft: {0}")]
    Raft(String),
    /// The log is that of another node.
    #[error("the log is that of node {found}, not of node {expected}")]
    OtherNode {
        /// The node that was asked for.
        expected: u16,
        /// The node whose log it is.
        found: u16,
    },
}

/// What a replica has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaStats {
    /// Messages of Raft that were taken in.
    pub messages: u64,
    /// Those that were not.
    pub messages_ignored: u64,
    /// Proposals, of one write or of many.
    pub proposals: u64,
    /// Entries that came into the log.
    pub entries: u64,
    /// Entries that were applied.
    pub applied: u64,
    /// Elections that this replica has won.
    pub elections_won: u64,
    /// Snapshots that it has made.
    pub images: u64,
    /// Snapshots that it has begun to fetch.
    pub snapshots_fetched: u64,
}

/// A replica on an endpoint. Run the endpoint's event loop, and [`Replica::turn`] after each turn:
/// [`Replica::run`] does both.
pub struct Replica {
    shared: Shared,
}

impl Replica {
    /// Begins on an endpoint, whose handlers it sets. `recovered` is what the log has of an earlier run.
    ///
    /// # Errors
    /// [`ReplicaError`] when the settings or the log are not usable.
    pub fn start<T: Transport, C: ControlPlane<T::Link>>(
        endpoint: &mut Endpoint<(), T, C>,
        config: ReplicaConfig,
        disk: Box<dyn LogStore>,
        recovered: Option<Recovered>,
    ) -> Result<Self, ReplicaError> {
        config.check().map_err(ReplicaError::Config)?;
        let now_ns = endpoint.context().now_ns();
        let handle = endpoint.handle();
        let (member, disk) = match recovered {
            Some(recovered) => {
                let (expected, found) = (config.node, book::node_of(recovered.identity.replica));
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
        shared.borrow_mut().dial_members(&shared);
        shared.borrow_mut().begin_if_founder(&shared);
        handle.spawn(shared.clone().keep_ticking());
        if is_member {
            handle.spawn(shared.clone().keep_writing());
        }
        Ok(Self { shared })
    }

    /// Does what is to be done after a turn of the event loop. Tells whether there is more to do after the next
    /// turn, even if nothing comes in.
    ///
    /// # Errors
    /// [`ReplicaError`] when the replica has to stop: then the process should, too.
    pub fn turn(&self, cx: &mut Context<'_>) -> Result<bool, ReplicaError> {
        self.shared.turn(cx)
    }

    /// Runs the endpoint and the replica on it, until `stop` says so.
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

    /// How the replica is.
    pub fn status(&self) -> Status {
        self.shared.borrow().status()
    }

    /// What it has done.
    pub fn stats(&self) -> ReplicaStats {
        self.shared
            .borrow()
            .member
            .as_ref()
            .map_or_else(ReplicaStats::default, |member| member.stats)
    }

    /// Whether it leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.shared.borrow().member.as_ref().is_some_and(Member::leads)
    }

    /// A digest of all keys, and up to which index: equal on replicas that have applied the same.
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
    on(api::methods::STATUS, Shared::handle_status);
    on(api::methods::MEMBER, Shared::handle_member);
    on(api::methods::TRANSFER, Shared::handle_transfer);
    on(methods::RAFT, Shared::handle_raft);
    on(methods::HELLO, Shared::handle_hello);
    on(methods::JOIN, Shared::handle_join);
    on(methods::SNAPSHOT, Shared::handle_snapshot);
    on(methods::SNAPSHOT_FAILED, Shared::handle_snapshot_failed);
}

type Handler = fn(&Shared, &mut Context<'_>, petrel::Request<'_>) -> petrel::endpoint::Handled;
