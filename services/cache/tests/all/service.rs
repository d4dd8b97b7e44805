//! The cache as a service of Petrel, from outside.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use petrel::endpoint::{EndpointId, IdlePolicy};
use petrel::{Client, Status};
use petrel_cache::wire::{CountMessage, StoreMessage};
use petrel_cache::{
    CacheClient, CacheConfig, CacheServer, ClientError, Counted, Mode, Removed, Stored, Verb, wire,
};

fn config(threads: u16) -> CacheConfig {
    CacheConfig {
        threads,
        memory_bytes: 128 << 20,
        // Several endpoints share the CPUs of the tests.
        endpoint_idle: IdlePolicy::Block,
        ..CacheConfig::listening_at("127.0.0.1:0".parse().unwrap())
    }
}

fn connect(server: &CacheServer) -> CacheClient {
    CacheClient::connect_wait(Client::builder(), server.listen().unwrap()).unwrap()
}

fn message<'a>(verb: Verb, key: &'a [u8], value: &'a [u8]) -> StoreMessage<'a> {
    StoreMessage { verb, compare: None, flags: 7, ttl_s: 0, key, value }
}

#[test]
fn client__reaches_all_partitions() {
    for threads in [1, 3] {
        let server = CacheServer::start(&config(threads)).unwrap();
        let client = connect(&server);
        assert_eq!(client.partitions(), usize::from(threads));
        for number in 0..200u32 {
            let key = number.to_le_bytes();
            assert!(matches!(client.set(&key, &key).wait(), Ok(Stored::Done { .. })));
        }
        for number in 0..200u32 {
            let found = client.get(&number.to_le_bytes()).wait().unwrap().unwrap();
            assert_eq!((found.bytes, found.flags), (number.to_le_bytes().to_vec(), 0));
        }
        let stats = client.stats().wait().unwrap();
        assert!(stats.contains(&("curr_items".to_owned(), 200)), "{stats:?}");
        client.flush(0).wait().unwrap();
        assert_eq!(client.get(&[0; 4]).wait().unwrap(), None);
        drop(client);
        let stopped = server.stop().unwrap();
        assert!(stopped.counters.contains(&("get_hits", 200)), "{:?}", stopped.counters);
    }
}

/// A burst of look-ups, of which an endpoint refuses some.
#[test]
fn lookups__of_a_burst_are_answered_or_refused_each() {
    let server = CacheServer::start(&config(1)).unwrap();
    let client = connect(&server);
    for number in (0..100u32).step_by(2) {
        client.set(&number.to_le_bytes(), &vec![1; number as usize * 30]).wait().unwrap();
    }
    let raw = Client::connect_wait((server.listen().unwrap(), EndpointId(0))).unwrap();
    let key =
        |number: u32| if number.is_multiple_of(9) { vec![] } else { number.to_le_bytes().to_vec() };
    // All are on their way before the first is waited for.
    let calls: Vec<_> = (0..100).map(|number| raw.call(wire::GET, key(number)).started()).collect();
    for (number, call) in (0..).zip(calls) {
        let end = call.wait();
        let is_refused = end.is_err_and(|error| error.status == Status::InvalidArgument);
        assert_eq!(is_refused, number % 9 == 0, "{number}");
    }
    let stats = client.stats().wait().unwrap();
    assert!(stats.contains(&("get_hits".to_owned(), 44)), "{stats:?}");
}

#[test]
fn operations__have_the_outcomes_of_the_partition() {
    let server = CacheServer::start(&config(2)).unwrap();
    let client = connect(&server);
    let store = |verb, value| client.store(&message(verb, b"key", value)).wait().unwrap();
    assert_eq!(store(Verb::Replace, b"1"), Stored::Refused);
    assert!(matches!(store(Verb::Add, b"1"), Stored::Done { .. }));
    assert_eq!(store(Verb::Add, b"2"), Stored::Refused);
    assert!(matches!(store(Verb::Append, b"0"), Stored::Done { .. }));
    let found = client.get(b"key").wait().unwrap().unwrap();
    assert_eq!((&found.bytes[..], found.flags), (&b"10"[..], 7));
    let cas = |version, value| {
        let message = StoreMessage { compare: Some(version), ..message(Verb::Set, b"key", value) };
        client.store(&message).wait().unwrap()
    };
    assert_eq!(cas(found.cas + 1, b"x"), Stored::Exists);
    assert!(matches!(cas(found.cas, b"20"), Stored::Done { .. }));
    let count = |key: &[u8], is_increment, initial| {
        let key = key.to_vec();
        let message = CountMessage { is_increment, delta: 5, initial, ttl_s: 0, key };
        client.count(&message).wait().unwrap()
    };
    assert!(matches!(count(b"key", true, None), Counted::Number { number: 25, .. }));
    assert!(matches!(count(b"key", false, None), Counted::Number { number: 20, .. }));
    assert_eq!(count(b"none", true, None), Counted::NotFound);
    assert!(matches!(count(b"none", true, Some(9)), Counted::Number { number: 9, .. }));
    assert!(client.touch(b"key", 100).wait().unwrap());
    assert!(!client.touch(b"nothing", 100).wait().unwrap());
    assert_eq!(client.delete(b"key", Some(1 << 40)).wait().unwrap(), Removed::Exists);
    assert_eq!(client.delete(b"key", None).wait().unwrap(), Removed::Done);
    assert_eq!(client.delete(b"key", None).wait().unwrap(), Removed::NotFound);
    drop(client);
    server.stop().unwrap();
}

