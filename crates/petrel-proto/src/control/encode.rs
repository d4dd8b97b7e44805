//! Messages to bytes.

use std::net::{IpAddr, SocketAddr};

use super::records::{cut, write};
use super::{
    AGENT_BYTES_MAX, BODY_BYTES_MAX, CardAddress, Goodbye, GroupJoin, HEADER_BYTES, Hello,
    LinkAccept, LinkFeatures, LinkOpen, Message, Offer, OutOfRange, SessionAccept, SessionClose,
    SessionOpen, StatsReply, TEXT_BYTES_MAX,
};
use crate::Status;

impl Message {
    /// Appends the message to `out`. Texts for people are cut if too long.
    ///
    /// # Errors
    /// A field out of range, an error of this side; `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), OutOfRange> {
        self.check()?;
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        self.write_body(out);
        assert!(
            out.len() - start <= HEADER_BYTES + BODY_BYTES_MAX,
            "a message that was checked fits its frame"
        );
        let length = (out.len() - start - HEADER_BYTES) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        out[start + 4..start + 6].copy_from_slice(&self.kind().code().to_le_bytes());
        Ok(())
    }

    fn write_body(&self, out: &mut Vec<u8>) {
        match self {
            Message::Hello(hello) => write_hello(out, hello),
            Message::LinkOpen(open) => write_link_open(out, open),
            Message::LinkAccept(accept) => write_link_accept(out, accept),
            Message::LinkRefuse(refuse) => {
                write_u32(out, 1, refuse.link);
                write_reason(out, 6, refuse.status, &refuse.text);
            }
            Message::LinkClose(close) => {
                write_u32(out, 1, close.link);
                write_reason(out, 6, close.status, &close.text);
            }
            Message::SessionOpen(open) => write_session_open(out, open),
            Message::SessionAccept(accept) => write_session_accept(out, accept),
            Message::SessionRefuse(refuse) => {
                write_u32(out, 1, refuse.link);
                write_u32(out, 2, refuse.request);
                write_reason(out, 10, refuse.status, &refuse.text);
            }
            Message::SessionClose(close) => write_session_close(out, close),
            Message::Ping(ping) => write(out, 1, &ping.nonce.to_le_bytes()),
            Message::Pong(pong) => write(out, 1, &pong.nonce.to_le_bytes()),
            Message::StatsRequest(stats) => write_u32(out, 1, stats.request),
            Message::StatsReply(reply) => write_stats_reply(out, reply),
            Message::SessionDrain(drain) => {
                write_u32(out, 1, drain.link);
                write_u32(out, 3, drain.session);
                write_u32(out, 4, drain.token);
                write(out, 11, cut(&drain.text, TEXT_BYTES_MAX).as_bytes());
            }
            Message::Goodbye(Goodbye { status, text }) => write_reason(out, 1, *status, text),
            Message::GroupJoin(join) => write_group_join(out, join),
            Message::GroupAccept(accept) => {
                write_u32(out, 1, accept.link);
                write_u32(out, 2, accept.request);
            }
            Message::GroupRefuse(refuse) => {
                write_u32(out, 1, refuse.link);
                write_u32(out, 2, refuse.request);
                write_reason(out, 10, refuse.status, &refuse.text);
            }
            Message::GroupLeave(leave) => {
                write_u32(out, 1, leave.link);
                write_u32(out, 5, leave.group);
            }
            Message::StreamOpen(open) => write(out, 1, &open.ticket),
            Message::StreamAccept(accept) => write_u32(out, 1, accept.link),
        }
    }
}

fn write_hello(out: &mut Vec<u8>, hello: &Hello) {
    write_u16(out, 1, hello.versions.min);
    write_u16(out, 2, hello.versions.max);
    write(out, 3, &hello.incarnation.to_le_bytes());
    write_u32(out, 4, hello.heartbeat_ms);
    write(out, 5, cut(&hello.agent, AGENT_BYTES_MAX).as_bytes());
    if let Some(identity) = &hello.host_identity {
        write(out, 6, identity);
    }
    if let Some(name) = &hello.rendezvous {
        write(out, 7, name);
    }
}

fn write_link_open(out: &mut Vec<u8>, open: &LinkOpen) {
    write_u32(out, 1, open.link);
    write_u16(out, 2, open.from_endpoint);
    write_u16(out, 3, open.to_endpoint);
    open.offers.iter().for_each(|offer| write_offer(out, *offer));
    write_flag(out, 8, open.ecn);
    write_features(out, &open.features);
}

fn write_link_accept(out: &mut Vec<u8>, accept: &LinkAccept) {
    write_u32(out, 1, accept.link);
    write_offer(out, accept.offer);
    if let Some(ticket) = &accept.ticket {
        write(out, 5, ticket);
    }
    write_flag(out, 8, accept.ecn);
    write_features(out, &accept.features);
    match accept.data_ip {
        Some(IpAddr::V4(ip)) => write(out, 12, &ip.octets()),
        Some(IpAddr::V6(ip)) => write(out, 12, &ip.octets()),
        None => {}
    }
}

/// Writes an empty record, whose presence is the information.
fn write_flag(out: &mut Vec<u8>, tag: u16, is_there: bool) {
    if is_there {
        write(out, tag, &[]);
    }
}

/// Writes a record for each feature that the side has.
fn write_features(out: &mut Vec<u8>, features: &LinkFeatures) {
    let ports = features.paths.as_slice();
    if !ports.is_empty() {
        let bytes: Vec<u8> = ports.iter().flat_map(|port| port.to_le_bytes()).collect();
        write(out, 9, &bytes);
    }
    write_flag(out, 10, features.order);
    write_flag(out, 11, features.probe);
    if let Some(key_path) = features.key_path {
        write(out, 13, &key_path.to_le_bytes());
    }
    write_flag(out, 14, features.reverse);
}

