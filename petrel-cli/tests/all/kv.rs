//! The replicated key-value store, as processes.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use crate::common::{
    Server, command, free_address, petrel, record, records, stderr, stdout, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

/// Replica processes; killed on drop if they still run.
pub(crate) struct Cluster {
    addresses: Vec<String>,
    nodes: Vec<Option<Server>>,
    /// The parent of the replicas' log directories; `None` for logs in memory.
    data: Option<PathBuf>,
}

impl Cluster {
    pub(crate) fn start(count: usize, data: Option<PathBuf>) -> Self {
        let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
        let nodes = (0..count).map(|_| None).collect();
        let mut cluster = Self { addresses, nodes, data };
        (1..=count).for_each(|node| cluster.start_node(node));
        cluster
    }

    fn peers(&self) -> String {
        let peers: Vec<_> =
            (1..).zip(&self.addresses).map(|(node, at)| format!("{node}={at}")).collect();
        peers.join(",")
    }

    fn start_node(&mut self, node: usize) {
        let peers = self.peers();
        let data = self.data.as_ref().map(|data| data.join(node.to_string()));
        let id = node.to_string();
        let mut arguments =
            vec!["kv", "serve", "--json", "--idle", "block", "--id", &id, "--peers", &peers];
        // On a busy machine, processes may stop for long.
        arguments.extend(["--election", "1s", "--log", "error", "--drain", "120s"]);
        if let Some(data) = &data {
            arguments.extend(["--data", data.to_str().unwrap()]);
        }
        self.nodes[node - 1] = Some(serve(&arguments));
    }

    fn signal(&self, node: usize, signal: Signal) {
        self.nodes[node - 1].as_ref().unwrap().signal(signal);
    }

    /// Waits for a node's end after a request to end; returns the exit code.
    fn wait(&mut self, node: usize) -> Option<i32> {
        self.nodes[node - 1].take().unwrap().finish().0
    }

    fn kill(&mut self, node: usize) {
        self.signal(node, Signal::KILL);
        assert_eq!(self.wait(node), None, "ended by the signal");
    }

    /// Runs `petrel kv` with these arguments.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let servers = self.addresses.join(",");
        let arguments = [&["kv"], words, &["--json", "--servers", &servers]].concat();
        let arguments = [&arguments[..], &["--timeout", "120s"]].concat();
        petrel(&arguments)
    }

    pub(crate) fn ok(&self, words: &[&str]) -> Value {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
        record(&output)
    }

    /// Runs a change of the membership. A replica that joins becomes a learner and then a voter by changes of its own;
    /// the leader refuses an operator's change beside one of them, so the command is repeated.
    fn change_members(&self, words: &[&str]) -> Value {
        let mut output = None;
        let made = wait_until(|| {
            let run = self.run(words);
            let is_refused = stderr(&run).contains("another change is under way");
            output = Some(run);
            !is_refused
        });
        let output = output.unwrap();
        assert!(made && output.status.code() == Some(0), "{words:?}: {output:?}");
        record(&output)
    }

    fn status(&self) -> Vec<Value> {
        records(&self.run(&["status"])).into_iter().filter(|it| it["event"].is_null()).collect()
    }

    /// Returns the leader, as soon as there is one.
    fn leader(&self) -> usize {
        let mut leader = None;
        let found = wait_until(|| {
            leader = self.status().iter().find(|it| it["role"] == "leader").map(number);
            leader.is_some()
        });
        assert!(found, "nobody leads: {:?}", self.status());
        leader.unwrap()
    }

    fn wait_for_voters(&self, expected: &[usize]) {
        let is_so = || {
            let status = self.status();
            let mut voters: Vec<_> =
                status.iter().filter(|it| it["vote"] == "voter").map(number).collect();
            voters.sort_unstable();
            voters == expected && status.iter().any(|it| it["role"] == "leader")
        };
        assert!(wait_until(is_so), "{:?}", self.status());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        if let Some(data) = &self.data {
            let _ = std::fs::remove_dir_all(data);
        }
    }
}

fn number(status: &Value) -> usize {
    status["node"].as_u64().unwrap() as usize
}

/// Starts a replica, and waits until it listens.
fn serve(arguments: &[&str]) -> Server {
    Server::of("kv", command(arguments).stderr(Stdio::inherit()).spawn().unwrap())
}

