//! A sender of one endless message, with the objects of `petrel_proto::path`.

use std::collections::VecDeque;

use petrel_proto::bitmap::{Window, Words};
use petrel_proto::path::{Answer, PacketPaths, PathId, Paths};

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) flow: usize,
    pub(crate) number: u32,
    pub(crate) path: PathId,
    /// Flag R: an earlier copy was sent.
    pub(crate) is_repeat: bool,
    pub(crate) is_marked: bool,
}

/// The contents of a CREDIT, and the acknowledged packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    pub(crate) cumulative: u32,
    pub(crate) words: Words,
    pub(crate) echo: Packet,
}

/// Numbers of packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Copies sent.
    pub sent: u64,
    /// Packets sent again.
    pub repeated: u64,
    /// Probes (§7.2 of the protocol).
    pub probes: u64,
}

/// The sender's end of a flow.
pub(crate) struct Sender {
    flow: usize,
    paths: Paths,
    packets: PacketPaths,
    acked: Window,
    next: u32,
    /// Packets to send again, in order.
    lost: VecDeque<u32>,
    heard_ns: u64,
    probe_ns: u64,
    counts: Counts,
}

/// The time without an answer after which a probe is sent, and the longest after doublings.
const PROBE_NS: u64 = 120_000;
const PROBE_NS_MAX: u64 = 1_000_000;

impl Sender {
    pub(crate) fn new(flow: usize, paths: Paths, threshold: u16) -> Self {
        Self {
            flow,
            paths,
            packets: PacketPaths::new(threshold),
            acked: Window::new(),
            next: 0,
            lost: VecDeque::new(),
            heard_ns: 0,
            probe_ns: PROBE_NS,
            counts: Counts::default(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn handle_credit(&mut self, now_ns: u64, credit: &Credit) {
        let before = self.acked;
        if credit.echo.is_repeat {
            let least_ns = self.paths.rtt_least_ns();
            self.packets.note_repeat_arrived(now_ns, credit.echo.number, least_ns);
        }
        self.acked.merge(credit.cumulative, &credit.words);
        (self.heard_ns, self.probe_ns) = (now_ns, PROBE_NS);
        for packet in before.cumulative()..self.acked.end() {
            if self.acked.contains(packet) && !before.contains(packet) {
                self.note_acked(now_ns, packet, credit.echo);
            }
        }
        self.find_lost(now_ns);
    }

    fn note_acked(&mut self, now_ns: u64, packet: u32, echo: Packet) {
        let copy = self.packets.note_acked(now_ns, packet);
        if let Some(place) = self.lost.iter().position(|lost| *lost == packet) {
            // Its copy left the count of packets in flight when it was taken for lost.
            self.lost.remove(place);
            return;
        }
        let is_echo = packet == echo.number;
        if !copy.is_only() {
            if is_echo && !echo.is_repeat {
                self.paths.note_false_alarm();
            }
            return self.paths.note_repeat_answer(now_ns, copy.path, is_echo && echo.is_marked);
        }
        let answer = Answer {
            rtt_ns: copy.rtt_ns.filter(|_| is_echo),
            is_marked: is_echo && echo.is_marked,
            behind_packets: self.acked.end() - packet,
        };
        self.paths.note_answer(now_ns, copy.path, answer);
    }

    fn find_lost(&mut self, now_ns: u64) {
        for packet in self.acked.cumulative()..self.acked.end() {
            if self.acked.contains(packet) || self.lost.contains(&packet) {
                continue;
            }
            let lead_ns = |path| self.paths.lead_ns(path);
            if self.packets.lost(now_ns, packet, lead_ns).is_some() {
                self.lost.push_back(packet);
                self.paths.note_lost(now_ns, self.packets.path(packet));
            }
        }
    }

    /// Gives up the lowest unacknowledged packet if nothing was heard for long.
    pub(crate) fn handle_tick(&mut self, now_ns: u64) {
        if self.next == self.acked.cumulative() || now_ns < self.heard_ns + self.probe_ns {
            return;
        }
        self.heard_ns = now_ns;
        self.probe_ns = (2 * self.probe_ns).min(PROBE_NS_MAX);
        let mut sent = self.acked.cumulative()..self.next;
        let lowest =
            sent.find(|packet| !self.acked.contains(*packet) && !self.lost.contains(packet));
        if let Some(packet) = lowest {
            self.counts.probes += 1;
            self.lost.push_back(packet);
            self.paths.note_timeout(now_ns, self.packets.path(packet));
        }
    }

    /// Returns the next packet to send now.
    pub(crate) fn poll_transmit(&mut self, now_ns: u64) -> Option<Packet> {
        let (number, path, is_repeat) = if let Some(&number) = self.lost.front() {
            let path = self.paths.choose_again(now_ns, self.packets.path(number))?;
            self.lost.pop_front();
            self.packets.note_repeat(now_ns, number, path);
            self.paths.note_repeat(path);
            self.counts.repeated += 1;
            (number, path, true)
        } else {
            if self.next >= self.acked.cumulative() + self.paths.window_packets() {
                return None;
            }
            let (number, path) = (self.next, self.paths.choose(now_ns)?);
            self.packets.note_new(now_ns, number, path);
            self.paths.note_new(path);
            self.next += 1;
            (number, path, false)
        };
        self.counts.sent += 1;
        Some(Packet { flow: self.flow, number, path, is_repeat, is_marked: false })
    }
}
