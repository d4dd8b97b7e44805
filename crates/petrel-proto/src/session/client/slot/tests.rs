use super::*;
use crate::bitmap::Words;
use crate::recovery::rtt::RtoBounds;
use crate::session::backlog::Expiry;
use crate::session::credits::{Credits, lent};
use crate::session::free_list::FreeList;
use crate::timer::{TimerKey, TimerWheel};
use crate::wire::Announcement;

fn slot() -> ClientSlot<Vec<u8>, u64> {
    ClientSlot::new(5, 7)
}

fn call() -> PendingCall<Vec<u8>, u64> {
    PendingCall { method: 1, tag: 2, request: Vec::new(), response: Vec::new() }
}

/// Returns a slot that has begun a call with a request of this many packets.
fn calling(packets: u32) -> ClientSlot<Vec<u8>, u64> {
    let mut slot = slot();
    slot.start(call(), packets, SendPath::General);
    slot
}

#[test]
fn new__is_free_and_says_nothing_of_a_call() {
    // By name, so that the compiler demands new fields here.
    let ClientSlot {
        number,
        call,
        parts,
        held,
        request_packets,
        request_sent,
        response_limit,
        timer,
        state,
        path,
        queued,
        grant,
        method,
        expires,
        wheel,
        next_free,
        entry,
        unacknowledged_rounds,
        given_up,
        expiry_ns,
    } = slot();
    assert_eq!((number, state, next_free), (5, ClientState::Free, 7));
    assert!(call.is_none() && parts.is_none() && entry == TimerEntry::NONE);
    assert_eq!((timer.deadline_ns(), timer.since_ns(), timer.measured()), (0, 0, None));
    assert_eq!((timer.unanswered(), timer.backoff(), timer.is_pull_due()), (0, 0, false));
    assert_eq!((held.count(), request_packets, request_sent, response_limit), (0, 0, 0, 0));
    assert_eq!((method, path, grant, queued), (0, SendPath::General, 1, false));
    assert_eq!((unacknowledged_rounds, given_up), (0, 0));
    assert_eq!((expires, expiry_ns, wheel), (Expires::Unset, NEVER, WheelEntry::Absent));
}

/// Nothing of the earlier call is left.
#[test]
fn start__readies_a_used_slot_for_a_call_of_which_nothing_was_sent() {
    let mut slot = slot();
    slot.timer.ask();
    slot.timer.measure(6, 1);
    (slot.path, slot.grant, slot.request_sent, slot.request_packets) = (SendPath::Sent, 5, 7, 8);
    slot.expire_at(9);
    let (request, response) = (vec![1], vec![2]);
    slot.start(PendingCall { method: 10, tag: 11, request, response }, 12, SendPath::Plain);
    assert_eq!((slot.state, slot.path), (ClientState::Sending, SendPath::Plain));
    assert!(!slot.timer.is_pull_due() && !slot.timer.is_measuring() && !slot.is_on_wire());
    assert_eq!((slot.grant, slot.request_sent, slot.request_packets), (1, 0, 12));
    let SlotCall { tag, request, response } = slot.call.as_ref().expect("a call");
    assert_eq!((slot.method, *tag, &request[..], &response[..]), (10, 11, &[1][..], &[2][..]));
    assert!(slot.enter_queue() && !slot.enter_queue());
    Credits::new(1).lend_first(&mut slot.held);
    slot.note_plain_sent(13);
    assert_eq!((slot.path, slot.queued, slot.credits()), (SendPath::Sent, false, 1));
    assert_eq!((slot.request_sent, slot.response_limit), (1, 1));
    assert_eq!((slot.timer.measured(), slot.timer.since_ns()), (Some(0), 13));
}

#[test]
fn enter_wheel__until_the_slot_leaves_it_or_comes_due() {
    let (bounds, now_ns) = (RtoBounds::default(), 5_000_000_000);
    let mut timers = TimerWheel::new(now_ns);
    let key = TimerKey { session: 1, generation: 2, slot: 3 };
    let mut slot = slot();
    let soon_ns = bounds.soon_ns();
    for (ahead_ns, wakes_soon) in [(1, true), (soon_ns, true), (soon_ns + 1, false)] {
        slot.timer.set_deadline(now_ns + ahead_ns);
        slot.enter_wheel(now_ns, key, &bounds, &mut timers);
        assert_ne!(slot.wheel, WheelEntry::Absent);
        assert_eq!(slot.wakes_soon(), wakes_soon, "{ahead_ns}");
        assert_eq!(timers.entry_count(), 1);
        for _ in 0..2 {
            slot.leave_wheel(&mut timers);
            assert_eq!((slot.wheel, timers.entry_count()), (WheelEntry::Absent, 0));
        }
    }
    slot.timer.set_deadline(now_ns + 1);
    slot.enter_wheel(now_ns, key, &bounds, &mut timers);
    slot.note_due();
    assert_eq!(slot.wheel, WheelEntry::Absent);
}

