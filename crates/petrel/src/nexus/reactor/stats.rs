//! Counters for callers outside the process (`petrel stats`).

use std::collections::BTreeMap;
use std::fmt::Write;

use petrel_proto::Status;
use petrel_proto::control::{STATS_PART_BYTES_MAX, StatsReply};

use super::Reactor;
use crate::control::{EndpointId, FromNexus, Reason};
use crate::nexus::deadlines::Due;
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{STATS_BYTES_MAX, STATS_ENDPOINT_BYTES_MAX, STATS_TIMEOUT};
use crate::nexus::net::Network;

/// Collects the endpoints' answers. There is a single collection at a time: a request in between gets the same answer.
#[derive(Debug)]
pub(super) struct Collection {
    pub(super) id: u64,
    /// Each endpoint's answer, or `None` before it.
    answers: BTreeMap<EndpointId, Option<String>>,
    /// The requesting connections, and the number of each request.
    requesters: BTreeMap<ConnectionId, u32>,
}

impl Collection {
    /// Returns the connections that wait for it.
    pub(super) fn requesters(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.requesters.keys().copied()
    }
}

impl<N: Network> Reactor<N> {
    pub(super) fn on_stats_request(&mut self, connection: ConnectionId, request: u32) {
        let Some(requester) = self.connections.get(&connection) else { return };
        if !requester.is_of_this_host() {
            self.counters.stats_refused.increment();
            let why = "counters are for processes of the same host: ask there, at this address";
            let reason = Reason::new(Status::PermissionDenied, why);
            return self.close(connection, &reason, GoodbyeMode::Send(reason.clone()));
        }
        let collection = match self.collection.take() {
            Some(collection) => collection,
            None => self.start_collection(),
        };
        let collection = self.collection.insert(collection);
        collection.requesters.insert(connection, request);
        self.finish_collection_if_complete();
    }

    fn start_collection(&mut self) -> Collection {
        self.collections += 1;
        let id = self.collections;
        self.deadlines.add(self.now + STATS_TIMEOUT, Due::Stats(id));
        for endpoint in self.endpoints.values() {
            endpoint.tell(FromNexus::StatsRequested { request: id });
        }
        let answers = self.endpoints.keys().map(|endpoint| (*endpoint, None)).collect();
        Collection { id, answers, requesters: BTreeMap::new() }
    }

    pub(super) fn on_endpoint_stats(&mut self, from: EndpointId, request: u64, json: String) {
        let collection = self.collection.as_mut().filter(|collection| collection.id == request);
        let answer = collection.and_then(|collection| collection.answers.get_mut(&from));
        match answer {
            Some(answer) => *answer = Some(json),
            None => self.counters.late_messages.increment(),
        }
        self.finish_collection_if_complete();
    }

    /// Stops waiting for an endpoint that has gone.
    pub(super) fn on_endpoint_without_stats(&mut self, endpoint: EndpointId) {
        if let Some(collection) = &mut self.collection {
            collection.answers.remove(&endpoint);
        }
        self.finish_collection_if_complete();
    }

    /// Returns true if a connection waits for counters.
    pub(super) fn is_requester(&self, connection: ConnectionId) -> bool {
        self.collection.as_ref().is_some_and(|c| c.requesters.contains_key(&connection))
    }

    /// Drops the requests of a connection that has ended.
    pub(super) fn forget_requester(&mut self, connection: ConnectionId) {
        if let Some(collection) = &mut self.collection {
            collection.requesters.remove(&connection);
        }
    }

    fn finish_collection_if_complete(&mut self) {
        let collection = self.collection.take();
        match collection {
            Some(collection) if collection.answers.values().all(Option::is_some) => {
                self.answer_requesters(&collection);
            }
            collection => self.collection = collection,
        }
    }

    pub(super) fn on_stats_due(&mut self, id: u64) {
        if let Some(collection) = self.collection.take_if(|collection| collection.id == id) {
            self.answer_requesters(&collection);
        }
    }

    fn answer_requesters(&mut self, collection: &Collection) {
        let json = self.stats_json(&collection.answers);
        for (connection, request) in &collection.requesters {
            self.counters.stats_answered.increment();
            self.send_stats(*connection, *request, &json);
        }
    }

    fn stats_json(&self, answers: &BTreeMap<EndpointId, Option<String>>) -> String {
        let nexus = self.counters.snapshot().to_json();
        let mut json =
            format!("{{\"incarnation\":{},\"nexus\":{nexus},", self.settings.incarnation);
        if let Some(count) = self.net.udp_no_ports() {
            // Writing to a string cannot fail.
            let _ = write!(json, "\"host\":{{\"udp_no_ports\":{count}}},");
        }
        json.push_str("\"endpoints\":[");
        for (position, (endpoint, answer)) in answers.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ =
                write!(json, "{comma}{}", endpoint_json(*endpoint, answer.as_deref(), json.len()));
        }
        json.push_str("]}");
        json
    }

    fn send_stats(&mut self, connection: ConnectionId, request: u32, json: &str) {
        let pieces = pieces(json, STATS_PART_BYTES_MAX);
        // The limits in `stats_json` keep the number of parts far below 65,535.
        let parts = pieces.len() as u16;
        for (part, piece) in (0..parts).zip(pieces) {
            let json = piece.to_owned();
            self.send(connection, StatsReply { request, part, parts, json });
        }
    }
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
    fn endpoint_json__says_what_is_missing() {
        let id = EndpointId(7);
        assert_eq!(endpoint_json(id, Some("{\"a\":1}"), 0), "{\"id\":7,\"stats\":{\"a\":1}}");
        assert!(endpoint_json(id, None, 0).contains("not running"));
        let long = "x".repeat(STATS_ENDPOINT_BYTES_MAX + 1);
        assert!(endpoint_json(id, Some(&long), 0).contains("too long"));
        assert!(endpoint_json(id, Some("{}"), STATS_BYTES_MAX).contains("too many"));
    }
}
