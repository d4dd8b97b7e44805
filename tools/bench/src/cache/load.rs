//! The clients of Petrel: calls of one endpoint, on sessions to each partition.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::{Context, Reply, SessionId};
use petrel::{Endpoint, MsgBuf};
use petrel_cache::wire::{self, StoreMessage};
use petrel_cache::{Hasher, Verb};
use petrel_command::failure::Failure;
use petrel_command::methods;
use petrel_command::output::latency::Latencies;
use petrel_transport::clock;

use super::Work;
use super::keys::{Items, Popularity};

/// Turns of the event loop between two readings of the clock.
const TURNS_PER_CLOCK_READ: u32 = 64;

/// Longest wait for the last answers.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Bytes before the value in the answer to GET, and before the key in a STORE.
const GOT_HEAD_BYTES: usize = 12;
const STORE_HEAD_BYTES: usize = 20;

/// The kind of a window's calls.
#[derive(Clone)]
pub enum Kind {
    /// An echo of an item's bytes.
    Echo,
    /// Operations on items of this popularity.
    Mix(Rc<Popularity>, u8),
    /// A SET of each item.
    Fill(u32),
}

/// The calls of an endpoint.
pub struct Load {
    items: Items,
    hasher: Hasher,
    /// Sessions, by partition and client.
    sessions: Vec<Vec<SessionId>>,
    slots: Vec<Slot>,
    kind: Kind,
    next_item: u32,
    active: usize,
    end_ns: u64,
    rng: fastrand::Rng,
    scratch: Vec<u8>,
    work: Work,
    failure: Option<String>,
}

struct Slot {
    number: u32,
    call: Call,
    started_ns: u64,
    buffers: Option<(MsgBuf, MsgBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Echo,
    Get,
    Set,
}

impl Load {
    /// Creates calls without sessions.
    pub fn new(items: Items) -> Self {
        Self {
            items,
            hasher: Hasher::new(0),
            sessions: Vec::new(),
            slots: Vec::new(),
            kind: Kind::Echo,
            next_item: 0,
            active: 0,
            end_ns: 0,
            rng: fastrand::Rng::with_seed(0x7065_7472_656c),
            scratch: Vec::new(),
            work: Work::default(),
            failure: None,
        }
    }

    /// Sets the sessions by partition, the hash that leads to them, and the calls in flight.
    pub fn set_sessions(
        &mut self,
        cx: &mut Context<'_, Self>,
        sessions: Vec<Vec<SessionId>>,
        hasher: Hasher,
        in_flight: u16,
    ) -> Result<(), Failure> {
        let Items { key_bytes, value_bytes } = self.items;
        let slot = |_| {
            let request = cx.alloc(STORE_HEAD_BYTES + key_bytes + value_bytes);
            let response = cx.alloc(GOT_HEAD_BYTES + key_bytes + value_bytes);
            let buffers = (request.map_err(Failure::because)?, response.map_err(Failure::because)?);
            Ok(Slot { number: 0, call: Call::Echo, started_ns: 0, buffers: Some(buffers) })
        };
        self.slots = (0..in_flight).map(slot).collect::<Result<_, Failure>>()?;
        (self.sessions, self.hasher) = (sessions, hasher);
        Ok(())
    }

    /// Makes calls for a window, and runs `serve` between the turns of the endpoint.
    pub fn window(
        endpoint: &mut Endpoint<Self>,
        kind: Kind,
        length: Duration,
        mut serve: impl FnMut(),
    ) -> Result<Work, Failure> {
        let begin_ns = clock::now_ns();
        let is_fill = matches!(kind, Kind::Fill(_));
        let end_ns = begin_ns.saturating_add(length.as_nanos() as u64);
        endpoint.with(|load, cx| load.begin(cx, kind, end_ns));
        while endpoint.state().active > 0 {
            (0..TURNS_PER_CLOCK_READ).for_each(|_| {
                endpoint.run_once();
                serve();
            });
            if !is_fill && clock::now_ns() > end_ns + GIVE_UP_AFTER.as_nanos() as u64 {
                return Err(Failure::because("calls have not ended"));
            }
        }
        let load = endpoint.state_mut();
        if let Some(failure) = load.failure.take() {
            return Err(Failure::because(format!("a call failed: {failure}")));
        }
        Ok(Work { elapsed_ns: clock::now_ns() - begin_ns, ..mem::take(&mut load.work) })
    }

