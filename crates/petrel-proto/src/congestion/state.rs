//! The congestion control of one session: the fields for the common case, then the controller.

use super::evidence::saturating_u32_ns;
use super::{Ack, CongestionCounters, Controller, Dcqcn, Flow, Pace, Pacer, Rate, Swift, Timely};

/// The congestion control of one session.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Congestion {
    /// Shorter round trips bypass the controller; 0 disables the bypass. One comparison thus checks that the
    /// session is uncongested and remains uncongested.
    bypass_below_ns: u32,
    /// True if the session is paced, or its window is below its credits.
    is_limited: bool,
    /// True if the controller needs every acknowledgement, because the share of lost or marked packets
    /// counts.
    needs_every_ack: bool,
    pace: Pace,
    window_packets: u32,
    packet_bytes: u32,
    pacer: Pacer,
    floor: Floor,
    control: Control,
}

/// Round trips measured while the session's window is near its least value.
#[derive(Clone, Copy, Debug)]
struct Floor {
    round_trips: u8,
    shortest_ns: u32,
}

impl Floor {
    const NOT_THERE: Self = Self { round_trips: 0, shortest_ns: u32::MAX };
}

/// The window of a session of several paths, for the fast paths only: below the credits, so the session leaves the fast
/// paths.
const WINDOW_OF_PATHS: u32 = u32::MAX - 1;

/// Round trips after which the path is known to be long. An incast's queue is gone by then: all senders are
/// at their least window.
const FLOOR_ROUND_TRIPS: u8 = 8;

const _: () = assert!(size_of::<Congestion>() <= 136);

/// The controllers. An enum instead of a trait object: the match is inlined into the slow path.
#[derive(Clone, Debug)]
pub(super) enum Control {
    None,
    Timely(Timely),
    Dcqcn(Dcqcn),
    Swift(Swift),
    /// None: the session's paths bound its packets in flight.
    Paths,
}

impl Congestion {
    pub(super) fn new(control: Control, flow: Flow) -> Self {
        let mut new = Self {
            bypass_below_ns: 0,
            is_limited: false,
            needs_every_ack: false,
            pace: Pace::UNLIMITED,
            window_packets: u32::MAX,
            packet_bytes: flow.packet_bytes,
            pacer: Pacer::default(),
            floor: Floor::NOT_THERE,
            control,
        };
        new.refresh(0);
        new
    }

    /// Makes the state of a session that is not open yet.
    pub(crate) fn unlimited() -> Self {
        Self::new(Control::None, Flow { credits: 0, packet_bytes: 0, base_rtt_ns: 0 })
    }

    /// Makes the state of a session of several paths: its paths have windows.
    pub(crate) fn of_paths() -> Self {
        Self::new(Control::Paths, Flow { credits: 0, packet_bytes: 0, base_rtt_ns: 0 })
    }

    /// Returns true if an acknowledgement changes nothing. Pass 0 for an unmeasured round trip.
    #[inline(always)]
    pub fn is_bypassed(&self, rtt_ns: u64, ce: bool) -> bool {
        rtt_ns < u64::from(self.bypass_below_ns) && !ce
    }

    /// Notes acknowledged packets.
    #[inline(always)]
    pub fn on_ack(&mut self, ack: &Ack, counters: &mut CongestionCounters) {
        if self.is_bypassed(ack.rtt_ns.unwrap_or(0), ack.ce) {
            counters.acks_bypassed += 1;
        } else {
            self.update(ack, counters);
        }
    }

    /// Passes an acknowledgement to the controller.
    #[inline(never)]
    pub fn update(&mut self, ack: &Ack, counters: &mut CongestionCounters) {
        counters.updates += 1;
        counters.marks += u64::from(ack.ce);
        match &mut self.control {
            Control::None | Control::Paths => {}
            Control::Timely(timely) => timely.on_ack(ack),
            Control::Dcqcn(dcqcn) => dcqcn.on_ack(ack),
            Control::Swift(swift) => swift.on_ack(ack),
        }
        self.note_floor(ack);
        self.note_change(ack.now_ns, counters);
    }

