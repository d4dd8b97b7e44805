//! Watches, from real replicas over loopback.

use std::time::Duration;

use petrel_kv::client::{RevisionChanges, Watch};
use petrel_kv::command::{BatchBuffer, Op};
use petrel_kv::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use petrel_kv::{KvClient, KvError};

use crate::common::{Cluster, Options, TestClient};

/// Key and value of a change, for comparison.
type Seen = (Vec<u8>, Option<Vec<u8>>);

fn seen(changes: &RevisionChanges) -> Vec<Seen> {
    changes.iter().map(|it| (it.key.to_vec(), it.value.map(<[u8]>::to_vec))).collect()
}

fn put(key: &[u8], value: &[u8]) -> Seen {
    (key.to_vec(), Some(value.to_vec()))
}

fn gone(key: &[u8]) -> Seen {
    (key.to_vec(), None)
}

async fn next(watch: &mut Watch) -> (u64, Vec<Seen>) {
    let changes = watch.next().await.unwrap();
    (changes.revision(), seen(&changes))
}

#[test]
fn watch__has_each_change_of_its_range_once_and_in_order() {
    let cluster = Cluster::start(3, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    client.run(async |client: KvClient| {
        client.put(b"b", b"before").await.unwrap();
        let begin = client.revision().await.unwrap();
        let mut all = client.watch(b"", None).since(begin + 1);
        let mut prefix = client.watch_prefix(b"b").since(begin + 1);
        let mut key = client.watch_key(b"b").since(begin + 1);

        let first = client.put(b"b", b"1").await.unwrap().revision;
        assert_eq!(next(&mut key).await, (first, vec![put(b"b", b"1")]));
        let second = client.put(b"bb", b"2").await.unwrap().revision;
        client.delete(b"c").await.unwrap();
        let mut batch = BatchBuffer::default();
        batch.push(&Op::Put { key: b"c", value: b"3" }).unwrap();
        batch.push(&Op::Delete { key: b"b" }).unwrap();
        batch.push(&Op::Delete { key: b"nothing" }).unwrap();
        client.batch(&batch).await.unwrap();
        let lease = client.grant(Duration::from_secs(3_600)).await.unwrap();
        client.put_leased(b"b", b"4", lease).await.unwrap();
        client.put_leased(b"a", b"5", lease).await.unwrap();
        assert_eq!(client.revoke(lease).await.unwrap(), Some(2));

        let (third, changes) = {
            assert_eq!(next(&mut all).await, (first, vec![put(b"b", b"1")]));
            assert_eq!(next(&mut all).await, (second, vec![put(b"bb", b"2")]));
            next(&mut all).await
        };
        assert_eq!(changes, [put(b"c", b"3"), gone(b"b")], "a batch is one revision");
        let (fourth, _) = next(&mut all).await;
        assert_eq!(next(&mut all).await.1, [put(b"a", b"5")]);
        let (last, changes) = next(&mut all).await;
        assert_eq!(changes, [gone(b"a"), gone(b"b")], "the end of a lease is one revision");
        let expected = [
            (second, vec![put(b"bb", b"2")]),
            (third, vec![gone(b"b")]),
            (fourth, vec![put(b"b", b"4")]),
            (last, vec![gone(b"b")]),
        ];
        assert_eq!(next(&mut prefix).await, (first, vec![put(b"b", b"1")]));
        for (place, expected) in expected.into_iter().enumerate() {
            assert_eq!(next(&mut prefix).await, expected);
            if place > 0 {
                assert_eq!(next(&mut key).await, expected);
            }
        }
        assert_eq!(key.revision(), Some(last));
    });
}

#[test]
fn watch__a_lease_that_ends_by_itself_is_a_deletion() {
    let cluster = Cluster::start(1, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    client.run(async |client: KvClient| {
        let mut watch = client.watch_key(b"key").since(1);
        let put = client.put_for(b"key", b"v", Duration::from_secs(2)).await.unwrap();
        assert_eq!(next(&mut watch).await.0, put.revision);
        let (end, changes) = next(&mut watch).await;
        assert_eq!(changes, [gone(b"key")]);
        assert!(end > put.revision && client.get(b"key").await.unwrap().is_none());
    });
}

#[test]
fn watch__goes_on_over_changes_of_the_leader_and_ends_of_replicas() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    let mut watch = client.client.watch_prefix(b"n").since(1);
    let mut written = Vec::new();
    for round in 0..4u32 {
        let leader = cluster.wait_for_leader();
        for number in 0..50u32 {
            let key = format!("n{number}");
            let value = (round * 50 + number).to_le_bytes();
            let revision = client.put(key.as_bytes(), &value).revision;
            written.push((revision, vec![put(key.as_bytes(), &value)]));
            client.put(b"other", &value);
        }
        let wanted = written.len() - 50 * round as usize - 25;
        for _ in 0..wanted {
            let found = client.run(async |_| next(&mut watch).await);
            assert_eq!(found, written.remove(0));
        }
        match round % 2 {
            0 => {
                cluster.kill(leader);
                cluster.restart(leader);
                cluster.wait_for_voters(3, leader);
            }
            _ => {
                let to = (leader as u16 + 1) % 3 + 1;
                client.run(async |client: KvClient| client.transfer(to).await).unwrap();
            }
        }
    }
    for expected in written {
        assert_eq!(client.run(async |_| next(&mut watch).await), expected);
    }
}

#[test]
fn watch__a_revision_in_several_messages_is_one_piece() {
    let cluster = Cluster::start(1, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    client.run(async |client: KvClient| {
        let mut watch = client.watch(b"", None).since(1);
        let longest = [7; KEY_BYTES_MAX];
        let mut of_key = client.watch_key(&longest).since(1);
        let mut batch = BatchBuffer::default();
        let value = vec![1; 100_000];
        for number in 0..15u8 {
            batch.push(&Op::Put { key: &[number], value: &value }).unwrap();
        }
        batch.push(&Op::Put { key: &longest, value: b"v" }).unwrap();
        client.batch(&batch).await.unwrap();
        let (revision, changes) = next(&mut watch).await;
        assert_eq!(changes.len(), 16);
        assert!((0..15u8).all(|number| changes[usize::from(number)] == put(&[number], &value)));
        assert_eq!(next(&mut of_key).await, (revision, vec![put(&longest, b"v")]));
        let large = vec![2; VALUE_BYTES_MAX];
        client.put(b"large", &large).await.unwrap();
        assert_eq!(next(&mut watch).await.1, [put(b"large", &large)]);
    });
}

#[test]
fn watch__of_a_revision_that_is_gone_says_the_first_that_is_there() {
    let options = Options { history_bytes_max: 2_000, ..Options::default() };
    let cluster = Cluster::start(3, options);
    let mut client = TestClient::new(cluster.addresses());
    client.run(async |client: KvClient| {
        let mut last = 0;
        for number in 0..100u32 {
            last = client.put(b"key", &number.to_le_bytes()).await.unwrap().revision;
        }
        cluster.wait_for_equal_digests();
        let mut watch = client.watch_key(b"key").since(1);
        let first = match watch.next().await {
            Err(KvError::Compacted { from: 1, first }) => first,
            other => panic!("{other:?}"),
        };
        assert!((2..=last).contains(&first), "{first}");
        let mut watch = client.watch_key(b"key").since(first);
        assert_eq!(watch.next().await.unwrap().revision(), first);
    });
}

/// Its windows fill, the history goes on, and nothing waits for the watcher.
#[test]
fn watch__a_reader_that_is_too_slow_ends_and_delays_nothing() {
    let options = Options { history_bytes_max: 1 << 20, ..Options::default() };
    let cluster = Cluster::start(1, options);
    let mut client = TestClient::new(cluster.addresses());
    let mut slow = client.client.watch_prefix(b"k").since(1);
    let value = vec![7; 50_000];
    client.run(async |client: KvClient| {
        client.put(b"k0", &value).await.unwrap();
        assert_eq!(next(&mut slow).await.1, [put(b"k0", &value)]);
        let mut written = 1;
        loop {
            client.put(b"k1", &value).await.unwrap();
            written += 1;
            let status = client.status(cluster.addresses()[0]).await.unwrap();
            let overtaken = ("watchers_overtaken".into(), 1);
            if status.counters.contains(&overtaken) {
                break;
            }
            assert!(written < 10_000);
        }
        let mut other = client.watch_key(b"k9").since(client.revision().await.unwrap() + 1);
        client.put(b"k9", b"v").await.unwrap();
        assert_eq!(next(&mut other).await.1, [put(b"k9", b"v")]);
        let mut read = 1;
        let error = loop {
            match slow.next().await {
                Ok(_) => read += 1,
                Err(error) => break error,
            }
        };
        assert!(read < written, "{read} of {written}");
        assert!(matches!(error, KvError::Compacted { .. }), "{error}");
    });
}

#[test]
fn watch__bad_ranges_and_too_many_watchers_are_refused() {
    let options = Options { watchers_max: 1, ..Options::default() };
    let cluster = Cluster::start(1, options);
    let mut client = TestClient::new(cluster.addresses());
    cluster.wait_for_leader();
    client.run(async |client: KvClient| {
        for mut watch in [
            client.watch(b"b", Some(b"a")),
            client.watch(b"b", Some(b"b")),
            client.watch_key(b""),
            client.watch_key(&[1; KEY_BYTES_MAX + 1]),
        ] {
            assert!(matches!(watch.next().await, Err(KvError::InvalidArgument(_))));
        }
        let mut first = client.watch_key(b"a").since(1);
        client.put(b"a", b"1").await.unwrap();
        first.next().await.unwrap();
        let hasty = client.within(Duration::from_secs(2));
        let refused = hasty.watch_key(b"a").since(1).next().await.unwrap_err();
        assert!(refused.to_string().contains("1 watchers"), "{refused}");
        drop(first);
        let mut second = client.watch_key(b"a").since(1);
        assert_eq!(next(&mut second).await.1, [put(b"a", b"1")]);
    });
}
