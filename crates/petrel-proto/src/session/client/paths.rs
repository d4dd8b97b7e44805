//! The paths of a client session of several (`docs/wire-protocol.md` §14): the copies in flight of each slot.

use crate::bitmap::Words;
use crate::limits::{REORDERING_THRESHOLD, WINDOW_PACKETS};
use crate::path::{
    Answer, Burst, LastCopy, LastSpan, PacketPaths, PathCounts, PathId, PathPolicy, Paths, Senders,
    SentUs,
};
use crate::session::PeerKey;

/// The paths of a client session, and the path of each packet in flight.
pub(crate) struct ClientPaths {
    paths: Paths,
    /// Destination of the session's frames.
    peer: PeerKey,
    /// The peer from which the session's frames come: see [`Origin`](crate::session::Origin).
    source: PeerKey,
    /// The path of the packet that the last CREDIT answers: it works towards the server.
    alive: Option<PathId>,
    /// Probes and timeouts since the server's last frame, up to 255.
    silences: u8,
    /// The slots that have sent something.
    slots: Vec<SlotPaths>,
    /// Records of messages that have ended.
    #[expect(clippy::vec_box, reason = "slots take and return the boxes")]
    spare: Vec<Box<PacketPaths>>,
    counts: Box<[PathCounts]>,
    last_span: LastSpan,
}

/// Probes of a request before its first timeout, each on another path. With one link of four left, one path in four works in
/// a direction; with timeouts that double, a session found it after tens of milliseconds.
const PATH_PROBES: u8 = 12;

/// Probes of a session since the server's last frame, after which each request has one only: the server is busy.
const SESSION_PROBES: u8 = 16;

/// Records kept for the next large messages.
const SPARE_MAX: usize = 8;

/// The paths of a slot.
#[derive(Default)]
struct SlotPaths {
    /// The path of the slot's last frame.
    last: PathId,
    /// Probes of the slot's request.
    probes: u8,
    /// The copy in flight of a request of one packet.
    single: Option<SingleCopy>,
    /// The time at which that copy was sent, or before which the server could send the packets of a response that a probe
    /// asks for. In microseconds, modulo 2^32: more than an hour.
    since_us: u32,
    /// The copies of a request of several packets.
    packets: Option<Box<PacketPaths>>,
}

/// The copy in flight of a request of one packet.
#[derive(Clone, Copy, Debug)]
struct SingleCopy {
    repeats: bool,
}

const _: () = assert!(size_of::<SlotPaths>() <= 16, "a slot has 16 bytes for its paths");

impl SlotPaths {
    /// Notes the path of a packet that was sent, perhaps once more.
    #[inline]
    fn note_path(&mut self, path: PathId, repeats: bool) {
        self.last = path;
        if !repeats {
            self.probes = 0;
        }
    }

    /// Notes the copy in flight of a request of one packet.
    #[inline]
    fn note_single(&mut self, now_ns: u64, path: PathId, repeats: bool) {
        assert!(self.single.is_none(), "a request of one packet has one copy in flight");
        self.note_path(path, repeats);
        (self.single, self.since_us) = (Some(SingleCopy { repeats }), micros(now_ns));
    }
}

fn micros(time_ns: u64) -> u32 {
    (time_ns / 1_000) as u32
}

/// A copy that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextCopy {
    pub(crate) path: PathId,
    pub(crate) packet: u32,
    /// True if the packet was sent before.
    pub(crate) repeats: bool,
    /// True if the packet is the only one of its request.
    pub(crate) is_single: bool,
}

impl ClientPaths {
    /// Makes the paths of a session with `count` source ports and at most `packets_most` packets in flight.
    pub(crate) fn new(
        (policy, count, seed): (PathPolicy, usize, u64),
        packets_most: u32,
        peer: PeerKey,
        source: PeerKey,
    ) -> Self {
        assert!(
            packets_most <= PATH_PACKETS_MAX,
            "the record of a message has the packets in flight and as many lost ones"
        );
        Self {
            paths: Paths::new(policy, count, packets_most, seed),
            peer,
            source,
            alive: None,
            silences: 0,
            slots: Vec::new(),
            spare: Vec::new(),
            counts: vec![PathCounts::default(); count].into(),
            last_span: LastSpan::NEVER,
        }
    }

    pub(crate) fn peer(&self) -> PeerKey {
        self.peer
    }

    pub(crate) fn source(&self) -> PeerKey {
        self.source
    }

