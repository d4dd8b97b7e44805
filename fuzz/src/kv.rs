//! The messages of the replicated store, its commands in the log, and its images in messages and
//! checkpoints.

use petrel_kv::api::{
    AdminReply, GetReply, GetRequest, LeaseReply, LeaseRequest, MemberRequest, Pair, Pairs,
    PairsBuffer, RevisionReply, RevisionRequest, SaveReply, SaveRequest, ScanReply, ScanRequest,
    Status, TransferRequest, WatchMessage, WatchRequest, WriteReply,
};
use petrel_kv::command::{BatchBuffer, Command, Expected, LeaseOp, Op, Restore};
use petrel_kv::limits::LEASE_MS_MIN;
use petrel_kv::store::{Builder, Store};

use super::input::Input;

/// Most commands of an input, to bound its running time.
const COMMANDS_MAX: usize = 200;

/// Uses the bytes after the first as a message, as an image, or as commands for a store, as the first
/// byte chooses.
pub fn check(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    match choice % 14 {
        // Later than the corpus, whose inputs keep their meaning.
        _ if *choice == u8::MAX => {
            again(rest, |bytes| written(SaveRequest::decode(bytes), SaveRequest::to_vec), false);
            again(rest, |bytes| written(SaveReply::decode(bytes), SaveReply::to_vec), false);
        }
        _ if *choice == u8::MAX - 1 => {
            again(rest, |bytes| written(LeaseRequest::decode(bytes), LeaseRequest::to_vec), false);
            again(rest, |bytes| written(LeaseReply::decode(bytes), LeaseReply::to_vec), false);
        }
        _ if *choice == u8::MAX - 2 => {
            again(rest, |bytes| written(WatchRequest::decode(bytes), WatchRequest::to_vec), false);
            again(rest, |bytes| written(WatchMessage::decode(bytes), WatchMessage::to_vec), false);
            again(
                rest,
                |bytes| written(RevisionReply::decode(bytes), RevisionReply::to_vec),
                false,
            );
            let request = RevisionRequest::decode(rest);
            again(rest, |_| written(request, RevisionRequest::to_vec), false);
        }
        0 => again(rest, |bytes| written(Command::decode(bytes), Command::to_vec), false),
        1 => again(rest, |bytes| written(WriteReply::decode(bytes), WriteReply::to_vec), false),
        2 => again(rest, |bytes| written(GetRequest::decode(bytes), GetRequest::to_vec), false),
        3 => again(rest, |bytes| written(GetReply::decode(bytes), GetReply::to_vec), false),
        4 => again(rest, |bytes| written(ScanRequest::decode(bytes), ScanRequest::to_vec), false),
        5 => again(rest, |bytes| written(ScanReply::decode(bytes), ScanReply::to_vec), false),
        6 => {
            again(rest, |bytes| written(MemberRequest::decode(bytes), MemberRequest::to_vec), false)
        }
        7 => again(
            rest,
            |bytes| written(TransferRequest::decode(bytes), TransferRequest::to_vec),
            false,
        ),
        8 => again(rest, |bytes| written(AdminReply::decode(bytes), AdminReply::to_vec), false),
        9 => again(rest, |bytes| written(Status::decode(bytes), Status::to_vec), true),
        10 => build(rest),
        _ => serve(&mut Input::new(rest)),
    }
}

