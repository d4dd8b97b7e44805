use super::super::slot::{ClientState, SendPath};
use super::*;
use crate::limits::{FUTURE_ROUNDS_MAX, REQUEST_NUMBER_END, SLOTS_WITH_RESERVE_MIN};
use crate::session::backlog::Expiry;
use crate::session::credits::{HeldCredits, lent};
use crate::session::free_list::FreeList;

/// Returns an open session with this number of slots.
fn session(slots: u16) -> ClientSession<Vec<u8>, u64> {
    let mut session = ClientSession::opening(0, &RtoBounds::default());
    session.establish(Agreed { slots, ..Agreed::SAMPLE }, &CongestionControl::default());
    session
}

/// The session has neither credits nor slots, and sends no packet.
#[test]
fn opening__has_nothing_until_the_peer_has_agreed() {
    let session: ClientSession<Vec<u8>, u64> = ClientSession::opening(77, &RtoBounds::default());
    assert_eq!((session.first_request, session.peer, session.agreed), (77, NO_PEER, None));
    assert_eq!((session.free, session.slots.len()), (NO_SLOT, 0));
    assert_eq!(session.credits, Credits::default());
    assert_eq!((session.waiting_slots, session.sendable_packets()), (0, 0));
    assert_eq!((session.packet_bytes, session.plain_request_bytes_end), (0, 0));
    assert_eq!((session.retired, session.pending_calls()), (0, 0));
    assert!(!session.awaits_release && !session.is_draining && !session.backlog.was_used());
    assert!(session.stalled.is_empty() && session.paced.is_empty());
    assert_eq!(session.first_expiry_ns(), NEVER);
}

#[test]
fn establish__takes_all_that_was_agreed() {
    use crate::congestion::{CongestionConfig, DcqcnConfig, Flow, Rate, SwiftConfig, TimelyConfig};
    let line = Rate::gbit(25);
    for config in [
        CongestionConfig::Timely(TimelyConfig::for_line(line)),
        CongestionConfig::Dcqcn(DcqcnConfig::for_line(line)),
        CongestionConfig::Swift(SwiftConfig::new()),
    ] {
        let control = CongestionControl::new(config).unwrap();
        for (packet_bytes, peer_message_bytes_max) in
            [(1_200, 1_199), (1_200, 1_200), (1_200, 1_201)]
        {
            let mut session: ClientSession<Vec<u8>, u64> =
                ClientSession::opening(64, &RtoBounds::default());
            let agreed = Agreed { packet_bytes, peer_message_bytes_max, ..Agreed::SAMPLE };
            session.establish(agreed, &control);
            assert_eq!((session.agreed, session.peer), (Some(agreed), PeerKey(1)));
            assert_eq!(session.to, Destination::new(2, 3));
            assert_eq!((session.stride(), session.slots.len()), (32, SLOTS_AT_FIRST.into()));
            assert_eq!((session.credits, session.message_credits_max), (Credits::new(8), 8));
            let plain = (session.packet_bytes, session.plain_request_bytes_end);
            assert_eq!(plain, (packet_bytes, packet_bytes.min(peer_message_bytes_max) + 1));
            // Nothing is known of the path yet.
            let flow = Flow { credits: 8, packet_bytes, base_rtt_ns: 0 };
            let begun = format!("{:?}", control.start(flow));
            assert_eq!(format!("{:?}", session.congestion), begun);
        }
    }
}

/// With many credits a message gets at most half of the credits.
#[test]
fn establish__shares_credits_among_messages_where_there_are_many() {
    for (credits, most) in [
        (1, 1),
        (CREDITS_SHARED_MIN - 1, CREDITS_SHARED_MIN - 1),
        (CREDITS_SHARED_MIN, CREDITS_SHARED_MIN / 2),
        (1_000, 500),
    ] {
        let mut session: ClientSession<Vec<u8>, u64> =
            ClientSession::opening(0, &RtoBounds::default());
        let agreed = Agreed { slots: 8, credits, ..Agreed::SAMPLE };
        session.establish(agreed, &CongestionControl::default());
        for held in [0, 1, most] {
            *session.slots[0].held_mut() = lent(credits, held.into()).1;
            assert_eq!(session.message_credits(0), u32::from(most - held), "of {credits}");
        }
        *session.slots[0].held_mut() = lent(most + 1, u32::from(most) + 1).1;
        assert_eq!(session.message_credits(0), 0);
        assert_eq!(session.sendable_packets(), credits.into());
    }
}

