//! The names of servers in programs.

use std::collections::HashSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use petrel_proto::Status;

use crate::control::EndpointId;
use crate::error::Error;
use crate::names;
use crate::values::client::Target;

/// A server: by its address, or by a host's name and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetName(Name);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Address(Target),
    /// As in `example.com:31850`.
    HostAndPort {
        text: String,
        endpoint: EndpointId,
        weight: u32,
    },
}

impl TargetName {
    /// Sets the share of the load, relative to other servers, of the server, or of each server with the name; 1 by
    /// default.
    ///
    /// # Panics
    /// When `load` is 0.
    #[must_use]
    pub fn weighing(self, load: u32) -> Self {
        match self.0 {
            Name::Address(target) => target.weighing(load).into(),
            Name::HostAndPort { text, endpoint, .. } => {
                assert!(load > 0, "a server without any load is no target");
                Self(Name::HostAndPort { text, endpoint, weight: load })
            }
        }
    }

    /// Returns the addresses of the server, or of all servers with the name.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the text is not a name, UNAVAILABLE if the name has no address.
    pub(super) fn resolve(&self) -> Result<Vec<Target>, Error> {
        match &self.0 {
            Name::Address(target) => Ok(vec![*target]),
            Name::HostAndPort { text, endpoint, weight } => {
                let found = look_up(text, *endpoint)?.into_iter();
                Ok(found.map(|target| target.weighing(*weight)).collect())
            }
        }
    }
}

/// The servers of a service: one, a list, or a file.
///
/// | written as | means |
/// | --- | --- |
/// | `"10.0.0.7:31850"`, a [`SocketAddr`] | this server |
/// | `"kv.example.com:31850"` | each address of the name, by the system's resolver |
/// | `(address, EndpointId(3))` | this endpoint of the process at the address; without it endpoint 0 |
/// | `["10.0.0.7:31850", "10.0.0.8:31850"]`, or a `Vec` | all of these |
/// | `TargetName::from("10.0.0.7:31850").weighing(3)` | this server, for three times as many calls as a server without a weight |
/// | [`Targets::file`]`("/etc/store/servers")` | the servers listed in the file, including later changes |
///
/// ```
/// use petrel::client::TargetName;
///
/// # let server = petrel::Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| {
/// #     endpoint.on(1, |_, cx, request| request.reply(cx, b"value"));
/// # });
/// # let server = server.start()?;
/// # let (small, large) = (server.local_addr().to_string(), server.local_addr().to_string());
/// let large = TargetName::from(large.as_str()).weighing(3);
/// let client = petrel::Client::connect_wait([TargetName::from(small.as_str()), large])?;
/// assert_eq!(client.call(1, "key").wait()?, b"value");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets(pub(super) Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Names(Names),
    File(PathBuf),
}

/// Servers by address and by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names(Vec<TargetName>);

impl Targets {
    /// The servers of a file, one per line:
    ///
    /// ```text
    /// # host:port, and perhaps a weight and an endpoint
    /// 10.0.0.7:31850
    /// 10.0.0.8:31850   weight=3        # for three times as many calls
    /// store.example.com:31850  endpoint=2
    /// ```
    ///
    /// The file is read when a client connects, and an error in it is reported with the line number. Then a thread of
    /// the client checks the file every second. When the servers change, sessions to remaining servers continue, as
    /// after [`Client::set_targets`](super::Client::set_targets). A file that later cannot be read, has an invalid
    /// line, or has no servers changes nothing; the event `servers_file_failed` reports it. So write a new file and
    /// rename it to this name: a file written in place can be read half-written.
    ///
    /// The file takes precedence: servers set by `set_targets` hold until the servers in the file change. Names in it
    /// are looked up again when a server becomes unreachable, like other names.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Kind::File(path.into()))
    }

    fn names(names: Vec<TargetName>) -> Self {
        Self(Kind::Names(Names(names)))
    }
}

impl Names {
    /// Returns true if the system has to be asked for addresses, which may take seconds.
    pub(super) fn have_to_be_asked_for(&self) -> bool {
        self.0.iter().any(|target| matches!(target.0, Name::HostAndPort { .. }))
    }

    /// Returns the addresses of all servers, without duplicates.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a text is not a name and for an empty list, UNAVAILABLE if a name has no address.
    pub(super) fn resolve(&self) -> Result<Vec<Target>, Error> {
        let mut targets = Vec::new();
        for name in &self.0 {
            targets.extend(name.resolve()?);
        }
        if targets.is_empty() {
            return Err(Error::not_sent(
                Status::InvalidArgument,
                "a client needs a server's address",
            ));
        }
        Ok(each_once(targets))
    }
}

/// Removes duplicate servers, whatever their weights.
pub(super) fn each_once(mut targets: Vec<Target>) -> Vec<Target> {
    let mut seen = HashSet::new();
    targets.retain(|target| seen.insert((target.address, target.endpoint)));
    targets
}

