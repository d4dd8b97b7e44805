//! Counters for callers outside the process (`petrel stats`).

use std::collections::BTreeMap;
use std::fmt::Write;

use petrel_proto::Status;
use petrel_proto::control::{STATS_PART_BYTES_MAX, StatsReply};

use crate::control::{EndpointId, FromNexus, Reason};
use crate::events;
use crate::nexus::connection::Connection;
use crate::nexus::deadlines::Due;
use crate::nexus::goodbye::Ending;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{STATS_BYTES_MAX, STATS_ENDPOINT_BYTES_MAX, STATS_TIMEOUT};
use crate::nexus::net::Network;
use crate::nexus::relay::Relay;
use crate::panics::catch;

/// The collection under way, if any. One collection runs at a time: a request meanwhile gets the running collection's
/// answer.
#[derive(Debug, Default)]
pub(super) struct Collector {
    current: Option<Collection>,
    /// Collections so far, the last one's number.
    begun: u64,
}

/// The endpoints' answers, and the connections that wait for them.
#[derive(Debug)]
struct Collection {
    id: u64,
    /// Each endpoint's answer, or `None` before it.
    answers: BTreeMap<EndpointId, Option<String>>,
    /// The requesting connections, and the number of each request.
    requesters: BTreeMap<ConnectionId, u32>,
}

impl Collector {
    /// Handles a request for counters, which processes of the same host may make.
    pub(super) fn on_request<N: Network>(
        &mut self,
        connection: ConnectionId,
        request: u32,
        relay: &mut Relay<N>,
        net: &N,
    ) -> Result<(), Ending> {
        let Some(requester) = relay.connections.get(connection) else { return Ok(()) };
        if !requester.is_of_this_host() {
            let why = "counters are for processes of the same host: ask there, at this address";
            return Err(refuse(requester, why, relay));
        }
        if let Some(rules) = relay.settings().authorization() {
            let grant = catch(|| rules.grant(&requester.caller()));
            if !grant.is_ok_and(|grant| grant.has_stats()) {
                let why =
                    "the server does not grant you its counters: its policy has to grant `stats`";
                return Err(refuse(requester, why, relay));
            }
        }
        if self.current.is_none() {
            self.begin(relay);
        }
        self.join(connection, request);
        self.reply_if_complete(relay, net);
        Ok(())
    }

    /// Asks all endpoints.
    fn begin<N: Network>(&mut self, relay: &mut Relay<N>) {
        let id = self.start(relay.endpoints.iter().map(|(endpoint, _)| endpoint));
        relay.remind(STATS_TIMEOUT, Due::Stats(id));
        for (_, endpoint) in relay.endpoints.iter() {
            endpoint.tell(FromNexus::StatsRequested { request: id });
        }
    }

    pub(super) fn on_answer<N: Network>(
        &mut self,
        from: EndpointId,
        id: u64,
        json: String,
        relay: &mut Relay<N>,
        net: &N,
    ) {
        if !self.note_answer(from, id, json) {
            relay.counters().late_messages.increment();
        }
        self.reply_if_complete(relay, net);
    }

    /// Stops waiting for an endpoint that has gone.
    pub(super) fn forget_endpoint<N: Network>(
        &mut self,
        endpoint: EndpointId,
        relay: &mut Relay<N>,
        net: &N,
    ) {
        if let Some(current) = &mut self.current {
            current.answers.remove(&endpoint);
        }
        self.reply_if_complete(relay, net);
    }

    /// Replies at the deadline of the collection with this number.
    pub(super) fn on_due<N: Network>(&mut self, id: u64, relay: &mut Relay<N>, net: &N) {
        if let Some(collection) = self.take_due(id) {
            reply(collection, relay, net);
        }
    }

    fn reply_if_complete<N: Network>(&mut self, relay: &mut Relay<N>, net: &N) {
        if let Some(collection) = self.take_complete() {
            reply(collection, relay, net);
        }
    }

    /// Adds a request to the collection under way.
    fn join(&mut self, connection: ConnectionId, request: u32) {
        let current = self.current.as_mut().expect("a request joins a collection under way");
        current.requesters.insert(connection, request);
    }

    /// Begins a collection of these endpoints' answers. Returns its number.
    fn start(&mut self, endpoints: impl Iterator<Item = EndpointId>) -> u64 {
        assert!(self.current.is_none(), "counters are collected for all requests at once");
        self.begun += 1;
        let answers = endpoints.map(|endpoint| (endpoint, None)).collect();
        self.current = Some(Collection { id: self.begun, answers, requesters: BTreeMap::new() });
        self.begun
    }

    /// Notes an endpoint's answer. Returns false if it is too late, or the endpoint was not asked.
    fn note_answer(&mut self, from: EndpointId, id: u64, json: String) -> bool {
        let current = self.current.as_mut().filter(|current| current.id == id);
        let answer = current.and_then(|current| current.answers.get_mut(&from));
        answer.map(|answer| *answer = Some(json)).is_some()
    }

    /// Drops the request of a connection that has ended.
    pub(super) fn forget_requester(&mut self, connection: ConnectionId) {
        if let Some(current) = &mut self.current {
            current.requesters.remove(&connection);
        }
    }

    /// Returns the connections that wait for counters.
    pub(super) fn requesters(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.current.iter().flat_map(|current| current.requesters.keys().copied())
    }

