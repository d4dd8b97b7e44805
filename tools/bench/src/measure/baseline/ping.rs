//! UDP, by the kernel or by a device, one datagram at a time: the baseline round trip. The other end is an [`Echo`](super::echo::Echo) of single datagrams.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use petrel_command::failure::Failure;
use petrel_command::output::latency::Latencies;
use petrel_transport::clock;

use super::super::ends::ClientEnd;
use super::super::window::Window;
use super::socket::{self, CALL_BYTES_MAX, Joins, LossTimeout, Medium};
use super::{WindowCounts, message_bytes};

/// The calling end.
pub(in super::super) struct Ping<M = UdpSocket> {
    medium: M,
    request: Vec<u8>,
    response: Box<[u8]>,
    number: u64,
    started_ns: u64,
    end_ns: u64,
    called_ns: u64,
    is_waiting: bool,
    loss_timeout: LossTimeout,
    window: WindowCounts,
    latencies: Latencies,
}

impl<M: Medium> Ping<M> {
    /// Creates a calling end, for messages of `size` bytes.
    pub(in super::super) fn new(
        socket: UdpSocket,
        server: SocketAddr,
        size: usize,
    ) -> Result<Self, Failure> {
        let bytes = message_bytes(size).clamp(8, CALL_BYTES_MAX);
        Ok(Self {
            medium: M::open(socket, server, bytes, Joins::Neither)?,
            request: vec![0x5a; bytes],
            response: vec![0; CALL_BYTES_MAX].into(),
            number: 0,
            started_ns: 0,
            end_ns: 0,
            called_ns: 0,
            is_waiting: false,
            loss_timeout: LossTimeout::default(),
            window: WindowCounts::default(),
            latencies: Latencies::default(),
        })
    }

    fn call(&mut self) {
        self.number += 1;
        self.window.calls += 1;
        self.request[..8].copy_from_slice(&self.number.to_le_bytes());
        // A request that could not be sent is not answered, and counts as lost.
        let _ = self.medium.send(&self.request);
    }

    fn on_empty_poll(&mut self) {
        if self.loss_timeout.is_over() {
            self.window.lost += 1;
            self.next_call(clock::now_ns());
        }
    }

    fn next_call(&mut self, now_ns: u64) {
        self.called_ns = now_ns;
        self.loss_timeout = LossTimeout::default();
        if now_ns < self.end_ns { self.call() } else { self.is_waiting = false }
    }
}

impl<M: Medium> ClientEnd for Ping<M> {
    fn begin(&mut self, end_ns: u64) {
        self.window = WindowCounts::default();
        self.latencies = Latencies::default();
        self.end_ns = end_ns;
        self.started_ns = clock::now_ns();
        (self.called_ns, self.is_waiting) = (self.started_ns, true);
        self.loss_timeout = LossTimeout::default();
        self.call();
    }

    #[inline]
    fn poll_once(&mut self) {
        let Some(bytes) = self.medium.receive(&mut self.response) else {
            return self.on_empty_poll();
        };
        if socket::stamp(&self.response[..bytes]) < self.number {
            // A late answer to an abandoned call.
            return;
        }
        self.window.answered += 1;
        self.window.mismatched += u64::from(self.response[..bytes] != self.request[..]);
        let now_ns = clock::now_ns();
        self.latencies.record(now_ns - self.called_ns);
        self.next_call(now_ns);
    }

    #[inline]
    fn is_over(&self) -> bool {
        !self.is_waiting
    }

    fn give_up(&mut self, _: Duration) {
        self.is_waiting = false;
    }

    fn finish(&mut self) -> Window {
        let latencies = std::mem::take(&mut self.latencies);
        self.window.finish(self.started_ns, Some(latencies))
    }
}

#[cfg(test)]
mod tests {
    use super::super::echo::{Echo, Grouping};
    use super::*;
    use crate::measure::ends::ServerEnd as _;

    fn ends(size: usize) -> (Ping, Echo) {
        let [client, server] = [(); 2].map(|()| socket::bind([127, 0, 0, 1].into()).unwrap());
        let [from, to] = [&client, &server].map(|socket| socket.local_addr().unwrap());
        let echo = Echo::new(server, from, size, Grouping::Singles).unwrap();
        (Ping::new(client, to, size).unwrap(), echo)
    }

    #[test]
    fn ping__times_each_round_trip() {
        let (mut ping, mut echo) = ends(32);
        assert_eq!(ping.request.len(), 48);
        ping.begin(clock::now_ns() + 1_000_000);
        while !ping.is_over() {
            ping.poll_once();
            echo.poll_once();
        }
        let window = ping.finish();
        assert!(window.checked > 0 && window.mismatched == 0);
        assert_eq!(window.checked + window.lost, window.calls);
        assert_eq!(window.latencies.unwrap().summary().unwrap().count, window.checked);
    }

    #[test]
    fn ping__goes_on_without_what_was_lost() {
        let (mut ping, mut echo) = ends(32);
        ping.begin(u64::MAX);
        while ping.window.lost == 0 {
            ping.poll_once();
        }
        // Both calls arrive now; the answer to the first is ignored.
        while ping.window.answered == 0 {
            echo.poll_once();
            ping.poll_once();
        }
        assert_eq!(ping.window.mismatched, 0);
    }
}
