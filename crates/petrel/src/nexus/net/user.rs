//! The user of the process at the other end of a TCP connection within this host, as the kernel says (`sock_diag(7)`).

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{ipproto, recv, sendto, socket_with};

/// `SOCK_DIAG_BY_FAMILY`, the kind of the question and of the answer.
const BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;

/// Bytes of `nlmsghdr`, of `inet_diag_req_v2`, and of `inet_diag_msg` up to its user.
const HEADER_BYTES: usize = 16;
const QUESTION_BYTES: usize = 56;
const USER_AT: usize = HEADER_BYTES + 64;

/// Asks the kernel for the users of sockets.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// The socket of the former question: a new one costs more than the answer.
    socket: RefCell<Option<OwnedFd>>,
}

impl Users {
    /// Returns the user that owns the socket at the second end, of a connection to the first; `None` if the socket belongs to another host or
    /// network namespace, is closed, or the kernel does not tell.
    pub(super) fn user_of(&self, (local, remote): (SocketAddr, SocketAddr)) -> Option<u32> {
        let [local, remote] =
            [local, remote].map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
        let is_here = remote.ip().is_loopback() || remote.ip() == local.ip();
        if !is_here {
            return None;
        }
        let mut kept = self.socket.borrow_mut();
        let socket = kept.take().map_or_else(open, Ok).ok()?;
        let user = ask(&socket, &question(local, remote)).ok()?;
        // A socket on which a question has failed may get the answer later.
        *kept = Some(socket);
        user
    }
}

/// Returns the question for the socket that has sent from `remote` to `local`.
fn question(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = match remote {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + QUESTION_BYTES);
    bytes.extend(((HEADER_BYTES + QUESTION_BYTES) as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    // The sequence number and the sender's port are 0: the kernel answers the asking socket.
    bytes.extend([0; 8]);
    bytes.extend([family.as_raw() as u8, ipproto::TCP.as_raw().get() as u8, 0, 0]);
    // Any state.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(remote.port().to_be_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(address_bytes(remote.ip()));
    bytes.extend(address_bytes(local.ip()));
    // Any interface, any cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xFF; 8]);
    assert!(bytes.len() == HEADER_BYTES + QUESTION_BYTES, "the question has all its fields");
    bytes
}

fn address_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG))?)
}

fn ask(socket: &OwnedFd, question: &[u8]) -> io::Result<Option<u32>> {
    sendto(socket, question, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    // The kernel has answered before the question's call returns.
    let mut answer = [0; 512];
    let (len, _) = recv(socket, &mut answer, RecvFlags::DONTWAIT)?;
    Ok(user_in(&answer[..len]))
}

/// Returns the user in an answer; `None` for an error or a short answer.
fn user_in(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let user = answer.get(USER_AT..USER_AT + 4)?;
    (kind == BY_FAMILY).then_some(u32::from_ne_bytes(user.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use petrel_skip::{Need, skip};
    use rustix::process::{Uid, geteuid, getuid};
    use rustix::thread::set_thread_res_uid;

    use super::*;

    /// Returns the user of an accepted connection's client, made by a thread of its own with `user` as the effective user.
    fn user_seen(listener: &TcpListener, user: u32) -> Option<u32> {
        let address = listener.local_addr().unwrap();
        let connect = move || {
            // This thread's, and no other's.
            set_thread_res_uid(getuid(), Uid::from_raw(user), getuid()).unwrap();
            TcpStream::connect(address).unwrap()
        };
        let client = std::thread::spawn(connect).join().unwrap();
        let (server, remote) = listener.accept().unwrap();
        let seen = Users::default().user_of((server.local_addr().unwrap(), remote));
        drop(client);
        seen
    }

    #[test]
    fn user_of__is_the_user_of_the_thread_that_connected() {
        let own = geteuid();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                return skip(Need::Ipv6, "no IPv6 on loopback");
            };
            assert_eq!(user_seen(&listener, own.as_raw()), Some(own.as_raw()), "{address}");
            if own.is_root() {
                assert_eq!(user_seen(&listener, 65_534), Some(65_534), "{address}");
            }
        }
    }

    #[test]
    fn user_of__a_closed_socket_or_another_host_is_unknown() {
        let address = |text: &str| text.parse().unwrap();
        let users = Users::default();
        let closed = || users.user_of((address("127.0.0.1:1"), address("127.0.0.1:1")));
        assert_eq!(closed(), None);
        assert_eq!(users.user_of((address("10.0.0.1:1"), address("10.0.0.2:1"))), None);
        // The answer to one question is not taken for that to the next.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ends = (client.peer_addr().unwrap(), client.local_addr().unwrap());
        assert_eq!(users.user_of(ends), Some(geteuid().as_raw()));
        assert_eq!(closed(), None);
        assert_eq!(users.user_of(ends), Some(geteuid().as_raw()));
    }

    #[test]
    fn user_in__an_error_and_a_short_answer_are_none() {
        let mut answer = [0; 124];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[USER_AT] = 7;
        assert_eq!(user_in(&answer), Some(7));
        assert_eq!(user_in(&answer[..USER_AT + 3]), None);
        answer[4] = 2;
        assert_eq!(user_in(&answer), None);
    }
}