/// Credits in use are packets in flight, except the credits of calls whose handlers run.
#[test]
fn sendable_packets__fill_the_window_as_far_as_there_are_credits() {
    use crate::congestion::{CongestionConfig, CongestionCounters, Flow, SwiftConfig};
    let mut session = session(8);
    let control = CongestionControl::new(CongestionConfig::Swift(SwiftConfig::new())).unwrap();
    let flow = Flow { credits: 8, packet_bytes: 1_200, base_rtt_ns: 0 };
    session.congestion = control.start(flow);
    let mut windows = Vec::new();
    for now_ns in 0..100 {
        let window = session.congestion.window_packets();
        windows.push(window);
        for (credits, waiting) in (0..=8).flat_map(|c| (0..=8 - c).map(move |w| (c, w))) {
            session.credits = lent(8, 8 - credits).0;
            session.waiting_slots = waiting;
            let on_the_way = 8 - credits - waiting;
            let sendable = credits.min(window.saturating_sub(on_the_way));
            assert_eq!(session.sendable_packets(), sendable, "{window} {credits} {waiting}");
        }
        session.congestion.on_loss(now_ns, 5, &mut CongestionCounters::default());
    }
    assert!(windows.contains(&u32::MAX) && windows.contains(&1), "{windows:?}");
    assert!(windows.iter().any(|window| (2..8).contains(window)), "{windows:?}");
}

#[test]
fn has_room__until_all_slots_are_taken_that_were_agreed_on() {
    let opening: ClientSession<Vec<u8>, u64> = ClientSession::opening(0, &RtoBounds::default());
    assert!(!opening.has_room());
    for (slots, usable) in [(1, 1), (8, 8), (32, 32), (64, 63), (256, 255)] {
        let mut session = session(slots);
        for taken in 0..usable {
            assert!(session.has_room(), "{taken} of {slots}");
            let slot = session.take_slot().expect("a slot");
            assert!(!session.is_reserved(slot));
            session.slots[slot].set_state(ClientState::Sending);
            assert_eq!(session.busy_slots(), taken + 1);
        }
        assert!(!session.has_room());
        assert_eq!(session.take_slot(), None);
    }
}

/// With credits available the longest waiting slot has its turn; without waiting slots any slot has; the
/// reserved slot always has.
#[test]
fn take_turn__in_the_order_in_which_they_began_to_wait() {
    for slots in [8, 64] {
        let mut session = session(slots);
        assert!((0..4).all(|slot| session.take_turn(slot)));
        session.stalled.push(3);
        session.stalled.push(1);
        session.credits = lent(1, 1).0;
        let is_reserved = |slot| slots == 64 && slot == RESERVED;
        for slot in 0..4 {
            assert_eq!(session.take_turn(slot), is_reserved(slot), "there are no credits");
        }
        session.credits = Credits::new(1);
        for slot in [0, 1, 2] {
            assert_eq!(session.take_turn(slot), is_reserved(slot), "another comes first");
        }
        assert!(session.take_turn(3));
        assert_eq!(session.take_turn(3), is_reserved(3));
        assert!(session.take_turn(1));
        assert!(session.stalled.is_empty());
    }
}

#[test]
fn pending_calls__are_those_in_slots_and_those_that_wait_for_one() {
    let mut session = session(8);
    for (busy, waiting) in [(1, 0), (2, 1), (2, 2), (3, 2)] {
        session.slots[busy - 1].set_state(ClientState::Sending);
        while session.backlog.len() < waiting {
            let (request, response) = (Vec::new(), Vec::new());
            let call = PendingCall { method: 1, tag: 1, request, response };
            session.backlog.push_back(Queued::unordered(call, Expiry::NONE));
        }
        assert_eq!(session.busy_slots(), busy);
        assert_eq!(session.pending_calls(), busy + waiting);
    }
}

