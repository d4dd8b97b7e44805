//! UDP, by the kernel or by a device, large messages: the baseline bandwidth.
//!
//! One side sends datagrams of the largest size, to the kernel in runs that segmentation offload cuts. The other receives them,
//! joined by the kernel, into the message's memory, and acknowledges every few runs. At most 512 KiB are in flight.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use petrel_command::failure::Failure;
use petrel_transport::clock;

use super::super::ends::{ClientEnd, ServerEnd};
use super::super::window::Window;
use super::WindowCounts;
use super::socket::{self, CALL_BYTES_MAX, Joins, LossTimeout, Medium, SEGMENTS_MAX};

/// The most bytes in flight.
const WINDOW_BYTES: u64 = 512 << 10;

/// Bytes per acknowledgement, more than two of the kernel's runs, unless the medium runs empty first.
const ACK_BYTES: usize = 128 << 10;

/// Size of an acknowledgement: three words.
const ACK_MESSAGE_BYTES: usize = 24;

/// Size of the largest run that one call receives.
const RUN_BYTES_MAX: usize = 64 << 10;

/// The most datagrams that may be lost at once; a number further ahead is wrong.
const GAP_MAX: u64 = 1 << 20;

/// The sending end.
pub(in super::super) struct Sender<M = UdpSocket> {
    medium: M,
    datagram_bytes: usize,
    /// Datagrams per system call.
    run: u64,
    message: Box<[u8]>,
    at: usize,
    sent: u64,
    acknowledged: Ack,
    base: Ack,
    base_sent: u64,
    started_ns: u64,
    end_ns: u64,
    is_stopping: bool,
    loss_timeout: LossTimeout,
    lost: u64,
}

/// The receiving end.
pub(in super::super) struct Receiver<M = UdpSocket> {
    medium: M,
    datagram_bytes: usize,
    message: Box<[u8]>,
    at: usize,
    received: Ack,
    unacknowledged: usize,
}

/// The receiver's counters so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ack {
    /// Number of the next datagram.
    next: u64,
    datagrams: u64,
    mismatched: u64,
}

impl Ack {
    fn encode(self) -> [u8; ACK_MESSAGE_BYTES] {
        let mut bytes = [0; ACK_MESSAGE_BYTES];
        let words = [self.next, self.datagrams, self.mismatched];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8; ACK_MESSAGE_BYTES]) -> Self {
        let word = |index: usize| socket::stamp(&bytes[8 * index..]);
        Self { next: word(0), datagrams: word(1), mismatched: word(2) }
    }
}

fn message(size: usize) -> Box<[u8]> {
    vec![0x5a; size.max(RUN_BYTES_MAX)].into()
}

/// Returns the offset of a run of up to `bytes` bytes: behind the last run, or at the beginning.
fn run_offset(at: usize, bytes: usize, length: usize) -> usize {
    if at + bytes <= length { at } else { 0 }
}

impl<M: Medium> Sender<M> {
    /// Creates a sending end, for messages of `size` bytes in datagrams of `datagram_bytes`.
    pub(in super::super) fn new(
        socket: UdpSocket,
        receiver: SocketAddr,
        size: usize,
        datagram_bytes: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            medium: M::open(socket, receiver, datagram_bytes, Joins::Sent)?,
            datagram_bytes,
            run: (CALL_BYTES_MAX / datagram_bytes).min(SEGMENTS_MAX) as u64,
            message: message(size),
            at: 0,
            sent: 0,
            acknowledged: Ack::default(),
            base: Ack::default(),
            base_sent: 0,
            started_ns: 0,
            end_ns: 0,
            is_stopping: true,
            loss_timeout: LossTimeout::default(),
            lost: 0,
        })
    }

    #[inline]
    fn send(&mut self) {
        let bytes = self.run as usize * self.datagram_bytes;
        self.at = run_offset(self.at, bytes, self.message.len());
        let run = &mut self.message[self.at..self.at + bytes];
        for (datagram, number) in run.chunks_exact_mut(self.datagram_bytes).zip(self.sent..) {
            datagram[..8].copy_from_slice(&number.to_le_bytes());
        }
        // Without room, the next poll tries again.
        if self.medium.send(run) {
            self.sent += self.run;
            self.at += bytes;
        }
    }

    /// Receives an acknowledgement. After a silence the datagrams in flight count as lost.
    #[inline]
    fn receive(&mut self) {
        let mut bytes = [0; ACK_MESSAGE_BYTES];
        match self.medium.receive(&mut bytes) {
            Some(ACK_MESSAGE_BYTES) => {
                let ack = Ack::parse(&bytes);
                // After a silence, the acknowledgement may be older than the abandoned datagrams.
                if ack.next >= self.acknowledged.next {
                    self.acknowledged = ack;
                }
                self.loss_timeout = LossTimeout::default();
                self.is_stopping |= clock::now_ns() >= self.end_ns;
            }
            _ if self.acknowledged.next < self.sent && self.loss_timeout.is_over() => {
                self.lost += self.sent - self.acknowledged.next;
                self.acknowledged.next = self.sent;
                self.is_stopping |= clock::now_ns() >= self.end_ns;
                self.loss_timeout = LossTimeout::default();
            }
            _ => {}
        }
    }
}

