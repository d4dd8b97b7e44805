//! The methods that a client expects at its servers, and the difference to a server's answer.

use std::collections::BTreeMap;

use super::method_table::{MethodEntry, ServedMethod, ServedService, ServiceTable};
use crate::sync::{Arc, AtomicBool, Ordering};

/// The most services that an error names.
const NAMED_MAX: usize = 8;

/// A table that a client expects at its servers, and the client's own numbers.
#[derive(Debug)]
pub(crate) struct Expected {
    table: &'static ServiceTable,
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
        assert_eq!(numbers.len(), table.methods.len(), "each method has a number");
        let schemas = table.methods.iter().map(|method| (method.schema)()).collect();
        Arc::new(Self { table, numbers, schemas, is_known: AtomicBool::new(false) })
    }

    pub(crate) fn table(&self) -> &'static ServiceTable {
        self.table
    }

    /// Returns the client's numbers of the methods.
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
        let methods = self.table.methods.iter().zip(&self.schemas).zip(&self.numbers);
        let misfit = |((method, schema), own): ((&MethodEntry, &u64), &u16)| {
            let number = match &service {
                Ok(Some(service)) => {
                    let other = others.get(method.name).copied();
                    self.number_at(service, other, (method, *schema))
                }
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

    /// Returns the number of a method at a server, and whether calls may run twice.
    ///
    /// # Errors
    /// The difference between both ends, with the versions of both.
    fn number_at(
        &self,
        service: &ServedService,
        other: Option<&ServedMethod>,
        (method, schema): (&MethodEntry, u64),
    ) -> Result<(u16, bool), String> {
        let ServiceTable { name, version, .. } = self.table;
        let theirs = &service.version;
        let Some(other) = other else {
            return Err(format!(
                "the server's {name} of version {theirs} has no method {}; the client's version is {version}",
                method.name
            ));
        };
        match other.codec == method.codec && other.schema == schema {
            true => Ok((other.number, other.is_idempotent)),
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
        assert_eq!(expected.misfits(&services(other)), moved);
        let [(number, Misfit::Refused(why))] = &expected.misfits(&Served::Nothing)[..] else {
            panic!("a method without a number")
        };
        assert_eq!((*number, why.starts_with("S/B has no number")), (b, true));
        let why = |served| match &expected.misfits(&served)[..] {
            [(_, Misfit::Refused(first)), (_, Misfit::Refused(second))] if first == second => {
                first.clone()
            }
            misfits => panic!("{misfits:?}"),
        };
        assert_eq!(why(Served::Malformed), "the server's tables of methods are malformed");
        assert!(why(Served::Services(Vec::new())).ends_with("it serves no named one"));
    }
}
