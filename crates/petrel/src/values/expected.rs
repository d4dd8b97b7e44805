//! The methods that a client expects at its servers, and the difference to a server's answer.

use std::collections::BTreeMap;

use super::method_table::{MethodEntry, ServedMethod, ServedService, ServiceTable};
use crate::sync::{Arc, AtomicBool, Ordering};

/// The refusal of calls with metadata by a server that does not know them.
const NO_METADATA: &str = "the server takes no metadata: call without";

/// The most services that an error names.
const NAMED_MAX: usize = 8;

/// A table that a client expects at its servers, and the client's own numbers.
#[derive(Debug)]
pub(crate) struct Expected {
    table: &'static ServiceTable,
    /// The number of each method, and then the number of each with an envelope.
    numbers: Vec<u16>,
    /// The fingerprints of the methods' messages.
    schemas: Vec<u64>,
    /// Whether the endpoint of the client has the table.
    is_known: AtomicBool,
}

/// A server's answer to the request for its tables.
#[derive(Debug)]
pub(crate) enum Served {
    Services(Vec<ServedService>),
    /// The server does not know the request: both sides know the numbers.
    Nothing,
    Malformed,
}

/// The reason why a method has no call of its own number at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// The server has given the name this number, or does not let calls run twice.
    Other { number: u16, is_idempotent: bool },
    /// The server lacks the method, or has another of the same name: for people.
    Refused(String),
}

impl Expected {
    pub(crate) fn new(table: &'static ServiceTable, numbers: Vec<u16>) -> Arc<Self> {
        assert_eq!(numbers.len(), 2 * table.methods.len(), "each method has two numbers");
        let schemas = table.methods.iter().map(|method| (method.schema)()).collect();
        Arc::new(Self { table, numbers, schemas, is_known: AtomicBool::new(false) })
    }

