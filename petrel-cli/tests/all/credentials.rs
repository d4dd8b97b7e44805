//! `petrel cert`, `petrel key` and `--credentials`: two processes that prove who they are.

use std::path::PathBuf;

use crate::common::{Server, petrel, record, stderr};

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
