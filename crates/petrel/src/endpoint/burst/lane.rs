//! A request of a batch, and the copies of messages.

use std::cell::Cell;

use petrel_proto::RequestHandle;

use crate::endpoint::request::{Handled, Request};
use crate::msgbuf::MsgBuf;

/// Messages of at most a cache line have a place per lane; most requests for lookups do.
const SHORT_BYTES: usize = 64;

/// A message up to [`SHORT_BYTES`].
type Short = [u8; SHORT_BYTES];

/// A request in a batch.
pub(super) struct Lane {
    handle: RequestHandle,
    deadline_ns: Option<u64>,
    /// Length of the message.
    len: u32,
    /// The index of a short message among the copies, or the offset of a long message.
    place: u32,
    stage: Cell<Stage>,
    /// The buffer of the slot's former response, then the response.
    buffer: Cell<Option<MsgBuf>>,
}

/// The progress of a request in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The handler has not answered it.
    Waiting,
    /// The lane has its response.
    Replied,
    /// The request was answered with an error, or a responder has it.
    Settled,
}

impl Lane {
    pub(super) fn of(request: &mut Request<'_>, deadline_ns: Option<u64>, place: usize) -> Self {
        Self {
            handle: request.handle(),
            deadline_ns,
            len: request.data().len() as u32,
            place: place as u32,
            stage: Cell::new(Stage::Waiting),
            buffer: Cell::new(request.take_spare()),
        }
    }

    #[inline]
    pub(super) fn handle(&self) -> &RequestHandle {
        &self.handle
    }

    #[inline]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    #[inline]
    pub(super) fn is_answered(&self) -> bool {
        self.stage.get() != Stage::Waiting
    }

    /// Takes the buffer for the response, to answer the request.
    ///
    /// # Panics
    /// If the request was answered already.
    #[inline(always)]
    pub(super) fn begin(&self) -> Option<MsgBuf> {
        assert!(!self.is_answered(), "a request of a batch is answered once");
        self.stage.set(Stage::Settled);
        self.buffer.take()
    }

    /// Keeps the response, if the handler has returned one.
    #[inline(always)]
    pub(super) fn finish(&self, handled: Handled) {
        if let Some(message) = handled.into_message() {
            self.buffer.set(Some(message));
            self.stage.set(Stage::Replied);
        }
    }

    /// Ends the lane. Returns its name and response, if the lane has one.
    #[inline]
    pub(super) fn into_reply(self) -> Option<(RequestHandle, MsgBuf)> {
        match self.stage.get() {
            Stage::Replied => Some((self.handle, self.buffer.into_inner()?)),
            Stage::Waiting | Stage::Settled => None,
        }
    }
}

/// The copied messages of lanes.
#[derive(Default)]
pub(super) struct Copies {
    /// A place per lane, used or not.
    short: Vec<Short>,
    long: Vec<u8>,
}

impl Copies {
    #[inline]
    pub(super) fn of(&self, lane: &Lane) -> &[u8] {
        let (place, len) = (lane.place as usize, lane.len as usize);
        match len <= SHORT_BYTES {
            true => &self.short[place][..len],
            false => &self.long[place..place + len],
        }
    }

    /// Copies the message of the lane with this number. Returns its place.
    #[inline]
    pub(super) fn add(&mut self, index: usize, message: &[u8]) -> usize {
        if message.len() > SHORT_BYTES {
            let start = self.long.len();
            self.long.extend_from_slice(message);
            return start;
        }
        if index >= self.short.len() {
            self.short.resize(index + 1, [0; SHORT_BYTES]);
        }
        copy_short(message, &mut self.short[index]);
        index
    }

    /// Forgets the copies. The memory remains.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.long.clear();
    }
}

/// Copies up to [`SHORT_BYTES`] bytes. The usual lengths take two copies that overlap, without the call of `memcpy`.
#[inline(always)]
fn copy_short(message: &[u8], to: &mut Short) {
    const HALF: usize = SHORT_BYTES / 2;
    let len = message.len();
    match (message.first_chunk::<HALF>(), message.last_chunk::<HALF>()) {
        (Some(first), Some(last)) => {
            to[..HALF].copy_from_slice(first);
            to[len - HALF..len].copy_from_slice(last);
        }
        _ => to[..len].copy_from_slice(message),
    }
}
