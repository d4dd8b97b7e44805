//! Every message: decoding inverts encoding, and arbitrary bytes decode to a message or an error.

use petrel_kv::api::*;
use petrel_kv::command::{BatchBuffer, BatchError, Command, Expected, LeaseOp, Op, Restore};
use petrel_kv::limits::{
    BATCH_OPS_MAX, KEY_BYTES_MAX, LEASE_CLOCK_MS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, SCAN_BYTES_MAX,
    VALUE_BYTES_MAX,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Checks that encoding and decoding returns the message, and that prefixes and longer messages fail to decode.
macro_rules! assert_round_trip {
    ($type:ident, $message:expr) => {{
        let message = $message;
        let bytes = message.to_vec();
        assert_eq!($type::decode(&bytes), Ok(message.clone()));
        for len in 0..bytes.len() {
            assert!($type::decode(&bytes[..len]).is_err(), "{message:?} cut to {len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!($type::decode(&longer), Err(DecodeError::Trailing(1)));
    }};
}

fn bytes(len_max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=len_max)
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..=20)
}

fn consistency() -> impl Strategy<Value = Consistency> {
    prop_oneof![Just(Consistency::Linearizable), Just(Consistency::Stale)]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::SessionOpened),
        any::<bool>().prop_map(|replaced| Outcome::Put { replaced }),
        any::<bool>().prop_map(|existed| Outcome::Deleted { existed }),
        (any::<u16>(), option::of(1..=u64::MAX))
            .prop_map(|(position, revision)| Outcome::Mismatch { position, revision }),
        Just(Outcome::Batch),
        prop_oneof![
            Just(RestoreOutcome::Begun),
            Just(RestoreOutcome::Taken),
            Just(RestoreOutcome::Done),
            Just(RestoreOutcome::Abandoned),
            Just(RestoreOutcome::NotEmpty),
            Just(RestoreOutcome::Superseded),
            Just(RestoreOutcome::OutOfPlace),
            Just(RestoreOutcome::Damaged),
        ]
        .prop_map(Outcome::Restore),
        prop_oneof![
            Just(LeaseOutcome::Granted),
            Just(LeaseOutcome::Kept),
            any::<u32>().prop_map(|keys| LeaseOutcome::Revoked { keys }),
            Just(LeaseOutcome::Unknown),
            Just(LeaseOutcome::TooMany),
            Just(LeaseOutcome::TooManyKeys),
        ]
        .prop_map(Outcome::Lease),
    ]
}

/// Every refusal, with this text.
fn refusals(text: &str) -> [Refusal<'_>; 10] {
    [
        Refusal::NotLeader { leader: None },
        Refusal::NotLeader { leader: Some(Leader { node: 513, address: text }) },
        Refusal::SessionUnknown,
        Refusal::SequenceTooOld,
        Refusal::TooManyPending,
        Refusal::Malformed(text),
        Refusal::Full(text),
        Refusal::Unavailable { certainty: Certainty::Unknown, reason: text },
        Refusal::Unavailable { certainty: Certainty::NotApplied, reason: text },
        Refusal::Restoring,
    ]
}

/// Every single operation.
fn ops<'a>(key: &'a [u8], value: &'a [u8], revision: u64) -> Vec<Op<'a>> {
    let expectations = [Expected::Absent, Expected::Revision(revision), Expected::Value(value)];
    let cas = expectations.map(|expected| Op::Cas { key, expected, value });
    let cas_delete = expectations.map(|expected| Op::CasDelete { key, expected });
    let all = expectations.into_iter().map(Some).chain([None]);
    let lease = revision;
    let leased = all.map(|expected| Op::LeasedPut { key, lease, expected, value });
    let leased: Vec<Op<'_>> = leased.collect();
    [&[Op::Put { key, value }, Op::Delete { key }][..], &cas, &cas_delete, &leased].concat()
}

