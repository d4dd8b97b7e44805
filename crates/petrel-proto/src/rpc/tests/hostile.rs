//! A peer that knows the token and violates the rules.

use super::*;
use crate::bitmap::Words;
use crate::limits::{MESSAGE_BYTES_MAX, WINDOW_PACKETS};
use crate::wire::{Flags, Header, Kind, Pull};

/// A PULL for the first request that a correct client would never send.
fn pull(cumulative: u32, limit: u32, resend_below: u32) -> Vec<u8> {
    pull_for(FIRST, cumulative, limit, resend_below)
}

fn pull_for(request: u64, cumulative: u32, limit: u32, resend_below: u32) -> Vec<u8> {
    let header = Header {
        kind: Kind::Pull,
        flags: Flags::NONE,
        session: 0,
        token: SERVER_TOKEN,
        aux: 0,
        request,
    };
    let pull = Pull { cumulative, limit, resend_below, bitmap: Words::default() };
    let (bytes, len) = pull.encode(header.words());
    bytes[..len].to_vec()
}

/// Returns a pair whose server has sent the first packet of a response of `packets` packets.
fn answered(packets: u32) -> Pair {
    let mut pair = Pair::new();
    pair.call(b"give", 10, 1);
    let handle = pair.arrives();
    pair.respond(handle, &pattern((packets * P) as usize, 1));
    assert_eq!(pair.server_sends().len(), 1);
    pair
}

#[test]
fn a_pull_opens_no_more_than_the_window() {
    let mut pair = answered(600);
    pair.at_server(&pull(0, u32::MAX, 0)).nothing();
    assert_eq!(pair.server_sends().len(), WINDOW_PACKETS as usize - 1);
    pair.at_server(&pull(100, u32::MAX, u32::MAX)).nothing();
    // 100 further packets, and all sent packets that the bitmap does not show.
    assert_eq!(pair.server_sends().len(), 100 + WINDOW_PACKETS as usize - 100);
    assert_eq!(pair.server.counters().dropped_malformed, 0);
}

#[test]
fn a_pull_that_knows_of_packets_never_sent_is_malformed() {
    let mut pair = answered(600);
    for cumulative in [2, 256, u32::MAX] {
        pair.at_server(&pull(cumulative, u32::MAX, u32::MAX)).nothing();
        assert!(pair.server_sends().is_empty());
    }
    assert_eq!(pair.server.counters().dropped_malformed, 3);
}

/// An error of the core replaces the answer. A PULL causes a repetition only if it shows that a sent packet
/// is missing.
#[test]
fn a_pull_for_an_error_has_it_repeated_if_it_was_missed() {
    let mut pair = Pair::new();
    pair.call(b"give", 10, 1);
    let handle = pair.arrives();
    pair.server.respond_error(handle, Status::Internal, "no");
    pair.at_server(&pull(0, 1, 1)).nothing();
    let first = words(&pair.server_sends());
    assert_eq!(first.len(), 1, "{first:?}");
    pair.at_server(&pull(0, 1, 0)).nothing();
    assert!(pair.server_sends().is_empty(), "nothing is missed");
    for missed in [pull(0, 1, 1), pull(1, 2, 0)] {
        pair.at_server(&missed).nothing();
        assert_eq!(words(&pair.server_sends()), [format!("{} again", first[0])]);
    }
}

#[test]
fn a_response_longer_than_a_packet_is_malformed() {
    let mut pair = Pair::new();
    pair.call(b"give", 2 * P as usize, 1);
    let handle = pair.arrives();
    pair.respond(handle, &pattern(P as usize, 1));
    let answer = pair.server_sends().remove(0);
    pair.at_client(&[&answer[..], &[7]].concat()).nothing();
    assert_eq!(pair.client.counters().dropped_malformed, 1);
    pair.at_client(&answer).completed().outcome.unwrap();
    pair.assert_credits_back();
}

/// A response with an impossible size is dropped. A response too long for the caller's buffer ends the call
/// with an error.
#[test]
fn a_response_larger_than_any_message_is_malformed() {
    for (size, is_sound) in
        [(MESSAGE_BYTES_MAX, true), (MESSAGE_BYTES_MAX + 1, false), (u32::MAX, false)]
    {
        let mut pair = Pair::new();
        pair.call(b"give", 10, 1);
        let handle = pair.arrives();
        pair.respond(handle, &pattern(2 * P as usize, 1));
        let mut part = pair.server_sends().remove(0);
        part[16..20].copy_from_slice(&size.to_le_bytes());
        match pair.at_client(&part) {
            Got::Completed(ended) if is_sound => {
                assert_eq!(ended.outcome.unwrap_err().status, Status::ResourceExhausted);
            }
            Got::Nothing if !is_sound => {
                assert_eq!(pair.client.counters().dropped_malformed, 1);
                assert_eq!(pair.client.pending_calls(pair.session), 1);
            }
            other => panic!("{size} B: {other:?}"),
        }
    }
}