    /// Notes lost packets.
    #[cold]
    pub fn on_loss(&mut self, now_ns: u64, packets: u32, counters: &mut CongestionCounters) {
        counters.losses += u64::from(packets);
        match &mut self.control {
            Control::None | Control::Paths => {}
            Control::Timely(timely) => timely.on_loss(now_ns, packets),
            Control::Dcqcn(dcqcn) => dcqcn.on_loss(now_ns, packets),
            Control::Swift(swift) => swift.on_loss(now_ns, packets),
        }
        self.note_change(now_ns, counters);
    }

    /// Notes a retransmission timeout.
    #[cold]
    pub fn on_timeout(&mut self, now_ns: u64, counters: &mut CongestionCounters) {
        counters.timeouts += 1;
        match &mut self.control {
            Control::None | Control::Paths => {}
            Control::Timely(timely) => timely.on_timeout(now_ns),
            Control::Dcqcn(dcqcn) => dcqcn.on_timeout(now_ns),
            Control::Swift(swift) => swift.on_timeout(now_ns),
        }
        self.note_change(now_ns, counters);
    }

    /// Notes a round trip of the path measured by other means. Only the first value may be longer than the known round
    /// trip.
    pub fn note_path(&mut self, now_ns: u64, rtt_ns: u32) {
        let Some(flow) = self.flow_mut() else { return };
        if flow.base_rtt_ns == 0 || flow.base_rtt_ns > rtt_ns {
            flow.base_rtt_ns = rtt_ns;
            self.refresh(now_ns);
        }
    }

    /// Notes the session's shortest round trip so far: the path's own cannot be longer.
    pub fn lower_base_rtt(&mut self, now_ns: u64, shortest_ns: u32) {
        let Some(flow) = self.flow_mut() else { return };
        if flow.base_rtt_ns > shortest_ns {
            flow.base_rtt_ns = shortest_ns;
            self.refresh(now_ns);
        }
    }

    fn flow_mut(&mut self) -> Option<&mut Flow> {
        match &mut self.control {
            Control::None | Control::Paths => None,
            Control::Timely(timely) => Some(timely.flow_mut()),
            Control::Dcqcn(dcqcn) => Some(dcqcn.flow_mut()),
            Control::Swift(swift) => Some(swift.flow_mut()),
        }
    }

    /// Learns that a path is longer than known: where round trips stay long at the least window, the cause is
    /// not a queue of the session's packets.
    fn note_floor(&mut self, ack: &Ack) {
        let is_at_floor = match &self.control {
            Control::Swift(swift) => swift.is_at_floor(),
            // Timely's rate comes to rest at about a packet per round trip, as in an incast, and DCQCN does
            // not use round trips.
            Control::Timely(_) | Control::Dcqcn(_) | Control::None | Control::Paths => false,
        };
        let Some(rtt_ns) = ack.rtt_ns.filter(|_| is_at_floor) else {
            if !is_at_floor {
                self.floor = Floor::NOT_THERE;
            }
            return;
        };
        assert!(self.floor.round_trips < FLOOR_ROUND_TRIPS, "a floor is learned once");
        self.floor.round_trips += 1;
        self.floor.shortest_ns = self.floor.shortest_ns.min(saturating_u32_ns(rtt_ns));
        if self.floor.round_trips == FLOOR_ROUND_TRIPS {
            let shortest_ns = std::mem::replace(&mut self.floor, Floor::NOT_THERE).shortest_ns;
            if let Some(flow) = self.flow_mut() {
                flow.base_rtt_ns = flow.base_rtt_ns.max(shortest_ns);
            }
        }
    }

    /// Returns true if packets must wait for [`Congestion::next_send_ns`] and be charged.
    #[inline(always)]
    pub fn is_paced(&self) -> bool {
        !self.pace.is_unlimited()
    }

    /// Returns the most packets in flight: `u32::MAX` where the credits alone bound them.
    #[inline(always)]
    pub fn window_packets(&self) -> u32 {
        self.window_packets
    }

    /// Returns the time at which the next packet of a paced session may leave, in nanoseconds.
    #[inline]
    pub fn next_send_ns(&self) -> u64 {
        self.pacer.next_ns()
    }

    /// Notes that a packet of `bytes` has left. Needed in paced sessions only.
    #[inline]
    pub fn charge(&mut self, now_ns: u64, bytes: u32) {
        self.pacer.charge(now_ns, bytes, self.pace);
    }

