//! Histories of concurrent clients of the cache in store mode: each key is linearizable.
//!
//! Clients of Petrel and of memcached's protocol use the same keys. The version of an item is the revision of the
//! checker's model. SET and DELETE do not report the former value, so the model gets writes of unknown outcome that end
//! in time. An ADD or CAS that is refused changes nothing, and stays out of the history.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use petrel::client::Client;
use petrel::endpoint::IdlePolicy;
use petrel_cache::wire::StoreMessage;
use petrel_cache::{CacheClient, CacheConfig, CacheServer, Mode, Stored, Verb};

use crate::history::{Expectation, Found, History, Invocation, Operation, Response};
use crate::linearizable::{Checker, Verdict, program};

/// Keys: few, so that clients meet.
const KEYS: u64 = 4;

const OPERATIONS: u32 = 150;

const CLIENTS: u32 = 3;

/// A client of either protocol.
trait Cache {
    /// The tag and the version of a key's value.
    fn get(&mut self, key: &str) -> Option<(String, u64)>;

    /// Stores a value, if the key has the version of `compare`. Returns whether the value is stored, with its version if
    /// the protocol tells it.
    fn store(
        &mut self,
        verb: Verb,
        compare: Option<u64>,
        key: &str,
        tag: &str,
    ) -> Option<Option<u64>>;

    fn delete(&mut self, key: &str);
}

impl Cache for CacheClient {
    fn get(&mut self, key: &str) -> Option<(String, u64)> {
        let found = Self::get(self, key.as_bytes()).wait().unwrap()?;
        Some((String::from_utf8(found.bytes).unwrap(), found.cas))
    }

    fn store(
        &mut self,
        verb: Verb,
        compare: Option<u64>,
        key: &str,
        tag: &str,
    ) -> Option<Option<u64>> {
        let (key, value) = (key.as_bytes(), tag.as_bytes());
        let message = StoreMessage { verb, compare, flags: 0, ttl_s: 0, key, value };
        match Self::store(self, &message).wait().unwrap() {
            Stored::Done { cas } => Some(Some(cas)),
            _ => None,
        }
    }

    fn delete(&mut self, key: &str) {
        Self::delete(self, key.as_bytes(), None).wait().unwrap();
    }
}

