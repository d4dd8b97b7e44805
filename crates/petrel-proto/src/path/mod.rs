//! Several paths for one session (`docs/wire-protocol.md` §14, `docs/paths.md`): which path a packet takes, how
//! many packets are in flight, and which of them are lost.
//!
//! | item | purpose |
//! | --- | --- |
//! | [`PathPolicy`] | the policies, as values of a configuration |
//! | [`Paths`] | the paths of one session: a policy, and the state of each path |
//! | [`PacketPaths`] | the path of each packet of one message, and the [`Evidence`] that it is lost |
//!
//! Client sessions of several paths use these objects (`session/client/paths.rs`). A session of one path needs no such
//! object: packets leave in the order of their numbers (§5.2), and the congestion controller alone bounds the packets in
//! flight.
//!
//! The owner passes in the time and the answers, and asks for the path of the next packet:
//!
//! ```
//! use petrel_proto::path::{Answer, PacketPaths, PathPolicy, Paths};
//!
//! let mut paths = Paths::new(PathPolicy::Coupled, 8, 128, 0x5EED);
//! let mut packets = PacketPaths::new(1);
//!
//! // Three packets leave, each on a path of its own.
//! for packet in 0..3 {
//!     let path = paths.choose(0).expect("the window has room");
//!     packets.note_new(0, packet, path);
//!     paths.note_new(path);
//! }
//! assert!(packets.path(0) != packets.path(1));
//!
//! // The second one is acknowledged after 12 µs. The first one is not lost by that: its path is another.
//! let copy = packets.note_acked(12_000, 1);
//! let answer = Answer { rtt_ns: copy.rtt_ns, is_marked: false, behind_packets: 0 };
//! paths.note_answer(12_000, copy.path, answer);
//! assert_eq!(packets.lost(12_000, 0, |path| paths.lead_ns(path)), None);
//!
//! // When a packet that was sent a while later is acknowledged on any path, it is.
//! let path = paths.choose(30_000).expect("the window has room");
//! packets.note_new(30_000, 3, path);
//! paths.note_new(path);
//! packets.note_acked(42_000, 3);
//! assert!(packets.lost(42_000, 0, |path| paths.lead_ns(path)).is_some());
//! ```

mod choices;
mod coupled;
mod mp_rdma;
mod order;
mod plb;
mod random;
mod recycled;
mod senders;
mod set;
mod window;

pub(crate) use choices::{Burst, PathTally};
pub(crate) use order::SentUs;
pub use order::{Evidence, LastCopy, PacketPaths};
pub(crate) use senders::{LastSpan, Senders};

use coupled::Coupled;
use mp_rdma::MpRdma;
use petrel_planted::planted;
use plb::Plb;
use random::Random;
use set::{PACKET, PathSet};
use window::SharedWindow;

use crate::limits::{PATHS_MAX, WINDOW_PACKETS};

/// A path of a session: the index of a source port, below 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(u8);

impl PathId {
    /// The path from the port of the offer (§14.1).
    pub const FIRST: Self = Self(0);

    /// Returns the path with this index, or `None` if no session has as many.
    pub const fn new(index: usize) -> Option<Self> {
        if index < PATHS_MAX { Some(Self(index as u8)) } else { None }
    }

    /// Returns the index of the source port.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    const fn bit(self) -> u32 {
        1 << self.0
    }

    /// Returns the path that is `steps` further, of `count` paths in a circle.
    const fn ahead(self, steps: u32, count: u32) -> Self {
        Self(((self.0 as u32 + steps) % count) as u8)
    }
}

/// How a session chooses the path of each packet (`docs/paths.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// One path, for ever.
    #[default]
    Single,
    /// One path at a time, and another one after a timeout, a probe, or three marked rounds.
    Plb,
    /// A window for each path, coupled to a sum.
    Coupled,
    /// MP-RDMA's scheme, which US patent 11,934,340 describes: chosen by name only, never by a default.
    MpRdma(Disorder),
}

/// MP-RDMA's limits to the disorder of packets (§3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disorder {
    late_packets: u16,
    window_packets: u16,
}

impl Disorder {
    /// The paper's limits: 32 and 64 packets (§5.1), for the memory of a network card.
    pub const PAPER: Self = Self { late_packets: 32, window_packets: 64 };

    /// Petrel's limits: the whole window of a message, and half of it.
    pub const WINDOW: Self =
        Self { late_packets: LATE_PACKETS as u16, window_packets: WINDOW_PACKETS as u16 };