    pub(crate) fn counts(&self) -> &[PathCounts] {
        &self.counts
    }

    /// Returns true if new packets take the path, besides looks.
    pub(crate) fn is_open(&self, path: PathId) -> bool {
        self.paths.is_open(path)
    }

    /// Notes that packets of requests are about to be sent, perhaps beside packets of further sessions.
    pub(crate) fn note_turn(&mut self, now_ns: u64, senders: &mut Senders) {
        self.paths.share_link(senders.note(now_ns, &mut self.last_span));
    }

    /// Returns how many new packets the windows have room for. A packet whose path is chosen has room: a look at a closed path
    /// needs none of the windows.
    pub(crate) fn room(&self) -> u32 {
        self.paths.room().max(u32::from(self.paths.has_chosen()))
    }

    /// Returns the path of a slot's next frame that is no packet of a request: the last frame's path.
    pub(crate) fn last(&self, slot: usize) -> PathId {
        self.slots.get(slot).map_or(PathId::FIRST, |slot| slot.last)
    }

    /// Returns the path for a new packet; or if the packet has to wait although there is room, the time up to
    /// which it waits.
    pub(crate) fn choose(&mut self, now_ns: u64, is_single: bool) -> Result<PathId, u64> {
        let chosen = match is_single {
            true => self.paths.choose_alone(now_ns),
            false => self.paths.choose(now_ns),
        };
        match chosen {
            Some(path) => Ok(path),
            None => Err(self.paths.resume_ns()),
        }
    }

    /// Returns the path for a request of one packet that is sent for the first time by a fast path; `None` if the slot has
    /// sent nothing yet, or the packet has to wait.
    #[inline]
    pub(crate) fn choose_plain(
        &mut self,
        now_ns: u64,
        slot: usize,
        senders: &mut Senders,
    ) -> Option<PathId> {
        if slot >= self.slots.len() {
            return None;
        }
        // The burst's first packet has noted the turn, but other sessions may have sent since.
        if self.paths.heeds_others() {
            self.note_turn(now_ns, senders);
        }
        self.paths.burst_choice(now_ns).or_else(|| {
            self.note_turn(now_ns, senders);
            self.paths.choose_alone(now_ns)
        })
    }

    /// Notes that the request was sent on the chosen path.
    #[inline]
    pub(crate) fn note_plain_sent(&mut self, now_ns: u64, slot: usize, path: PathId) {
        self.paths.note_alone(path);
        self.counts[path.index()].packets += 1;
        self.slots[slot].note_single(now_ns, path, false);
    }

    /// Notes the immediate answer to a request that a fast path has sent once.
    #[inline(never)]
    pub(crate) fn note_plain_answer(&mut self, now_ns: u64, slot: usize) {
        self.note_sign();
        let Some(state) = self.slots.get_mut(slot) else { return };
        let Some(SingleCopy { repeats }) = state.single.take() else { return };
        assert!(!repeats, "the request of a fast path was sent once");
        let age_us = micros(now_ns).wrapping_sub(state.since_us);
        self.paths.note_prompt(now_ns, state.last, age_us.saturating_mul(1_000));
    }

    /// Returns the path for a packet that is repeated, or that needs no room; or if the packet has to wait, the time up
    /// to which it waits.
    pub(crate) fn choose_again(
        &mut self,
        now_ns: u64,
        slot: usize,
        packet: u32,
    ) -> Result<PathId, u64> {
        let state = self.slots.get(slot);
        let last = state.map_or(PathId::FIRST, |state| match &state.packets {
            Some(packets) => packets.path(packet),
            None => state.last,
        });
        self.another(now_ns, last).ok_or_else(|| self.paths.resume_ns())
    }

    /// Returns another path than `last`, as the policy chooses, or `None` to wait. After a long silence: in turn any path,
    /// and the last path that worked towards the server, which may answer over a different path now (§14.2). (With two links of
    /// four dead, the policy's choice, the path with the largest window, went back and forth between two dead paths.)
    fn another(&mut self, now_ns: u64, last: PathId) -> Option<PathId> {
        match (self.silences, self.alive) {
            (0 | 1, _) => self.paths.choose_again(now_ns, last),
            (silences, Some(path)) if silences.is_multiple_of(2) => Some(path),
            _ => Some(self.paths.choose_any(last)),
        }
    }

    /// Returns the packets of a message from the lowest unacknowledged one on that may be sent.
    pub(crate) fn window_packets(&self) -> u32 {
        self.paths.window_packets()
    }

