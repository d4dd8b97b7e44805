//! `petrel kv lease`.

use std::time::{Duration, Instant};

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::units::format_ns;
use petrel_kv::KvError;
use petrel_kv::api::LeaseState;
use serde::Serialize;

use super::{Cluster, failure_of};
use crate::cli::{
    KvLeaseArgs, KvLeaseCommand, KvLeaseGrantArgs, KvLeaseKeepAliveArgs, KvLeaseListArgs,
    KvLeaseOfArgs, KvLeaseTtlArgs,
};

/// Keep-alives in the time of a lease: one may be lost.
const KEEP_ALIVES: u32 = 3;

#[derive(Serialize)]
struct KeptRecord {
    lease: u64,
    ttl_ms: u64,
}

#[derive(Serialize)]
struct RevokedRecord {
    lease: u64,
    keys: u32,
}

#[derive(Serialize)]
struct LeaseRecord {
    lease: u64,
    ttl_ms: u64,
    left_ms: u64,
    keys: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
}

impl LeaseRecord {
    fn new(state: LeaseState, names: Option<Vec<String>>) -> Self {
        let LeaseState { lease, ttl_ms, left_ms, keys } = state;
        Self { lease, ttl_ms, left_ms, keys, names }
    }

    fn line(&self) -> String {
        let [ttl, left] = [self.ttl_ms, self.left_ms].map(|ms| format_ns(ms * 1_000_000));
        format!("lease {}: {left} left of {ttl}, {} keys", self.lease, self.keys)
    }
}

pub(super) fn run(args: &KvLeaseArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        KvLeaseCommand::Grant(args) => grant(args, output),
        KvLeaseCommand::KeepAlive(args) => keep_alive(args, output),
        KvLeaseCommand::Revoke(args) => revoke(args, output),
        KvLeaseCommand::List(args) => list(args, output),
        KvLeaseCommand::Ttl(args) => ttl(args, output),
    }
}

fn grant(args: &KvLeaseGrantArgs, output: Output) -> Result<Outcome, Failure> {
    let lease = Cluster::new(&args.cluster)?.run(async |client| client.grant(args.ttl).await)?;
    output.line(format!("lease {lease}"))?;
    output.record(&KeptRecord { lease, ttl_ms: args.ttl.as_millis() as u64 })?;
    Ok(Outcome::Success)
}

fn keep_alive(args: &KvLeaseKeepAliveArgs, output: Output) -> Result<Outcome, Failure> {
    let mut cluster = Cluster::new(&args.of.cluster)?;
    let lease = args.of.lease;
    let Some((LeaseState { ttl_ms, .. }, _)) =
        cluster.run(async |client| client.lease(lease).await)?
    else {
        return Err(no_lease(lease));
    };
    let (ttl, handle) = (Duration::from_millis(ttl_ms), cluster.endpoint.handle());
    loop {
        let begin = Instant::now();
        if !cluster.run(async |client| client.keep_alive(lease).await)? {
            return Err(no_lease(lease));
        }
        output.line(format!("lease {lease} lasts {} more", format_ns(ttl_ms * 1_000_000)))?;
        output.record(&KeptRecord { lease, ttl_ms })?;
        if args.once {
            return Ok(Outcome::Success);
        }
        let pause = (ttl / KEEP_ALIVES).saturating_sub(begin.elapsed());
        cluster.endpoint.block_on(handle.sleep(pause));
    }
}

fn revoke(args: &KvLeaseOfArgs, output: Output) -> Result<Outcome, Failure> {
    let lease = args.lease;
    let keys = Cluster::new(&args.cluster)?.run(async |client| client.revoke(lease).await)?;
    let keys = keys.ok_or_else(|| no_lease(lease))?;
    output.line(format!("lease {lease} has ended, {keys} keys are removed"))?;
    output.record(&RevokedRecord { lease, keys })?;
    Ok(Outcome::Success)
}

fn list(args: &KvLeaseListArgs, output: Output) -> Result<Outcome, Failure> {
    for state in Cluster::new(&args.cluster)?.run(async |client| client.leases().await)? {
        let record = LeaseRecord::new(state, None);
        output.line(record.line())?;
        output.record(&record)?;
    }
    Ok(Outcome::Success)
}

fn ttl(args: &KvLeaseTtlArgs, output: Output) -> Result<Outcome, Failure> {
    let lease = args.of.lease;
    let found = Cluster::new(&args.of.cluster)?.run(async |client| client.lease(lease).await)?;
    let (state, keys) = found.ok_or_else(|| no_lease(lease))?;
    let names = keys.iter().map(|key| args.format.line(key)).collect();
    let record = LeaseRecord::new(state, Some(names));
    output.line(record.line())?;
    for name in record.names.iter().flatten() {
        output.line(name)?;
    }
    output.record(&record)?;
    Ok(Outcome::Success)
}

fn no_lease(lease: u64) -> Failure {
    failure_of(&KvError::NoLease { lease })
}
