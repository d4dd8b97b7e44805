//! The client's notices to servers that it needs nothing more for a request (`docs/wire-protocol.md` §5.4).

use std::collections::VecDeque;

use crate::bitmap::Words;
use crate::buffer::Buffer;
use crate::limits::{
    CANCELS_QUEUED_MAX, CONTROL_FRAME_BYTES_MAX, HEADER_BYTES, REQUEST_NUMBER_END,
};
use crate::path::PathId;
use crate::rpc::queue::{TransmitQueue, Work};
use crate::rpc::sink::OnPath;
use crate::rpc::turn::{ControlFrames, Turn};
use crate::rpc::{FrameSink, Shared};
use crate::session::{SessionId, SessionTable};
use crate::wire::{ControlBytes, Destination, Flags, Kind, Pull, header_bytes};

/// Notices to servers that the client needs nothing more for a request. Every notice has an entry in the
/// transmit queue.
#[derive(Default)]
pub(in crate::rpc) struct Cancels(VecDeque<Over>);

/// A request that has ended.
#[derive(Clone, Copy)]
struct Over {
    session: SessionId,
    number: u64,
    /// Packets of the completely received response; 0 if the request was given up.
    received: u32,
}

impl Cancels {
    /// Returns the number of notices not yet sent.
    pub(in crate::rpc) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if every notice was sent.
    pub(in crate::rpc) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells the server that a request was given up.
    pub(in crate::rpc) fn give_up(
        &mut self,
        queue: &mut TransmitQueue,
        session: SessionId,
        number: u64,
    ) {
        assert!(number < REQUEST_NUMBER_END, "a request that is given up has a number");
        self.push(queue, Over { session, number, received: 0 });
    }

    /// Confirms the reception of a whole response, to let the server free its memory.
    #[cold]
    pub(in crate::rpc) fn confirm(
        &mut self,
        queue: &mut TransmitQueue,
        session: SessionId,
        number: u64,
        packets: u32,
    ) {
        assert!(packets > 0, "a response that is confirmed has packets");
        self.push(queue, Over { session, number, received: packets });
    }

    /// Beyond the limit a notice is omitted: the rules for lost CANCELs make up for it.
    fn push(&mut self, queue: &mut TransmitQueue, over: Over) {
        assert!(self.0.len() <= CANCELS_QUEUED_MAX, "the notices are within their limit");
        if self.0.len() < CANCELS_QUEUED_MAX {
            self.0.push_back(over);
            queue.push(Work::Cancel);
        }
    }
}

#[cold]
pub(in crate::rpc) fn send_cancel<B: Buffer, T, S: FrameSink>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    control: &mut ControlFrames,
    sink: &mut S,
) -> Turn {
    let Some(&over) = shared.cancels.0.front() else { return Turn::NOTHING };
    let client = sessions.client_mut(over.session);
    let open = client.filter(|client| client.agreed().is_some());
    let agreed =
        open.map(|client| (client.to(), client.destination(client.slot_index(over.number))));
    let mut taken = false;
    if let Some((to, (peer, path))) = agreed {
        taken = match path {
            PathId::FIRST => control.send(sink, peer, over.frame(to)),
            _ => control.send(&mut OnPath::new(sink, path, peer), peer, over.frame(to)),
        };
        if !taken {
            return Turn::one(false);
        }
    }
    shared.cancels.0.pop_front();
    shared.counters.control_frames_sent += u64::from(taken);
    match over.received {
        0 => shared.counters.cancels_sent += u64::from(taken),
        _ => shared.counters.answers_acknowledged += u64::from(taken),
    }
    // After its session has ended, a notice is not sent.
    if taken { Turn::one(true) } else { Turn::NOTHING }
}

impl Over {
    /// Returns a CANCEL, or a PULL that acknowledges everything and asks for nothing.
    fn frame(self, to: Destination) -> ControlBytes {
        if self.received > 0 {
            let header = to.words(Kind::Pull, Flags::NONE, 0, self.number);
            let (cumulative, limit) = (self.received, self.received);
            let pull = Pull { cumulative, limit, resend_below: 0, bitmap: Words::default() };
            return pull.encode(header);
        }
        let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
        let header = to.words(Kind::Cancel, Flags::NONE, 0, self.number);
        bytes[..HEADER_BYTES].copy_from_slice(&header_bytes::<2, HEADER_BYTES>(header));
        (bytes, HEADER_BYTES)
    }
}