    /// Returns how many packets are to be repeated early, if there is no new packet to send.
    pub(crate) fn early_repetitions(&self) -> u32 {
        self.paths.early_repetitions()
    }

    /// Gives up the first copy of a packet that is repeated early. Returns false, without a change, if the packet was
    /// repeated before, or is younger than the round trip of a slow path. (With two requests of 1 MiB in flight and no loss,
    /// repetitions of younger packets were 6 % of all.)
    pub(crate) fn gives_up_early(&mut self, now_ns: u64, slot: usize, packet: u32) -> bool {
        let packets = self.slots.get(slot).and_then(|state| state.packets.as_deref());
        let Some(packets) = packets.filter(|packets| !packets.was_repeated(packet)) else {
            return false;
        };
        let (path, age_ns) = packets.only_copy(now_ns, packet);
        let is_old = age_ns > self.paths.longest_ns();
        if is_old {
            self.paths.note_unknown(path);
        }
        is_old
    }

    /// Notes that the server has sent a frame.
    pub(crate) fn note_sign(&mut self) {
        self.silences = 0;
    }

    /// Notes that a CREDIT answers this packet of a large request.
    pub(crate) fn note_echo(&mut self, slot: usize, packet: u32) {
        let state = self.slots.get(slot).and_then(|state| state.packets.as_deref());
        self.alive = state.and_then(|packets| packets.path_of_sent(packet)).or(self.alive);
    }

    /// Notes a probe of a slot. Returns true if it is the last one before the first timeout.
    pub(crate) fn note_probe(&mut self, slot: usize) -> bool {
        let Some(state) = self.slots.get_mut(slot) else { return true };
        state.probes = state.probes.saturating_add(1);
        state.probes >= PATH_PROBES || self.silences >= SESSION_PROBES
    }

    /// Notes that a probe or a timeout is due: the server was silent.
    pub(crate) fn note_silence(&mut self) {
        self.silences = self.silences.saturating_add(1);
    }