    /// Returns the rate of a paced session.
    pub fn rate(&self) -> Option<Rate> {
        match &self.control {
            Control::None | Control::Paths => None,
            Control::Timely(timely) => timely.pacing(),
            Control::Dcqcn(dcqcn) => dcqcn.pacing(),
            Control::Swift(swift) => swift.pacing(),
        }
    }

    /// Returns true if the session is limited: paced, or with a window below its credits.
    #[inline(always)]
    pub fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Returns true if the controller needs every acknowledgement, also of several at one time: the session
    /// is limited, or signs of congestion are being counted.
    #[inline(always)]
    pub fn needs_every_ack(&self) -> bool {
        self.needs_every_ack
    }

    fn note_change(&mut self, now_ns: u64, counters: &mut CongestionCounters) {
        let was_limited = self.is_limited();
        self.refresh(now_ns);
        match (was_limited, self.is_limited()) {
            (false, true) => counters.sessions_limited += 1,
            (true, false) => counters.sessions_released += 1,
            _ => {}
        }
    }

    /// Computes the fields for the common case.
    fn refresh(&mut self, now_ns: u64) {
        let (bypass_rtt_ns, window) = match &self.control {
            Control::None => (Some(u32::MAX), None),
            Control::Paths => (Some(u32::MAX), Some(WINDOW_OF_PATHS)),
            Control::Timely(timely) => (timely.bypass_rtt_ns(), timely.window()),
            Control::Dcqcn(dcqcn) => (dcqcn.bypass_rtt_ns(), dcqcn.window()),
            Control::Swift(swift) => (swift.bypass_rtt_ns(), swift.window()),
        };
        self.bypass_below_ns = bypass_rtt_ns.map_or(0, |limit_ns| limit_ns.saturating_add(1));
        assert_ne!(window, Some(0), "a window has room for a packet");
        self.window_packets = window.unwrap_or(u32::MAX);
        let pace = self.rate().map_or(Pace::UNLIMITED, Pace::of);
        if self.pace != pace {
            self.pace = pace;
            self.pacer.change(now_ns, self.packet_bytes, pace);
        }
        assert!(
            self.is_paced() == self.rate().is_some(),
            "a session is paced if and only if its controller has a rate"
        );
        self.is_limited = self.is_paced() || self.window_packets != u32::MAX;
        assert!(
            !self.is_limited || self.bypass_below_ns == 0 || matches!(self.control, Control::Paths),
            "the controller of a limited session hears each acknowledgement"
        );
        // Without its bypass Timely still hears one round trip per burst, as every controller does where it is calm.
        let hears_when_calm =
            matches!(&self.control, Control::Timely(timely) if timely.hears_when_calm());
        self.needs_every_ack = self.is_limited || self.bypass_below_ns == 0 && !hears_when_calm;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        CongestionConfig, CongestionControl, DcqcnConfig, SwiftConfig, TimelyConfig,
    };
    use super::*;

