//! The client against real replicas over loopback.

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::{Cluster, Options, TEST_TIMEOUT, TestClient};
use petrel::client::wait;
use petrel::endpoint::EndpointConfig;
use petrel::task::{Parallel, Task};
use petrel::{Client, Nexus};
use petrel_kv::api::{AdminReply, Certainty, Consistency, Refusal, Role, WriteReply, methods};
use petrel_kv::client::{Batched, Cas, KvClient, KvClientConfig, KvError};
use petrel_kv::command::{BatchBuffer, Command, Expected, Op};
use petrel_kv::limits::{PENDING_WRITES_MAX, SESSIONS_MAX};

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

#[test]
fn client__each_operation() {
    let cluster = Cluster::start(3, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    test_client.run(async |client| {
        assert!(client.get(b"key").await.unwrap().is_none());
        let put = client.put(b"key", b"one").await.unwrap();
        assert!(!put.replaced);
        let value = client.get(b"key").await.unwrap().unwrap();
        assert_eq!((&value[..], value.revision()), (&b"one"[..], put.revision));
        let wrong = client.cas(b"key", Expected::Absent, b"two").await.unwrap();
        assert_eq!(wrong, Cas::Mismatch { revision: Some(put.revision) });
        let right = client.cas(b"key", Expected::Value(b"one"), b"two").await.unwrap();
        let Cas::Done { revision } = right else { panic!("{right:?}") };
        assert!(client.put(b"key", b"three").await.unwrap().replaced);
        let late = client.cas_delete(b"key", Expected::Revision(revision)).await.unwrap();
        assert!(matches!(late, Cas::Mismatch { .. }));
        assert!(client.delete(b"key").await.unwrap());
        assert!(!client.delete(b"key").await.unwrap());

        let mut batch = BatchBuffer::default();
        batch.push(&Op::Cas { key: b"a", expected: Expected::Absent, value: b"1" }).unwrap();
        batch.push(&Op::Put { key: b"b", value: b"2" }).unwrap();
        assert!(matches!(client.batch(&batch).await.unwrap(), Batched::Done { .. }));
        let again = client.batch(&batch).await.unwrap();
        assert!(matches!(again, Batched::Mismatch { position: 0, revision: Some(_) }), "{again:?}");
    });
}

#[test]
fn client__leases_outlive_their_leader_and_end_with_their_keys() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    // Longer than the pauses of a busy machine.
    let hour = Duration::from_secs(3_600);
    let held = test_client.run(async |client| {
        let held = client.hold(hour).await.unwrap();
        let lease = held.lease();
        assert!(!client.put_leased(b"a", b"1", lease).await.unwrap().replaced);
        let absent = Expected::Absent;
        let first = client.cas_leased(b"lock", absent, b"me", lease).await.unwrap();
        let second = client.cas_leased(b"lock", absent, b"me", lease).await.unwrap();
        assert!(matches!((first, second), (Cas::Done { .. }, Cas::Mismatch { .. })));
        client.put_for(b"b", b"2", hour).await.unwrap();
        held
    });
    cluster.kill(cluster.wait_for_leader());
    let lease = held.lease();
    test_client.run(async |client| {
        assert!(client.keep_alive(lease).await.unwrap());
        let (state, keys) = client.lease(lease).await.unwrap().expect("it lasts an hour");
        assert_eq!((state.ttl_ms, state.keys), (3_600_000, 2));
        assert!(state.left_ms > 0 && keys == [&b"a"[..], b"lock"]);
        let listed = client.leases().await.unwrap();
        assert_eq!(listed.iter().map(|state| state.keys).collect::<Vec<_>>(), [2, 1]);
        client.put(b"a", b"for ever").await.unwrap();

        assert_eq!(client.revoke(lease).await, Ok(Some(1)));
        assert_eq!(client.revoke(lease).await, Ok(None));
        assert_eq!(client.keep_alive(lease).await, Ok(false));
        assert_eq!(client.lease(lease).await, Ok(None));
        assert!(client.get(b"lock").await.unwrap().is_none());
        assert!(client.get(b"a").await.unwrap().is_some(), "a put takes the key from its lease");
        let ended = client.put_leased(b"a", b"1", lease).await;
        assert_eq!(ended, Err(KvError::NoLease { lease }));
        assert_eq!(client.leases().await.unwrap().len(), 1);
    });
    cluster.wait_for_equal_digests();
    // Short ones end, and their holders are told.
    test_client.run(async |client| {
        client.put_for(b"short", b"", Duration::from_millis(50)).await.unwrap();
        while client.get(b"short").await.unwrap().is_some() {}
        let mut held = client.hold(Duration::from_millis(300)).await.unwrap();
        let _ = client.revoke(held.lease()).await;
        held.lost().await;
        assert_eq!(held.revoke().await, Ok(None));
    });
}

