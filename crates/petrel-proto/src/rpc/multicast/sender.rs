//! Packets to groups, and the calls they belong to (`docs/wire-protocol.md` §12.3).

use petrel_planted::planted;

use super::super::call::{CallLimits, check, start};
use super::super::send_request::{grant_with, left_us};
use super::super::transmit::{FrameSink, Out, Then, Turn, send_part};
use super::super::work::{MULTICAST, Work};
use super::super::{Core, Shared};
use crate::buffer::Buffer;
use crate::limits::{WINDOW_PACKETS, packets_of};
use crate::session::backlog::PendingCall;
use crate::session::backlog::Queued;
use crate::session::client::ClientSession;
use crate::session::{PeerKey, SessionId};
use crate::wire::{Announcement, Destination, Flags, Kind, deadline_word};

/// The destination and header fields of the packets of one message to a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupFrames {
    /// The medium's name of the group.
    pub peer: PeerKey,
    /// The group's key.
    pub key: u32,
    /// The group and the message's number in the group.
    pub announcement: Announcement,
    /// Payload bytes of a full packet.
    pub packet_bytes: u32,
}

/// A message being sent to a group.
pub(super) struct Transmission<B> {
    to: GroupFrames,
    message: B,
    packets: u32,
    next: u32,
}

impl<B: Buffer, T> Core<B, T> {
    /// Returns true if a request of this length may now be sent to this session's server by multicast. The
    /// session must have a slot, and room for all packets at once as if they were sent here, so that credits,
    /// window and pace are never exceeded. Mostly false for a session not reached by multicast.
    pub fn may_announce(&mut self, session: SessionId, len: usize, packet_bytes: u32) -> bool {
        let Some(client) = self.sessions.client_mut(session) else { return false };
        let max = client.agreed().map_or(0, |agreed| agreed.peer_message_bytes_max);
        if client.is_draining() || len > max as usize || client.packet_bytes() != packet_bytes {
            return false;
        }
        let packets = packets_of(len as u32, packet_bytes);
        (2..=WINDOW_PACKETS).contains(&packets)
            && client.has_room()
            && !client.has_stalled()
            && client.credits().0 >= packets
            && !client.congestion().is_limited()
            && client.is_multicast_likely()
    }

    /// Makes a call whose packets are sent by multicast. The server gets an ANNOUNCE of the packets, and
    /// missing packets are sent to it alone. [`Core::send_to_group`] sends the packets once for all members.
    ///
    /// # Panics
    /// If [`Core::may_announce`] has not just returned true for this session.
    pub fn call_announced(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: PendingCall<B, T>,
        limits: CallLimits,
        announcement: Announcement,
    ) {
        let expiry = limits.expiry(self.shared.inherited_ns);
        if expiry.at_ns <= now_ns {
            let called = self.call_with(now_ns, session, call, limits);
            assert!(called.is_ok(), "an announcement that cannot be called");
            return;
        }
        let Some(client) = self.sessions.client_mut(session) else {
            panic!("an announcement to a session that has ended");
        };
        let checked = check(client, call.request.wire_len(), self.shared.config.backlog_max);
        let slot = client.take_slot().filter(|_| checked.is_ok());
        let Some(slot) = slot else { panic!("an announcement without a slot") };
        self.shared.counters.calls_started += 1;
        start(&mut self.shared, session.index, client, slot, Queued { call, expiry });
        self.shared.count_as_sent(now_ns, client, slot, announcement);
        self.shared.note_expiry(session, client, expiry.at_ns);
    }

    /// Sends a message to all members of a group at the next [`Core::transmit`], after the frames already
    /// queued, the announcements among them.
    pub fn send_to_group(&mut self, to: GroupFrames, message: B) {
        self.release_sent();
        let packets = packets_of(message.wire_len() as u32, to.packet_bytes);
        let multicast = &mut self.shared.multicast;
        multicast.outgoing.push_back(Transmission { to, message, packets, next: 0 });
        if multicast.outgoing.len() == 1 {
            self.shared.work.push(Work { session: 0, slot: MULTICAST, of_client: true });
        }
    }

