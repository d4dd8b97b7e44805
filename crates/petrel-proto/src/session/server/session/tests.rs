use super::*;

/// Every bound is the least of the values behind it.
#[test]
fn new__takes_all_that_was_agreed() {
    let (spare, header) = (KEPT_ANSWER_BYTES_MAX, HEADER_BYTES as u32);
    for (packet_bytes, request_bytes_max, answer_bytes_max) in [
        (1_200, 8 << 20, 8 << 20),
        (1_200, 1_199, 1_199),
        (1_200, 1_201, 1_201),
        (spare - 1, 8 << 20, 8 << 20),
        (spare, 8 << 20, 8 << 20),
        (spare + 1, 8 << 20, 8 << 20),
        (spare + 1, 8 << 20, spare - 1),
        (1_200, 0, 0),
    ] {
        let agreed =
            Agreed { packet_bytes, peer_message_bytes_max: answer_bytes_max, ..Agreed::SAMPLE };
        let session: ServerSession<Vec<u8>> = ServerSession::new(agreed, 64, request_bytes_max);
        let what = format!("{packet_bytes} {request_bytes_max} {answer_bytes_max}");
        assert_eq!((session.agreed, session.peer), (agreed, PeerKey(1)));
        assert_eq!(session.to, Destination::new(2, 3));
        assert_eq!((session.stride(), session.first_request), (32, 64));
        assert_eq!(session.slots.len(), 0, "before the first request");
        let (packet, request) = (session.packet_bytes, session.request_bytes_max);
        assert_eq!((packet, request), (packet_bytes, request_bytes_max), "{what}");
        let plain = session.plain_frame_bytes_max;
        assert_eq!(plain, header + packet_bytes.min(request_bytes_max), "{what}");
        assert_eq!(session.kept_answer_bytes_max, packet_bytes.min(spare), "{what}");
        let plain = session.plain_response_bytes_max;
        assert_eq!(plain, packet_bytes.min(spare).min(answer_bytes_max), "{what}");
    }
}

#[test]
fn age__by_the_distance_from_the_current_request() {
    let mut session = session();
    let ages = |session: &ServerSession<Vec<u8>>, slot: usize, first: u64| {
        let furthest = first - 32 + FUTURE_ROUNDS_MAX * 32;
        [first - 32, first, furthest, furthest + 32].map(|request| session.age(slot, request))
    };
    use Age::{Current, Future, New, Stale};
    assert_eq!(ages(&session, 3, 67), [Stale, New, New, Future], "before the first request");
    assert!(session.make_ready(3), "the first request");
    assert_eq!(session.slots.len(), usize::from(SLOTS_AT_FIRST));
    assert_eq!(ages(&session, 3, 67), [Current, New, New, Future]);
    // A slot not allocated yet has had no request.
    assert_eq!(ages(&session, 20, 84), [Stale, New, New, Future]);
    assert!(!session.make_ready(20) && !session.make_ready(5));
    assert_eq!(ages(&session, 20, 84), [Current, New, New, Future]);
}

fn session() -> ServerSession<Vec<u8>> {
    ServerSession::new(Agreed::SAMPLE, 64, 1 << 20)
}

panics! {
    know_order__again: "the two ends agree on the order once" => {
        let mut session = session();
        session.know_order();
        session.know_order();
    };
    know_order__after_a_request: "a session numbers all of its requests or none" => {
        let mut session = session();
        session.make_ready(3);
        session.slot_mut(3).begin(67, 0, 10, 1, &mut crate::session::free_list::FreeList::new());
        session.slot_mut(3).run();
        session.know_order();
    };
}
