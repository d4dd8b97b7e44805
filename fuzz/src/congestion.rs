//! The congestion controller of a session, with events that no network would cause.

use petrel_proto::congestion::{
    Ack, Congestion, CongestionConfig, CongestionControl, CongestionCounters, DcqcnConfig, Flow,
    Rate, SwiftConfig, TimelyConfig,
};

use crate::input::Input;

/// Most events of an input, to bound its running time.
const EVENTS_MAX: usize = 500;

/// The latest time: clocks of endpoints count from the start of the host, and five hundred years are
/// enough.
const NOW_NS_MAX: u64 = 1 << 63;

/// Starts a controller and feeds the input's events to the controller. Whatever the events, the rate
/// stays within the configured bounds, the window holds a packet, and no packet is held back longer than
/// its time at the lowest rate.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let Some((control, rates)) = control(&mut input) else { return };
    let flow = Flow {
        credits: [32, 1, 2, 4_096][input.below(4)],
        packet_bytes: [1_408, 1, 1_200, 65_000][input.below(4)],
        base_rtt_ns: [0, 10_000, 1, u32::MAX, input.number()][input.below(5)],
    };
    let mut world = World {
        session: control.start(flow),
        counters: CongestionCounters::default(),
        flow,
        rates,
        now_ns: [0, 1_000_000, 1 << 40, NOW_NS_MAX / 2][input.below(4)],
    };
    world.check();
    for _ in 0..EVENTS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.check();
    }
}

/// Returns the controller that the input chooses, with its lowest and highest rate. Returns `None` for
/// invalid parameters, whose error must have a text.
fn control(input: &mut Input<'_>) -> Option<(CongestionControl, (Rate, Rate))> {
    let line = match input.below(4) {
        0 => Rate::gbit(25),
        1 => Rate::MIN,
        2 => Rate::MAX,
        _ => Rate::bytes_per_second(input.word()),
    };
    let time = |input: &mut Input<'_>, usual_ns: u32| match input.below(4) {
        0 | 1 => usual_ns,
        2 => input.number(),
        _ => input.word() as u32,
    };
    let config = match input.below(4) {
        0 => {
            let mut timely = TimelyConfig::for_line(line);
            timely.low_ns = time(input, timely.low_ns);
            timely.high_ns = time(input, timely.high_ns);
            timely.min_rtt_ns = time(input, timely.min_rtt_ns);
            timely.base_rtt_ns = time(input, timely.base_rtt_ns);
            CongestionConfig::Timely(timely)
        }
        1 => {
            let mut dcqcn = DcqcnConfig::for_line(line);
            dcqcn.notify_ns = time(input, dcqcn.notify_ns);
            dcqcn.alpha_ns = time(input, dcqcn.alpha_ns);
            dcqcn.increase_ns = time(input, dcqcn.increase_ns);
            dcqcn.increase_bytes = time(input, dcqcn.increase_bytes);
            dcqcn.window_ns = time(input, dcqcn.window_ns);
            CongestionConfig::Dcqcn(dcqcn)
        }
        2 => {
            let mut swift = SwiftConfig::new();
            swift.target_ns = time(input, swift.target_ns);
            swift.base_rtt_ns = time(input, swift.base_rtt_ns);
            CongestionConfig::Swift(swift)
        }
        _ => CongestionConfig::None,
    };
    let rates = match &config {
        CongestionConfig::Timely(timely) => (timely.min_rate, timely.line_rate),
        CongestionConfig::Dcqcn(dcqcn) => (dcqcn.min_rate, dcqcn.line_rate),
        _ => (Rate::MIN, Rate::MAX),
    };
    match CongestionControl::new(config) {
        Ok(control) => Some((control, rates)),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

struct World {
    session: Congestion,
    counters: CongestionCounters,
    flow: Flow,
    rates: (Rate, Rate),
    now_ns: u64,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let Self { session, counters, now_ns, .. } = self;
        match input.below(8) {
            0..=2 => {
                let ack = ack(*now_ns, self.flow, input);
                // Acknowledgements arrive in rounds: the same event, many times.
                for _ in 0..=[0, 0, 7, 63][input.below(4)] {
                    session.on_ack(&ack, counters);
                }
            }
            3 => session.on_loss(*now_ns, [1, input.number()][input.below(2)], counters),
            4 => session.on_timeout(*now_ns, counters),
            5 => match input.below(2) {
                0 => session.note_path(*now_ns, input.number()),
                _ => session.lower_base_rtt(*now_ns, input.number()),
            },
            6 => self.send(1 + input.below(64)),
            _ => self.pass_time(input),
        }
    }

    fn pass_time(&mut self, input: &mut Input<'_>) {
        let ahead_ns = match input.below(4) {
            0 => u64::from(input.byte()),
            1 => u64::from(input.number()) * 1_000,
            2 => self.session.next_send_ns().saturating_sub(self.now_ns),
            _ => input.word() >> input.below(64),
        };
        // A packet that was sent may have been due after the latest time. Time does not go back.
        let latest_ns = self.now_ns.max(NOW_NS_MAX);
        self.now_ns = self.now_ns.saturating_add(ahead_ns).min(latest_ns);
    }

    /// Sends packets when they are due.
    fn send(&mut self, packets: usize) {
        for _ in 0..packets {
            if !self.session.is_paced() {
                return;
            }
            let next_ns = self.session.next_send_ns();
            self.now_ns = self.now_ns.max(next_ns);
            self.session.charge(self.now_ns, self.flow.packet_bytes);
            let held_ns = self.session.next_send_ns().saturating_sub(self.now_ns);
            assert!(held_ns <= self.packet_ns_max(), "a packet waits for {held_ns} ns");
        }
    }

    /// Returns the time of a packet at the lowest rate that can be paced.
    fn packet_ns_max(&self) -> u64 {
        u64::from(self.flow.packet_bytes) * 1_000_000_000 / Rate::MIN.get() + 1
    }

    fn check(&self) {
        let Self { session, counters, rates: (least, most), .. } = self;
        if let Some(rate) = session.rate() {
            let (least, most) = ((*least).max(Rate::MIN), (*most).min(Rate::MAX));
            assert!((least..=most).contains(&rate), "{rate:?} is outside of {least:?} to {most:?}");
        }
        assert!(session.window_packets() >= 1, "no packet may be sent");
        let is_limited = session.is_paced() || session.window_packets() != u32::MAX;
        assert_eq!(session.is_limited(), is_limited);
        assert!(!is_limited || session.needs_every_ack());
        assert!(counters.sessions_released <= counters.sessions_limited);
        assert_eq!(counters.sessions_limited - counters.sessions_released, u64::from(is_limited));
        assert!(!session.is_bypassed(u64::MAX, false) || !session.is_limited());
    }
}

fn ack(now_ns: u64, flow: Flow, input: &mut Input<'_>) -> Ack {
    let rtt_ns = match input.below(6) {
        0 => None,
        1 => Some(u64::from(input.byte())),
        2 => Some(u64::from(input.number()) * 1_000),
        3 => Some(10_000),
        4 => Some(now_ns),
        _ => Some(input.word()),
    };
    let packets = [1, 0, 32, input.number()][input.below(4)];
    let bytes = packets.saturating_mul(flow.packet_bytes);
    Ack { now_ns, rtt_ns, packets, bytes, ce: input.below(3) == 0 }
}