    const FLOW: Flow = Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 };

    fn start(config: CongestionConfig) -> (Congestion, CongestionCounters) {
        (CongestionControl::new(config).unwrap().start(FLOW), CongestionCounters::default())
    }

    fn all() -> [(Congestion, CongestionCounters); 3] {
        let line = Rate::gbit(25);
        [
            start(CongestionConfig::Timely(TimelyConfig::for_line(line))),
            start(CongestionConfig::Dcqcn(DcqcnConfig::for_line(line))),
            start(CongestionConfig::Swift(SwiftConfig::new())),
        ]
    }

    fn ack(now_ns: u64, rtt_ns: u64) -> Ack {
        Ack { now_ns, rtt_ns: Some(rtt_ns), packets: 1, bytes: 1408, ce: false }
    }

    #[test]
    fn start__is_uncongested() {
        for (session, _) in all().into_iter().chain([start(CongestionConfig::None)]) {
            assert!(session.is_bypassed(30_000, false));
            assert!(!session.is_paced() && !session.is_limited());
            assert_eq!((session.window_packets(), session.rate()), (u32::MAX, None));
        }
    }

    #[test]
    fn none__hears_nothing() {
        let (mut session, mut counters) = start(CongestionConfig::None);
        for at in 1..100 {
            session
                .on_ack(&Ack { ce: at % 2 == 0, ..ack(at * 10_000_000, 9_000_000) }, &mut counters);
            session.on_loss(at * 10_000_000, 1, &mut counters);
            session.on_timeout(at * 10_000_000, &mut counters);
        }
        assert!(!session.is_limited() && session.is_bypassed(9_000_000, false));
        assert_eq!((counters.acks_bypassed, counters.marks), (50, 49));
        assert_eq!(counters.sessions_limited, 0);
    }

    #[test]
    fn bypass__is_inclusive_of_the_low_threshold() {
        let [(mut timely, mut counters), ..] = all();
        timely.on_ack(&ack(1_000_000, 50_000), &mut counters);
        assert_eq!((counters.acks_bypassed, counters.updates), (1, 0));
        timely.on_ack(&ack(1_100_000, 50_001), &mut counters);
        assert_eq!((counters.acks_bypassed, counters.updates), (1, 1));
        assert!(!timely.is_bypassed(0, false), "a round is open, and all are heard");
        timely.on_ack(&ack(1_200_000, 10_000), &mut counters);
        assert!(timely.is_bypassed(50_000, false), "a short one has closed it");
    }

    /// A path of 200 µs, unknown at first: the session learns the length at its least window.
    #[test]
    fn long_path__is_learned_at_the_floor() {
        let [.., (mut swift, mut counters)] = all();
        let mut now_ns = 1_000_000;
        for round in 0..2_000 {
            now_ns += 200_000;
            swift.on_ack(&ack(now_ns, 200_000 + round % 4 * 1_000), &mut counters);
        }
        assert!(!swift.is_limited(), "{:?}", swift.rate());
        // The shortest round trip, plus the margin of the target.
        assert!(swift.is_bypassed(220_000, false) && !swift.is_bypassed(220_001, false));
        // The path is shorter in fact.
        swift.lower_base_rtt(now_ns, 12_000);
        assert!(!swift.is_bypassed(215_000, false));
    }

    #[test]
    fn path__is_told_once_and_shortened() {
        let [(mut timely, _), _, (mut swift, _)] = all();
        for (session, margin_ns) in [(&mut timely, 40_000), (&mut swift, 20_000)] {
            let is_bypassed = |session: &Congestion, path_ns: u64| {
                let [short, long] = [path_ns + margin_ns, path_ns + margin_ns + 1];
                session.is_bypassed(short, false) && !session.is_bypassed(long, false)
            };
            session.note_path(0, 100_000);
            assert!(is_bypassed(session, 100_000));
            session.note_path(0, 120_000);
            assert!(is_bypassed(session, 100_000), "a queue, then");
            session.note_path(0, 70_000);
            assert!(is_bypassed(session, 70_000));
            session.note_path(0, 1_000);
            assert!(is_bypassed(session, 10_000), "no shorter than the configuration says");
        }
    }

    #[test]
    fn chance_losses__slow_nobody() {
        for (mut session, mut counters) in all() {
            for packet in 0..100_000 {
                let now_ns = packet * 10_000;
                match packet % 50 {
                    49 => session.on_loss(now_ns, 1, &mut counters),
                    _ => session.on_ack(&ack(now_ns, 9_000), &mut counters),
                }
            }
            assert_eq!((counters.losses, counters.sessions_limited), (2_000, 0));
            assert!(!session.is_limited());
        }
    }

    #[test]
    fn many_losses__slow_everybody() {
        for (mut session, mut counters) in all() {
            session.on_loss(1_000_000, 5, &mut counters);
            assert!(!session.is_limited());
            session.on_loss(1_001_000, 5, &mut counters);
            assert!(session.is_limited());
            assert_eq!((counters.losses, counters.sessions_limited), (10, 1));
        }
    }

    #[test]
    fn two_timeouts__slow_everybody() {
        for (mut session, mut counters) in all() {
            session.on_timeout(1_000_000, &mut counters);
            assert!(!session.is_limited());
            session.on_ack(&ack(1_020_000, 20_000), &mut counters);
            session.on_timeout(3_000_000, &mut counters);
            assert!(session.is_limited());
            assert_eq!((counters.timeouts, counters.sessions_limited), (2, 1));
        }
    }
}
