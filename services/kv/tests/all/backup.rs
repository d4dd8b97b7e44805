//! Saves and restores between real clusters over loopback.

use petrel_kv::api::{Consistency, Pair};
use petrel_kv::backup::{Head, Reader, Writer};
use petrel_kv::client::{Batched, KvClient, KvError};
use petrel_kv::command::{BatchBuffer, Op};

use crate::common::{Cluster, Options, TestClient};

/// A key, its revision and its value.
type Owned = (Vec<u8>, u64, Vec<u8>);

/// Sets keys from `from` on, with values of 1 000 bytes.
async fn fill(client: &KvClient, keys: std::ops::Range<u32>) {
    for keys in (keys.start..keys.end).step_by(100).map(|from| from..keys.end.min(from + 100)) {
        let mut batch = BatchBuffer::default();
        for key in keys {
            batch.push(&Op::Put { key: &key.to_be_bytes(), value: &[7; 1_000] }).unwrap();
        }
        assert!(matches!(client.batch(&batch).await, Ok(Batched::Done { .. })));
    }
}

/// Saves everything, and calls `between` after each block.
async fn save(
    client: &KvClient,
    consistency: Consistency,
    mut between: impl AsyncFnMut(u64),
) -> Result<Vec<u8>, KvError> {
    let mut save = client.save(consistency).await?;
    let mut writer = Writer::new(Vec::new(), save.head()).unwrap();
    let mut block = 0;
    while let Some(saved) = save.next_block().await? {
        writer.add(&saved.pairs()).unwrap();
        block += 1;
        between(block).await;
    }
    Ok(writer.finish().unwrap())
}

async fn restore(client: &KvClient, file: &[u8]) -> Result<u64, KvError> {
    let mut reader = Reader::new(file).unwrap();
    let mut restore = client.restore(reader.head().revision).await?;
    while let Some(pairs) = reader.next_block().unwrap() {
        restore.add(pairs.iter()).await?;
    }
    restore.finish().await
}

async fn scan(client: &KvClient) -> Vec<Owned> {
    let (mut scan, mut found) = (client.scan(b"", None), Vec::new());
    while let Some(pair) = scan.next().await.unwrap() {
        found.push((pair.key, pair.revision, pair.value));
    }
    found
}

fn pairs_of(file: &[u8]) -> (Head, Vec<Owned>) {
    let (mut reader, mut found) = (Reader::new(file).unwrap(), Vec::new());
    let owned = |pair: Pair<'_>| (pair.key.to_vec(), pair.revision, pair.value.to_vec());
    while let Some(pairs) = reader.next_block().unwrap() {
        found.extend(pairs.iter().map(owned));
    }
    (reader.head(), found)
}