fn write_offer(out: &mut Vec<u8>, offer: Offer) {
    match offer {
        Offer::Udp { port, max_frame } => {
            let [p0, p1] = port.to_le_bytes();
            let [f0, f1, f2, f3] = max_frame.to_le_bytes();
            write(out, 4, &[1, p0, p1, f0, f1, f2, f3]);
        }
        Offer::Shm { max_frame } => {
            let [f0, f1, f2, f3] = max_frame.to_le_bytes();
            write(out, 4, &[2, f0, f1, f2, f3]);
        }
        Offer::Stream { max_frame } => {
            let [f0, f1, f2, f3] = max_frame.to_le_bytes();
            write(out, 4, &[3, f0, f1, f2, f3]);
        }
        Offer::Verbs { at: CardAddress { gid, lid, pair, key }, max_frame } => {
            let mut value = [&[offer.kind()][..], &gid, &lid.to_le_bytes()].concat();
            value.extend([pair, key, max_frame].into_iter().flat_map(u32::to_le_bytes));
            write(out, 4, &value);
        }
        Offer::Other(other) => {
            let mut value = vec![offer.kind()];
            value.extend_from_slice(&offer.max_frame().to_le_bytes());
            value.extend_from_slice(other.fields());
            write(out, 4, &value);
        }
    }
}

fn write_session_open(out: &mut Vec<u8>, open: &SessionOpen) {
    write_u32(out, 1, open.link);
    write_u32(out, 2, open.request);
    write_u32(out, 3, open.session);
    write_u32(out, 4, open.token);
    write(out, 5, &open.first_request.to_le_bytes());
    write_u16(out, 6, open.slots);
    write_u16(out, 7, open.credits);
    write_u32(out, 8, open.max_message);
    write_u32(out, 9, open.packet_bytes);
}

fn write_session_accept(out: &mut Vec<u8>, accept: &SessionAccept) {
    write_u32(out, 1, accept.link);
    write_u32(out, 2, accept.request);
    write_u32(out, 3, accept.session);
    write_u32(out, 4, accept.token);
    write_u16(out, 6, accept.slots);
    write_u16(out, 7, accept.credits);
    write_u32(out, 8, accept.max_message);
    write_u32(out, 9, accept.packet_bytes);
}

fn write_session_close(out: &mut Vec<u8>, close: &SessionClose) {
    write_u32(out, 1, close.link);
    write_u32(out, 3, close.session);
    write_u32(out, 4, close.token);
    write(out, 12, &[u8::from(close.from_client)]);
    write_reason(out, 10, close.status, &close.text);
}

fn write_group_join(out: &mut Vec<u8>, join: &GroupJoin) {
    write_u32(out, 1, join.link);
    write_u32(out, 2, join.request);
    write_u32(out, 3, join.session);
    write_u32(out, 4, join.token);
    write_u32(out, 5, join.group);
    write_u32(out, 6, join.key);
    write_address(out, join.address);
    write_u32(out, 9, join.packet_bytes);
}

/// The port, then the IP address; the length, 4 or 16 bytes, shows the family.
fn write_address(out: &mut Vec<u8>, address: SocketAddr) {
    let port = address.port().to_le_bytes();
    match address.ip() {
        IpAddr::V4(ip) => write(out, 7, &[&port[..], &ip.octets()].concat()),
        IpAddr::V6(ip) => write(out, 7, &[&port[..], &ip.octets()].concat()),
    }
}

fn write_stats_reply(out: &mut Vec<u8>, reply: &StatsReply) {
    write_u32(out, 1, reply.request);
    write_u16(out, 2, reply.part);
    write_u16(out, 3, reply.parts);
    write(out, 4, reply.json.as_bytes());
}

fn write_reason(out: &mut Vec<u8>, status_tag: u16, status: Status, text: &str) {
    write(out, status_tag, &[status.code()]);
    write(out, status_tag + 1, cut(text, TEXT_BYTES_MAX).as_bytes());
}

fn write_u16(out: &mut Vec<u8>, tag: u16, value: u16) {
    write(out, tag, &value.to_le_bytes());
}

fn write_u32(out: &mut Vec<u8>, tag: u16, value: u32) {
    write(out, tag, &value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{LinkOpen, Ping};

    #[test]
    fn encode__out_of_range_leaves_the_buffer_alone() {
        let mut out = b"before".to_vec();
        let open = LinkOpen {
            link: 1,
            from_endpoint: 0,
            to_endpoint: u16::MAX,
            offers: vec![],
            ecn: false,
            features: LinkFeatures::NONE,
        };
        assert_eq!(Message::from(open).encode(&mut out).unwrap_err().field, "to_endpoint");
        assert_eq!(out, b"before");
    }

    #[test]
    fn encode__appends() {
        let mut out = b"before".to_vec();
        Message::from(Ping { nonce: 1 }).encode(&mut out).unwrap();
        assert_eq!(out, b"before\x0C\0\0\0\x0A\0\0\0\x01\0\x08\0\x01\0\0\0\0\0\0\0");
    }

    #[test]
    fn encode__cuts_texts_for_people() {
        let text = "ü".repeat(200);
        let mut out = Vec::new();
        Message::from(Goodbye { status: Status::Ok, text }).encode(&mut out).unwrap();
        assert_eq!(out.len(), HEADER_BYTES + 4 + 1 + 4 + TEXT_BYTES_MAX);
    }
}
