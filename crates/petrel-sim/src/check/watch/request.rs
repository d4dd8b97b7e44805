//! A request, as either side sees it from the frames of its session.

use petrel_proto::limits::{WINDOW_PACKETS, packets_of};
use petrel_proto::wire::{Credit, Fields, Frame, Kind, Part, Pull};

use super::packets::Packets;
use super::{Broken, part_of};

/// The actions and the knowledge of both sides.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) number: u64,
    packets: u32,
    /// The request is for the endpoint itself, and takes no credit until its answer has several packets (§4).
    is_exempt: bool,
    /// Sides that drop packets out of order.
    in_order: InOrder,
    client: Client,
    server: Server,
}

/// The sides of a session that go back N.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InOrder {
    pub(super) client: bool,
    pub(super) server: bool,
}

#[derive(Debug, Default)]
struct Client {
    /// Packets of the request sent at least once.
    sent: u32,
    /// Packets known to have arrived at the server.
    acknowledged: Packets,
    /// Limit of allowed response packets.
    limit: u32,
    /// Packets of the response, once known.
    response: Option<u32>,
    received: Packets,
    /// The server has reported (flag W) that the handler runs; the answer then begins with one packet.
    waits: bool,
    /// The answer has arrived, or the request was cancelled.
    is_over: bool,
    /// The client has sent a CANCEL.
    is_cancelled: bool,
    is_acknowledged: bool,
}

#[derive(Debug, Default)]
struct Server {
    arrived: Packets,
    /// The latest packet, and whether it was a retransmission.
    last: (u32, bool),
    /// Numbers of allowed and of sent response packets.
    limit: u32,
    sent: u32,
    /// Packets at the client, according to its latest PULL.
    reported: Packets,
    /// A CANCEL has arrived.
    is_cancelled: bool,
}

impl Request {
    pub(super) fn new(number: u64, packets: u32, in_order: InOrder) -> Self {
        let (client, server) = (Client::default(), Server::default());
        Self { number, packets, is_exempt: false, in_order, client, server }
    }

    /// Marks a request for the endpoint itself, in the slot reserved for such requests.
    pub(super) fn exempt(self) -> Self {
        Self { is_exempt: true, ..self }
    }

    /// Returns the credits that the client holds for the request (§4).
    pub(super) fn held(&self) -> u32 {
        let client = &self.client;
        match client.response {
            _ if client.is_over => 0,
            None if client.waits || self.is_exempt => 0,
            Some(_) if self.is_exempt => client.limit - client.received.count().max(1),
            Some(_) => client.limit - client.received.count(),
            None => {
                let unacknowledged = client.sent - client.acknowledged.count();
                let is_whole = client.acknowledged.count() == self.packets;
                // One credit stays for the first packet of the response; the rest of the grant is extra.
                unacknowledged + u32::from(is_whole) + client.limit.saturating_sub(1)
            }
        }
    }

    pub(super) fn client_sends(&mut self, frame: &Frame<'_>) -> Result<(), Broken> {
        match frame.fields {
            Fields::Pull(pull) => self.client_pulls(&pull),
            Fields::Credit(_) => Err("a client sends no CREDIT (§3.1)"),
            Fields::None if frame.header.kind == Kind::Cancel => self.client_cancels(),
            _ => self.client_sends_part(part_of(frame)),
        }
    }

    fn client_cancels(&mut self) -> Result<(), Broken> {
        if std::mem::replace(&mut self.client.is_cancelled, true) {
            return Err("a CANCEL is sent again (§5.4)");
        }
        self.client.is_over = true;
        Ok(())
    }

    /// Checks a packet of the client, and raises the number of allowed response packets.
    fn client_sends_part(&mut self, part: Part) -> Result<(), Broken> {
        let client = &mut self.client;
        if client.response.is_some() || client.is_over {
            return Err("a packet is sent after the response began (§5.1)");
        }
        if part.packet > client.sent {
            return Err("packets are first sent in order (§5)");
        }
        if client.acknowledged.contains(part.packet) {
            return Err("a packet is sent again that the server is known to have (§5.2)");
        }
        if part.packet >= client.acknowledged.cumulative() + WINDOW_PACKETS {
            return Err("a packet is sent beyond the window (§4)");
        }
        client.sent = client.sent.max(part.packet + 1);
        if part.packet + 1 == self.packets {
            client.limit = client.limit.max(part.grant.into());
        } else if part.grant != 1 {
            return Err("only the last packet has a grant (§3.1)");
        }
        Ok(())
    }

