use super::*;
use crate::session::PeerKey;

/// All fields of a slot, except owned memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    current: u64,
    /// Bytes, packets, and method.
    request: (u32, u32, u16),
    echo: (u32, bool),
    /// Packets allowed, in total, and sent.
    response: (u32, u32, u32),
    state: ServerState,
    answer: (Status, u16),
    is_plain: bool,
    takes_plain: bool,
    credit_due: bool,
    queued: bool,
    bits: u8,
}

impl Said {
    fn by(slot: &ServerSlot<Vec<u8>>) -> Self {
        Self {
            current: slot.current,
            request: (slot.request_size, slot.request_packets, slot.method),
            echo: (slot.echo, slot.echo_repeats),
            response: (slot.response_limit, slot.response_packets, slot.response_sent),
            state: slot.state,
            answer: (slot.status, slot.answer_bits),
            is_plain: slot.is_plain,
            takes_plain: slot.takes_plain,
            credit_due: slot.credit_due,
            queued: slot.queued,
            bits: slot.bits,
        }
    }
}

const NEW: Said = Said {
    current: 5,
    request: (0, 0, 0),
    echo: (0, false),
    response: (0, 0, 0),
    state: ServerState::Idle,
    answer: (Status::Ok, 0),
    is_plain: false,
    takes_plain: true,
    credit_due: false,
    queued: false,
    bits: 0,
};

/// A slot with all fields used.
const USED: Said = Said {
    current: 5,
    request: (3_000, 3, 4),
    echo: (2, true),
    response: (9, 8, 7),
    state: ServerState::Answered,
    answer: (Status::Internal, WATCHED | ANSWERED_LATER),
    is_plain: true,
    takes_plain: true,
    credit_due: true,
    queued: true,
    bits: MARKED,
};

fn used() -> ServerSlot<Vec<u8>> {
    let slot = ServerSlot {
        request_size: USED.request.0,
        request_packets: USED.request.1,
        method: USED.request.2,
        echo: USED.echo.0,
        echo_repeats: USED.echo.1,
        response_limit: USED.response.0,
        response_packets: USED.response.1,
        response_sent: USED.response.2,
        state: USED.state,
        status: USED.answer.0,
        answer_bits: USED.answer.1,
        is_plain: USED.is_plain,
        takes_plain: USED.takes_plain,
        credit_due: USED.credit_due,
        queued: USED.queued,
        bits: USED.bits,
        ..ServerSlot::new(USED.current)
    };
    assert_eq!(Said::by(&slot), USED);
    slot
}

#[test]
fn new__says_nothing() {
    let slot = ServerSlot::<Vec<u8>>::new(5);
    assert_eq!(Said::by(&slot), NEW);
    assert!(slot.message.is_none() && slot.parts.is_none() && !slot.held.is_some());
}

#[test]
fn begin__leaves_nothing_of_the_request_before() {
    let (mut slot, mut spare) = (used(), FreeList::new());
    slot.parts_mut(&mut spare).begin_request(vec![1]);
    slot.message = Some(vec![2]);
    slot.takes_plain = true;
    slot.begin(13, 6, 100, 1, &mut spare);
    let begun = Said {
        current: 13,
        request: (100, 1, 6),
        echo: (0, false),
        // The number of the answer's packets is set with the answer.
        response: (1, 8, 7),
        state: ServerState::Arriving,
        answer: (Status::Internal, 0),
        is_plain: false,
        takes_plain: false,
        credit_due: false,
        bits: 0,
        ..USED
    };
    assert_eq!(Said::by(&slot), begun);
    assert!(slot.parts.is_none());
    assert_eq!(slot.message, Some(vec![2]), "for the next answer");
}

/// Boxes of parts go to the free list, and must not keep a request's memory.
#[test]
fn begin_empty_and_give_up__free_the_request() {
    use std::rc::Rc;
    type End = fn(&mut ServerSlot<Rc<()>>, &mut FreeList<ServerParts<Rc<()>>>);
    let ends: [(&str, End); 3] = [
        ("begin", |slot, spare| slot.begin(13, 6, 100, 1, spare)),
        ("empty", |slot, _| slot.empty()),
        ("give up", |slot, spare| slot.give_up(13, spare)),
    ];
    for (name, end) in ends {
        let (mut slot, mut spare) = (ServerSlot::new(5), FreeList::new());
        let request = Rc::new(());
        slot.parts_mut(&mut spare).begin_request(Rc::clone(&request));
        assert_eq!(Rc::strong_count(&request), 2);
        end(&mut slot, &mut spare);
        assert_eq!(Rc::strong_count(&request), 1, "{name}");
    }
}

