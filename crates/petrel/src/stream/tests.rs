//! The ends of streams over two pairs, between which a thread carries the batches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;

use futures_util::future::join;
use petrel_proto::{SessionId, Status};

use super::pair::{Pair, Role};
use super::receiver::{Receiver, Reply};
use super::sender::{Sender, TrySendError};
use super::shared::{Held, Shared, Waiters};
use crate::client::wait;
use crate::error::Error;
use crate::sync::Arc;
use crate::values::{Metadata, StreamConfig};

const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Ten thousand idle streams of a process cost this, their handlers and tasks.
#[test]
fn sizes__of_an_idle_stream() {
    const { assert!(Pair::<Waiters>::STREAM_BYTES <= 232) };
    assert_eq!((size_of::<Sender<u8>>(), size_of::<Receiver<u8>>()), (24, 32));
}

/// Two pairs, and the thread between them.
struct Wire {
    pairs: [Arc<Shared>; 2],
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Wire {
    fn new() -> Self {
        let pair = |role| Shared::new(role, StreamConfig::default(), MESSAGE_BYTES_MAX);
        let pairs = [pair(Role::Client), pair(Role::Server)];
        let is_over = Arc::new(AtomicBool::new(false));
        let (own, over) = (pairs.clone(), Arc::clone(&is_over));
        let carry = move || {
            while !over.load(Ordering::Relaxed) {
                let any = [0, 1].map(|from| carry(&own[from], &own[1 - from]));
                if any == [false, false] {
                    thread::yield_now();
                }
            }
        };
        Self { pairs, is_over, thread: Some(thread::spawn(carry)) }
    }

    /// Opens a stream, and waits until the server knows. Returns both ends.
    fn open(&self) -> [Held; 2] {
        let key = self.pairs[0].with(|pair| pair.open(7, u64::MAX, Metadata::new())).unwrap();
        let ours = Held::new(&self.pairs[0], key);
        loop {
            if let Some((key, 7)) = self.pairs[1].take_opened() {
                return [ours, Held::new(&self.pairs[1], key)];
            }
            thread::yield_now();
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Carries a batch, if there is one.
fn carry(from: &Shared, to: &Shared) -> bool {
    let session = SessionId { index: 0, generation: 0 };
    let alloc = |bytes| Ok(vec![0; bytes]);
    let batch = from.next_batch(1, Waker::noop(), alloc, |memory| memory);
    let Ok(Some(batch)) = batch else { return false };
    let opened = to.handle_batch(session, 1, &batch.message[..batch.len]).unwrap();
    to.put_opened(opened);
    from.with(|pair| pair.acknowledge(batch.sequence));
    true
}

#[allow(clippy::ptr_arg, reason = "an encoder of vectors")]
fn append(message: &Vec<u8>, out: &mut Vec<u8>) {
    out.extend_from_slice(message);
}

fn decode(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    match bytes {
        b"malformed" => Err(Error::new(Status::InvalidArgument, "malformed")),
        _ => Ok(bytes.to_vec()),
    }
}

fn of_client([ours, _]: &[Held; 2]) -> (Sender<Vec<u8>>, Receiver<Vec<u8>>) {
    (Sender::new(ours.another(), append), Receiver::new(ours.another(), decode, None))
}

fn of_server([_, theirs]: &[Held; 2]) -> (Receiver<Vec<u8>>, Sender<Vec<u8>>) {
    (Receiver::new(theirs.another(), decode, None), Sender::new(theirs.another(), append))
}

#[test]
fn messages__of_all_sizes_in_both_directions_and_the_ends() {
    let wire = Wire::new();
    let stream = wire.open();
    let (mut sender, mut receiver) = of_client(&stream);
    let (mut input, mut output) = of_server(&stream);
    let [ours, theirs] = stream;
    drop(ours);
    let sizes = [0, 1, 100, 65_536, 65_537, 200_000, 700_000];
    let server = thread::spawn(move || {
        wait(async {
            while let Some(message) = input.next().await {
                output.send(message.unwrap()).await.unwrap();
            }
            theirs.with(|pair, key| {
                let why = Err(Error::new(Status::NotFound, "why"));
                pair.finish(key, why, Metadata::new());
            });
        });
    });
    wait(async {
        let send = async {
            for size in sizes {
                sender.send_bytes(&vec![size as u8; size]).await.unwrap();
            }
            sender.finish();
        };
        let receive = async {
            for size in sizes {
                assert_eq!(receiver.next_bytes().await.unwrap().unwrap(), vec![size as u8; size]);
            }
            let error = receiver.next().await.unwrap().unwrap_err();
            assert_eq!((error.status, &*error.message), (Status::NotFound, "why"));
            assert!(receiver.next().await.is_none());
        };
        join(send, receive).await;
    });
    server.join().unwrap();
}

#[test]
fn try_send__until_both_windows_are_full_and_after_the_end() {
    let wire = Wire::new();
    let stream = wire.open();
    let (mut sender, receiver) = of_client(&stream);
    let (mut input, _output) = of_server(&stream);
    let message = vec![7; 1_000];
    let mut sent = 0;
    // Both windows have room for 520 messages, and a message more.
    while sent < 520 {
        match sender.try_send(&message) {
            Ok(()) => sent += 1,
            Err(TrySendError::Full(same)) => assert_eq!(same, &message),
            Err(other) => panic!("{other}"),
        }
    }
    while !matches!(sender.try_send(&message), Err(TrySendError::Full(_))) {
        sent += 1;
    }
    assert!(sent <= 523, "{sent}");
    drop(receiver);
    let Err(TrySendError::Ended(same, error)) = sender.try_send(message) else {
        panic!("it is over")
    };
    assert_eq!((same.len(), error.status), (1_000, Status::Cancelled));
    wait(async {
        let mut read = 0;
        let end = loop {
            match input.next().await {
                Some(Ok(_)) => read += 1,
                other => break other,
            }
        };
        assert!(read >= 250, "messages that have come can be read: {read}");
        assert_eq!(end.unwrap().unwrap_err().status, Status::Cancelled);
    });
}

#[test]
fn receiver__of_messages_that_are_malformed_or_too_large() {
    let wire = Wire::new();
    for (message, status) in [
        (b"malformed".to_vec(), Status::InvalidArgument),
        (vec![0; MESSAGE_BYTES_MAX + 1], Status::ResourceExhausted),
    ] {
        let stream = wire.open();
        let (mut sender, receiver) = of_client(&stream);
        let (mut input, _output) = of_server(&stream);
        drop(stream);
        let reader = thread::spawn(move || {
            wait(async {
                let error = input.next().await.unwrap().unwrap_err();
                assert!(input.next().await.is_none());
                error.status
            })
        });
        wait(async {
            sender.send(message).await.unwrap();
            assert_eq!(reader.join().unwrap(), status);
            assert_eq!(Reply::new(receiver).await.unwrap_err().status, status);
        });
    }
}

#[test]
fn send__of_a_message_whose_encoder_panics_ends_the_stream_alone() {
    let wire = Wire::new();
    let stream = wire.open();
    let fails = |_: &Vec<u8>, out: &mut Vec<u8>| {
        out.push(1);
        panic!("an encoder");
    };
    let mut fails = Sender::new(stream[0].another(), fails);
    let other = wire.open();
    let (_sender, mut receiver) = of_client(&stream);
    let (mut input, _output) = of_server(&stream);
    let Err(TrySendError::Ended(_, error)) = fails.try_send(vec![7]) else { panic!("it fails") };
    assert!(error.message.contains("encoder of a message panicked: an encoder"), "{error}");
    wait(async {
        for receiver in [&mut receiver, &mut input] {
            let error = receiver.next().await.unwrap().unwrap_err();
            assert_eq!(error.status, Status::Internal, "{error}");
            assert!(receiver.next().await.is_none());
        }
        let (mut sender, _receiver) = of_client(&other);
        let (mut input, _output) = of_server(&other);
        sender.send(vec![9; 3]).await.unwrap();
        assert_eq!(input.next().await.unwrap().unwrap(), [9; 3]);
    });
}

#[test]
fn fail__wakes_those_that_wait() {
    let wire = Wire::new();
    let stream = wire.open();
    let (_sender, mut receiver) = of_client(&stream);
    let waits = thread::spawn(move || wait(receiver.next()).unwrap().unwrap_err().status);
    thread::yield_now();
    wire.pairs[0].fail(&Error::new(Status::Unavailable, "gone"));
    assert_eq!(waits.join().unwrap(), Status::Unavailable);
}
