//! Writes: applied once, however often the client sends them.

use std::time::Duration;

use super::operation::Operation;
use super::session::Numbered;
use super::{KvClient, KvError, Shared};
use crate::api::{Applied, Outcome, Refusal, WriteReply, methods};
use crate::command::{BatchBuffer, Command, Expected, Op};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

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
            other => Err(other_outcome(other)),
        }
    }

    /// Executes any write, and returns the service's result unchanged.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn write(&self, op: &Op<'_>) -> Result<Applied, KvError> {
        check(op)?;
        let mut operation = Operation::new(self).with_effects();
        loop {
            let numbered = self.number(&operation).await?;
            if let Some(applied) = write_numbered(&mut operation, &numbered, op).await? {
                return Ok(applied);
            }
        }
    }

    /// Numbers a write, as soon as a session has room for it.
    async fn number(&self, operation: &Operation<'_>) -> Result<Numbered<'_>, KvError> {
        let Shared { session, client, .. } = &*self.shared;
        if let Some(numbered) = session.try_number() {
            return Ok(numbered);
        }
        let left = operation.time_left();
        let opening =
            session.number(async || self.within(operation.time_left()).open_session().await);
        // The call for a new session has a deadline itself, and a better error.
        match client.timeout(left.saturating_add(GRACE), opening).await {
            Ok(numbered) => numbered,
            Err(_) => {
                let last = "the writes before it have no answer yet".to_owned();
                Err(KvError::Timeout { last })
            }
        }
    }

    /// Opens a client session. A superfluous session is harmless.
    async fn open_session(&self) -> Result<u64, KvError> {
        let mut operation = Operation::new(self);
        let reply = operation.ask(methods::WRITE, |out| Command::OpenSession.encode(out)).await?;
        match WriteReply::decode(&reply) {
            Ok(WriteReply::Applied(applied)) => Ok(applied.index),
            Ok(WriteReply::Refused(refusal)) => Err(operation.refused(refusal)),
            Err(error) => Err(operation.not_understood(&error)),
        }
    }
}

/// Sends a write until it has a result. None if the session has ended and the write certainly had no effect.
async fn write_numbered(
    operation: &mut Operation<'_>,
    numbered: &Numbered<'_>,
    op: &Op<'_>,
) -> Result<Option<Applied>, KvError> {
    let Numbered { session, sequence, first_pending, .. } = *numbered;
    // Every copy has the same bytes; `first_pending` need only be as of the write's begin.
    let command = Command::Write { session, sequence, first_pending, op: *op };
    let reply = operation.ask(methods::WRITE, |out| command.encode(out)).await?;
    match WriteReply::decode(&reply) {
        Ok(WriteReply::Applied(applied)) => Ok(Some(applied)),
        Ok(WriteReply::Refused(refusal)) => {
            let is_session_gone = refusal == Refusal::SessionUnknown;
            if is_session_gone {
                numbered.end_session();
            }
            match is_session_gone && !operation.may_have_executed() {
                true => Ok(None),
                false => Err(operation.refused(refusal)),
            }
        }
        Err(error) => Err(operation.not_understood(&error)),
    }
}

fn conditional(applied: &Applied) -> Result<Cas, KvError> {
    match applied.outcome {
        Outcome::Put { .. } | Outcome::Deleted { .. } => Ok(Cas::Done { revision: applied.index }),
        Outcome::Mismatch { revision, .. } => Ok(Cas::Mismatch { revision }),
        other => Err(other_outcome(other)),
    }
}

/// The error for an outcome that does not fit the operation. Servers never return one; the write has been applied
/// somehow.
fn other_outcome(outcome: Outcome) -> KvError {
    KvError::Unknown { last: format!("the server has done something else: {outcome:?}") }
}

fn check(op: &Op<'_>) -> Result<(), KvError> {
    match op {
        Op::Put { key, value } => check_key(key).and(check_value(value)),
        Op::Delete { key } => check_key(key),
        Op::Cas { key, expected, value } => {
            check_key(key).and(check_value(value)).and(check_expected(expected))
        }
        Op::CasDelete { key, expected } => check_key(key).and(check_expected(expected)),
        Op::Batch(batch) if batch.is_empty() => {
            Err(KvError::InvalidArgument("a batch has at least one operation"))
        }
        // `BatchBuffer::push` has checked the operations of a batch, except for empty keys.
        Op::Batch(batch) => batch.ops().try_for_each(|op| check(&op)),
    }
}

pub(super) fn check_key(key: &[u8]) -> Result<(), KvError> {
    match key.len() {
        0 => Err(KvError::InvalidArgument("a key has at least one byte")),
        1..=KEY_BYTES_MAX => Ok(()),
        _ => Err(KvError::InvalidArgument("a key has at most 4096 bytes")),
    }
}

fn check_value(value: &[u8]) -> Result<(), KvError> {
    if value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(KvError::InvalidArgument("a value has at most 1 MiB"))
}

fn check_expected(expected: &Expected<'_>) -> Result<(), KvError> {
    match expected {
        Expected::Value(value) => check_value(value),
        Expected::Absent | Expected::Revision(_) => Ok(()),
    }
}

const _: () = assert!(KEY_BYTES_MAX == 4096 && VALUE_BYTES_MAX == 1 << 20, "the errors name them");
