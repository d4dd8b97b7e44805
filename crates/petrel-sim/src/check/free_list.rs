//! A free list of request buffers. An application reuses returned buffers for its next calls, as fast
//! applications do: the next message then overwrites the last one in place.

use petrel::MsgBuf;

/// Maximum number of kept buffers: a few calls' worth, for early reuse.
const BUFFERS_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct FreeList {
    buffers: Vec<MsgBuf>,
    /// How often a buffer was reused.
    pub(super) reused: u64,
}

impl FreeList {
    /// Takes the most recent buffer that is large enough.
    pub(super) fn take(&mut self, len: usize) -> Option<MsgBuf> {
        let place = self.buffers.iter().rposition(|buffer| buffer.capacity() >= len)?;
        self.reused += 1;
        Some(self.buffers.remove(place))
    }

    /// Keeps a buffer, and drops the oldest above the limit.
    pub(super) fn put(&mut self, buffer: MsgBuf) {
        if self.buffers.len() == BUFFERS_MAX {
            self.buffers.remove(0);
        }
        self.buffers.push(buffer);
    }

    pub(super) fn clear(&mut self) {
        self.buffers.clear();
    }
}
