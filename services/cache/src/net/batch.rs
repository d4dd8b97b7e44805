//! Operations of a thread on one partition, with their replies.

use crate::key::Key;
use crate::limits::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX};
use crate::memcached::{Action, Everywhere, Operation};

/// The request that a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The number of the connection, and of its predecessors at this number.
    pub(crate) connection: usize,
    pub(crate) generation: u32,
    /// The place of the reply among the connection's replies.
    pub(crate) sequence: u64,
}

/// A batch on its way between two threads.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The thread that waits for the replies.
    pub(crate) origin: usize,
    /// The partition.
    pub(crate) owner: usize,
    entries: Vec<Entry>,
    /// Keys, values and flags of the entries, in their order.
    bytes: Vec<u8>,
    /// Replies of the first `done` entries, in their order.
    replies: Vec<u8>,
    done: usize,
    /// The bytes of the first `done` entries.
    done_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    task: Task,
    reply_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    Operation { action: Action, hash: u64, key_bytes: u8, value_bytes: u32, flags_bytes: u16 },
    Everywhere(Everywhere),
}

pub(crate) enum Work<'a> {
    Operation(Key<'a>, Operation<'a>),
    Everywhere(Everywhere),
}

impl Batch {
    pub(crate) fn new(origin: usize, owner: usize) -> Self {
        Self { origin, owner, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns true if the batch takes no more operations.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= BATCH_ENTRIES_MAX || self.bytes.len() >= BATCH_BYTES_MAX
    }

    /// The memory that the batch takes, about.
    pub(crate) fn held_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.bytes.capacity()
            + self.replies.capacity()
    }

    pub(crate) fn push(&mut self, ticket: Ticket, key: Key<'_>, operation: &Operation<'_>) {
        let &Operation { action, value, flags, .. } = operation;
        let task = Task::Operation {
            action,
            hash: key.hash(),
            key_bytes: key.bytes().len() as u8,
            // The parser admits values of a mebibyte, and lines of some kibibytes.
            value_bytes: value.len() as u32,
            flags_bytes: u16::try_from(flags.len()).expect("a line has some kibibytes"),
        };
        let bytes = key.bytes().len() + value.len() + flags.len();
        if bytes > BATCH_BYTES_MAX / 4 {
            // A growth by doubling would take the memory of several values.
            self.bytes.reserve_exact(bytes);
        }
        [key.bytes(), value, flags].iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.entries.push(Entry { ticket, task, reply_bytes: 0 });
    }

    pub(crate) fn push_everywhere(&mut self, ticket: Ticket, everywhere: Everywhere) {
        let task = Task::Everywhere(everywhere);
        self.entries.push(Entry { ticket, task, reply_bytes: 0 });
    }

    /// Runs the entries that are not done, until the replies are larger than `replies_max` bytes.
    pub(crate) fn run(&mut self, replies_max: usize, mut run: impl FnMut(Work<'_>, &mut Vec<u8>)) {
        while self.done < self.entries.len() && self.replies.len() <= replies_max {
            let entry = &mut self.entries[self.done];
            let bytes = &self.bytes[self.done_bytes..];
            let (work, used) = entry.task.work(bytes);
            let before = self.replies.len();
            run(work, &mut self.replies);
            entry.reply_bytes = self.replies.len() - before;
            self.done += 1;
            self.done_bytes += used;
        }
    }

    /// Gives the replies to `take`, and leaves the entries that are not done.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Ticket, &[u8])) {
        assert!(self.done > 0, "an owner runs an entry at least");
        let mut replies = self.replies.as_slice();
        for entry in self.entries.drain(..self.done) {
            let (reply, rest) = replies.split_at(entry.reply_bytes);
            take(entry.ticket, reply);
            replies = rest;
        }
        assert!(replies.is_empty(), "{} bytes belong to no entry", replies.len());
        self.bytes.drain(..self.done_bytes);
        match self.replies.capacity() > BATCH_BYTES_MAX {
            true => self.replies = Vec::new(),
            false => self.replies.clear(),
        }
        (self.done, self.done_bytes) = (0, 0);
        if self.held_bytes() > 2 * BATCH_BYTES_MAX && self.entries.is_empty() {
            // A large value has passed: its memory is needed elsewhere.
            *self = Self::new(self.origin, self.owner);
        }
    }

    /// Moves the entries that `is_needed` accepts to another batch. Without a client (`None`) an entry goes too, but for a
    /// get without effect, which is dropped.
    pub(crate) fn split(&mut self, is_needed: impl Fn(&Ticket) -> Option<bool>) -> Self {
        assert!(self.done == 0, "the replies are taken first");
        let mut parts = [Self::new(self.origin, self.owner), Self::new(self.origin, self.owner)];
        let mut bytes = self.bytes.as_slice();
        for entry in self.entries.drain(..) {
            let (own, rest) = bytes.split_at(entry.task.bytes());
            bytes = rest;
            let is_needed = is_needed(&entry.ticket);
            if is_needed.is_none() && entry.task.is_plain_get() {
                continue;
            }
            let part = &mut parts[usize::from(is_needed.unwrap_or(true))];
            part.entries.push(entry);
            part.bytes.extend_from_slice(own);
        }
        assert!(bytes.is_empty(), "{} bytes belong to no entry", bytes.len());
        let [rest, needed] = parts;
        *self = rest;
        needed
    }

