//! The service of the measurement. Messages are numbered, and both ends check them.

use std::time::{Duration, Instant};

use petrel::service::{Ctx, Raw};
use petrel::stream::{Receiver, Sender};
use petrel::{Error, Status};

/// Methods with streams of both directions, and a call for comparison.
#[petrel::service(codec = Raw)]
pub(super) trait Numbers {
    /// Sends numbered messages for a time: the request has the bytes of each, and the nanoseconds, as `u64`.
    async fn send(&self, cx: &Ctx, request: Vec<u8>, out: Sender<Vec<u8>>) -> Result<(), Error>;
    /// Counts numbered messages.
    async fn count(&self, cx: &Ctx, messages: Receiver<Vec<u8>>) -> Result<Vec<u8>, Error>;
    /// Reads nothing, and sends nothing.
    async fn idle(
        &self,
        cx: &Ctx,
        messages: Receiver<Vec<u8>>,
        out: Sender<Vec<u8>>,
    ) -> Result<(), Error>;
    /// Returns the length of the request.
    #[dispatch]
    fn len(&self, cx: &mut petrel::Context<'_>, request: &[u8]) -> Result<Vec<u8>, Error>;
}

/// Messages between two looks at the clock.
const LOOK: u64 = 64;

pub(super) struct Counted;

/// Writes the number into the first bytes of a message.
pub(super) fn number(message: &mut [u8], number: u64) {
    let bytes = number.to_le_bytes();
    let len = bytes.len().min(message.len());
    message[..len].copy_from_slice(&bytes[..len]);
}

/// Sends numbered messages for a time. Returns their number.
pub(super) async fn send_for(
    out: &mut Sender<Vec<u8>>,
    size: usize,
    time: Duration,
) -> Result<u64, Error> {
    let mut message = vec![7; size];
    let (begun, mut sent) = (Instant::now(), 0);
    while sent % LOOK != 0 || begun.elapsed() < time {
        number(&mut message, sent);
        out.send_bytes(&message).await?;
        sent += 1;
    }
    Ok(sent)
}

/// Receives numbered messages up to the end. Returns their number.
pub(super) async fn count_all(messages: &mut Receiver<Vec<u8>>) -> Result<u64, Error> {
    let mut expected = 0_u64;
    while let Some(message) = messages.next_bytes().await {
        let message = message?;
        let len = message.len().min(8);
        if message[..len] != expected.to_le_bytes()[..len] {
            return Err(Error::new(Status::DataLoss, format!("message {expected} is another")));
        }
        expected += 1;
    }
    Ok(expected)
}

fn word(bytes: &[u8]) -> Result<u64, Error> {
    let word = bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
    word.ok_or_else(|| Error::new(Status::InvalidArgument, "eight bytes expected"))
}

impl Numbers for Counted {
    async fn send(&self, _: &Ctx, request: Vec<u8>, mut out: Sender<Vec<u8>>) -> Result<(), Error> {
        let size = word(&request)? as usize;
        let time = Duration::from_nanos(word(request.get(8..).unwrap_or_default())?);
        send_for(&mut out, size, time).await?;
        Ok(())
    }

    async fn count(&self, _: &Ctx, mut messages: Receiver<Vec<u8>>) -> Result<Vec<u8>, Error> {
        Ok(count_all(&mut messages).await?.to_le_bytes().to_vec())
    }

    async fn idle(
        &self,
        _: &Ctx,
        _messages: Receiver<Vec<u8>>,
        _out: Sender<Vec<u8>>,
    ) -> Result<(), Error> {
        std::future::pending().await
    }

    fn len(&self, _: &mut petrel::Context<'_>, request: &[u8]) -> Result<Vec<u8>, Error> {
        Ok((request.len() as u64).to_le_bytes().to_vec())
    }
}