/// Returns the encoding of a decoded message; an error must have a text.
fn written<M, E: ToString>(
    decoded: Result<M, E>,
    encode: impl FnOnce(&M) -> Vec<u8>,
) -> Option<Vec<u8>> {
    match decoded {
        Ok(message) => Some(encode(&message)),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// Checks that the encoding of a decoded message can be decoded, and encodes to identical bytes. The
/// encoding may be shorter than the input: long texts are truncated, and unknown fields of a status are dropped. A
/// status may have its fields in another order, and the encoding has all numbers.
fn again(message: &[u8], write: impl Fn(&[u8]) -> Option<Vec<u8>>, is_status: bool) {
    let Some(first) = write(message) else { return };
    assert!(is_status || first == message || first.len() < message.len(), "{message:?}");
    assert!(first.len() <= message.len() + STATUS_BYTES_MAX);
    let second = write(&first).expect("what is written can be read");
    assert_eq!(first, second);
}

/// Allowance for a status: the encoding contains all numbers, even if the input lacks some.
const STATUS_BYTES_MAX: usize = 200;

/// Uses any bytes as the chunks of an image.
fn build(bytes: &[u8]) {
    match Builder::build(bytes.chunks(100)) {
        Ok(store) => assert_eq!(copy(&store, 50).expect("its own image").digest(), store.digest()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Applies commands, valid and invalid. The store must answer every command, repeat the answer to a
/// repeated write, and survive a copy through its image.
fn serve(input: &mut Input<'_>) {
    let mut store = Store::new();
    let mut last: Option<(Vec<u8>, Vec<u8>)> = None;
    let mut index = 0;
    for _ in 0..COMMANDS_MAX {
        if input.is_empty() {
            break;
        }
        index += 1 + (input.below(16) == 1) as u64 * u64::from(input.number());
        let command = match (input.below(8), &last) {
            (0, _) => {
                let len = input.below(60);
                input.take(len).to_vec()
            }
            (1, Some((command, reply))) => {
                let mut again = Vec::new();
                let (keys, bytes) = (store.keys(), store.bytes());
                store.apply(index, command, &mut again);
                assert_eq!((&again, store.keys(), store.bytes()), (reply, keys, bytes));
                continue;
            }
            _ => command(input),
        };
        let mut reply = Vec::new();
        let precomputed = store.precompute(index, &command);
        store.apply(index, &command, &mut reply);
        let is_advance = matches!(Command::decode(&command), Ok(Command::Advance { .. }));
        let is_reply = WriteReply::decode(&reply).is_ok();
        assert!(is_reply || (is_advance && reply.is_empty()), "a store answers with a reply");
        assert!(
            precomputed.is_none_or(|precomputed| precomputed == reply),
            "another reply was precomputed"
        );
        assert_eq!(store.applied(), index);
        let is_write = matches!(Command::decode(&command), Ok(Command::Write { .. }));
        let is_applied = matches!(WriteReply::decode(&reply), Ok(WriteReply::Applied(_)));
        last = (is_write && is_applied).then_some((command, reply));
    }
    let image = store.image();
    let pairs = store.scan(b"", None).count() as u64;
    assert_eq!((image.keys(), pairs), (store.keys(), store.keys()));
    let copied = copy(&store, 1 + input.below(200)).expect("its own image");
    assert_eq!(copied.digest(), store.digest());
    assert_eq!((copied.applied(), copied.bytes()), (store.applied(), store.bytes()));
    spoil(&store, input);
}

/// Copies a store through its image, in chunks of this size.
fn copy(store: &Store, chunk_bytes: usize) -> Option<Store> {
    Builder::build(store.image().chunks(chunk_bytes)).ok()
}

/// Checks that a damaged image is rejected.
fn spoil(store: &Store, input: &mut Input<'_>) {
    let mut chunks: Vec<_> = store.image().chunks(100).collect();
    let place = input.below(chunks.len());
    match (input.below(3), input.byte()) {
        (0, change @ 1..) => {
            let at = usize::from(input.byte()) % chunks[place].len();
            chunks[place][at] ^= change;
        }
        (1, _) => drop(chunks.remove(place)),
        (2, 1..) => chunks.insert(place, chunks[place].clone()),
        _ => return,
    }
    assert!(Builder::build(chunks).is_err(), "a damaged image is taken for a store");
}

/// Returns a valid command about few keys and few sessions.
fn command(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match input.below(6) {
        0 if input.below(2) == 1 => {
            Command::Advance { clock_ms: input.number().into() }.encode(&mut bytes);
            return bytes;
        }
        0 => {
            Command::OpenSession.encode(&mut bytes);
            return bytes;
        }
        _ => {}
    }
    let (session, sequence) = (1 + input.below(20) as u64, input.number().into());
    let first_pending = u64::saturating_sub(sequence, input.number().into());
    let (mut batch, mut pairs) = (BatchBuffer::default(), PairsBuffer::default());
    let op = match input.below(8) {
        0 => {
            for _ in 0..input.below(10) {
                batch.push(&op(input)).expect("few and short operations fit");
            }
            Op::Batch(batch.batch())
        }
        1 => {
            for key in [&b"a"[..], b"b", b"c"].into_iter().take(input.below(4)) {
                let revision = input.number().into();
                pairs.push(&Pair { key, revision, value: b"value" });
            }
            Op::Restore(step(input, pairs.pairs()))
        }
        2 => Op::Lease(lease_op(input)),
        _ => op(input),
    };
    Command::Write { session, sequence, first_pending, op }.encode(&mut bytes);
    bytes
}

/// Returns a step of a restore, about few numbers.
fn step<'a>(input: &mut Input<'_>, pairs: Pairs<'a>) -> Restore<'a> {
    let restore = 1 + input.below(20) as u64;
    match input.below(5) {
        0 => Restore::Begin { revision: input.number().into() },
        // Only the check of no pairs is known here.
        1 => Restore::End { restore, keys: 0, check: 0 },
        2 => Restore::Abandon,
        _ => Restore::Pairs { restore, pairs },
    }
}

/// Returns an operation on a lease, of few numbers.
fn lease_op(input: &mut Input<'_>) -> LeaseOp {
    let lease = 1 + input.below(20) as u64;
    match input.below(4) {
        0 | 1 => LeaseOp::Grant { ttl_ms: LEASE_MS_MIN + u64::from(input.number()) },
        2 => LeaseOp::KeepAlive { lease },
        _ => LeaseOp::Revoke { lease },
    }
}

fn op<'a>(input: &mut Input<'a>) -> Op<'a> {
    const KEYS: [&[u8]; 6] = [b"a", b"b", b"bb", &[0xFF; 300], &[0], b"petrel"];
    let key = KEYS[input.below(KEYS.len())];
    let len = input.below(30);
    let value = input.take(len);
    let expected = match input.below(3) {
        0 => Expected::Absent,
        1 => Expected::Revision(input.number().into()),
        _ => Expected::Value(value),
    };
    match input.below(5) {
        0 | 1 => Op::Put { key, value },
        4 => {
            let (lease, expected) = (1 + input.below(20) as u64, Some(expected));
            let expected = expected.filter(|_| len.is_multiple_of(2));
            Op::LeasedPut { key, lease, expected, value }
        }
        2 => Op::Cas { key, expected, value },
        _ if len.is_multiple_of(2) => Op::Delete { key },
        _ => Op::CasDelete { key, expected },
    }
}