    /// Makes limits: an answer more than `late_packets` behind others is late (Δ), and no packet is sent
    /// `window_packets` or more beyond the lowest unacknowledged one of its message (L). `None` unless the window has 1 to
    /// 256 packets, and Δ is no more.
    pub const fn new(late_packets: u16, window_packets: u16) -> Option<Self> {
        let is_valid = late_packets <= window_packets
            && 0 < window_packets
            && window_packets as u32 <= WINDOW_PACKETS;
        if is_valid { Some(Self { late_packets, window_packets }) } else { None }
    }
}

impl PathPolicy {
    /// All policies.
    pub const ALL: [Self; 4] =
        [Self::Single, Self::Plb, Self::Coupled, Self::MpRdma(Disorder::WINDOW)];

    /// Returns the name in commands and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Plb => "plb",
            Self::Coupled => "coupled",
            Self::MpRdma(_) => "mp-rdma",
        }
    }
}

/// Packets of a session on one of its paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathCounts {
    /// Packets of requests that were sent, repetitions included.
    pub packets: u64,
    /// Packets that met congestion, as far as their acknowledgement shows the path.
    pub marks: u64,
    /// Copies given up: by evidence, a probe or a timeout.
    pub losses: u64,
}

impl std::ops::AddAssign for PathCounts {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.marks += other.marks;
        self.losses += other.losses;
    }
}

/// The acknowledgement of a packet that was sent once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The round trip in nanoseconds, if this packet's arrival caused the acknowledgement.
    pub rtt_ns: Option<u64>,
    /// True if the packet met congestion (§14.3).
    pub is_marked: bool,
    /// How far the packet is behind the highest acknowledged one of its message, in packets.
    pub behind_packets: u32,
}

/// The meaning of an event for the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feedback {
    Good,
    Marked,
    /// The packet came long after later packets: its path is slow.
    Late,
    Lost,
    TimedOut,
}

/// An answer this far behind others is late, as by MP-RDMA's Δ (§3.3). Half of the window: the other half of a message
/// still flows while a slow path delivers. With a quarter, four paths of 20, 10, 5 and 5 Gbit/s lost 4 %.
const LATE_PACKETS: u32 = WINDOW_PACKETS / 2;

/// The answer to a look at a closed path is late from half of [`LATE_PACKETS`] on, because an idle path is at its
/// fastest. With equal limits, a path at 1/40 of the usual rate opened now and then, and cost 0.1 %.
const LATE_LOOK_PACKETS: u32 = LATE_PACKETS / 2;

/// A copy is overdue when a copy has arrived that was sent later by the sum of these times: half of a round trip of the path or
/// twice its deviation; the difference between its round trip and the shortest one; a margin. The first queues of a
/// session grow faster than an estimate follows, and the deviation begins as a whole round trip. The margin grows with
/// each suspicion that was wrong, up to four of the shortest round trips, and falls by 1/1 024 per answer.
const MARGIN_STEP_NS: u64 = 1_000;
const MARGIN_ROUND_TRIPS_MAX: u64 = 4;
const MARGIN_DECAY_LOG2: u32 = 10;

/// The first window of a session, in packets.
const FIRST_PACKETS: u32 = 32;

/// The state of a policy. An enum instead of a trait object: sessions hold it inline.
#[derive(Debug)]
enum State {
    Single(SharedWindow),
    Plb(Plb, SharedWindow),
    Coupled(Coupled),
    MpRdma(MpRdma),
}

/// The paths of one session.
///
/// [`Paths::choose`] gives the path of the next new packet, [`Paths::choose_again`] the path of a repetition. The owner
/// notes each sent copy, and later exactly one of its ends: [`note_answer`](Paths::note_answer),
/// [`note_repeat_answer`](Paths::note_repeat_answer), [`note_lost`](Paths::note_lost), [`note_timeout`](Paths::note_timeout)
/// and [`note_unknown`](Paths::note_unknown).
///
/// All policies bound the packets in flight, in place of the session's congestion controller: `Coupled` by a window
/// for each path, the others by MP-RDMA's window.
#[derive(Debug)]
pub struct Paths {
    set: PathSet,
    random: Random,
    /// The path that was chosen and has not been used yet.
    next: Option<PathId>,
    /// The path of the packets of a burst that are alone in their messages, and the time of this burst modulo 2^32.
    burst_path: PathId,
    burst_ns: u32,
    margin_ns: u32,
    state: State,
}

/// A session with eight paths has at most 256 bytes for them.
const _: () = assert!(size_of::<Paths>() + 8 * 16 <= 256);

