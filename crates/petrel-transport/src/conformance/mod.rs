//! The suite that every transport passes: the promises of [`Transport`], checked from outside.
//!
//! A transport's tests implement [`Harness`], which creates connected transports and advances their
//! medium. The tests call [`run_all`] and, if the transport may move between threads,
//! [`run_threaded`]. The harness of a simulated medium advances the virtual clock.
//!
//! ```
//! use petrel_transport::conformance::{self, End, Harness, Medium, Star};
//! use petrel_transport::udp::{Udp, UdpConfig, UdpLink};
//! use petrel_transport::Transport;
//!
//! struct Loopback;
//!
//! fn end() -> Udp {
//!     Udp::bind(UdpConfig::default()).unwrap()
//! }
//!
//! fn link_to(peer: &Udp) -> UdpLink {
//!     UdpLink::to(peer.local_addr())
//! }
//!
//! impl Harness for Loopback {
//!     type T = Udp;
//!
//!     fn medium(&self) -> Medium {
//!         Medium::lossy_when_full().with_capacity(60_000)
//!     }
//!
//!     fn star(&mut self) -> Star<Udp> {
//!         let mut hub = end();
//!         let leaves = [end(), end()].map(|mut leaf| {
//!             let peer = leaf.add_peer(link_to(&hub)).unwrap();
//!             End { transport: leaf, peer }
//!         });
//!         let peers = [&leaves[0], &leaves[1]]
//!             .map(|leaf| hub.add_peer(link_to(&leaf.transport)).unwrap());
//!         Star { hub, peers, leaves }
//!     }
//! }
//!
//! conformance::delivers_every_size(&mut Loopback);
//! ```
//!
//! The checks panic with a reason. No durations are asserted, except that a step of more than some
//! ten seconds counts as hanging.

mod accounting;
mod delivery;
mod frames;
mod keys;
mod steadiness;
mod waiting;

pub use accounting::{
    accounts_for_every_frame_when_full, counts_answers_on_the_way_back, counts_frames_of_no_peer,
    counts_oversize_frames, takes_blocked_frames_later,
};
pub use delivery::{
    delivers_bursts_of_mixed_sizes, delivers_every_size, delivers_pushed_bursts_of_any_length,
    keeps_peers_apart, receives_nothing_when_nothing_was_sent, respects_the_budget,
    survives_removal_in_flight, takes_the_bytes_before_it_returns,
};
pub use keys::{TestKey, sealed_link};
pub use steadiness::{
    frames_stay_while_their_handler_looks, sending_goes_on_beside_a_peer_that_does_nothing,
};
pub use waiting::{
    wait_ends_when_a_frame_arrives_meanwhile, wait_ends_when_a_frame_has_arrived,
    wait_ends_when_woken, wait_of_no_time_returns,
};

use std::time::Duration;

use crate::transport::{PeerId, TX_BURST_MAX, Transport, TxFrame};

/// Empty polls in a row before the suite stops waiting: on lossless media, missing frames then
/// count as lost; on lossy media, no more are expected.
const EMPTY_POLLS_UNTIL_LOST: u32 = 100_000;
const EMPTY_POLLS_UNTIL_QUIET: u32 = 200;

/// Polls until a device with late completions has taken the backlog of a burst.
const POLLS_OF_BACKLOG: u32 = 50;

/// One end of a link.
pub struct End<T> {
    /// The transport.
    pub transport: T,
    /// The peer id of the far end in this transport.
    pub peer: PeerId,
}

/// A transport in the middle, linked to two transports.
pub struct Star<T> {
    /// The transport in the middle.
    pub hub: T,
    /// The hub's peer ids of the leaves, in their order.
    pub peers: [PeerId; 2],
    /// The two outer transports.
    pub leaves: [End<T>; 2],
}

