//! Restores: a saved store comes back, in an empty cluster.

use super::write::other_outcome;
use super::{KvClient, KvError};
use crate::api::{Outcome, Pair, PairsBuffer, RestoreOutcome};
use crate::command::{Op, Restore as Step};
use crate::pair_check::PairCheck;

/// Bytes of encoded pairs in one command: large enough to make its sync cheap, and small enough not to delay the
/// heartbeats behind it.
const COMMAND_BYTES: usize = 256 << 10;

/// A restore. Until [`Restore::finish`] the cluster refuses reads and other writes, so nothing half restored is taken for
/// whole. A restore that is dropped earlier leaves the cluster so: begin another, or [abandon](KvClient::abandon_restore)
/// it.
#[derive(Debug)]
pub struct Restore {
    of: KvClient,
    /// The number of the restore.
    restore: u64,
    /// Pairs that were not sent.
    pairs: PairsBuffer,
    check: PairCheck,
}

impl KvClient {
    /// Begins to restore a store that was saved at a revision. The cluster must have no keys; those of an unfinished
    /// restore are dropped. Keys keep their revisions, and revisions go on from the saved one.
    ///
    /// # Errors
    /// [`KvError::Refused`] if the cluster has keys; else as [`KvClient::put`].
    pub async fn restore(&self, revision: u64) -> Result<Restore, KvError> {
        let restore = self.step(Step::Begin { revision }, RestoreOutcome::Begun).await?;
        let (pairs, check) = (PairsBuffer::default(), PairCheck::default());
        Ok(Restore { of: self.clone(), restore, pairs, check })
    }

    /// Drops the keys of an unfinished restore. The cluster is empty then, and serves.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn abandon_restore(&self) -> Result<(), KvError> {
        self.step(Step::Abandon, RestoreOutcome::Abandoned).await.map(drop)
    }

    /// Executes a step of a restore, and returns its revision.
    async fn step(&self, step: Step<'_>, expected: RestoreOutcome) -> Result<u64, KvError> {
        let applied = self.write(&Op::Restore(step)).await?;
        match applied.outcome {
            Outcome::Restore(outcome) if outcome == expected => Ok(applied.index),
            Outcome::Restore(outcome) => Err(KvError::Refused(reason(outcome).to_owned())),
            other => Err(other_outcome(other)),
        }
    }
}

impl Restore {
    /// Adds the next pairs, in the order of their keys.
    ///
    /// # Errors
    /// [`KvError::Refused`] if another restore has begun, or the pairs are out of order; else as [`KvClient::put`].
    pub async fn add<'p>(
        &mut self,
        pairs: impl IntoIterator<Item = Pair<'p>>,
    ) -> Result<(), KvError> {
        for pair in pairs {
            if self.check.add(&pair).is_err() {
                return Err(KvError::InvalidArgument("the keys are out of order".to_owned()));
            }
            self.pairs.push(&pair);
            if self.pairs.bytes() >= COMMAND_BYTES {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Ends the restore: the cluster has the keys, and serves. Returns the number of keys.
    ///
    /// # Errors
    /// As [`Restore::add`]. The cluster then serves nothing, unless the error is [`KvError::Unknown`].
    pub async fn finish(mut self) -> Result<u64, KvError> {
        self.send().await?;
        let (restore, keys, check) = (self.restore, self.check.keys(), self.check.value());
        let end = Step::End { restore, keys, check };
        self.of.step(end, RestoreOutcome::Done).await.map(|_| keys)
    }

    async fn send(&mut self) -> Result<(), KvError> {
        if self.pairs.bytes() == 0 {
            return Ok(());
        }
        let step = Step::Pairs { restore: self.restore, pairs: self.pairs.pairs() };
        self.of.step(step, RestoreOutcome::Taken).await?;
        self.pairs.clear();
        Ok(())
    }
}

fn reason(outcome: RestoreOutcome) -> &'static str {
    match outcome {
        RestoreOutcome::NotEmpty => "the cluster has keys: a restore needs an empty one",
        RestoreOutcome::Superseded => "another restore has begun since, or this one was abandoned",
        RestoreOutcome::OutOfPlace => "keys are out of order, or have impossible revisions",
        RestoreOutcome::Damaged => "the keys that arrived are not the saved ones",
        _ => "the step had another result",
    }
}
