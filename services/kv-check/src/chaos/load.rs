//! Clients: each on a thread of its own, one operation after the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use petrel::control::AllowedTransports;
use petrel::{Endpoint, EndpointConfig, Handle, Nexus};
use petrel_kv::api::Certainty;
use petrel_kv::command::{Expected, Op};
use petrel_kv::{KvClient, KvClientConfig, KvError};
use petrel_sim::Rng;

use super::network::{CLIENTS, address_of};
use super::recorder::{End, KEYS, Recorder};
use crate::history::{Ask, Expects, Found, Told};
use crate::value::{tag_of, value_of};

/// How long an operation may take before its client gives up: longer than most faults.
const TIMEOUT: Duration = Duration::from_secs(6);

/// After that an attempt is made elsewhere, so that writes are repeated often.
const ATTEMPT: Duration = Duration::from_millis(700);

/// One operation of so many may take much less time: what becomes of it is often unknown.
const HURRIES: u64 = 4;

const PADDING_MAX: u64 = 64;

/// An endpoint with a client of the cluster.
pub(super) fn connect(nodes: u16, seed: u64) -> Result<(Endpoint, KvClient), String> {
    let transports = AllowedTransports { udp: true, shm: false };
    let nexus = Nexus::builder().insecure().transports(transports).start();
    let mut config = EndpointConfig::default();
    config.data_address = Some(address_of(CLIENTS).ip());
    let nexus = nexus.map_err(|error| error.to_string())?;
    let endpoint = nexus.endpoint(config).map_err(|error| error.to_string())?;
    let mut config = KvClientConfig::new(seed);
    config.timeout = TIMEOUT;
    config.attempt_timeout = ATTEMPT;
    let client = KvClient::new(endpoint.handle(), (1..=nodes).map(address_of), config);
    Ok((endpoint, client.map_err(|error| error.to_string())?))
}

/// What a client is and does; drawn.
pub(super) struct Client {
    number: u32,
    phase: u64,
    recorder: Arc<Recorder>,
    stop: Arc<AtomicBool>,
    pause_max: Duration,
    script: Script,
}

/// What it asks for next.
struct Script {
    number: u32,
    rng: Rng,
    group: usize,
    writes: u64,
    /// What it last saw of keys: for conditions.
    known: BTreeMap<u8, (String, u64)>,
}

impl Client {
    pub(super) fn new(
        number: u32,
        phase: u64,
        recorder: &Arc<Recorder>,
        stop: &Arc<AtomicBool>,
        rng: Rng,
        pause_max: Duration,
    ) -> Self {
        let script = Script { number, rng, group: 0, writes: 0, known: BTreeMap::new() };
        let (recorder, stop) = (Arc::clone(recorder), Arc::clone(stop));
        Self { number, phase, recorder, stop, pause_max, script }
    }

    /// Goes on until it is told to stop.
    pub(super) fn run(mut self, nodes: u16) -> Result<(), String> {
        let (mut endpoint, client) = connect(nodes, self.script.rng.next_u64())?;
        let handle = endpoint.handle();
        endpoint.block_on(self.work(&client, &handle));
        Ok(())
    }

    async fn work(&mut self, client: &KvClient, handle: &Handle) {
        while !self.stop.load(Ordering::Relaxed) {
            let pause_ns = self.script.rng.below(self.pause_max.as_nanos() as u64 + 1);
            handle.sleep(Duration::from_nanos(pause_ns)).await;
            let client = client.within(self.script.draw_timeout());
            let script = &mut self.script;
            let draw = |group, has_scans| script.draw(group, has_scans);
            let (group, id, ask) = self.recorder.begin(self.number, draw);
            let end = perform(&client, self.phase, group, &ask).await;
            if let End::Told(told) = &end {
                self.script.remember(&ask, told);
            }
            self.recorder.end(group, id, end);
        }
    }
}

impl Script {
    fn draw_timeout(&mut self) -> Duration {
        if self.rng.below(HURRIES) > 0 {
            return TIMEOUT;
        }
        Duration::from_millis(self.rng.between(1, 200))
    }

    fn draw(&mut self, group: usize, has_scans: bool) -> Ask {
        if self.group != group {
            self.group = group;
            self.known.clear();
        }
        let key = self.rng.below(u64::from(KEYS)) as u8;
        let kind = self.rng.below(if has_scans { 24 } else { 20 });
        let padding = self.rng.below(PADDING_MAX);
        self.writes += 1;
        let tag = format!("{}.{}.{padding}", self.number, self.writes);
        match kind {
            0..7 => Ask::Get { key },
            7..13 => Ask::Put { key, tag },
            13..15 => Ask::Delete { key },
            15..19 => Ask::Cas { key, expected: self.expected(key), tag },
            19 => Ask::CasDelete { key, expected: self.expected(key) },
            _ => {
                let until = self.rng.between(u64::from(key) + 1, u64::from(KEYS)) as u8;
                Ask::Scan { from: key, until, max: self.rng.between(1, 8) as u32 }
            }
        }
    }