/// A medium's properties beyond the promises of [`Transport`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Medium {
    /// Bytes that may be in flight to one endpoint before the medium loses or refuses frames. At
    /// least the largest frame.
    pub capacity_bytes: usize,
    /// Below the capacity, all frames arrive, once.
    pub is_lossless: bool,
    /// Arriving frames keep their order.
    pub keeps_order: bool,
    /// Above the capacity, frames are refused (the burst's result reports them) rather than lost.
    pub refuses_when_full: bool,
    /// Waiting takes real time and another thread may end it.
    pub can_wait: bool,
}

impl Medium {
    /// A lossless medium that refuses frames when full, for example a ring.
    pub fn lossless() -> Self {
        Self {
            capacity_bytes: 1 << 16,
            is_lossless: true,
            keeps_order: true,
            refuses_when_full: true,
            can_wait: true,
        }
    }

    /// A medium that loses frames only when full, for example a loopback device.
    pub fn lossy_when_full() -> Self {
        Self { refuses_when_full: false, ..Self::lossless() }
    }

    /// A medium that may lose, duplicate and reorder frames at any time.
    pub fn faulty() -> Self {
        Self { is_lossless: false, ..Self::lossy_when_full() }.without_order()
    }

    /// The medium with several ways for the frames, of different speeds.
    #[must_use]
    pub fn without_order(self) -> Self {
        Self { keeps_order: false, ..self }
    }

    /// The same medium in virtual time, without real waiting.
    #[must_use]
    pub fn in_virtual_time(self) -> Self {
        Self { can_wait: false, ..self }
    }

    /// The same medium with a capacity of `capacity_bytes`.
    #[must_use]
    pub fn with_capacity(self, capacity_bytes: usize) -> Self {
        Self { capacity_bytes, ..self }
    }
}

/// Creates transports of one kind, and advances their medium.
pub trait Harness {
    /// The transport.
    type T: Transport;

    /// The properties of the medium.
    fn medium(&self) -> Medium;

    /// Creates three transports, linked as a star.
    fn star(&mut self) -> Star<Self::T>;

    /// Creates two transports, linked to each other.
    fn pair(&mut self) -> [End<Self::T>; 2] {
        let Star { hub, peers, leaves: [leaf, _] } = self.star();
        [End { transport: hub, peer: peers[0] }, leaf]
    }

