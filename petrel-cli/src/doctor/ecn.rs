//! ECN marks over loopback: whether they can be set, and whether Petrel's transport receives them.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use petrel_transport::Transport;
use petrel_transport::udp::{Udp, UdpConfig, UdpLink};

use super::check::{Check, Status};
use petrel_transport::socket_option::set_int_option;

const AREA: &str = "udp";
const NAME: &str = "udp-ecn";

/// The time limit of the other checks of datagrams.
const TIMEOUT: Duration = Duration::from_secs(1);

/// *Congestion Experienced*, as if a switch had set it.
const CE: libc::c_int = 0b11;

/// A packet that the transport accepts as a frame.
const FRAME: [u8; 16] = [0x10; 16];

/// Runs the check, unless loopback does not work at all.
pub(super) fn check(loopback: Status) -> Check {
    if loopback != Status::Ok {
        return Check::info(AREA, NAME, "not tried: see udp-loopback");
    }
    match receives_marks() {
        Ok(true) => Check::ok(AREA, NAME, "a mark of congestion (ECN) was set and read"),
        Ok(false) => no_marks("the mark of congestion (ECN) of a datagram was lost on the way"),
        Err(error) => {
            no_marks(&format!("marks of congestion (ECN) cannot be set or read: {error}"))
        }
    }
}

fn no_marks(found: &str) -> Check {
    Check::warn(
        AREA,
        NAME,
        found,
        "Use Petrel outside of sandboxes that filter the socket options IP_TOS and IP_RECVTOS, and \
         look for a firewall that clears the traffic class. Only DCQCN needs marks; without them it \
         knows of congestion by losses alone. The other congestion controls work as ever.",
    )
}

/// Sends a marked datagram to a transport whose peer agreed to ECN.
fn receives_marks() -> io::Result<bool> {
    let mut udp = Udp::bind(UdpConfig::default()).map_err(io::Error::other)?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    let link = UdpLink { ecn: true, ..UdpLink::to(sender.local_addr()?) };
    udp.add_peer(link).map_err(io::Error::other)?;
    set_int_option(&sender, libc::SOL_IP, libc::IP_TOS, CE)?;
    sender.send_to(&FRAME, udp.local_addr())?;
    let deadline = Instant::now() + TIMEOUT;
    while udp.rx_burst(1, |_, _| {}) == 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the datagram did not arrive"));
        }
        udp.wait(Some(left.as_nanos() as u64));
    }
    Ok(udp.stats().rx_marked == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check__receives_the_mark_or_reports_the_reason() {
        let check = check(Status::Ok);
        let is_ok = check.status == Status::Ok;
        assert_eq!(is_ok, check.advice.is_none(), "{check:?}");
        let is_possible = Udp::bind(UdpConfig::default()).unwrap().capabilities().ecn;
        assert_eq!(is_ok, is_possible, "{check:?}");
        assert_eq!(super::check(Status::Fail).status, Status::Info);
    }
}