#[test]
fn errors__say_who_is_at_fault() {
    let server = CacheServer::start(&config(2)).unwrap();
    let client = connect(&server);
    let long = client.get(&[b'k'; 251]).wait().unwrap_err();
    assert_eq!(long.status(), Status::InvalidArgument);
    let large = client.set(b"key", &vec![0; (1 << 20) + 1]).wait().unwrap_err();
    assert_eq!(large.status(), Status::InvalidArgument, "{large}");
    // An endpoint refuses each key of the other partition, and each malformed message.
    let address = server.listen().unwrap();
    let raw = [0, 1].map(|number| Client::connect_wait((address, EndpointId(number))).unwrap());
    let statuses =
        raw.each_ref().map(|raw| raw.call(wire::GET, "key").wait().map_err(|it| it.status));
    assert!(statuses.contains(&Err(Status::FailedPrecondition)), "{statuses:?}");
    assert!(statuses.iter().any(Result::is_ok), "{statuses:?}");
    for method in [wire::GET, wire::STORE, wire::DELETE, wire::TOUCH, wire::COUNT, wire::FLUSH] {
        let error = raw[0].call(method, "").wait().unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument, "{method}");
    }
    drop((client, raw));
    server.stop().unwrap();
}

#[test]
fn store__says_that_it_is_full() {
    let server = CacheServer::start(&CacheConfig { mode: Mode::Store, ..config(1) }).unwrap();
    let client = connect(&server);
    let value = vec![1; 1 << 20];
    let mut stored = 0u32;
    let error = loop {
        match client.set(&stored.to_le_bytes(), &value).wait() {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 128, "more than the memory");
    };
    assert_eq!(error.status(), Status::ResourceExhausted);
    assert!(stored > 50, "{stored}");
    for number in 0..stored {
        assert_eq!(client.get(&number.to_le_bytes()).wait().unwrap().unwrap().bytes, value);
    }
    drop(client);
    server.stop().unwrap();
}

/// Sends a request of memcached's protocol, and expects this reply.
fn ask(address: SocketAddr, request: &str, reply: &str) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut got = vec![0; reply.len()];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), reply);
}

#[test]
fn both_protocols__share_the_partitions() {
    let memcached = Some("127.0.0.1:0".parse().unwrap());
    let server = CacheServer::start(&CacheConfig { memcached, ..config(2) }).unwrap();
    let client = connect(&server);
    let memcached = server.memcached().unwrap();
    for number in 0..50 {
        let key = format!("key{number}");
        client.store(&message(Verb::Set, key.as_bytes(), b"petrel")).wait().unwrap();
        ask(memcached, &format!("get {key}\r\n"), &format!("VALUE {key} 7 6\r\npetrel\r\nEND\r\n"));
        ask(memcached, &format!("set {key} 1 0 7\r\nseabird\r\n"), "STORED\r\n");
        let found = client.get(key.as_bytes()).wait().unwrap().unwrap();
        assert_eq!((&found.bytes[..], found.flags), (&b"seabird"[..], 1));
    }
    ask(memcached, "flush_all\r\n", "OK\r\n");
    assert_eq!(client.get(b"key1").wait().unwrap(), None);
    drop(client);
    let stopped = server.stop().unwrap();
    assert!(stopped.counters.contains(&("cmd_set", 100)), "{:?}", stopped.counters);
}

/// Calls until the client has connected again to the partition in question: it pauses between attempts to connect, and calls fail
/// meanwhile without being sent. The limit of the whole test ends the loop.
fn reconnected<T>(mut call: impl FnMut() -> Result<T, ClientError>) -> Result<T, ClientError> {
    loop {
        match call() {
            Err(error) if error.status() == Status::Unavailable => std::thread::yield_now(),
            answered => return answered,
        }
    }
}

/// A client outlives its server: another process at the address has another seed.
#[test]
fn client__finds_the_partitions_of_another_server() {
    let first = CacheServer::start(&config(2)).unwrap();
    let address = first.listen().unwrap();
    let client = connect(&first);
    client.set(b"key", b"1").wait().unwrap();
    // The client stays connected: its sessions are cut at the end.
    let config = CacheConfig { listen: Some(address), ..config(2) };
    first.stop().unwrap();
    let second = CacheServer::start(&config).unwrap();
    for number in 0..20u8 {
        reconnected(|| client.set(&[number], b"2").wait()).unwrap();
        assert_eq!(client.get(&[number]).wait().unwrap().unwrap().bytes, b"2");
    }
    drop(client);
    second.stop().unwrap();
}

/// Operations on all partitions must not leave out partitions that a client does not know.
#[test]
fn flush_and_stats__notice_another_number_of_partitions() {
    let first = CacheServer::start(&config(1)).unwrap();
    let address = first.listen().unwrap();
    let client = connect(&first);
    assert!(client.flush(0).wait().is_ok());
    first.stop().unwrap();
    let second = CacheServer::start(&CacheConfig { listen: Some(address), ..config(2) }).unwrap();
    let error = reconnected(|| client.flush(0).wait()).unwrap_err();
    assert!(matches!(error, ClientError::Partitions { before: 1, now: 2 }), "{error}");
    let error = client.stats().wait().unwrap_err();
    assert!(matches!(error, ClientError::Partitions { .. }), "{error}");
    drop(client);
    second.stop().unwrap();
}
