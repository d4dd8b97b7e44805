//! The direction of a stream that this side receives: records for the reader, and the credit that the peer has.

use petrel_planted::planted;

use super::wire::FIRST_CREDIT;

/// The received records, and the credit.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Records of messages that the reader has not taken.
    records: Vec<u8>,
    /// Bytes of records that came, that the reader has taken, and that the peer may send in all.
    received: u64,
    taken: u64,
    granted: u64,
    /// Whether the last record was a piece that others follow.
    is_within_message: bool,
    /// Whether the peer sends no further message.
    is_finished: bool,
    /// Whether nothing is kept: the reader is gone.
    is_discarded: bool,
    /// Whether a CREDIT is to be sent.
    is_credit_due: bool,
}

impl Default for Incoming {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            received: 0,
            taken: 0,
            granted: FIRST_CREDIT,
            is_within_message: false,
            is_finished: false,
            is_discarded: false,
            is_credit_due: false,
        }
    }
}

impl Incoming {
    /// Bytes that wait for the reader.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Returns the bytes that the peer may still send.
    #[inline]
    pub(super) fn credit(&self) -> u64 {
        self.granted - self.received
    }

    /// Adds whole records, within the credit. Returns the bytes that are kept.
    #[inline]
    pub(super) fn accept(&mut self, records: &[u8], is_within_message: bool) -> usize {
        assert!(records.len() as u64 <= self.credit(), "records come within the credit");
        self.received += records.len() as u64;
        self.is_within_message = is_within_message;
        if self.is_discarded {
            self.taken += records.len() as u64;
            return 0;
        }
        self.records.extend_from_slice(records);
        records.len()
    }

    /// Notes that no further message comes. Returns false if a message lacks its end, or the direction has ended before.
    pub(super) fn finish(&mut self) -> bool {
        !std::mem::replace(&mut self.is_finished, true) && !self.is_within_message
    }

    /// Exchanges the records with the reader's memory, which is empty. Returns the bytes taken.
    #[inline]
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> usize {
        assert!(into.is_empty(), "a reader takes records after the last ones");
        std::mem::swap(&mut self.records, into);
        self.taken += into.len() as u64;
        into.len()
    }

    /// Keeps nothing from now on. Returns the bytes dropped.
    pub(super) fn discard(&mut self) -> usize {
        self.is_discarded = true;
        let dropped = std::mem::take(&mut self.records).len();
        self.taken += dropped as u64;
        dropped
    }

    /// Returns true once when the peer should get credit: the reader has taken half of the window.
    #[inline]
    pub(super) fn becomes_due(&mut self, window: u64) -> bool {
        let is_due = !self.is_finished && self.taken + window >= self.granted + window / 2;
        is_due
            && !planted("stream_credit_not_renewed")
            && !std::mem::replace(&mut self.is_credit_due, true)
    }

    /// Grants the peer a window beyond the taken bytes. Returns the contents of CREDIT.
    pub(super) fn grant(&mut self, window: u64) -> u64 {
        assert!(std::mem::take(&mut self.is_credit_due), "credit is granted when it is due");
        self.granted = self.granted.max(self.taken + window);
        self.granted
    }
}