/// Time is the leader's.
#[test]
fn client__does_not_advance_the_lease_clock() {
    let cluster = Cluster::start(1, Options::default());
    cluster.wait_for_leader();
    let client = wait(Client::builder().connect(cluster.addresses()[0])).unwrap();
    let advance = Command::Advance { clock_ms: 1 }.to_vec();
    let reply = wait(client.call(methods::WRITE, advance)).unwrap();
    let refused = WriteReply::decode(&reply);
    assert!(matches!(refused, Ok(WriteReply::Refused(Refusal::Malformed(_)))), "{refused:?}");
}

#[test]
fn client__what_breaks_a_limit_is_not_sent() {
    // No server listens: an operation with a call would wait.
    let mut test_client = TestClient::new([SocketAddr::from(([127, 0, 0, 1], 9))]);
    test_client.run(async |client| {
        let long = vec![0; (1 << 20) + 1];
        let errors = [
            client.put(b"", b"").await.unwrap_err(),
            client.put(&long[..4097], b"").await.unwrap_err(),
            client.put(b"key", &long).await.unwrap_err(),
            client.cas(b"key", Expected::Value(&long), b"").await.unwrap_err(),
            client.get(b"").await.unwrap_err(),
            client.delete(&long[..5000]).await.unwrap_err(),
            client.batch(&BatchBuffer::default()).await.unwrap_err(),
            client.transfer(0).await.unwrap_err(),
            client.remove_member(0).await.unwrap_err(),
            client.scan(&long[..5000], None).next().await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, KvError::InvalidArgument(_)), "{error}");
        }
    });
    let none = KvClient::on([], KvClientConfig::default(), |_, _| panic!("it has no servers"));
    assert!(matches!(none, Err(KvError::InvalidArgument(_))));
}