    /// Returns true if a connection waits for counters.
    pub(super) fn is_requester(&self, connection: ConnectionId) -> bool {
        self.current.as_ref().is_some_and(|current| current.requesters.contains_key(&connection))
    }

    pub(super) fn is_under_way(&self, id: u64) -> bool {
        self.current.as_ref().is_some_and(|current| current.id == id)
    }

    /// Takes the collection once all endpoints have answered.
    fn take_complete(&mut self) -> Option<Collection> {
        self.current.take_if(|current| current.answers.values().all(Option::is_some))
    }

    fn take_due(&mut self, id: u64) -> Option<Collection> {
        assert!(id <= self.begun, "a collection comes due that was not begun: {id}");
        self.current.take_if(|current| current.id == id)
    }
}

impl Collection {
    /// Formats the process's counters: of the nexus, of the host, and of the endpoints.
    fn json(&self, incarnation: u64, nexus: &str, udp_no_ports: Option<u64>) -> String {
        let mut json = format!("{{\"incarnation\":{incarnation},\"nexus\":{nexus},");
        if let Some(count) = udp_no_ports {
            // Writing to a string cannot fail.
            let _ = write!(json, "\"host\":{{\"udp_no_ports\":{count}}},");
        }
        json.push_str("\"endpoints\":[");
        for (position, (endpoint, answer)) in self.answers.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ =
                write!(json, "{comma}{}", endpoint_json(*endpoint, answer.as_deref(), json.len()));
        }
        json.push_str("]}");
        json
    }
}

/// Counts and reports a refusal.
fn refuse<N: Network>(requester: &Connection<N>, why: &str, relay: &Relay<N>) -> Ending {
    relay.counters().stats_refused.increment();
    events::stats_refused(requester.remote(), &requester.caller(), why);
    Ending::Refusal(Reason::new(Status::PermissionDenied, why))
}

/// Sends the collected counters to all requesters.
fn reply<N: Network>(collection: Collection, relay: &mut Relay<N>, net: &N) {
    let nexus = relay.counters().snapshot().to_json();
    let json = collection.json(relay.settings().incarnation(), &nexus, net.udp_no_ports());
    for (connection, request) in collection.requesters {
        relay.counters().stats_answered.increment();
        replies(request, &json).for_each(|reply| relay.send(connection, reply));
    }
}

/// Returns the messages of an answer: a text that is too long for one comes in parts.
fn replies(request: u32, json: &str) -> impl Iterator<Item = StatsReply> + '_ {
    let pieces = pieces(json, STATS_PART_BYTES_MAX);
    assert!(pieces.len() <= usize::from(u16::MAX), "the limits of an answer keep its parts few");
    let parts = pieces.len() as u16;
    (0..parts).zip(pieces).map(move |(part, piece)| {
        let json = piece.to_owned();
        StatsReply { request, part, parts, json }
    })
}

/// Formats an endpoint's entry. An error replaces counters that are too long, alone or in sum.
fn endpoint_json(endpoint: EndpointId, answer: Option<&str>, bytes_before: usize) -> String {
    let id = endpoint.0;
    let error = match answer {
        None => "no answer in time: its event loop is not running",
        Some(json) if json.len() > STATS_ENDPOINT_BYTES_MAX => "its counters are too long",
        Some(json) if bytes_before + json.len() > STATS_BYTES_MAX / 2 => "too many counters",
        Some(json) => return format!("{{\"id\":{id},\"stats\":{json}}}"),
    };
    format!("{{\"id\":{id},\"error\":\"{error}\"}}")
}

/// Splits a text into pieces of at most `bytes_max` bytes and whole characters.
fn pieces(mut text: &str, bytes_max: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let (piece, rest) = text.split_at(text.floor_char_boundary(bytes_max));
        pieces.push(piece);
        text = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    panics! {
        begin__beside_another: "counters are collected for all requests at once" => {
            let mut collector = Collector::default();
            collector.start([EndpointId(0)].into_iter());
            collector.start([EndpointId(0)].into_iter());
        };
        take_due__before_the_collection: "a collection comes due that was not begun"
            => Collector::default().take_due(1);
        replies__of_more_parts_than_can_be_numbered:
            "the limits of an answer keep its parts few" => {
            let json = "x".repeat(STATS_PART_BYTES_MAX * (usize::from(u16::MAX) + 1));
            replies(1, &json).for_each(drop);
        };
    }

    #[test]
    fn pieces__join_to_the_whole_and_fit() {
        let text = "aü€".repeat(10);
        for bytes_max in [4, 5, 7, 100] {
            let pieces = pieces(&text, bytes_max);
            assert!(pieces.iter().all(|piece| (1..=bytes_max).contains(&piece.len())));
            assert_eq!(pieces.concat(), text);
        }
        assert!(pieces("", 5).is_empty());
    }

    #[test]
    fn endpoint_json__reports_missing_counters() {
        let id = EndpointId(7);
        assert_eq!(endpoint_json(id, Some("{\"a\":1}"), 0), "{\"id\":7,\"stats\":{\"a\":1}}");
        assert!(endpoint_json(id, None, 0).contains("not running"));
        let long = "x".repeat(STATS_ENDPOINT_BYTES_MAX + 1);
        assert!(endpoint_json(id, Some(&long), 0).contains("too long"));
        assert!(endpoint_json(id, Some("{}"), STATS_BYTES_MAX).contains("too many"));
    }
}
