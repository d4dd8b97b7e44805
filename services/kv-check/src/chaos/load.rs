//! Clients, on threads of their own, with consecutive operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::EndpointConfig;
use petrel::task::Handle;
use petrel::{Endpoint, Nexus};
use petrel_kv::{KvClient, KvClientConfig};
use petrel_sim::Rng;

use super::network::{CLIENTS, address_of};
use super::recorder::{KEYS, Recorder};
use crate::history::{End, Invocation};
use crate::operation;
use crate::script::Script;

/// Timeout of an operation, longer than most faults.
const TIMEOUT: Duration = Duration::from_secs(6);

/// Timeout of an attempt: short, to repeat writes often.
const ATTEMPT: Duration = Duration::from_millis(700);

/// On average, one operation in this number may have a much shorter timeout, and often an unknown effect.
const SHORT_TIMEOUT_ONE_IN: u64 = 4;

const PADDING_MAX: u64 = 64;

/// An endpoint with a client of the cluster.
pub(super) fn connect(nodes: u16) -> Result<(Endpoint, KvClient), String> {
    let transports = AllowedTransports::UDP;
    let nexus = Nexus::builder().insecure().transports(transports).start();
    let mut config = EndpointConfig::default();
    config.data_address = Some(address_of(CLIENTS).ip());
    let nexus = nexus.map_err(|error| error.to_string())?;
    let mut endpoint = nexus.endpoint(config).map_err(|error| error.to_string())?;
    let mut config = KvClientConfig::default();
    config.timeout = TIMEOUT;
    config.attempt_timeout = ATTEMPT;
    let addresses = (1..=nodes).map(address_of);
    let client = KvClient::on(addresses, config, |named, config| endpoint.client(named, config));
    Ok((endpoint, client.map_err(|error| error.to_string())?))
}

/// A client, with its randomly drawn parameters.
pub(super) struct Client {
    number: u32,
    phase: u64,
    recorder: Arc<Recorder>,
    stop: Arc<AtomicBool>,
    pause_max: Duration,
    script: Script,
    /// The group of keys of the last operation.
    group: usize,
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
        let script = Script::new(number, KEYS, PADDING_MAX, rng);
        let (recorder, stop) = (Arc::clone(recorder), Arc::clone(stop));
        Self { number, phase, recorder, stop, pause_max, script, group: 0 }
    }

    /// Runs operations until `stop` is set.
    pub(super) fn run(mut self, nodes: u16) -> Result<(), String> {
        let (mut endpoint, client) = connect(nodes)?;
        let handle = endpoint.handle();
        endpoint.block_on(self.work(&client, &handle));
        Ok(())
    }

    async fn work(&mut self, client: &KvClient, handle: &Handle) {
        while !self.stop.load(Ordering::Relaxed) {
            let pause_ns = self.script.rng.below(self.pause_max.as_nanos() as u64 + 1);
            handle.sleep(Duration::from_nanos(pause_ns)).await;
            let client = client.within(self.draw_timeout());
            let (script, last) = (&mut self.script, &mut self.group);
            let draw = |group, has_scans| {
                if std::mem::replace(last, group) != group {
                    script.forget();
                }
                script.draw(has_scans)
            };
            let (group, id, invocation) = self.recorder.begin(self.number, draw);
            let end = perform(&client, self.phase, group, &invocation).await;
            if let End::Answered(response) = &end {
                self.script.remember(&invocation, response);
            }
            self.recorder.end(group, id, end);
        }
    }

    fn draw_timeout(&mut self) -> Duration {
        if self.script.rng.below(SHORT_TIMEOUT_ONE_IN) > 0 {
            return TIMEOUT;
        }
        Duration::from_millis(self.script.rng.between(1, 200))
    }
}

pub(super) async fn perform(
    client: &KvClient,
    phase: u64,
    group: usize,
    invocation: &Invocation,
) -> End {
    let key_of = |key: u8| format!("{phase}/{group}/{key}").into_bytes();
    End::of(operation::perform(client, &key_of, invocation).await)
}
