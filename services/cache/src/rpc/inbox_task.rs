//! Batches of memcached's clients, on the endpoint that owns their partition.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use petrel::task::Handle;

use super::handlers::State;
use crate::net::inbox::{Parcel, Wake};
use crate::net::thread::Shared;

/// Wakes the task of an endpoint from other threads.
#[derive(Clone, Default)]
pub(crate) struct Bell(Arc<Mutex<Option<Waker>>>);

impl Bell {
    /// The function by which an inbox rings the bell.
    pub(crate) fn wake(&self) -> Wake {
        let bell = self.clone();
        Box::new(move || {
            let waker = bell.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(waker) = waker {
                waker.wake();
            }
        })
    }

    fn set(&self, waker: &Waker) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }
}

/// Runs the batches that come to the inbox of an endpoint, until the endpoint ends.
pub(super) async fn run_batches(
    handle: Handle<State>,
    shared: Arc<Shared>,
    number: usize,
    bell: Bell,
) {
    let inbox = &shared.inboxes[number];
    let mut parcels = Vec::new();
    loop {
        poll_fn(|cx| {
            // First the waker: a parcel that arrives after the look at the inbox finds the waker.
            bell.set(cx.waker());
            if inbox.may_sleep() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        inbox.take(&mut parcels);
        for parcel in parcels.drain(..) {
            // Connections and the end concern the threads with sockets.
            if let Parcel::Work(mut batch) = parcel {
                handle.with(|state| state.owner().serve(&mut batch));
                shared.inboxes[batch.origin].push(Parcel::Done(batch));
            }
        }
    }
}