    /// Notes that a packet was sent. `has_room` is true if it took room of the windows.
    pub(crate) fn note_sent(&mut self, now_ns: u64, slot: usize, copy: NextCopy, has_room: bool) {
        let NextCopy { path, packet, repeats, is_single } = copy;
        match has_room {
            true => self.paths.note_new(path),
            false => self.paths.note_repeat(path),
        }
        self.counts[path.index()].packets += 1;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, SlotPaths::default);
        }
        let state = &mut self.slots[slot];
        if is_single {
            return state.note_single(now_ns, path, repeats);
        }
        state.note_path(path, repeats);
        let packets = self.packets_of(slot).packets;
        match repeats {
            true => packets.note_repeat(now_ns, packet, path),
            false => packets.note_new(now_ns, packet, path),
        }
    }

    /// Returns the paths and the packets of a large request that begins or goes on: many of its packets follow.
    pub(crate) fn packets_of(&mut self, slot: usize) -> SlotPackets<'_> {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, SlotPaths::default);
        }
        let Self { paths, slots, spare, counts, .. } = self;
        let SlotPaths { last, probes, packets, .. } = &mut slots[slot];
        let fresh = || Box::new(PacketPaths::new(REORDERING_THRESHOLD as u16));
        let packets = packets.get_or_insert_with(|| spare.pop().unwrap_or_else(fresh));
        SlotPackets { paths, last, probes, packets, counts }
    }

    /// Notes that the copy of a request of one packet was acknowledged by a CREDIT or a response, if it is in
    /// flight. `is_immediate` is true if the answer came at once: its round trip measures the network.
    pub(crate) fn note_single_acked(
        &mut self,
        now_ns: u64,
        slot: usize,
        is_marked: bool,
        is_immediate: bool,
    ) {
        let Some(state) = self.slots.get_mut(slot) else { return };
        let Some(SingleCopy { repeats }) = state.single.take() else { return };
        let (path, sent_us) = (state.last, state.since_us);
        if repeats {
            return self.paths.note_repeat_answer(now_ns, path, is_marked);
        }
        let age_us = micros(now_ns).wrapping_sub(sent_us);
        let rtt_ns = is_immediate.then(|| u64::from(age_us) * 1_000);
        let answer = Answer { rtt_ns, is_marked, behind_packets: 0 };
        self.count_mark(path, is_marked);
        self.paths.note_answer(now_ns, path, answer);
    }

    fn count_mark(&mut self, path: PathId, is_marked: bool) {
        self.counts[path.index()].marks += u64::from(is_marked);
    }

    /// Notes that a copy of a packet has arrived. If it is the first one of a repeated packet, the packet was repeated in vain
    /// (§14.4).
    pub(crate) fn note_arrival(&mut self, now_ns: u64, slot: usize, packet: u32, repeats: bool) {
        let Some(state) = self.slots.get_mut(slot) else { return };
        let Some(packets) = state.packets.as_deref_mut() else { return };
        if repeats {
            packets.note_repeat_arrived(now_ns, packet, self.paths.rtt_least_ns());
        } else if packets.was_repeated(packet) {
            self.paths.note_false_alarm();
        }
    }

    /// Notes that a CREDIT answers a repetition of a packet that was not acknowledged before. Returns its round trip in
    /// nanoseconds, if the packet was repeated once (§7.1).
    pub(crate) fn note_repeat_acked(
        &mut self,
        now_ns: u64,
        slot: usize,
        packet: u32,
    ) -> Option<u64> {
        let packets = self.slots.get(slot)?.packets.as_deref()?;
        let (path, rtt_ns) = packets.only_repeat(now_ns, packet)?;
        self.paths.note_rtt(path, rtt_ns);
        Some(rtt_ns)
    }

    /// Returns true if there is evidence that the last copy of a packet is lost, after a later packet was
    /// acknowledged. The copy is given up then.
    pub(crate) fn gives_up(&mut self, now_ns: u64, slot: usize, packet: u32) -> bool {
        let Self { slots, paths, counts, .. } = self;
        let Some(packets) = slots.get(slot).and_then(|state| state.packets.as_deref()) else {
            return false;
        };
        if packets.lost(now_ns, packet, |path| paths.lead_ns(path)).is_none() {
            return false;
        }
        let path = packets.path(packet);
        counts[path.index()].losses += 1;
        paths.note_lost(now_ns, path);
        true
    }

    /// Notes that a probe or a timeout gives the last copy of a packet up.
    pub(crate) fn note_timeout(&mut self, now_ns: u64, slot: usize, packet: u32) {
        let Some(state) = self.slots.get_mut(slot) else { return };
        let path = match &state.packets {
            Some(packets) => packets.path(packet),
            None if state.single.take().is_some() => state.last,
            None => return,
        };
        self.counts[path.index()].losses += 1;
        self.paths.note_timeout(now_ns, path);
    }

    /// Lets the slot's next frames that are no packets take another path: the last one brought no answer for `waited_ns`.
    pub(crate) fn change_path(&mut self, now_ns: u64, slot: usize, waited_ns: u64) {
        let Some(state) = self.slots.get_mut(slot) else { return };
        let last = state.last;
        state.since_us = micros(now_ns.saturating_sub(waited_ns));
        self.paths.note_silent(now_ns, last);
        // A frame that is no packet of a request waits for no answer.
        let next = self.another(now_ns, last);
        self.slots[slot].last = next.unwrap_or_else(|| self.paths.choose_any(last));
    }

    /// Returns true if all packets of a response that the server could send before the slot's last probe are overdue,
    /// whichever ways they take (§14.4).
    pub(crate) fn is_answer_overdue(&self, now_ns: u64, slot: usize) -> bool {
        let age_us =
            self.slots.get(slot).map_or(0, |state| micros(now_ns).wrapping_sub(state.since_us));
        u64::from(age_us) * 1_000 > self.paths.longest_ns()
    }

    /// Notes the end of a request, or the begin of a response. `in_flight` are the packets of a large
    /// request that are neither acknowledged nor given up.
    pub(crate) fn settle(&mut self, slot: usize, in_flight: impl Iterator<Item = u32>) {
        self.release_single(slot);
        let Some(packets) = self.slots.get_mut(slot).and_then(|state| state.packets.take()) else {
            return;
        };
        in_flight.for_each(|packet| self.paths.note_unknown(packets.path(packet)));
        if self.spare.len() < SPARE_MAX {
            let mut packets = packets;
            packets.reset();
            self.spare.push(packets);
        }
    }

    /// Takes the copy of a request of one packet out of flight, without a verdict on its path.
    pub(crate) fn release_single(&mut self, slot: usize) {
        let Some(state) = self.slots.get_mut(slot) else { return };
        if state.single.take().is_some() {
            self.paths.note_unknown(state.last);
        }
    }

    /// Returns true if a request of one packet has a copy in flight.
    pub(crate) fn has_single(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|state| state.single.is_some())
    }

    /// Returns the copies that are in flight on all paths.
    pub(crate) fn in_flight(&self) -> u32 {
        self.paths.in_flight()
    }
}