/// Asks the system for the addresses of a name.
fn look_up(text: &str, endpoint: EndpointId) -> Result<Vec<Target>, Error> {
    let has_port = text
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port {
        let message = format!("{text:?}: a host and a port expected, as in example.com:31850");
        return Err(Error::not_sent(Status::InvalidArgument, message));
    }
    let unavailable = |why: String| {
        Error::not_sent(Status::Unavailable, format!("cannot find the address of {text}: {why}"))
    };
    let addresses = text.to_socket_addrs().map_err(|error| unavailable(error.to_string()))?;
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    let target = |address| {
        names::note(address, host);
        Target::from((address, endpoint))
    };
    let targets: Vec<_> = addresses.map(target).collect();
    match targets.is_empty() {
        true => Err(unavailable("it has none".to_owned())),
        false => Ok(targets),
    }
}

impl From<Target> for TargetName {
    fn from(target: Target) -> Self {
        Self(Name::Address(target))
    }
}

impl From<SocketAddr> for TargetName {
    fn from(address: SocketAddr) -> Self {
        Target::from(address).into()
    }
}

impl From<(SocketAddr, EndpointId)> for TargetName {
    fn from(named: (SocketAddr, EndpointId)) -> Self {
        Target::from(named).into()
    }
}

impl From<(&str, EndpointId)> for TargetName {
    fn from((text, endpoint): (&str, EndpointId)) -> Self {
        match text.parse() {
            Ok(address) => Target::from((address, endpoint)).into(),
            Err(_) => Self(Name::HostAndPort { text: text.to_owned(), endpoint, weight: 1 }),
        }
    }
}

impl From<&str> for TargetName {
    fn from(text: &str) -> Self {
        (text, EndpointId::ANY).into()
    }
}

impl From<String> for TargetName {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&String> for TargetName {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

/// A single server.
macro_rules! targets_of_one {
    ($($one:ty),*) => {
        $(impl From<$one> for Targets {
            fn from(one: $one) -> Self {
                Self::names(vec![one.into()])
            }
        })*
    };
}

targets_of_one!(
    TargetName,
    Target,
    SocketAddr,
    (SocketAddr, EndpointId),
    (&str, EndpointId),
    &str,
    String,
    &String
);

impl<T: Into<TargetName>> From<Vec<T>> for Targets {
    fn from(all: Vec<T>) -> Self {
        all.into_iter().collect()
    }
}

impl<T: Into<TargetName>, const N: usize> From<[T; N]> for Targets {
    fn from(all: [T; N]) -> Self {
        all.into_iter().collect()
    }
}

impl<T: Into<TargetName> + Clone> From<&[T]> for Targets {
    fn from(all: &[T]) -> Self {
        all.iter().cloned().collect()
    }
}

impl<T: Into<TargetName>> FromIterator<T> for Targets {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        Self::names(all.into_iter().map(Into::into).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(targets: impl Into<Targets>) -> Names {
        match targets.into().0 {
            Kind::Names(names) => names,
            Kind::File(path) => panic!("{path:?} is no list"),
        }
    }

    fn resolve(targets: impl Into<Targets>) -> Result<Vec<Target>, Error> {
        names(targets).resolve()
    }

    #[test]
    fn resolve__takes_addresses_as_they_are_and_each_once() {
        let first: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let second: SocketAddr = "[::1]:2".parse().unwrap();
        let both = [Target::from(first), Target::from(second)];
        assert_eq!(resolve(first).unwrap(), both[..1]);
        assert_eq!(resolve("127.0.0.1:1").unwrap(), both[..1]);
        assert_eq!(resolve(["127.0.0.1:1", "[::1]:2", "127.0.0.1:1"]).unwrap(), both);
        let third = Target::from((first, EndpointId(3)));
        let named = [("127.0.0.1:1", EndpointId::ANY), ("127.0.0.1:1", EndpointId(3))];
        assert_eq!(resolve(named).unwrap(), [both[0], third], "endpoints of one process are two");
        assert!(!names(first).have_to_be_asked_for());
    }

    #[test]
    fn resolve__asks_the_system_for_names() {
        let names = names("localhost:31850".to_owned());
        assert!(names.have_to_be_asked_for());
        let found = names.resolve().unwrap();
        assert!(!found.is_empty());
        assert!(found.iter().all(|at| at.address.ip().is_loopback() && at.address.port() == 31850));
    }

    #[test]
    fn resolve__reports_the_error_in_a_name() {
        for text in ["", "localhost", "localhost:", ":1", "localhost:65536", "localhost:http"] {
            let error = resolve(text).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument, "{text}");
            assert!(error.message.contains("a host and a port expected"), "{}", error.message);
        }
        let error = resolve("no-such-host.invalid:1").unwrap_err();
        assert_eq!(error.status, Status::Unavailable);
        assert!(error.message.contains("no-such-host.invalid:1"), "{}", error.message);
        let none: [&str; 0] = [];
        assert_eq!(resolve(none).unwrap_err().status, Status::InvalidArgument);
    }
}
