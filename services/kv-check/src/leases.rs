//! The rules for leases: no lease ends before its time since the last answered keep-alive, and each ends soon after.
//!
//! A user grants leases, keeps them alive for a while, and leaves them. After every turn of every replica the ledger
//! compares the replica's leases with the answers. When all faults have ended, a lease lasts over a change of leader,
//! and has to end in time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use petrel::task::Handle;
use petrel_kv::limits::LEASE_MS_MIN;
use petrel_kv::{KvClient, KvError, Replica};
use petrel_sim::Rng;
use petrel_sim::fabric::HostId;

use crate::common::Common;
use crate::operator::{OperatorQueue, OperatorRequest};

/// Leases of a user during the faults.
const ROUNDS: u64 = 6;

/// Timeout of operations after the faults: longer than any wait of a world.
const FOREVER: Duration = Duration::from_secs(3_600);

/// All granted leases.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    leases: BTreeMap<u64, Entry>,
    pub(crate) keep_alives: u64,
}

#[derive(Debug)]
struct Entry {
    ttl_ns: u64,
    /// The begin of the last answered keep-alive, or of the grant.
    kept_ns: u64,
    /// Whether the user may have ended the lease.
    is_revoked: bool,
    /// The time at which a replica first had the lease no longer.
    ended_ns: Option<u64>,
}

impl Entry {
    fn check(&self, lease: u64) -> Result<(), String> {
        let Some(ended_ns) = self.ended_ns.filter(|_| !self.is_revoked) else { return Ok(()) };
        let early_ns = (self.kept_ns + self.ttl_ns).saturating_sub(ended_ns);
        if early_ns == 0 {
            return Ok(());
        }
        Err(format!("lease {lease} of {} ns ended {early_ns} ns early", self.ttl_ns))
    }
}

impl Ledger {
    /// Compares the state of a replica with the answers.
    ///
    /// # Errors
    /// The broken rule.
    pub(crate) fn observe(&mut self, now_ns: u64, replica: &Replica) -> Result<(), String> {
        let open = self.leases.iter_mut().filter(|(_, entry)| entry.ended_ns.is_none());
        for (lease, entry) in open {
            // The number of a lease is the index of its grant.
            if replica.has_lease(*lease) == Some(false) {
                entry.ended_ns = Some(now_ns);
                entry.check(*lease)?;
            }
        }
        Ok(())
    }

    /// Records an answered grant.
    fn grant(&mut self, lease: u64, ttl_ns: u64, kept_ns: u64) {
        let entry = Entry { ttl_ns, kept_ns, is_revoked: false, ended_ns: None };
        self.leases.insert(lease, entry);
    }

    /// Records an answered keep-alive. The lease may have ended before the answer.
    fn keep(&mut self, lease: u64, kept_ns: u64) -> Result<(), String> {
        self.keep_alives += 1;
        let entry = self.leases.get_mut(&lease).expect("the lease was granted");
        entry.kept_ns = kept_ns;
        entry.check(lease)
    }

    fn revoke(&mut self, lease: u64) {
        self.leases.get_mut(&lease).expect("the lease was granted").is_revoked = true;
    }

    /// The number of leases that ended by themselves.
    pub(crate) fn ended(&self) -> u64 {
        let all = self.leases.values();
        all.filter(|entry| entry.ended_ns.is_some() && !entry.is_revoked).count() as u64
    }
}

/// A user of leases.
pub(crate) struct LeaseUser {
    pub(crate) common: Rc<Common>,
    pub(crate) handle: Handle,
    pub(crate) client: KvClient,
    pub(crate) rng: Rng,
    pub(crate) number: u32,
}

impl LeaseUser {
    /// Grants leases during the faults, and leaves each.
    pub(crate) async fn run(mut self) {
        for _ in 0..ROUNDS {
            let ttl = self.draw_ttl();
            // An error is the end of this lease for the user. Without an answer it may exist, and ends by itself.
            let _ = self.round(ttl).await;
            if self.common.has_failed() {
                break;
            }
        }
        self.finish();
    }

