//! A model of one bottleneck: flows with credits and a congestion controller for each, a link with a queue in
//! front, and one round trip without queues for all. Packet by packet, in virtual time.
//!
//! All packets take the same time from their host to the queue. So packets arrive in the order of departure,
//! and the time of leaving the queue can be computed when a packet leaves its host: one event per packet is
//! enough, the acknowledgement.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use petrel_proto::congestion::{
    Ack, Congestion, CongestionConfig, CongestionControl, CongestionCounters, Flow, Rate,
};

/// Payload of a packet, and bytes on the wire: with headers, and Ethernet's 38.
pub(crate) const PACKET_BYTES: u32 = 1408;
pub(crate) const WIRE_BYTES: u64 = 1408 + 24 + 28 + 38;

/// RED parameters of a switch: the queue in bytes at which marking begins, the queue from which all packets
/// are marked, and the probability of a mark just below.
#[derive(Clone, Copy)]
pub(crate) struct Marking {
    pub(crate) from_bytes: u64,
    pub(crate) all_bytes: u64,
    pub(crate) most: f64,
}

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) link: Rate,
    /// Round trip of an empty network, without the packet's own time on the link.
    pub(crate) base_rtt_ns: u64,
    /// The round trip known to the sessions.
    pub(crate) known_rtt_ns: u32,
    /// The largest random addition to a round trip, for noisy hosts.
    pub(crate) noise_ns: u64,
    pub(crate) credits: u32,
    pub(crate) flows: usize,
    pub(crate) marking: Option<Marking>,
    /// Capacity of the queue in bytes; packets beyond are lost.
    pub(crate) buffer_bytes: u64,
    pub(crate) control: CongestionConfig,
}

enum Event {
    Acknowledged {
        flow: usize,
        sent_ns: u64,
        ce: bool,
    },
    /// Later packets show that a packet was lost.
    Lost {
        flow: usize,
    },
    MaySend {
        flow: usize,
    },
}

struct Sender {
    congestion: Congestion,
    counters: CongestionCounters,
    in_flight: u32,
    nic_free_ns: u64,
    waits: bool,
    is_active: bool,
    delivered: u64,
}

/// Measurements over a period.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The used share of the link.
    pub(crate) utilisation: f64,
    /// Jain's index of the packets delivered by the active flows.
    pub(crate) jain: f64,
    /// The share of lost packets.
    pub(crate) loss: f64,
    pub(crate) rtt_p50_ns: u64,
    pub(crate) rtt_p99_ns: u64,
    pub(crate) rtt_max_ns: u64,
}

pub(crate) struct Bottleneck {
    setup: Setup,
    senders: Vec<Sender>,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    kinds: Vec<Option<Event>>,
    free: Vec<usize>,
    order: u64,
    now_ns: u64,
    /// The time at which the last packet in the queue will have left.
    queue_empty_ns: u64,
    rtts: Vec<u64>,
    lost: u64,
    random: u64,
}

impl Bottleneck {
    pub(crate) fn new(setup: Setup) -> Self {
        let control = CongestionControl::new(setup.control.clone()).unwrap();
        let flow = Flow {
            credits: setup.credits,
            packet_bytes: PACKET_BYTES,
            base_rtt_ns: setup.known_rtt_ns,
        };
        let sender = || Sender {
            congestion: control.start(flow),
            counters: CongestionCounters::default(),
            in_flight: 0,
            nic_free_ns: 0,
            waits: false,
            is_active: true,
            delivered: 0,
        };
        let senders = (0..setup.flows).map(|_| sender()).collect();
        let mut new = Self {
            setup,
            senders,
            events: BinaryHeap::new(),
            kinds: Vec::new(),
            free: Vec::new(),
            order: 0,
            now_ns: 1_000_000,
            queue_empty_ns: 0,
            rtts: Vec::new(),
            lost: 0,
            random: 0x9E37_79B9_7F4A_7C15,
        };
        (0..new.senders.len()).for_each(|flow| new.push(new.now_ns, Event::MaySend { flow }));
        new
    }