    /// Releases messages whose packets have all been sent to a group. Call it when the medium has sent the
    /// accepted frames, as for every method except [`Core::transmit`].
    pub fn release_sent(&mut self) {
        self.shared.multicast.sent.clear();
    }
}

impl<B: Buffer> Shared<B> {
    /// Counts all packets of a request as sent by the session, which neither a window nor a pace limits.
    fn count_as_sent<T>(
        &mut self,
        now_ns: u64,
        client: &mut ClientSession<B, T>,
        slot: usize,
        announcement: Announcement,
    ) {
        self.counters.multicast_announced += 1;
        let packets = client.slot(slot).request_packets();
        assert!(
            !client.has_stalled() && !client.congestion().is_limited(),
            "an announced request waits neither for credits nor for its pace"
        );
        client.note_sent(now_ns, slot, packets - 1, 0);
        let extra = match self.config.response_grants {
            true => grant_with(client, slot, packets - 1),
            false => 0,
        };
        let granted = if planted("multicast_grant_is_free") { 0 } else { extra };
        client.note_sent(now_ns, slot, 1, granted);
        let state = client.slot_mut(slot);
        state.note_granted(extra);
        state.timer_mut().measure(packets - 1, now_ns);
        let parts = state.parts_mut(&mut self.client_parts);
        parts.request_mut().note_run(0..packets);
        parts.announce(announcement);
    }

    /// Sends a due ANNOUNCE, in a turn of its own.
    #[inline]
    pub(in super::super) fn announce<T, S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
        peer: PeerKey,
    ) -> Option<Turn> {
        let announcement = client.slot(slot).parts()?.due_announcement()?;
        Some(self.send_announce(out, id, client, slot, peer, announcement))
    }

    #[cold]
    fn send_announce<T, S: FrameSink>(
        &mut self,
        out: &mut Out<'_, S>,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
        peer: PeerKey,
        announcement: Announcement,
    ) -> Turn {
        let (to, state) = (client.to(), client.slot(slot));
        let Some(call) = state.call() else { return Turn::NOTHING };
        let left = |deadline_ns| deadline_word(left_us(out.sink.now_ns(out.now_ns), deadline_ns));
        let left = state.wire_deadline_ns().map(left);
        let flags = if left.is_some() { Flags::EXTENDED } else { Flags::NONE };
        let size = call.request.wire_len() as u32;
        let part = crate::wire::Part { size, packet: 0, grant: state.grant() };
        let header = to.words(Kind::Announce, flags, state.method(), state.number());
        if !out.control.send(out.sink, peer, announcement.encode(header, part, left)) {
            return Turn::one(false);
        }
        if let Some(parts) = client.slot_mut(slot).known_parts_mut() {
            parts.note_announced();
        }
        self.counters.control_frames_sent += 1;
        self.arm(out.now_ns, id, client, slot);
        Turn { sent: 1, then: Then::More }
    }

    /// Sends packets of the oldest message to a group.
    #[cold]
    pub(in super::super) fn send_multicast<S: FrameSink>(
        &mut self,
        budget: usize,
        sink: &mut S,
    ) -> Turn {
        let multicast = &mut self.multicast;
        let Some(transmission) = multicast.outgoing.front_mut() else { return Turn::NOTHING };
        let Transmission { to, message, packets, next } = transmission;
        assert!(*next < *packets, "a message to a group waits while it has packets left to send");
        let destination = Destination::new(to.announcement.group, to.key);
        let header = destination.words(Kind::Multicast, Flags::NONE, 0, to.announcement.sequence);
        let mut turn = Turn { sent: 0, then: Then::More };
        while turn.sent < budget && *next < *packets {
            if !send_part(message, header, *next, 1, to.packet_bytes, to.peer, sink) {
                turn.then = Then::Refused;
                break;
            }
            *next += 1;
            turn.sent += 1;
        }
        self.counters.multicast_sent += turn.sent as u64;
        if *next == *packets {
            // The frames are part of the message until flushed.
            multicast.sent.extend(multicast.outgoing.pop_front().map(|sent| sent.message));
            turn.then = if multicast.outgoing.is_empty() { Then::Done } else { Then::More };
        }
        turn
    }
}