    fn expected(&mut self, key: u8) -> Expects {
        match (self.rng.below(4), self.known.get(&key)) {
            (0, _) | (_, None) => Expects::Absent,
            (1, Some((tag, _))) => Expects::Tag(tag.clone()),
            (_, Some((_, revision))) => Expects::Revision(*revision),
        }
    }

    fn remember(&mut self, ask: &Ask, told: &Told) {
        match (ask, told) {
            (_, Told::Found(found)) => found.iter().for_each(|found| {
                self.known.insert(found.key, (found.tag.clone(), found.revision));
            }),
            (Ask::Put { key, tag } | Ask::Cas { key, tag, .. }, Told::Changed { index, .. }) => {
                self.known.insert(*key, (tag.clone(), *index));
            }
            (Ask::Delete { key } | Ask::CasDelete { key, .. }, _) => {
                self.known.remove(key);
            }
            _ => {}
        }
    }
}

/// One operation.
pub(super) async fn perform(client: &KvClient, phase: u64, group: usize, ask: &Ask) -> End {
    let result = match ask {
        Ask::Get { key } => get(client, phase, group, *key).await,
        Ask::Scan { from, until, max } => scan(client, phase, group, *from, *until, *max).await,
        write => change(client, phase, group, write).await,
    };
    match result {
        Ok(told) => End::Told(told),
        Err(error) if error.certainty() == Certainty::NotApplied => End::Failed,
        Err(_) => End::Unknown,
    }
}

fn key_of(phase: u64, group: usize, key: u8) -> Vec<u8> {
    format!("{phase}/{group}/{key}").into_bytes()
}

fn garbled(what: &[u8]) -> String {
    format!("garbled: {}", what.escape_ascii())
}

async fn get(client: &KvClient, phase: u64, group: usize, key: u8) -> Result<Told, KvError> {
    let value = client.get(&key_of(phase, group, key)).await?;
    let found = value.map(|value| Found {
        key,
        tag: tag_of(&value).unwrap_or_else(|| garbled(&value)),
        revision: value.revision(),
    });
    Ok(Told::Found(found.into_iter().collect()))
}

async fn scan(
    client: &KvClient,
    phase: u64,
    group: usize,
    from: u8,
    until: u8,
    max: u32,
) -> Result<Told, KvError> {
    let until = key_of(phase, group, until);
    let scan = client.scan(&key_of(phase, group, from), Some(&until));
    let page = scan.limit(u64::from(max)).next_page().await?;
    let pairs = page.iter().flat_map(|page| page.pairs());
    let found = pairs.map(|pair| Found {
        key: pair.key.last().map_or(u8::MAX, |digit| digit.wrapping_sub(b'0')),
        tag: tag_of(pair.value).unwrap_or_else(|| garbled(pair.value)),
        revision: pair.revision,
    });
    Ok(Told::Found(found.collect()))
}

async fn change(client: &KvClient, phase: u64, group: usize, ask: &Ask) -> Result<Told, KvError> {
    let (key, tag, expects) = match ask {
        Ask::Put { key, tag } => (key, Some(tag), None),
        Ask::Delete { key } => (key, None, None),
        Ask::Cas { key, expected, tag } => (key, Some(tag), Some(expected)),
        Ask::CasDelete { key, expected } => (key, None, Some(expected)),
        Ask::Get { .. } | Ask::Scan { .. } => unreachable!("reads change nothing"),
    };
    let key = &key_of(phase, group, *key)[..];
    let value = tag.map(|tag| value_of(tag)).unwrap_or_default();
    let wanted = match expects {
        Some(Expects::Tag(tag)) => value_of(tag),
        _ => Vec::new(),
    };
    let expected = expects.map(|expects| match expects {
        Expects::Absent => Expected::Absent,
        Expects::Revision(revision) => Expected::Revision(*revision),
        Expects::Tag(_) => Expected::Value(&wanted),
    });
    let value = &value[..];
    let op = match (tag.is_some(), expected) {
        (true, None) => Op::Put { key, value },
        (false, None) => Op::Delete { key },
        (true, Some(expected)) => Op::Cas { key, expected, value },
        (false, Some(expected)) => Op::CasDelete { key, expected },
    };
    let applied = client.write(&op).await?;
    Told::of(applied).ok_or(KvError::Unknown { last: format!("{applied:?}") })
}
