//! Dispatch without the fast path, as `EndpointConfig::protocol` may demand: every frame takes the general path.

use petrel_proto::PeerKey;
use petrel_transport::{FrameHandler, PeerId, ReturnPath};

use crate::endpoint::context::Local;
use crate::endpoint::dispatch::{dispatch_from, dispatch_other};
use crate::endpoint::handlers::Handlers;

/// Handles received frames on the general path.
pub(super) struct GeneralDispatch<'a> {
    local: &'a mut Local,
    handlers: &'a mut Handlers,
    now_ns: u64,
}

impl<'a> GeneralDispatch<'a> {
    pub(super) fn new(local: &'a mut Local, handlers: &'a mut Handlers, now_ns: u64) -> Self {
        Self { local, handlers, now_ns }
    }

    fn take(&mut self, peer: PeerId, frame: &[u8], is_marked: bool) {
        let Self { local, handlers, now_ns } = self;
        local.core.set_time(local.clock.now_ns());
        dispatch_other(local, handlers, *now_ns, PeerKey(peer.0), frame, is_marked);
    }
}

impl<R: ReturnPath> FrameHandler<R> for GeneralDispatch<'_> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _path: Option<&mut R>) {
        self.take(peer, frame, false);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.take(peer, frame, true);
    }

    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        let Self { local, handlers, now_ns } = self;
        dispatch_from(local, handlers, *now_ns, (PeerKey(peer.0), source), frame, is_marked);
    }
}
