//! UDP, by the kernel or by a device, small messages: the baseline rate, and the baseline round trip of a single datagram.
//!
//! Datagrams of equal size are sent and received in runs. A system call sends a run, or receives a run,
//! by segmentation and receive offload: the optimum of the medium. A run of a single datagram without
//! offload models a program that sends a datagram per message.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use petrel_command::failure::Failure;
use petrel_command::output::latency::Latencies;
use petrel_transport::clock;

use super::super::ends::{ClientEnd, ServerEnd};
use super::super::window::Window;
use super::socket::{self, CALL_BYTES_MAX, Joins, LossTimeout, Medium, SEGMENTS_MAX};
use super::{WindowCounts, message_bytes};

/// Runs in flight together: one per direction.
const RUNS: u64 = 2;

/// Whether datagrams are grouped into runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Grouping {
    /// A run holds half of the datagrams in flight.
    Runs,
    /// A system call per datagram.
    Singles,
}

/// The calling end.
pub(in super::super) struct Caller<M = UdpSocket> {
    medium: M,
    datagram_bytes: usize,
    size: usize,
    in_flight: u64,
    /// Datagrams per system call.
    run: u64,
    requests: Box<[u8]>,
    responses: Box<[u8]>,
    sent: u64,
    /// Number of the next expected datagram.
    expected: u64,
    /// Datagrams that may be sent.
    to_send: u64,
    /// Calls below this number include abandoned ones, whose answers may still arrive, perhaps in a later window.
    late_below: u64,
    started_ns: u64,
    end_ns: u64,
    is_stopping: bool,
    loss_timeout: LossTimeout,
    window: WindowCounts,
    /// Of a single datagram in flight.
    latencies: Option<Latencies>,
    /// When the datagram in flight could leave.
    called_ns: u64,
}

/// The answering end.
pub(in super::super) struct Echo<M = UdpSocket> {
    medium: M,
    buffer: Box<[u8]>,
}

/// Opens the medium for datagrams in runs or single ones. Returns the size of the datagrams, too.
fn set_up<M: Medium>(
    socket: UdpSocket,
    peer: SocketAddr,
    size: usize,
    grouping: Grouping,
) -> Result<(M, usize), Failure> {
    // The stamp needs 8 bytes: without a stamp, datagrams are indistinguishable.
    let datagram_bytes = message_bytes(size).clamp(8, CALL_BYTES_MAX);
    let joins = match grouping {
        Grouping::Runs => Joins::Both,
        Grouping::Singles => Joins::Neither,
    };
    Ok((M::open(socket, peer, datagram_bytes, joins)?, datagram_bytes))
}

impl<M: Medium> Caller<M> {
    /// Creates a calling end that times each round trip of a single datagram, for messages of `size` bytes.
    pub(in super::super) fn timed(
        socket: UdpSocket,
        server: SocketAddr,
        size: usize,
    ) -> Result<Self, Failure> {
        let caller = Self::new(socket, server, size, 1, Grouping::Singles)?;
        Ok(Self { latencies: Some(Latencies::default()), ..caller })
    }

    /// Creates a calling end, for messages of `size` bytes.
    pub(in super::super) fn new(
        socket: UdpSocket,
        server: SocketAddr,
        size: usize,
        in_flight: u16,
        grouping: Grouping,
    ) -> Result<Self, Failure> {
        let (medium, datagram_bytes) = set_up(socket, server, size, grouping)?;
        let fitting = (CALL_BYTES_MAX / datagram_bytes).min(SEGMENTS_MAX) as u64;
        let run = match grouping {
            Grouping::Runs => u64::from(in_flight).div_ceil(RUNS).min(fitting),
            Grouping::Singles => 1,
        };
        Ok(Self {
            medium,
            datagram_bytes,
            size,
            in_flight: in_flight.into(),
            run,
            requests: vec![0x5a; run as usize * datagram_bytes].into(),
            responses: vec![0; 64 << 10].into(),
            sent: 0,
            expected: 0,
            to_send: 0,
            late_below: 0,
            started_ns: 0,
            end_ns: 0,
            is_stopping: true,
            loss_timeout: LossTimeout::default(),
            window: WindowCounts::default(),
            latencies: None,
            called_ns: 0,
        })
    }

