//! A phase: a new cluster and new keys, a fault window of some tens of seconds, and a check of all rules.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use petrel::task::Handle;
use petrel_kv::KvClient;
use petrel_sim::Rng;

use super::cluster::Cluster;
use super::leases::LeaseUser;
use super::load::{self, Client};
use super::nemesis::Nemesis;
use super::network::Network;
use super::options::ChaosOptions;
use super::recorder::{KEYS, Recorder};
use super::recovery::{RECOVERY_MAX, wait_until_it_serves, wait_until_recovered};
use super::replica::Settings;
use super::report::{ChaosReport, Counts};
use super::watches::WatchUser;
use crate::history::Operation;
use crate::linearizable::{Checker, Verdict};
use crate::operation::is_by_save;

/// Domains of random numbers.
const SETTINGS: u32 = 0xc4a0;
const CLIENTS: u32 = 0xc4a1;
const LEASES: u32 = 0xc4a2;

/// Prefixes of a phase's directory: during the phase, and after a violation.
const UNFINISHED: &str = "phase-";
const KEPT: &str = "violation-";

pub(super) struct Phase {
    number: u64,
    seed: u64,
    settings: Settings,
    is_on_disk: bool,
    clients: u32,
    pause_max: Duration,
    time: Duration,
    rng: Rng,
}

/// The objects of a running phase.
struct Stage<'a, 'n> {
    cluster: &'a mut Cluster<'n>,
    client: &'a KvClient,
    handle: &'a Handle,
    recorder: &'a Arc<Recorder>,
}

impl Phase {
    pub(super) fn draw(options: &ChaosOptions, number: u64) -> Self {
        let mut rng = Rng::stream(options.seed, SETTINGS, number as u32);
        let settings = Settings {
            nodes: if rng.below(3) == 0 { 5 } else { 3 },
            has_leases: rng.below(2) == 0,
            election_ms: [500, 800, 1500][rng.below(3) as usize],
            log_entries_max: [200, 2_000, 200_000][rng.below(3) as usize],
        };
        Self {
            number,
            seed: options.seed,
            settings,
            // Alternates, to have both kinds even in a short run.
            is_on_disk: number % 2 == 1,
            clients: rng.between(4, 8) as u32,
            pause_max: Duration::from_millis(rng.between(5, 40)),
            time: options.phase_time,
            rng,
        }
    }

    /// Runs the phase, from an empty cluster on.
    pub(super) fn run(
        &self,
        network: &Network,
        command: &[&str],
        directory: &Path,
    ) -> Result<ChaosReport, String> {
        let place = directory.join(format!("{UNFINISHED}{}", self.number));
        let (mut rng, settings) = (self.rng.clone(), self.settings);
        let (seed, is_on_disk) = (rng.next_u64(), self.is_on_disk);
        let mut cluster = Cluster::new(network, command, settings, is_on_disk, &place, seed)?;
        let recorder = Arc::new(Recorder::new());
        let (mut endpoint, client) = load::connect(settings.nodes)?;
        let handle = endpoint.handle();
        let mut report = self.report();
        let (client, handle, recorder) = (&client, &handle, &recorder);
        let stage = Stage { cluster: &mut cluster, client, handle, recorder };
        let ran = endpoint.block_on(self.drive(stage, &mut report));
        drop(cluster);
        network.heal(settings.nodes)?;
        report.violations.extend(ran.err());
        self.check(recorder, &mut report)?;
        self.clear_or_keep(recorder, &report, &place, directory)?;
        Ok(report)
    }

    fn report(&self) -> ChaosReport {
        ChaosReport {
            phase: self.number,
            seed: self.seed,
            settings: self.settings,
            is_on_disk: self.is_on_disk,
            clients: self.clients,
            counts: Counts::default(),
            serves_after_s: 0.0,
            recovered_after_s: 0.0,
            violations: Vec::new(),
        }
    }

    /// Runs all steps. The error is a broken rule.
    async fn drive(&self, stage: Stage<'_, '_>, report: &mut ChaosReport) -> Result<(), String> {
        let Stage { cluster, client, handle, recorder } = stage;
        (1..=self.settings.nodes).try_for_each(|node| cluster.start(node))?;
        wait_until_recovered(cluster, client, handle).await?;
        let [stop, end] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let watch = self.start_watch(recorder, &end);
        let threads = self.start_clients(recorder, &stop);
        let rng = self.rng.clone();
        let mut nemesis = Nemesis::new(cluster, client, handle, recorder, rng);
        let injected = nemesis.inject_faults(Instant::now() + self.time).await;
        let healed = Instant::now();
        nemesis.heal().await?;
        let served = wait_until_it_serves(client).await;
        report.serves_after_s = healed.elapsed().as_secs_f64();
        let back = nemesis.heal_within(RECOVERY_MAX).await;
        report.counts.faults = std::mem::take(&mut nemesis.counts);
        stop.store(true, Ordering::Relaxed);
        join(threads)?;
        let mut well = injected.and(served).and(back);
        if well.is_ok() {
            self.read_all(client, recorder).await;
            well = wait_until_recovered(cluster, client, handle).await;
            report.recovered_after_s = healed.elapsed().as_secs_f64();
        }
        end.store(true, Ordering::Relaxed);
        join(vec![watch])?;
        well
    }

