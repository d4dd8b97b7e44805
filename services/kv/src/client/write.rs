//! Writes: each is applied once, however often it is sent.

use super::members::Target;
use super::pursuit::Pursuit;
use super::session::Numbered;
use super::{Inner, KvClient, KvError};
use crate::api::{Applied, Outcome, Refusal, WriteReply, methods};
use crate::command::{BatchBuffer, Command, Expected, Op};
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// A key was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The key's revision from now on.
    pub revision: u64,
    /// Whether the key had a value before.
    pub replaced: bool,
}

/// What became of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    /// The key was as expected, and is changed.
    Done {
        /// The log index of the change: the key's revision, if it was set.
        revision: u64,
    },
    /// It was not, and nothing changed.
    Mismatch {
        /// When the key was last written, if it is there.
        revision: Option<u64>,
    },
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batched {
    /// All its operations took effect.
    Done {
        /// The revision of the keys that it set.
        revision: u64,
    },
    /// An expectation did not hold, and nothing changed.
    Mismatch {
        /// Which of the operations has it, from 0.
        position: u16,
        /// When its key was last written, if it is there.
        revision: Option<u64>,
    },
}

impl KvClient {
    /// Sets a key's value.
    ///
    /// # Errors
    /// [`KvError`], of which [`KvError::Unknown`] means that it may be set nevertheless.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Put, KvError> {
        let applied = self.write(&Op::Put { key, value }).await?;
        match applied.outcome {
            Outcome::Put { replaced } => Ok(Put { revision: applied.index, replaced }),
            other => Err(other_outcome(other)),
        }
    }

    /// Removes a key, and tells whether it was there.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, KvError> {
        match self.write(&Op::Delete { key }).await?.outcome {
            Outcome::Deleted { existed } => Ok(existed),
            other => Err(other_outcome(other)),
        }
    }

    /// Sets a key's value if the key is as expected.
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

    /// Removes a key if it is as expected.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn cas_delete(&self, key: &[u8], expected: Expected<'_>) -> Result<Cas, KvError> {
        let applied = self.write(&Op::CasDelete { key, expected }).await?;
        conditional(&applied)
    }

    /// Does several operations in one: all take effect, or none.
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

    /// Any write, with its result as the service gives it.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn write(&self, op: &Op<'_>) -> Result<Applied, KvError> {
        check(op)?;
        let deadline_ns = self.deadline_ns();
        let mut pursuit = Pursuit::new(&self.inner, Target::Leader, deadline_ns).with_effects();
        loop {
            let numbered = match self.inner.number() {
                Some(numbered) => numbered,
                None => self.inner.number_in_time(deadline_ns).await?,
            };
            if let Some(applied) = write_numbered(&self.inner, &mut pursuit, &numbered, op).await? {
                return Ok(applied);
            }
        }
    }
}

/// Sends a write until it has its result. None: the session has ended, and certainly nothing was done.
async fn write_numbered(
    inner: &Inner,
    pursuit: &mut Pursuit<'_>,
    numbered: &Numbered<'_>,
    op: &Op<'_>,
) -> Result<Option<Applied>, KvError> {
    let Numbered { session, sequence, first_pending, .. } = *numbered;
    // The same bytes each time: what was pending when the write began is all that it has to say.
    let command = Command::Write { session, sequence, first_pending, op: *op };
    loop {
        let (reply, from) = pursuit.ask(methods::WRITE, |out| command.encode(out)).await?;
        match WriteReply::decode(&reply) {
            Ok(WriteReply::Applied(applied)) => {
                pursuit.confirm(&from);
                return Ok(Some(applied));
            }
            Ok(WriteReply::Refused(Refusal::SessionUnknown)) => {
                inner.end_session(session);
                let last = "the client session has ended".to_owned();
                return if pursuit.is_doubtful() {
                    Err(KvError::Unknown { last })
                } else {
                    Ok(None)
                };
            }
            Ok(WriteReply::Refused(refusal)) => pursuit.refused(&from, refusal)?,
            Err(error) => return Err(pursuit.not_understood(&from, &error)),
        }
    }
}

fn conditional(applied: &Applied) -> Result<Cas, KvError> {
    match applied.outcome {
        Outcome::Put { .. } | Outcome::Deleted { .. } => Ok(Cas::Done { revision: applied.index }),
        Outcome::Mismatch { revision, .. } => Ok(Cas::Mismatch { revision }),
        other => Err(other_outcome(other)),
    }
}

/// Servers do not do this. If one does, the write has been applied somehow.
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
        // What is in a batch was looked at when it was put together, but for keys of no bytes.
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