    /// Sends the datagrams in `to_send`, up to one run, by a single call.
    #[inline]
    fn send(&mut self) {
        let count = self.to_send.min(self.run);
        let bytes = count as usize * self.datagram_bytes;
        let datagrams = self.requests[..bytes].chunks_exact_mut(self.datagram_bytes);
        for (datagram, number) in datagrams.zip(self.sent..) {
            datagram[..8].copy_from_slice(&number.to_le_bytes());
        }
        // If the kernel has no room, the datagrams stay in `to_send`.
        if self.medium.send(&self.requests[..bytes]) {
            self.sent += count;
            self.to_send -= count;
            self.window.calls += count;
        }
    }

    /// Checks received datagrams.
    #[inline]
    fn check(&mut self, bytes: usize, now_ns: u64) {
        for datagram in self.responses[..bytes].chunks(self.datagram_bytes) {
            let number = socket::stamp(datagram);
            if (self.expected..self.sent).contains(&number) {
                let lost = number - self.expected;
                self.window.lost += lost;
                if lost > 0 {
                    self.late_below = number;
                }
                self.window.answered += 1;
                self.window.mismatched += u64::from(datagram.len() != self.datagram_bytes);
                self.to_send += lost + 1;
                self.expected = number + 1;
                if let Some(latencies) = &mut self.latencies {
                    latencies.record(now_ns - self.called_ns);
                    self.called_ns = now_ns;
                }
            } else if number >= self.late_below {
                // The datagram is not the late answer to an abandoned call.
                self.window.answered += 1;
                self.window.mismatched += 1;
            }
        }
    }

    fn on_empty_poll(&mut self) {
        if self.expected < self.sent && self.loss_timeout.is_over() {
            let lost = self.sent - self.expected;
            self.window.lost += lost;
            self.to_send += lost;
            (self.expected, self.late_below) = (self.sent, self.sent);
            self.loss_timeout = LossTimeout::default();
            self.called_ns = clock::now_ns();
        }
    }
}

impl<M: Medium> ClientEnd for Caller<M> {
    fn begin(&mut self, end_ns: u64) {
        self.window = WindowCounts::default();
        (self.end_ns, self.is_stopping) = (end_ns, false);
        (self.to_send, self.expected) = (self.in_flight, self.sent);
        self.loss_timeout = LossTimeout::default();
        self.started_ns = clock::now_ns();
        self.called_ns = self.started_ns;
    }

    #[inline]
    fn poll_once(&mut self) {
        match self.medium.receive(&mut self.responses) {
            Some(bytes) => {
                let now_ns = clock::now_ns();
                self.check(bytes, now_ns);
                self.loss_timeout = LossTimeout::default();
                self.is_stopping |= now_ns >= self.end_ns;
            }
            None => self.on_empty_poll(),
        }
        while self.to_send > 0 && !self.is_stopping {
            let to_send = self.to_send;
            self.send();
            if self.to_send == to_send {
                break;
            }
        }
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.is_stopping && self.expected == self.sent
    }

    fn give_up(&mut self, _: Duration) {
        (self.is_stopping, self.expected, self.late_below) = (true, self.sent, self.sent);
    }

    fn finish(&mut self) -> Window {
        self.window.bytes = self.window.answered * self.size as u64;
        let latencies = self.latencies.as_mut().map(std::mem::take);
        self.window.finish(self.started_ns, latencies)
    }
}

impl<M: Medium> Echo<M> {
    /// Creates an answering end, for messages of `size` bytes.
    pub(in super::super) fn new(
        socket: UdpSocket,
        client: SocketAddr,
        size: usize,
        grouping: Grouping,
    ) -> Result<Self, Failure> {
        let (medium, _) = set_up(socket, client, size, grouping)?;
        Ok(Self { medium, buffer: vec![0; 64 << 10].into() })
    }
}

