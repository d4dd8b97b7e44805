//! A thread of the server.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use super::batch::{Batch, Ticket};
use super::clients::Clients;
use super::connection::{Connection, ReadOutcome};
use super::drive::{Pause, Router};
use super::inbox::{Inbox, Parcel};
use super::pool::Pool;
use super::report::{self, Snapshot};
use super::tls::TlsPort;
use crate::limits::{
    ACCEPTS_MAX, ARRIVALS_MAX, HELD_MS, LIGHT_BYTES, MEMORY_LOOK_MS, READ_BYTES, READS_MAX,
    SAFE_BYTES, STALLED_S,
};
use crate::memcached::{Clock, Everywhere, Passwords};
use crate::partition::Mode;

/// The token of the thread's waker.
pub(super) const WAKER: Token = Token(usize::MAX);

const LISTENER: Token = Token(usize::MAX - 1);

const EVENTS_MAX: usize = 256;

/// The longest sleep: idle connections and the time are looked at so often.
const TICK: Duration = Duration::from_secs(1);

/// The longest sleep while connections wait for memory.
const MEMORY_LOOK: Duration = Duration::from_millis(MEMORY_LOOK_MS);

/// The longest sleep while connections wait for their acceptance.
const CROWD_LOOK: Duration = Duration::from_millis(1);

/// Seconds in which a stopping thread sends outstanding replies.
const STOP_S: u32 = 3;

pub(crate) struct Shared {
    /// The inboxes of all threads. The first are those of the partitions' owners.
    pub(crate) inboxes: Box<[Inbox]>,
    pub(crate) partitions: usize,
    /// Threads with connections.
    pub(crate) servers: usize,
    /// Threads whose connections have ended.
    pub(crate) finished: AtomicUsize,
    pub(crate) ended_endpoints: AtomicUsize,
    pub(crate) mode: Mode,
    pub(crate) clock: Clock,
    pub(crate) started: Instant,
    pub(crate) connections: ConnectionCounters,
    pub(super) clients: Clients,
    /// The limit that was set last, in bytes.
    pub(super) memory_limit: AtomicU64,
    pub(crate) limits: Limits,
    /// For buffers of connections and batches.
    pub(crate) pool: Pool,
    /// TLS of memcached's port, if spoken.
    pub(crate) tls: Option<TlsPort>,
    /// The passwords of memcached's clients, if needed.
    pub(crate) passwords: Option<Passwords>,
}

impl Shared {
    /// Returns the operation as the partitions get it, or the refusal. A limit on memory becomes the bytes of a log that
    /// stay unused.
    pub(super) fn permit(&self, everywhere: Everywhere) -> Result<Everywhere, &'static [u8]> {
        match everywhere {
            Everywhere::Flush { is_quiet, .. } if !self.limits.may_flush => {
                Err(if is_quiet { b"" } else { b"CLIENT_ERROR flush_all not allowed\r\n" })
            }
            Everywhere::Limit { memory_bytes: wanted, is_quiet } => {
                let partitions = self.partitions as u64;
                let unused = self.limits.memory_bytes.checked_sub(wanted);
                let is_possible = |unused: &u64| *unused <= self.limits.log_bytes / 2;
                match unused.map(|unused| unused.div_ceil(partitions)).filter(is_possible) {
                    Some(memory_bytes) if self.mode == Mode::Cache => {
                        self.memory_limit.store(wanted, Ordering::Relaxed);
                        Ok(Everywhere::Limit { memory_bytes, is_quiet })
                    }
                    _ if is_quiet => Err(b""),
                    _ => Err(b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
                }
            }
            other => Ok(other),
        }
    }

    /// The server's second.
    pub(crate) fn second(&self) -> u32 {
        Clock::second(self.started.elapsed())
    }
}

#[derive(Default)]
pub(crate) struct ConnectionCounters {
    pub(crate) open: AtomicUsize,
    pub(crate) accepted: AtomicU64,
    /// Turns of connections that ended for the others' turn.
    pub(crate) yields: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    /// Beyond the limit.
    pub(crate) rejected: AtomicU64,
    /// Closed without a request, for another beyond the limit.
    pub(crate) displaced: AtomicU64,
    /// Closed because nothing came.
    pub(crate) idle: AtomicU64,
    /// Closed because memory was short, and nothing went.
    pub(crate) stalled: AtomicU64,
    /// Refused because the credentials cannot be used.
    pub(crate) without_tls: AtomicU64,
}

pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
    pub(crate) connections_max: usize,
    pub(crate) idle_s: Option<u32>,
    /// The longest value that a partition takes.
    pub(crate) value_bytes_max: usize,
    /// The log of a partition.
    pub(crate) log_bytes: u64,
    /// Whether clients may remove all items.
    pub(crate) may_flush: bool,
}

/// The presence of a thread among those with connections. The others wait for its end, even if it ends by a panic.
pub(super) struct Presence {
    number: usize,
    shared: Arc<Shared>,
    has_ended: bool,
}

impl Presence {
    pub(super) fn new(number: usize, shared: Arc<Shared>) -> Self {
        Self { number, shared, has_ended: false }
    }

    /// Reports to all threads that this thread's connections have ended.
    fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.shared.finished.fetch_add(1, Ordering::SeqCst);
        let others = self.shared.inboxes.iter().enumerate().filter(|it| it.0 != self.number);
        others.for_each(|(_, inbox)| inbox.push(Parcel::Finished));
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.end();
    }
}

/// A socket on which memcached's clients arrive.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(socket) => socket,
            Self::Unix(socket) => socket,
        }
    }

    /// Accepts a connection. A stream of the file system is read and written by the same calls as a stream of TCP.
    fn accept(&self) -> Option<TcpStream> {
        match self {
            Self::Tcp(socket) => socket.accept().ok().map(|(stream, _)| stream),
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().ok()?;
                let stream = std::net::TcpStream::from(OwnedFd::from(stream));
                Some(TcpStream::from_std(stream))
            }
        }
    }
}

pub(super) struct Thread {
    poll: Poll,
    listeners: Vec<Listener>,
    router: Router,
    connections: Slab<Connection>,
    generations: u32,
    /// Connections to look at in this turn.
    queue: Vec<usize>,
    /// Connections whose requests wait for another thread.
    paused: Vec<usize>,
    /// Connections with requests that wait for memory, in order.
    waiting: Vec<usize>,
    /// The millisecond of the next look at waiting connections, and the memory in use at the last: with less in use a look comes earlier.
    look_ms: u64,
    looked_at_bytes: usize,
    buffer: Box<[u8]>,
    now: u32,
    /// Bytes that were read and written and are not in the counters yet.
    traffic: (u64, u64),
    /// The second of the last look at all connections.
    looked_at: u32,
    /// The thread that gets the next connection.
    next_thread: usize,
    /// Further connections may wait for their acceptance.
    has_arrivals: bool,
    /// The most connections are on their way to the threads.
    is_crowded: bool,
    /// Connections without a request, by their generation: the first is the oldest. At the limit newcomers displace them.
    unused: BTreeMap<u32, usize>,
    /// The second at which the thread ends, if it is to stop.
    ends_at: Option<u32>,
    presence: Presence,
}

impl Thread {
    pub(super) fn new(
        poll: Poll,
        mut listeners: Vec<Listener>,
        router: Router,
        presence: Presence,
    ) -> io::Result<Self> {
        for listener in &mut listeners {
            poll.registry().register(listener.source(), LISTENER, Interest::READABLE)?;
        }
        Ok(Self {
            poll,
            listeners,
            router,
            connections: Slab::new(),
            generations: 0,
            queue: Vec::new(),
            paused: Vec::new(),
            waiting: Vec::new(),
            look_ms: 0,
            looked_at_bytes: 0,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            now: Clock::FIRST,
            traffic: (0, 0),
            looked_at: 0,
            next_thread: 0,
            has_arrivals: false,
            is_crowded: false,
            unused: BTreeMap::new(),
            ends_at: None,
            presence,
        })
    }