#[test]
fn client__scans_page_by_page() {
    let cluster = Cluster::start(1, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    let handle = test_client.handle();
    test_client.run(async |client| {
        let put = |key: u32| {
            let client = client.clone();
            handle.spawn(async move { client.put(&key.to_be_bytes(), &key.to_le_bytes()).await })
        };
        for put in (0..3000).map(put).collect::<Vec<_>>() {
            put.await.unwrap();
        }
        let key = |number: u32| number.to_be_bytes();
        let mut scan = client.scan(&key(10), Some(&key(2990))).page_pairs(100);
        for expected in 10..2990u32 {
            let pair = scan.next().await.unwrap().unwrap();
            assert_eq!(
                (&pair.key[..], &pair.value[..]),
                (&key(expected)[..], &expected.to_le_bytes()[..])
            );
        }
        assert_eq!(scan.next().await.unwrap(), None);
        assert_eq!(scan.next().await.unwrap(), None, "the end stays the end");
        let mut limited = client.scan(b"", None).limit(1500).consistency(Consistency::Stale);
        let first = limited.next_page().await.unwrap().unwrap();
        let second = limited.next_page().await.unwrap().unwrap();
        assert_eq!((first.pairs().len(), second.pairs().len()), (1024, 476));
        assert!(limited.next_page().await.unwrap().is_none());
    });
}

#[test]
fn client__more_writes_than_may_be_pending_wait_for_room() {
    let cluster = Cluster::start(3, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    let handle = test_client.handle();
    test_client.run(async |client| {
        let put = |key: u32| {
            let client = client.clone();
            handle.spawn(async move { client.put(&key.to_be_bytes(), b"value").await })
        };
        for put in (0..5 * PENDING_WRITES_MAX as u32).map(put).collect::<Vec<_>>() {
            assert!(!put.await.unwrap().replaced, "it was applied twice");
        }
    });
    let status = cluster.view(0).unwrap().status;
    assert_eq!(status.sessions, 1, "they share one session");
}

#[test]
fn client__a_write_that_is_dropped_holds_nobody_up() {
    let cluster = Cluster::start(1, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    test_client.run(async |client| {
        client.put(b"first", b"value").await.unwrap();
        let hasty = client.within(Duration::ZERO);
        for _ in 0..3 * PENDING_WRITES_MAX {
            let error = hasty.put(b"key", b"value").await.unwrap_err();
            assert_eq!(error.certainty(), Certainty::NotApplied, "{error}");
        }
    });
    let handle = test_client.handle();
    for _ in 0..3 * PENDING_WRITES_MAX {
        let client = test_client.client.clone();
        // Polled at least once, and then dropped.
        let put = async move { client.put(b"key", b"value").await.map(drop) };
        let given_up = handle.timeout(Duration::ZERO, put);
        test_client.run(async |_| drop(given_up.await));
    }
    test_client.run(async |client| client.put(b"last", b"value").await.unwrap());
}

/// Writers that increment a key each by compare and set. After a write that was applied twice or lost, the next would
/// report a mismatch.
struct Writers {
    acknowledged: Rc<Cell<u64>>,
    stop: Rc<Cell<bool>>,
    /// Each returns the number of its increments.
    tasks: Vec<Task<u64>>,
}

const WRITERS: u64 = 40;

impl Writers {
    fn start(test_client: &TestClient) -> Self {
        let (acknowledged, stop) = (Rc::<Cell<u64>>::default(), Rc::<Cell<bool>>::default());
        let write = |writer: u64| {
            let client = test_client.client.clone();
            let (acknowledged, stop) = (Rc::clone(&acknowledged), Rc::clone(&stop));
            test_client.handle().spawn(async move {
                let key = writer.to_be_bytes();
                let (mut count, mut last) = (0u64, None);
                while !stop.get() {
                    let expected = last.map_or(Expected::Absent, Expected::Revision);
                    match client.cas(&key, expected, &(count + 1).to_le_bytes()).await.unwrap() {
                        Cas::Done { revision } => last = Some(revision),
                        other => panic!("{key:?}: {count} {last:?} {other:?}"),
                    }
                    count += 1;
                    acknowledged.set(acknowledged.get() + 1);
                }
                count
            })
        };
        let tasks = (0..WRITERS).map(write).collect();
        Self { acknowledged, stop, tasks }
    }

    fn run_for(&self, test_client: &mut TestClient, writes: u64) {
        let goal = self.acknowledged.get() + writes;
        test_client.run_until("writes go on", || self.acknowledged.get() >= goal);
    }

    /// Ends the writers, and checks that the store has their counts.
    fn check(self, test_client: &mut TestClient) {
        self.stop.set(true);
        test_client.run(async |client| {
            for (writer, task) in (0u64..).zip(self.tasks) {
                let count = task.await;
                let value = client.get(&writer.to_be_bytes()).await.unwrap().unwrap();
                assert_eq!(number(&value), count);
            }
        });
    }
}

#[test]
fn client__a_leader_that_is_killed_loses_nothing_and_doubles_nothing() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    let writers = Writers::start(&test_client);
    for _ in 0..3 {
        writers.run_for(&mut test_client, 20 * WRITERS);
        let leader = cluster.wait_for_leader();
        cluster.kill(leader);
        writers.run_for(&mut test_client, 20 * WRITERS);
        cluster.restart(leader);
        cluster.wait_for_voters(3, leader);
    }
    writers.check(&mut test_client);
    cluster.wait_for_equal_digests();
}

/// Attempts time out early, and many are applied nevertheless.
#[test]
fn client__what_is_sent_again_is_applied_once() {
    let cluster = Cluster::start(3, Options::default());
    let mut config = KvClientConfig::default();
    config.timeout = TEST_TIMEOUT;
    config.attempt_timeout = Duration::from_micros(50);
    let mut test_client = TestClient::with_config(cluster.addresses(), config);
    let writers = Writers::start(&test_client);
    for round in 0.. {
        assert!(round < 1000, "no write has come twice");
        writers.run_for(&mut test_client, 200);
        let entries = cluster.view(cluster.wait_for_leader()).unwrap().status.commit;
        // The entries are the writes, their repetitions, a few of elections, and the session.
        if entries > writers.acknowledged.get() + WRITERS + 200 {
            break;
        }
    }
    writers.check(&mut test_client);
}

/// A server that leaves the first membership change unanswered, and refuses all later ones.
fn refuse_all_but_the_first(stop: &AtomicBool, address: &Sender<SocketAddr>) {
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
    let mut endpoint = nexus.endpoint(EndpointConfig::default()).unwrap();
    let mut first = None;
    endpoint.on(methods::MEMBER, move |_, cx, request| {
        if first.is_none() {
            let (responder, handled) = request.defer(cx);
            first = Some(responder);
            return handled;
        }
        let (certainty, reason) = (Certainty::NotApplied, "another change is under way");
        let reply = AdminReply::Refused(Refusal::Unavailable { certainty, reason }).to_vec();
        request.reply(cx, &reply)
    });
    address.send(nexus.local_addr().unwrap()).unwrap();
    while !stop.load(Ordering::Relaxed) {
        endpoint.run_for(Duration::from_millis(1), |_, _| false);
    }
}

#[test]
fn client__a_change_is_not_refused_for_an_earlier_copy_of_itself() {
    let stop = AtomicBool::new(false);
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| refuse_all_but_the_first(&stop, &tell));
        let mut config = KvClientConfig::default();
        (config.timeout, config.attempt_timeout) = (TEST_TIMEOUT, Duration::from_millis(50));
        let mut test_client = TestClient::with_config([told.recv().unwrap()], config);
        let [first, second] = [1, 2]
            .map(|node| test_client.run(async move |client| client.remove_member(node).await));
        stop.store(true, Ordering::Relaxed);
        // The first change still waits for its answer.
        assert!(matches!(first, Err(KvError::Unknown { .. })), "{first:?}");
        assert!(matches!(second, Err(KvError::Refused(_))), "{second:?}");
    });
}

