//! The queue between endpoints and workers: bounded in requests and in bytes.

use std::collections::VecDeque;
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::{RequestHandle, Status};

use super::WorkerRequest;
use super::stats::{RunOutcome, WorkersStats};
use crate::endpoint::IdlePolicy;
use crate::overload::{Admission, Shed, Waiting};
use crate::sync::{
    AtomicUsize, Condvar, Instant, Mutex, MutexGuard, Ordering, PoisonError, hint, lock, now_ns,
    thread,
};
use crate::time::Time;

pub(super) type Handler = Box<dyn FnOnce(WorkerRequest) + Send>;

/// A request that waits for a worker.
pub(super) struct Job {
    handler: Handler,
    request: WorkerRequest,
    enqueued_ns: u64,
}

impl Job {
    pub(super) fn into_parts(self) -> (Handler, WorkerRequest) {
        (self.handler, self.request)
    }
}

/// A request that the queue refused.
pub(crate) struct Refused {
    request: WorkerRequest,
    reason: Refusal,
}

/// Why a queue refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many requests wait, or they wait too long.
    Shed(Shed),
    /// The pool is being shut down.
    Stopped,
}

/// The stage of a pool's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// Accepts no requests; workers end when the queue is empty.
    Stopping,
}

/// The queue, with the counters guarded by the same lock.
pub(crate) struct Queue {
    state: Mutex<State>,
    more: Condvar,
    /// Queued requests, plus 1 when the pool stops: for a worker that polls without the lock.
    work_count: AtomicUsize,
    idle: IdlePolicy,
}

struct State {
    jobs: VecDeque<Job>,
    admission: Admission,
    bytes: usize,
    sleeping: usize,
    stage: Stage,
    stats: WorkersStats,
}

impl Refusal {
    pub(crate) fn status(self) -> Status {
        match self {
            Refusal::Shed(shed) => shed.status(),
            Refusal::Stopped => Status::Unavailable,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Refusal::Shed(shed) => shed.text(),
            Refusal::Stopped => "the server's workers are being shut down",
        }
    }
}

impl Refused {
    pub(crate) fn into_parts(self) -> (RequestHandle, Refusal) {
        (self.request.into_handle(), self.reason)
    }
}

impl Queue {
    pub(super) fn new(admission: Admission, idle: IdlePolicy) -> Self {
        let state = State {
            jobs: VecDeque::new(),
            admission,
            bytes: 0,
            sleeping: 0,
            stage: Stage::Running,
            stats: WorkersStats::default(),
        };
        let (more, work_count) = (Condvar::new(), AtomicUsize::new(0));
        Self { state: Mutex::new(state), more, work_count, idle }
    }

    pub(crate) fn push(
        &self,
        now_ns: u64,
        handler: Handler,
        request: WorkerRequest,
    ) -> Result<(), Box<Refused>> {
        let has_sleeper = {
            let mut state = lock(&self.state);
            if let Err(reason) = state.admit(now_ns, &request) {
                state.stats.refused += 1;
                return Err(Box::new(Refused { request, reason }));
            }
            state.stats.queued += 1;
            state.bytes += request.data().len();
            state.jobs.push_back(Job { handler, request, enqueued_ns: now_ns });
            self.work_count.fetch_add(1, Ordering::Release);
            let is_only = state.jobs.len() == 1 || !planted("workers_wake_for_the_first_only");
            state.sleeping > 0 && is_only
        };
        if has_sleeper {
            self.more.notify_one();
        }
        Ok(())
    }

    /// Waits for the next request for a worker and returns it; `None` when the pool stops. `done` is the outcome of the
    /// worker's last request.
    pub(super) fn next(&self, done: Option<Done>) -> Option<Job> {
        let mut state = lock(&self.state);
        if let Some(done) = done {
            state.finish(done);
        }
        loop {
            let job;
            (state, job) = self.take(state, now_ns);
            if job.is_some() {
                return job;
            }
            if state.stage == Stage::Stopping {
                assert_eq!(state.bytes, 0, "a worker ends when no request waits");
                return None;
            }
            state = self.wait(state);
        }
    }