#[test]
fn backup__comes_back_in_an_empty_cluster_with_revisions() {
    let cluster = Cluster::start(3, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    let (file, all) = client.run(async |client| {
        fill(&client, 0..1_000).await;
        client.put(&7u32.to_be_bytes(), b"later").await.unwrap();
        let file = save(&client, Consistency::Linearizable, async |_| ()).await.unwrap();
        let refused = client.restore(9).await.unwrap_err();
        assert!(refused.to_string().contains("the cluster has keys"), "{refused}");
        (file, scan(&client).await)
    });
    drop(cluster);

    let mut cluster = Cluster::start(3, Options { log_entries_max: 20, ..Options::default() });
    let mut client = TestClient::new(cluster.addresses());
    client.run(async |client| {
        assert_eq!(restore(&client, &file).await.unwrap(), 1_000);
        assert_eq!(scan(&client).await, all);
        let revision = pairs_of(&file).0.revision;
        assert!(client.put(b"key", b"value").await.unwrap().revision > revision);
        assert!(client.restore(9).await.is_err());
    });
    // A replica that comes by a snapshot counts revisions as the others do.
    let lost = (cluster.wait_for_leader() + 1) % 3;
    cluster.kill(lost);
    for number in 0..50u32 {
        client.put(&number.to_be_bytes(), b"value");
    }
    cluster.restart(lost);
    cluster.wait_for_voters(3, lost);
    cluster.wait_for_equal_digests();
}

/// Each batch sets the first and the last key to the same number: at no moment do the two differ.
#[test]
fn save__is_one_moment_while_writes_go_on() {
    let cluster = Cluster::start(3, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    client.run(async |client| {
        fill(&client, 1..1_000).await;
        let write = async |number: u64| {
            let mut batch = BatchBuffer::default();
            for key in [0u32.to_be_bytes(), u32::MAX.to_be_bytes()] {
                batch.push(&Op::Put { key: &key, value: &number.to_be_bytes() }).unwrap();
            }
            client.batch(&batch).await.unwrap();
        };
        write(0).await;
        let before = client.put(&1u32.to_be_bytes(), b"now").await.unwrap().revision;
        let file = save(&client, Consistency::Linearizable, write).await.unwrap();
        let (head, pairs) = pairs_of(&file);
        assert_eq!((head.keys, pairs.len()), (1_001, 1_001));
        assert!(head.revision >= before, "it has what was answered before");
        assert!(pairs.iter().all(|(_, revision, _)| *revision <= head.revision));
        assert_eq!(pairs[0].2, pairs[1_000].2);
        assert!(scan(&client).await[0].1 > head.revision, "it was written meanwhile");

        let stale = save(&client, Consistency::Stale, async |_| ()).await.unwrap();
        assert_eq!(pairs_of(&stale).1.len(), 1_001);
        // Ended saves make room for others.
        for _ in 0..4 {
            save(&client, Consistency::Linearizable, async |_| ()).await.unwrap();
        }
    });
}

/// The replica that has the save no longer leads, and then is gone.
#[test]
fn save__goes_on_without_leadership_and_ends_with_the_replica() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    client.run(async |client| fill(&client, 0..1_000).await);
    let leader = cluster.wait_for_leader();
    let mut save = client.run(async |client| client.save(Consistency::Linearizable).await.unwrap());
    client.run(async |client| {
        save.next_block().await.unwrap().unwrap();
        client.transfer(((leader + 1) % 3) as u16 + 1).await.unwrap();
        save.next_block().await.unwrap().unwrap();
    });
    cluster.kill(leader);
    cluster.restart(leader);
    cluster.wait_for_voters(3, leader);
    let error = client.run(async |_| save.next_block().await.unwrap_err());
    assert!(error.to_string().contains("the save is lost"), "{error}");
}

#[test]
fn restore__goes_on_while_leaders_change_and_never_serves_a_part() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    let mut reported = client.run(async |client| client.restore(500).await.unwrap());
    let pairs = |from: u32| (from..from + 300).map(u32::to_be_bytes).collect::<Vec<_>>();
    let value = [5; 2_000];
    for round in 0..3 {
        let keys = pairs(300 * round);
        let part = keys.iter().map(|key| Pair { key, revision: 9, value: &value });
        client.run(async |client| {
            reported.add(part).await.unwrap();
            for error in [
                client.get(&keys[0]).await.unwrap_err(),
                client.put(b"key", b"value").await.unwrap_err(),
                client.get_with(&keys[0], Consistency::Stale).await.unwrap_err(),
                client.scan(b"", None).next().await.unwrap_err(),
                client.save(Consistency::Linearizable).await.unwrap_err(),
            ] {
                assert!(matches!(error, KvError::Refused(_)), "{error}");
                assert!(error.to_string().contains("being restored"), "{error}");
            }
        });
        let leader = cluster.wait_for_leader();
        cluster.kill(leader);
        cluster.restart(leader);
        cluster.wait_for_voters(3, leader);
    }
    client.run(async |client| {
        assert_eq!(reported.finish().await.unwrap(), 900);
        assert_eq!(scan(&client).await.len(), 900);
    });
    cluster.wait_for_equal_digests();
}

#[test]
fn restore__that_was_broken_off_is_begun_anew_or_abandoned() {
    let cluster = Cluster::start(1, Options::default());
    let mut client = TestClient::new(cluster.addresses());
    client.run(async |client| {
        let pair = |key| Pair { key, revision: 3, value: b"value" };
        let mut first = client.restore(9).await.unwrap();
        first.add([pair(b"a")]).await.unwrap();
        let mut second = client.restore(9).await.unwrap();
        let error = first.finish().await.unwrap_err();
        assert!(error.to_string().contains("another restore has begun"), "{error}");
        second.add([pair(b"b")]).await.unwrap();
        let error = second.add([pair(b"b")]).await.unwrap_err();
        assert!(matches!(error, KvError::InvalidArgument(_)), "{error}");
        drop(second);
        client.abandon_restore().await.unwrap();
        assert!(scan(&client).await.is_empty());
        client.put(b"key", b"value").await.unwrap();
        let error = client.restore(u64::MAX).await.unwrap_err();
        assert!(matches!(error, KvError::InvalidArgument(_)), "{error}");
    });
}
