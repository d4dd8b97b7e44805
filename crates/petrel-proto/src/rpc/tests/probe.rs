//! Probes before a session is established (`docs/wire-protocol.md` §8.10).

use super::*;
use crate::limits::HEADER_BYTES;

/// A client session that is being opened, whose server has accepted already.
fn opening() -> (Pair, SessionId, SessionId) {
    let mut pair = Pair::new();
    let session = pair.client.open(77, 0).unwrap();
    let agreed = agreed(session.index, 77, Shape::default());
    let accepted = Accepted { agreed, token: 88, first_request: 0, request_bytes_max: 1 << 20 };
    let at_server = pair.server.accept(accepted).unwrap();
    (pair, session, at_server)
}

fn probed(pair: &mut Pair) -> Option<(SessionId, u64)> {
    match pair.client.poll_event() {
        None => None,
        Some(Event::Probed { session, number, .. }) => Some((session, number)),
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_probe_is_answered_until_the_session_is_established() {
    let (mut pair, session, at_server) = opening();
    pair.client.probe(PEER, (at_server.index, 88), 1 << 50 | 5);
    let frame = pair.client_sends().remove(0);
    assert_eq!(frame.len(), HEADER_BYTES);
    // A wrong token, a payload, another peer, and the right one, twice.
    let mut wrong = frame.clone();
    wrong[4] ^= 1;
    pair.at_server(&wrong).nothing();
    pair.at_server(&[&frame[..], &[0]].concat()).nothing();
    assert!(!pair.server.has_transmit());
    for _ in 0..2 {
        pair.at_server(&frame).nothing();
    }
    let answers = pair.server_sends();
    assert_eq!((answers.len(), answers[0].len()), (2, HEADER_BYTES));
    pair.at_client(&answers[0]).nothing();
    assert_eq!(probed(&mut pair), Some((session, 5)));
    let agreed = agreed(at_server.index, 88, Shape::default());
    pair.client.establish(session, agreed).unwrap();
    pair.at_client(&answers[1]).nothing();
    assert_eq!(probed(&mut pair), None);
    assert_eq!(pair.client.counters().dropped_stale, 1);
    assert_eq!(pair.server.counters().dropped_malformed, 1);
}

#[test]
fn probe__beyond_the_limit_is_omitted() {
    let (mut pair, _, at_server) = opening();
    for _ in 0..2_000 {
        pair.client.probe(PEER, (at_server.index, 88), 1);
    }
    let mut sent = 0;
    loop {
        match pair.client_sends().len() {
            0 => break,
            count => sent += count,
        }
    }
    assert_eq!(sent, crate::limits::PROBES_QUEUED_MAX);
    assert_eq!(pair.client.object_counts().to_send, 0);
}