/// A part with an index beyond the last packet is malformed, even if the last packet is full and the part
/// would be empty.
#[test]
fn a_part_behind_the_last_is_malformed() {
    const PACKET: std::ops::Range<usize> = 20..23;
    let behind = |part: &[u8], packet: u32| {
        let mut behind = part[..crate::limits::PART_HEADER_BYTES].to_vec();
        behind[PACKET].copy_from_slice(&packet.to_le_bytes()[..3]);
        behind
    };
    for packets in [2, 3] {
        let mut pair = Pair::new();
        let message = pattern((packets * P) as usize, 1);
        pair.call(&message, message.len(), 1);
        let parts = pair.client_sends();
        for packet in [packets, packets + 1, 0xFF_FFFF] {
            pair.at_server(&behind(&parts[0], packet)).nothing();
        }
        assert_eq!(pair.server.counters().dropped_malformed, 3);
        let mut got = parts.iter().map(|part| pair.at_server(part)).collect::<Vec<_>>();
        let (handle, request) = got.pop().unwrap().request();
        assert!(request == message);
        pair.respond(handle, &message);
        let answer = pair.server_sends();
        let first = &answer[0];
        // Before the first packet of the response, and after.
        for _ in 0..2 {
            for packet in [packets, packets + 1, 0xFF_FFFF] {
                pair.at_client(&behind(first, packet)).nothing();
            }
            pair.at_client(first).nothing();
        }
        assert_eq!(pair.client.counters().dropped_malformed, 6);
        let mut got = answer[1..].iter().map(|part| pair.at_client(part)).collect::<Vec<_>>();
        let completion = got.pop().unwrap().completed();
        completion.outcome.unwrap();
        assert!(completion.response.message() == message);
        pair.assert_credits_back();
    }
}

/// On every path, a new request resets the slot's fields. A correct client asks only about acknowledged
/// requests; this client asks at once.
#[test]
fn a_small_request_behind_a_large_one_is_credited_as_it_is() {
    for fast_path in [false, true] {
        let mut pair = Pair::by(Shape::default(), fast_path);
        pair.call(&pattern(3 * P as usize, 1), 10, 1);
        let parts = pair.client_sends();
        let mut got = parts.iter().map(|part| pair.at_server(part)).collect::<Vec<_>>();
        let (handle, _) = got.pop().unwrap().request();
        pair.wait_for_timeout();
        for part in pair.client_sends() {
            pair.at_server(&part).nothing();
        }
        let credits = words(&pair.server_sends());
        assert!(!credits.is_empty());
        pair.respond(handle, b"large");
        let answer = pair.server_sends().remove(0);
        pair.at_client(&answer).completed().outcome.unwrap();
        pair.call(b"small", 10, 2);
        let request = pair.client_sends().remove(0);
        assert_eq!(words(std::slice::from_ref(&request)), ["REQUEST s0 r840 m1 5 B"]);
        let (handle, _) = pair.at_server(&request).request();
        assert!(pair.server_sends().is_empty(), "its answer says enough");
        pair.at_server(&pull_for(FIRST + 8, 0, 1, 0)).nothing();
        assert_eq!(
            words(&pair.server_sends()),
            ["CREDIT s0 r840 up to 1, echo 0, waits"],
            "{credits:?}"
        );
        pair.respond(handle, b"answer");
        let answer = pair.server_sends().remove(0);
        assert_eq!(pair.at_client(&answer).completed().response.message(), b"answer");
        pair.assert_credits_back();
    }
}

/// A free entry matches no token: neither the last one nor that of an empty field.
#[test]
fn frames_for_a_session_that_is_closed_are_for_none_whatever_their_token() {
    for fast_path in [false, true] {
        let mut pair = Pair::by(Shape::default(), fast_path);
        pair.call(b"small", 10, 1);
        let request = pair.client_sends().remove(0);
        pair.server.close(pair.server_session, Status::Unavailable, "closed");
        for (token, count) in [(SERVER_TOKEN, 1), (0, 2), (u32::MAX, 3)] {
            let mut frame = request.clone();
            let place = frame.windows(4).position(|bytes| bytes == SERVER_TOKEN.to_le_bytes());
            frame[place.unwrap()..][..4].copy_from_slice(&token.to_le_bytes());
            pair.at_server(&frame).nothing();
            let counters = pair.server.counters();
            assert_eq!((counters.dropped_unknown_session, counters.dropped_wrong_peer), (count, 0));
        }
    }
}