proptest! {
    #[test]
    fn commands__round_trip(
        key in key(), value in bytes(30), session: u64, sequence: u64, before in 0..300u64, revision: u64,
    ) {
        let first_pending = sequence.saturating_sub(before);
        let mut buffer = BatchBuffer::default();
        let mut all = ops(&key, &value, revision);
        for op in &all {
            buffer.push(op).unwrap();
        }
        prop_assert!(buffer.batch().ops().eq(all.iter().copied()));
        all.push(Op::Batch(buffer.batch()));
        for op in all {
            assert_round_trip!(Command, Command::Write { session, sequence, first_pending, op });
        }
    }

    #[test]
    fn write_replies__round_trip(index: u64, outcome in outcome(), text in ".{0,40}") {
        let applied = WriteReply::Applied(Applied { index, outcome });
        assert_round_trip!(WriteReply, applied);
        assert_eq!(Refusal::of_reply(&applied.to_vec()), Ok(None));
        for refusal in refusals(&text) {
            let reply = WriteReply::Refused(refusal).to_vec();
            assert_eq!(Refusal::of_reply(&reply), Ok(Some(refusal)));
            assert_round_trip!(WriteReply, WriteReply::Refused(refusal));
            assert_round_trip!(GetReply, GetReply::Refused(refusal));
            assert_round_trip!(ScanReply, ScanReply::Refused(refusal));
            assert_round_trip!(AdminReply, AdminReply::Refused(refusal));
        }
    }

    #[test]
    fn gets__round_trip(consistency in consistency(), key in key(), revision: u64, value in bytes(40)) {
        assert_round_trip!(GetRequest, GetRequest { consistency, key: &key });
        assert_round_trip!(GetReply, GetReply::from_found(Some((&value, revision))));
        assert_round_trip!(GetReply, GetReply::from_found(None));
    }

    #[test]
    fn saves__round_trip(
        consistency in consistency(), key in key(), value in bytes(40), numbers: [u64; 4],
        check in option::of(any::<u64>()), text in ".{0,40}",
    ) {
        let [save, revision, keys, bytes] = numbers;
        assert_round_trip!(SaveRequest, SaveRequest::Begin { consistency });
        assert_round_trip!(SaveRequest, SaveRequest::Block { save, block: keys });
        assert_round_trip!(SaveRequest, SaveRequest::End { save });
        let begun = SaveReply::Begun { save, revision, keys, bytes, address: &text };
        assert_round_trip!(SaveReply, begun);
        let mut buffer = PairsBuffer::default();
        buffer.push(&Pair { key: &key, revision, value: &value });
        assert_round_trip!(SaveReply, SaveReply::Block { pairs: buffer.pairs(), check });
        assert_round_trip!(SaveReply, SaveReply::Ended);
        assert_round_trip!(SaveReply, SaveReply::Refused(Refusal::Restoring));
    }

    #[test]
    fn restores__round_trip(key in key(), value in bytes(40), revision in 0..=1u64 << 62, restore: u64, check: u64) {
        let mut buffer = PairsBuffer::default();
        buffer.push(&Pair { key: &key, revision, value: &value });
        let pairs = buffer.pairs();
        for step in [
            Restore::Begin { revision },
            Restore::Pairs { restore, pairs },
            Restore::End { restore, keys: revision, check },
            Restore::Abandon,
        ] {
            let op = Op::Restore(step);
            assert_round_trip!(Command, Command::Write { session: 1, sequence: 0, first_pending: 0, op });
            assert_eq!(BatchBuffer::default().push(&op), Err(BatchError::Nested));
        }
        let op = Op::Restore(Restore::Begin { revision: revision + (1 << 62) + 1 });
        let command = Command::Write { session: 1, sequence: 0, first_pending: 0, op };
        assert_eq!(Command::decode(&command.to_vec()), Err(DecodeError::OutOfRange("revision")));
    }

    #[test]
    fn watches__round_trip(
        consistency in consistency(),
        revision in 1..=u64::MAX,
        first: u64,
        is_last: bool,
        from in bytes(20),
        until in option::of(key()),
        changes in vec((key(), option::of(bytes(30))), 1..4),
    ) {
        assert_round_trip!(RevisionRequest, RevisionRequest { consistency });
        assert_round_trip!(RevisionReply, RevisionReply::At { revision, first });
        let until = until.map(|until| [&from[..], &until].concat());
        let until = until.as_deref();
        assert_round_trip!(WatchRequest, WatchRequest { revision, from: &from, until });
        assert_round_trip!(WatchMessage, WatchMessage::Progress { revision });
        let mut message = WatchMessage::Progress { revision }.to_vec();
        message[0] = 1;
        message.push(is_last.into());
        prop_assert!(WatchMessage::decode(&message).is_err(), "a message has a change at least");
        for (key, value) in &changes {
            message.push(if value.is_some() { 1 } else { 2 });
            message.extend((key.len() as u16).to_le_bytes());
            message.extend(key);
            if let Some(value) = value {
                message.extend((value.len() as u32).to_le_bytes());
                message.extend(value);
            }
        }
        let decoded = WatchMessage::decode(&message).unwrap();
        prop_assert_eq!(decoded.to_vec(), &message[..]);
        prop_assert!(WatchMessage::decode(&message[..message.len() - 1]).is_err());
        let WatchMessage::Changes { changes: found, .. } = decoded else { panic!("{decoded:?}") };
        let expected = changes.iter().map(|(key, value)| Change { key, value: value.as_deref() });
        prop_assert!(found.iter().eq(expected));
    }

    #[test]
    fn leases__round_trip(
        consistency in consistency(), from in bytes(20), keys in vec(key(), 0..4), numbers: [u64; 3],
        ttl_ms in LEASE_MS_MIN..=LEASE_MS_MAX, next in option::of(key()), count: u32,
    ) {
        let [lease, left_ms, clock_ms] = numbers;
        for op in [LeaseOp::Grant { ttl_ms }, LeaseOp::KeepAlive { lease }, LeaseOp::Revoke { lease }] {
            let op = Op::Lease(op);
            assert_round_trip!(Command, Command::Write { session: 1, sequence: 0, first_pending: 0, op });
            assert_eq!(BatchBuffer::default().push(&op), Err(BatchError::Nested));
        }
        assert_round_trip!(Command, Command::Advance { clock_ms: clock_ms % (LEASE_CLOCK_MS_MAX + 1) });
        assert_round_trip!(LeaseRequest, LeaseRequest::Of { consistency, lease, from: &from });
        assert_round_trip!(LeaseRequest, LeaseRequest::List { consistency, from: lease });
        let state = LeaseState { lease, ttl_ms, left_ms, keys: count };
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let states = vec![state; keys.len()];
        assert_round_trip!(LeaseReply, LeaseReply::Of { state, keys, next: next.as_deref() });
        assert_round_trip!(LeaseReply, LeaseReply::List { states, next: next.is_some().then_some(lease) });
        assert_round_trip!(LeaseReply, LeaseReply::Unknown);
        assert_round_trip!(LeaseReply, LeaseReply::Refused(Refusal::Restoring));
    }

    #[test]
    fn scan_requests__round_trip(
        consistency in consistency(), from in bytes(20), until in option::of(bytes(20)),
        pairs_max in 1..=u32::MAX, bytes_max: u32,
    ) {
        let until = until.as_deref();
        assert_round_trip!(ScanRequest, ScanRequest { consistency, from: &from, until, pairs_max, bytes_max });
    }

    #[test]
    fn scan_replies__have_what_fits_and_the_key_to_go_on_from(
        stored in vec((key(), any::<u64>(), bytes(20)), 0..20), pairs_max in 1..10u32, bytes_max in 0..300u32,
    ) {
        let pairs: Vec<Pair<'_>> =
            stored.iter().map(|(key, revision, value)| Pair { key, revision: *revision, value }).collect();
        let request = ScanRequest {
            consistency: Consistency::Stale, from: b"", until: None, pairs_max, bytes_max,
        };
        let mut rest = &pairs[..];
        loop {
            let mut bytes = Vec::new();
            request.answer(rest.iter().copied(), &mut bytes);
            let reply = ScanReply::decode(&bytes).unwrap();
            assert_round_trip!(ScanReply, reply);
            let ScanReply::Pairs { pairs, next } = reply else { panic!("{reply:?}") };
            prop_assert!(pairs.iter().eq(rest[..pairs.len()].iter().copied()));
            prop_assert!(pairs.len() <= pairs_max as usize);
            let size: usize = pairs.iter().map(|pair| 14 + pair.key.len() + pair.value.len()).sum();
            prop_assert!(size <= bytes_max as usize || pairs.len() == 1);
            rest = &rest[pairs.len()..];
            prop_assert_eq!(next, rest.first().map(|pair| pair.key));
            if rest.is_empty() {
                break;
            }
            prop_assert!(!pairs.is_empty());
        }
    }

    #[test]
    fn admin_messages__round_trip(node: u16, address in "[a-z0-9.:]{1,40}") {
        for change in [MemberChange::Add, MemberChange::Remove, MemberChange::Promote] {
            assert_round_trip!(MemberRequest, MemberRequest { change, node, address: &address });
        }
        assert_round_trip!(TransferRequest, TransferRequest { node });
        assert_round_trip!(AdminReply, AdminReply::Done);
        assert_round_trip!(AdminReply, AdminReply::NoMember);
    }
}