    pub(crate) fn table(&self) -> &'static ServiceTable {
        self.table
    }

    /// Returns the client's number of a method with an envelope, by the number without.
    pub(crate) fn envelope_of(&self, number: u16) -> Option<u16> {
        let (plain, enveloped) = self.numbers.split_at(self.table.methods.len());
        let index = plain.iter().position(|own| *own == number)?;
        Some(enveloped[index])
    }

    /// Returns the client's numbers of the methods, and then the numbers with an envelope.
    #[inline(always)]
    pub(crate) fn numbers(&self) -> &[u16] {
        &self.numbers
    }

    #[inline(always)]
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Records that the endpoint of the client has the table.
    pub(crate) fn set_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Returns the methods that need more than the client's own number at a server with this answer.
    pub(crate) fn misfits(&self, served: &Served) -> Vec<(u16, Misfit)> {
        let service = self.service_at(served);
        let others = service.iter().flat_map(|service| service.iter());
        let others = others.flat_map(|service| &service.methods);
        let others: BTreeMap<&str, &ServedMethod> =
            others.map(|other| (&*other.name, other)).collect();
        let methods = self.table.methods.iter().zip(&self.schemas);
        let plain = methods.clone().map(|method| (method, false));
        let methods = plain.chain(methods.map(|method| (method, true))).zip(&self.numbers);
        let misfit =
            |(((method, schema), has_envelope), own): (((&MethodEntry, &u64), bool), &u16)| {
                let number = match &service {
                    Ok(Some(service)) => {
                        let other = others.get(method.name).copied();
                        let fit = self.method_at(service, other, (method, *schema));
                        fit.and_then(|other| match has_envelope {
                            true => self.envelope_at(service, other),
                            false => Ok((other.number, other.is_idempotent)),
                        })
                    }
                    Ok(None) if has_envelope => Err(NO_METADATA.into()),
                    Ok(None) => method.id.map(|id| (id, true)).ok_or_else(|| {
                        let name = format!("{}/{}", self.table.name, method.name);
                        format!("{name} has no number here: the server names no methods")
                    }),
                    Err(why) => Err(why.clone()),
                };
                match number {
                    Ok((number, is_idempotent)) => {
                        let is_same = number == *own && (is_idempotent || !method.is_idempotent);
                        (!is_same).then_some((*own, Misfit::Other { number, is_idempotent }))
                    }
                    Err(why) => Some((*own, Misfit::Refused(why))),
                }
            };
        methods.filter_map(misfit).collect()
    }

    /// Returns the service at a server; `None` at a server that has no tables.
    ///
    /// # Errors
    /// The server has no such service.
    fn service_at<'a>(&self, served: &'a Served) -> Result<Option<&'a ServedService>, String> {
        let served = match served {
            Served::Services(served) => served,
            Served::Nothing => return Ok(None),
            Served::Malformed => return Err("the server's tables of methods are malformed".into()),
        };
        let ServiceTable { name, version, .. } = self.table;
        if let Some(service) = served.iter().find(|service| service.name == *name) {
            return Ok(Some(service));
        }
        let names: Vec<&str> =
            served.iter().map(|service| &*service.name).take(NAMED_MAX).collect();
        let served = if names.is_empty() { "no named one".into() } else { names.join(", ") };
        Err(format!(
            "the server has no service {name}, which the client has in version {version}: it serves {served}"
        ))
    }

    /// Returns the number with an envelope of a method at a server, and whether calls may run twice.
    ///
    /// # Errors
    /// The server is of a version without envelopes.
    fn envelope_at(
        &self,
        service: &ServedService,
        other: &ServedMethod,
    ) -> Result<(u16, bool), String> {
        let number = other.envelope.ok_or_else(|| {
            let (name, theirs) = (self.table.name, &service.version);
            format!("{name}/{} of version {theirs}: {NO_METADATA}", other.name)
        })?;
        Ok((number, other.is_idempotent))
    }

    /// Returns a method of a server.
    ///
    /// # Errors
    /// The difference between both ends, with the versions of both.
    fn method_at<'a>(
        &self,
        service: &ServedService,
        other: Option<&'a ServedMethod>,
        (method, schema): (&MethodEntry, u64),
    ) -> Result<&'a ServedMethod, String> {
        let ServiceTable { name, version, .. } = self.table;
        let theirs = &service.version;
        let Some(other) = other else {
            return Err(format!(
                "the server's {name} of version {theirs} has no method {}; the client's version is {version}",
                method.name
            ));
        };
        match other.codec == method.codec && other.schema == schema {
            true => Ok(other),
            false => Err(format!(
                "{name}/{}: the server's version {theirs} has messages of {} {:016x}, and the client's version {version} of {} {schema:016x}",
                method.name, other.codec, other.schema, method.codec
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::method_table::tests::{entry, served, table};
    use super::*;

    #[test]
    fn misfits__of_servers_with_other_numbers_and_without_tables() {
        let own = table("S", vec![entry("A", Some(1), false), entry("B", None, false)]);
        let expected = Expected::new(own, own.numbers(|_| false));
        let (a, b) = (expected.numbers()[0], expected.numbers()[1]);
        let services = |table| Served::Services(served(table));
        assert_eq!(expected.misfits(&services(own)), []);
        let other = table("S", vec![entry("B", Some(1), false), entry("A", Some(5), false)]);
        let moved = |number| Misfit::Other { number, is_idempotent: false };
        let moved = [(a, moved(5)), (b, moved(1))];
        // The numbers with an envelope have the same hashes.
        assert_eq!(expected.misfits(&services(other)), moved);
        let refused = |served| {
            let misfits = expected.misfits(&served).into_iter();
            let why = misfits.map(|(number, misfit)| match misfit {
                Misfit::Refused(why) => (number, why),
                Misfit::Other { .. } => panic!("number {number} is called"),
            });
            why.collect::<Vec<_>>()
        };
        let enveloped = [a, b].map(|own| expected.envelope_of(own).expect("a number"));
        let [(first, why), (second, no_metadata), (third, _)] = &refused(Served::Nothing)[..]
        else {
            panic!("a method without a number, and two without an envelope")
        };
        assert_eq!((*first, why.starts_with("S/B has no number")), (b, true));
        assert_eq!(([*second, *third], &**no_metadata), (enveloped, NO_METADATA));
        let why = |served| {
            let all = refused(served);
            assert!(all.len() == 4 && all.iter().all(|(_, why)| *why == all[0].1), "{all:?}");
            all[0].1.clone()
        };
        assert_eq!(why(Served::Malformed), "the server's tables of methods are malformed");
        assert!(why(Served::Services(Vec::new())).ends_with("it serves no named one"));
        let mut earlier = served(own);
        earlier[0].methods.iter_mut().for_each(|method| method.envelope = None);
        let refused = refused(Served::Services(earlier));
        let text = "S/A of version 2.0: the server takes no metadata: call without";
        assert_eq!((refused.len(), refused[0].0, &*refused[0].1), (2, enveloped[0], text));
    }
}
