//! The service from outside: a server with two endpoints, clients over both transports.

use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use petrel::client::Background;
use petrel::endpoint::{EndpointConfig, EndpointId};
use petrel::{Error, Status};
use petrel_index::{Blob, Client, Method, Server, ServerConfig, StoreConfig};

/// Timeout of the tests, long enough for any machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn server(workers: u16) -> Server {
    let config = ServerConfig { dispatch: 2, workers, ..ServerConfig::at(loopback()) };
    Server::start(&config).unwrap()
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn client(server: &Server, endpoint: u16) -> Client {
    connect(server, endpoint, &Background::builder().start().unwrap())
}

fn connect(server: &Server, endpoint: u16, background: &Background) -> Client {
    let mut config = petrel::client::ClientConfig::default();
    config.timeout = TEST_TIMEOUT;
    let client = petrel::Client::builder().config(config).background(background);
    client.connect_wait((server.address(), EndpointId(endpoint))).unwrap().into()
}

fn blob(bytes: &[u8]) -> Blob {
    Blob::from(bytes)
}

fn counter(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// Calls every method of the service from one client.
fn exercise(server: &Server, client: &Client) {
    for number in 0..300u64 {
        assert_eq!(client.put_word(number * 10, number).wait().unwrap(), None);
    }
    assert_eq!(client.put_word(10, 100).wait().unwrap(), Some(1));
    assert_eq!(client.get_word(10).wait().unwrap(), Some(100));
    assert_eq!(client.get_word(11).wait().unwrap(), None);
    assert_eq!(client.delete_word(20).wait().unwrap(), Some(2));
    assert_eq!(client.delete_word(20).wait().unwrap(), None);
    let sum = client.sum_words(10, 128).wait().unwrap();
    assert_eq!((sum.found.get(), sum.sum.get()), (128, (3..131).sum()));
    let sum = client.sum_words(2_950, 128).wait().unwrap();
    assert_eq!((sum.found.get(), sum.sum.get()), (4, 296 + 297 + 298 + 299));
    let words = client.scan_words(Bound::Included(10), 3).wait().unwrap();
    assert_eq!(words, [(10, 100), (30, 3), (40, 4)]);
    assert_eq!(client.scan_words(Bound::Unbounded, 0).wait().unwrap(), []);
    assert_eq!(client.scan_words(Bound::Unbounded, usize::MAX).wait().unwrap().len(), 299);

    assert!(!client.put_bytes(b"b", b"two").wait().unwrap());
    assert!(!client.put_bytes(b"a", b"").wait().unwrap());
    assert!(client.put_bytes(b"b", b"2").wait().unwrap());
    assert_eq!(client.get_bytes(b"a").wait().unwrap(), Some(blob(b"")));
    assert_eq!(client.get_bytes(b"b").wait().unwrap(), Some(blob(b"2")));
    assert_eq!(client.get_bytes(b"c").wait().unwrap(), None);
    let pairs = client.scan_bytes(Bound::Excluded(b"a"), 10).wait().unwrap();
    assert_eq!(pairs, [(blob(b"b"), blob(b"2"))]);
    assert_eq!(
        [client.delete_bytes(b"b").wait().unwrap(), client.delete_bytes(b"b").wait().unwrap()],
        [true, false]
    );

    let counters = client.status().wait().unwrap();
    assert_eq!(counter(&counters, "word_keys"), 299);
    assert_eq!(counter(&counters, "bytes_keys"), 1);
    assert_eq!(counter(&counters, "requests_put_word"), 301);
    assert_eq!(counter(&counters, "requests_sum_words"), 2);
    assert_eq!(counter(&counters, "requests_status"), 1);
    assert_eq!(counter(&server.counters(), "requests_get_word"), 2);
}

#[test]
fn service__over_shared_memory() {
    let server = server(2);
    exercise(&server, &client(&server, 0));
    server.stop(TEST_TIMEOUT).unwrap();
}

#[test]
fn service__over_udp_is_the_same() {
    let server = server(1);
    let mut config = EndpointConfig::default();
    config.transports = "udp".parse().unwrap();
    let background = Background::builder().endpoint(config).start().unwrap();
    exercise(&server, &connect(&server, 0, &background));
    server.stop(TEST_TIMEOUT).unwrap();
}

#[test]
fn endpoints__share_the_store() {
    let server = server(1);
    let (first, second) = (client(&server, 0), client(&server, 1));
    first.put_word(1, 10).wait().unwrap();
    second.put_word(2, 20).wait().unwrap();
    assert_eq!(second.get_word(1).wait().unwrap(), Some(10));
    assert_eq!(first.sum_words(0, 128).wait().unwrap().sum.get(), 30);
    assert_eq!(server.store().words.get(2), Some(20));
    drop((first, second));
    let stopped = server.stop(TEST_TIMEOUT).unwrap();
    assert_eq!((stopped.endpoints.len(), stopped.sessions_cut), (2, 0));
    assert!(stopped.endpoints.iter().all(|stats| stats.protocol.requests_received >= 2));
}

#[test]
fn scan_bytes__goes_on_where_an_answer_was_cut() {
    let server = server(1);
    let client = client(&server, 0);
    let value = vec![7; 64 << 10];
    for number in 0..20u8 {
        client.put_bytes(&[number], &value).wait().unwrap();
    }
    let pairs = client.scan_bytes(Bound::Unbounded, 18).wait().unwrap();
    assert_eq!(pairs.len(), 18);
    let is_right =
        |(number, (key, found)): (u8, &(Blob, Blob))| **key == [number] && **found == *value;
    assert!((0..18).zip(&pairs).all(is_right));
    // Three pairs fit into an answer.
    assert_eq!(counter(&server.counters(), "requests_scan_bytes"), 6);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn scan_words__goes_on_over_many_pages() {
    let server = server(1);
    for number in 0..10_000 {
        server.store().words.put(number, number).unwrap();
    }
    let client = client(&server, 0);
    let words = client.scan_words(Bound::Excluded(0), 9_000).wait().unwrap();
    assert!(words.iter().copied().eq((1..=9_000).map(|number| (number, number))));
    server.stop(Duration::ZERO).unwrap();
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>, status: Status, text: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.status, status, "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn bad_requests__are_told_why() {
    let mut config = ServerConfig::at(loopback());
    config.store = StoreConfig { words_max: 1, bytes_max: 200, ..config.store };
    let server = Server::start(&config).unwrap();
    let client = client(&server, 0);
    client.put_word(1, 1).wait().unwrap();
    let result = client.put_word(2, 2).wait();
    assert_refused(result, Status::ResourceExhausted, "the table is full: 1 keys");
    let result = client.put_bytes(b"key", &[0; 100]).wait();
    assert_refused(result, Status::ResourceExhausted, "the table is full: 200 bytes");
    let result = client.put_bytes(&[0; 1025], b"").wait();
    assert_refused(result, Status::InvalidArgument, "a key of 1025 bytes");
    let result = client.put_bytes(b"", &[0; (64 << 10) + 1]).wait();
    assert_refused(result, Status::InvalidArgument, "a value of 65537 bytes");
    let result = client.sum_words(0, 5_000).wait();
    assert_refused(result, Status::InvalidArgument, "5000 were asked for; at most 4096 keys");
    assert_eq!(counter(&client.status().wait().unwrap(), "requests_refused"), 5);
    // A key of 3 bytes reaches no handler.
    let raw = petrel::Client::connect_wait(server.address()).unwrap();
    let result = raw.call(Method::GetWord as u16, [1, 2, 3]).wait();
    assert_refused(result, Status::InvalidArgument, "8 bytes expected, not 3");
    assert_eq!(counter(&server.counters(), "requests_get_word"), 0);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn start__with_a_bad_configuration_says_what_is_wrong() {
    let config = ServerConfig { dispatch: 0, ..ServerConfig::at(loopback()) };
    let error = Server::start(&config).unwrap_err();
    assert_eq!(error.to_string(), "a server has 1 to 256 endpoints");
    let error = Server::start(&ServerConfig::at("0.0.0.0:0".parse().unwrap())).unwrap_err();
    assert!(error.to_string().contains("insecure"), "{error}");
    let first = server(1);
    let config = ServerConfig::at(first.address());
    assert!(Server::start(&config).is_err(), "the address is taken");
    first.stop(Duration::ZERO).unwrap();
}

/// A client that connects while a server starts would find no endpoint.
#[test]
fn start__listens_only_when_store_and_workers_are_there() {
    // An address of this process alone: the system could assign a freed port to another test.
    let [_, b, c, d] = std::process::id().to_be_bytes();
    let free = SocketAddr::from((std::net::Ipv4Addr::new(127, b, c, d.max(1)), 20_000));
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let mut config = ServerConfig { workers: 1, ..ServerConfig::at(free) };
    config.placement = Some(std::sync::Arc::new(move |thread| {
        if matches!(thread, petrel_index::ThreadKind::Worker) {
            let listens = std::net::TcpStream::connect(free).is_ok();
            tell.lock().unwrap().send(listens).unwrap();
        }
        Ok(())
    }));
    let server = Server::start(&config).unwrap();
    assert!(told.try_iter().all(|listens| !listens), "it listened before its workers were there");
    client(&server, 0);
}

/// A tokio task makes calls until the server drains: no answer is lost.
#[test]
fn client__loses_no_call_when_the_server_stops() {
    let server = server(2);
    let client = Client::connect_wait(server.address()).unwrap();
    let (told, first) = mpsc::channel();
    let caller = {
        let client = client.clone();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        thread::spawn(move || runtime.block_on(call_until_unavailable(&client, &told)))
    };
    first.recv().unwrap();
    assert!(client.get_word(0).wait().unwrap().is_some());
    let stopped = server.stop(TEST_TIMEOUT).unwrap();
    let puts = caller.join().unwrap();
    assert_eq!(counter(&stopped.counters, "word_keys"), puts, "each answered PUT, and no other");
    assert_eq!(stopped.sessions_cut, 0);
}

/// Puts words and sums them up. Returns the number of answered PUTs once the server refuses more.
async fn call_until_unavailable(client: &Client, told: &mpsc::Sender<()>) -> u64 {
    let mut puts = 0;
    loop {
        match client.put_word(puts, 1).await {
            Ok(former) => assert_eq!(former, None),
            Err(failure) => {
                // The call was not executed: the server has drained.
                assert_eq!(failure.status, Status::Unavailable, "{failure}");
                let did_not_run = [petrel::Execution::NotSent, petrel::Execution::Refused];
                assert!(did_not_run.contains(&failure.execution), "{failure}");
                return puts;
            }
        }
        puts += 1;
        if puts == 100 {
            told.send(()).unwrap();
        }
        if puts.is_multiple_of(10)
            && let Ok(sum) = client.sum_words(0, 4096).await
        {
            assert_eq!(u64::from(sum.found.get()), (puts - 1).min(4096));
        }
    }
}
