//! The response of a client's call.

use std::fmt;
use std::mem;
use std::net::{SocketAddr, SocketAddrV6};
use std::ops::Deref;

use petrel_transport::buf::append_message;

use super::memories;
use crate::local::Hub;

/// The message of a response, and the server that gave it.
#[derive(Clone)]
pub struct Response {
    /// The message, and the server's address behind the message: a response is moved often, and stays as small as a vector.
    bytes: Vec<u8>,
}

impl Response {
    /// Copies the message into existing memory.
    #[inline(always)]
    pub(crate) fn new(message: &[u8], server: &ServerBytes, mut memory: Vec<u8>) -> Self {
        memory.clear();
        append_message(message, server.0, &mut memory);
        Self { bytes: memory }
    }

    /// Returns the control address of the server that gave the response: of the last attempt, if there were several.
    pub fn server(&self) -> SocketAddr {
        let (_, server) = self.bytes.split_last_chunk().expect("a response has its server");
        ServerBytes(*server).address()
    }

    /// Leaves out the end of the message, beyond `len` bytes.
    pub(crate) fn cut(&mut self, len: usize) {
        let end = self.bytes.len() - SERVER_BYTES;
        drop(self.bytes.drain(len..end));
    }

    /// Returns the message in its own memory.
    pub fn into_vec(mut self) -> Vec<u8> {
        let mut bytes = mem::take(&mut self.bytes);
        bytes.truncate(bytes.len() - SERVER_BYTES);
        bytes
    }
}

/// Bytes of an encoded address.
const SERVER_BYTES: usize = 24;

/// The address of a server in the form that follows the message of a response: IP address (16 bytes, the first four of
/// IPv4), port, family (4 or 6), and the scope of IPv6, each little-endian.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerBytes([u8; SERVER_BYTES]);

impl From<SocketAddr> for ServerBytes {
    fn from(server: SocketAddr) -> Self {
        let mut bytes = [0; SERVER_BYTES];
        match server {
            SocketAddr::V4(v4) => {
                bytes[..4].copy_from_slice(&v4.ip().octets());
                bytes[18] = 4;
            }
            SocketAddr::V6(v6) => {
                bytes[..16].copy_from_slice(&v6.ip().octets());
                bytes[18] = 6;
                bytes[20..].copy_from_slice(&v6.scope_id().to_le_bytes());
            }
        }
        bytes[16..18].copy_from_slice(&server.port().to_le_bytes());
        Self(bytes)
    }
}

impl ServerBytes {
    fn address(&self) -> SocketAddr {
        let bytes = &self.0;
        let port = u16::from_le_bytes([bytes[16], bytes[17]]);
        let first = |bytes: &[u8; SERVER_BYTES]| [bytes[0], bytes[1], bytes[2], bytes[3]];
        if bytes[18] == 4 {
            return (first(bytes), port).into();
        }
        assert_eq!(bytes[18], 6, "an address is of one of two families");
        let (ip, _) = bytes.split_first_chunk::<16>().expect("its length");
        let scope = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        SocketAddrV6::new((*ip).into(), port, 0, scope).into()
    }
}

impl Drop for Response {
    /// Leaves the memory to the next request: of the endpoint in its tasks, else of the thread.
    #[inline]
    fn drop(&mut self) {
        let memory = &mut self.bytes;
        if Hub::with_current(|hub| hub.keep_memory(mem::take(memory))).is_none() {
            memories::keep_memory(mem::take(memory));
        }
    }
}

/// Returns the bytes of a request. Borrowed bytes and arrays are copied to the memory of a former response of the endpoint or
/// thread. A response of equal length has room: the response comes back in the request's memory.
#[inline]
pub(crate) fn bytes_of<R: Into<Vec<u8>> + AsRef<[u8]>>(request: R) -> Vec<u8> {
    if mem::needs_drop::<R>() {
        return request.into();
    }
    let (message, mut bytes) = (request.as_ref(), take_memory());
    if bytes.capacity() < message.len() + SERVER_BYTES {
        bytes.reserve(message.len() + SERVER_BYTES);
    }
    append_message(message, [], &mut bytes);
    bytes
}

/// Returns the bytes of a request that `append` appends to the memory of a former response, which has room for a response of
/// equal length.
#[inline]
pub(crate) fn bytes_by<R>(append: impl FnOnce(&mut Vec<u8>) -> R) -> (Vec<u8>, R) {
    let mut bytes = take_memory();
    let result = append(&mut bytes);
    (bytes, result)
}

/// Returns the empty memory of a former response of the endpoint or thread.
#[inline(always)]
fn take_memory() -> Vec<u8> {
    let kept = Hub::with_current(Hub::take_memory).or_else(memories::take_memory);
    kept.unwrap_or_default()
}

impl Deref for Response {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - SERVER_BYTES]
    }
}

impl AsRef<[u8]> for Response {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Response> for Vec<u8> {
    fn from(response: Response) -> Self {
        response.into_vec()
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Response {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response(\"{}\" of {})", self.escape_ascii(), self.server())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server__of_both_families() {
        for address in ["10.1.2.3:65535", "[2001:db8::7]:1", "[fe80::1%9]:31850"] {
            let server: SocketAddr = address.parse().unwrap();
            for message in [&b""[..], b"value", &[7; 100]] {
                let response = Response::new(message, &server.into(), vec![1; 30]);
                assert_eq!((response.server(), &*response), (server, message));
                assert_eq!(response.clone().into_vec(), message);
                assert!(
                    format!("{response:?}").ends_with(&format!(" of {server})")),
                    "{response:?}"
                );
            }
        }
    }
}
