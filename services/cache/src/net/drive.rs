//! Runs the requests of a connection.

use super::batch::{Batch, Ticket};
use super::connection::Connection;
use super::inbox::Parcel;
use super::owner::Owner;
use super::replies::Replies;
use super::report;
use super::thread::Shared;
use crate::key::Hasher;
use crate::limits::READ_BYTES;
use crate::memcached::{Everywhere, Operation, Request, Step, execute, replies};

use std::sync::Arc;

/// The reason why a connection's requests stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// More bytes are needed; their number, if it is known.
    Input { needed: usize },
    /// The replies must be sent first.
    Output,
    /// The batch of another thread is full, or memory for buffers is short.
    Turn,
    /// The connection has ended.
    Closing,
}

/// The part of a thread that runs requests: its partition, and the way to the others.
pub(super) struct Router {
    /// The number of the thread, which is that of its partition.
    pub(super) number: usize,
    pub(super) owner: Option<Owner>,
    pub(super) hasher: Hasher,
    pub(super) shared: Arc<Shared>,
    outgoing: Vec<Outgoing>,
    /// The memory that the thread's connections hold for buffers.
    pub(super) held_bytes: usize,
    /// The part of it that the connection holds whose requests run.
    pub(super) running_bytes: usize,
}

/// The batches for one owner.
struct Outgoing {
    /// The batch that fills.
    next: Box<Batch>,
    /// A batch is at the owner.
    is_away: bool,
}

impl Router {
    pub(super) fn new(
        number: usize,
        owner: Option<Owner>,
        hasher: Hasher,
        shared: Arc<Shared>,
    ) -> Self {
        let outgoing = (0..shared.partitions)
            .map(|owner| Outgoing { next: Box::new(Batch::new(number, owner)), is_away: false })
            .collect();
        Self { number, owner, hasher, shared, outgoing, held_bytes: 0, running_bytes: 0 }
    }

    /// Returns true if the connections hold half of the memory that they may: no request begins that could need more.
    pub(super) fn is_memory_short(&self) -> bool {
        self.held_bytes > self.shared.limits.buffer_bytes_max / 2
    }

    /// Returns true if the connections hold more memory than they may.
    pub(super) fn is_memory_exceeded(&self) -> bool {
        self.held_bytes > self.shared.limits.buffer_bytes_max
    }

    /// Runs the requests of `input`; returns the bytes that were used, and why the rest must wait.
    pub(super) fn run(
        &mut self,
        connection: &mut Connection,
        number: usize,
        input: &[u8],
    ) -> (usize, Pause) {
        let mut start = 0;
        loop {
            if connection.is_closing() {
                return (start, Pause::Closing);
            }
            if connection.is_full() {
                return (start, Pause::Output);
            }
            if self.is_memory_short() {
                return (start, Pause::Turn);
            }
            let generation = connection.generation;
            let Connection { parser, replies, output, .. } = connection;
            let (used, request) = match parser.next(&input[start..]) {
                Step::Done { used, request } => (used, request),
                Step::More { needed } if self.has_memory(needed, input.len() - start) => {
                    return (start, Pause::Input { needed });
                }
                Step::More { needed: 0 } => (0, Request::Close(replies::NO_MEMORY)),
                Step::More { needed } => {
                    parser.skip(needed);
                    (0, Request::Reply(replies::NO_MEMORY))
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
                Request::Everywhere(everywhere) => {
                    self.run_everywhere(replies, output, (number, generation), everywhere);
                    true
                }
                Request::Close(reply) => {
                    replies.write(output, |out| out.extend_from_slice(reply));
                    connection.close();
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

    /// Returns true if there is memory for an input of `needed` bytes, of which some have come.
    fn has_memory(&self, needed: usize, here: usize) -> bool {
        let bytes = needed.max(here);
        // The connection may hold the memory of the request already.
        let others = self.held_bytes - self.running_bytes;
        bytes <= READ_BYTES || others + bytes <= self.shared.limits.buffer_bytes_max / 2
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
        let batch = &mut self.outgoing[partition].next;
        if batch.is_full() {
            return false;
        }
        let ticket = Ticket { connection, generation, sequence: replies.owe() };
        batch.push(ticket, key, operation);
        true
    }

    /// Runs an operation on all partitions.
    fn run_everywhere(
        &mut self,
        replies: &mut Replies,
        output: &mut Vec<u8>,
        (connection, generation): (usize, u32),
        everywhere: Everywhere,
    ) {
        let own = self.owner.as_mut().map(|owner| owner.run_everywhere(everywhere));
        let others = self.shared.partitions - usize::from(own.is_some());
        let sum = own.unwrap_or_default();
        if others == 0 {
            let shared = &self.shared;
            return replies.write(output, |out| report::format(shared, everywhere, &sum, out));
        }
        let sequence = replies.gather(others, sum, everywhere);
        let ticket = Ticket { connection, generation, sequence };
        let is_own = |number: usize| self.owner.is_some() && number == self.number;
        for (number, outgoing) in self.outgoing.iter_mut().enumerate() {
            if !is_own(number) {
                outgoing.next.push_everywhere(ticket, everywhere);
            }
        }
    }

    /// Sends the batches whose owner has none of this thread. If memory is short, only operations go whose reply is the
    /// next that a client reads, as `is_needed` says.
    pub(super) fn dispatch(&mut self, is_needed: impl Fn(&Ticket) -> bool) {
        let is_short = self.is_memory_short();
        for (owner, outgoing) in self.outgoing.iter_mut().enumerate() {
            if outgoing.is_away || outgoing.next.is_empty() {
                continue;
            }
            let batch = match is_short {
                true => Box::new(outgoing.next.split(&is_needed)),
                false => {
                    let next = Box::new(Batch::new(self.number, owner));
                    std::mem::replace(&mut outgoing.next, next)
                }
            };
            if !batch.is_empty() {
                outgoing.is_away = true;
                self.shared.inboxes[owner].push(Parcel::Work(batch));
            }
        }
    }

    /// Takes a batch back, whose replies have been taken. Entries that the owner has not run come first again.
    pub(super) fn take_back(&mut self, mut batch: Box<Batch>) {
        let outgoing = &mut self.outgoing[batch.owner];
        assert!(outgoing.is_away, "a batch comes back once");
        outgoing.is_away = false;
        batch.append(&mut outgoing.next);
        outgoing.next = batch;
    }

    /// Returns true if operations are on their way.
    pub(super) fn is_waiting(&self) -> bool {
        self.outgoing.iter().any(|outgoing| outgoing.is_away || !outgoing.next.is_empty())
    }
}
