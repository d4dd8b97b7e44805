//! Events at the application's subscriber. Alone in its process, to set the process's subscriber.

mod common;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ECHO, Server, client, over};
use petrel::Client;
use petrel::client::Targets;
use petrel::endpoint::EndpointConfig;
use petrel::nexus::fetch_stats;
use petrel::security::Policy;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of each received event.
static EVENTS: Mutex<Vec<HashMap<String, String>>> = Mutex::new(Vec::new());

struct Collector;

struct Fields<'a>(&'a mut HashMap<String, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "petrel"
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = HashMap::new();
        fields.insert("level".to_owned(), event.metadata().level().to_string());
        event.record(&mut Fields(&mut fields));
        EVENTS.lock().unwrap().push(fields);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        unreachable!("the library has no spans")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn count() -> usize {
    EVENTS.lock().unwrap().len()
}

/// Returns the first event with the name and the fields.
fn find(name: &str, wanted: &[(&str, &str)]) -> HashMap<String, String> {
    let events = EVENTS.lock().unwrap();
    let found = events.iter().find(|event| {
        event["event"] == name && wanted.iter().all(|(field, value)| event[*field] == *value)
    });
    found.unwrap_or_else(|| panic!("no {name} with {wanted:?} in {events:#?}")).clone()
}

/// Writes servers to a client's servers file, and waits for an event of this name.
fn write_until(path: &Path, text: &str, name: &str) -> HashMap<String, String> {
    std::fs::write(path, text).unwrap();
    let is_it = |event: &HashMap<String, String>| event["event"] == name;
    while !EVENTS.lock().unwrap().iter().any(is_it) {
        std::thread::sleep(Duration::from_millis(10));
    }
    find(name, &[("file", path.to_str().unwrap())])
}

fn follow_a_file(server: &Server) {
    let path = std::env::temp_dir().join(format!("petrel-events-{}", std::process::id()));
    std::fs::write(&path, server.address.to_string()).unwrap();
    let client = Client::connect_wait(Targets::file(&path)).unwrap();
    let failed = write_until(&path, "# all gone\n127.0.0.1\n", "servers_file_failed");
    assert_eq!(failed["level"], "WARN");
    assert!(failed["why"].contains(":2: "), "{failed:?}");
    assert_eq!(client.call(ECHO, "still there").wait().unwrap(), b"still there");
    let heavier = format!("{} weight=2", server.address);
    let changed = write_until(&path, &heavier, "servers_changed");
    assert_eq!((&changed["level"][..], &changed["servers"][..]), ("INFO", "1"));
    std::fs::remove_file(&path).unwrap();
}

/// Writes a policy, and waits for an event of this name.
fn judge_until(path: &Path, text: &str, name: &str) {
    std::fs::write(path, text).unwrap();
    while !EVENTS.lock().unwrap().iter().any(|event| event["event"] == name) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn a_policy_reports_each_refusal_and_its_changes() {
    let path = std::env::temp_dir().join(format!("petrel-grants-{}", std::process::id()));
    std::fs::write(&path, "* 1").unwrap();
    let policy = Policy::from_file(&path, [("echo", 1)]).unwrap();
    let set_up = |endpoint: &mut petrel::Endpoint| {
        for method in [1, 2] {
            endpoint.on(method, |_, cx, request| request.reply(cx, b""));
        }
    };
    let server = petrel::Server::bind("127.0.0.1:0").authorize(Arc::new(policy));
    let server = server.serve(|_| (), set_up).start().unwrap();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    client.call(1, "").wait().unwrap();
    client.call(2, "").wait().unwrap_err();
    find("not_granted", &[("level", "WARN"), ("method", "2")]);
    fetch_stats(server.local_addr(), Duration::from_secs(60)).unwrap_err();
    let refused = find("stats_refused", &[("level", "WARN")]);
    assert!(refused["identity"].contains("uid: Some("), "{refused:?}");
    judge_until(&path, "*", "grants_failed");
    judge_until(&path, "* nothing \"it is closed\"", "grants_changed");
    judge_until(&path, "* nothing \"it is closed\"", "session_refused");
    find("session_refused", &[("why", "it is closed"), ("status", "PERMISSION_DENIED")]);
    find("session_ended", &[("end", "refused"), ("status", "PERMISSION_DENIED")]);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn events_tell_why_and_none_comes_for_calls_that_succeed() {
    tracing::subscriber::set_global_default(Collector).unwrap();
    let mut server = Server::start(over(true, false), "127.0.0.1:0", |_| {});
    let mut client = client(EndpointConfig::default());
    let session = client.connect_wait(server.address).unwrap();
    client.call(session, ECHO, b"").wait().unwrap();
    let shm = find("shm_not_used", &[("level", "INFO")]);
    assert!(shm["why"].contains("shared memory"), "{shm:?}");
    find("link_up", &[("transport", "udp")]);
    find("session_opened", &[("is_client", "true"), ("transport", "udp")]);
    find("session_opened", &[("is_client", "false"), ("transport", "udp")]);

    let before = count();
    for _ in 0..100 {
        client.call(session, ECHO, b"message").wait().unwrap();
    }
    assert_eq!(count(), before);

    let call = client.session(session).call(77, b"").started();
    client.block_on(call).unwrap_err();
    find("call_failed", &[("status", "UNIMPLEMENTED")]);
    find("request_refused", &[("status", "UNIMPLEMENTED")]);

    follow_a_file(&server);
    a_policy_reports_each_refusal_and_its_changes();

    server.end();
    let watched = client.session(session);
    client.block_on(watched.ended());
    let end = find("session_ended", &[("end", "link_lost"), ("level", "WARN")]);
    assert!(!end["why"].is_empty() && end["status"] == "UNAVAILABLE", "{end:?}");
    find("link_down", &[("level", "INFO")]);
    find("connection_ended", &[]);

    client.connect_wait(server.address).unwrap_err();
    let end = find("session_ended", &[("end", "not_reached")]);
    assert!(end["why"].contains("no process listens"), "{end:?}");
    // The caller has the reason.
    find("link_failed", &[("level", "DEBUG")]);
    absent_server_is_reported_once();
}

/// A client without its server tries again some ten times in this time, and warns once.
fn absent_server_is_reported_once() {
    let absent = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let first = count();
    let client = Client::builder().lazy().connect_wait(absent).unwrap();
    while client.stats().connects_failed < 10 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let events = EVENTS.lock().unwrap();
    let louder = events[first..].iter().filter(|event| event["level"] != "DEBUG");
    let louder: Vec<_> = louder.map(|event| &event["event"][..]).collect();
    assert_eq!(louder, ["server_unreachable"]);
}
