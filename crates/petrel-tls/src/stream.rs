//! One end of a TLS connection, without a socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use petrel::security::{LinkKeys, PeerIdentity, SecureStream, SecurityError, StreamCipher};
use rustls::Connection;
use zeroize::Zeroizing;

use crate::ALPN;
use crate::configs::Own;
use crate::identity::{self, Certificate, time_text};
use crate::keys::{SECRET_BYTES_MAX, Suite, keys_from_secret};
use crate::text;

/// Bytes that may be written before the handshake is over: the preface and the first messages are far less.
const EARLY_BYTES_MAX: usize = 64 * 1024;

/// Decrypted bytes that may wait for the caller. A caller reads after it has passed on a piece of this size or less.
const UNREAD_BYTES_MAX: usize = 1024 * 1024;

/// Decrypted bytes up to which rustls accepts further bytes.
const RUSTLS_UNREAD_BYTES: usize = 16 * 1024;

/// Label of the exporter (`docs/wire-protocol.md` §17.2).
const LINK_LABEL: &[u8] = b"EXPORTER-petrel-1 link";

/// One end of a connection inside TLS 1.3.
pub(crate) struct Stream {
    tls: Connection,
    /// The peer proves a raw public key (RFC 7250), and no certificate.
    has_raw_keys: bool,
    /// The end of the own certificate, in seconds since 1970; `None` with raw keys.
    own_expires_at: Option<u64>,
    /// The bytes inside are of a further protocol, and clients may be unknown.
    is_other: bool,
    has_ended: bool,
    phase: Phase,
    /// Decrypted bytes before those that rustls keeps.
    unread: Vec<u8>,
    /// Bytes of `unread` that were read.
    read: usize,
}

/// Bytes of the program leave in [`Phase::Open`] alone: the peer is verified then, and speaks Petrel.
enum Phase {
    Handshake {
        has_received: bool,
        /// Bytes that the program has written already.
        early: Vec<u8>,
    },
    Open {
        peer: Arc<PeerIdentity>,
        suite: Suite,
    },
    Failed(SecurityError),
}

impl Stream {
    /// Takes a connection on which nothing was sent or received.
    pub(crate) fn new(mut tls: Connection, own: Own) -> Self {
        // The caller takes the output after each call, so a limit there would cut bytes off and bound nothing.
        tls.set_buffer_limit(None);
        let phase = Phase::Handshake { has_received: false, early: Vec::new() };
        let (has_raw_keys, own_expires_at) = (own.is_raw_key(), own.expires_at());
        Self {
            tls,
            has_raw_keys,
            own_expires_at,
            is_other: false,
            has_ended: false,
            phase,
            unread: Vec::new(),
            read: 0,
        }
    }

    /// Takes a connection of a further protocol.
    pub(crate) fn of_other(tls: Connection, own: Own) -> Self {
        Self { is_other: true, ..Self::new(tls, own) }
    }

    fn decrypt(&mut self, mut bytes: &[u8]) -> Result<(), SecurityError> {
        if let (Phase::Handshake { has_received, .. }, Some(first)) =
            (&mut self.phase, bytes.first())
            && !std::mem::replace(has_received, true)
        {
            check_first_byte(*first)?;
        }
        while !bytes.is_empty() {
            let taken = self.tls.read_tls(&mut bytes);
            if taken.map_err(|error| SecurityError::new(format!("TLS failed: {error}")))? == 0 {
                // Bytes behind the peer's end mean nothing.
                break;
            }
            let state = self.tls.process_new_packets();
            let state = state.map_err(|error| text::of_connection(&error))?;
            self.has_ended |= state.peer_has_closed();
            if matches!(self.phase, Phase::Handshake { .. }) && !self.tls.is_handshaking() {
                self.open()?;
            }
            if state.plaintext_bytes_to_read() > RUSTLS_UNREAD_BYTES {
                self.set_aside(state.plaintext_bytes_to_read())?;
            }
        }
        // An attempt to read makes rustls return the memory of long records.
        let _ = self.tls.read_tls(&mut Nothing);
        Ok(())
    }