    /// Serves until the server stops; returns the counters of the thread's partition.
    ///
    /// # Errors
    /// The system's, if the thread cannot wait for its sockets.
    pub(super) fn run(mut self) -> io::Result<Snapshot> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let (mut parcels, mut turn) = (Vec::new(), Vec::new());
        while !self.is_over() {
            self.wait(&mut events)?;
            self.set_time();
            for event in &events {
                match event.token() {
                    WAKER => {}
                    LISTENER => self.has_arrivals = true,
                    Token(number) => self.note_ready(number, event),
                }
            }
            self.accept();
            self.inbox().take(&mut parcels);
            parcels.drain(..).for_each(|parcel| self.receive(parcel));
            std::mem::swap(&mut self.queue, &mut turn);
            turn.drain(..).for_each(|number| self.drive(number));
            self.dispatch();
            self.note_traffic();
            self.look_at_waiting();
            self.look_at_all();
            self.finish();
        }
        Ok(self.router.owner.map_or_else(Snapshot::default, |owner| Snapshot::of(&owner.partition)))
    }

    fn inbox(&self) -> &Inbox {
        &self.router.shared.inboxes[self.router.number]
    }

    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let may_sleep = self.queue.is_empty() && self.inbox().may_sleep();
        let sleep = match self.has_arrivals {
            true if self.is_crowded => CROWD_LOOK,
            true => Duration::ZERO,
            false if self.waiting.is_empty() => TICK,
            false => MEMORY_LOOK,
        };
        match self.poll.poll(events, Some(if may_sleep { sleep } else { Duration::ZERO })) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result,
        }
    }

    fn set_time(&mut self) {
        let elapsed = self.router.shared.started.elapsed();
        (self.now, self.router.now_ms) = (Clock::second(elapsed), elapsed.as_millis() as u64);
        if let Some(owner) = &mut self.router.owner {
            owner.partition.set_time(self.now);
        }
    }

    fn note_ready(&mut self, number: usize, event: &mio::event::Event) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.note_ready(event);
            self.enqueue(number);
        }
    }

    /// Makes the thread look at a connection in this turn.
    fn enqueue(&mut self, number: usize) {
        if let Some(connection) = self.connections.get_mut(number)
            && !connection.is_queued
        {
            connection.is_queued = true;
            self.queue.push(number);
        }
    }

    /// Accepts connections, and gives them to the threads in turn.
    fn accept(&mut self) {
        if !self.has_arrivals {
            return;
        }
        for _ in 0..ACCEPTS_MAX {
            let Shared { connections, limits, .. } = &*self.router.shared;
            // Further connections wait in the listener, until the threads have found room for the last.
            self.is_crowded =
                connections.open.load(Ordering::Relaxed) >= limits.connections_max + ARRIVALS_MAX;
            if self.is_crowded {
                return;
            }
            let Some(socket) = self.listeners.iter().find_map(Listener::accept) else {
                // An error is that of one connection, or a shortage: the tick tries again.
                self.has_arrivals = false;
                return;
            };
            let shared = &self.router.shared;
            shared.connections.accepted.fetch_add(1, Ordering::Relaxed);
            shared.connections.open.fetch_add(1, Ordering::Relaxed);
            let thread = shared.inboxes.len() - shared.servers + self.next_thread;
            let further_threads = shared.servers - 1;
            self.next_thread = (self.next_thread + 1) % shared.servers;
            match thread == self.router.number {
                true => self.add(socket, further_threads),
                false => self.pass(thread, socket, further_threads),
            }
        }
    }

    /// Gives a connection to a thread with connections: the threads from this number, in turn.
    fn pass(&self, thread: usize, socket: TcpStream, further_threads: usize) {
        let shared = &self.router.shared;
        // The threads with connections are the last.
        let first = shared.inboxes.len() - shared.servers;
        let thread = first + (thread - first) % shared.servers;
        shared.inboxes[thread].push(Parcel::Connection { socket, further_threads });
    }

    /// Refuses a connection beyond the limit.
    fn refuse(&self, mut socket: &TcpStream) {
        let connections = &self.router.shared.connections;
        connections.open.fetch_sub(1, Ordering::Relaxed);
        connections.rejected.fetch_add(1, Ordering::Relaxed);
        if self.router.shared.tls.is_some() {
            return;
        }
        // The client may be gone.
        let _ = io::Write::write(&mut socket, b"ERROR Too many open connections\r\n");
    }

    /// Makes room for a connection: beyond the limit, the oldest without a request ends. Returns false without such a connection.
    fn make_room(&mut self) -> bool {
        let Shared { connections, limits, .. } = &*self.router.shared;
        if connections.open.load(Ordering::Relaxed) <= limits.connections_max {
            return true;
        }
        let Some((_, number)) = self.unused.pop_first() else { return false };
        connections.displaced.fetch_add(1, Ordering::Relaxed);
        self.remove(number);
        true
    }

    /// Adds a connection. Without room here, further threads are asked.
    fn add(&mut self, mut socket: TcpStream, further_threads: usize) {
        if !self.make_room() {
            return match further_threads {
                0 => self.refuse(&socket),
                _ => self.pass(self.router.number + 1, socket, further_threads - 1),
            };
        }
        // A reply must not wait for the acknowledgement of another.
        let _ = socket.set_nodelay(true);
        let number = self.connections.vacant_key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut socket, Token(number), interest);
        // Expired credentials refuse all clients.
        let tls = self.router.shared.tls.as_ref().map(TlsPort::accept).transpose();
        let connections = &self.router.shared.connections;
        connections.without_tls.fetch_add(u64::from(tls.is_err()), Ordering::Relaxed);
        let (Ok(()), Ok(tls), None) = (registered, tls, self.ends_at) else {
            connections.open.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        self.generations = self.generations.wrapping_add(1);
        let place = self.router.shared.clients.add(&socket, self.now);
        let connection = Connection::new(socket, self.generations, place).with_tls(tls);
        self.connections.insert(connection);
        self.unused.insert(self.generations, number);
        self.enqueue(number);
    }

    fn remove(&mut self, number: usize) {
        let mut connection = self.connections.remove(number);
        self.unused.remove(&connection.generation);
        self.router.change_held(connection.held_bytes(), 0);
        self.router.shared.clients.remove(&connection.socket);
        // The socket closes here; registration ends with it.
        let _ = self.poll.registry().deregister(&mut connection.socket);
        self.router.shared.connections.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn receive(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Connection { socket, further_threads } => self.add(socket, further_threads),
            Parcel::Work(mut batch) => {
                let Some(owner) = &mut self.router.owner else {
                    unreachable!("work goes to owners")
                };
                owner.serve(&mut batch);
                self.router.shared.inboxes[batch.origin].push(Parcel::Done(batch));
            }
            Parcel::Done(batch) => self.take_replies(batch),
            Parcel::Stop => self.stop(),
            Parcel::Finished => {}
        }
    }

    /// Gives the replies of a batch to the connections that are still there.
    fn take_replies(&mut self, mut batch: Box<Batch>) {
        batch.drain(|ticket, reply| {
            let Some(connection) = self.connections.get_mut(ticket.connection) else { return };
            if connection.generation != ticket.generation {
                return;
            }
            let held = connection.held_bytes();
            let shared = &self.router.shared;
            let format = |what, sum: &Snapshot, out: &mut Vec<u8>| {
                report::format(shared, what, sum, out);
            };
            connection.make_room(reply.len());
            connection.replies.take(ticket.sequence, reply, &mut connection.output, format);
            self.router.change_held(held, connection.held_bytes());
            if !connection.is_queued {
                connection.is_queued = true;
                self.queue.push(ticket.connection);
            }
        });
        self.router.take_back(batch);
        self.resume();
    }

    /// Looks again at the connections that wait for room.
    fn resume(&mut self) {
        for number in std::mem::take(&mut self.paused) {
            self.enqueue(number);
        }
    }

    /// Adds the bytes of a turn to the counters that all threads share.
    fn note_traffic(&mut self) {
        let (read, written) = std::mem::take(&mut self.traffic);
        let counters = &self.router.shared.connections;
        if read > 0 {
            counters.bytes_read.fetch_add(read, Ordering::Relaxed);
        }
        if written > 0 {
            counters.bytes_written.fetch_add(written, Ordering::Relaxed);
        }
    }

    /// Reads from a connection, runs its requests and sends its replies.
    fn drive(&mut self, number: usize) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        connection.is_queued = false;
        let held = connection.held_bytes();
        let running = (number, held);
        let (pause, has_advanced) =
            drive(connection, running, &mut self.router, &mut self.buffer, self.now);
        let is_broken = connection.flush(self.now).is_err();
        let (read, written) = connection.take_traffic();
        self.traffic = (self.traffic.0 + read, self.traffic.1 + written);
        if pause == Pause::Others {
            self.router.shared.connections.yields.fetch_add(1, Ordering::Relaxed);
        }
        let now_ms = self.router.now_ms;
        connection.note_weight(now_ms, has_advanced);
        // A client without a needed password yields to newcomers.
        let is_in = connection.is_authenticated || self.router.shared.passwords.is_none();
        if has_advanced && is_in && connection.note_use() {
            self.unused.remove(&connection.generation);
        }
        self.router.change_held(held, connection.held_bytes());
        if is_broken || connection.is_finished() {
            return self.remove(number);
        }
        let wanted = if let Pause::Memory { bytes } = pause { Some(bytes) } else { None };
        connection.note_wait(wanted, now_ms);
        // Otherwise an event, a batch or the tick brings the connection back.
        let has_turn = match pause {
            Pause::Turn => {
                self.paused.push(number);
                false
            }
            // The replies have been sent.
            Pause::Memory { bytes: 0 } if connection.held_bytes() <= LIGHT_BYTES => true,
            Pause::Memory { .. } => {
                let wait = connection.wait.as_mut().expect("it was just set");
                if !std::mem::replace(&mut wait.is_listed, true) {
                    self.waiting.push(number);
                }
                false
            }
            Pause::Output => !connection.is_full(),
            Pause::Input { .. } => connection.can_read(),
            Pause::Others => true,
            Pause::Closing => false,
        };
        if has_turn {
            self.enqueue(number);
        }
    }

    /// Lets connections that wait for memory try again, the last first: a new client gets a turn before older waiters.
    /// Connections that hold memory without progress end, as many as the last waiter needs.
    fn look_at_waiting(&mut self) {
        let (now_ms, held_bytes) = (self.router.now_ms, self.router.held_bytes());
        // A look at each change would run all waiters whenever another client gives some memory back.
        let can_run = |number: &usize| {
            let Some(connection) = self.connections.get(*number) else { return false };
            let Some(wait) = connection.wait else { return false };
            let own_bytes = if wait.bytes > 0 { connection.held_bytes() } else { 0 };
            self.router.has_memory(held_bytes.saturating_sub(own_bytes), wait.bytes)
        };
        let is_due = now_ms >= self.look_ms
            || held_bytes < self.looked_at_bytes && self.waiting.iter().any(can_run);
        let Some(&last) = self.waiting.last().filter(|_| is_due) else { return };
        self.look_ms = now_ms + MEMORY_LOOK_MS;
        let wait = self.connections.get(last).and_then(|connection| connection.wait);
        let bytes = wait.map_or(0, |wait| wait.bytes);
        if !self.router.has_memory(self.router.held_bytes(), bytes) {
            self.router.shared.pool.note_wanted(now_ms);
        }
        while !self.router.has_memory(self.router.held_bytes(), bytes)
            && let Some(number) =
                self.heaviest(|since, waits| !waits && now_ms.saturating_sub(since) >= HELD_MS)
        {
            self.end_heavy(number);
        }
        self.looked_at_bytes = self.router.held_bytes();
        for number in std::mem::take(&mut self.waiting).into_iter().rev() {
            if let Some(connection) = self.connections.get_mut(number) {
                if let Some(wait) = &mut connection.wait {
                    wait.is_listed = false;
                }
                self.enqueue(number);
            }
        }
    }

    /// Returns the connection with much memory for the longest time, of the connections with a true `is_meant`, given the millisecond of the
    /// beginning and whether the server makes a request of the connection wait: waiting connections come last.
    fn heaviest(&self, is_meant: impl Fn(u64, bool) -> bool) -> Option<usize> {
        let heavy = self.connections.iter().filter_map(|(number, connection)| {
            let waits = connection.wait.is_some_and(|wait| wait.bytes > 0);
            let since = connection.heavy_since.filter(|since| is_meant(*since, waits))?;
            Some((waits, since, Reverse(connection.held_bytes()), number))
        });
        heavy.min().map(|(.., number)| number)
    }

    /// Ends a connection for its memory.
    fn end_heavy(&mut self, number: usize) {
        self.router.shared.connections.stalled.fetch_add(1, Ordering::Relaxed);
        self.remove(number);
    }

    /// Sends operations to further threads. If memory is exceeded, connections end, first the longest holders of much memory.
    fn dispatch(&mut self) {
        let connections = &self.connections;
        self.router.dispatch(|ticket: &Ticket| match connections.get(ticket.connection) {
            Some(connection) if connection.generation == ticket.generation => {
                Some(connection.needs(ticket.sequence))
            }
            // The client has gone. Its operations with an effect run, and their replies are dropped.
            _ => None,
        });
        while self.router.is_memory_exceeded() {
            let largest = || self.connections.iter().max_by_key(|(_, it)| it.held_bytes());
            let found = self.heaviest(|_, _| true).or_else(|| largest().map(|(number, _)| number));
            // The rest is that of batches, which come back.
            let Some(number) = found else { break };
            self.end_heavy(number);
        }
    }

    /// Once a second: closes idle connections, and connections that hold scarce memory.
    fn look_at_all(&mut self) {
        if !self.router.is_memory_short() && !self.paused.is_empty() && !self.router.is_waiting() {
            self.resume();
        }
        if self.looked_at == self.now {
            return;
        }
        self.looked_at = self.now;
        let (now, idle_s) = (self.now, self.router.shared.limits.idle_s);
        let is_short = self.router.is_memory_short();
        let is_stalled = |connection: &Connection| {
            connection.held_bytes() > SAFE_BYTES
                && connection.idle_s(now) >= STALLED_S
                // Otherwise the server has not read, and not the client.
                && connection.wait.is_none_or(|wait| wait.bytes == 0)
        };
        let mut ended = Vec::new();
        for (number, connection) in &self.connections {
            let counters = &self.router.shared.connections;
            if idle_s.is_some_and(|limit| connection.idle_s(now) >= limit) {
                counters.idle.fetch_add(1, Ordering::Relaxed);
                ended.push(number);
            } else if is_short && is_stalled(connection) {
                counters.stalled.fetch_add(1, Ordering::Relaxed);
                ended.push(number);
            }
        }
        ended.into_iter().for_each(|number| self.remove(number));
        let now_ms = self.router.now_ms;
        while self.router.is_memory_owed()
            && let Some(number) =
                self.heaviest(|since, waits| !waits && now_ms.saturating_sub(since) >= HELD_MS)
        {
            self.end_heavy(number);
        }
        self.resume();
        // A shortage of descriptors may be over.
        self.has_arrivals = true;
    }

    /// Begins to stop: no connection is taken any more, and no bytes are read. Requests that have come run.
    fn stop(&mut self) {
        self.listeners.clear();
        self.ends_at = Some(self.now + STOP_S);
        let numbers: Vec<_> = self.connections.iter().map(|(number, _)| number).collect();
        for number in numbers {
            self.connections[number].is_reading_over = true;
            self.enqueue(number);
        }
    }

    /// Tells the others when the connections of a stopping thread have ended.
    fn finish(&mut self) {
        let Some(ends_at) = self.ends_at else { return };
        if self.now >= ends_at {
            let numbers: Vec<_> = self.connections.iter().map(|(number, _)| number).collect();
            numbers.into_iter().for_each(|number| self.remove(number));
        }
        let is_done = self.connections.is_empty() && !self.router.is_waiting();
        if is_done || self.now >= ends_at {
            self.presence.end();
        }
    }

    /// Returns true if no thread has connections any more: until then, others need this thread's partition.
    fn is_over(&self) -> bool {
        let shared = &self.router.shared;
        self.presence.has_ended && shared.finished.load(Ordering::SeqCst) == shared.servers
    }
}