fn status() -> Status {
    Status {
        node: 3,
        raft_id: u64::MAX,
        role: Role::Leader,
        term: 5,
        leader: Some(9),
        commit: 100,
        applied: 99,
        last_index: 101,
        first_index: 7,
        members: vec![
            Member { raft_id: 9, kind: MemberKind::Voter, address: "127.0.0.1:4000".into() },
            Member { raft_id: 10, kind: MemberKind::Learner, address: String::new() },
        ],
        keys: 1000,
        bytes: 80_000,
        sessions: 64,
        counters: vec![("proposals".into(), 12), ("elections".into(), 0)],
    }
}

#[test]
fn command__open_session_round_trips() {
    assert_round_trip!(Command, Command::OpenSession);
}

#[test]
fn status__round_trips_and_skips_what_it_does_not_know() {
    let mut bytes = status().to_vec();
    assert_eq!(Status::decode(&bytes), Ok(status()));
    bytes.extend_from_slice(&[200, 3, 0, 0, 0, 1, 2, 3]);
    assert_eq!(Status::decode(&bytes), Ok(status()));
    bytes.pop();
    assert_eq!(Status::decode(&bytes), Err(DecodeError::Truncated("field")));
    assert_eq!(Status::decode(b""), Ok(Status::default()));
}

