//! Request buffers that an application has back and keeps for its next calls, as fast ones do: the
//! next message then overwrites the last one where it lies.

use petrel::MsgBuf;

/// Buffers that are kept: a few calls' worth, so that one comes round again soon.
const BUFFERS_MAX: usize = 4;

/// Buffers that are not in use.
#[derive(Debug, Default)]
pub(super) struct Spare {
    buffers: Vec<MsgBuf>,
    /// How often one was taken.
    pub(super) reused: u64,
}

impl Spare {
    /// The buffer that came back last of those that are large enough.
    pub(super) fn take(&mut self, len: usize) -> Option<MsgBuf> {
        let place = self.buffers.iter().rposition(|buffer| buffer.capacity() >= len)?;
        self.reused += 1;
        Some(self.buffers.remove(place))
    }

    /// Keeps a buffer, in place of the oldest.
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
