//! Streams inside TLS (`docs/wire-protocol.md` §17.1), as the transport sees them. The cryptography is in another crate.

use std::fmt;

/// One end of a connection inside TLS. It reads and writes no socket: the caller carries the bytes.
pub trait StreamCipher: fmt::Debug + Send {
    /// Takes all bytes that the peer has sent.
    ///
    /// # Errors
    /// The peer breaks TLS, or is not trusted, with the reason for people. [`take_output`](Self::take_output) may still have an
    /// alert for it.
    fn receive(&mut self, bytes: &[u8]) -> Result<(), String>;

    /// Moves decrypted bytes to the start of `buffer`, and returns their number; 0 if none is there.
    fn read(&mut self, buffer: &mut [u8]) -> usize;

    /// Encrypts bytes for the peer, after those before. Bytes written before the handshake is over are kept until then.
    fn write(&mut self, bytes: &[u8]);

    /// Appends the bytes to be sent to the peer.
    fn take_output(&mut self, output: &mut Vec<u8>);

    /// Returns true if the peer has ended TLS.
    fn has_ended(&self) -> bool {
        false
    }

    /// Ends TLS for the peer. Petrel's messages have lengths, and need no end.
    fn close(&mut self) {}
}