impl Paths {
    /// Makes `count` paths for a session, with at most `packets_most` packets in flight. Sessions with the same
    /// `seed` make the same random choices.
    pub fn new(policy: PathPolicy, count: usize, packets_most: u32, seed: u64) -> Self {
        assert!((1..=WINDOW_PACKETS).contains(&packets_most), "1 to 256 packets are in flight");
        let mut random = Random::new(seed);
        let shared = SharedWindow::new(FIRST_PACKETS, packets_most);
        let set = PathSet::new(count, FIRST_PACKETS.min(packets_most));
        let state = match policy {
            PathPolicy::Single => State::Single(shared),
            PathPolicy::Plb => State::Plb(Plb::new(set.random(&mut random, None)), shared),
            PathPolicy::Coupled => State::Coupled(Coupled::new(packets_most)),
            PathPolicy::MpRdma(disorder) => State::MpRdma(MpRdma::new(packets_most, disorder)),
        };
        let (burst_path, burst_ns) = (PathId::FIRST, u32::MAX);
        Self { set, random, next: None, burst_path, burst_ns, margin_ns: 0, state }
    }

    /// Returns the path for the next new packet, or `None` if the window is full. The path stays the same until
    /// [`note_new`](Paths::note_new): a transport that has no room for the packet is asked again later.
    pub fn choose(&mut self, now_ns: u64) -> Option<PathId> {
        if self.next.is_none() {
            self.next = self.choose_anew(now_ns);
        }
        self.next
    }

    /// Returns true if a path was chosen and has not been used yet.
    pub(crate) fn has_chosen(&self) -> bool {
        self.next.is_some()
    }

    /// Like [`Paths::choose`], for a packet that is alone in its message. Single-packet messages of a burst take one
    /// path while the path has room: short packets leave together by a single system call.
    pub fn choose_alone(&mut self, now_ns: u64) -> Option<PathId> {
        if let Some(path) = self.burst_choice(now_ns) {
            self.next = Some(path);
        }
        let path = self.choose(now_ns)?;
        (self.burst_path, self.burst_ns) = (path, now_ns as u32);
        Some(path)
    }

    /// Returns true if other sessions of the endpoint that send make the windows smaller: see [`Paths::share_link`].
    #[inline]
    pub(crate) fn heeds_others(&self) -> bool {
        matches!(self.state, State::Coupled(_))
    }

    /// Returns the choice of [`Paths::choose_alone`] for a further packet of the present burst, if the burst's path has room.
    /// The choice need not be used.
    #[inline]
    pub(crate) fn burst_choice(&self, now_ns: u64) -> Option<PathId> {
        let is_further = self.next.is_none() && self.burst_ns == now_ns as u32;
        (is_further && self.has_room_on_burst_path()).then_some(self.burst_path)
    }

    /// Notes that a packet was sent on the path of [`Paths::choose_alone`] or [`Paths::burst_choice`].
    #[inline]
    pub(crate) fn note_alone(&mut self, path: PathId) {
        let chosen = self.next.take();
        assert!(
            chosen.is_none_or(|next| next == path),
            "a new packet takes the path chosen for it"
        );
        self.set.note_sent(path);
    }

    #[inline]
    fn has_room_on_burst_path(&self) -> bool {
        let (set, path) = (&self.set, self.burst_path);
        let has_room = match &self.state {
            State::Single(window) | State::Plb(_, window) => set.in_flight() < window.packets(),
            State::Coupled(coupled) => set.room(path) >= PACKET as i32 && coupled.room(set) > 0,
            // An answer clocks a packet out on its own path.
            State::MpRdma(_) => false,
        };
        has_room && set.is_open(path)
    }

    fn choose_anew(&mut self, now_ns: u64) -> Option<PathId> {
        let Self { set, random, state, .. } = self;
        let in_flight = set.in_flight();
        let has_room = |window: &SharedWindow| in_flight < window.packets();
        match state {
            State::Single(window) => has_room(window).then_some(PathId::FIRST),
            State::Plb(plb, window) => has_room(window).then(|| plb.path()),
            State::Coupled(coupled) => coupled.choose(now_ns, set),
            State::MpRdma(mp_rdma) => mp_rdma.choose(now_ns, set, random),
        }
    }

    /// Returns how many new packets the window has room for. [`Paths::choose`] may still have to wait: see
    /// [`Paths::resume_ns`].
    pub fn room(&self) -> u32 {
        let in_flight = self.set.in_flight();
        match &self.state {
            State::Single(window) | State::Plb(_, window) => {
                window.packets().saturating_sub(in_flight)
            }
            State::Coupled(coupled) => coupled.room(&self.set),
            State::MpRdma(mp_rdma) => mp_rdma.room(&self.set),
        }
    }

