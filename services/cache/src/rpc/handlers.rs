//! The handlers of an endpoint that owns a partition.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use petrel::endpoint::Handled;
use petrel::{Context, Endpoint, Request, Status};

use super::inbox_task::{Bell, run_batches};
use super::wire::{
    self, CountMessage, GOT_HEAD_BYTES, Hello, Malformed, StoreMessage, decode_delete,
    decode_seconds, decode_touch, encode_counted, encode_removed, encode_stored,
};
use crate::error::StoreError;
use crate::key::{Hasher, Key};
use crate::net::owner::Owner;
use crate::net::report::Snapshot;
use crate::net::thread::Shared;
use crate::partition::{Arithmetic, Partition, PartitionConfig, Store};

/// Interval of the look at the clock: times are whole seconds.
const CLOCK_INTERVAL: Duration = Duration::from_millis(200);

/// The last counters of the endpoints that have ended.
pub(crate) type Report = Arc<Mutex<Snapshot>>;

/// The settings of the endpoints of a server.
#[derive(Clone)]
pub(crate) struct Endpoints {
    pub(crate) partition: PartitionConfig,
    pub(crate) hasher: Hasher,
    pub(crate) shared: Arc<Shared>,
    pub(crate) bells: Arc<[Bell]>,
    pub(crate) report: Report,
}

/// The state of an endpoint. The partition is made when the endpoint has its number.
#[derive(Default)]
pub(crate) struct State(Option<Served>);

struct Served {
    owner: Owner,
    hasher: Hasher,
    number: usize,
    shared: Arc<Shared>,
    report: Report,
}

/// The reason why a request was not executed.
struct Refusal {
    status: Status,
    message: String,
}

impl From<Malformed> for Refusal {
    fn from(error: Malformed) -> Self {
        Self { status: Status::InvalidArgument, message: error.to_string() }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::TooLarge { .. } => Status::InvalidArgument,
            StoreError::Full => Status::ResourceExhausted,
        };
        Self { status, message: error.to_string() }
    }
}

impl State {
    fn served(&mut self) -> &mut Served {
        self.0.as_mut().expect("an endpoint gets its partition before its first request")
    }

    pub(super) fn owner(&mut self) -> &mut Owner {
        &mut self.served().owner
    }
}

impl Served {
    /// Returns the key with its hash, if this endpoint owns it.
    #[inline]
    fn key<'a>(&self, bytes: &'a [u8]) -> Result<Key<'a>, Refusal> {
        let key = self.hasher.key(bytes).map_err(|error| Refusal {
            status: Status::InvalidArgument,
            message: error.to_string(),
        })?;
        match key.partition(self.shared.partitions) {
            partition if partition == self.number => Ok(key),
            partition => Err(Refusal {
                status: Status::FailedPrecondition,
                message: format!("the key belongs to partition {partition}; say hello again"),
            }),
        }
    }

    /// The second of the clock at which an item ends that has these seconds.
    fn expiry(&self, ttl_s: u32) -> u32 {
        if ttl_s == 0 { 0 } else { self.owner.partition.time().saturating_add(ttl_s) }
    }

    fn set_time(&mut self) {
        self.owner.partition.set_time(self.shared.second());
    }
}

impl Drop for Served {
    /// Also runs when the endpoint's thread panics.
    fn drop(&mut self) {
        self.shared.ended_endpoints.fetch_add(1, Ordering::SeqCst);
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.add(&Snapshot::of(&self.owner.partition));
    }
}

impl Endpoints {
    /// Makes the endpoint's partition, registers the handlers and starts the endpoint's tasks.
    pub(crate) fn set_up(&self, endpoint: &mut Endpoint<State>) {
        let number = usize::from(endpoint.stats().endpoint.0);
        let partition = Partition::new(&self.partition, self.hasher.clone());
        let partition = partition.expect("the server has checked the configuration");
        let locator = partition.locator();
        let owner = Owner { partition, clock: self.shared.clock };
        let (hasher, report) = (self.hasher.clone(), Arc::clone(&self.report));
        let shared = Arc::clone(&self.shared);
        let mut served = Served { owner, hasher: hasher.clone(), number, shared, report };
        served.set_time();
        endpoint.state_mut().0 = Some(served);
        self.register(endpoint);
        // The request is the key: its line of the index is fetched while other requests run.
        endpoint.prefetch(wire::GET, move |message| locator.address(hasher.hash(message)));
        let handle = endpoint.handle();
        let clock = handle.clone();
        // The tasks end with the endpoint.
        drop(handle.spawn(async move {
            loop {
                clock.sleep(CLOCK_INTERVAL).await;
                clock.with(|state: &mut State| state.served().set_time());
            }
        }));
        let batches = run_batches(
            handle.clone(),
            Arc::clone(&self.shared),
            number,
            self.bells[number].clone(),
        );
        drop(handle.spawn(batches));
    }

