//! The counters of a process, in the order of its control plane's report.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// Counters of the control plane and of the endpoints.
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    nexus: Counters,
    /// Counters of the host's network, if the process could read them.
    host: Option<Counters>,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    id: u16,
    stats: Option<Counters>,
    error: Option<String>,
}

/// Names and values.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counters(Vec<(String, u64)>);

/// Counters with a title, or the reason for their absence.
pub(super) struct Group<'a> {
    pub(super) title: String,
    pub(super) counters: Result<&'a Counters, &'a str>,
}

impl Report {
    /// Returns the counters of the control plane, of the endpoints, and of the host.
    pub(super) fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let nexus = Group { title: "control plane".to_owned(), counters: Ok(&self.nexus) };
        let endpoints = self.endpoints.iter().map(|endpoint| Group {
            title: format!("endpoint {}", endpoint.id),
            counters: endpoint
                .stats
                .as_ref()
                .ok_or(endpoint.error.as_deref().unwrap_or("no counters")),
        });
        let host = self.host.as_ref();
        let host = host.map(|host| Group { title: "host".to_owned(), counters: Ok(host) });
        std::iter::once(nexus).chain(endpoints).chain(host)
    }
}

impl Counters {
    pub(super) fn non_zero(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), *value));
        all.filter(|(_, value)| *value != 0)
    }

    pub(super) fn zeros(&self) -> usize {
        self.0.len() - self.non_zero().count()
    }

    pub(super) fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }
}

impl<'de> Deserialize<'de> for Counters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

/// Reads an object without sorting, unlike the usual maps.
struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Counters;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counters, A::Error> {
        let mut counters = Vec::new();
        while let Some(entry) = map.next_entry()? {
            counters.push(entry);
        }
        Ok(Counters(counters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"incarnation":7,"nexus":{"z":1,"a":0},
        "endpoints":[{"id":0,"stats":{"calls":5}},{"id":3,"error":"asleep"}]}"#;

    #[test]
    fn report__keeps_the_order_and_the_errors() {
        let report: Report = serde_json::from_str(JSON).unwrap();
        let groups: Vec<_> = report.groups().collect();
        assert_eq!(groups.len(), 3);
        assert_eq!(groups[0].counters.unwrap().0, [("z".to_owned(), 1), ("a".to_owned(), 0)]);
        assert_eq!(groups[0].counters.unwrap().zeros(), 1);
        assert_eq!(groups[1].counters.unwrap().get("calls"), Some(5));
        assert_eq!(
            (groups[2].title.as_str(), groups[2].counters.err()),
            ("endpoint 3", Some("asleep"))
        );
    }
}