    /// Moves the decrypted bytes out of rustls, to make room there for further bytes.
    fn set_aside(&mut self, length: usize) -> Result<(), SecurityError> {
        if self.unread.len() - self.read + length > UNREAD_BYTES_MAX {
            let text = format!("more than {UNREAD_BYTES_MAX} decrypted bytes wait for the program");
            return Err(SecurityError::new(text));
        }
        self.unread.drain(..self.read);
        self.read = 0;
        let start = self.unread.len();
        self.unread.resize(start + length, 0);
        let read = self.tls.reader().read(&mut self.unread[start..]).unwrap_or(0);
        self.unread.truncate(start + read);
        Ok(())
    }

    /// Ends the handshake: checks the rest of the rules of §17.1, and sends the bytes written before.
    fn open(&mut self) -> Result<(), SecurityError> {
        if !self.is_other && self.tls.alpn_protocol() != Some(ALPN) {
            self.tls.send_close_notify();
            let text = "the peer does not ask for `petrel/1` over TLS; it is another program";
            return Err(SecurityError::new(text));
        }
        let peer = match self.peer_identity() {
            Ok(peer) => Arc::new(peer),
            Err(error) => {
                self.tls.send_close_notify();
                return Err(error);
            }
        };
        let suite = self.tls.negotiated_cipher_suite().and_then(|suite| Suite::of(suite.suite()));
        let suite = suite.ok_or_else(|| SecurityError::new("TLS chose an unknown cipher suite"))?;
        let before = std::mem::replace(&mut self.phase, Phase::Open { peer, suite });
        if let Phase::Handshake { early, .. } = before {
            self.encrypt(&early);
        }
        Ok(())
    }

    /// Reads the peer's identity. A resumed connection verifies no certificate again, so its end is checked here.
    fn peer_identity(&self) -> Result<PeerIdentity, SecurityError> {
        let first = self.tls.peer_certificates().and_then(|certificates| certificates.first());
        let first = match first {
            Some(first) => first,
            // The configuration has demanded any wanted certificate.
            None if self.is_other => return Ok(PeerIdentity::default()),
            None => return Err(SecurityError::new("the peer proved no identity")),
        };
        if self.has_raw_keys {
            return Ok(identity::of_raw_key(first));
        }
        let certificate = Certificate::parse(first)?;
        check_end(certificate.expires_at, SystemTime::now())?;
        Ok(certificate.identity)
    }

    fn encrypt(&mut self, bytes: &[u8]) {
        if let Err(error) = self.tls.writer().write_all(bytes) {
            self.phase = Phase::Failed(SecurityError::new(format!("TLS failed: {error}")));
        }
    }

    fn link_key(
        &self,
        suite: Suite,
        context: [u8; 9],
    ) -> Result<Box<dyn petrel_transport::seal::DatagramKey>, SecurityError> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES_MAX]);
        let secret = &mut secret[..suite.secret_bytes()];
        self.tls
            .export_keying_material(&mut *secret, LINK_LABEL, Some(&context))
            .map_err(|error| text::of_connection(&error))?;
        keys_from_secret(suite, secret)
    }
}

