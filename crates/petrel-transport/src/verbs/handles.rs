//! The places of peers, asked for on threads: the system may ask the network for a peer's link-layer address, and wait for a second.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::card::{Ground, Handle};
use super::error::VerbsError;
use super::{Address, VerbsLink};
use crate::wake::Waker;

/// Threads at once: peers that name addresses without a host keep a thread each. Further links get no place, and their owners use another medium.
const THREADS_MAX: usize = 64;

/// A link's number, and its place.
type Made = (u64, Result<Handle, VerbsError>);

#[derive(Debug)]
pub(super) struct Handles {
    waker: Waker,
    done: Sender<Made>,
    made: Receiver<Made>,
    asked: usize,
}

impl Handles {
    /// Threads wake the endpoint by `waker`.
    pub(super) fn new(waker: Waker) -> Self {
        let (done, made) = mpsc::channel();
        Self { waker, done, made, asked: 0 }
    }

    /// Returns true if the place of a link is still to come.
    #[inline]
    pub(super) fn are_asked(&self) -> bool {
        self.asked > 0
    }

    /// Asks for the place of the link with this number.
    pub(super) fn ask(&mut self, number: u64, link: &VerbsLink, ground: &Arc<Ground>) {
        if self.asked == THREADS_MAX {
            return;
        }
        let (done, waker, ground) = (self.done.clone(), self.waker.clone(), Arc::clone(ground));
        let VerbsLink { address, ecn, .. } = *link;
        let make = move || {
            // The endpoint may have ended.
            let _ = done.send((number, ground.handle_to(&address, ecn)));
            waker.wake();
        };
        let thread = thread::Builder::new().name("petrel-verbs".to_owned()).spawn(make);
        self.asked += usize::from(thread.is_ok());
    }

    /// Returns the next place, if there is one by now.
    pub(super) fn next(&mut self) -> Option<Made> {
        let made = self.made.try_recv().ok()?;
        assert!(self.asked > 0, "each place was asked for");
        self.asked -= 1;
        Some(made)
    }
}

/// Returns an address for people: that of a host, or the identifier within a subnet.
pub(super) fn text_of(address: &Address) -> String {
    match address.gid {
        [0, ..] if address.lid != 0 => format!("lid {}", address.lid),
        gid => std::net::Ipv6Addr::from(gid).to_canonical().to_string(),
    }
}
