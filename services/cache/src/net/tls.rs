//! TLS of a connection: between the bytes of the socket, and requests and replies.

use std::fmt;
use std::sync::Arc;

use petrel::nexus::accept_other;
use petrel::security::{Security, SecurityError, StreamCipher};

use crate::limits::TLS_SILENT_BYTES_MAX;

/// Bytes of replies that are encrypted at a time: some records of TLS.
const PIECE_BYTES: usize = 64 << 10;

/// The first byte of a client that speaks TLS: a record of the handshake.
const TLS_MARK: u8 = 0x16;

/// The reply to a client without TLS.
const WITHOUT_TLS: &[u8] = b"CLIENT_ERROR this port speaks TLS: connect with TLS\r\n";

/// How memcached's port speaks TLS.
#[derive(Clone, Debug)]
pub(crate) struct TlsPort {
    pub(crate) security: Arc<dyn Security>,
    /// Whether clients prove an identity, too.
    pub(crate) is_mutual: bool,
}

impl TlsPort {
    pub(crate) fn accept(&self) -> Result<Tls, SecurityError> {
        let cipher = accept_other(&*self.security, self.is_mutual)?;
        Ok(Tls {
            cipher,
            has_begun: false,
            sealed: Vec::new(),
            sent: 0,
            is_closed: false,
            silent_bytes: 0,
        })
    }
}

/// The TLS of a connection, and encrypted bytes for the socket.
pub(crate) struct Tls {
    cipher: Box<dyn StreamCipher>,
    /// Whether the client's first byte has come.
    has_begun: bool,
    sealed: Vec<u8>,
    sent: usize,
    is_closed: bool,
    /// Bytes of the socket since the last decrypted byte: at first the bytes of a handshake.
    silent_bytes: usize,
}

impl Tls {
    /// Takes bytes of the socket.
    ///
    /// # Errors
    /// The connection ends: with a reply for a client without TLS, or after an alert.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), Option<&'static [u8]>> {
        if !std::mem::replace(&mut self.has_begun, true) && bytes[0] != TLS_MARK {
            return Err(Some(WITHOUT_TLS));
        }
        self.cipher.receive(bytes).map_err(|_| None)
    }

    /// Moves decrypted bytes to the start of `buffer`; returns the number.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let bytes = self.cipher.read(buffer);
        if bytes > 0 {
            self.silent_bytes = 0;
        }
        bytes
    }

    /// Notes bytes that contained nothing for the program. Returns false if a client has sent more of them than a handshake or a record
    /// needs: handshakes without end would hold memory, and updates of keys the thread.
    pub(super) fn is_patient(&mut self, bytes: usize) -> bool {
        self.silent_bytes += bytes;
        self.silent_bytes <= TLS_SILENT_BYTES_MAX
    }

    pub(super) fn has_ended(&self) -> bool {
        self.cipher.has_ended()
    }

    /// Encrypts further replies once the socket has taken all earlier replies. If `is_last`, the end of TLS follows. Returns the
    /// number of taken bytes of `replies`.
    pub(super) fn seal(&mut self, replies: &[u8], is_last: bool) -> usize {
        let mut taken = 0;
        if self.sent == self.sealed.len() {
            self.sealed.clear();
            self.sent = 0;
            taken = replies.len().min(PIECE_BYTES);
            if taken > 0 {
                self.cipher.write(&replies[..taken]);
            }
            if is_last && taken == replies.len() && !std::mem::replace(&mut self.is_closed, true) {
                self.cipher.close();
            }
        }
        self.cipher.take_output(&mut self.sealed);
        taken
    }

    /// Returns the encrypted bytes for the socket.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.sealed[self.sent..]
    }

    pub(super) fn note_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        assert!(self.sent <= self.sealed.len(), "more bytes were sent than there are");
    }

    /// Gives the memory of sent bytes back.
    pub(super) fn trim(&mut self) {
        if self.sent == self.sealed.len() {
            (self.sealed, self.sent) = (Vec::new(), 0);
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.sealed.capacity()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cipher.fmt(f)
    }
}
