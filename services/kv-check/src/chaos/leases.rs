//! A user of leases: no lease may end before its time since the last answered keep-alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use petrel::task::Handle;
use petrel_kv::{KvClient, KvError};
use petrel_sim::Rng;

use super::load;
use super::recorder::Recorder;

/// The time of each lease: shorter than many faults.
const TTL: Duration = Duration::from_secs(2);

/// Longest pause before a keep-alive. Some come too late.
const PAUSE_MS_MAX: u64 = 2_200;

/// Longest time that a lease may outlast its end: longer than any fault, and than a recovery.
const LATE_MAX: Duration = Duration::from_secs(60);

/// The pause between two looks at the key of a lease.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct LeaseUser {
    pub(super) phase: u64,
    pub(super) recorder: Arc<Recorder>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) rng: Rng,
}

impl LeaseUser {
    /// Grants leases, keeps each alive for a while, and watches its end, until `stop` is set.
    pub(super) fn run(mut self, nodes: u16) -> Result<(), String> {
        let (mut endpoint, client) = load::connect(nodes)?;
        let handle = endpoint.handle();
        endpoint.block_on(async {
            while !self.stop.load(Ordering::Relaxed) {
                // A lease without an answer ends by itself.
                let _ = self.round(&client, &handle).await;
            }
        });
        Ok(())
    }

    async fn round(&mut self, client: &KvClient, handle: &Handle) -> Result<(), KvError> {
        let mut kept = Instant::now();
        let lease = client.grant(TTL).await?;
        let key = format!("{}/lease/{lease}", self.phase).into_bytes();
        client.put_leased(&key, b"value", lease).await?;
        for _ in 0..self.rng.below(4) {
            handle.sleep(Duration::from_millis(self.rng.below(PAUSE_MS_MAX))).await;
            let begin = Instant::now();
            match client.keep_alive(lease).await {
                Ok(true) => kept = begin,
                Ok(false) => break,
                // The keep-alive may take effect later, which only prolongs the lease.
                Err(_) => {}
            }
        }
        let answered = Instant::now();
        let mut late = Duration::ZERO;
        loop {
            let begin = Instant::now();
            match client.get(&key).await {
                Ok(Some(_)) if late < LATE_MAX => {
                    late = begin.saturating_duration_since(answered + TTL);
                }
                Ok(Some(_)) => {
                    let what = format!("lease {lease} is {late:?} late");
                    self.recorder.lock().violations.push(what);
                    return Ok(());
                }
                Ok(None) => break,
                Err(_) if self.stop.load(Ordering::Relaxed) => return Ok(()),
                Err(_) => {}
            }
            handle.sleep(LOOK).await;
        }
        let early = (kept + TTL).saturating_duration_since(Instant::now());
        let mut state = self.recorder.lock();
        state.leases += 1;
        state.lease_late = state.lease_late.max(late);
        if !early.is_zero() {
            state.violations.push(format!("lease {lease} ended {early:?} early"));
        }
        Ok(())
    }
}
