//! The port of the process, which all endpoints share: received frames go to the endpoint of their UDP port.
//!
//! A thread that polls takes the frames of other endpoints along. Frames are sent and received under one lock. The lock's holder also lets the
//! interrupt thread of DPDK work, and starts a port anew whose peer has left.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::ether::frame::{MacAddr, target};
use super::super::ether::ways::Link;
use super::neighbours::Neighbours;
use super::table::{Frame, PortInfo, Queues, Table};
use crate::clock;

/// Most frames that wait for an endpoint, as many as a port's queue has.
const INBOX_FRAMES: usize = 1024;

/// Time between two turns of the interrupt thread while the link is up: the thread learns that a link is down. Without a link the thread is
/// free.
const TURN_NS: u64 = 50_000_000;

/// Time between two starts of a port without a link.
const START_NS: u64 = 1_000_000_000;

/// Time for which an endpoint waits for the link at its start: the other end may come later.
const LINK_WAIT: Duration = Duration::from_millis(300);
const LINK_PAUSE: Duration = Duration::from_millis(1);

/// The port of the process.
pub(super) struct Shared {
    table: &'static Table,
    info: PortInfo,
    inner: Mutex<Inner>,
    is_up: AtomicBool,
    /// Whether a port without a link is started anew.
    connects: bool,
}

/// The frames that wait for an endpoint.
pub(super) struct Inbox {
    local: SocketAddr,
    frames: Mutex<VecDeque<Frame>>,
    count: AtomicUsize,
}

struct Inner {
    queues: Queues,
    neighbours: Neighbours,
    inboxes: Vec<Arc<Inbox>>,
    /// Received frames, within a call.
    burst: Vec<Frame>,
    /// Frames to send that came while DPDK's thread worked: the next thread with the lock sends them.
    unsent: Vec<Frame>,
    link: Link,
    is_started: bool,
    /// A start under way, on a thread: memif waits for a peer that does not accept, and endpoints go on. Nothing else uses the port meanwhile.
    starting: Option<Receiver<bool>>,
    /// The time of the next turn, and from which on the port may be started.
    turn_ns: u64,
    start_ns: u64,
    /// Frames that no endpoint or no room was there for.
    dropped: u64,
    /// Frames that the port had lost when the port was last asked.
    dropped_by_port: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    fn takes(&self, (ip, port): (IpAddr, u16)) -> bool {
        let own = self.local.ip();
        port == self.local.port() && (own.is_unspecified() || own.to_canonical() == ip)
    }

    /// Adds a frame. Returns false if there is no room.
    fn push(&self, frame: Frame) -> bool {
        let mut frames = lock(&self.frames);
        let has_room = frames.len() < INBOX_FRAMES;
        if has_room {
            frames.push_back(frame);
            self.count.store(frames.len(), Ordering::Release);
        }
        has_room
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Moves the frames to `ready`, which is empty.
    fn take(&self, ready: &mut VecDeque<Frame>) {
        let mut frames = lock(&self.frames);
        std::mem::swap(&mut *frames, ready);
        self.count.store(frames.len(), Ordering::Release);
    }
}

impl Shared {
    /// A port that `connects` is started anew to find its peer. Other ports find their link by themselves, and may need seconds.
    pub(super) fn new(
        table: &'static Table,
        info: PortInfo,
        queues: Queues,
        connects: bool,
    ) -> Self {
        let neighbours = Neighbours::new(MacAddr(info.mac));
        let (inboxes, burst) = (Vec::new(), Vec::new());
        let (turn_ns, start_ns, is_started) = (0, 0, false);
        let inner = Inner {
            queues,
            neighbours,
            inboxes,
            burst,
            unsent: Vec::new(),
            link: Link::Down,
            is_started,
            starting: None,
            turn_ns,
            start_ns,
            dropped: 0,
            dropped_by_port: 0,
        };
        Self { table, info, inner: Mutex::new(inner), is_up: AtomicBool::new(false), connects }
    }

    pub(super) fn table(&self) -> &'static Table {
        self.table
    }

    pub(super) fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Returns true while frames can be sent.
    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Frames that were lost on the port, for all endpoints.
    pub(super) fn dropped(&self) -> u64 {
        let mut inner = lock(&self.inner);
        if inner.starting.is_none() {
            inner.dropped_by_port = inner.queues.dropped();
        }
        inner.dropped_by_port + inner.dropped
    }

    /// Adds an endpoint for the datagrams to an address.
    pub(super) fn add(&self, local: SocketAddr) -> Result<Arc<Inbox>, String> {
        let mut inner = lock(&self.inner);
        if inner.link == Link::Gone {
            return Err(format!("the device {} was removed", self.info.name()));
        }
        let inbox =
            Inbox { local, frames: Mutex::new(VecDeque::new()), count: AtomicUsize::new(0) };
        let inbox = Arc::new(inbox);
        inner.inboxes.push(Arc::clone(&inbox));
        if !local.ip().is_unspecified() {
            inner.neighbours.answer_for(local.ip().to_canonical());
        }
        Ok(inbox)
    }

    pub(super) fn remove(&self, inbox: &Arc<Inbox>) {
        let mut inner = lock(&self.inner);
        inner.inboxes.retain(|other| !Arc::ptr_eq(other, inbox));
        let own = inner.inboxes.iter().map(|inbox| inbox.local.ip().to_canonical());
        let own = own.filter(|ip| !ip.is_unspecified()).collect();
        inner.neighbours.answer_for_these_alone(own);
        if inner.inboxes.is_empty() && inner.starting.is_none() {
            // Without an endpoint no thread looks at the port, and DPDK's thread hears of peers that leave.
            inner.queues.gate.release();
        }
    }

