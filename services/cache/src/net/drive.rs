//! Runs the requests of a connection.

use super::batch::{Batch, Ticket};
use super::connection::{Connection, has_come};
use super::inbox::Parcel;
use super::owner::Owner;
use super::pool::Account;
use super::replies::Replies;
use super::report;
use super::thread::Shared;
use crate::key::Hasher;
use crate::limits::{
    AUTH_FAILURES_MAX, FIRST_VALUE_BYTES_MAX, LIGHT_BYTES, READ_BYTES, STEPS_MAX, WHOLE_BYTES,
};
use crate::memcached::{Everywhere, Operation, Passwords, Request, Step, execute, replies};

use std::sync::Arc;

/// The reason why a connection's requests stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// More bytes are needed; their number, if it is known.
    Input { needed: usize },
    /// The replies must be sent first.
    Output,
    /// The batch of another thread is full.
    Turn,
    /// Other connections get their turn first.
    Others,
    /// Memory for buffers is short: for `bytes` of a request, or for any request of a connection with much memory.
    Memory { bytes: usize },
    /// The connection has ended.
    Closing,
}

/// The part of a thread that runs requests: the own partition, and the way to all others.
pub(super) struct Router {
    /// The number of the thread and of the partition.
    pub(super) number: usize,
    pub(super) owner: Option<Owner>,
    pub(super) hasher: Hasher,
    pub(super) shared: Arc<Shared>,
    outgoing: Vec<Outgoing>,
    /// The memory that the thread's connections and batches hold for buffers.
    account: Account,
    /// The millisecond of this turn.
    pub(super) now_ms: u64,
}

/// The batches for one owner.
struct Outgoing {
    /// The batch that fills.
    next: Box<Batch>,
    /// The memory of the batch that is at the owner, as sent.
    away_bytes: Option<usize>,
    /// The owner stopped at large replies, and entries came back.
    has_stopped: bool,
}

impl Router {
    pub(super) fn new(
        number: usize,
        owner: Option<Owner>,
        hasher: Hasher,
        shared: Arc<Shared>,
    ) -> Self {
        let outgoing = (0..shared.partitions)
            .map(|owner| Outgoing {
                next: Box::new(Batch::new(number, owner)),
                away_bytes: None,
                has_stopped: false,
            })
            .collect();
        Self { number, owner, hasher, shared, outgoing, account: Account::default(), now_ms: 0 }
    }

    /// The memory that connections and batches hold.
    pub(super) fn held_bytes(&self) -> usize {
        self.account.held_bytes()
    }

    /// Notes that a connection or a batch that held `before` bytes holds `after`.
    pub(super) fn change_held(&mut self, before: usize, after: usize) {
        self.account.change(&self.shared.pool, before, after);
    }

    /// Returns true if half of the memory for buffers is in use: requests begin only on connections that hold little.
    pub(super) fn is_memory_short(&self) -> bool {
        self.account.is_short(&self.shared.pool)
    }

    /// Returns true if connections and batches hold more memory than they may.
    pub(super) fn is_memory_exceeded(&self) -> bool {
        self.account.is_exceeded(&self.shared.pool)
    }

    /// Returns true if connections of this thread hold memory for which connections of another thread wait.
    pub(super) fn is_memory_owed(&self) -> bool {
        let pool = &self.shared.pool;
        pool.is_wanted(self.now_ms) && self.account.has_more_than_its_share(pool)
    }