#[test]
fn kv__each_command() {
    let cluster = Cluster::start(3, None);
    assert_eq!(cluster.ok(&["put", "colour", "grey"])["replaced"], false);
    let entry = cluster.ok(&["get", "colour"]);
    assert_eq!((&entry["found"], &entry["value"]), (&true.into(), &"grey".into()));
    let revision = entry["revision"].to_string();
    assert_eq!(cluster.ok(&["cas", "colour", "white", "--revision", &revision])["done"], true);
    let mismatch = cluster.run(&["cas", "colour", "black", "--expect", "grey"]);
    assert_eq!(mismatch.status.code(), Some(1));
    assert_eq!(record(&mismatch)["done"], false);
    cluster.ok(&["put", "00ff", "0a", "--hex"]);
    let scanned = records(&cluster.run(&["scan"]));
    assert_eq!((&scanned[0]["key_hex"], &scanned[0]["value"]), (&"00ff".into(), &"\n".into()));
    assert_eq!((&scanned[1]["key"], &scanned[1]["value"]), (&"colour".into(), &"white".into()));
    assert_eq!(records(&cluster.run(&["scan", "col", "--prefix"])).len(), 1);
    assert_eq!(cluster.ok(&["delete", "colour"])["existed"], true);
    let missing = cluster.run(&["get", "colour"]);
    assert_eq!((missing.status.code(), &record(&missing)["found"]), (Some(1), &false.into()));
    assert_eq!(cluster.status().len(), 3);
}

