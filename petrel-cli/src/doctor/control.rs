//! The control plane: TCP on loopback, the control port, and the range of ephemeral ports.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use petrel_command::cores::parse_list;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::check::Check;
use super::host::read;

const AREA: &str = "control";

/// Loopback connects at once; only a starved machine needs this time.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn checks(port: u16) -> Vec<Check> {
    vec![
        loopback(),
        port_free("control-port-ipv4", SocketAddr::from(([127, 0, 0, 1], port))),
        port_free("control-port-ipv6", SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port))),
        ephemeral_ports(port),
    ]
}

fn loopback() -> Check {
    match connect() {
        Ok(()) => Check::ok(AREA, "tcp-loopback", "a connection over 127.0.0.1 was made"),
        Err(error) => Check::fail(
            AREA,
            "tcp-loopback",
            format!("no connection over 127.0.0.1 could be made: {error}"),
            "Bring the loopback device up (`ip link set lo up`), and look for a firewall or a \
             sandbox that forbids TCP sockets.",
        ),
    }
}

fn connect() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    TcpStream::connect_timeout(&listener.local_addr()?, TIMEOUT).map(drop)
}

fn port_free(name: &'static str, address: SocketAddr) -> Check {
    match try_bind(address) {
        Ok(()) => Check::ok(AREA, name, format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Check::warn(
            AREA,
            name,
            format!("{address} is in use"),
            format!(
                "A server may be running already: `petrel ping {address}`. `ss -ltnp 'sport = \
                 :{}'` says which program it is; `petrel serve --listen` takes another port.",
                address.port()
            ),
        ),
        Err(error) if address.is_ipv6() && is_absent(&error) => {
            Check::info(AREA, name, "no IPv6 here: see ipv6-loopback")
        }
        Err(error) => Check::warn(
            AREA,
            name,
            format!("{address} cannot be bound: {error}"),
            "Choose another address or port with `petrel serve --listen`.",
        ),
    }
}

/// Returns true if the host lacks the address or its whole family.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Binds without listening. Binding detects listeners, but cannot block a starting server, because the
/// two sockets allow reuse of the address.
fn try_bind(address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(bind(&socket, &address)?)
}

/// Checks whether the control port lies in the ephemeral range: then an outgoing connection may by
/// chance occupy the port when the server needs it.
fn ephemeral_ports(port: u16) -> Check {
    let range = read("/proc/sys/net/ipv4/ip_local_port_range");
    let Some((first, last)) = range.as_deref().and_then(parse_range) else {
        return Check::info(AREA, "ephemeral-ports", "the range is not readable here");
    };
    let found = format!("{first} to {last}");
    let reserved = read("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    if !(first..=last).contains(&port) {
        return Check::ok(AREA, "ephemeral-ports", format!("{found}; {port} is outside"));
    }
    if list_contains(&reserved, port) {
        return Check::ok(AREA, "ephemeral-ports", format!("{found}; {port} is reserved"));
    }
    Check::warn(
        AREA,
        "ephemeral-ports",
        format!("{found}; {port} is inside"),
        format!(
            "An outgoing connection may take {port} before the server does. Reserve it: `sudo \
             sysctl -w net.ipv4.ip_local_reserved_ports={}`.",
            with_port(&reserved, port)
        ),
    )
}

fn with_port(reserved: &str, port: u16) -> String {
    if reserved.is_empty() { port.to_string() } else { format!("{reserved},{port}") }
}

/// Parses two numbers, first and last.
fn parse_range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    Some((first.parse().ok()?, last.trim().parse().ok()?))
}

/// Returns true if a list such as `8080,9148-9150` contains a port.
fn list_contains(list: &str, port: u16) -> bool {
    parse_list(list).is_some_and(|list| list.iter().any(|range| range.contains(&port.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    #[test]
    fn port_free__sees_a_listener_and_its_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let check = port_free("control-port-ipv4", address);
        assert_eq!(check.status, Status::Warn);
        assert!(check.advice.unwrap().contains(&format!("petrel ping {address}")));
    }

    #[test]
    fn try_bind__leaves_the_port_to_a_server() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let family = AddressFamily::INET;
        let held = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&held, true).unwrap();
        bind(&held, &free).unwrap();
        // Imitates a server that starts while the check holds the address.
        TcpListener::bind(free).unwrap();
    }

    #[test]
    fn parse_range__takes_tabs() {
        assert_eq!(parse_range("32768\t60999\n"), Some((32_768, 60_999)));
        assert_eq!(parse_range("32768"), None);
        assert_eq!(parse_range("1 99999"), None);
    }

    #[test]
    fn list_contains__takes_single_ports_and_ranges() {
        assert!(list_contains("8080,31840-31860", 31_850));
        assert!(list_contains("31850", 31_850));
        assert!(!list_contains("8080,9148-9150", 31_850));
        assert!(!list_contains("", 31_850));
        assert_eq!(with_port("", 1), "1");
        assert_eq!(with_port("8080", 1), "8080,1");
    }
}