/// For every kind of deadline: the time, whether the server learns of it, and the inherited deadline.
#[test]
fn set_expiry__is_given_back_as_it_was() {
    let mut spare = FreeList::new();
    let slot = &mut slot();
    let told = |at_ns, inherited_ns| Expiry { at_ns, is_on_wire: true, inherited_ns };
    let get = |slot: &ClientSlot<Vec<u8>, u64>| {
        let Expiry { at_ns, is_on_wire, inherited_ns } = slot.expiry();
        assert_eq!(slot.is_on_wire(), is_on_wire);
        (at_ns, is_on_wire, inherited_ns)
    };
    assert_eq!(get(slot), (NEVER, false, NEVER));
    slot.expire_by_default_at(70);
    assert_eq!(get(slot), (70, false, NEVER));
    for (at_ns, inherited_ns, borrows) in [(50, NEVER, false), (50, 50, false), (50, 60, true)] {
        slot.expires = Expires::Unset;
        slot.set_expiry(told(at_ns, inherited_ns), &mut spare);
        assert_eq!(get(slot), (at_ns, true, inherited_ns));
        assert_eq!(slot.parts.is_some(), borrows, "only a second time needs more room");
    }
}

#[test]
fn acknowledged_and_received_below__are_none_before_there_are_parts() {
    let mut spare = FreeList::new();
    let mut slot = slot();
    assert_eq!((slot.acknowledged_below(), slot.received_below()), (0, 0));
    let parts = slot.parts_mut(&mut spare);
    parts.request_mut().acknowledge(3, &Words::default(), 3);
    parts.response_mut().begin(4_000, 4);
    [0, 1, 3].into_iter().for_each(|packet| _ = parts.response_mut().receive(packet));
    assert_eq!((slot.acknowledged_below(), slot.received_below()), (3, 2));
}

/// Without multicast any loss may be congestion; with multicast only if more packets were acknowledged
/// than repeated.
#[test]
fn is_congestion_loss__unless_multicast_brings_nothing() {
    let announcement = Announcement { group: 1, sequence: 2 };
    for (is_announced, acknowledged, repeated, is_lost, missed) in [
        (false, 0, 0, true, None),
        (false, 0, 2, true, None),
        (true, 0, 0, false, Some(false)),
        (true, 1, 0, true, Some(false)),
        (true, 2, 2, false, Some(false)),
        (true, 3, 2, true, Some(false)),
        (true, 0, 3, false, Some(true)),
    ] {
        let (mut slot, mut spare) = (slot(), FreeList::new());
        assert!(slot.is_congestion_loss());
        assert_eq!(slot.missed_multicast(), None);
        slot.request_packets = 3;
        let parts = slot.parts_mut(&mut spare);
        if is_announced {
            parts.announce(announcement);
        }
        parts.request_mut().note_run(0..3);
        if repeated > 0 {
            parts.request_mut().lose(3, crate::recovery::Recovery::GoBackN);
        }
        (0..repeated).for_each(|packet| parts.request_mut().note_repeat(packet, false));
        parts.request_mut().acknowledge(acknowledged, &Words::default(), 3);
        assert_eq!(slot.is_congestion_loss(), is_lost, "{is_announced} {acknowledged} {repeated}");
        assert_eq!(slot.missed_multicast(), missed, "{is_announced} {acknowledged} {repeated}");
    }
}

/// The server has followed up to the request named here: only later requests were unseen.
#[test]
fn note_seen__leaves_the_requests_behind_it_unheard() {
    for stride in [1, 8, 64] {
        for (unacknowledged_rounds, behind, left) in
            [(5, 0, 0), (5, 1, 1), (5, 4, 4), (5, 5, 5), (5, 6, 5), (0, 3, 0)]
        {
            let mut slot = slot();
            (slot.number, slot.unacknowledged_rounds) = (1_000 * stride + 7, unacknowledged_rounds);
            slot.note_seen(slot.number - (behind + 1) * stride, stride);
            assert_eq!(
                slot.unacknowledged_rounds, left,
                "{unacknowledged_rounds} unacknowledged_rounds, {behind} behind, {stride}"
            );
        }
    }
}

#[test]
fn note_given_up__counts_requests_in_a_row_of_which_nothing_was_heard() {
    let (stride, mut spare) = (8, FreeList::new());
    let slot = &mut slot();
    let mut give_up = |slot: &mut ClientSlot<_, _>, state, acknowledged: bool| {
        slot.number += stride;
        slot.state = state;
        slot.request_sent = 1;
        let parts = slot.parts_mut(&mut spare);
        if acknowledged {
            parts.request_mut().acknowledge(1, &Words::default(), 1);
        }
        slot.note_given_up(stride);
        spare.take_back(&mut slot.parts);
        slot.unacknowledged_rounds
    };
    assert_eq!(give_up(slot, ClientState::Sending, false), 1);
    assert_eq!(give_up(slot, ClientState::Sending, false), 2);
    assert_eq!(give_up(slot, ClientState::Sending, true), 0, "a packet was acknowledged");
    assert_eq!(give_up(slot, ClientState::Sending, false), 1);
    assert_eq!(give_up(slot, ClientState::Waiting, false), 0, "all of it was acknowledged");
    assert_eq!(give_up(slot, ClientState::Sending, false), 1);
    assert_eq!(give_up(slot, ClientState::Sending, false), 2);
    slot.number += stride;
    assert_eq!(give_up(slot, ClientState::Sending, false), 1, "one between them was answered");
}