    /// Runs the requests of `input`; returns the bytes that were used, and why the rest must wait. The connection has
    /// this number, and held so much memory at the beginning of its turn.
    pub(super) fn run(
        &mut self,
        connection: &mut Connection,
        (number, running_bytes): (usize, usize),
        input: &[u8],
    ) -> (usize, Pause) {
        let (mut start, mut steps) = (0, 0);
        loop {
            if steps == STEPS_MAX {
                return (start, Pause::Others);
            }
            steps += 1;
            if connection.is_closing {
                return (start, Pause::Closing);
            }
            if connection.is_full() {
                return (start, Pause::Output);
            }
            if self.is_memory_short() && connection.held_bytes() > LIGHT_BYTES {
                return (start, Pause::Memory { bytes: 0 });
            }
            let (generation, is_tls) = (connection.generation, connection.is_tls());
            let Connection { parser, replies, output, is_authenticated, failed_logins, .. } =
                connection;
            let step = match &self.shared.passwords {
                Some(passwords) if !*is_authenticated => {
                    let (step, is_in) = passwords.step(&input[start..]);
                    *is_authenticated = is_in;
                    *failed_logins += u32::from(Passwords::is_failure(&step));
                    match step {
                        Step::Done { used, .. } if *failed_logins >= AUTH_FAILURES_MAX => {
                            Step::Done { used, request: Request::Close(Passwords::FAILURE) }
                        }
                        step => step,
                    }
                }
                _ => parser.next(&input[start..]),
            };
            let (used, request) = match step {
                Step::Done { used, request } => (used, request),
                Step::More { needed } => {
                    let (others, bytes) =
                        (self.held_bytes() - running_bytes, needed.max(input.len() - start));
                    if bytes <= READ_BYTES
                        || self.has_memory(others, bytes)
                        // A request that has come whole holds memory for this turn only.
                        || bytes <= WHOLE_BYTES
                            && !is_tls
                            && has_come(&connection.socket, needed, input.len() - start)
                    {
                        return (start, Pause::Input { needed });
                    }
                    if connection.wait.is_none_or(|wait| wait.has_time(self.now_ms)) {
                        return (start, Pause::Memory { bytes });
                    }
                    match needed {
                        0 => (0, Request::Close(replies::NO_MEMORY)),
                        _ => match parser.refuse(&input[start..]) {
                            Step::Done { used, request } => (used, request),
                            Step::More { .. } => unreachable!("the parser has said how many"),
                        },
                    }
                }
            };
            let is_run = match request {
                Request::Reply(b"") => true,
                Request::Reply(reply) => {
                    replies.write(output, |out| out.extend_from_slice(reply));
                    true
                }
                Request::Operation(operation) => {
                    let ticket = (number, generation);
                    self.run_operation(replies, output, ticket, &operation)
                }
                Request::Everywhere(everywhere) => match self.shared.permit(everywhere) {
                    Ok(permitted) => {
                        self.run_everywhere(replies, output, (number, generation), permitted)
                    }
                    Err(reply) => {
                        replies.write(output, |out| out.extend_from_slice(reply));
                        true
                    }
                },
                Request::Close(reply) => {
                    replies.write(output, |out| out.extend_from_slice(reply));
                    connection.is_closing = true;
                    true
                }
            };
            if !is_run {
                connection.parser.take_back();
                return (start, Pause::Turn);
            }
            start += used;
        }
    }

    /// Returns true if memory suffices for `bytes` bytes beside `others`.
    pub(super) fn has_memory(&self, others: usize, bytes: usize) -> bool {
        self.account.has_memory(&self.shared.pool, others, bytes)
    }

    /// Runs an operation, or adds it to a batch. Returns false if the batch is full: the request must come again.
    #[inline]
    fn run_operation(
        &mut self,
        replies: &mut Replies,
        output: &mut Vec<u8>,
        (connection, generation): (usize, u32),
        operation: &Operation<'_>,
    ) -> bool {
        let Ok(key) = self.hasher.key(operation.key) else {
            unreachable!("the parser has checked the key")
        };
        let partition = key.partition(self.shared.partitions);
        if let Some(Owner { partition: own, clock }) = &mut self.owner
            && partition == self.number
        {
            replies.write(output, |out| execute(own, clock, key, operation, out));
            return true;
        }
        let batch = &self.outgoing[partition].next;
        if batch.is_full() {
            // Clients with many requests must not keep the others out. A connection has a first request at most.
            let bytes = operation.value.len();
            let has_room =
                bytes <= FIRST_VALUE_BYTES_MAX || self.has_memory(self.held_bytes(), bytes);
            if !replies.is_empty() || !has_room {
                return false;
            }
        }
        let batch = &mut self.outgoing[partition].next;
        let ticket = Ticket { connection, generation, sequence: replies.owe() };
        let before = batch.held_bytes();
        batch.push(ticket, key, operation);
        let after = batch.held_bytes();
        self.change_held(before, after);
        true
    }