    /// Checks a PULL against the packets that the client has received, and the packets that a PULL may allow.
    fn client_pulls(&mut self, pull: &Pull) -> Result<(), Broken> {
        let client = &mut self.client;
        let received = client.received.cumulative();
        let says_all = client.response == Some(received)
            && (pull.cumulative, pull.limit) == (received, received);
        if client.is_over && says_all {
            if std::mem::replace(&mut client.is_acknowledged, true) || pull.resend_below > 0 {
                return Err("it is said more than once that the response is here (§6.4)");
            }
            return Ok(());
        }
        if client.is_over {
            return Err("a PULL after the last packet (§5.1)");
        }
        if !client.received.is_reported_by(pull.cumulative, &pull.bitmap) {
            return Err("the PULL does not tell what was received (§3.1)");
        }
        let Some(packets) = client.response else {
            return match pull.limit {
                1 => Ok(()),
                _ => Err("a limit other than 1 before the response has begun (§3.1)"),
            };
        };
        if pull.limit < client.limit {
            return Err("the limit goes back (§3.1)");
        }
        if pull.limit > client.limit.max(packets) {
            return Err("a packet is allowed that the response does not have (§4)");
        }
        if pull.limit > received + WINDOW_PACKETS {
            return Err("a packet is allowed beyond the window (§4)");
        }
        client.limit = pull.limit;
        Ok(())
    }

    /// Notes a frame in the server's knowledge: packets that arrived, a PULL, or a CANCEL.
    pub(super) fn server_takes(&mut self, frame: &Frame<'_>) {
        let server = &mut self.server;
        if frame.header.kind == Kind::Cancel {
            server.is_cancelled = true;
            return;
        }
        let Fields::Pull(pull) = frame.fields else {
            let part = part_of(frame);
            if self.in_order.server && part.packet > server.arrived.cumulative() {
                return;
            }
            if server.arrived.count() < self.packets {
                server.limit = server.limit.max(part.grant.into());
            }
            server.last = (part.packet, frame.header.flags.repeats());
            return server.arrived.insert(part.packet);
        };
        if pull.cumulative < server.reported.cumulative() {
            // Overtaken by a later PULL.
            return;
        }
        server.limit = server.limit.max(pull.limit.min(pull.cumulative + WINDOW_PACKETS));
        server.reported = Packets::default();
        server.reported.add(pull.cumulative, &pull.bitmap);
    }

    /// Checks a frame that the server sends against the server's knowledge.
    pub(super) fn server_sends(&mut self, frame: &Frame<'_>) -> Result<(), Broken> {
        let has_all = self.server.arrived.count() == self.packets;
        match (frame.header.kind, frame.fields) {
            (Kind::Credit, _) if self.server.is_cancelled => {
                Err("a CREDIT for a request that was given up (§6.2)")
            }
            (Kind::Credit, Fields::Credit(_)) if frame.header.flags.waits() && !has_all => {
                Err("flag W before the whole request has come (§6.3)")
            }
            (Kind::Credit, Fields::Credit(credit)) => {
                if frame.header.flags.waits() {
                    self.server.limit = 1;
                }
                self.server_acknowledges(&credit, frame.header.flags.repeats())
            }
            // A request may be refused before all its packets have arrived.
            (Kind::Response, _) if has_all || frame.header.aux as u8 != 0 => Ok(()),
            (Kind::ResponsePart, Fields::Part(part)) if has_all => self.server_sends_part(part),
            (Kind::Response | Kind::ResponsePart, _) => {
                Err("an answer before the whole request has come (§6.1)")
            }
            _ => Err("not a server's frame (§3.1)"),
        }
    }

    fn server_acknowledges(&mut self, credit: &Credit, repeats: bool) -> Result<(), Broken> {
        let arrived = &self.server.arrived;
        if !arrived.is_reported_by(credit.cumulative, &credit.bitmap) {
            return Err("the CREDIT does not tell what has arrived (§3.1)");
        }
        if self.server.last != (credit.echo, repeats) {
            return Err("the CREDIT's echo is not what arrived last (§3.1, §5.2)");
        }
        Ok(())
    }

    fn server_sends_part(&mut self, part: Part) -> Result<(), Broken> {
        let server = &mut self.server;
        if part.packet >= server.limit {
            return Err("a packet is sent that was not allowed (§6.3)");
        }
        if part.packet > server.sent {
            return Err("packets are first sent in order (§6.3)");
        }
        if server.reported.contains(part.packet) {
            return Err("a packet is sent again that the client is known to have (§6.3)");
        }
        server.sent = server.sent.max(part.packet + 1);
        Ok(())
    }

    /// Notes a frame in the client's knowledge: acknowledgements, and packets of the response.
    pub(super) fn client_takes(&mut self, frame: &Frame<'_>, packet_bytes: u32) {
        let client = &mut self.client;
        match frame.fields {
            Fields::Credit(credit) if client.response.is_none() => {
                client.acknowledged.add(credit.cumulative, &credit.bitmap);
                if frame.header.flags.waits() {
                    client.waits = true;
                    client.limit = 1;
                }
            }
            Fields::Part(part) => {
                if self.in_order.client && part.packet > client.received.cumulative() {
                    return;
                }
                let packets = packets_of(part.size, packet_bytes);
                client.response.get_or_insert(packets);
                // A grant may exceed the packets of the response.
                client.limit = client.limit.min(packets);
                client.received.insert(part.packet);
                client.is_over = client.response == Some(client.received.count());
            }
            Fields::None => client.is_over = true,
            Fields::Credit(_) | Fields::Pull(_) => {}
        }
    }
}
