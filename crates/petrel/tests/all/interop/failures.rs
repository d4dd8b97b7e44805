//! Killed servers and clients, and hung servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use petrel::endpoint::{CallOptions, EndpointConfig, SessionState};
use petrel::{Execution, Status};
use rustix::process::Signal;

use crate::common::{Server, each_medium, keep_with};
use crate::interop::pair::{Begun, Pair, both, client, server, until};
use crate::interop::process::Process;
use crate::interop::service::{ECHO, KEEP, RUNS, WHO};

/// Begins as many calls as fit the session's slots, and some more, which wait.
fn begin_many(pair: &mut Pair) -> Vec<Begun> {
    let slots = u64::from(pair.client.core().agreed(pair.session).unwrap().slots);
    let calls = (0..slots + 4).map(|number| pair.begin(KEEP, &number.to_le_bytes())).collect();
    pair.wait_until_kept(slots);
    calls
}

#[test]
fn killed__server_ends_calls_with_unavailable_and_whether_they_may_have_run() {
    for mut pair in both() {
        let calls = begin_many(&mut pair);
        pair.server.kill();
        let mut counts = [0, 0];
        for call in &calls {
            let failure = pair.failure_of(call);
            assert_eq!(failure.status, Status::Unavailable, "{failure}");
            match failure.execution {
                Execution::MayHaveExecuted => counts[0] += 1,
                Execution::NotSent => counts[1] += 1,
                other => panic!("{other:?}: {failure}"),
            }
        }
        assert_eq!(counts, [calls.len() - 4, 4]);
        assert!(matches!(pair.client.session_state(pair.session), SessionState::Ended(_)));
        let after = pair.client.call(pair.session, ECHO, b"").wait().unwrap_err();
        assert_eq!(after.execution, Execution::NotSent);
        let begin = "the session has ended; open a new one; it ended because: ";
        assert!(after.message.starts_with(begin), "{after}");
    }
}

#[test]
fn killed__client_is_noticed_by_the_handler_of_its_call() {
    for config in each_medium() {
        let counts = Arc::new([const { AtomicU64::new(0) }; 2]);
        let served = Arc::clone(&counts);
        let server = Server::start(config, "127.0.0.1:0", move |endpoint| {
            keep_with(endpoint, KEEP, move |cx, responder| {
                served[0].fetch_add(1, SeqCst);
                let counts = Arc::clone(&served);
                cx.on_cancel(responder, move |_, _| {
                    counts[1].fetch_add(1, SeqCst);
                });
            });
        });
        let mut other = Process::client(server.address);
        let wait_for = |place: usize| {
            until(|| {
                std::thread::sleep(Duration::from_millis(1));
                (counts[place].load(SeqCst) > 0).then_some(())
            });
        };
        wait_for(0);
        assert_eq!(counts[1].load(SeqCst), 0);
        other.kill();
        wait_for(1);
    }
}

/// A stopped process keeps all connections and answers nothing: only missing heartbeats reveal it.
#[test]
fn hung__server_holds_no_call_for_ever_and_serves_again_when_it_goes_on() {
    for mut pair in both() {
        let without = pair.begin(KEEP, b"without a deadline");
        pair.wait_until_kept(1);
        pair.server.signal(Signal::STOP);
        // Heartbeats must be missing for three seconds before the server counts as gone.
        let soon = CallOptions::new().timeout(Duration::from_millis(50));
        let failure = pair.fails(KEEP, b"with a deadline", soon);
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::DeadlineExceeded, Execution::MayHaveExecuted), "{failure}");
        assert!(!without.has_ended());
        let failure = pair.failure_of(&without);
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::Unavailable, Execution::MayHaveExecuted), "{failure}");
        pair.server.signal(Signal::CONT);
        goes_on(&mut pair);
    }
}

/// The same process accepts a new session; no earlier request has run twice.
fn goes_on(pair: &mut Pair) {
    let session = pair.client.connect_wait(pair.server.address()).unwrap();
    let who = pair.client.call(session, WHO, b"").wait().unwrap();
    assert_eq!(who[..], pair.server.id().to_le_bytes());
    for (message, runs) in [("without a deadline", 1..=1), ("with a deadline", 0..=1)] {
        let count = pair.client.call(session, RUNS, message.as_bytes()).wait().unwrap();
        let count = u64::from_le_bytes(count[..].try_into().unwrap());
        assert!(runs.contains(&count), "{message}: ran {count} times");
    }
}

#[test]
fn hung__while_a_session_is_opened() {
    let server = server();
    server.signal(Signal::STOP);
    let mut client = client(EndpointConfig::default());
    let session = client.connect(server.address()).unwrap();
    let soon = CallOptions::new().timeout(Duration::from_millis(20));
    let end = client.call(session, ECHO, b"").options(soon).wait();
    let Err(failure) = end else { panic!("{end:?}") };
    let why = (failure.status, failure.execution);
    assert_eq!(why, (Status::DeadlineExceeded, Execution::NotSent), "{failure}");
    server.signal(Signal::CONT);
    let session = client.connect_wait(server.address()).unwrap();
    assert!(client.call(session, ECHO, b"").wait().is_ok());
}
