//! Socket buffers: the size that the kernel grants when the UDP transport requests one.

use std::io;
use std::net::UdpSocket;

use petrel_command::units::format_bytes;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_send_buffer_size, socket_recv_buffer_size,
    socket_send_buffer_size,
};

use super::check::Check;
use super::host::read_number;

const AREA: &str = "udp";

/// Size that the UDP transport requests by default, for sending and receiving.
const REQUESTED_BYTES: usize = 4 << 20;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("udp-receive-buffer", "net.core.rmem_max", granted_receive(), RECEIVE_LACK),
        check("udp-send-buffer", "net.core.wmem_max", granted_send(), SEND_LACK),
    ]
}

const RECEIVE_LACK: &str = "Bursts that do not fit are lost and sent again.";
const SEND_LACK: &str = "Sending large messages then stops more often to wait for room.";

fn check(name: &'static str, sysctl: &str, granted: io::Result<usize>, lack: &str) -> Check {
    let limit = read_number::<u64>(&format!("/proc/sys/{}", sysctl.replace('.', "/")));
    match granted {
        Ok(granted) if granted >= REQUESTED_BYTES => {
            Check::ok(AREA, name, describe(granted, sysctl, limit))
        }
        Ok(granted) => Check::warn(
            AREA,
            name,
            describe(granted, sysctl, limit),
            format!(
                "{lack} Raise the limit: `sudo sysctl -w {sysctl}={REQUESTED_BYTES}`, and to keep it \
                 `echo {sysctl}={REQUESTED_BYTES} | sudo tee -a /etc/sysctl.d/90-petrel.conf`."
            ),
        ),
        Err(error) => Check::warn(
            AREA,
            name,
            format!("could not be tried: {error}"),
            "Look for a sandbox that forbids UDP sockets or their options.",
        ),
    }
}

fn describe(granted: usize, sysctl: &str, limit: Option<u64>) -> String {
    let (granted, requested) = (format_bytes(granted as u64), format_bytes(REQUESTED_BYTES as u64));
    let limit = limit.map_or("not visible here".to_owned(), format_bytes);
    format!("{granted} granted of {requested} asked for; {sysctl} is {limit}")
}

fn granted_receive() -> io::Result<usize> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    set_socket_recv_buffer_size(&socket, REQUESTED_BYTES)?;
    Ok(in_payload(socket_recv_buffer_size(&socket)?))
}

fn granted_send() -> io::Result<usize> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    set_socket_send_buffer_size(&socket, REQUESTED_BYTES)?;
    Ok(in_payload(socket_send_buffer_size(&socket)?))
}

/// Linux doubles the requested size, to cover its own book-keeping, and reports the double (socket(7)).
fn in_payload(reported: usize) -> usize {
    reported / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Status;

    #[test]
    fn check__warns_below_what_is_wanted_and_names_the_sysctl() {
        let check = check("udp-receive-buffer", "net.core.no_such", Ok(212_992), RECEIVE_LACK);
        assert_eq!(check.status, Status::Warn);
        assert!(check.found.contains("208 KiB granted of 4.00 MiB"), "{}", check.found);
        assert!(check.found.contains("not visible here"), "{}", check.found);
        assert!(check.advice.unwrap().contains("sysctl -w net.core.no_such=4194304"));
    }

    #[test]
    fn check__accepts_enough() {
        let check = check("udp-send-buffer", "net.core.wmem_max", Ok(REQUESTED_BYTES), SEND_LACK);
        assert_eq!((check.status, check.advice), (Status::Ok, None));
    }

    #[test]
    fn granted__is_measured_on_a_real_socket() {
        assert!(granted_receive().unwrap() > 0);
        assert!(granted_send().unwrap() > 0);
    }
}
