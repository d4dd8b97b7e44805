//! `petrel cert`, `petrel key` and `--credentials`: two processes that prove who they are.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::common::{Server, command, free_address, petrel, record, stderr, wait_until};

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("petrel-cli-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn succeed(arguments: &[&str]) -> std::process::Output {
    let output = petrel(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    output
}

#[test]
fn certificates__of_two_commands_let_two_processes_call() {
    let folder = Folder::new("certificates");
    let [authority, server, client] =
        ["authority", "server", "client"].map(|name| folder.path(name));
    succeed(&["cert", "ca", "--out", &authority]);
    succeed(&["cert", "issue", "localhost", "127.0.0.1", "--ca", &authority, "--out", &server]);
    let issue = ["cert", "issue", "--spiffe", "spiffe://test/client", "--ca", &authority];
    let issued = record(&succeed(&[&issue[..], &["--out", &client, "--json"]].concat()));
    let shown = record(&succeed(&["cert", "show", &client, "--json"]));
    assert_eq!(issued["fingerprint"], shown["fingerprint"]);
    assert!(shown["expires_at"].as_u64().unwrap() > 1_700_000_000, "{shown}");

    let serving = Server::start(&["--listen", "127.0.0.1:0", "--credentials", &server]);
    for transport in ["udp", "shm", "stream"] {
        let ping = ["ping", &serving.address, "--transport", transport, "--size", "100KiB"];
        let ping = record(&succeed(&[&ping[..], &["--credentials", &client, "--json"]].concat()));
        assert_eq!((&ping["transport"], &ping["answered"]), (&transport.into(), &10.into()));
    }
    succeed(&["stats", &serving.address, "--credentials", &client]);

    let plain = petrel(&["ping", &serving.address]);
    assert_eq!(plain.status.code(), Some(1));
    assert!(stderr(&plain).contains("inside TLS only"), "{}", stderr(&plain));
}

#[test]
fn keys__are_pinned_on_both_sides() {
    let folder = Folder::new("keys");
    let [server, client] = ["server", "client"].map(|name| folder.path(name));
    let new = |folder: &str| {
        let made = record(&succeed(&["key", "new", folder, "--json"]));
        made["fingerprint"].as_str().unwrap().to_owned()
    };
    let (of_server, of_client) = (new(&server), new(&client));
    succeed(&["key", "pin", &server, "client", &of_client]);
    let serving = Server::start(&["--listen", "127.0.0.1:0", "--credentials", &server]);
    let ping = ["ping", &serving.address, "--credentials", &client];
    let unknown = petrel(&ping);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains(&of_server), "{}", stderr(&unknown));
    succeed(&["key", "pin", &client, "127.0.0.1", &of_server]);
    succeed(&ping);
}

