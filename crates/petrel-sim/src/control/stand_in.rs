//! A stand-in for TLS on control connections: each side sends a byte as its handshake, and then plain bytes. The agreement of sealed links
//! (`docs/wire-protocol.md` §17.2) is thus that of production, without cryptography.

use std::net::SocketAddr;
use std::sync::Arc;

use petrel::security::{
    LinkKeys, PeerIdentity, SecureStream, Security, SecurityError, StreamCipher,
};
use petrel_transport::conformance::sealed_link;
use petrel_transport::seal::SealedLink;

/// The first byte of a record of TLS's handshake.
const HANDSHAKE: u8 = 0x16;

/// Credentials of a process that also accepts peers without.
#[derive(Debug)]
pub(super) struct StandIn;

impl Security for StandIn {
    fn connect(
        &self,
        _to: SocketAddr,
        _name: Option<&str>,
    ) -> Result<Box<dyn SecureStream>, SecurityError> {
        Ok(Box::new(Bytes { output: vec![HANDSHAKE], ..Bytes::default() }))
    }

    fn accept(&self) -> Result<Box<dyn SecureStream>, SecurityError> {
        Ok(Box::new(Bytes { answers: true, ..Bytes::default() }))
    }

    fn is_permissive(&self) -> bool {
        true
    }
}

/// One end of a connection.
#[derive(Debug, Default)]
struct Bytes {
    /// Whether this end's handshake follows the peer's.
    answers: bool,
    /// Whether the peer's handshake has come.
    is_over: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes to be sent after the handshake.
    early: Vec<u8>,
}

impl StreamCipher for Bytes {
    fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some((first, rest)) = bytes.split_first().filter(|_| !self.is_over) else {
            self.input.extend_from_slice(bytes);
            return Ok(());
        };
        if *first != HANDSHAKE {
            return Err(format!("a handshake that begins with {first}"));
        }
        self.is_over = true;
        self.output.extend(self.answers.then_some(HANDSHAKE));
        self.input.extend_from_slice(rest);
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> usize {
        let count = self.input.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.input[..count]);
        self.input.drain(..count);
        count
    }

    fn write(&mut self, bytes: &[u8]) {
        self.early.extend_from_slice(bytes);
    }

    fn take_output(&mut self, output: &mut Vec<u8>) {
        output.append(&mut self.output);
        if self.is_over {
            output.append(&mut self.early);
        }
    }
}

impl SecureStream for Bytes {
    fn peer(&self) -> Option<Arc<PeerIdentity>> {
        self.is_over.then(Arc::default)
    }

    /// Returns keys in the place of those that the simulation makes of the link's key paths.
    fn link_keys(&self, _context: [u8; 8], _is_opener: bool) -> Result<LinkKeys, SecurityError> {
        let [SealedLink { send, receive, .. }, _] = sealed_link(0, [0, 1]);
        Ok(LinkKeys { send, receive })
    }
}
