//! The replies of a connection, in the order of its requests.

use std::collections::VecDeque;

use petrel::service::{Decode, Postcard};

use super::report::Snapshot;
use crate::limits::{READ_BYTES, REPLY_BYTES_EXPECTED};
use crate::memcached::Everywhere;

/// Replies that wait for others. While none waits, replies go to the output at once.
pub(super) struct Replies {
    queue: VecDeque<Reply>,
    /// The sequence number of the queue's front.
    first: u64,
    /// The bytes of the present replies.
    bytes: usize,
    /// The memory of these replies, and of the sums of gathered parts.
    reply_memory: usize,
    /// The number of replies that single threads owe, and the expected size of a reply: a moving mean of the sizes.
    owed: usize,
    expected_bytes: usize,
}

enum Reply {
    /// Another thread owes the reply.
    Owed,
    /// Other threads owe parts.
    Gathered { left: usize, sum: Box<Snapshot>, everywhere: Everywhere },
    /// The reply, and the replies of the thread itself behind it.
    Ready(Vec<u8>),
}

impl Default for Replies {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            first: 0,
            bytes: 0,
            reply_memory: 0,
            owed: 0,
            expected_bytes: REPLY_BYTES_EXPECTED,
        }
    }
}

impl Replies {
    /// The number of requests without a reply, and of replies behind them.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns true if the reply of this request is the next to be sent.
    pub(super) fn is_next(&self, sequence: u64) -> bool {
        !self.queue.is_empty() && sequence == self.first
    }

    /// The expected bytes of the replies that other threads owe.
    pub(super) fn expected_bytes(&self) -> usize {
        self.owed * self.expected_bytes
    }

    /// Bytes of replies that wait for others.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.reply_memory + self.queue.capacity() * size_of::<Reply>()
    }

    /// Lets `write` append a reply behind all earlier replies.
    #[inline]
    pub(super) fn write(&mut self, output: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        if self.queue.is_empty() {
            return write(output);
        }
        if !matches!(self.queue.back(), Some(Reply::Ready(_))) {
            self.queue.push_back(Reply::Ready(Vec::new()));
        }
        let Some(Reply::Ready(last)) = self.queue.back_mut() else { unreachable!("just added") };
        let (bytes, memory) = (last.len(), last.capacity());
        write(last);
        self.bytes += last.len() - bytes;
        self.reply_memory += last.capacity() - memory;
    }

    /// Makes a place for a reply that another thread owes; returns its sequence number.
    pub(super) fn owe(&mut self) -> u64 {
        self.queue.push_back(Reply::Owed);
        self.owed += 1;
        self.first + self.queue.len() as u64 - 1
    }

    /// Makes a place for a reply with parts of `left` other threads.
    pub(super) fn gather(&mut self, left: usize, sum: Snapshot, everywhere: Everywhere) -> u64 {
        self.reply_memory += size_of::<Snapshot>();
        self.queue.push_back(Reply::Gathered { left, sum: Box::new(sum), everywhere });
        self.first + self.queue.len() as u64 - 1
    }

    /// Takes a reply of another thread. `format` writes the reply that has been gathered from parts.
    pub(super) fn take(
        &mut self,
        sequence: u64,
        bytes: &[u8],
        output: &mut Vec<u8>,
        format: impl FnOnce(Everywhere, &Snapshot, &mut Vec<u8>),
    ) {
        let place = (sequence - self.first) as usize;
        let reply = &mut self.queue[place];
        if matches!(reply, Reply::Owed) {
            self.owed -= 1;
            self.expected_bytes = (3 * self.expected_bytes + bytes.len()) / 4;
        }
        let ready = match reply {
            Reply::Ready(_) => unreachable!("a reply comes once"),
            Reply::Owed if place == 0 => {
                // The usual case: no copy but the one to the output.
                output.extend_from_slice(bytes);
                Vec::new()
            }
            Reply::Owed => bytes.to_vec(),
            Reply::Gathered { left, sum, everywhere } => {
                assert!(*left > 0, "more parts than partitions");
                let part = Postcard::decode(bytes).expect("a part as it was written");
                sum.add(&part);
                *left -= 1;
                if *left > 0 {
                    return;
                }
                let mut text = Vec::new();
                format(*everywhere, sum, &mut text);
                self.reply_memory -= size_of::<Snapshot>();
                text
            }
        };
        self.bytes += ready.len();
        self.reply_memory += ready.capacity();
        *reply = Reply::Ready(ready);
        self.send_ready(output);
    }

    /// Moves the replies at the front that are there to the output.
    fn send_ready(&mut self, output: &mut Vec<u8>) {
        while let Some(Reply::Ready(bytes)) = self.queue.front() {
            if bytes.len() > READ_BYTES {
                // A growth by doubling would take the memory of several values.
                output.reserve_exact(bytes.len());
            }
            output.extend_from_slice(bytes);
            self.bytes -= bytes.len();
            self.reply_memory -= bytes.capacity();
            self.queue.pop_front();
            self.first += 1;
        }
        let (bytes, memory) = (self.bytes, self.reply_memory);
        assert!(!self.queue.is_empty() || (bytes, memory) == (0, 0), "{bytes} bytes are lost");
    }
}

#[cfg(test)]
mod tests {
    use petrel::service::Encode;

    use super::*;

    fn put(text: &'static [u8]) -> impl FnOnce(&mut Vec<u8>) {
        |out| out.extend_from_slice(text)
    }

    #[test]
    fn take__keeps_the_order_of_the_requests() {
        let (mut replies, mut output) = (Replies::default(), Vec::new());
        replies.write(&mut output, put(b"1"));
        let second = replies.owe();
        replies.write(&mut output, put(b"3"));
        replies.write(&mut output, put(b"4"));
        let fifth = replies.owe();
        replies.write(&mut output, put(b"6"));
        replies.take(fifth, b"5", &mut output, |_, _, _| ());
        assert_eq!((output.as_slice(), replies.len()), (&b"1"[..], 4));
        replies.take(second, b"2", &mut output, |_, _, _| ());
        assert_eq!((output.as_slice(), replies.len()), (&b"123456"[..], 0));
    }

    #[test]
    fn expected_bytes__follow_the_sizes_of_replies() {
        let (mut replies, mut output) = (Replies::default(), Vec::new());
        for (size, least, most) in [(10, 0, 100), (1 << 20, 1 << 19, 1 << 20), (10, 0, 100)] {
            for _ in 0..60 {
                let sequence = replies.owe();
                replies.take(sequence, &vec![0; size], &mut output, |_, _, _| ());
            }
            assert_eq!(replies.expected_bytes(), 0);
            replies.owe();
            let expected = replies.expected_bytes();
            assert!((least..=most).contains(&expected), "{expected} bytes");
            replies.take(replies.first, b"", &mut output, |_, _, _| ());
        }
    }

    #[test]
    fn take__gathers_parts() {
        let (mut replies, mut output) = (Replies::default(), Vec::new());
        let part = Snapshot { items: 5, ..Snapshot::default() };
        let sequence = replies.gather(2, part.clone(), Everywhere::Stats);
        assert!(replies.held_bytes() >= size_of::<Reply>() + size_of::<Snapshot>());
        let mut bytes = Vec::new();
        Postcard::append(&part, &mut bytes);
        let format = |_, sum: &Snapshot, out: &mut Vec<u8>| out.push(sum.items as u8);
        replies.take(sequence, &bytes, &mut output, format);
        assert!(output.is_empty());
        replies.take(sequence, &bytes, &mut output, format);
        assert_eq!((output, replies.is_empty()), (vec![15], true));
    }
}
