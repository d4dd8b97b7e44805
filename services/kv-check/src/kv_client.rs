//! A user of the store's own client, `KvClient`: its operations may fail, and the client's reports about them are
//! checked.

use std::rc::Rc;
use std::time::Duration;

use petrel::task::Handle;
use petrel_kv::api::Consistency;
use petrel_kv::{KvClient, KvError};
use petrel_sim::Rng;

use crate::common::Common;
use crate::history::{End, Invocation, Response};
use crate::operation;
use crate::script::Script;
use crate::value::key_of;

/// On average, one operation in this number has a short timeout or is soon dropped, and often has an unknown effect.
const SHORT_TIMEOUT_ONE_IN: u64 = 4;

/// Timeout of the last operation: longer than any wait of a world.
const FOREVER: Duration = Duration::from_secs(3_600);

pub(crate) struct KvClientUser {
    common: Rc<Common>,
    handle: Handle,
    client: KvClient,
    number: u32,
    script: Script,
}

#[derive(Clone, Copy, Debug)]
enum TimeoutPolicy {
    /// The client's configured timeout.
    Default,
    /// A timeout for this operation.
    Timeout(Duration),
    /// The caller drops the operation after this time, in any state.
    DropAfter(Duration),
}

impl KvClientUser {
    pub(crate) fn new(
        common: Rc<Common>,
        handle: Handle,
        client: KvClient,
        number: u32,
        rng: Rng,
    ) -> Self {
        let load = common.scenario.load;
        let script = Script::new(number, load.keys, load.value_bytes_max + 1, rng);
        Self { common, handle, client, number, script }
    }

    /// All operations during the fault window; then a last write, which must succeed.
    pub(crate) async fn run(mut self) {
        let load = self.common.scenario.load;
        for _ in 0..load.ops {
            if self.script.rng.below(16) == 0 {
                self.get_stale().await;
            }
            let invocation = self.script.draw(load.has_scans);
            let timeout_policy = self.draw_timeout_policy();
            self.perform(invocation, timeout_policy).await;
            let pause_ns = self.script.rng.below(load.pause_ns_max + 1);
            self.handle.sleep(Duration::from_nanos(pause_ns)).await;
            if self.common.has_failed() {
                break;
            }
        }
        let invocation = Invocation::Put { key: 0, tag: self.script.next_tag() };
        match self.perform(invocation, TimeoutPolicy::Timeout(FOREVER)).await {
            End::Answered(_) => {}
            other => self.fail(&format!("its last write has no result: {other:?}")),
        }
        let busy = &self.common.clients_busy;
        busy.set(busy.get() - 1);
    }

    fn draw_timeout_policy(&mut self) -> TimeoutPolicy {
        let election_ns = self.common.scenario.election_ns();
        if self.script.rng.below(SHORT_TIMEOUT_ONE_IN) > 0 {
            return TimeoutPolicy::Default;
        }
        let time = Duration::from_nanos(self.script.rng.below(election_ns));
        if self.script.rng.below(2) == 0 {
            TimeoutPolicy::Timeout(time)
        } else {
            TimeoutPolicy::DropAfter(time)
        }
    }

    /// Performs an operation, and records call and end in the history.
    async fn perform(&mut self, invocation: Invocation, timeout_policy: TimeoutPolicy) -> End {
        let common = Rc::clone(&self.common);
        common.counters.borrow_mut().kv_client_operations += 1;
        let id = common.history.borrow_mut().begin(self.number, invocation.clone());
        let number = self.number;
        common
            .fabric
            .note(format_args!("CLIENT {number} #{id} invokes {invocation:?} {timeout_policy:?}"));
        let result = self.invoke(&invocation, timeout_policy).await;
        common.fabric.note(format_args!("CLIENT {number} #{id} receives {result:?}"));
        if let Err(error) = &result
            && !matches!(error, KvError::Timeout { .. } | KvError::Unknown { .. })
        {
            self.fail(&format!("{invocation:?} ends with: {error}"));
        }
        let end = End::of(result);
        let mut history = common.history.borrow_mut();
        let ended = match &end {
            End::Answered(response) => {
                let is_by_save = operation::is_by_save(&invocation);
                common.counters.borrow_mut().saves += u64::from(is_by_save);
                self.script.remember(&invocation, response);
                history.end(id, response.clone())
            }
            End::Failed => history.fail(id),
            End::Unknown => Ok(()),
        };
        drop(history);
        self.report(ended);
        end
    }

    async fn invoke(
        &self,
        invocation: &Invocation,
        timeout_policy: TimeoutPolicy,
    ) -> Result<Response, KvError> {
        let key_of = |key| key_of(key).to_vec();
        match timeout_policy {
            TimeoutPolicy::Default => operation::perform(&self.client, &key_of, invocation).await,
            TimeoutPolicy::Timeout(time) => {
                operation::perform(&self.client.within(time), &key_of, invocation).await
            }
            TimeoutPolicy::DropAfter(time) => {
                let operation = operation::perform(&self.client, &key_of, invocation);
                let dropped = |_| KvError::Unknown { last: "it was dropped".to_owned() };
                self.handle.timeout(time, operation).await.map_err(dropped)?
            }
        }
    }

    /// Reads the value of any replica. The read is not part of the history, but the value must have been written at its
    /// revision.
    async fn get_stale(&mut self) {
        let key = self.script.rng.below(u64::from(self.common.scenario.load.keys)) as u8;
        let key_of = |key| key_of(key).to_vec();
        let found = operation::get(&self.client, &key_of, key, Consistency::Stale).await;
        let Ok(Some(found)) = found else { return };
        self.common.counters.borrow_mut().stale_reads += 1;
        let mut history = self.common.history.borrow_mut();
        let noted = history.note_write(found.key, &found.tag, found.revision);
        drop(history);
        self.report(noted);
    }

    fn report(&self, rule: Result<(), String>) {
        if let Err(what) = rule {
            self.fail(&what);
        }
    }

    fn fail(&self, what: &str) {
        self.common.fail(format!("client {}: {what}", self.number));
    }
}