/// A connection of memcached's protocol.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn new(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        // A guard against hanging.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(BufReader::new(socket))
    }

    fn ask(&mut self, request: &str) -> String {
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Cache for Connection {
    fn get(&mut self, key: &str) -> Option<(String, u64)> {
        let head = self.ask(&format!("gets {key}\r\n"));
        if head == "END" {
            return None;
        }
        let words: Vec<_> = head.split(' ').collect();
        let ["VALUE", _, _, bytes, version] = words[..] else { panic!("{head}") };
        let mut value = vec![0; bytes.parse::<usize>().unwrap() + "\r\nEND\r\n".len()];
        self.0.read_exact(&mut value).unwrap();
        value.truncate(bytes.parse().unwrap());
        Some((String::from_utf8(value).unwrap(), version.parse().unwrap()))
    }

    fn store(
        &mut self,
        verb: Verb,
        compare: Option<u64>,
        key: &str,
        tag: &str,
    ) -> Option<Option<u64>> {
        let (mode, bytes) = (if verb == Verb::Add { "ME" } else { "MS" }, tag.len());
        let compare = compare.map_or(String::new(), |version| format!(" C{version}"));
        let reply = self.ask(&format!("ms {key} {bytes} c {mode}{compare}\r\n{tag}\r\n"));
        reply.strip_prefix("HD c").map(|version| Some(version.parse().unwrap()))
    }

    fn delete(&mut self, key: &str) {
        let reply = self.ask(&format!("delete {key}\r\n"));
        assert!(["DELETED", "NOT_FOUND"].contains(&reply.as_str()), "{reply}");
    }
}

/// Makes the operations of a client; `events` numbers calls and ends of all clients. Each seed has other operations.
fn run(client: u32, cache: &mut dyn Cache, seed: u64, events: &AtomicU64) -> Vec<Operation> {
    let mut state = (u64::from(client) | seed << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = move |count: u64| {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % count
    };
    let mut operations = Vec::new();
    let mut known = [0; KEYS as usize];
    for number in 0..OPERATIONS {
        let key = draw(KEYS) as u8;
        let (name, tag) = (format!("key{key}"), format!("{client}.{number}"));
        let next = || events.fetch_add(1, Ordering::SeqCst) + 1;
        let call = next();
        let (invocation, response) = match draw(10) {
            0..4 => {
                let found = cache.get(&name);
                known[usize::from(key)] = found.as_ref().map_or(0, |found| found.1);
                let found = found.map(|(tag, revision)| Found { key, tag, revision });
                (Invocation::Get { key }, Some(Response::Found(found.into_iter().collect())))
            }
            4..6 => {
                assert!(cache.store(Verb::Set, None, &name, &tag).is_some(), "a set is refused");
                (Invocation::Put { key, tag }, None)
            }
            6 => {
                cache.delete(&name);
                (Invocation::Delete { key }, None)
            }
            choice => {
                let compare = (choice > 7).then_some(known[usize::from(key)]);
                let verb = if compare.is_some() { Verb::Set } else { Verb::Add };
                let Some(version) = cache.store(verb, compare, &name, &tag) else { continue };
                let expected = compare.map_or(Expectation::Absent, Expectation::Revision);
                let was_there = compare.is_some();
                let response = version.map(|index| Response::Changed { index, was_there });
                (Invocation::Cas { key, expected, tag }, response)
            }
        };
        let end = Some(next());
        operations.push(Operation { client, call, end, invocation, response });
    }
    operations
}

/// Runs all clients side by side.
fn history(partitions: u16, seed: u64) -> History {
    let local = "127.0.0.1:0".parse().unwrap();
    let config = CacheConfig {
        memcached: Some(local),
        memory_bytes: 128 << 20,
        threads: partitions,
        mode: Mode::Store,
        // All threads share the CPUs of the tests.
        endpoint_idle: IdlePolicy::Block,
        ..CacheConfig::listening_at(local)
    };
    let server = CacheServer::start(&config).unwrap();
    let (listen, memcached) = (server.listen().unwrap(), server.memcached().unwrap());
    let events = AtomicU64::new(0);
    let mut history = History::default();
    thread::scope(|scope| {
        let events = &events;
        let clients: Vec<_> = (0..2 * CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let mut cache: Box<dyn Cache> = match client % 2 {
                        0 => {
                            Box::new(CacheClient::connect_wait(Client::builder(), listen).unwrap())
                        }
                        _ => Box::new(Connection::new(memcached)),
                    };
                    run(client, cache.as_mut(), seed, events)
                })
            })
            .collect();
        for client in clients {
            history.operations.extend(client.join().unwrap());
        }
    });
    server.stop().unwrap();
    history
}

/// Histories of each kind; continuous integration runs more than one.
fn rounds() -> usize {
    let parse = |text: String| text.parse().expect("PETREL_CACHE_HISTORIES is a number");
    std::env::var("PETREL_CACHE_HISTORIES").map_or(1, parse)
}

#[test]
fn cache__is_linearizable_per_key() {
    let Some(mut checker) = Checker::start() else {
        return petrel_skip::skip(petrel_skip::Need::Go, program().as_ref().unwrap_err());
    };
    for (seed, partitions) in (0..).zip([1, 2].repeat(rounds())) {
        let mut history = history(partitions, seed);
        let answers = history.operations.iter().filter(|operation| operation.response.is_some());
        assert!(answers.count() > 300, "too few answers say something");
        assert_eq!(checker.check(&history, false), Ok(Verdict::Ok), "{partitions} partitions");
        // A value of no client must be found, so that the check can fail.
        let reads = history.operations.iter_mut().filter_map(|it| it.response.as_mut());
        let found = reads.filter_map(|response| match response {
            Response::Found(found) => found.first_mut(),
            _ => None,
        });
        found.last().expect("some reads find a value").tag = "none".to_owned();
        assert_eq!(checker.check(&history, false), Ok(Verdict::Illegal));
    }
}