    /// Returns the next request for a worker, without waiting.
    pub(super) fn try_next(&self, now_ns: u64) -> Option<Job> {
        self.take(lock(&self.state), || now_ns).1
    }

    /// Notes the outcome of a request that [`Queue::try_next`] returned.
    pub(super) fn finish(&self, done: Done) {
        lock(&self.state).finish(done);
    }

    /// Takes the next request that a worker should run, and refuses the ones before it.
    fn take<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        now_ns: impl Fn() -> u64,
    ) -> (MutexGuard<'a, State>, Option<Job>) {
        while let Some(job) = state.jobs.pop_front() {
            if !planted("workers_never_sleep_again") {
                let former = self.work_count.fetch_sub(1, Ordering::Relaxed);
                assert!(former > 0, "a queued request is counted");
            }
            match state.take_out(&job, now_ns()) {
                Ok(()) => return (state, Some(job)),
                Err(shed) => {
                    drop(state);
                    job.request.refuse(shed.status(), shed.text());
                    state = lock(&self.state);
                }
            }
        }
        (state, None)
    }

    /// Waits until there may be a request.
    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let spin = match self.idle {
            IdlePolicy::Poll | IdlePolicy::Yield => None,
            IdlePolicy::SpinThenBlock(spin) => Some(spin),
            IdlePolicy::Block => Some(Duration::ZERO),
        };
        drop(state);
        let saw_something = self.spin(spin);
        let mut state = lock(&self.state);
        if !saw_something && state.jobs.is_empty() && state.stage == Stage::Running {
            state.sleeping += 1;
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
            assert!(state.sleeping > 0, "a worker that wakes was counted as asleep");
            if !planted("workers_woken_counts_as_asleep") {
                state.sleeping -= 1;
            }
        }
        state
    }

    /// Polls without the lock up to `limit`, or forever. Returns true if there is a request.
    fn spin(&self, limit: Option<Duration>) -> bool {
        let begin = Instant::now();
        while self.work_count.load(Ordering::Acquire) == 0 {
            if limit.is_some_and(|limit| begin.elapsed() >= limit) {
                return false;
            }
            if self.idle == IdlePolicy::Yield {
                #[cfg(test)]
                tests::YIELDS.with(|yields| yields.set(yields.get() + 1));
                thread::yield_now();
            }
            hint::spin_loop();
        }
        true
    }

    /// Stops accepting requests; queued ones are still executed.
    pub(super) fn stop(&self) {
        {
            let mut state = lock(&self.state);
            if state.stage == Stage::Running {
                state.stage = Stage::Stopping;
                self.work_count.fetch_add(1, Ordering::Release);
            }
        }
        match planted("workers_stop_tells_one") {
            true => self.more.notify_one(),
            false => self.more.notify_all(),
        }
    }

    /// Stops accepting requests, and fails the queued ones.
    pub(super) fn stop_and_fail(&self) {
        self.stop();
        let failed = {
            let mut state = lock(&self.state);
            let failed = std::mem::take(&mut state.jobs);
            state.bytes = 0;
            state.stats.failed += failed.len() as u64;
            let former = self.work_count.fetch_sub(failed.len(), Ordering::Relaxed);
            assert!(former > failed.len(), "queued requests and the stop are counted: {former}");
            failed
        };
        for job in failed {
            if planted("workers_failed_look_executed") {
                continue;
            }
            job.request.refuse(Refusal::Stopped.status(), Refusal::Stopped.text());
        }
    }

    /// Returns true if no request is queued or running.
    pub(super) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.jobs.is_empty() && state.stats.busy == 0
    }

    pub(super) fn stats(&self) -> WorkersStats {
        let state = lock(&self.state);
        WorkersStats { waiting: state.jobs.len(), waiting_bytes: state.bytes, ..state.stats }
    }
}

/// A worker has finished a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    how: RunOutcome,
    service_ns: u64,
}

impl Done {
    pub(super) fn new(how: RunOutcome, service_ns: u64) -> Self {
        Self { how, service_ns }
    }