#[test]
fn client__leadership_is_handed_over_and_followed() {
    let cluster = Cluster::start(3, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    test_client.run(async |client| client.put(b"key", b"value").await.unwrap());
    let leader = cluster.wait_for_leader();
    let next = (leader + 1) % 3;
    test_client.run(async |client| {
        client.transfer(next as u16 + 1).await.unwrap();
        let status = client.status(cluster.addresses()[next]).await.unwrap();
        assert_eq!((status.node, status.role), (next as u16 + 1, Role::Leader));
        client.put(b"key", b"other").await.unwrap();
        let error = client.transfer(9).await.unwrap_err();
        assert_eq!(error, KvError::Refused("that node is no voter".to_owned()));
    });
}

#[test]
fn client__leadership_is_not_handed_to_a_replica_that_is_gone() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    test_client.run(async |client| client.put(b"key", b"value").await.unwrap());
    let leader = cluster.wait_for_leader();
    let gone = (leader + 1) % 3;
    cluster.kill(gone);
    test_client.run(async |client| {
        let hasty = client.within(Duration::from_millis(100));
        let error = hasty.transfer(gone as u16 + 1).await.unwrap_err();
        // On a busy machine the time may be over before the request has left.
        assert!(matches!(error, KvError::Unknown { .. } | KvError::Timeout { .. }), "{error}");
        // The leader gives the handover up, and serves on.
        client.put(b"key", b"other").await.unwrap();
        client.transfer(leader as u16 + 1).await.unwrap();
    });
}