    /// Runs an operation on all partitions. Returns false if a batch is full: the request must come again.
    fn run_everywhere(
        &mut self,
        replies: &mut Replies,
        output: &mut Vec<u8>,
        (connection, generation): (usize, u32),
        everywhere: Everywhere,
    ) -> bool {
        // The own partition's batch is always empty.
        if self.outgoing.iter().any(|outgoing| outgoing.next.is_full()) {
            return false;
        }
        let own = self.owner.as_mut().map(|owner| owner.run_everywhere(everywhere));
        let others = self.shared.partitions - usize::from(own.is_some());
        let sum = own.unwrap_or_default();
        if others == 0 {
            let shared = &self.shared;
            replies.write(output, |out| report::format(shared, everywhere, &sum, out));
            return true;
        }
        let sequence = replies.gather(others, sum, everywhere);
        let ticket = Ticket { connection, generation, sequence };
        let is_own = |number: usize| self.owner.is_some() && number == self.number;
        for (number, outgoing) in self.outgoing.iter_mut().enumerate() {
            if !is_own(number) {
                let before = outgoing.next.held_bytes();
                outgoing.next.push_everywhere(ticket, everywhere);
                let after = outgoing.next.held_bytes();
                self.account.change(&self.shared.pool, before, after);
            }
        }
        true
    }

    /// Sends the batches to owners without a batch of this thread. If memory is short, or replies are large, only operations go
    /// whose reply is the next that a client reads, as `is_needed` says, with `None` for a client that has gone.
    pub(super) fn dispatch(&mut self, is_needed: impl Fn(&Ticket) -> Option<bool>) {
        if self.is_memory_short() {
            self.trim();
        }
        let is_short = self.is_memory_short();
        for (owner, outgoing) in self.outgoing.iter_mut().enumerate() {
            if outgoing.away_bytes.is_some() || outgoing.next.is_empty() {
                continue;
            }
            let before = outgoing.next.held_bytes();
            let batch = match is_short || outgoing.has_stopped {
                true => Box::new(outgoing.next.split(&is_needed)),
                false => {
                    let next = Box::new(Batch::new(self.number, owner));
                    std::mem::replace(&mut outgoing.next, next)
                }
            };
            let away_bytes = if batch.is_empty() { 0 } else { batch.held_bytes() };
            let after = outgoing.next.held_bytes() + away_bytes;
            self.account.change(&self.shared.pool, before, after);
            if !batch.is_empty() {
                outgoing.away_bytes = Some(away_bytes);
                self.shared.inboxes[owner].push(Parcel::Work(batch));
            }
        }
    }

    /// Takes a batch back, whose replies have been taken. Entries that the owner has not run come first again.
    pub(super) fn take_back(&mut self, mut batch: Box<Batch>) {
        let is_short = self.is_memory_short();
        let outgoing = &mut self.outgoing[batch.owner];
        let away_bytes = outgoing.away_bytes.take().expect("a batch comes back once");
        let before = away_bytes + outgoing.next.held_bytes();
        outgoing.has_stopped = !batch.is_empty();
        batch.append(&mut outgoing.next);
        if is_short && batch.is_empty() {
            *batch = Batch::new(batch.origin, batch.owner);
        }
        outgoing.next = batch;
        let after = outgoing.next.held_bytes();
        self.change_held(before, after);
    }

    /// Gives the memory of empty batches back.
    fn trim(&mut self) {
        for outgoing in &mut self.outgoing {
            if outgoing.next.is_empty() {
                let Batch { origin, owner, .. } = *outgoing.next;
                self.account.change(&self.shared.pool, outgoing.next.held_bytes(), 0);
                *outgoing.next = Batch::new(origin, owner);
            }
        }
    }