    /// Finds frames for an endpoint without any.
    pub(super) fn receive(&self, inbox: &Arc<Inbox>, ready: &mut VecDeque<Frame>) {
        debug_assert!(ready.is_empty());
        if inbox.is_empty() {
            let mut inner = match self.inner.try_lock() {
                Ok(inner) => inner,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // The other thread takes the frames along.
                Err(TryLockError::WouldBlock) => return,
            };
            // Frames of an earlier burst come first.
            if inbox.is_empty() {
                return inner.receive(self, inbox, ready);
            }
        }
        inbox.take(ready);
    }

    /// Sends frames, as many as the port takes, and takes them out of `frames`. Without a link there is no receiver, and the frames are lost.
    pub(super) fn send(&self, frames: &mut Vec<Frame>) {
        let mut inner = lock(&self.inner);
        if inner.link != Link::Up {
            frames.clear();
        } else if inner.send_unsent() {
            inner.queues.send(frames);
        } else if inner.unsent.len() + frames.len() <= INBOX_FRAMES {
            inner.unsent.append(frames);
        }
    }

    /// Returns the link-layer address of a neighbour, and asks for an unknown one.
    pub(super) fn neighbour(&self, from: IpAddr, to: IpAddr) -> Option<MacAddr> {
        let mut inner = lock(&self.inner);
        inner.neighbours.answer_for(from);
        let found = inner.neighbours.find(from, to, clock::now_ns());
        if let Some(question) = found.question {
            inner.send_message(self.table, &question);
        }
        found.mac
    }

    /// Does what is due for the port. Returns the state of the link, and a number that changes with the neighbours.
    pub(super) fn look(&self) -> (Link, u32) {
        let mut inner = lock(&self.inner);
        if inner.link != Link::Gone {
            inner.look(self.connects, clock::now_ns());
            self.is_up.store(inner.link == Link::Up, Ordering::Relaxed);
        }
        (inner.link, inner.neighbours.version())
    }

    /// Waits a moment for the link.
    pub(super) fn wait_for_link(&self) {
        let end = Instant::now() + LINK_WAIT;
        while self.look().0 == Link::Down && Instant::now() < end {
            thread::sleep(LINK_PAUSE);
        }
    }
}

impl Inner {
    fn receive(&mut self, shared: &Shared, own: &Arc<Inbox>, ready: &mut VecDeque<Frame>) {
        if self.link != Link::Up || !self.queues.gate.is_held() {
            return;
        }
        self.send_unsent();
        let mut burst = std::mem::take(&mut self.burst);
        self.queues.receive(&mut burst);
        for mut frame in burst.drain(..) {
            let Some(to) = target(frame.bytes()) else {
                self.hear(shared, &mut frame);
                continue;
            };
            match self.inboxes.iter().find(|inbox| inbox.takes(to)) {
                Some(inbox) if Arc::ptr_eq(inbox, own) => ready.push_back(frame),
                Some(inbox) => self.dropped += u64::from(!inbox.push(frame)),
                None => self.dropped += 1,
            }
        }
        self.burst = burst;
    }

    /// Sends the frames that wait for DPDK's thread. Returns true if none is left, and others may be sent.
    fn send_unsent(&mut self) -> bool {
        if !self.queues.gate.is_held() {
            return false;
        }
        if !self.unsent.is_empty() {
            self.queues.send(&mut self.unsent);
        }
        self.unsent.is_empty()
    }

    #[cold]
    fn hear(&mut self, shared: &Shared, frame: &mut Frame) {
        if let Some(answer) = self.neighbours.hear(frame.bytes(), clock::now_ns()) {
            self.send_message(shared.table, &answer);
        }
    }

    /// Sends a frame of the neighbours, or loses the frame: neighbours ask again.
    fn send_message(&mut self, table: &Table, message: &[u8]) {
        let mut frames = Vec::new();
        if self.link != Link::Up || !self.queues.gate.is_held() || !table.allocate(&mut frames, 1) {
            return;
        }
        let frame = &mut frames[0];
        frame.room()[..message.len()].copy_from_slice(message);
        frame.set_bytes(message.len());
        self.queues.send(&mut frames);
    }

    fn look(&mut self, connects: bool, now_ns: u64) {
        if !self.has_ended_start() {
            return;
        }
        let is_up = self.is_started && self.queues.is_up();
        let is_start_due = now_ns >= self.start_ns && (connects || !self.is_started);
        if is_up || is_start_due {
            self.queues.gate.close();
        }
        if !self.queues.gate.is_held() {
            return;
        }
        self.link = if is_up { Link::Up } else { Link::Down };
        if !is_up {
            self.unsent.clear();
        }
        if !is_up && is_start_due {
            return self.start(now_ns);
        }
        if now_ns < self.turn_ns && is_up {
            return;
        }
        self.turn_ns = now_ns + TURN_NS;
        if self.queues.is_removed() {
            self.link = Link::Gone;
        }
        self.queues.gate.open();
        if is_up {
            self.queues.gate.close();
        }
    }

    fn start(&mut self, now_ns: u64) {
        self.start_ns = now_ns + START_NS;
        let start = self.queues.start_anew(self.is_started);
        let (started, starting) = channel();
        let thread = thread::Builder::new().name("petrel-dpdk".to_owned());
        // Without the endpoint, or without a thread, the result has no receiver or no sender.
        if thread.spawn(move || _ = started.send(start())).is_ok() {
            self.starting = Some(starting);
        }
    }

    /// Returns true if no start is under way, and takes the result of one that has ended.
    fn has_ended_start(&mut self) -> bool {
        match self.starting.as_ref().map(Receiver::try_recv) {
            None => return true,
            Some(Err(TryRecvError::Empty)) => return false,
            Some(result) => self.is_started = result.unwrap_or(false),
        }
        self.starting = None;
        true
    }
}
