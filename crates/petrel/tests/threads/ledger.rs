//! Every call of a world, and its allowed outcomes.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use petrel::client::Response;
use petrel::{Execution, Status};

use crate::spec::Spec;

/// The behaviour requested by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Method {
    /// A worker answers.
    Work = 1,
    /// In the request's memory.
    Reuse,
    Fail,
    Panic,
    /// The request is dropped without an answer.
    Forget,
    /// The worker waits for a time.
    Sleep,
    /// The worker checks for cancellation.
    Watch,
    /// The worker makes a nested call, and answers with its outcome.
    Nest,
    /// The worker drops its pool.
    DropPool,
    /// A thread outside the pool answers.
    Relay,
    /// The same thread drops the request.
    RelayForget,
    /// The event loop answers.
    Echo,
}

impl Method {
    /// Methods that need no time.
    pub(crate) const TIMELESS: [Self; 10] = [
        Self::Work,
        Self::Work,
        Self::Reuse,
        Self::Fail,
        Self::Panic,
        Self::Forget,
        Self::Watch,
        Self::Nest,
        Self::Relay,
        Self::RelayForget,
    ];

    pub(crate) fn is_of_workers(self) -> bool {
        !matches!(self, Self::Relay | Self::RelayForget | Self::Echo)
    }

    fn answers_internal(self) -> bool {
        matches!(self, Self::Panic | Self::Forget | Self::RelayForget)
    }
}

/// The number of a call, carried in its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId(u32);

/// Bytes of a request before its filling: the number.
const HEAD_BYTES: usize = 4;

impl CallId {
    pub(crate) fn request(self, filling: usize) -> Vec<u8> {
        let mut bytes = self.0.to_le_bytes().to_vec();
        bytes.extend((0..filling).map(|index| self.byte(index)));
        bytes
    }

    /// Returns the call of a request, which must be unchanged.
    pub(crate) fn of_request(request: &[u8]) -> Self {
        let number = request.first_chunk().expect("a request has a number");
        let id = Self(u32::from_le_bytes(*number));
        assert_eq!(request, id.request(request.len() - HEAD_BYTES), "{id:?}");
        id
    }

    /// Returns the call's answer, in which the number differs between an outer and an inner call.
    pub(crate) fn answer(self) -> Vec<u8> {
        let mut bytes = (!self.0).to_le_bytes().to_vec();
        bytes.extend((0..self.0 as usize * 37 % 200).map(|index| !self.byte(index)));
        bytes
    }

    pub(crate) fn is_even(self) -> bool {
        self.0.is_multiple_of(2)
    }

    fn byte(self, index: usize) -> u8 {
        (self.0 as usize * 31 + index) as u8
    }
}

#[derive(Debug)]
struct Entry {
    method: Method,
    deadline_ns: Option<u64>,
    executed: u32,
    end: Option<End>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Answered,
    /// With the knowledge of its execution.
    Failed(Status, Execution),
    /// The caller has dropped it.
    GivenUp,
}

macro_rules! totals {
    ($($name:ident),* $(,)?) => {
        /// How often each event happened in all worlds: enough seeds should cover all events.
        #[derive(Default)]
        pub(crate) struct Totals { $(pub(crate) $name: AtomicU64,)* }

        static TOTALS: Totals = Totals { $($name: AtomicU64::new(0),)* };

        pub(crate) fn totals() -> String {
            let mut text = String::new();
            $(
                let count = TOTALS.$name.load(Ordering::Relaxed);
                let _ = write!(text, "{} {count}, ", stringify!($name));
            )*
            text
        }

        /// Returns the events that never happened.
        pub(crate) fn unseen() -> Vec<&'static str> {
            let counts = [$((stringify!($name), TOTALS.$name.load(Ordering::Relaxed)),)*];
            counts.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
        }
    };
}

totals! {
    calls, answered, given_up, internal, aborted, unavailable_not_sent,
    unavailable_refused, unavailable_may_have_executed, exhausted_refused, deadline_exceeded,
    deadline_refused, clock_moves, standstills, pools_checked, executed, panicked, cancelled, expired,
    queue_refused,
}

/// Counts an event in the totals of all worlds.
pub(crate) fn count(what: impl FnOnce(&Totals) -> &AtomicU64, by: u64) {
    what(&TOTALS).fetch_add(by, Ordering::Relaxed);
}

pub(crate) struct Ledger {
    spec: Spec,
    entries: Mutex<Vec<Entry>>,
}

impl Ledger {
    pub(crate) fn new(spec: &Spec) -> Self {
        Self { spec: *spec, entries: Mutex::default() }
    }

    pub(crate) fn begin(&self, method: Method, deadline_ns: Option<u64>) -> CallId {
        count(|totals| &totals.calls, 1);
        let mut entries = self.entries.lock().unwrap();
        entries.push(Entry { method, deadline_ns, executed: 0, end: None });
        CallId(entries.len() as u32 - 1)
    }

