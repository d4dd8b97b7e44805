//! The files of the replicated key-value store: save, restore, export and import.

use std::fs;

use serde_json::Value;

use crate::common::{record, records, stderr, stdout};
use crate::credentials::Folder;
use crate::kv::Cluster;

/// The scanned keys with their revisions and values.
fn scan(cluster: &Cluster) -> Vec<Value> {
    records(&cluster.run(&["scan"]))
}

#[test]
fn kv_files__a_saved_store_comes_back_with_its_revisions() {
    let folder = Folder::new("save");
    let file = folder.path("all.petrelkv");
    let cluster = Cluster::start(3, None);
    for (key, value) in [("colour", "grey"), ("empty", ""), ("colour", "white")] {
        cluster.ok(&["put", key, value]);
    }
    cluster.ok(&["put", "00ff", "0a", "--hex"]);
    let saved = cluster.ok(&["save", &file]);
    assert_eq!((&saved["keys"], &saved["bytes"]), (&3.into(), &19.into()));
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 1, "nothing unfinished is left");
    let refused = cluster.run(&["restore", &file]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("the cluster has keys"), "{refused:?}");
    let keys = scan(&cluster);
    drop(cluster);

    let cluster = Cluster::start(1, None);
    let whole = fs::read(&file).unwrap();
    let other = folder.path("other");
    let refuse = |bytes: &[u8], reason: &str| {
        fs::write(&other, bytes).unwrap();
        let refused = cluster.run(&["restore", &other]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains(reason), "{reason}: {refused:?}");
        assert!(scan(&cluster).is_empty(), "it serves");
    };
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    refuse(&flipped, "it is damaged after");
    refuse(&whole[..whole.len() - 17], "it is cut: 3 of its 3 keys are whole");
    refuse(b"{\"key\":\"a\",\"value\":\"b\"}\n", "it is not a file of `petrel kv save`");
    refuse(&[&whole[..8], &[7], &whole[9..]].concat(), "format 7");
    let missing = cluster.run(&["restore", &folder.path("missing")]);
    assert!(stderr(&missing).contains("missing: No such file"), "{missing:?}");

    let restored = cluster.ok(&["restore", &file]);
    assert_eq!(restored["revision"], saved["revision"]);
    assert_eq!(scan(&cluster), keys);
    let next = cluster.ok(&["put", "next", "value"]);
    assert!(next["revision"].as_u64() > saved["revision"].as_u64(), "{next}");
    cluster.ok(&["restore", "--abandon"]);
    assert_eq!(scan(&cluster).len(), 4, "there was none to abandon");
}

#[test]
fn kv_files__lines_are_exported_and_imported() {
    let folder = Folder::new("lines");
    let (first, second) = (folder.path("first.json"), folder.path("second.json"));
    let cluster = Cluster::start(1, None);
    let line = |number: u32| format!("{{\"key\":\"key {number:05}\",\"value\":\"{number}\"}}\n");
    let mut lines: String = (0..3_000).map(line).collect();
    // The last line of a key wins, even from another batch.
    lines +=
        "{\"key\":\"key 00007\",\"value\":\"later\"}\n\n{\"key_hex\":\"00ff\",\"value\":\"\\n\"}\n";
    fs::write(&first, lines).unwrap();
    let imported = cluster.ok(&["import", &first]);
    assert_eq!((&imported["keys"], &imported["bad_lines"]), (&3_002.into(), &0.into()));
    let status = records(&cluster.run(&["status"])).remove(0);
    assert!(status["sessions"].as_u64() < Some(8), "one session for all lines: {status}");
    assert_eq!(cluster.ok(&["get", "key 00007"])["value"], "later");

    let exported = cluster.ok(&["export", &second]);
    assert_eq!(exported["keys"], 3_001);
    let text = fs::read_to_string(&second).unwrap();
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found, scan(&cluster));
    assert_eq!(stdout(&cluster.run(&["export", "-"])), text);
    assert_eq!(cluster.ok(&["import", &second])["keys"], 3_001);

    let hex = folder.path("hex.json");
    cluster.ok(&["export", &hex, "--hex"]);
    assert!(fs::read_to_string(&hex).unwrap().starts_with("{\"key\":\"00ff\""));
    assert_eq!(cluster.ok(&["import", &hex, "--hex"])["keys"], 3_001);
}

#[test]
fn kv_files__bad_lines_are_named_by_number() {
    let folder = Folder::new("bad");
    let file = folder.path("bad.json");
    let cluster = Cluster::start(1, None);
    let long = "k".repeat(5_000);
    let lines = [
        "{\"key\":\"a\",\"value\":\"1\"}",
        "no JSON",
        "",
        "{\"key\":\"b\"}",
        &format!("{{\"key\":\"{long}\",\"value\":\"\"}}"),
        "{\"key\":\"c\",\"value\":\"3\"}",
    ];
    fs::write(&file, lines.join("\n")).unwrap();
    let output = cluster.run(&["import", &file]);
    assert_eq!(output.status.code(), Some(1));
    let found = record(&output);
    assert_eq!((&found["keys"], &found["bad_lines"]), (&2.into(), &3.into()));
    for text in ["line 2: expected", "line 4: it has neither value", "line 5: a key has 1 to 4096"]
    {
        assert!(stderr(&output).contains(text), "{text}: {output:?}");
    }
    assert_eq!(scan(&cluster).len(), 2);
}