#[test]
fn take_reserved_slot__one_that_is_kept_and_free_and_has_numbers_left() {
    for has_reserve in [false, true] {
        let slots = if has_reserve { SLOTS_WITH_RESERVE_MIN } else { SLOTS_WITH_RESERVE_MIN / 2 };
        for (state, is_free) in [
            (ClientState::Free, true),
            (ClientState::Sending, false),
            (ClientState::Waiting, false),
            (ClientState::Receiving, false),
        ] {
            for (number, is_left) in
                [(0, true), (REQUEST_NUMBER_END - 1, true), (REQUEST_NUMBER_END, false)]
            {
                let mut session = session(slots);
                session.slots[RESERVED].set_state(state);
                session.slots[RESERVED].set_number(number);
                let expected = (has_reserve && is_free && is_left).then_some(RESERVED);
                assert_eq!(session.take_reserved_slot(), expected, "{slots} {state:?} {number}");
            }
        }
    }
}

fn call() -> PendingCall<Vec<u8>, u64> {
    PendingCall { method: 1, tag: 2, request: Vec::new(), response: Vec::new() }
}

/// Returns a session whose first slot has begun a call with a request of this many packets.
fn calling(packets: u32) -> ClientSession<Vec<u8>, u64> {
    let mut session = session(8);
    let slot = session.take_slot().expect("the session is open");
    session.slots[slot].start(call(), packets, SendPath::General);
    session
}

panics! {
    establish__twice: "a session is established once" => {
        let mut session = session(8);
        let agreed = session.agreed.expect("the session is open");
        session.establish(agreed, &CongestionControl::default());
    };
    leave_waiting__of_a_slot_that_was_not_counted: "a slot leaves WAITING that was not counted" => {
        let mut session = calling(1);
        session.slots[0].set_state(ClientState::Waiting);
        *session.slots[0].held_mut() = lent(8, 1).1;
        session.leave_waiting(0);
    };
    sendable_packets__with_more_waiting_slots_than_lent_credits:
        "each slot counted as waiting holds a credit" => {
        use crate::congestion::{CongestionConfig, CongestionCounters, SwiftConfig};
        let mut session = session(8);
        let control = CongestionControl::new(CongestionConfig::Swift(SwiftConfig::new())).unwrap();
        let flow = Flow { credits: 8, packet_bytes: 1_200, base_rtt_ns: 0 };
        session.congestion = control.start(flow);
        session.congestion.on_loss(0, 9, &mut CongestionCounters::default());
        session.waiting_slots = 1;
        session.sendable_packets();
    };
    release__of_a_slot_with_a_call: "a slot is free before it returns to the free slots"
        => calling(1).release(0);
    retire__of_more_slots_than_there_are: "no more slots are retired than the session has" => {
        let mut session = session(8);
        (0..9).for_each(|_| _ = session.retire());
    };
    note_release__without_an_entry: "a session is released that has no entry for its release"
        => session(8).note_release();
    assert_sound__with_a_credit_lost: "the credits of a session are free or with its slots" => {
        let mut session = calling(1);
        session.credits.lend(&mut HeldCredits::default(), 1);
        session.assert_sound();
    };
    assert_sound__with_a_free_slot_lost: "each free slot is listed once, or retired" => {
        let mut session = session(8);
        session.assert_sound();
        session.take_slot();
        session.assert_sound();
    };
    charge__before_the_time_of_the_next_packet:
        "a paced session sends no packet before its time" => {
        use crate::congestion::CongestionCounters;
        let mut session = session(8);
        session.congestion.on_loss(0, 64, &mut CongestionCounters::default());
        session.charge(1_000_000, 1, 1_000);
        session.charge(1_000_000, 1, 0);
        session.charge(1_000_000, 1, 1);
    };
}

/// The server would take a request that many rounds ahead for a future one.
#[test]
fn take_reserved_slot__not_beyond_the_requests_that_the_server_follows() {
    let mut session = session(SLOTS_WITH_RESERVE_MIN);
    for (rounds, slot) in [(FUTURE_ROUNDS_MAX - 1, Some(RESERVED)), (FUTURE_ROUNDS_MAX, None)] {
        session.slots[RESERVED].set_unacknowledged_rounds(rounds as u32);
        assert_eq!(session.take_reserved_slot(), slot, "after {rounds} rounds");
    }
}