/// The paths of a session with the packets of one large request.
pub(crate) struct SlotPackets<'a> {
    paths: &'a mut Paths,
    last: &'a mut PathId,
    probes: &'a mut u8,
    packets: &'a mut PacketPaths,
    counts: &'a mut [PathCounts],
}

impl SlotPackets<'_> {
    /// Begins a burst of up to `wanted` new packets, if a path has room: see [`Paths::begin_burst`].
    pub(crate) fn begin_burst(&mut self, now_ns: u64, wanted: u32) -> Option<Burst> {
        self.paths.begin_burst(now_ns, wanted)
    }

    /// Notes that the next new packet was sent on the path that the burst has chosen.
    #[inline(always)]
    pub(crate) fn note_new(
        &mut self,
        burst: &mut Burst,
        sent_us: SentUs,
        packet: u32,
        path: PathId,
    ) {
        burst.note_new(path);
        self.packets.note_in_burst(sent_us, packet, path);
    }

    /// Ends a burst of the packets in front of `end`. `refused` is the path chosen for a packet that the medium did not take.
    pub(crate) fn end_burst(&mut self, burst: &Burst, end: u32, refused: Option<PathId>) {
        let Self { paths, counts, .. } = self;
        let mut sent = 0;
        paths.end_burst(burst, refused, |path, count| {
            counts[path.index()].packets += u64::from(count);
            sent += count;
        });
        if sent > 0 {
            (*self.last, *self.probes) = (burst.last(), 0);
            self.packets.end_burst(end, sent);
        }
    }

    /// Notes acknowledgements of packets sent once: packet `base + i` for each bit *i*. The round trip of `echo`
    /// counts, if `echo` is among the packets. Returns false, without a change, if the caller has to note packets one
    /// by one.
    pub(crate) fn note_all_acked(
        &mut self,
        now_ns: u64,
        (base, packets): (u32, &Words),
        echo: Option<u32>,
        behind_packets: u32,
    ) -> bool {
        if !self.packets.has_no_repetition() || !self.paths.takes_goods(now_ns, behind_packets) {
            return false;
        }
        let goods = self.packets.note_all_acked(now_ns, base, packets);
        if let Some(echo) = echo {
            let (path, rtt_ns) = self.packets.only_copy(now_ns, echo);
            self.paths.note_rtt(path, rtt_ns);
        }
        self.paths.note_goods(&goods);
        true
    }

    /// Notes that a packet was acknowledged. `was_lost` is true if its last copy was given up. The round trip counts if
    /// `is_echo`.
    #[inline]
    pub(crate) fn note_acked(
        &mut self,
        now_ns: u64,
        (packet, was_lost, is_echo): (u32, bool, bool),
        (is_marked, behind_packets): (bool, u32),
    ) {
        let copy @ LastCopy { path, rtt_ns } = self.packets.note_acked(now_ns, packet);
        if was_lost {
            return;
        }
        if !copy.is_only() {
            return self.paths.note_repeat_answer(now_ns, path, is_marked);
        }
        let rtt_ns = rtt_ns.filter(|_| is_echo);
        self.counts[path.index()].marks += u64::from(is_marked);
        self.paths.note_answer(now_ns, path, Answer { rtt_ns, is_marked, behind_packets });
    }
}

/// The most packets of a session in flight: half of a message's window (§14.4).
pub(crate) const PATH_PACKETS_MAX: u32 = WINDOW_PACKETS / 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy and the state of the paths have 256 bytes; destinations, counters and places of a session come on top.
    #[test]
    fn new__a_session_of_eight_paths_has_a_bounded_memory() {
        for policy in PathPolicy::ALL {
            let paths = ClientPaths::new((policy, 8, 1), 128, PeerKey(1), PeerKey(1));
            let of_counts = size_of_val(paths.counts());
            assert_eq!(of_counts, 8 * 24);
            assert!(size_of::<Paths>() + paths.paths.heap_bytes() <= 256);
            let all = size_of::<ClientPaths>() + paths.paths.heap_bytes() + of_counts;
            assert!(all <= 560, "{policy:?}: {all} bytes");
        }
    }
}