    /// Sets whether other sessions of the endpoint send, too: `Coupled` then has half as many packets in flight at most, since
    /// they wait for the link of the host, which marks none.
    pub fn share_link(&mut self, is_shared: bool) {
        if let State::Coupled(coupled) = &mut self.state {
            coupled.share_link(is_shared);
        }
    }

    /// Returns the packets of a message from the lowest unacknowledged one on that may be sent.
    pub fn window_packets(&self) -> u32 {
        match &self.state {
            State::MpRdma(mp_rdma) => mp_rdma.disorder().window_packets.into(),
            _ => WINDOW_PACKETS,
        }
    }

    /// Returns how many packets are to be repeated early, if there is no new packet to send (MP-RDMA §3.5, after FUSO).
    pub fn early_repetitions(&self) -> u32 {
        match &self.state {
            State::MpRdma(mp_rdma) => mp_rdma.clocked(),
            _ => 0,
        }
    }

    /// Returns the time from which [`Paths::choose`] has a path for a window with room, and [`Paths::choose_again`] one.
    pub fn resume_ns(&self) -> u64 {
        match &self.state {
            State::MpRdma(mp_rdma) => mp_rdma.burst_ns(&self.set),
            _ => 0,
        }
    }

    /// Returns the path for a repetition of a packet whose last copy took `last`: another path, if the policy has a
    /// choice. Repetitions need no room in the window. `None` if the repetition waits for an answer: see
    /// [`Paths::resume_ns`].
    pub fn choose_again(&mut self, now_ns: u64, last: PathId) -> Option<PathId> {
        let Self { set, random, state, .. } = self;
        match state {
            State::Single(_) => Some(PathId::FIRST),
            State::Plb(plb, _) => Some(plb.path()),
            State::Coupled(coupled) => Some(coupled.choose_again(set, last, random)),
            State::MpRdma(mp_rdma) => mp_rdma.choose_again(now_ns, last, set, random),
        }
    }

    /// Returns a path other than `last`, open or closed, for a frame after a silence in which the usual choice brought
    /// no answer.
    pub fn choose_any(&mut self, last: PathId) -> PathId {
        let Self { set, random, state, .. } = self;
        match state {
            State::Single(_) => PathId::FIRST,
            State::Plb(plb, _) => plb.path(),
            _ => set.random_of_all(random, last),
        }
    }

    /// Notes that a frame which is no packet of a request brought no answer. Windows do not move: no packet is known
    /// to be lost.
    pub fn note_silent(&mut self, now_ns: u64, path: PathId) {
        let Self { set, random, state, .. } = self;
        if let State::Plb(plb, _) = state {
            plb.note(now_ns, path, Feedback::TimedOut, set, random);
        }
    }

    /// Notes that a new packet was sent on the chosen path.
    #[inline]
    pub fn note_new(&mut self, path: PathId) {
        assert!(self.next.take() == Some(path), "a new packet takes the path chosen for it");
        self.set.note_sent(path);
    }

    /// Notes that a packet was sent again.
    pub fn note_repeat(&mut self, path: PathId) {
        self.set.note_sent(path);
    }

    /// [`Paths::note_answer`] to a packet alone in its message, without a mark, that came at once.
    #[inline]
    pub(crate) fn note_prompt(&mut self, now_ns: u64, path: PathId, rtt_ns: u32) {
        self.margin_ns -= self.margin_ns >> MARGIN_DECAY_LOG2;
        self.set.note_prompt(path, rtt_ns);
        self.hear(now_ns, path, Feedback::Good);
    }

    /// Notes the answer to a packet that was sent once.
    pub fn note_answer(&mut self, now_ns: u64, path: PathId, answer: Answer) {
        if let Some(rtt_ns) = answer.rtt_ns {
            self.set.note_rtt(path, rtt_ns);
        }
        self.margin_ns -= self.margin_ns >> MARGIN_DECAY_LOG2;
        let is_late = answer.behind_packets > self.late_from(path);
        let what = match answer.is_marked {
            // MP-RDMA leaves a slow path, whose queue marks packets as well (§3.3).
            _ if is_late && matches!(self.state, State::MpRdma(_)) => Feedback::Late,
            true => Feedback::Marked,
            false if is_late => Feedback::Late,
            false => Feedback::Good,
        };
        self.note(now_ns, path, what);
    }

    fn late_from(&self, path: PathId) -> u32 {
        match &self.state {
            State::MpRdma(_) if planted("proto_late_is_never") => u32::MAX,
            State::MpRdma(mp_rdma) => mp_rdma.disorder().late_packets.into(),
            _ if self.set.is_open(path) => LATE_PACKETS,
            _ => LATE_LOOK_PACKETS,
        }
    }