#[test]
fn set_answer__begins_with_the_first_packet() {
    for (packets, bits, is_plain) in
        [(1, 0, true), (2, 0, false), (1, MARKED, false), (2, MARKED, false), (1, BY_PATHS, false)]
    {
        let mut slot = ServerSlot { bits, state: ServerState::Running, ..used() };
        set_answer(&mut slot, vec![1], packets);
        let answered = Said {
            response: (9, packets, 0),
            answer: (Status::Ok, ANSWERED_LATER),
            credit_due: false,
            is_plain,
            bits,
            ..USED
        };
        assert_eq!(Said::by(&slot), answered);
        assert_eq!(slot.message, Some(vec![1]));
    }
}

#[test]
fn set_sent_answer__is_one_that_was_sent_whole() {
    let mut slot = used();
    slot.set_sent_answer(vec![1]);
    let answered = Said {
        response: (9, 1, 1),
        answer: (Status::Ok, 0),
        echo: (2, false),
        credit_due: false,
        is_plain: false,
        ..USED
    };
    assert_eq!((Said::by(&slot), slot.message), (answered, Some(vec![1])));
}

#[test]
fn give_up__leaves_nothing_to_send() {
    let (mut slot, mut spare) = (used(), FreeList::new());
    slot.message = Some(vec![1]);
    slot.parts_mut(&mut spare).begin_request(vec![2]);
    slot.give_up(13, &mut spare);
    let given_up = Said {
        current: 13,
        response: (0, 0, 0),
        answer: (Status::Cancelled, 0),
        credit_due: false,
        bits: 0,
        ..USED
    };
    assert_eq!(Said::by(&slot), given_up);
    assert!(slot.message.is_none() && slot.parts.is_none());
    assert!(slot.is_given_up() && !slot.is_answer_gone());
}

#[test]
fn drop_answer__is_as_if_one_packet_had_been_sent() {
    let (mut slot, mut spare) = (used(), FreeList::new());
    slot.message = Some(vec![1]);
    slot.drop_answer(&mut spare);
    let dropped = Said {
        response: (1, 1, 1),
        answer: (Status::DataLoss, 0),
        credit_due: false,
        bits: 0,
        ..USED
    };
    assert_eq!(Said::by(&slot), dropped);
    assert!(slot.is_answer_gone() && !slot.is_given_up());
}

#[test]
fn is_waiting__of_requests_that_run_and_whose_answer_begins_with_one_packet() {
    let states =
        [ServerState::Idle, ServerState::Arriving, ServerState::Running, ServerState::Answered];
    for state in states {
        for response_limit in [0, 1, 2] {
            let mut slot = ServerSlot { state, response_limit, ..used() };
            let runs = state == ServerState::Running;
            assert_eq!(slot.is_waiting(), runs && response_limit < 2);
            slot.note_asked();
            assert_eq!((slot.is_waiting(), slot.response_limit), (runs, response_limit));
            assert_eq!(slot.is_watched(), runs);
        }
    }
}

#[test]
fn note_asked__lowers_the_limit_with_the_credit_and_not_before() {
    let asked = || {
        let mut slot = ServerSlot {
            state: ServerState::Running,
            response_limit: 3,
            ..ServerSlot::<Vec<u8>>::new(5)
        };
        slot.note_asked();
        slot
    };
    let mut answered = asked();
    set_answer(&mut answered, vec![1], 3);
    assert_eq!((answered.response_limit, answered.answer_aux()), (3, ANSWERED_LATER));

    let mut credited = asked();
    credited.credit_due = true;
    let (_, flags) = credited.due_credit().expect("one is due");
    assert!(flags.waits());
    credited.note_credit_sent();
    set_answer(&mut credited, vec![1], 3);
    assert_eq!(credited.response_limit, 1);
}

/// Answers with a message that holds no memory.
fn set_answer(slot: &mut ServerSlot<Vec<u8>>, message: Vec<u8>, packets: u32) {
    let (answer, held) = ((Status::Ok, ANSWERED_LATER), HoldingId::NONE);
    slot.set_answer(answer, message, packets, held, &mut FreeList::new());
}

/// Returns a slot in a state, with a request of three packets.
fn slot_in(state: ServerState) -> ServerSlot<Vec<u8>> {
    ServerSlot { state, request_packets: 3, ..ServerSlot::new(5) }
}

/// Returns a slot that holds memory.
fn holding() -> ServerSlot<Vec<u8>> {
    use crate::session::SessionId;
    use crate::session::held::{Held, Holder, HoldingKind};
    let session = SessionId { index: 0, generation: 0 };
    let holder = Holder { session, slot: 0, peer: PeerKey(1) };
    let mut slot = slot_in(ServerState::Arriving);
    slot.hold(Held::new(0, 1 << 20).add(HoldingKind::Arriving, holder, 1));
    slot
}

