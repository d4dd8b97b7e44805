//! The messages of the replicated store, its commands in the log, and its images in messages and
//! checkpoints.

use petrel_kv::api::{
    AdminReply, GetReply, GetRequest, MemberRequest, ScanReply, ScanRequest, Status,
    TransferRequest, WriteReply,
};
use petrel_kv::command::{BatchBuffer, Command, Expected, Op};
use petrel_kv::store::{Builder, Cursor, Store};

use super::input::Input;

/// Most commands of an input, to bound its running time.
const COMMANDS_MAX: usize = 200;

/// Uses the bytes after the first as a message, as an image, or as commands for a store, as the first
/// byte chooses.
pub fn check(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    match choice % 14 {
        0 => again(rest, |bytes| written(Command::decode(bytes), |it, out| it.encode(out))),
        1 => again(rest, |bytes| written(WriteReply::decode(bytes), |it, out| it.encode(out))),
        2 => again(rest, |bytes| written(GetRequest::decode(bytes), |it, out| it.encode(out))),
        3 => again(rest, |bytes| written(GetReply::decode(bytes), |it, out| it.encode(out))),
        4 => again(rest, |bytes| written(ScanRequest::decode(bytes), |it, out| it.encode(out))),
        5 => again(rest, |bytes| written(ScanReply::decode(bytes), |it, out| it.encode(out))),
        6 => again(rest, |bytes| written(MemberRequest::decode(bytes), |it, out| it.encode(out))),
        7 => again(rest, |bytes| written(TransferRequest::decode(bytes), |it, out| it.encode(out))),
        8 => again(rest, |bytes| written(AdminReply::decode(bytes), |it, out| it.encode(out))),
        9 => again(rest, |bytes| written(Status::decode(bytes), |it, out| it.encode(out))),
        10 => build(rest),
        _ => serve(&mut Input::new(rest)),
    }
}

/// Returns the encoding of a decoded message; an error must have a text.
fn written<M, E: ToString>(
    decoded: Result<M, E>,
    encode: impl FnOnce(&M, &mut Vec<u8>),
) -> Option<Vec<u8>> {
    match decoded {
        Ok(message) => {
            let mut bytes = Vec::new();
            encode(&message, &mut bytes);
            Some(bytes)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// Checks that the encoding of a decoded message can be decoded, and encodes to identical bytes. The
/// encoding may be shorter than the input: long texts are truncated, and unknown fields are dropped.
fn again(message: &[u8], write: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let Some(first) = write(message) else { return };
    assert!(first.len() <= message.len() + STATUS_BYTES_MAX);
    let second = write(&first).expect("what is written can be read");
    assert_eq!(first, second);
}

/// Allowance for a status: the encoding contains all numbers, even if the input lacks some.
const STATUS_BYTES_MAX: usize = 200;

/// Uses any bytes as the chunks of an image.
fn build(bytes: &[u8]) {
    let mut builder = Builder::new();
    for chunk in bytes.chunks(100) {
        if let Err(error) = builder.add(chunk) {
            assert!(!error.to_string().is_empty());
            return;
        }
    }
    if let Ok(store) = builder.finish() {
        assert_eq!(copy(&store, 50).expect("its own image").digest(), store.digest());
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
        WriteReply::decode(&reply).expect("a store answers with a reply");
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
    let mut builder = Builder::new();
    chunks(store, chunk_bytes).iter().try_for_each(|chunk| builder.add(chunk)).ok()?;
    builder.finish().ok()
}

fn chunks(store: &Store, chunk_bytes: usize) -> Vec<Vec<u8>> {
    let image = store.image();
    let (mut chunks, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(at) = cursor {
        let chunk = image.chunk(&at, chunk_bytes);
        chunks.push(chunk.bytes);
        cursor = chunk.next;
    }
    chunks
}

/// Checks that a damaged image is rejected.
fn spoil(store: &Store, input: &mut Input<'_>) {
    let mut chunks = chunks(store, 100);
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
    let mut builder = Builder::new();
    let added = chunks.iter().try_for_each(|chunk| builder.add(chunk));
    assert!(added.is_err() || builder.finish().is_err(), "a damaged image is taken for a store");
}

/// Returns a valid command about few keys and few sessions.
fn command(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if input.below(6) == 0 {
        Command::OpenSession.encode(&mut bytes);
        return bytes;
    }
    let (session, sequence) = (1 + input.below(20) as u64, input.number().into());
    let first_pending = u64::saturating_sub(sequence, input.number().into());
    let mut batch = BatchBuffer::default();
    let op = match input.below(8) {
        0 => {
            for _ in 0..input.below(10) {
                batch.push(&op(input)).expect("few and short operations fit");
            }
            Op::Batch(batch.batch())
        }
        _ => op(input),
    };
    Command::Write { session, sequence, first_pending, op }.encode(&mut bytes);
    bytes
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
    match input.below(4) {
        0 | 1 => Op::Put { key, value },
        2 => Op::Cas { key, expected, value },
        _ if len.is_multiple_of(2) => Op::Delete { key },
        _ => Op::CasDelete { key, expected },
    }
}
