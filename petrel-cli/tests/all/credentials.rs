//! `petrel cert`, `petrel key` and `--credentials`: two processes that prove who they are.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::{
    Killed, Server, command, finish, free_address, petrel, record, records, stderr, stdout,
    wait_until,
};

/// A folder that goes with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("petrel-cli-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
pub(crate) fn succeed(arguments: &[&str]) -> std::process::Output {
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
fn revoke__ends_the_connections_of_a_peer() {
    let folder = Folder::new("revoke");
    let [root, below, server, client] =
        ["root", "below", "server", "client"].map(|name| folder.path(name));
    succeed(&["cert", "ca", "--out", &root]);
    succeed(&[
        "cert", "ca", "--under", &root, "--out", &below, "--name", "below", "--valid", "30d",
    ]);
    succeed(&["cert", "issue", "127.0.0.1", "--ca", &root, "--out", &server]);
    let issued = succeed(&["cert", "issue", "client", "--ca", &below, "--out", &client, "--json"]);
    let fingerprint = record(&issued)["fingerprint"].as_str().unwrap().to_owned();
    let serving = Server::start(&["--listen", "127.0.0.1:0", "--credentials", &server]);
    let ping = ["ping", &serving.address, "--credentials", &client];
    succeed(&ping);
    // A client that goes on until its connection ends.
    let going_on =
        command(&[&ping[..], &["--count", "1000000000", "--json"]].concat()).spawn().unwrap();
    let has_begun = || serving_sessions(&serving, &server) > 0;
    assert!(wait_until(has_begun));
    let refused = petrel(&["cert", "revoke", &server, "sha256:AAAA"]);
    assert!(stderr(&refused).contains("is no fingerprint"), "{}", stderr(&refused));
    succeed(&["cert", "revoke", &server, &fingerprint]);
    let ended = finish(going_on);
    assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
    assert_eq!(petrel(&ping).status.code(), Some(1));
    let shown = succeed(&["stats", &serving.address, "--credentials", &server, "--json"]);
    assert_eq!(record(&shown)["nexus"]["dropped_distrusted"], 1, "{}", stdout(&shown));
}

/// Returns the number of requests at the server.
fn serving_sessions(serving: &Server, folder: &str) -> u64 {
    let shown = succeed(&["stats", &serving.address, "--credentials", folder, "--json"]);
    record(&shown)["endpoints"][0]["stats"]["requests_received"].as_u64().unwrap()
}

#[test]
fn keys__are_shown_and_revoked() {
    let folder = Folder::new("show");
    let [server, client] = ["server", "client"].map(|name| folder.path(name));
    for own in [&server, &client] {
        let made = record(&succeed(&["key", "new", own, "--json"]));
        assert_eq!(made, record(&succeed(&["key", "show", own, "--json"])));
    }
    let of =
        |folder: &str| record(&petrel(&["key", "show", folder, "--json"]))["fingerprint"].clone();
    let (of_server, of_client) = (of(&server), of(&client));
    succeed(&["key", "pin", &server, "client", of_client.as_str().unwrap()]);
    succeed(&["key", "pin", &client, "127.0.0.1", of_server.as_str().unwrap()]);
    let serving = Server::start(&["--listen", "127.0.0.1:0", "--credentials", &server]);
    let ping = ["ping", &serving.address, "--credentials", &client];
    succeed(&ping);
    succeed(&["key", "revoke", &client, of_server.as_str().unwrap()]);
    let refused = petrel(&ping);
    assert!(stderr(&refused).contains("is revoked here"), "{}", stderr(&refused));
}

#[test]
fn doctor__looks_at_credentials() {
    let folder = Folder::new("doctor");
    let [authority, own] = ["authority", "own"].map(|name| folder.path(name));
    succeed(&["cert", "ca", "--out", &authority]);
    succeed(&["cert", "issue", "a", "--ca", &authority, "--out", &own]);
    let checks = || {
        let doctor = petrel(&["doctor", "--json", "--credentials", &own]);
        let all = records(&doctor).into_iter().filter(|check| check["area"] == "credentials");
        (doctor.status.code(), all.collect::<Vec<_>>())
    };
    let (_, good) = checks();
    assert!(good.len() == 7 && good.iter().all(|check| check["status"] == "ok"), "{good:?}");
    fs::remove_file(folder.path("own/key.pem")).unwrap();
    let (code, bad) = checks();
    let failed = bad.iter().find(|check| check["status"] == "fail").unwrap();
    assert!(failed["advice"].as_str().unwrap().contains("petrel cert issue"), "{failed}");
    assert_eq!(code, Some(1));
}

/// Decodes base 64.
fn decoded(text: &str) -> Vec<u8> {
    let signs = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|byte| signs.iter().position(|sign| *sign == byte));
    let bits: Vec<bool> =
        digits.flat_map(|digit| (0..6).rev().map(move |bit| digit >> bit & 1 == 1)).collect();
    let byte = |bits: &[bool]| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    bits.chunks_exact(8).map(byte).collect()
}