impl<M: Medium> ServerEnd for Echo<M> {
    #[inline]
    fn poll_once(&mut self) {
        if let Some(bytes) = self.medium.receive(&mut self.buffer) {
            // If the medium has no room, the datagram is lost, and the other end notices.
            let _ = self.medium.send(&self.buffer[..bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(size: usize, in_flight: u16, grouping: Grouping) -> (Caller, Echo) {
        let [client, server] = [(); 2].map(|()| socket::bind([127, 0, 0, 1].into()).unwrap());
        let [from, to] = [&client, &server].map(|socket| socket.local_addr().unwrap());
        let caller = Caller::new(client, to, size, in_flight, grouping).unwrap();
        (caller, Echo::new(server, from, size, grouping).unwrap())
    }

    #[test]
    fn ends__answer_all_that_was_sent() {
        for (in_flight, grouping, run) in
            [(60, Grouping::Runs, 30), (60, Grouping::Singles, 1), (1, Grouping::Runs, 1)]
        {
            let (mut caller, mut echo) = ends(32, in_flight, grouping);
            assert_eq!((caller.run, caller.datagram_bytes), (run, 48));
            for _ in 0..2 {
                caller.begin(clock::now_ns() + 2_000_000);
                while !caller.is_over() {
                    caller.poll_once();
                    echo.poll_once();
                }
                let window = caller.finish();
                assert!(window.calls >= u64::from(in_flight));
                assert_eq!((window.checked + window.lost, window.mismatched), (window.calls, 0));
            }
        }
    }

    #[test]
    fn timed__has_the_time_of_each_round_trip() {
        let (other, mut echo) = ends(32, 1, Grouping::Singles);
        let latencies = Some(Latencies::default());
        let mut caller = Caller { latencies, ..other };
        caller.begin(clock::now_ns() + 1_000_000);
        while !caller.is_over() {
            caller.poll_once();
            echo.poll_once();
        }
        let window = caller.finish();
        assert!(window.checked > 0 && window.mismatched == 0);
        assert_eq!(window.latencies.unwrap().summary().unwrap().count, window.checked);
    }

    #[test]
    fn poll_once__goes_on_without_lost_datagrams() {
        let (mut caller, mut echo) = ends(32, 1, Grouping::Singles);
        caller.begin(u64::MAX);
        while caller.window.lost == 0 {
            caller.poll_once();
        }
        // Both calls arrive now; the answer to the first is ignored.
        while caller.window.answered == 0 {
            echo.poll_once();
            caller.poll_once();
        }
        assert_eq!(caller.window.mismatched, 0);
    }

    #[test]
    fn check__distinguishes_lost_from_wrong() {
        let (mut caller, _echo) = ends(32, 4, Grouping::Singles);
        caller.begin(u64::MAX);
        caller.poll_once();
        let mut answer = |number: u64, bytes: usize| {
            caller.responses[..8].copy_from_slice(&number.to_le_bytes());
            caller.check(bytes, 0);
            (caller.window.answered, caller.window.mismatched, caller.window.lost)
        };
        assert_eq!(answer(0, 48), (1, 0, 0));
        assert_eq!(answer(0, 48), (2, 1, 0), "the same again");
        assert_eq!(answer(2, 48), (3, 1, 1), "one is missing");
        assert_eq!(answer(1, 48), (3, 1, 1), "there it is");
        assert_eq!(answer(3, 40), (4, 2, 1), "cut short");
        assert_eq!(answer(3, 48), (5, 3, 1), "the same again");
        caller.poll_once();
        caller.give_up(Duration::ZERO);
        caller.begin(u64::MAX);
        let mut answer = |number: u64| {
            caller.responses[..8].copy_from_slice(&number.to_le_bytes());
            caller.check(48, 0);
            (caller.window.answered, caller.window.mismatched)
        };
        assert_eq!(answer(4), (0, 0), "late, in the next window");
        assert_eq!(answer(1_000), (1, 1), "never sent");
    }
}
