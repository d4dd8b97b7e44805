//! The protocol core of Petrel: remote procedure calls over unreliable datagrams, with no I/O, no clock, no
//! threads and no `unsafe`.
//!
//! The crate implements `docs/wire-protocol.md`, version 1. The owner of a [`Core`] passes in frames and the
//! time, and takes out frames and events:
//!
//! ```
//! use petrel_proto::buffer::{HeapBuffer, HeapPool};
//! use petrel_proto::{Accepted, Agreed, Config, Core, PeerKey, Received, Status};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let mut pool = HeapPool { len_max: 1 << 20 };
//! let mut client = Core::new(0, Config::default());
//! let mut server: Core<HeapBuffer> = Core::new(0, Config::default());
//!
//! // The control plane has carried indices, tokens and limits from one side to the other.
//! let agreed = |peer_session, peer_token| Agreed {
//!     peer: PeerKey(0), peer_session, peer_token,
//!     slots: 8, credits: 32, packet_bytes: 1408, peer_message_bytes_max: 8 << 20,
//! };
//! let session = client.open(0xC0FFEE, 64)?;
//! let accepted = server.accept(Accepted {
//!     agreed: agreed(session.index, 0xC0FFEE),
//!     token: 0xF00D, first_request: 64, request_bytes_max: 8 << 20,
//! })?;
//! client.establish(session, agreed(accepted.index, 0xF00D))?;
//!
//! let request = HeapBuffer::from_message(b"ping", 1);
//! client.call(0, session, 1, request, HeapBuffer::new(64, 1), 42).map_err(|rejected| rejected.error)?;
//!
//! // One burst from the client to the server.
//! let mut frame = Vec::new();
//! client.transmit(1_000, &mut |_peer, head: &[u8], body: &[u8]| {
//!     frame = [head, body].concat();
//!     true
//! });
//! match server.handle_frame(2_000, PeerKey(0), &frame, &mut pool) {
//!     Received::Request { handle, payload: b"ping", .. } => {
//!         server.respond(handle, Status::Ok, HeapBuffer::from_message(b"pong", 1)).unwrap();
//!     }
//!     other => panic!("{other:?}"),
//! }
//!
//! // And one back.
//! server.transmit(2_000, &mut |_peer, head: &[u8], body: &[u8]| {
//!     frame = [head, body].concat();
//!     true
//! });
//! match client.handle_frame(3_000, PeerKey(0), &frame, &mut pool) {
//!     Received::Completed(end) => assert_eq!((end.tag, end.response.message()), (42, &b"pong"[..])),
//!     other => panic!("{other:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`rpc`] | [`Core`]: calls, answers, recovery, the frames to send |
//! | [`session`] | names of sessions and peers, and the parameters that two ends agree on |
//! | [`wire`] | frames, to the bit |
//! | [`control`] | messages of the control plane |
//! | [`path`] | several paths for one session |
//! | [`bitmap`] | sets of a message's packets |
//! | [`congestion`] | the rate of a session, and the limit of its packets in flight |
//! | [`recovery`], [`timer`] | round trips, timeouts, and the timer wheel |
//! | [`buffer`] | the core's requirements of message buffers |
//! | [`limits`], [`counters`], [`status`] | every limit, every counter, every status code |
//!
//! Not implemented: encryption. The wire format has room for it.

#[cfg(test)]
#[macro_use]
extern crate petrel_planted;

pub mod bitmap;
pub mod buffer;
pub mod congestion;
pub mod control;
pub mod counters;
pub mod limits;
pub mod path;
pub mod recovery;
pub mod rpc;
pub mod session;
pub mod status;
pub mod timer;
pub mod wire;

#[doc(hidden)]
pub use rpc::ObjectCounts;
pub use rpc::{
    Accepted, CallError, CallFailure, CallLimits, CallRejected, Closed, Completion, Config, Core,
    Event, Execution, FrameSink, GroupFrames, Membership, OpenError, PathChoice, PendingCall,
    PlainCompletion, PlainFrame, PlainRequest, Received, Recovery, RequestHandle, RespondError,
    RespondRejected, UpcomingFrame, method_of, peek_request,
};
pub use session::{Agreed, PeerKey, SessionId};
pub use status::Status;