    /// Records a run of a handler.
    pub(crate) fn execute(&self, id: CallId, method: Method) {
        let entry = &mut self.entries.lock().unwrap()[id.0 as usize];
        entry.executed += 1;
        assert_eq!(entry.executed, 1, "{id:?} was executed again: {entry:?}");
        assert_eq!(entry.method, method, "{id:?}");
    }

    pub(crate) fn end(&self, id: CallId, outcome: Result<Response, petrel::Error>, now_ns: u64) {
        match outcome {
            Ok(answer) => self.answered(id, &answer),
            Err(failure) => self.failed(id, &failure, now_ns),
        }
    }

    fn answered(&self, id: CallId, answer: &[u8]) {
        assert_eq!(answer, id.answer(), "{id:?}");
        let entry = self.note_end(id, End::Answered);
        assert!(
            entry.1 == 1 && !entry.0.answers_internal() && entry.0 != Method::Fail,
            "{entry:?}"
        );
        count(|totals| &totals.answered, 1);
    }

    fn failed(&self, id: CallId, failure: &petrel::Error, now_ns: u64) {
        let (status, execution) = (failure.status, failure.execution);
        let deadline_ns = self.entries.lock().unwrap()[id.0 as usize].deadline_ns;
        let (method, executed) = self.note_end(id, End::Failed(status, execution));
        let is_answered = execution == Execution::Answered;
        let may = match status {
            // The failure of an inner call, an inherited deadline, or the end of its endpoint.
            Status::Unavailable | Status::DeadlineExceeded if is_answered => {
                method == Method::Nest && executed == 1
            }
            Status::Internal => is_answered && method.answers_internal() && executed == 1,
            Status::Aborted => is_answered && method == Method::Fail && executed == 1,
            Status::Unavailable => self.spec.has_ends(),
            Status::ResourceExhausted => execution == Execution::Refused && method.is_of_workers(),
            Status::DeadlineExceeded => {
                // A restless clock may exceed the client's default timeout.
                deadline_ns.map_or(self.spec.clock_may_jump, |deadline_ns| now_ns >= deadline_ns)
                    || (execution == Execution::Refused && deadline_ns.is_some())
            }
            _ => false,
        };
        assert!(may, "{id:?}, {method:?}, executed {executed} times: {failure:?}");
        count_failure(status, execution);
    }

    pub(crate) fn give_up(&self, id: CallId) {
        count(|totals| &totals.given_up, 1);
        self.note_end(id, End::GivenUp);
    }

    /// Records the only end of a call. Returns the method and the number of executions.
    fn note_end(&self, id: CallId, end: End) -> (Method, u32) {
        let entry = &mut self.entries.lock().unwrap()[id.0 as usize];
        assert_eq!(entry.end, None, "{id:?} has ended before: {end:?}");
        entry.end = Some(end);
        (entry.method, entry.executed)
    }

    /// Returns the number of calls whose handler ran on a worker.
    pub(crate) fn executed_by_workers(&self) -> u64 {
        let entries = self.entries.lock().unwrap();
        let by_workers = entries.iter().filter(|entry| entry.method.is_of_workers());
        by_workers.map(|entry| u64::from(entry.executed)).sum()
    }

    /// Returns the number of calls whose caller waited for an answer or failure.
    pub(crate) fn answered_count(&self) -> u64 {
        let entries = self.entries.lock().unwrap();
        entries.iter().filter(|entry| entry.end == Some(End::Answered)).count() as u64
    }

    /// Checks the calls after all threads have ended.
    pub(crate) fn finish(&self) {
        for (id, entry) in self.entries.lock().unwrap().iter().enumerate() {
            let end = entry.end.as_ref().unwrap_or_else(|| panic!("{id} has no end: {entry:?}"));
            let was_not_executed = match end {
                End::Failed(_, execution) => {
                    matches!(execution, Execution::NotSent | Execution::Refused)
                }
                End::Answered | End::GivenUp => false,
            };
            assert!(!was_not_executed || entry.executed == 0, "{id}: {entry:?}");
        }
    }
}

fn count_failure(status: Status, execution: Execution) {
    count(
        |totals| match (status, execution) {
            (Status::Internal, _) => &totals.internal,
            (Status::Aborted, _) => &totals.aborted,
            (Status::ResourceExhausted, _) => &totals.exhausted_refused,
            (Status::DeadlineExceeded, Execution::Refused) => &totals.deadline_refused,
            (Status::DeadlineExceeded, _) => &totals.deadline_exceeded,
            (_, Execution::NotSent) => &totals.unavailable_not_sent,
            (_, Execution::Refused) => &totals.unavailable_refused,
            _ => &totals.unavailable_may_have_executed,
        },
        1,
    );
}
