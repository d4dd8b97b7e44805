//! Addresses of servers, as users write them.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::credentials;
use crate::failure::Failure;

/// The port on which `petrel serve` listens and that clients call by default.
pub const DEFAULT_PORT: u16 = 31850;

/// A server's control address: a host name or an IP address, and a port.
///
/// Accepted are `127.0.0.1:31850`, `[::1]:31850` and `localhost:31850`, also without the port, with the
/// default [`DEFAULT_PORT`]. Names are resolved when the address is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    host: String,
    port: u16,
}

impl ServerAddress {
    /// Resolves the host to at least one address, in the order of trial. A name such as `localhost` has
    /// an IPv6 and an IPv4 address, and a server may listen on either.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let found = (self.host.as_str(), self.port).to_socket_addrs().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot look up {self}: {error}"))
        })?;
        let addresses: Vec<_> = found.collect();
        credentials::expect(&addresses, &self.host);
        match addresses.is_empty() {
            true => Err(io::Error::other(format!("{self} has no address"))),
            false => Ok(addresses),
        }
    }

    /// Tries the addresses in their order. Returns the first success, else the last failure.
    pub fn first_that<T>(
        &self,
        mut attempt: impl FnMut(SocketAddr) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut last = Failure::because(format!("{self} has no address"));
        for address in self.resolve()? {
            match attempt(address) {
                Ok(done) => return Ok(done),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) =
            split(text).ok_or_else(|| address_error(text, "its brackets do not match"))?;
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(address_error(text, "the host is missing"));
        }
        let port = port.map_or(Ok(DEFAULT_PORT), str::parse);
        match port {
            Ok(port) if port > 0 => Ok(Self { host: host.to_owned(), port }),
            _ => Err(address_error(text, "the port is not a number from 1 to 65535")),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Parses an address to listen on. If a name has several addresses, the first IPv4 address is chosen:
/// `localhost` may stand for an IPv6 address that the host does not have.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs();
    let found: Vec<_> = found.map_err(|error| address_error(text, &error.to_string()))?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| address_error(text, "it has no address"))
}

/// Splits host and port. More than one colon outside brackets is an IPv6 address without a port.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => Some((host, Some(port))),
        _ => Some((text, None)),
    }
}

fn address_error(text: &str, reason: &str) -> String {
    format!(
        "'{text}' is not an address: {reason}; write HOST:PORT, \
         as in 127.0.0.1:31850 or [::1]:31850"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_str__accepts_names_and_both_families_with_or_without_port() {
        for (text, expected) in [
            ("127.0.0.1:31850", "127.0.0.1:31850"),
            ("127.0.0.1", "127.0.0.1:31850"),
            ("[::1]:9", "[::1]:9"),
            ("[::1]", "[::1]:31850"),
            ("::1", "[::1]:31850"),
            ("localhost:80", "localhost:80"),
            ("db-7.example", "db-7.example:31850"),
        ] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), expected);
        }
    }

    #[test]
    fn parse_listen__takes_names_and_any_port() {
        assert_eq!(parse_listen("127.0.0.1:0"), Ok("127.0.0.1:0".parse().unwrap()));
        assert_eq!(parse_listen("[::1]:7"), Ok("[::1]:7".parse().unwrap()));
        assert!(parse_listen("localhost:1").unwrap().ip().is_loopback());
        assert!(parse_listen("localhost").unwrap_err().contains("HOST:PORT"));
    }

    #[test]
    fn from_str__names_the_fault() {
        for (text, reason) in [
            ("", "host is missing"),
            (":80", "host is missing"),
            ("a b:80", "host is missing"),
            ("[::1", "brackets"),
            ("[::1]80", "brackets"),
            ("host:0", "port"),
            ("host:http", "port"),
            ("host:65536", "port"),
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn resolve__of_a_literal_needs_no_look_up() {
        let address: ServerAddress = "[::1]:7".parse().unwrap();
        assert_eq!(address.resolve().unwrap(), ["[::1]:7".parse().unwrap()]);
    }
}