panics! {
    take_ended__of_a_call_that_goes_on: "the fast path has ended the call"
        => calling(1).take_ended(0);
    assert_sound__with_a_call_lost: "a slot is free if and only if it has no call" => {
        let mut session = calling(1);
        session.slots[0].take_call();
        session.assert_sound();
    };
    assert_sound__with_the_number_of_another_slot: "the numbers of a slot are a stride apart" => {
        let mut session = session(8);
        session.slots[3].set_number(4);
        session.assert_sound();
    };
    assert_sound__with_a_paced_slot_that_is_not_released:
        "the timer wheel releases the slots that wait for the pace" => {
        let mut session = calling(1);
        session.paced.push(0);
        session.assert_sound();
    };
    wait_for_pace__behind_a_slot_that_is_not_released:
        "a slot that waits for the pace is released later" => {
        use crate::congestion::CongestionCounters;
        let mut session = calling(1);
        session.congestion.on_loss(0, 64, &mut CongestionCounters::default());
        session.charge(1_000_000, 1, 1_000);
        (0..2).for_each(|_| assert!(session.wait_for_pace(1_000_000, 0).is_some()));
    };
    wait_for_pace__of_a_free_slot: "a slot waits for the pace on behalf of a call" => {
        use crate::congestion::CongestionCounters;
        let mut session = session(8);
        session.congestion.on_loss(0, 64, &mut CongestionCounters::default());
        session.charge(1_000_000, 1, 1_000);
        session.wait_for_pace(1_000_000, 0);
    };
    next_stalled__of_a_free_slot: "a slot that waits for a credit has a call" => {
        let mut session = session(8);
        session.stalled.push(0);
        session.next_stalled();
    };
    stall__of_a_free_slot: "a slot waits for credits on behalf of a call" => session(8).stall(0);
    note_timeout__of_a_free_slot: "the timeout of a slot is that of its call"
        => session(8).note_timeout(0);
    leave_network__with_a_packet_in_flight:
        "a session leaves the network before its first packet" => {
        let mut session = calling(1);
        session.note_sent(5, 0, 1, 0);
        session.leave_network();
    };
    assert_sound__with_other_credits_than_agreed:
        "the credits of a session are those agreed on" => {
        let mut session = session(8);
        session.credits = Credits::new(7);
        session.assert_sound();
    };
}

/// A server may begin to drain before its acceptance arrives.
#[test]
fn begin_drain__keeps_all_calls_from_the_fast_path() {
    use crate::buffer::HeapBuffer;
    use crate::session::client::PlainPlace;
    for drains_first in [false, true] {
        let mut session: ClientSession<HeapBuffer, u64> =
            ClientSession::opening(0, &RtoBounds::default());
        if drains_first {
            session.begin_drain();
        }
        let agreed = self::session(8).agreed.unwrap();
        session.establish(agreed, &CongestionControl::default());
        if !drains_first {
            session.begin_drain();
        }
        assert!(session.is_draining() && session.has_room());
        for len in [0, 1, 1_000] {
            assert!(PlainPlace::take_free(&mut session, (len, 0)).is_none(), "{len} bytes");
        }
        session.assert_sound();
    }
}

panics! {
    assert_sound__with_calls_to_a_server_that_drains: "none are made while the server drains" => {
        let mut session = session(8);
        session.is_draining = true;
        session.assert_sound();
    };
}

/// A call that ends leaves nothing behind, whatever its slot waited for.
#[test]
fn end_call__in_every_queue() {
    let mut session = calling(3);
    let mut spare = FreeList::new();
    session.note_sent(5, 0, 2, 0);
    session.slots[0].parts_mut(&mut spare).request_mut().note_run(0..2);
    session.stall(0);
    session.paced.push(0);
    assert_eq!(session.credits(), (6, 8));
    let ended = session.end_call(0, &mut spare);
    assert_eq!((ended.call.tag, ended.inherited_ns, ended.missed_multicast), (2, None, None));
    assert_eq!((session.credits(), session.held_back_count()), ((8, 8), 0));
    assert_eq!(session.recycle(0), SlotEnd::Released);
    session.assert_sound();
}
