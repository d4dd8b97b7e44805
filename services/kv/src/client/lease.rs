//! Leases: keys that go unless the client keeps them alive.

use std::time::Duration;

use petrel::client::Spawned;

use super::error::not_understood;
use super::write::{conditional, other_outcome};
use super::{Cas, Consistency, KvClient, KvError, Put};
use crate::api::{Applied, LeaseOutcome, LeaseReply, LeaseRequest, LeaseState, Outcome, methods};
use crate::command::{Expected, LeaseOp, Op};

/// Keep-alives in the time of a held lease: one may be lost.
const KEEP_ALIVES: u32 = 3;

/// A lease that the client keeps alive in the background until this value is dropped. Then the lease ends after its
/// time, or at once by [`HeldLease::revoke`].
#[derive(Debug)]
pub struct HeldLease {
    of: KvClient,
    lease: u64,
    keeps: Spawned<()>,
}

impl KvClient {
    /// Grants a lease, and returns its number. The lease ends `ttl` after its last keep-alive, together with all keys
    /// that [`KvClient::put_leased`] gave to it. The time has whole milliseconds.
    ///
    /// # Errors
    /// [`KvError::InvalidArgument`] if the time is outside of [the limits](crate::limits::LEASE_MS_MIN);
    /// [`KvError::Refused`] if the store has as many leases as it can; else as [`KvClient::put`].
    pub async fn grant(&self, ttl: Duration) -> Result<u64, KvError> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let applied = self.write(&Op::Lease(LeaseOp::Grant { ttl_ms })).await?;
        match applied.outcome {
            Outcome::Lease(LeaseOutcome::Granted) => Ok(applied.index),
            other => Err(refused(0, other)),
        }
    }

    /// Gives a lease its whole time again: it lasts at least this time from the call on. Returns false if there is no
    /// such lease.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn keep_alive(&self, lease: u64) -> Result<bool, KvError> {
        match self.write(&Op::Lease(LeaseOp::KeepAlive { lease })).await?.outcome {
            Outcome::Lease(LeaseOutcome::Kept) => Ok(true),
            Outcome::Lease(LeaseOutcome::Unknown) => Ok(false),
            other => Err(other_outcome(other)),
        }
    }

    /// Ends a lease and removes its keys. Returns their number, or none if there is no such lease.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn revoke(&self, lease: u64) -> Result<Option<u32>, KvError> {
        match self.write(&Op::Lease(LeaseOp::Revoke { lease })).await?.outcome {
            Outcome::Lease(LeaseOutcome::Revoked { keys }) => Ok(Some(keys)),
            Outcome::Lease(LeaseOutcome::Unknown) => Ok(None),
            other => Err(other_outcome(other)),
        }
    }

    /// Sets a key's value and gives the key to a lease. A later [`KvClient::put`] takes the key from the lease.
    ///
    /// # Errors
    /// [`KvError::NoLease`] if there is no such lease; [`KvError::Refused`] if the lease has as many keys as it can; else
    /// as [`KvClient::put`].
    pub async fn put_leased(&self, key: &[u8], value: &[u8], lease: u64) -> Result<Put, KvError> {
        let applied = self.write(&Op::LeasedPut { key, lease, expected: None, value }).await?;
        match applied.outcome {
            Outcome::Put { replaced } => Ok(Put { revision: applied.index, replaced }),
            other => Err(refused(lease, other)),
        }
    }

    /// Sets a key's value and gives the key to a lease, if the expectation holds.
    ///
    /// # Errors
    /// As [`KvClient::put_leased`].
    pub async fn cas_leased(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        lease: u64,
    ) -> Result<Cas, KvError> {
        let op = Op::LeasedPut { key, lease, expected: Some(expected), value };
        let applied: Applied = self.write(&op).await?;
        match applied.outcome {
            Outcome::Lease(_) => Err(refused(lease, applied.outcome)),
            _ => conditional(&applied),
        }
    }

    /// Sets a key's value for a time: with a lease of its own, which nothing keeps alive.
    ///
    /// # Errors
    /// As [`KvClient::grant`] and [`KvClient::put_leased`].
    pub async fn put_for(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<Put, KvError> {
        let lease = self.grant(ttl).await?;
        self.put_leased(key, value, lease).await
    }

    /// Reads the state of a lease, and its keys in order. Returns none if there is no such lease.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn lease(&self, lease: u64) -> Result<Option<(LeaseState, Vec<Vec<u8>>)>, KvError> {
        let (mut all, mut from) = (Vec::new(), Vec::new());
        loop {
            let consistency = Consistency::Linearizable;
            let request = LeaseRequest::Of { consistency, lease, from: &from };
            let reply =
                self.read(methods::LEASE, consistency, &[], |out| request.encode(out)).await?;
            let (state, next) = match LeaseReply::decode(&reply) {
                Ok(LeaseReply::Of { state, keys, next }) => {
                    all.extend(keys.into_iter().map(<[u8]>::to_vec));
                    (state, next.map(<[u8]>::to_vec))
                }
                Ok(LeaseReply::Unknown) => return Ok(None),
                other => return Err(KvError::of_read(not_understood(other.err()))),
            };
            match next {
                Some(next) => from = next,
                None => return Ok(Some((state, all))),
            }
        }
    }

    /// Lists all leases, in the order of their numbers. A lease that begins or ends meanwhile may be missing.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn leases(&self) -> Result<Vec<LeaseState>, KvError> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(first) = from {
            let consistency = Consistency::Linearizable;
            let request = LeaseRequest::List { consistency, from: first };
            let reply =
                self.read(methods::LEASE, consistency, &[], |out| request.encode(out)).await?;
            match LeaseReply::decode(&reply) {
                Ok(LeaseReply::List { states, next }) => {
                    all.extend(states);
                    from = next;
                }
                other => return Err(KvError::of_read(not_understood(other.err()))),
            }
        }
        Ok(all)
    }

    /// Grants a lease, and keeps it alive in the background.
    ///
    /// ```
    /// # async fn f(client: petrel_kv::KvClient) -> Result<(), petrel_kv::KvError> {
    /// use std::time::Duration;
    /// use petrel_kv::command::Expected;
    ///
    /// let mut held = client.hold(Duration::from_secs(5)).await?;
    /// client.cas_leased(b"leader", Expected::Absent, b"me", held.lease()).await?;
    /// // Lead until the lease is lost: the key may be another's then.
    /// held.lost().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`KvClient::grant`].
    pub async fn hold(&self, ttl: Duration) -> Result<HeldLease, KvError> {
        let begin = self.shared.client.now();
        let lease = self.grant(ttl).await?;
        let of = self.clone();
        let keeps = self.shared.client.spawn(move |handle| async move {
            let client = of.shared.client.clone();
            let mut until = begin + ttl;
            loop {
                handle
                    .sleep(until.since(client.now()).saturating_sub(ttl - ttl / KEEP_ALIVES))
                    .await;
                let now = client.now();
                if now >= until {
                    return;
                }
                match of.within(until.since(now)).keep_alive(lease).await {
                    Ok(true) => until = now + ttl,
                    Ok(false) => return,
                    Err(_) => handle.sleep(ttl / (8 * KEEP_ALIVES)).await,
                }
            }
        });
        Ok(HeldLease { of: self.clone(), lease, keeps })
    }
}

impl HeldLease {
    /// The number of the lease.
    pub fn lease(&self) -> u64 {
        self.lease
    }

    /// Waits until the lease is lost: it has ended, or its time is over since the last answered keep-alive began.
    pub async fn lost(&mut self) {
        // The endpoint is gone, if the task has no result.
        let _ = (&mut self.keeps).await;
    }

    /// Ends the lease and removes its keys. Returns their number, or none if the lease was lost.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn revoke(self) -> Result<Option<u32>, KvError> {
        let Self { of, lease, keeps } = self;
        drop(keeps);
        of.revoke(lease).await
    }
}

/// The error for an operation that the lease's state does not allow.
fn refused(lease: u64, outcome: Outcome) -> KvError {
    match outcome {
        Outcome::Lease(LeaseOutcome::Unknown) => KvError::NoLease { lease },
        Outcome::Lease(LeaseOutcome::TooMany) => {
            KvError::Refused("the store has as many leases as it can".to_owned())
        }
        Outcome::Lease(LeaseOutcome::TooManyKeys) => {
            KvError::Refused("the lease has as many keys as it can".to_owned())
        }
        other => other_outcome(other),
    }
}