    /// Notes the answer to a packet that was repeated. No answer says which copy has arrived, so only MP-RDMA's clock hears
    /// of this one: the path of the last copy counts as good (§3.3).
    pub fn note_repeat_answer(&mut self, now_ns: u64, path: PathId, is_marked: bool) {
        self.set.note_gone(path);
        if let State::MpRdma(mp_rdma) = &mut self.state {
            let what = if is_marked { Feedback::Marked } else { Feedback::Good };
            mp_rdma.note(now_ns, path, what, &self.set, &mut self.random);
        }
    }

    /// Notes the round trip of the only repetition of a packet.
    pub fn note_rtt(&mut self, path: PathId, rtt_ns: u64) {
        self.set.note_rtt(path, rtt_ns);
    }

    /// Notes that a copy is lost.
    pub fn note_lost(&mut self, now_ns: u64, path: PathId) {
        self.note(now_ns, path, Feedback::Lost);
    }

    /// Notes that a probe or a timeout gives a copy up (§7.2).
    pub fn note_timeout(&mut self, now_ns: u64, path: PathId) {
        self.note(now_ns, path, Feedback::TimedOut);
    }

    /// Notes that a copy is in flight no longer, and that nothing is known about its path: its request has ended, or its
    /// packet is repeated for another reason than a loss.
    pub fn note_unknown(&mut self, path: PathId) {
        self.set.note_gone(path);
    }

    /// Notes that a packet was repeated in vain: the acknowledgement of its first copy came after all (a CREDIT
    /// with the packet as `echo`, without flag R). Copies count as overdue later from now on.
    pub fn note_false_alarm(&mut self) {
        let most = MARGIN_ROUND_TRIPS_MAX * self.set.srtt_least_ns();
        let longer_ns = u64::from(self.margin_ns) * 3 / 2 + MARGIN_STEP_NS;
        self.margin_ns = u32::try_from(longer_ns.min(most)).unwrap_or(u32::MAX);
    }

    /// Returns a lead in nanoseconds: an unacknowledged copy on this path is overdue if a copy has arrived that was sent later
    /// by more than the lead. `None` before the first round trip.
    pub fn lead_ns(&self, path: PathId) -> Option<u64> {
        self.lead_over_ns(path, self.set.srtt_least_ns())
    }

    /// [`Paths::lead_ns`], if the shortest round trip is known.
    pub(crate) fn lead_over_ns(&self, path: PathId, least_ns: u64) -> Option<u64> {
        let overdue_ns = self.overdue_ns(path)?;
        assert!((1..overdue_ns).contains(&least_ns), "the shortest round trip is a time of a path");
        Some(overdue_ns - least_ns)
    }

    /// Returns the longest time in nanoseconds after which a packet is overdue, of all paths; 0 before the first round trip.
    pub fn longest_ns(&self) -> u64 {
        self.set.ids().filter_map(|path| self.overdue_ns(path)).max().unwrap_or(0)
    }

    fn overdue_ns(&self, path: PathId) -> Option<u64> {
        let (srtt_ns, deviation_ns) = self.set.round_trip_ns(path)?;
        let later_ns = (srtt_ns / 2).max(2 * deviation_ns);
        Some(srtt_ns + later_ns + MARGIN_STEP_NS + u64::from(self.margin_ns))
    }

    /// Returns the shortest smoothed round trip in nanoseconds; 0 before the first.
    pub fn rtt_least_ns(&self) -> u64 {
        self.set.srtt_least_ns()
    }

    /// Returns the bytes of the state of the single paths, which are outside of the object.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.set.heap_bytes()
    }

    /// Returns the copies that are in flight.
    pub fn in_flight(&self) -> u32 {
        self.set.in_flight()
    }

    /// Returns true if the path is open: new packets take the path, besides looks.
    pub fn is_open(&self, path: PathId) -> bool {
        self.set.is_open(path)
    }

    fn note(&mut self, now_ns: u64, path: PathId, what: Feedback) {
        self.set.note_gone(path);
        self.hear(now_ns, path, what);
    }

    /// Passes an event to the policy, of a copy that is in flight no longer.
    #[inline(always)]
    fn hear(&mut self, now_ns: u64, path: PathId, what: Feedback) {
        let Self { set, random, state, .. } = self;
        match state {
            State::Single(window) => window.note(what),
            State::Plb(plb, window) => {
                window.note(what);
                plb.note(now_ns, path, what, set, random);
            }
            State::Coupled(coupled) => coupled.note(now_ns, path, what, set),
            State::MpRdma(mp_rdma) => mp_rdma.note(now_ns, path, what, set, random),
        }
    }
}

#[cfg(test)]
mod tests;
