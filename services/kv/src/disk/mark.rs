//! The mark of a directory: the format, the log's node, and the known end of the log.
//!
//! ```text
//! petrel-kv log, format 2
//! node 7
//! log 1234567, check 89abcdef
//! ```
//!
//! A log without its end looks like a log after a crash within the last write. The mark therefore records the end of
//! the log at the last sync that was noted: 0 before the first batch is durable, and more from then on. The log updates
//! the mark with the first batch, after each start, at each new segment, and at an orderly end. An update costs a sync
//! of a small file and of the directory; an update for each batch would double the syncs.

/// The first line of the mark. The number changes with the format of any file.
const FORMAT: &str = "petrel-kv log, format 2";

/// The content of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) node: u16,
    /// A lower bound for the log's bytes, counted from its very first byte.
    pub(super) log_end: u64,
}

impl Mark {
    pub(super) fn encode(self) -> String {
        let Self { node, log_end } = self;
        let text = format!("{FORMAT}\nnode {node}\nlog {log_end}");
        let check = crc32fast::hash(text.as_bytes());
        format!("{text}, check {check:08x}\n")
    }

    /// Decodes a mark. None if the bytes are not a mark of this format, or are damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let rest = text.strip_prefix(FORMAT)?.strip_prefix("\nnode ")?;
        let (node, rest) = rest.split_once("\nlog ")?;
        let (log_end, _) = rest.split_once(", check ")?;
        let mark = Self { node: node.parse().ok()?, log_end: log_end.parse().ok()? };
        (mark.encode() == text).then_some(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark__round_trips_and_no_other_bytes_decode() {
        for mark in [Mark { node: 1, log_end: 0 }, Mark { node: u16::MAX, log_end: u64::MAX }] {
            let bytes = mark.encode().into_bytes();
            assert_eq!(Mark::decode(&bytes), Some(mark));
            for at in 0..bytes.len() {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << (at % 8);
                assert_eq!(Mark::decode(&wrong), None, "wrong at {at}");
                assert_eq!(Mark::decode(&bytes[..at]), None, "cut at {at}");
            }
        }
    }
}