    #[cfg(test)]
    pub(super) fn of_test(&self) -> (RunOutcome, u64) {
        (self.how, self.service_ns)
    }
}

impl State {
    /// Decides whether another request may be queued; no other place decides.
    fn admit(&mut self, now_ns: u64, request: &WorkerRequest) -> Result<(), Refusal> {
        if self.stage != Stage::Running {
            return Err(Refusal::Stopped);
        }
        let waiting = Waiting {
            requests: self.jobs.len(),
            bytes: self.bytes,
            oldest_ns: self.jobs.front().map(|job| job.enqueued_ns),
        };
        let (bytes, deadline_ns) = (request.data().len(), request.deadline().map(Time::as_ns));
        self.admission.admit(now_ns, bytes, deadline_ns, waiting).map_err(Refusal::Shed)
    }

    fn finish(&mut self, done: Done) {
        self.stats.finish(done.how);
        if done.how != RunOutcome::Cancelled {
            self.admission.done(done.service_ns);
        }
    }

    /// Subtracts the bytes of a request from the count, and decides whether a worker should still run it.
    fn take_out(&mut self, job: &Job, now_ns: u64) -> Result<(), Shed> {
        let bytes = job.request.data().len();
        assert!(self.bytes >= bytes, "the bytes of a queued request are counted");
        self.bytes -= bytes;
        assert!(
            !self.jobs.is_empty() || self.bytes == 0,
            "an empty queue has no bytes: {}",
            self.bytes
        );
        let deadline_ns = job.request.deadline().map(Time::as_ns);
        let begun = self.admission.begin(now_ns, deadline_ns);
        match begun {
            Ok(()) => self.stats.start(now_ns.saturating_sub(job.enqueued_ns)),
            Err(_) => {
                self.stats.expired += 1;
                if planted("workers_late_bytes_stay") {
                    self.bytes += job.request.data().len();
                }
            }
        }
        begun
    }
}

#[cfg(test)]
pub(in crate::workers) mod tests {
    use petrel_proto::SessionId;

    use super::*;
    use crate::inbox::{Inbox, InboxSender, WorkFlag};
    use crate::inbox_message::InboxMessage;
    use crate::overload::{AdmissionConfig, Shedding};
    use crate::sync::{Arc, AtomicBool};

    /// The counters, except the ones derived from the clock.
    fn counts(queue: &Queue) -> WorkersStats {
        WorkersStats { delay_ns_sum: 0, delay_ns_max: 0, ..queue.stats() }
    }

    fn done(how: RunOutcome) -> Option<Done> {
        Some(Done { how, service_ns: 1 })
    }

    #[test]
    fn stats__have_each_request_once_up_to_the_end_of_the_pool() {
        let queue = new_queue();
        let mut inbox = Inbox::new(WorkFlag::new(), || ());
        let sender = inbox.sender();
        let push = |number, bytes, deadline_ns: Option<u64>| {
            let request = request(number, bytes, deadline_ns, &sender);
            let pushed = queue.push(0, Box::new(|_| ()), request);
            pushed.map_err(|refused| {
                let (handle, reason) = refused.into_parts();
                assert_eq!(handle.number, number);
                reason
            })
        };
        let next = |done| queue.next(done).map(|job| job.request.into_handle().number);
        assert_eq!(push(1, 3, None), Ok(()));
        assert_eq!(push(2, 50, Some(1)), Ok(()), "its deadline passes while it waits");
        assert_eq!(push(3, 700, None), Ok(()));
        assert_eq!(push(4, 40, None), Ok(()));
        assert_eq!(push(5, 500, None), Err(Refusal::Shed(Shed::Bytes)));
        let mut expected = WorkersStats {
            queued: 4,
            refused: 1,
            waiting: 4,
            waiting_bytes: 793,
            ..WorkersStats::default()
        };
        assert_eq!(counts(&queue), expected);
        assert_eq!(next(None), Some(1));
        (expected.busy, expected.waiting, expected.waiting_bytes) = (1, 3, 790);
        assert_eq!(counts(&queue), expected);
        assert_eq!(next(done(RunOutcome::Executed)), Some(3));
        (expected.executed, expected.expired) = (1, 1);
        (expected.waiting, expected.waiting_bytes) = (1, 40);
        assert_eq!(counts(&queue), expected);
        assert!(!queue.is_idle());
        queue.stop_and_fail();
        (expected.failed, expected.waiting, expected.waiting_bytes) = (1, 0, 0);
        assert_eq!(counts(&queue), expected);
        assert!(!queue.is_idle(), "a handler runs");
        assert_eq!(push(6, 1, None), Err(Refusal::Stopped));
        assert_eq!(next(done(RunOutcome::Panicked)), None);
        (expected.refused, expected.panicked, expected.busy) = (2, 1, 0);
        assert_eq!(counts(&queue), expected);
        assert!(queue.is_idle());
        let refused: Vec<_> = inbox
            .take()
            .into_iter()
            .map(|message| match message {
                InboxMessage::Refuse(refuse) => (refuse.handle.number, refuse.status),
                _ => panic!("only refusals are posted"),
            })
            .collect();
        assert_eq!(refused, [(2, Status::DeadlineExceeded), (4, Status::Unavailable)]);
    }

