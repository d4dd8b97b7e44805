//! Dispatch with lookahead: prefetches memory for the later frames of a burst.

use petrel_proto::peek_request;
use petrel_transport::{FrameHandler, PeerId, ReturnPath, SharedFrame};

use super::ahead::Ahead;
use crate::endpoint::dispatch::Dispatch;

/// Handles received frames with many sessions, or with handlers that prefetch memory.
pub(super) struct DispatchAhead<'a> {
    dispatch: Dispatch<'a>,
    /// None with few sessions.
    ahead: Option<&'a mut Ahead>,
    locates: bool,
}

impl<'a> DispatchAhead<'a> {
    #[inline(always)]
    pub(super) fn new(dispatch: Dispatch<'a>, ahead: Option<&'a mut Ahead>, locates: bool) -> Self {
        Self { dispatch, ahead, locates }
    }
}

impl DispatchAhead<'_> {
    #[inline(always)]
    fn step(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.step(self.dispatch.core());
        }
        if self.locates {
            self.dispatch.handlers().fetch_further();
        }
    }
}

impl<R: ReturnPath> FrameHandler<R> for DispatchAhead<'_> {
    #[inline(always)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut R>) {
        self.step();
        self.dispatch.handle(peer, frame, path);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.step();
        FrameHandler::<R>::handle_marked(&mut self.dispatch, peer, frame);
    }

    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        self.step();
        FrameHandler::<R>::handle_from(&mut self.dispatch, peer, source, frame, is_marked);
    }

    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, path: Option<&mut R>) {
        self.step();
        self.dispatch.handle_shared(peer, frame, path);
    }

    #[inline(always)]
    fn looks_ahead(&self) -> bool {
        true
    }

    #[inline(always)]
    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        if let Some(ahead) = &mut self.ahead {
            ahead.show(self.dispatch.core(), frame);
        }
        if self.locates
            && is_whole
            && let Some((method, message)) = peek_request(frame)
        {
            self.dispatch.handlers().locators().show(method, message);
        }
    }
}