    /// Returns the time of a packet on the link.
    fn packet_ns(&self) -> f64 {
        WIRE_BYTES as f64 * 1e9 / self.setup.link.get() as f64
    }

    /// Stops the flows from `first` on.
    pub(crate) fn stop_from(&mut self, first: usize) {
        self.senders[first..].iter_mut().for_each(|sender| sender.is_active = false);
    }

    /// Gives some flows the current round trip of a control connection as their path's.
    pub(crate) fn tell_path(&mut self, flows: std::ops::Range<usize>) {
        let queue_ns = self.queue_empty_ns.saturating_sub(self.now_ns);
        let rtt_ns = (self.setup.base_rtt_ns + queue_ns) as u32;
        for sender in &mut self.senders[flows] {
            sender.congestion.note_path(self.now_ns, rtt_ns);
        }
    }

    /// Resumes the flows below `end`.
    pub(crate) fn resume_below(&mut self, end: usize) {
        let stopped = (0..end).filter(|flow| !self.senders[*flow].is_active);
        for flow in stopped.collect::<Vec<_>>() {
            self.senders[flow].is_active = true;
            self.push(self.now_ns, Event::MaySend { flow });
        }
    }

    /// Halts the hosts: packets in flight are noticed only after `pause_ns`.
    pub(crate) fn halt_hosts(&mut self, pause_ns: u64) {
        let until_ns = self.now_ns + pause_ns;
        let events = std::mem::take(&mut self.events);
        let late = |Reverse((at, order, kind))| Reverse((u64::max(at, until_ns), order, kind));
        self.events = events.into_iter().map(late).collect();
    }

    pub(crate) fn counters(&self) -> CongestionCounters {
        let mut sum = CongestionCounters::default();
        for Sender { counters, .. } in &self.senders {
            sum += *counters;
        }
        sum
    }

    pub(crate) fn limited_flows(&self) -> usize {
        self.senders.iter().filter(|s| s.is_active && s.congestion.is_limited()).count()
    }

    /// Advances the time by `duration_ns`.
    pub(crate) fn run(&mut self, duration_ns: u64) -> Seen {
        let end_ns = self.now_ns + duration_ns;
        self.rtts.clear();
        self.lost = 0;
        self.senders.iter_mut().for_each(|sender| sender.delivered = 0);
        while let Some(&Reverse((at, _, kind))) = self.events.peek()
            && at <= end_ns
        {
            self.events.pop();
            self.now_ns = at;
            self.free.push(kind);
            match self.kinds[kind].take().unwrap() {
                Event::Acknowledged { flow, sent_ns, ce } => self.acknowledge(flow, sent_ns, ce),
                Event::Lost { flow } => self.lose(flow),
                Event::MaySend { flow } => {
                    self.senders[flow].waits = false;
                    self.send(flow);
                }
            }
        }
        self.now_ns = end_ns;
        self.seen(duration_ns)
    }

    fn acknowledge(&mut self, flow: usize, sent_ns: u64, ce: bool) {
        let now_ns = self.now_ns;
        self.rtts.push(now_ns - sent_ns);
        let Sender { congestion, counters, in_flight, delivered, .. } = &mut self.senders[flow];
        *in_flight -= 1;
        *delivered += 1;
        let rtt_ns = Some(now_ns - sent_ns);
        congestion.on_ack(&Ack { now_ns, rtt_ns, packets: 1, bytes: PACKET_BYTES, ce }, counters);
        self.send(flow);
    }

    fn lose(&mut self, flow: usize) {
        self.lost += 1;
        let Sender { congestion, counters, in_flight, .. } = &mut self.senders[flow];
        *in_flight -= 1;
        congestion.on_loss(self.now_ns, 1, counters);
        self.send(flow);
    }