#[test]
fn limits__are_kept_by_the_decoders() {
    let long = vec![b'k'; KEY_BYTES_MAX];
    assert_round_trip!(GetRequest, GetRequest { consistency: Consistency::Stale, key: &long });
    let mut request = vec![2];
    request.extend_from_slice(&(KEY_BYTES_MAX as u16 + 1).to_le_bytes());
    request.extend_from_slice(&vec![b'k'; KEY_BYTES_MAX + 1]);
    let error = GetRequest::decode(&request).unwrap_err();
    assert_eq!(error, DecodeError::KeyLength(KEY_BYTES_MAX + 1));
    assert_eq!(error.to_string(), "a key has 1 to 4096 bytes, not 4097");
    assert_eq!(GetRequest::decode(&[2, 0, 0]), Err(DecodeError::KeyLength(0)));
    let watch = |revision, until| WatchRequest { revision, from: b"b", until }.to_vec();
    let out_of_range = |field| Err(DecodeError::OutOfRange(field));
    assert_eq!(WatchRequest::decode(&watch(0, None)), out_of_range("revision"));
    for until in [&b"a"[..], b"b", b""] {
        let request = watch(1, Some(until));
        assert_eq!(WatchRequest::decode(&request), out_of_range("end of the range"));
    }

    let mut reply = vec![1, 0, 0, 0, 0, 0, 0, 0, 0];
    reply.extend_from_slice(&(VALUE_BYTES_MAX as u32 + 1).to_le_bytes());
    reply.resize(reply.len() + VALUE_BYTES_MAX + 1, 0);
    assert_eq!(GetReply::decode(&reply), Err(DecodeError::ValueLength(VALUE_BYTES_MAX + 1)));
}