impl<M: Medium> ClientEnd for Sender<M> {
    fn begin(&mut self, end_ns: u64) {
        (self.end_ns, self.is_stopping, self.lost) = (end_ns, false, 0);
        (self.base, self.base_sent) = (self.acknowledged, self.sent);
        self.loss_timeout = LossTimeout::default();
        self.started_ns = clock::now_ns();
    }

    #[inline]
    fn poll_once(&mut self) {
        let on_the_way =
            (self.sent - self.acknowledged.next + self.run) * self.datagram_bytes as u64;
        if self.is_stopping || on_the_way > WINDOW_BYTES { self.receive() } else { self.send() }
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.is_stopping && self.acknowledged.next >= self.sent
    }

    fn give_up(&mut self, _: Duration) {
        (self.is_stopping, self.acknowledged.next) = (true, self.sent);
    }

    fn finish(&mut self) -> Window {
        let datagrams = self.acknowledged.datagrams - self.base.datagrams;
        let window = WindowCounts {
            calls: self.sent - self.base_sent,
            answered: datagrams,
            mismatched: self.acknowledged.mismatched - self.base.mismatched,
            lost: self.lost,
            bytes: datagrams * self.datagram_bytes as u64,
        };
        window.finish(self.started_ns, None)
    }
}

impl<M: Medium> Receiver<M> {
    /// Creates a receiving end, for messages of `size` bytes in datagrams of `datagram_bytes`.
    pub(in super::super) fn new(
        socket: UdpSocket,
        sender: SocketAddr,
        size: usize,
        datagram_bytes: usize,
    ) -> Result<Self, Failure> {
        let medium = M::open(socket, sender, ACK_MESSAGE_BYTES, Joins::Received)?;
        let (received, message) = (Ack::default(), message(size));
        Ok(Self { medium, datagram_bytes, message, at: 0, received, unacknowledged: 0 })
    }

    #[inline]
    fn check(&mut self, bytes: usize) {
        for datagram in self.message[self.at..self.at + bytes].chunks(self.datagram_bytes) {
            let number = socket::stamp(datagram);
            self.received.datagrams += 1;
            let is_right = datagram.len() == self.datagram_bytes
                && (self.received.next..self.received.next + GAP_MAX).contains(&number);
            if is_right {
                self.received.next = number + 1;
            } else {
                self.received.mismatched += 1;
            }
        }
    }

    #[inline]
    fn acknowledge(&mut self) {
        // The next acknowledgement makes up for a lost one.
        let _ = self.medium.send(&self.received.encode());
        self.unacknowledged = 0;
    }
}

impl<M: Medium> ServerEnd for Receiver<M> {
    #[inline]
    fn poll_once(&mut self) {
        self.at = run_offset(self.at, RUN_BYTES_MAX, self.message.len());
        match self.medium.receive(&mut self.message[self.at..self.at + RUN_BYTES_MAX]) {
            Some(bytes) => {
                self.check(bytes);
                self.at += bytes;
                self.unacknowledged += bytes;
                if self.unacknowledged >= ACK_BYTES {
                    self.acknowledge();
                }
            }
            None if self.unacknowledged > 0 => self.acknowledge(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(size: usize, datagram_bytes: usize) -> (Sender, Receiver) {
        let [sender, receiver] = [(); 2].map(|()| socket::bind([127, 0, 0, 1].into()).unwrap());
        let [from, to] = [&sender, &receiver].map(|socket| socket.local_addr().unwrap());
        let sender = Sender::new(sender, to, size, datagram_bytes).unwrap();
        (sender, Receiver::new(receiver, from, size, datagram_bytes).unwrap())
    }

    #[test]
    fn ends__count_what_arrives() {
        for (size, datagram_bytes) in [(8 << 20, 8_972), (1, 1_472)] {
            let (mut sender, mut receiver) = ends(size, datagram_bytes);
            for _ in 0..2 {
                sender.begin(clock::now_ns() + 2_000_000);
                while !sender.is_over() {
                    sender.poll_once();
                    receiver.poll_once();
                }
                let window = sender.finish();
                assert!(window.checked > 0 && window.mismatched == 0);
                assert!(window.checked + window.lost >= window.calls);
                assert_eq!(window.bytes, window.checked * datagram_bytes as u64);
            }
        }
    }

    #[test]
    fn check__detects_a_wrong_datagram() {
        let (_sender, mut receiver) = ends(1, 1_472);
        let mut check = |number: u64, bytes: usize| {
            receiver.message[..8].copy_from_slice(&number.to_le_bytes());
            receiver.check(bytes);
            (receiver.received.next, receiver.received.mismatched)
        };
        assert_eq!(check(0, 1_472), (1, 0));
        assert_eq!(check(3, 1_472), (4, 0), "two are missing");
        assert_eq!(check(2, 1_472), (4, 1));
        assert_eq!(check(4, 1_000), (4, 2));
    }
}