    /// A queue with room for ten requests, whose workers sleep at once.
    pub(in crate::workers) fn new_queue() -> Queue {
        let shedding = Shedding::LimitOnly;
        let config = AdmissionConfig { requests_max: 10, bytes_max: 1_000, shedding };
        Queue::new(Admission::new(config, 1), IdlePolicy::Block)
    }

    fn request(
        number: u64,
        bytes: usize,
        deadline_ns: Option<u64>,
        sender: &InboxSender<InboxMessage>,
    ) -> WorkerRequest {
        let session = SessionId { index: 1, generation: 0 };
        let (handle, flag) = (RequestHandle { session, number }, Arc::new(AtomicBool::new(false)));
        let deadline = deadline_ns.map(Time::from_ns);
        WorkerRequest::new(handle, 7, deadline, vec![0; bytes], flag, sender.clone())
    }

    /// A queue, and a function to queue requests.
    fn queue() -> (Queue, impl Fn(&Queue, u64)) {
        let sender = Inbox::new(WorkFlag::new(), || ()).sender();
        let push = move |queue: &Queue, number| {
            let request = request(number, 1, None, &sender);
            assert!(queue.push(0, Box::new(|_| ()), request).is_ok());
        };
        (new_queue(), push)
    }

    /// Waits until `count` workers sleep.
    fn wait_for_sleepers(queue: &Queue, count: usize) {
        while lock(&queue.state).sleeping != count {
            thread::yield_now();
        }
    }

    #[test]
    fn sleeping__counts_the_workers_that_wait_now() {
        let (queue, push) = queue();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2).map(|_| scope.spawn(|| queue.next(None))).collect();
            wait_for_sleepers(&queue, 2);
            push(&queue, 1);
            queue.stop();
            let got = workers.into_iter().map(|worker| worker.join().unwrap());
            assert_eq!(got.flatten().count(), 1);
        });
        assert_eq!(lock(&queue.state).sleeping, 0);
    }

    thread_local! {
        /// How often this thread has yielded.
        pub(super) static YIELDS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn spin__lets_others_run_if_that_is_the_policy() {
        let spin = Duration::from_millis(1);
        for (idle, yields) in [
            (IdlePolicy::Yield, true),
            (IdlePolicy::Poll, false),
            (IdlePolicy::SpinThenBlock(spin), false),
            (IdlePolicy::Block, false),
        ] {
            let queue = Queue { idle, ..queue().0 };
            YIELDS.set(0);
            // A thread that is not scheduled for this time may not have polled twice.
            let has_yielded = (0..if yields { 1_000 } else { 5 }).any(|_| {
                assert!(!queue.spin(Some(spin)), "there is nothing");
                YIELDS.get() > 0
            });
            assert_eq!(has_yielded, yields, "{idle:?}");
        }
    }
}