    /// Lets the medium make progress; called after every empty poll. A simulator advances the
    /// clock; the default sleeps for some microseconds to let threads run.
    fn advance(&mut self) {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Runs every check except those of [`run_threaded`].
///
/// # Panics
/// When the transport breaks a promise.
pub fn run_all<H: Harness>(harness: &mut H) {
    receives_nothing_when_nothing_was_sent(harness);
    delivers_every_size(harness);
    delivers_bursts_of_mixed_sizes(harness);
    takes_the_bytes_before_it_returns(harness);
    delivers_pushed_bursts_of_any_length(harness);
    keeps_peers_apart(harness);
    respects_the_budget(harness);
    survives_removal_in_flight(harness);
    counts_frames_of_no_peer(harness);
    counts_oversize_frames(harness);
    counts_answers_on_the_way_back(harness);
    accounts_for_every_frame_when_full(harness);
    takes_blocked_frames_later(harness);
    frames_stay_while_their_handler_looks(harness);
    sending_goes_on_beside_a_peer_that_does_nothing(harness);
    if harness.medium().can_wait {
        wait_of_no_time_returns(harness);
        wait_ends_when_a_frame_has_arrived(harness);
        wait_ends_when_woken(harness);
    }
}

/// Runs the checks that move a transport to another thread.
///
/// # Panics
/// When the transport breaks a promise.
pub fn run_threaded<H>(harness: &mut H)
where
    H: Harness<T: Send + 'static>,
{
    wait_ends_when_a_frame_arrives_meanwhile(harness);
}

/// Sends `frames` from one end to the other, never more at once than the medium holds. Returns the
/// arrived frames: on lossless media, all.
fn carry<H: Harness>(
    harness: &mut H,
    from: &mut End<H::T>,
    to: &mut End<H::T>,
    frames: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    let mut rest = frames;
    while !rest.is_empty() {
        let (burst, later) = rest.split_at(burst_len(rest, harness.medium().capacity_bytes));
        send_all(harness, from, burst);
        arrived.extend(collect(harness, to, burst.len()));
        rest = later;
    }
    arrived
}

/// Returns how many of `frames`, at least one, make a burst the medium holds.
fn burst_len(frames: &[Vec<u8>], capacity_bytes: usize) -> usize {
    let mut bytes = 0;
    let fitting = frames.iter().take(TX_BURST_MAX).take_while(|frame| {
        bytes += frame.len();
        bytes <= capacity_bytes
    });
    fitting.count().max(1)
}

/// Sends one burst, and offers blocked frames again.
fn send_all<H: Harness>(harness: &mut H, from: &mut End<H::T>, frames: &[Vec<u8>]) {
    let mut left: Vec<&Vec<u8>> = frames.iter().collect();
    for _ in 0..EMPTY_POLLS_UNTIL_LOST {
        let blocked = send_once(from, &left);
        left = retain_set(&left, blocked);
        if left.is_empty() {
            // Frames for which a device had no room leave in later polls of the sender.
            (0..POLLS_OF_BACKLOG).for_each(|_| _ = from.transport.rx_burst(0, |_, _| {}));
            return;
        }
        harness.advance();
    }
    panic!("{} frames stay blocked though the medium holds them", left.len());
}

/// Calls `tx_burst` once, with every third frame in one piece and the others in two.
fn send_once<T: Transport>(from: &mut End<T>, frames: &[&Vec<u8>]) -> u64 {
    let peer = from.peer;
    let burst: Vec<TxFrame<'_>> = frames
        .iter()
        .enumerate()
        .map(|(index, frame)| {
            let (head, body) = frame.split_at(if index % 3 == 0 { frame.len() } else { 1 });
            TxFrame { peer, head, body }
        })
        .collect();
    from.transport.tx_burst(&burst)
}

fn retain_set<'a>(frames: &[&'a Vec<u8>], set: u64) -> Vec<&'a Vec<u8>> {
    let with_bit = |index: usize| set & (1 << index) != 0;
    (0..frames.len()).filter(|&index| with_bit(index)).map(|index| frames[index]).collect()
}

/// Receives `count` frames; on lossy media, until no more frames arrive.
fn collect<H: Harness>(harness: &mut H, to: &mut End<H::T>, count: usize) -> Vec<Vec<u8>> {
    let peer = to.peer;
    let arrived = collect_any(harness, &mut to.transport, count);
    arrived
        .into_iter()
        .map(|(from, frame)| {
            assert_eq!(from, peer, "a frame came from another peer than the only one");
            frame
        })
        .collect()
}

/// [`collect`] with the sender of each frame.
fn collect_any<H: Harness>(harness: &mut H, to: &mut H::T, count: usize) -> Vec<(PeerId, Vec<u8>)> {
    let is_lossless = harness.medium().is_lossless;
    let limit = if is_lossless { EMPTY_POLLS_UNTIL_LOST } else { EMPTY_POLLS_UNTIL_QUIET };
    let mut arrived = Vec::new();
    let mut empty_polls = 0;
    while empty_polls < limit && (arrived.len() < count || !is_lossless) {
        let delivered = to.rx_burst(64, |peer, frame| arrived.push((peer, frame.to_vec())));
        empty_polls = if delivered == 0 { empty_polls + 1 } else { 0 };
        if delivered == 0 {
            harness.advance();
        }
    }
    assert!(!is_lossless || arrived.len() == count, "{} of {count} frames arrived", arrived.len());
    arrived
}

/// Receives until no more frames arrive.
fn drain<H: Harness>(harness: &mut H, to: &mut End<H::T>) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    let mut empty_polls = 0;
    while empty_polls < EMPTY_POLLS_UNTIL_QUIET {
        let delivered = to.transport.rx_burst(64, |_, frame| arrived.push(frame.to_vec()));
        empty_polls = if delivered == 0 { empty_polls + 1 } else { 0 };
        if delivered == 0 {
            harness.advance();
        }
    }
    arrived
}