    /// Sends the packets that credits, window and pace allow.
    fn send(&mut self, flow: usize) {
        let now_ns = self.now_ns;
        loop {
            let sender = &mut self.senders[flow];
            let window = self.setup.credits.min(sender.congestion.window_packets());
            if !sender.is_active || sender.waits || sender.in_flight >= window {
                return;
            }
            let paced_ns =
                if sender.congestion.is_paced() { sender.congestion.next_send_ns() } else { 0 };
            let next_ns = paced_ns.max(sender.nic_free_ns);
            if next_ns > now_ns {
                sender.waits = true;
                self.push(next_ns, Event::MaySend { flow });
                return;
            }
            if sender.congestion.is_paced() {
                sender.congestion.charge(now_ns, WIRE_BYTES as u32);
            }
            self.put_on_the_way(flow);
        }
    }

    fn put_on_the_way(&mut self, flow: usize) {
        let packet_ns = self.packet_ns();
        let arrival_ns = self.now_ns + self.setup.base_rtt_ns / 2;
        let start_ns = self.queue_empty_ns.max(arrival_ns);
        let queued_bytes = (start_ns - arrival_ns) * self.setup.link.get() / 1_000_000_000;
        let sender = &mut self.senders[flow];
        sender.in_flight += 1;
        sender.nic_free_ns = self.now_ns + packet_ns as u64;
        if queued_bytes + WIRE_BYTES > self.setup.buffer_bytes {
            self.push(start_ns + self.setup.base_rtt_ns / 2, Event::Lost { flow });
            return;
        }
        // The fraction of a nanosecond is drawn, so that the link's rate is exact on average.
        let left_ns = start_ns + (packet_ns + self.draw()) as u64;
        self.queue_empty_ns = left_ns;
        let noise_ns = (self.draw() * self.setup.noise_ns as f64) as u64;
        let back_ns = left_ns + self.setup.base_rtt_ns / 2 + noise_ns;
        let ce = self.is_marked(queued_bytes);
        let sent_ns = self.now_ns;
        self.push(back_ns, Event::Acknowledged { flow, sent_ns, ce });
    }

    fn is_marked(&mut self, queued_bytes: u64) -> bool {
        let Some(Marking { from_bytes, all_bytes, most }) = self.setup.marking else {
            return false;
        };
        if queued_bytes >= all_bytes {
            return true;
        }
        let above = queued_bytes.saturating_sub(from_bytes) as f64;
        self.draw() < most * above / (all_bytes - from_bytes) as f64
    }

    /// Returns a number from 0 up to 1 (xorshift64*).
    fn draw(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let bits = self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11;
        bits as f64 / (1u64 << 53) as f64
    }

    fn push(&mut self, at_ns: u64, event: Event) {
        let kind = self.free.pop().unwrap_or_else(|| {
            self.kinds.push(None);
            self.kinds.len() - 1
        });
        self.kinds[kind] = Some(event);
        self.order += 1;
        self.events.push(Reverse((at_ns, self.order, kind)));
    }

    fn seen(&mut self, duration_ns: u64) -> Seen {
        let shares: Vec<f64> =
            self.senders.iter().filter(|s| s.is_active).map(|s| s.delivered as f64).collect();
        let sum: f64 = shares.iter().sum();
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        self.rtts.sort_unstable();
        let part = |percent| self.rtts.get(self.rtts.len() * percent / 100).copied().unwrap_or(0);
        Seen {
            utilisation: self.rtts.len() as f64 * self.packet_ns() / duration_ns as f64,
            jain: sum * sum / (shares.len() as f64 * squares),
            loss: self.lost as f64 / (self.lost + self.rtts.len() as u64) as f64,
            rtt_p50_ns: part(50),
            rtt_p99_ns: part(99),
            rtt_max_ns: self.rtts.last().copied().unwrap_or(0),
        }
    }
}