    fn register(&self, endpoint: &mut Endpoint<State>) {
        let hello = Hello {
            mode: self.shared.mode,
            partitions: self.shared.partitions as u16,
            seed: self.hasher.seed(),
        };
        endpoint.on(wire::HELLO, move |_, cx, request| request.reply(cx, &hello.encode()));
        endpoint.on(wire::GET, get);
        serve(endpoint, wire::STORE, |served, message| {
            let message = StoreMessage::decode(message)?;
            let StoreMessage { verb, compare, flags, ttl_s, value, .. } = message;
            let (key, expiry) = (served.key(message.key)?, served.expiry(ttl_s));
            let request = Store { key, value, flags, expiry, verb, compare, allows_stale: false };
            Ok(encode_stored(served.owner.partition.store(&request)?))
        });
        serve(endpoint, wire::DELETE, |served, message| {
            let (key, compare) = decode_delete(message)?;
            let key = served.key(key)?;
            Ok(encode_removed(served.owner.partition.delete(key, compare)))
        });
        serve(endpoint, wire::TOUCH, |served, message| {
            let (key, ttl_s) = decode_touch(message)?;
            let (key, expiry) = (served.key(key)?, served.expiry(ttl_s));
            Ok([u8::from(served.owner.partition.touch(key, expiry))])
        });
        serve(endpoint, wire::COUNT, |served, message| {
            let CountMessage { is_increment, delta, initial, ttl_s, key } =
                CountMessage::decode(message)?;
            let (key, expiry) = (served.key(key)?, served.expiry(ttl_s));
            let initial = initial.map(|number| (number, expiry));
            let request =
                Arithmetic { key, delta, is_increment, compare: None, touch: None, initial };
            Ok(encode_counted(served.owner.partition.count(&request)?))
        });
        serve(endpoint, wire::FLUSH, |served, message| {
            let second = served.expiry(decode_seconds(message)?);
            served.owner.partition.flush_at(second);
            Ok([])
        });
        serve(endpoint, wire::STATS, |served, _| {
            let mut text = String::new();
            for (name, value) in Snapshot::of(&served.owner.partition).named() {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{name} {value}");
            }
            Ok(text.into_bytes())
        });
    }
}

/// Looks an item up, and copies its value to the reply alone.
fn get(state: &mut State, cx: &mut Context<'_, State>, request: Request<'_>) -> Handled {
    let served = state.served();
    let key = match served.key(request.data()) {
        Ok(key) => key,
        Err(refusal) => return request.fail(cx, refusal.status, &refusal.message),
    };
    let Some(item) = served.owner.partition.get(key) else { return request.reply(cx, &[]) };
    request.reply_with(cx, GOT_HEAD_BYTES + item.value.len(), |_, out| {
        out[..8].copy_from_slice(&item.cas.to_le_bytes());
        out[8..GOT_HEAD_BYTES].copy_from_slice(&item.flags.to_le_bytes());
        out[GOT_HEAD_BYTES..].copy_from_slice(item.value);
        out.len()
    })
}

/// Registers a method.
fn serve<R: AsRef<[u8]> + 'static>(
    endpoint: &mut Endpoint<State>,
    method: u16,
    run: fn(&mut Served, &[u8]) -> Result<R, Refusal>,
) {
    endpoint.on(method, move |state, cx, request| match run(state.served(), request.data()) {
        Ok(message) => request.reply(cx, message.as_ref()),
        Err(refusal) => request.fail(cx, refusal.status, &refusal.message),
    });
}