/// The output of processes with credentials, events included, contains nothing of a private key.
#[test]
fn output__of_all_commands_has_no_key() {
    let folder = Folder::new("logs");
    let [authority, server, client] =
        ["authority", "server", "client"].map(|name| folder.path(name));
    let mut output = Vec::new();
    let mut run = |arguments: &[&str]| {
        let run = petrel(&[arguments, &["--log", "debug"]].concat());
        output.extend([run.stdout, run.stderr].concat());
    };
    run(&["cert", "ca", "--out", &authority]);
    for own in [&server, &client] {
        run(&["cert", "issue", "127.0.0.1", "--ca", &authority, "--out", own]);
        run(&["cert", "show", own]);
        run(&["doctor", "--credentials", own]);
    }
    let mut serve = command(&[]);
    serve.stderr(File::create(folder.path("log")).unwrap());
    let listen = ["--listen", "127.0.0.1:0", "--credentials", &server, "--log", "debug"];
    let serving = Server::start_by(serve, &listen);
    run(&["ping", &serving.address, "--credentials", &client]);
    run(&["stats", &serving.address, "--credentials", &client]);
    run(&["ping", &serving.address]);
    // Two kinds of key in one folder.
    fs::copy(folder.path("client/key.pem"), folder.path("server/key.pem")).unwrap();
    run(&["ping", &serving.address, "--credentials", &server]);
    serving.signal(rustix::process::Signal::TERM);
    output.extend(serving.finish().1.into_bytes());
    output.extend(fs::read(folder.path("log")).unwrap());

    let text = String::from_utf8_lossy(&output);
    assert!(text.contains("untrusted"), "the events are there: {text}");
    for file in ["authority/ca-key.pem", "client/key.pem"] {
        let pem = fs::read_to_string(folder.path(file)).unwrap();
        let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with("---")).collect();
        let der = decoded(&lines.concat());
        // The private number of the curve, in PKCS #8.
        let at = der.windows(5).position(|bytes| bytes == b"\x02\x01\x01\x04\x20").unwrap() + 5;
        let secret = &der[at..at + 16];
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let list: Vec<String> = secret.iter().map(u8::to_string).collect();
        for form in [lines[1], &hex, &hex.to_uppercase(), &list.join(", ")] {
            assert!(!text.contains(form), "{file}: {form}");
        }
        assert!(!output.windows(16).any(|bytes| bytes == secret), "{file}");
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

fn start_replica(node: &str, peers: &str, credentials: &str) -> Killed {
    let serve = ["kv", "serve", "--idle", "block", "--id", node, "--peers", peers];
    let more = ["--credentials", credentials, "--log", "warn"];
    let mut command = command(&[&serve[..], &more].concat());
    Killed(command.stdout(Stdio::null()).spawn().unwrap())
}

/// Reads a replica's events up to a line with this text, and later ones in the background.
fn wait_for(replica: &mut Killed, text: &str) {
    let mut events = BufReader::new(replica.0.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0, "the replica has ended");
    }
    std::thread::spawn(move || events.read_to_end(&mut Vec::new()));
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
    let mut first = start_replica("1", &peers, &path("right"));
    let wrong = start_replica("2", &peers, &path("wrong"));
    wait_for(&mut first, "elsewhere.example");
    let get = ["kv", "get", "a", "--servers", &addresses[1], "--credentials"];
    let client = petrel(&[&get[..], &[&path("right"), "--timeout", "2s"]].concat());
    assert_ne!(client.status.code(), Some(0));
    drop(wrong);
    let _second = start_replica("2", &peers, &path("right"));
    let put = ["kv", "put", "a", "b", "--servers", &addresses[1], "--credentials"];
    succeed(&[&put[..], &[&path("right"), "--timeout", "120s"]].concat());
}