/// A snapshot counts as applied in the next election, too, without another entry in between.
#[test]
fn client__leadership_goes_to_a_replica_that_has_nothing_but_a_snapshot() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    test_client.run(async |client| client.put(b"key", b"value").await.unwrap());
    let successor = (cluster.wait_for_leader() + 1) % 3;
    cluster.kill(successor);
    cluster.restart(successor);
    cluster.wait_for_voters(3, successor);
    test_client.run(async |client| {
        client.transfer(successor as u16 + 1).await.unwrap();
        client.put(b"key", b"other").await.unwrap();
    });
    assert_eq!(cluster.wait_for_leader(), successor);
}

/// The log's beginning is gone: the added node gets a snapshot in several chunks, and the log is compacted while it does.
#[test]
fn client__a_node_is_added_and_another_removed() {
    let mut cluster = Cluster::start(3, Options { log_entries_max: 40, ..Options::default() });
    let mut test_client = TestClient::new(cluster.addresses());
    let put = async |client: &KvClient, number: u32| {
        client.put(&number.to_be_bytes(), &[number as u8; 64 << 10]).await.unwrap();
    };
    test_client.run(async |client| {
        for number in 0..60 {
            put(&client, number).await;
        }
    });
    let address = cluster.reserve();
    test_client.run(async |client| client.add_member(4, address).await.unwrap());
    cluster.restart(3);
    test_client.run(async |client| {
        for number in 60..120 {
            put(&client, number).await;
        }
    });
    cluster.wait_for_voters(4, 3);
    cluster.wait_for_equal_digests();
    let gone = (cluster.wait_for_leader() + 1) % 3;
    let number = gone as u16 + 1;
    let removed = test_client.run(async |client| client.remove_member(number).await);
    assert!(removed.unwrap(), "it was a member");
    cluster.kill(gone);
    cluster.wait_for_voters(3, 3);
    let client = test_client.client.clone();
    test_client.run_until("the members are known", || client.addresses().contains(&address));
    test_client.run(async |client| {
        assert!(!client.remove_member(number).await.unwrap(), "it is gone");
        client.transfer(4).await.unwrap();
        let value = client.get(&100u32.to_be_bytes()).await.unwrap().unwrap();
        assert_eq!(*value, [100; 64 << 10]);
    });
}

#[test]
fn client__one_address_is_enough_to_learn_of_the_others() {
    let mut cluster = Cluster::start(3, Options::default());
    let leader = cluster.wait_for_leader();
    let follower = (leader + 1) % 3;
    let mut test_client = TestClient::new([cluster.addresses()[follower]]);
    test_client.run(async |client| client.put(b"key", b"value").await.unwrap());
    let client = test_client.client.clone();
    test_client.run_until("all are known", || client.addresses().len() == 3);
    // The others serve when the only named replica is gone.
    cluster.kill(follower);
    test_client.run(async |client| client.put(b"key", b"value").await.unwrap());
}