/// Reads and runs requests for as long as possible. Returns the reason of the end, and whether a request has been run.
fn drive(
    connection: &mut Connection,
    running: (usize, usize),
    router: &mut Router,
    buffer: &mut [u8],
    now: u32,
) -> (Pause, bool) {
    let (mut pause, mut has_advanced) = (Pause::Input { needed: 0 }, false);
    if connection.kept_bytes() > 0 {
        (pause, has_advanced) = run_kept(connection, running, router);
    }
    for _ in 0..READS_MAX {
        let Pause::Input { needed } = pause else { break };
        if connection.is_reading_over {
            // The rest of the last request will not come.
            connection.is_closing = true;
            return (Pause::Closing, has_advanced);
        }
        let bytes = match connection.read(buffer, now) {
            ReadOutcome::Bytes(bytes) => bytes,
            ReadOutcome::Later => break,
            // A client may close its side and still read the replies to its last requests.
            ReadOutcome::Ended => {
                connection.is_closing = true;
                return (Pause::Closing, has_advanced);
            }
        };
        if connection.kept_bytes() == 0 {
            let (used, next) = router.run(connection, running, &buffer[..bytes]);
            (pause, has_advanced) = (next, has_advanced || used > 0);
            if used < bytes {
                let needed = if let Pause::Input { needed } = next { needed } else { 0 };
                connection.keep(&buffer[used..bytes], needed);
            }
        } else {
            connection.keep(&buffer[..bytes], needed);
            // A value that is not complete is not looked at again.
            if connection.kept_bytes() >= needed {
                let (next, has_run) = run_kept(connection, running, router);
                (pause, has_advanced) = (next, has_advanced || has_run);
            }
        }
    }
    (pause, has_advanced)
}

/// Runs the requests of the bytes that were kept.
fn run_kept(
    connection: &mut Connection,
    running: (usize, usize),
    router: &mut Router,
) -> (Pause, bool) {
    connection.use_kept(|connection, input| {
        let (used, pause) = router.run(connection, running, input);
        (used, (pause, used > 0))
    })
}

/// The time, in seconds since 1970.
pub(crate) fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}
