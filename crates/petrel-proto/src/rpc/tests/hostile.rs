//! A peer that knows the token and breaks the rules all the same.

use super::*;
use crate::bitmap::Words;
use crate::limits::{MESSAGE_BYTES_MAX, WINDOW_PACKETS};
use crate::wire::{Flags, Header, Kind, Pull};

/// A PULL for the first request, as its client would never send it.
fn pull(cumulative: u32, limit: u32, resend_below: u32) -> Vec<u8> {
    let header = Header {
        kind: Kind::Pull,
        flags: Flags::NONE,
        session: 0,
        token: SERVER_TOKEN,
        aux: 0,
        request: FIRST,
    };
    let pull = Pull { cumulative, limit, resend_below, bitmap: Words::default() };
    let (bytes, len) = pull.encode(header.words());
    bytes[..len].to_vec()
}

/// A pair whose server has sent the first packet of a response of so many.
fn answered(packets: u32) -> Pair {
    let mut pair = Pair::new();
    pair.call(b"give", 10, 1);
    let request = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&request).request();
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
    // 100 further ones, and again all that were sent and that the bitmap does not show.
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

/// An error of the core itself stands in the place of the answer. A PULL has it sent once more where it misses something
/// that was sent, and otherwise not.
#[test]
fn a_pull_for_an_error_has_it_repeated_if_it_was_missed() {
    let mut pair = Pair::new();
    pair.call(b"give", 10, 1);
    let request = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&request).request();
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
    let request = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&request).request();
    pair.respond(handle, &pattern(P as usize, 1));
    let answer = pair.server_sends().remove(0);
    pair.at_client(&[&answer[..], &[7]].concat()).nothing();
    assert_eq!(pair.client.counters().dropped_malformed, 1);
    pair.at_client(&answer).completed().outcome.unwrap();
    pair.assert_credits_back();
}

/// Of a response that no server may send nothing is taken. One that is only too long for the caller's buffer ends
/// the call, and says so.
#[test]
fn a_response_larger_than_any_message_is_malformed() {
    for (size, is_sound) in
        [(MESSAGE_BYTES_MAX, true), (MESSAGE_BYTES_MAX + 1, false), (u32::MAX, false)]
    {
        let mut pair = Pair::new();
        pair.call(b"give", 10, 1);
        let request = pair.client_sends().remove(0);
        let (handle, _) = pair.at_server(&request).request();
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