    async fn round(&mut self, ttl: Duration) -> Result<(), KvError> {
        let lease = self.grant(&self.client, ttl).await?;
        let key = self.key();
        self.client.put_leased(&key, b"value", lease).await?;
        for _ in 0..self.rng.below(8) {
            let pause_ns = self.rng.below(ttl.as_nanos() as u64);
            self.sleep(Duration::from_nanos(pause_ns)).await;
            let begin_ns = self.now_ns();
            match self.client.keep_alive(lease).await {
                Ok(true) => self.report(|ledger| ledger.keep(lease, begin_ns)),
                Ok(false) => return Ok(()),
                Err(_) => {}
            }
        }
        if self.rng.below(4) == 0 {
            self.common.leases.borrow_mut().revoke(lease);
            self.client.revoke(lease).await?;
        }
        Ok(())
    }

    /// Leaves a lease while nothing fails but the leader, which hands over in the middle. The lease's key has to go in
    /// time.
    pub(crate) async fn run_in_time(
        mut self,
        hosts: Vec<HostId>,
        operator: Rc<RefCell<OperatorQueue>>,
    ) {
        if let Err(error) = self.lease_ends_in_time(&hosts, &operator).await {
            self.fail(&error.to_string());
        }
        self.finish();
    }

    async fn lease_ends_in_time(
        &mut self,
        hosts: &[HostId],
        operator: &RefCell<OperatorQueue>,
    ) -> Result<(), KvError> {
        let scenario = self.common.scenario.clone();
        let (tick, election) = (scenario.tick_ns, scenario.election_ns());
        let ttl = Duration::from_millis((20 * election).div_ceil(1_000_000));
        let (client, key) = (self.client.within(FOREVER), self.key());
        let lease = self.grant(&client, ttl).await?;
        client.put_leased(&key, b"value", lease).await?;
        let begin_ns = self.now_ns();
        if !client.keep_alive(lease).await? {
            self.fail("a lease has ended at once");
        }
        self.report(|ledger| ledger.keep(lease, begin_ns));
        let kept_ns = self.now_ns();
        self.sleep(ttl / 2).await;
        let host = hosts[self.rng.below(hosts.len() as u64) as usize];
        operator.borrow_mut().wanted.push_back(OperatorRequest::Transfer(host));
        loop {
            let asked_ns = self.now_ns();
            if client.get(&key).await?.is_none() {
                return Ok(());
            }
            // A heartbeat has two ticks, one passes until the clock advances, and a handover may take its timeout.
            let late_ns = asked_ns.saturating_sub(kept_ns + ttl.as_nanos() as u64);
            if late_ns > 8 * tick + 2 * election {
                self.fail(&format!("lease {lease} of {ttl:?} is {late_ns} ns late"));
                return Ok(());
            }
            self.sleep(Duration::from_nanos(tick)).await;
        }
    }

    async fn grant(&self, client: &KvClient, ttl: Duration) -> Result<u64, KvError> {
        let begin_ns = self.now_ns();
        let lease = client.grant(ttl).await?;
        self.common.leases.borrow_mut().grant(lease, ttl.as_nanos() as u64, begin_ns);
        self.common.fabric.note(format_args!("LEASE {lease} of {ttl:?}"));
        Ok(lease)
    }

    /// From half of an election timeout to eight.
    fn draw_ttl(&mut self) -> Duration {
        let ns = self.common.scenario.election_ns() * self.rng.between(1, 16) / 2;
        Duration::from_millis((ns / 1_000_000).max(LEASE_MS_MIN))
    }

    fn key(&self) -> Vec<u8> {
        format!("leased {}", self.number).into_bytes()
    }

    fn now_ns(&self) -> u64 {
        self.common.fabric.now_ns()
    }

    async fn sleep(&self, time: Duration) {
        self.handle.sleep(time).await;
    }

    fn report(&self, record: impl FnOnce(&mut Ledger) -> Result<(), String>) {
        let recorded = record(&mut self.common.leases.borrow_mut());
        recorded.unwrap_or_else(|what| self.fail(&what));
    }

    fn fail(&self, what: &str) {
        self.common.fail(format!("user {} of leases: {what}", self.number));
    }

    fn finish(&self) {
        let busy = &self.common.clients_busy;
        busy.set(busy.get() - 1);
    }
}
