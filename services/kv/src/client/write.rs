//! Writes: applied once, however often the client sends them.

use std::time::Duration;

use petrel::{Error, Execution, Time};

use super::error::not_understood;
use super::judge::UNKNOWN_NAME;
use super::session::Numbered;
use super::{KvClient, KvError, Shared};
use crate::api::{Applied, LeaseOutcome, Outcome, WriteReply, methods};
use crate::command::{BatchBuffer, Command, Expected, Op};

/// Extra time of the wait for a session, beyond the operation's deadline.
const GRACE: Duration = Duration::from_millis(5);

/// The result of setting a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The key's new revision.
    pub revision: u64,
    /// Whether the key had a value before.
    pub replaced: bool,
}

/// The result of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    /// The expectation held, and the key is changed.
    Done {
        /// The log index of the change: the key's revision, if the key was set.
        revision: u64,
    },
    /// The expectation failed, and nothing changed.
    Mismatch {
        /// The log index of the key's last write, if the key exists.
        revision: Option<u64>,
    },
}

/// The result of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batched {
    /// All operations took effect.
    Done {
        /// The revision of the keys set by the batch.
        revision: u64,
    },
    /// An expectation failed, and nothing changed.
    Mismatch {
        /// The position of the failed operation, from 0.
        position: u16,
        /// The log index of that key's last write, if the key exists.
        revision: Option<u64>,
    },
}

impl KvClient {
    /// Sets a key's value.
    ///
    /// # Errors
    /// [`KvError`]. With [`KvError::Unknown`] the value may be set nevertheless.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Put, KvError> {
        let applied = self.write(&Op::Put { key, value }).await?;
        match applied.outcome {
            Outcome::Put { replaced } => Ok(Put { revision: applied.index, replaced }),
            other => Err(other_outcome(other)),
        }
    }

    /// Removes a key. Returns true if the key existed.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, KvError> {
        match self.write(&Op::Delete { key }).await?.outcome {
            Outcome::Deleted { existed } => Ok(existed),
            other => Err(other_outcome(other)),
        }
    }

    /// Sets a key's value if the expectation holds.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn cas(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
    ) -> Result<Cas, KvError> {
        let applied = self.write(&Op::Cas { key, expected, value }).await?;
        conditional(&applied)
    }

    /// Removes a key if the expectation holds.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn cas_delete(&self, key: &[u8], expected: Expected<'_>) -> Result<Cas, KvError> {
        let applied = self.write(&Op::CasDelete { key, expected }).await?;
        conditional(&applied)
    }

    /// Executes several operations atomically.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn batch(&self, batch: &BatchBuffer) -> Result<Batched, KvError> {
        let applied = self.write(&Op::Batch(batch.batch())).await?;
        match applied.outcome {
            Outcome::Batch => Ok(Batched::Done { revision: applied.index }),
            Outcome::Mismatch { position, revision } => {
                Ok(Batched::Mismatch { position, revision })
            }
            Outcome::Lease(LeaseOutcome::Unknown) => {
                Err(KvError::Refused("a lease of the batch has ended, or never began".to_owned()))
            }
            Outcome::Lease(_) => {
                Err(KvError::Refused("a lease of the batch has as many keys as it can".to_owned()))
            }
            other => Err(other_outcome(other)),
        }
    }

    /// Executes any write, and returns the service's result unchanged.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn write(&self, op: &Op<'_>) -> Result<Applied, KvError> {
        op.check().map_err(KvError::invalid)?;
        let deadline = self.deadline();
        loop {
            let numbered = self.number(deadline).await?;
            let Numbered { session, sequence, first_pending, .. } = numbered;
            let command = Command::Write { session, sequence, first_pending, op: *op };
            match self.command(&command, deadline).await {
                Ok(applied) => return Ok(applied),
                // The session has ended, and no copy of the write was applied in it.
                Err(failure) if is_unknown_session(&failure) => numbered.end_session(),
                Err(failure) => return Err(KvError::of_change(failure)),
            }
        }
    }

    /// Numbers a write, as soon as a session has room for it.
    async fn number(&self, deadline: Time) -> Result<Numbered<'_>, KvError> {
        let Shared { session, client, .. } = &*self.shared;
        if let Some(numbered) = session.try_number() {
            return Ok(numbered);
        }
        // A superfluous session is harmless.
        let open = async || {
            let opened = self.command(&Command::OpenSession, deadline).await;
            opened.map(|applied| applied.index).map_err(KvError::of_read)
        };
        // The call for a new session has a deadline itself, and a better error.
        let left = deadline.since(client.now()) + GRACE;
        client.timeout(left, session.number(open)).await.unwrap_or_else(|late| {
            Err(KvError::of_read(late.with_message("the writes before it have no answer yet")))
        })
    }

    async fn command(&self, command: &Command<'_>, deadline: Time) -> Result<Applied, Error> {
        let reply = self.ask(methods::WRITE, deadline, |out| command.encode(out)).await?;
        match WriteReply::decode(&reply) {
            Ok(WriteReply::Applied(applied)) => Ok(applied),
            other => Err(not_understood(other.err())),
        }
    }
}

fn is_unknown_session(failure: &Error) -> bool {
    failure.status == UNKNOWN_NAME && failure.execution == Execution::Refused
}

pub(super) fn conditional(applied: &Applied) -> Result<Cas, KvError> {
    match applied.outcome {
        Outcome::Put { .. } | Outcome::Deleted { .. } => Ok(Cas::Done { revision: applied.index }),
        Outcome::Mismatch { revision, .. } => Ok(Cas::Mismatch { revision }),
        other => Err(other_outcome(other)),
    }
}

/// The error for an outcome that does not fit the operation. Servers never return one; the write has been applied
/// somehow.
pub(super) fn other_outcome(outcome: Outcome) -> KvError {
    KvError::Unknown { last: format!("the server has done something else: {outcome:?}") }
}