    /// Returns true if operations are on their way.
    pub(super) fn is_waiting(&self) -> bool {
        self.outgoing
            .iter()
            .any(|outgoing| outgoing.away_bytes.is_some() || !outgoing.next.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BATCH_ENTRIES_MAX;
    use crate::memcached::Action;
    use crate::net::inbox::Inbox;
    use crate::net::server::CacheConfig;

    /// A thread that owns no partition: both partitions are others'.
    fn router() -> Router {
        let inboxes = (0..3).map(|_| Inbox::new(Box::new(|| ()))).collect();
        let config = CacheConfig { threads: 2, ..CacheConfig::default() };
        let shared = Arc::new(config.shared(inboxes, 1, 4 << 20));
        Router::new(2, None, Hasher::new(1), shared)
    }

    /// Adds an operation to a batch; returns whether there was room.
    fn run(router: &mut Router, replies: &mut Replies, key: &[u8], value: &[u8]) -> bool {
        let action = Action::Delete { is_quiet: false };
        let operation = Operation { action, key, value, flags: b"" };
        router.run_operation(replies, &mut Vec::new(), (0, 0), &operation)
    }

    #[test]
    fn run__leaves_other_connections_their_turn() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = mio::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut connection = Connection::new(socket, 1, Arc::new(1.into()));
        let input = b"mn\r\n".repeat(STEPS_MAX + 1);
        let (used, pause) = router().run(&mut connection, (0, 0), &input);
        assert_eq!((used, pause), (input.len() - 4, Pause::Others));
        let rest = router().run(&mut connection, (0, 0), &input[used..]);
        assert_eq!(rest, (4, Pause::Input { needed: 0 }));
    }

    #[test]
    fn run_operation__counts_the_memory_of_batches() {
        let (mut router, mut replies) = (router(), Replies::default());
        assert!(run(&mut router, &mut replies, b"key", &vec![0; 1 << 20]));
        assert!((1 << 20..5 << 18).contains(&router.held_bytes()), "{} bytes", router.held_bytes());
        assert!(run(&mut router, &mut replies, b"other", &vec![0; 1 << 20]));
        assert!(router.is_memory_short());
        // With the owner the memory is still in use, and it is given back with the batch.
        router.dispatch(|_| Some(true));
        assert!(router.is_memory_short());
        let mut parcels = Vec::new();
        for owner in [0, 1] {
            router.shared.inboxes[owner].take(&mut parcels);
            for parcel in parcels.drain(..) {
                let Parcel::Work(mut batch) = parcel else { panic!("no work") };
                batch.run(usize::MAX, |_, _| ());
                batch.drain(|_, _| ());
                router.take_back(batch);
            }
        }
        assert_eq!(router.held_bytes(), 0);
    }

    #[test]
    fn run_operation__takes_first_requests_to_a_full_batch() {
        let (mut router, mut replies) = (router(), Replies::default());
        while run(&mut router, &mut replies, b"key", b"") {}
        assert_eq!(replies.len(), BATCH_ENTRIES_MAX);
        let (small, large) = ([0; FIRST_VALUE_BYTES_MAX], vec![0; 4 << 20]);
        assert!(!run(&mut router, &mut Replies::default(), b"key", &large));
        let mut other = Replies::default();
        assert!(run(&mut router, &mut other, b"key", &small));
        assert!(!run(&mut router, &mut other, b"key", b""));
    }

    #[test]
    fn run_everywhere__waits_for_room_in_all_batches() {
        let (mut router, mut replies) = (router(), Replies::default());
        let mut output = Vec::new();
        let mut flush = |router: &mut Router, replies: &mut Replies| {
            router.run_everywhere(replies, &mut output, (0, 0), Everywhere::Stats)
        };
        for _ in 0..BATCH_ENTRIES_MAX {
            assert!(flush(&mut router, &mut replies));
        }
        let (held_bytes, waiting) = (router.held_bytes(), replies.len());
        assert!(!flush(&mut router, &mut replies));
        assert_eq!((router.held_bytes(), replies.len()), (held_bytes, waiting));
    }
}