#[test]
fn kv__leases() {
    let mut cluster = Cluster::start(3, None);
    let lease = cluster.ok(&["lease", "grant", "60min"])["lease"].to_string();
    cluster.ok(&["put", "worker", "here", "--lease", &lease]);
    assert_eq!(cluster.ok(&["cas", "lock", "me", "--absent", "--lease", &lease])["done"], true);
    assert_eq!(cluster.ok(&["lease", "keep-alive", &lease, "--once"])["ttl_ms"], 3_600_000);
    // A lease and its keys survive the leader.
    let killed = cluster.leader();
    cluster.kill(killed);
    let state = cluster.ok(&["lease", "ttl", &lease]);
    assert_eq!(
        (&state["keys"], state["names"].to_string()),
        (&2.into(), r#"["lock","worker"]"#.into())
    );
    assert!((1..=3_600_000).contains(&state["left_ms"].as_u64().unwrap()), "{state}");
    let listed = records(&cluster.run(&["lease", "list"]));
    assert_eq!((listed.len(), listed[0]["lease"].to_string()), (1, lease.clone()));
    assert_eq!(cluster.ok(&["lease", "revoke", &lease])["keys"], 2);
    assert_eq!(cluster.run(&["get", "worker"]).status.code(), Some(1));
    for words in [&["lease", "ttl", &lease][..], &["put", "k", "v", "--lease", &lease]] {
        let ended = cluster.run(words);
        assert_eq!(
            (ended.status.code(), &record(&ended)["status"]),
            (Some(1), &"NOT_FOUND".into())
        );
    }
    let refused = cluster.run(&["lease", "grant", "1ms"]);
    assert!(stderr(&refused).contains("time of the lease is out of range"), "{refused:?}");
    // A lease of its own, and no keep-alive.
    cluster.ok(&["put", "token", "4711", "--ttl", "200ms"]);
    assert!(wait_until(|| cluster.run(&["get", "token"]).status.code() == Some(1)));
    assert_eq!(records(&cluster.run(&["lease", "list"])).len(), 0);
}

#[test]
fn kv__watches() {
    let mut cluster = Cluster::start(3, None);
    for (key, value) in [("colour", "grey"), ("size", "7"), ("colour", "white")] {
        cluster.ok(&["put", key, value]);
    }
    cluster.ok(&["delete", "colour"]);
    let words = ["--from", "1", "--limit", "3"];
    let watch = |cluster: &Cluster, range: &[&str]| {
        records(&cluster.run(&[&["watch"], range, &words[..]].concat()))
    };
    let changes = watch(&cluster, &["colour"]);
    let seen: Vec<_> = changes.iter().map(|it| (&it["kind"], &it["key"], &it["value"])).collect();
    let (put, delete, colour) = ("put".into(), "delete".into(), "colour".into());
    let (grey, white) = ("grey".into(), "white".into());
    assert_eq!(
        seen,
        [(&put, &colour, &grey), (&put, &colour, &white), (&delete, &colour, &Value::Null)]
    );
    assert_eq!(watch(&cluster, &["--prefix", "col"]), changes);
    assert_eq!(watch(&cluster, &["--range", "a", "d"]), changes);
    let killed = cluster.leader();
    cluster.kill(killed);
    assert_eq!(watch(&cluster, &["colour"]), changes);
    let refused = cluster.run(&["watch", "--range", "b", "a"]);
    assert!(stderr(&refused).contains("the range is empty"), "{refused:?}");
}

#[test]
fn kv__goes_on_when_the_leader_is_killed_and_takes_it_back() {
    let mut cluster = Cluster::start(3, None);
    cluster.ok(&["put", "before", "1"]);
    let killed = cluster.leader();
    cluster.kill(killed);
    cluster.ok(&["put", "after", "2"]);
    cluster.start_node(killed);
    cluster.wait_for_voters(&[1, 2, 3]);
    // The node has all entries again, and may lead.
    cluster.ok(&["transfer", &killed.to_string()]);
    assert_eq!(cluster.ok(&["get", "before"])["value"], "1");
    assert_eq!(cluster.ok(&["get", "after"])["value"], "2");
    // Before it ends, the node hands leadership over.
    cluster.signal(killed, Signal::TERM);
    assert_eq!(cluster.wait(killed), Some(0));
    assert_ne!(cluster.leader(), killed);
    cluster.ok(&["put", "end", "3"]);
}

#[test]
fn kv__a_node_is_replaced() {
    let mut cluster = Cluster::start(3, None);
    cluster.ok(&["put", "key", "value"]);
    let gone = cluster.leader() % 3 + 1;
    cluster.kill(gone);
    let address = free_address();
    cluster.ok(&["member", "add", "4", &address]);
    cluster.addresses.push(address);
    cluster.nodes.push(None);
    cluster.start_node(4);
    let removed = cluster.change_members(&["member", "remove", &gone.to_string()]);
    assert_eq!((&removed["done"], &removed["node"]), (&"removed".into(), &gone.into()));
    let voters: Vec<_> = (1..=4).filter(|node| *node != gone).collect();
    cluster.wait_for_voters(&voters);
    cluster.ok(&["transfer", "4"]);
    assert_eq!(cluster.ok(&["get", "key"])["value"], "value");
    let refused = cluster.run(&["transfer", &gone.to_string()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("no voter"), "{refused:?}");
}

#[test]
fn kv__on_disk_all_may_be_killed_at_once() {
    let data = std::env::temp_dir().join(format!("petrel-kv-test-{}", std::process::id()));
    let mut cluster = Cluster::start(3, Some(data));
    cluster.ok(&["put", "key", "value"]);
    (1..=3).for_each(|node| cluster.kill(node));
    (1..=3).for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.ok(&["get", "key"])["value"], "value");
}

/// The old host of a replaced node comes back with its log.
#[test]
fn kv__a_replaced_replica_ends_with_a_word() {
    let data = std::env::temp_dir().join(format!("petrel-kv-replaced-{}", std::process::id()));
    let mut cluster = Cluster::start(3, Some(data.clone()));
    cluster.ok(&["put", "key", "value"]);
    let gone = cluster.leader() % 3 + 1;
    cluster.kill(gone);
    let (peers, id) = (cluster.peers(), gone.to_string());
    let (old, new) = (data.join(&id), data.join("moved"));
    std::fs::rename(&old, &new).unwrap();
    let before = std::mem::replace(&mut cluster.addresses[gone - 1], free_address());
    cluster.start_node(gone);
    cluster.wait_for_voters(&[1, 2, 3]);
    let arguments = ["kv", "serve", "--id", &id, "--peers", &peers, "--election", "200ms"];
    let output = petrel(&[&arguments[..], &["--data", new.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}, formerly at {before}");
    let word = format!("node {gone} is at {} now", cluster.addresses[gone - 1]);
    assert!(stderr(&output).contains(&word), "{output:?}");
}

#[test]
fn kv__at_the_bound_of_memory_reads_and_deletes_go_on() {
    let address = free_address();
    let peers = format!("1={address}");
    let arguments = ["kv", "serve", "--json", "--id", "1", "--peers", &peers, "--memory", "30KB"];
    let _server = serve(&arguments);
    let run = |words: &[&str]| petrel(&[&["kv"], words, &["--servers", &address]].concat());
    let value = "v".repeat(20_000);
    assert_eq!(run(&["put", "key", &value]).status.code(), Some(0));
    let refused = run(&["put", "other", "value"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("the store is full"), "{refused:?}");
    assert_eq!(run(&["get", "key"]).status.code(), Some(0));
    assert_eq!(run(&["delete", "key"]).status.code(), Some(0));
}

#[test]
fn kv__a_replica_that_cannot_begin_says_why() {
    for (arguments, reason) in [
        (&["--id", "4", "--peers", "1=127.0.0.1:9"][..], "--listen"),
        (&["--id", "1", "--peers", "1=0.0.0.0:9"], "no address by which others"),
        (&["--id", "1", "--peers", "1=127.0.0.1:9,2=127.0.0.1:10,2=127.0.0.1:11"], "twice"),
        (&["--id", "1", "--peers", "1=127.0.0.1:9", "--heartbeat", "1s"], "three times"),
        (&["--id", "1", "--peers", "1=192.0.2.1:9"], "insecure"),
    ] {
        let arguments = [&["kv", "serve"], arguments].concat();
        let output = petrel(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(reason), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn kv__absent_replicas_are_reported_in_time() {
    let address = free_address();
    let arguments = ["--servers", &address, "--timeout", "200ms", "--json"];
    for words in [&["put", "key", "value"][..], &["get", "key"], &["scan"], &["transfer", "2"]] {
        let output = petrel(&[&["kv"], words, &arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(record(&output)["status"], "DEADLINE_EXCEEDED", "{output:?}");
        assert!(stderr(&output).contains("nothing was done"), "{output:?}");
    }
    let status = petrel(&["kv", "status", "--servers", &address, "--timeout", "10s", "--json"]);
    assert_eq!(status.status.code(), Some(1));
    assert!(
        record(&status)["error"].as_str().unwrap().contains("no process listens"),
        "{status:?}"
    );
}
