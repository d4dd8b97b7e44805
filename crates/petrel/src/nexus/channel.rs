//! The bytes of a control connection: as they are, or inside TLS (`docs/wire-protocol.md` §17.1).

use std::sync::Arc;

use crate::events;
use crate::security::{
    LinkKeys, PeerIdentity, SecureStream, Security, SecurityError, StreamCipher,
};

/// The first byte of a connection inside TLS: a record of the handshake.
const TLS_MARK: u8 = 0x16;

const PLAIN_MARK: u8 = petrel_proto::control::PREFACE[0];

/// How the bytes of a connection travel.
#[derive(Debug, Default)]
pub(super) struct Channel(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Plain,
    Tls {
        stream: Box<dyn SecureStream>,
        /// Whether the peer's first byte has come.
        is_begun: bool,
        /// Whether the peer may do without TLS.
        is_permissive: bool,
    },
}

impl Channel {
    /// Inside TLS. If `is_permissive`, a peer whose first byte begins the plain preface does without.
    pub(super) fn tls(stream: Box<dyn SecureStream>, is_permissive: bool) -> Self {
        Self(State::Tls { stream, is_begun: false, is_permissive })
    }

    /// Returns true if the bytes travel as they are.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.0, State::Plain)
    }

    /// Returns true if the peer has begun TLS.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self.0, State::Tls { is_begun: true, .. })
    }

    /// Returns true if bytes can be sent: only the peer's first byte tells whether it does without TLS.
    pub(super) fn may_send(&self) -> bool {
        !matches!(self.0, State::Tls { is_begun: false, is_permissive: true, .. })
    }

    /// Moves bytes of the peer that are decrypted already to the start of `buffer`. Returns their number.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
        match &mut self.0 {
            State::Plain => 0,
            State::Tls { stream, .. } => stream.read(buffer),
        }
    }

    /// Takes the bytes of a read, the first `count` of `buffer`, and leaves the peer's bytes there. Returns their number. Bytes to be sent in
    /// response are added to `output`.
    ///
    /// # Errors
    /// The peer does not speak TLS, breaks it, or is not trusted.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        count: usize,
        output: &mut Vec<u8>,
    ) -> Result<usize, SecurityError> {
        let State::Tls { stream, is_begun, is_permissive } = &mut self.0 else {
            return Ok(count);
        };
        if !*is_begun && buffer[0] != TLS_MARK {
            if *is_permissive && buffer[0] == PLAIN_MARK {
                self.0 = State::Plain;
                return Ok(count);
            }
            return Err(without_tls(buffer[0]));
        }
        *is_begun = true;
        let taken = stream.receive(&buffer[..count]);
        stream.take_output(output);
        taken.map_err(SecurityError::new)?;
        Ok(stream.read(buffer))
    }

    /// Encrypts `plain`, and adds the bytes to be sent to `output`.
    pub(super) fn send(&mut self, plain: &mut Vec<u8>, output: &mut Vec<u8>) {
        match &mut self.0 {
            State::Plain if output.is_empty() => std::mem::swap(plain, output),
            State::Plain => output.append(plain),
            State::Tls { stream, .. } => {
                if !plain.is_empty() {
                    stream.write(plain);
                    plain.clear();
                }
                stream.take_output(output);
            }
        }
    }

    /// Does without TLS from now on, to tell a peer without TLS the reason of the end.
    pub(super) fn give_up_tls(&mut self) {
        self.0 = State::Plain;
    }

    /// Returns the state of TLS when the connection goes on as a stream of frames.
    pub(super) fn into_cipher(self) -> Option<Box<dyn StreamCipher>> {
        match self.0 {
            State::Plain => None,
            State::Tls { stream, .. } => Some(stream),
        }
    }

    /// Returns the proven identity of the peer.
    pub(super) fn peer(&self) -> Option<Arc<PeerIdentity>> {
        match &self.0 {
            State::Plain => None,
            State::Tls { stream, .. } => stream.peer(),
        }
    }

    /// Returns when the first of the two ends' certificates ends, in seconds since 1970.
    pub(super) fn expires_at(&self) -> Option<u64> {
        match &self.0 {
            State::Plain => None,
            State::Tls { stream, .. } => stream.expires_at(),
        }
    }

    /// Returns the keys of a link's datagrams, or `None` without TLS.
    ///
    /// # Errors
    /// The handshake is not over.
    pub(super) fn link_keys(
        &self,
        context: [u8; 8],
        is_opener: bool,
    ) -> Result<Option<LinkKeys>, SecurityError> {
        match &self.0 {
            State::Plain => Ok(None),
            State::Tls { stream, .. } => stream.link_keys(context, is_opener).map(Some),
        }
    }
}

/// Returns the acceptor's end of a connection of a further protocol, by [`Security::accept_other`]. Credentials that cannot be used are an
/// event of the process, as for Petrel's own connections.
///
/// # Errors
/// Those of the credentials.
pub fn accept_other(
    security: &dyn Security,
    is_mutual: bool,
) -> Result<Box<dyn StreamCipher>, SecurityError> {
    security.accept_other(is_mutual).inspect_err(events::credentials_failed)
}

#[cold]
fn without_tls(first: u8) -> SecurityError {
    SecurityError::new(match first {
        PLAIN_MARK => {
            "the peer speaks Petrel without TLS: it has no credentials; give it some, or let this process be permissive \
             while the others get theirs"
        }
        _ => "the peer speaks neither TLS nor Petrel",
    })
}