impl StreamCipher for Stream {
    fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        if let Phase::Failed(error) = &self.phase {
            return Err(error.to_string());
        }
        self.decrypt(bytes).map_err(|error| {
            self.phase = Phase::Failed(error.clone());
            error.to_string()
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> usize {
        if !matches!(self.phase, Phase::Open { .. }) {
            return 0;
        }
        let aside = &self.unread[self.read..];
        let length = aside.len().min(buffer.len());
        buffer[..length].copy_from_slice(&aside[..length]);
        self.read += length;
        if self.read == self.unread.len() {
            self.unread = Vec::new();
            self.read = 0;
        }
        // An error says that nothing is there.
        length + self.tls.reader().read(&mut buffer[length..]).unwrap_or(0)
    }

    fn write(&mut self, bytes: &[u8]) {
        match &mut self.phase {
            Phase::Handshake { early, .. } if early.len() + bytes.len() > EARLY_BYTES_MAX => {
                let text = format!("more than {EARLY_BYTES_MAX} bytes wait for the handshake");
                self.phase = Phase::Failed(SecurityError::new(text));
            }
            Phase::Handshake { early, .. } => early.extend_from_slice(bytes),
            Phase::Open { .. } => self.encrypt(bytes),
            Phase::Failed(_) => {}
        }
    }

    fn take_output(&mut self, output: &mut Vec<u8>) {
        while self.tls.wants_write() {
            self.tls.write_tls(output).expect("a vector takes all bytes");
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn close(&mut self) {
        self.tls.send_close_notify();
    }
}

impl SecureStream for Stream {
    fn peer(&self) -> Option<Arc<PeerIdentity>> {
        match &self.phase {
            Phase::Open { peer, .. } => Some(Arc::clone(peer)),
            Phase::Handshake { .. } | Phase::Failed(_) => None,
        }
    }

    fn expires_at(&self) -> Option<u64> {
        self.peer()?.expires_at.into_iter().chain(self.own_expires_at).min()
    }

    fn link_keys(&self, context: [u8; 8], is_opener: bool) -> Result<LinkKeys, SecurityError> {
        let suite = match &self.phase {
            Phase::Open { suite, .. } => *suite,
            Phase::Handshake { .. } => {
                return Err(SecurityError::new("a link has no keys before the handshake is over"));
            }
            Phase::Failed(error) => return Err(error.clone()),
        };
        let of_direction = |direction| {
            let mut all = [direction; 9];
            all[..8].copy_from_slice(&context);
            self.link_key(suite, all)
        };
        let (send, receive) = if is_opener { (0, 1) } else { (1, 0) };
        Ok(LinkKeys { send: of_direction(send)?, receive: of_direction(receive)? })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase: &dyn fmt::Debug = match &self.phase {
            Phase::Handshake { .. } => &"handshake",
            Phase::Open { peer, .. } => peer,
            Phase::Failed(error) => error,
        };
        let side = match &self.tls {
            Connection::Client(_) => "opener",
            Connection::Server(_) => "acceptor",
        };
        let handshake = self.tls.handshake_kind();
        f.debug_struct("Stream")
            .field("side", &side)
            .field("handshake", &handshake)
            .field("phase", phase)
            .finish_non_exhaustive()
    }
}

/// A source that has no bytes at present.
struct Nothing;

impl Read for Nothing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// Refuses a connection whose first byte begins no record of TLS, with a better text than rustls has.
fn check_first_byte(first: u8) -> Result<(), SecurityError> {
    let text = match first {
        0x14..=0x17 => return Ok(()),
        b'P' => {
            "the peer speaks Petrel without TLS; start it with credentials, or make this end permissive"
        }
        _ => "the peer does not speak TLS",
    };
    Err(SecurityError::new(text))
}

/// Refuses a peer whose certificate has ended.
fn check_end(expires_at: u64, now: SystemTime) -> Result<(), SecurityError> {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if now <= expires_at {
        return Ok(());
    }
    let text =
        format!("the peer's certificate expired on {}; renew it there", time_text(expires_at));
    Err(SecurityError::new(text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn check_end__of_a_certificate_that_ended_since_its_ticket() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(check_end(1_000, at(1_000)), Ok(()));
        let error = check_end(1_000, at(1_001)).unwrap_err().to_string();
        assert_eq!(
            error,
            "the peer's certificate expired on Thu, 01 Jan 1970 00:16:40 +0000; renew it there"
        );
    }
}