    pub(crate) fn append(&mut self, later: &mut Self) {
        assert!(self.done == 0 && later.done == 0, "the replies are taken first");
        self.entries.append(&mut later.entries);
        self.bytes.append(&mut later.bytes);
    }
}

impl Task {
    /// Returns true for a get that changes no item.
    fn is_plain_get(&self) -> bool {
        let Self::Operation { action, .. } = self else { return false };
        matches!(action, Action::Get { touch: None, .. })
    }

    /// The bytes of key, value and flags.
    fn bytes(&self) -> usize {
        match *self {
            Self::Everywhere(_) => 0,
            Self::Operation { key_bytes, value_bytes, flags_bytes, .. } => {
                usize::from(key_bytes) + value_bytes as usize + usize::from(flags_bytes)
            }
        }
    }

    /// Returns the work, and how many of `bytes` belong to the work.
    fn work<'a>(&self, bytes: &'a [u8]) -> (Work<'a>, usize) {
        match *self {
            Self::Everywhere(everywhere) => (Work::Everywhere(everywhere), 0),
            Self::Operation { action, hash, key_bytes, value_bytes, flags_bytes } => {
                let (key, rest) = bytes.split_at(key_bytes.into());
                let (value, rest) = rest.split_at(value_bytes as usize);
                let flags = &rest[..flags_bytes.into()];
                let operation = Operation { action, key, value, flags };
                (Work::Operation(Key::hashed(key, hash), operation), self.bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hasher;

    fn ticket(sequence: u64) -> Ticket {
        Ticket { connection: 1, generation: 2, sequence }
    }

    /// A batch with gets of `count` keys of two bytes.
    fn gets(count: u8) -> Batch {
        let hasher = Hasher::new(1);
        let mut batch = Batch::new(0, 1);
        for number in 0..count {
            let bytes = [b'k', number];
            let action = Action::Get { with_cas: false, touch: None };
            let operation = Operation { action, key: &bytes, value: b"", flags: b"" };
            batch.push(ticket(number.into()), hasher.key(&bytes).unwrap(), &operation);
        }
        batch
    }

    fn answer(work: Work<'_>, out: &mut Vec<u8>) {
        if let Work::Operation(key, operation) = work {
            assert_eq!(key, Hasher::new(1).key(operation.key).unwrap());
            out.extend_from_slice(operation.key);
        }
    }

    #[test]
    fn run__stops_at_large_replies_and_goes_on_later() {
        let mut batch = gets(5);
        batch.run(3, answer);
        let mut seen = Vec::new();
        batch.drain(|ticket, reply| seen.push((ticket.sequence, reply.to_vec())));
        assert_eq!(seen, [(0, b"k\0".to_vec()), (1, b"k\x01".to_vec())]);
        batch.append(&mut gets(1));
        batch.run(usize::MAX, answer);
        seen.clear();
        batch.drain(|ticket, reply| seen.push((ticket.sequence, reply.to_vec())));
        assert_eq!(seen.iter().map(|seen| seen.0).collect::<Vec<_>>(), [2, 3, 4, 0]);
        assert!(batch.is_empty());
    }

    #[test]
    fn split__keeps_the_order_of_both_parts() {
        let mut batch = gets(6);
        let mut needed = batch.split(|ticket| Some(ticket.sequence % 2 == 1));
        for (part, sequences) in [(&mut batch, [0, 2, 4]), (&mut needed, [1, 3, 5])] {
            part.run(usize::MAX, answer);
            let mut seen = Vec::new();
            part.drain(|ticket, reply| seen.push((ticket.sequence, reply[1])));
            assert_eq!(seen, sequences.map(|number| (number, number as u8)));
        }
    }

    #[test]
    fn split__drops_gets_without_a_client() {
        let mut batch = gets(6);
        batch.push_everywhere(ticket(6), Everywhere::Stats);
        let mut needed = batch.split(|ticket| (ticket.sequence < 2).then_some(false));
        assert_eq!((batch.entries.len(), batch.bytes.len()), (2, 4));
        needed.run(usize::MAX, answer);
        needed.drain(|ticket, _| assert_eq!(ticket.sequence, 6));
        assert!(needed.is_empty() && needed.bytes.is_empty());
    }

    #[test]
    fn is_full__bounds_entries_and_bytes() {
        assert!(!gets(255).is_full());
        let mut batch = gets(1);
        batch.bytes.resize(BATCH_BYTES_MAX, 0);
        assert!(batch.is_full());
    }
}