#[test]
fn client__without_a_majority_the_time_ends() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    test_client.run(async |client| client.put(b"key", b"value").await.unwrap());
    let leader = cluster.wait_for_leader();
    cluster.kill((leader + 1) % 3);
    cluster.kill((leader + 2) % 3);
    test_client.run(async |client| {
        let hasty = client.within(Duration::from_millis(300));
        let write = hasty.put(b"key", b"other").await.unwrap_err();
        assert!(matches!(write, KvError::Timeout { .. } | KvError::Unknown { .. }), "{write}");
        let read = hasty.get(b"key").await.unwrap_err();
        assert!(matches!(read, KvError::Timeout { .. }), "{read}");
        let stale = client.get_with(b"key", Consistency::Stale).await.unwrap().unwrap();
        assert!(matches!(&stale[..], b"value" | b"other"));
        // Once the leader has lost its followers, the error states the cause.
        let why = "no leader: 1 of 3 servers can be called";
        let says_why = async || {
            let [write, read] =
                [hasty.put(b"key", b"other").await.map(drop), hasty.get(b"key").await.map(drop)];
            [write, read].iter().all(|error| error.as_ref().unwrap_err().to_string().contains(why))
        };
        while !says_why().await {}
        let gone = hasty.status(cluster.addresses()[(leader + 1) % 3]).await.unwrap_err();
        assert!(matches!(gone, KvError::Unavailable(_) | KvError::Timeout { .. }), "{gone}");
    });
}

#[test]
fn client__a_session_that_the_cluster_has_forgotten_is_opened_anew() {
    let cluster = Cluster::start(1, Options::default());
    let mut test_client = TestClient::new(cluster.addresses());
    let first = test_client.run(async |client| client.put(b"key", b"one").await.unwrap());
    // Opens enough sessions to end the client's session.
    let (handle, address) = (test_client.handle(), cluster.addresses()[0]);
    test_client.run(async |_| {
        let session = handle.connect(address).await.unwrap();
        let command = Command::OpenSession.to_vec();
        let mut calls = Parallel::new(256);
        for number in 0..SESSIONS_MAX as u64 {
            calls.has_room().await;
            calls.push(number, session.call(methods::WRITE, &command).started());
        }
        while let Some((_, answer)) = calls.next().await {
            let answer = answer.unwrap();
            assert!(matches!(WriteReply::decode(&answer), Ok(WriteReply::Applied(_))));
        }
    });
    // No write was outstanding: the client knows that the old session did not apply the second put.
    let second = test_client.run(async |client| client.put(b"key", b"two").await.unwrap());
    assert!(second.replaced);
    assert!(second.revision > first.revision + SESSIONS_MAX as u64, "a session was opened for it");
}

#[test]
fn client__any_thread_has_it() {
    let cluster = Cluster::start(3, Options::default());
    let config = KvClientConfig::default();
    let client = wait(KvClient::connect(Client::builder(), cluster.addresses(), config)).unwrap();
    let client = client.within(TEST_TIMEOUT);
    std::thread::scope(|scope| {
        for thread in 1..4 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..20 {
                    let put = wait(client.put(&[thread], &[round])).unwrap();
                    let value = wait(client.get(&[thread])).unwrap().unwrap();
                    assert_eq!((&value[..], value.revision()), (&[round][..], put.revision));
                    let expected = Expected::Revision(put.revision);
                    let cas = wait(client.cas(&[thread], expected, &[round])).unwrap();
                    assert!(matches!(cas, Cas::Done { .. }));
                }
                assert!(wait(client.delete(&[thread])).unwrap());
            });
        }
    });
    assert_eq!(cluster.view(0).unwrap().status.sessions, 1, "they share one session");
}

#[test]
fn client__an_endpoint_that_goes_away_ends_its_operations() {
    let test_client = TestClient::new([SocketAddr::from(([127, 0, 0, 1], 9))]);
    let client = test_client.client.clone();
    let cx = &mut Context::from_waker(Waker::noop());
    let mut before = Box::pin(client.put(b"key", b"value"));
    assert!(before.as_mut().poll(cx).is_pending());
    drop(test_client);
    for put in [before, Box::pin(client.put(b"key", b"value"))] {
        let error = wait(put).unwrap_err();
        assert!(matches!(error, KvError::Unavailable(_)), "{error}");
    }
}