#[test]
fn credentials__are_refused_where_they_would_not_be_used_and_where_there_are_none() {
    let folder = Folder::new("refused");
    let absent = folder.path("absent");
    for (arguments, why) in [
        (&["bench", "rate"][..], "uses no credentials"),
        (&["kv", "sim"], "uses no credentials"),
        (&["ping", "127.0.0.1"], "absent"),
    ] {
        let output = petrel(&[arguments, &["--credentials", &absent]].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn authorize__grants_methods_by_name_and_counters_until_the_file_changes() {
    let folder = Folder::new("authorize");
    let [authority, server, client, policy] =
        ["authority", "server", "client", "policy"].map(|name| folder.path(name));
    succeed(&["cert", "ca", "--out", &authority]);
    succeed(&["cert", "issue", "127.0.0.1", "--ca", &authority, "--out", &server]);
    let id = ["--spiffe", "spiffe://test/web"];
    succeed(&[&["cert", "issue"], &id[..], &["--ca", &authority, "--out", &client]].concat());
    std::fs::write(&policy, "spiffe://test/* echo\n* nothing").unwrap();
    let flags = ["--listen", "127.0.0.1:0", "--credentials", &server, "--authorize", &policy];
    let serving = Server::start(&flags);
    let call = |method| {
        let call = ["call", &serving.address, "--method", method, "--data", "a"];
        petrel(&[&call[..], &["--credentials", &client]].concat())
    };
    assert_eq!(call("echo").status.code(), Some(0));
    let refused = call("hello");
    assert!(stderr(&refused).contains("may not call this method"), "{}", stderr(&refused));
    let stats = || petrel(&["stats", &serving.address, "--credentials", &client]);
    let refused = stats();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("grant `stats`"), "{}", stderr(&refused));
    std::fs::write(&policy, "spiffe://test/* 5 stats").unwrap();
    assert!(wait_until(|| stats().status.success()), "the new policy is not read");
    assert_eq!(call("hello").status.code(), Some(0));
    let refused = call("echo");
    assert!(stderr(&refused).contains("may not call this method"), "{}", stderr(&refused));
}

#[test]
fn authorize__is_refused_where_nothing_is_served_and_where_the_file_is_wrong() {
    let folder = Folder::new("policies");
    let policy = folder.path("policy");
    std::fs::write(&policy, "* cache.get 1 kv.put").unwrap();
    let wrong = "policy, line 1: `kv.put` is no method";
    for (arguments, why) in [
        (&["ping", "127.0.0.1"][..], "serves nothing"),
        (&["serve", "--listen", "127.0.0.1:0"], "policy, line 1: `cache.get` is no method"),
        (&["cache", "serve", "--listen", "127.0.0.1:0"], wrong),
        (&["cache", "serve", "--memcached", "0.0.0.0:0"], wrong),
        (&["kv", "serve", "--id", "1", "--peers", "1=127.0.0.1:1"], "`kv.write`"),
        (&["index", "serve", "--listen", "127.0.0.1:0"], "`index.get_word`"),
    ] {
        let output = petrel(&[arguments, &["--authorize", &policy]].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
    let far = petrel(&["cache", "serve", "--memcached", "0.0.0.0:0"]);
    assert!(stderr(&far).contains("is not encrypted"), "{}", stderr(&far));
}

/// A replica, killed on drop.
struct Replica(Child);

impl Replica {
    fn start(node: &str, peers: &str, credentials: &str) -> Self {
        let serve = ["kv", "serve", "--idle", "block", "--id", node, "--peers", peers];
        let more = ["--credentials", credentials, "--log", "warn"];
        let mut command = command(&[&serve[..], &more].concat());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    /// Reads the replica's events up to a line with this text, and later ones in the background.
    fn wait_for(&mut self, text: &str) {
        let mut events = BufReader::new(self.0.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(events.read_line(&mut line).unwrap() > 0, "the replica has ended");
        }
        std::thread::spawn(move || events.read_to_end(&mut Vec::new()));
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // The replica may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn kv__replicas_and_clients_refuse_a_replica_with_another_name() {
    let folder = Folder::new("replicas");
    let path = |name| folder.path(name);
    succeed(&["cert", "ca", "--out", &path("authority")]);
    let addresses = [free_address(), free_address()];
    let host = addresses[0].split(':').next().unwrap();
    for (name, out) in [(host, "right"), ("elsewhere.example", "wrong")] {
        succeed(&["cert", "issue", name, "--ca", &path("authority"), "--out", &path(out)]);
    }
    let peers = format!("1={},2={}", addresses[0], addresses[1]);
    let mut first = Replica::start("1", &peers, &path("right"));
    let wrong = Replica::start("2", &peers, &path("wrong"));
    first.wait_for("elsewhere.example");
    let get = ["kv", "get", "a", "--servers", &addresses[1], "--credentials"];
    let client = petrel(&[&get[..], &[&path("right"), "--timeout", "2s"]].concat());
    assert_ne!(client.status.code(), Some(0));
    drop(wrong);
    let _second = Replica::start("2", &peers, &path("right"));
    let put = ["kv", "put", "a", "b", "--servers", &addresses[1], "--credentials"];
    succeed(&[&put[..], &[&path("right"), "--timeout", "120s"]].concat());
}
