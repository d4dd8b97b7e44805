//! Both ends of a flow without the limits of a message's window, for the disorder that a policy causes by itself. No packet
//! is lost.

use std::collections::VecDeque;

use petrel_proto::limits::WINDOW_PACKETS;
use petrel_proto::path::{Answer, PathId, Paths};

use crate::sender::{Counts, Credit, Packet};

/// Flags of the packets from a first one on, which has none.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    cumulative: u32,
    flags: VecDeque<bool>,
}

impl Arrivals {
    pub(crate) fn cumulative(&self) -> u32 {
        self.cumulative
    }

    /// Notes an arrival. Returns false if it is not the first one.
    pub(crate) fn insert(&mut self, packet: u32) -> bool {
        let Some(ahead) = packet.checked_sub(self.cumulative) else { return false };
        let ahead = ahead as usize;
        self.flags.resize(self.flags.len().max(ahead + 1), false);
        let is_new = !std::mem::replace(&mut self.flags[ahead], true);
        while self.flags.front() == Some(&true) {
            self.flags.pop_front();
            self.cumulative += 1;
        }
        is_new
    }
}

/// A sender that knows the path and the time of every packet in flight.
pub(crate) struct EndlessSender {
    flow: usize,
    paths: Paths,
    acked: Arrivals,
    /// The copies from the first unacknowledged packet on.
    sent: VecDeque<(PathId, u64)>,
    acked_end: u32,
    next: u32,
    counts: Counts,
}

impl EndlessSender {
    pub(crate) fn new(flow: usize, paths: Paths) -> Self {
        let (acked, sent) = (Arrivals::default(), VecDeque::new());
        Self { flow, paths, acked, sent, acked_end: 0, next: 0, counts: Counts::default() }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn handle_credit(&mut self, now_ns: u64, credit: &Credit) {
        let Packet { number, is_marked, .. } = credit.echo;
        let before = self.acked.cumulative();
        let (path, sent_ns) = self.sent[(number - before) as usize];
        assert!(self.acked.insert(number), "no packet is sent twice");
        self.acked_end = self.acked_end.max(number + 1);
        // A policy with the largest limit hears of no late answer.
        let behind_packets = (self.acked_end - number).min(WINDOW_PACKETS);
        let answer = Answer { rtt_ns: Some(now_ns - sent_ns), is_marked, behind_packets };
        self.paths.note_answer(now_ns, path, answer);
        self.sent.drain(..(self.acked.cumulative() - before) as usize);
    }

    pub(crate) fn poll_transmit(&mut self, now_ns: u64) -> Option<Packet> {
        let path = self.paths.choose(now_ns)?;
        self.paths.note_new(path);
        self.sent.push_back((path, now_ns));
        self.counts.sent += 1;
        let number = self.next;
        self.next += 1;
        Some(Packet { flow: self.flow, number, path, is_repeat: false, is_marked: false })
    }
}