panics! {
    begin__of_the_current_request: "the request number of a slot only grows"
        => slot_in(ServerState::Answered).begin(5, 1, 2, 1, &mut FreeList::new());
    begin__while_the_slot_holds_memory:
        "a new request begins after the memory of the former is released"
        => holding().begin(13, 1, 2, 1, &mut FreeList::new());
    begin_plain__while_the_slot_holds_memory: "a slot for plain requests holds no memory"
        => holding().begin_plain(13, 1, 2);
    hold__twice: "a slot has one account at a time" => holding().hold(HoldingId::NONE);
    run__twice: "a handler is called once for a request" => {
        let mut slot = slot_in(ServerState::Arriving);
        slot.run();
        slot.run();
    };
    note_packet__after_the_answer: "a CREDIT is due for a request without an answer"
        => slot_in(ServerState::Answered).note_packet(0, false);
    note_packet__beyond_the_request: "a CREDIT names a packet of the request"
        => slot_in(ServerState::Running).note_packet(3, false);
    set_answer__of_a_request_that_arrives: "a handler answers a running request"
        => set_answer(&mut slot_in(ServerState::Arriving), vec![1], 1);
    set_answer__over_another: "an answer overwrites no other answer" => {
        let mut slot = slot_in(ServerState::Running);
        slot.message = Some(vec![1]);
        set_answer(&mut slot, vec![2], 1);
    };
    set_error_answer__of_a_request_that_was_given_up:
        "an error answers a request that has no answer" => {
        let mut slot = slot_in(ServerState::Running);
        slot.give_up(5, &mut FreeList::new());
        slot.set_error_answer(Status::Internal, 0, "no", &mut FreeList::new());
    };
    give_up__of_an_earlier_request: "a request before the current one is not given up"
        => slot_in(ServerState::Running).give_up(4, &mut FreeList::new());
    note_sent__beyond_the_limit: "no packet of an answer is sent before the client allows it" => {
        let mut slot = slot_in(ServerState::Running);
        set_answer(&mut slot, vec![1], 2);
        slot.response_limit = 1;
        (0..2).for_each(|_| slot.note_sent());
    };
    note_sent__beyond_the_end: "no packet is sent beyond the end of an answer" => {
        let mut slot = slot_in(ServerState::Running);
        set_answer(&mut slot, vec![1], 1);
        slot.response_limit = 9;
        (0..2).for_each(|_| slot.note_sent());
    };
    note_repeated__of_a_packet_that_was_not_sent:
        "only a packet of an answer that was sent is repeated" => {
        let mut slot = slot_in(ServerState::Running);
        set_answer(&mut slot, vec![1], 1);
        slot.note_repeated(0, &mut FreeList::new());
    };
    next_answer_packet__of_a_shorter_answer: "a packet that is repeated is in the answer" => {
        let mut slot = slot_in(ServerState::Running);
        set_answer(&mut slot, vec![1], 2);
        slot.response_limit = 2;
        (0..2).for_each(|_| slot.note_sent());
        slot.repeat_first(&mut FreeList::new());
        slot.response_packets = 0;
        slot.next_answer_packet();
    };
    watch__of_a_request_that_was_answered: "only a running request is watched"
        => slot_in(ServerState::Answered).watch();
    hold__of_a_running_request: "a request is charged while it arrives"
        => slot_in(ServerState::Running).hold(HoldingId::NONE);
    arrive__beyond_the_end: "a packet that arrives is part of the request"
        => slot_in(ServerState::Arriving).arrive(3);
    note_credit_sent__without_a_packet: "a CREDIT is sent when one is due"
        => slot_in(ServerState::Arriving).note_credit_sent();
    note_pull__of_a_running_request: "a PULL asks for packets of an answer" => {
        let pull = crate::wire::Pull { cumulative: 0, limit: 1, resend_below: 0, bitmap: [0; 4] };
        slot_in(ServerState::Running).note_pull(&pull, &mut FreeList::new());
    };
    begin_buffer__of_a_request_of_one_packet: "a request of one packet needs no buffer" => {
        let mut slot = ServerSlot::new(5);
        slot.begin(13, 1, 2, 1, &mut FreeList::new());
        slot.begin_buffer(vec![1], &mut FreeList::new());
    };
    set_error_answer__with_success: "an error has another status than OK" => {
        let mut slot = slot_in(ServerState::Running);
        slot.set_error_answer(Status::Ok, 0, "yes", &mut FreeList::new());
    };
}