#[test]
fn leases__have_a_shortest_and_a_longest_time() {
    for ttl_ms in [0, LEASE_MS_MIN - 1, LEASE_MS_MAX + 1, u64::MAX] {
        let op = Op::Lease(LeaseOp::Grant { ttl_ms });
        let command = Command::Write { session: 1, sequence: 0, first_pending: 0, op };
        let refused = Err(DecodeError::OutOfRange("time of the lease"));
        assert_eq!(Command::decode(&command.to_vec()), refused);
    }
    let command = Command::Advance { clock_ms: LEASE_CLOCK_MS_MAX + 1 };
    assert_eq!(Command::decode(&command.to_vec()), Err(DecodeError::OutOfRange("lease clock")));
}

#[test]
fn command__of_the_largest_parts_round_trips() {
    let (key, value) = (vec![1; KEY_BYTES_MAX], vec![2; VALUE_BYTES_MAX]);
    let op = Op::Cas { key: &key, expected: Expected::Value(&value), value: &value };
    let command = Command::Write { session: 1, sequence: 1, first_pending: 1, op };
    let bytes = command.to_vec();
    assert_eq!(Command::decode(&bytes), Ok(command));
}

#[test]
fn batch__has_limits() {
    let mut buffer = BatchBuffer::default();
    for _ in 0..BATCH_OPS_MAX {
        buffer.push(&Op::Delete { key: b"k" }).unwrap();
    }
    assert_eq!(buffer.push(&Op::Delete { key: b"k" }), Err(BatchError::Full));
    let whole = buffer.clone();
    assert_eq!(BatchBuffer::default().push(&Op::Batch(whole.batch())), Err(BatchError::Nested));

    let mut buffer = BatchBuffer::default();
    let value = vec![0; VALUE_BYTES_MAX + 1];
    for (op, error) in [
        (Op::Delete { key: b"" }, DecodeError::KeyLength(0)),
        (Op::Put { key: b"a", value: &value }, DecodeError::ValueLength(value.len())),
    ] {
        assert_eq!(buffer.push(&op), Err(BatchError::Limit(error)));
    }
    assert!(buffer.batch().is_empty());
    let value = vec![0; VALUE_BYTES_MAX];
    buffer.push(&Op::Put { key: b"a", value: &value }).unwrap();
    buffer.push(&Op::Put { key: b"b", value: &value }).unwrap();
    assert_eq!(buffer.push(&Op::Put { key: b"c", value: &value }), Err(BatchError::TooLong));
    assert_eq!(buffer.batch().len(), 2);
    let op = Op::Batch(buffer.batch());
    let bytes = Command::Write { session: 1, sequence: 0, first_pending: 0, op }.to_vec();
    assert!(Command::decode(&bytes).is_ok());
}

#[test]
fn scan__a_pair_longer_than_the_limit_comes_alone() {
    let value = vec![7; VALUE_BYTES_MAX];
    let pairs: Vec<Vec<u8>> = (0..6u8).map(|key| vec![key]).collect();
    let pairs = pairs.iter().map(|key| Pair { key, revision: 1, value: &value });
    let mut request = ScanRequest {
        consistency: Consistency::Stale,
        from: b"",
        until: None,
        pairs_max: u32::MAX,
        bytes_max: 10,
    };
    assert_eq!(answered(&request, pairs.clone()), (1, Some(vec![1])));
    request.bytes_max = u32::MAX;
    let most = SCAN_BYTES_MAX as usize / VALUE_BYTES_MAX - 1;
    assert_eq!(answered(&request, pairs), (most, Some(vec![most as u8])));
}

fn answered<'a>(
    request: &ScanRequest<'_>,
    pairs: impl Iterator<Item = Pair<'a>>,
) -> (usize, Option<Vec<u8>>) {
    let mut bytes = Vec::new();
    request.answer(pairs, &mut bytes);
    match ScanReply::decode(&bytes) {
        Ok(ScanReply::Pairs { pairs, next }) => (pairs.len(), next.map(<[u8]>::to_vec)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn refusals__say_what_is_known() {
    let texts = refusals("x:1").map(|refusal| refusal.to_string());
    assert_eq!(texts[0], "not the leader");
    assert_eq!(texts[1], "not the leader, which is node 513 at x:1");
    assert_eq!(texts[6], "the store is full: x:1");
    assert_eq!(texts[7], "x:1 (it may be applied nevertheless)");
    assert_eq!(texts[8], "x:1");
}