panics! {
    start__of_a_slot_with_a_call: "a call begins in a free slot"
        => calling(1).start(call(), 1, SendPath::General);
    start__of_a_free_slot_with_a_call: "a slot takes one call at a time" => {
        let mut slot = calling(1);
        slot.state = ClientState::Free;
        slot.start(call(), 1, SendPath::General);
    };
    start__of_a_slot_with_credits: "a slot begins a call without credits" => {
        let mut slot = slot();
        slot.held = lent(8, 1).1;
        slot.start(call(), 1, SendPath::General);
    };
    start__of_a_slot_without_request_numbers: "a retired slot takes no call" => {
        let mut slot = slot();
        slot.number = REQUEST_NUMBER_END;
        slot.start(call(), 1, SendPath::General);
    };
    note_sent__beyond_the_end: "no packet is sent beyond the end of a request"
        => calling(3).note_sent(4, 0);
    note_repeated__of_a_packet_that_was_not_sent:
        "only a packet of a request that was sent is repeated" => {
        let mut slot = calling(3);
        slot.note_sent(1, 0);
        slot.note_repeated(1, 0, &mut FreeList::new());
    };
    enter_waiting__with_a_packet_unacknowledged:
        "a slot enters WAITING when the whole request is acknowledged" => {
        let mut slot = calling(1);
        slot.note_sent(1, 0);
        slot.enter_waiting(1);
    };
    enter_receiving__while_packets_are_left_to_send:
        "a response in parts begins after the whole request was sent" => {
        let mut slot = calling(3);
        slot.note_sent(2, 0);
        slot.enter_receiving(5_000, 5, &mut FreeList::new());
    };
}

/// Returns a slot that receives a response of five packets.
fn receiving() -> ClientSlot<Vec<u8>, u64> {
    let mut slot = calling(1);
    slot.note_plain_sent(1);
    slot.enter_receiving(5_000, 5, &mut FreeList::new());
    slot
}

panics! {
    enter_receiving__twice: "a response begins once"
        => receiving().enter_receiving(5_000, 5, &mut FreeList::new());
    allow__beyond_the_end: "no packet is allowed beyond the end of a response"
        => receiving().allow(5);
    end__twice: "a call ends once" => {
        let mut slot = calling(1);
        (0..2).for_each(|_| _ = slot.end(8));
    };
    enter_wheel__twice: "a slot has one entry in the timer wheel" => {
        let mut timers = TimerWheel::new(0);
        let mut slot = calling(1);
        let key = TimerKey { session: 0, generation: 0, slot: 0 };
        for _ in 0..2 {
            slot.enter_wheel(0, key, &RtoBounds::default(), &mut timers);
        }
    };
    note_due__without_an_entry: "a timer comes due that the slot has not set"
        => calling(1).note_due();
    expire_by_default_at__over_a_deadline: "a default timeout replaces no deadline" => {
        let mut slot = calling(1);
        slot.expire_at(5);
        slot.expire_by_default_at(9);
    };
    receive__beyond_the_limit: "the server sends packets that the client allows"
        => receiving().receive(1);
    release_parts__of_a_call_that_goes_on: "a slot keeps its state until its call ends"
        => receiving().release_parts(&mut FreeList::new());
    end__with_a_credit: "a call ends after its credits are returned" => {
        let mut slot = calling(1);
        slot.held = lent(8, 1).1;
        slot.end(8);
    };
    note_pull_sent__before_a_packet_was_sent: "a client asks about packets that it has sent" => {
        let mut slot = calling(1);
        slot.timer.ask();
        slot.note_pull_sent();
    };
    repeat__before_a_packet_was_sent: "a timeout looks for packets of the server"
        => calling(1).repeat(crate::recovery::Recovery::Selective, &mut FreeList::new());
    set_expiry__twice: "a call gets its deadline once" => {
        let (mut slot, mut spare) = (slot(), FreeList::new());
        let expiry = Expiry { at_ns: 50, is_on_wire: true, inherited_ns: NEVER };
        (0..2).for_each(|_| slot.set_expiry(expiry, &mut spare));
    };
    note_given_up__of_a_request_that_was_not_sent: "a request that is given up was sent" => {
        let mut slot = slot();
        slot.state = ClientState::Sending;
        slot.note_given_up(8);
    };
}
