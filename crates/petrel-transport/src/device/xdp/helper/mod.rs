//! A process with privileges that makes sockets for processes without.
//!
//! The helper attaches the program and owns link and maps; a map in other hands could be written without any privilege. A client shows its bound UDP
//! socket, whose packets it may have (module `local`), and gets AF_XDP sockets. The client registers its own memory, so that its own limit
//! of locked memory counts. Then the helper binds the socket, and enters the socket into the maps. The kernel binds a socket only once: so the helper knows
//! the interface and the queue of every socket in the maps.
//!
//! The helper keeps a duplicate of the UDP socket while the client is connected. Otherwise a client could close the port, and get the packets of its next
//! owner. Everything that a client has ends with its connection. If the helper ends, the link ends with it, and packets reach the UDP sockets.
//!
//! A client can send any frame by the interface, and can bind its socket to a queue in a mode of its own choice. Only users who may harm the interface's
//! other traffic should be allowed.
//!
//! # Messages
//!
//! A Unix socket with bounds of messages (`SOCK_SEQPACKET`). Integers are in the host's order.
//!
//! | request: kind, two words | descriptor | answer: two words | descriptor |
//! | --- | --- | --- | --- |
//! | hello: version, 0 | the UDP socket | most bytes of a frame, index of the interface | |
//! | create: chunks for receiving, for sending | | number of the socket, 0 | the AF_XDP socket |
//! | enter: number of the socket, queue | | 0, 0 | |

mod client;
mod server;

pub(super) use client::Client;
pub use server::Server;

/// The version of the messages. Helper and client come from different installations.
const VERSION: u32 = 1;

/// Bytes of a request, and of an answer without its text.
const HEAD_BYTES: usize = 12;

/// Most bytes of an answer's text.
const TEXT_BYTES_MAX: usize = 500;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hello = 1,
    Create = 2,
    Enter = 3,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Done = 0,
    /// The socket cannot have the queue: the first word is `EBUSY`, or `EINVAL` for an unknown queue or mode.
    QueueTaken = 1,
    /// The text says why. The helper closes the connection.
    Refused = 2,
    /// Likewise, and the client may try again: another connection has the port, perhaps of a process that is just ending.
    PortTaken = 3,
}

/// A request, or the head of an answer: a kind or a status, and two words.
fn head(code: u32, words: [u32; 2]) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip([code, words[0], words[1]]) {
        *to = word.to_ne_bytes();
    }
    bytes
}

/// Returns the parts of a head, if the bytes are long enough.
fn parse(bytes: &[u8]) -> Option<(u32, [u32; 2])> {
    let (head, _) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let word = |at: usize| u32::from_ne_bytes(head.as_chunks::<4>().0[at]);
    Some((word(0), [word(1), word(2)]))
}

#[cfg(test)]
mod tests;