    fn begin(&mut self, cx: &mut Context<'_, Self>, kind: Kind, end_ns: u64) {
        (self.kind, self.end_ns, self.next_item) = (kind, end_ns, 0);
        let now_ns = cx.now().as_ns();
        for slot in 0..self.slots.len() {
            self.start(cx, slot, now_ns);
        }
    }

    /// Chooses the next operation; `None` if all are made.
    #[inline]
    fn choose(&mut self) -> Option<(Call, u32)> {
        match &self.kind {
            Kind::Echo => Some((Call::Echo, self.rng.u32(..))),
            Kind::Mix(popularity, get) => {
                let call = if self.rng.u8(..100) < *get { Call::Get } else { Call::Set };
                Some((call, popularity.draw(&mut self.rng)))
            }
            Kind::Fill(count) => {
                let number = self.next_item;
                self.next_item += 1;
                (number < *count).then_some((Call::Set, number))
            }
        }
    }

    /// Starts the next operation in a slot, on a session of the key's partition.
    #[inline]
    fn start(&mut self, cx: &mut Context<'_, Self>, index: usize, now_ns: u64) {
        let Some((call, number)) = self.choose() else { return };
        self.scratch.clear();
        self.items.put_key(number, &mut self.scratch);
        let key = self.hasher.key(&self.scratch).expect("a key of 16 to 250 bytes");
        let partition = key.partition(self.sessions.len());
        let key_bytes = self.scratch.len();
        let method = match call {
            Call::Get => wire::GET,
            Call::Echo => {
                self.items.put_value(number, &mut self.scratch);
                methods::ECHO
            }
            Call::Set => {
                self.items.put_value(number, &mut self.scratch);
                let (key, value) = self.scratch.split_at(key_bytes);
                let verb = Verb::Set;
                self.scratch =
                    StoreMessage { verb, compare: None, flags: 0, ttl_s: 0, key, value }.encode();
                wire::STORE
            }
        };
        let slot = &mut self.slots[index];
        let Some((mut request, response)) = slot.buffers.take() else { return };
        (slot.call, slot.number, slot.started_ns) = (call, number, now_ns);
        request.set_message(&self.scratch);
        let sessions = &self.sessions[partition];
        match cx
            .call(sessions[index % sessions.len()], method, request)
            .into_buffer(response)
            .then(move |load, cx, reply| load.on_reply(cx, reply, index))
        {
            Ok(()) => self.active += 1,
            Err(rejected) => {
                slot.buffers = rejected.request.zip(rejected.response);
                self.fail(rejected.error.to_string());
            }
        }
    }

    #[inline]
    fn on_reply(&mut self, cx: &mut Context<'_, Self>, reply: Reply, index: usize) {
        self.active -= 1;
        let now_ns = cx.now().as_ns();
        let slot = &self.slots[index];
        let (call, number) = (slot.call, slot.number);
        self.work.latencies.record(now_ns.saturating_sub(slot.started_ns));
        self.work.count += 1;
        match &reply.outcome {
            Ok(()) => self.check(call, number, &reply.response),
            Err(failure) => self.fail(failure.to_string()),
        }
        self.slots[index].buffers = Some((reply.request, reply.response));
        if now_ns < self.end_ns {
            self.start(cx, index, now_ns);
        }
    }

    #[inline]
    fn check(&mut self, call: Call, number: u32, response: &[u8]) {
        let items = self.items;
        let is_right = match call {
            Call::Set => matches!(response, [0, ..]),
            Call::Echo => {
                response.get(items.key_bytes..).is_some_and(|it| items.is_value(number, it))
            }
            Call::Get if response.is_empty() => {
                self.work.missed += 1;
                return;
            }
            Call::Get => {
                response.get(GOT_HEAD_BYTES..).is_some_and(|it| items.is_value(number, it))
            }
        };
        self.work.wrong += u64::from(!is_right);
    }

    #[cold]
    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(text);
        self.end_ns = 0;
    }
}

impl Default for Work {
    fn default() -> Self {
        let latencies = Latencies::default();
        Self { count: 0, wrong: 0, missed: 0, elapsed_ns: 0, latencies }
    }
}
