//! Parses the messages on a connection (`docs/wire-protocol.md` §8.1). The parser reads headers alone: the
//! checker must not depend on the decoder under test.

const PREFACE_BYTES: usize = 8;
const HEADER_BYTES: usize = 8;

/// Message types of §8.2 that the checker needs.
const HELLO: u16 = 1;
const PING: u16 = 10;
const PONG: u16 = 11;
const GOODBYE: u16 = 14;

/// The messages so far in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentMessages {
    pub(crate) hellos: u64,
    pub(crate) pings: u64,
    pub(crate) pongs: u64,
    pub(crate) goodbyes: u64,
    pub(crate) messages: u64,
    /// When the last PING was begun.
    pub(crate) ping_ns: u64,
    /// When HELLO was complete.
    pub(crate) hello_ns: u64,
}

/// Parses the messages of a stream.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Bytes of the preface parsed so far.
    preface: usize,
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    body_left: usize,
    pub(super) sent: SentMessages,
}

impl Reader {
    /// Skips the preface and message bodies in these bytes, and notes the headers.
    pub(super) fn read(&mut self, mut bytes: &[u8], now_ns: u64) {
        let preface = bytes.len().min(PREFACE_BYTES - self.preface);
        self.preface += preface;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.body_left > 0 {
                let count = bytes.len().min(self.body_left);
                self.body_left -= count;
                bytes = &bytes[count..];
                continue;
            }
            let count = bytes.len().min(HEADER_BYTES - self.header_bytes);
            self.header[self.header_bytes..self.header_bytes + count]
                .copy_from_slice(&bytes[..count]);
            self.header_bytes += count;
            bytes = &bytes[count..];
            if self.header_bytes == HEADER_BYTES {
                self.note_header(now_ns);
            }
        }
    }

    fn note_header(&mut self, now_ns: u64) {
        self.header_bytes = 0;
        let [a, b, c, d, low, high, ..] = self.header;
        self.body_left = u32::from_le_bytes([a, b, c, d]) as usize;
        self.sent.messages += 1;
        match u16::from_le_bytes([low, high]) {
            HELLO => {
                self.sent.hellos += 1;
                self.sent.hello_ns = now_ns;
            }
            PING => {
                self.sent.pings += 1;
                self.sent.ping_ns = now_ns;
            }
            PONG => self.sent.pongs += 1,
            GOODBYE => self.sent.goodbyes += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::control::{Message, PREFACE, Ping, Pong, StatsRequest};

    use super::*;

    #[test]
    fn read__counts_messages_in_pieces_of_any_length() {
        let mut bytes = PREFACE.to_vec();
        for message in [
            Message::from(Ping { nonce: 1 }),
            StatsRequest { request: 2 }.into(),
            Pong { nonce: 3 }.into(),
        ] {
            message.encode(&mut bytes).unwrap();
        }
        for piece in 1..bytes.len() {
            let mut reader = Reader::default();
            bytes.chunks(piece).for_each(|bytes| reader.read(bytes, 9));
            let SentMessages { pings, pongs, messages, ping_ns, .. } = reader.sent;
            assert_eq!((pings, pongs, messages, ping_ns), (1, 1, 3, 9), "pieces of {piece}");
        }
    }
}