    fn start_clients(
        &self,
        recorder: &Arc<Recorder>,
        stop: &Arc<AtomicBool>,
    ) -> Vec<JoinHandle<Result<(), String>>> {
        let start = |number| {
            let rng = Rng::stream(self.seed ^ (self.number << 32), CLIENTS, number);
            let client = Client::new(number, self.number, recorder, stop, rng, self.pause_max);
            let nodes = self.settings.nodes;
            std::thread::spawn(move || client.run(nodes))
        };
        let (recorder, stop) = (Arc::clone(recorder), Arc::clone(stop));
        let rng = Rng::stream(self.seed ^ (self.number << 32), LEASES, 0);
        let (user, nodes) =
            (LeaseUser { phase: self.number, recorder, stop, rng }, self.settings.nodes);
        let user = std::thread::spawn(move || user.run(nodes));
        (0..self.clients).map(start).chain([user]).collect()
    }

    fn start_watch(
        &self,
        recorder: &Arc<Recorder>,
        end: &Arc<AtomicBool>,
    ) -> JoinHandle<Result<(), String>> {
        let (recorder, end) = (Arc::clone(recorder), Arc::clone(end));
        let (user, nodes) = (WatchUser { phase: self.number, recorder, end }, self.settings.nodes);
        std::thread::spawn(move || user.run(nodes))
    }

    /// Reads all keys at the end, which reveals lost acknowledged writes.
    async fn read_all(&self, client: &KvClient, recorder: &Recorder) {
        let groups = recorder.lock().groups.len();
        for (group, key) in (0..groups).flat_map(|group| (0..KEYS).map(move |key| (group, key))) {
            let (id, invocation) = recorder.begin_read(group, self.clients, key);
            let end = load::perform(client, self.number, group, &invocation).await;
            recorder.end(group, id, end);
        }
    }

    fn check(&self, recorder: &Recorder, report: &mut ChaosReport) -> Result<(), String> {
        let started = Checker::start();
        let mut checker = started.ok_or("the checker of linearizability does not start")?;
        let state = recorder.lock();
        let counts = &mut report.counts;
        (counts.done, counts.failed, counts.unknown) = (state.done, state.failed, state.unknown);
        (counts.leases, counts.lease_late_max_s) = (state.leases, state.lease_late.as_secs_f64());
        (counts.changes_watched, counts.watches_compacted) =
            (state.changes_watched, state.watches_compacted);
        counts.operations = state.done + state.failed + state.unknown;
        report.violations.extend(state.violations.iter().cloned());
        for (number, group) in state.groups.iter().enumerate() {
            let is_save = |operation: &&Operation| {
                operation.response.is_some() && is_by_save(&operation.invocation)
            };
            counts.saves += group.history.operations.iter().filter(is_save).count() as u64;
            match checker.check(&group.history, group.has_scans)? {
                Verdict::Ok => counts.linearizable += 1,
                Verdict::Unknown => counts.too_hard += 1,
                Verdict::Illegal => {
                    let what = format!("the history of keys {number} is not linearizable");
                    report.violations.push(what);
                }
            }
        }
        Ok(())
    }

    /// Keeps the files of a phase with violations, and removes all files otherwise.
    fn clear_or_keep(
        &self,
        recorder: &Recorder,
        report: &ChaosReport,
        place: &Path,
        directory: &Path,
    ) -> Result<(), String> {
        let io = |error: std::io::Error| format!("{}: {error}", place.display());
        if report.is_fine() {
            return std::fs::remove_dir_all(place).map_err(io);
        }
        let state = recorder.lock();
        let histories: Vec<Vec<_>> =
            state.groups.iter().map(|group| group.kept().collect()).collect();
        let text = serde_json::to_string(&histories).map_err(|error| error.to_string())?;
        std::fs::write(place.join("histories.json"), text).map_err(io)?;
        std::fs::write(place.join("faults.txt"), state.notes.join("\n")).map_err(io)?;
        let kept: PathBuf = directory.join(format!("{KEPT}{}-{}", self.seed, self.number));
        // From an earlier run of the same phase.
        let _ = std::fs::remove_dir_all(&kept);
        std::fs::rename(place, &kept).map_err(io)?;
        eprintln!("histories, faults, logs and data: {}", kept.display());
        Ok(())
    }
}

/// Removes the files of a run that ended in the middle of a phase. Returns true if all are removed.
pub(super) fn remove_unfinished(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_unfinished =
        |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(UNFINISHED);
    let remove = |entry: DirEntry| std::fs::remove_dir_all(entry.path()).is_ok();
    entries.filter(is_unfinished).all(remove)
}

fn join(threads: Vec<JoinHandle<Result<(), String>>>) -> Result<(), String> {
    for thread in threads {
        thread.join().map_err(|_| "a client has panicked")??;
    }
    Ok(())
}
