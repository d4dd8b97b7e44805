//! `petrel cache`: a server process, with a client of memcached's protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Server, finish, petrel, record, stderr, stdout};
use petrel_skip::{Need, skip};
use serde_json::{Value, json};

fn start(arguments: &[&str]) -> Server {
    Server::of_service("cache", &[&["--memcached", "127.0.0.1:0"], arguments].concat())
}

fn memcached(server: &Server) -> &str {
    server.ready["memcached"].as_str().unwrap()
}

/// Sends requests on a connection of their own, and expects these replies.
fn ask(server: &Server, requests: &str, replies: &str) {
    let mut socket = TcpStream::connect(memcached(server)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.write_all(requests.as_bytes()).unwrap();
    let mut got = vec![0; replies.len()];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), replies);
}

#[test]
fn serve__answers_memcacheds_clients_until_it_is_told_to_end() {
    let server = start(&["--threads", "2", "--memory", "64MiB", "--cpus", "0"]);
    ask(&server, "set petrel 7 0 7\r\nseabird\r\n", "STORED\r\n");
    ask(&server, "get petrel\r\n", "VALUE petrel 7 7\r\nseabird\r\nEND\r\n");
    let (code, ended) = server.terminate();
    let counters = &ended["counters"];
    assert_eq!((code, &ended["event"]), (Some(0), &json!("stopped")));
    assert_eq!((&counters["get_hits"], &counters["curr_items"]), (&json!(1), &json!(1)));
}

#[test]
fn values__are_stored_found_counted_and_removed() {
    let server = start(&["--listen", "127.0.0.1:0", "--threads", "2", "--memory", "96MiB"]);
    assert_eq!(stdout(&server.run(&["set", "petrel", "seabird", "--flags", "7"])), "stored\n");
    assert_eq!(stdout(&server.run(&["get", "petrel"])), "seabird\n");
    ask(&server, "get petrel\r\n", "VALUE petrel 7 7\r\nseabird\r\nEND\r\n");
    let found = record(&server.run(&["get", "petrel", "--json"]));
    assert_eq!((&found["value"], &found["flags"]), (&json!("seabird"), &json!(7)));
    let version = found["version"].to_string();
    assert_eq!(server.run(&["add", "petrel", "x"]).status.code(), Some(1));
    assert_eq!(server.run(&["replace", "none", "x"]).status.code(), Some(1));
    assert_eq!(stdout(&server.run(&["cas", "petrel", "1", "--version", &version])), "stored\n");
    let again = server.run(&["cas", "petrel", "2", "--version", &version]);
    assert_eq!(stderr(&again), "petrel: petrel: another version\n");
    assert_eq!(stdout(&server.run(&["incr", "petrel", "--by", "41"])), "42\n");
    assert_eq!(stdout(&server.run(&["incr", "petrel", "--by", "-50"])), "0\n");
    assert_eq!(stdout(&server.run(&["touch", "petrel", "--ttl", "100s"])), "touched\n");
    let stats = record(&server.run(&["stats", "--json"]));
    assert_eq!((&stats["curr_items"], &stats["touch_hits"]), (&json!(1), &json!(1)));
    assert_eq!(stdout(&server.run(&["delete", "petrel"])), "deleted\n");
    assert_eq!(server.run(&["delete", "petrel"]).status.code(), Some(1));
    assert_eq!(server.run(&["get", "petrel"]).status.code(), Some(1));
    assert_eq!(server.terminate().0, Some(0));
}

/// Values of more than the memory, and a client that does not read its replies.
#[test]
fn memory__stays_below_the_flag() {
    const MEBIBYTES: u64 = 96;
    let memory = format!("{MEBIBYTES}MiB");
    let server = start(&["--threads", "2", "--memory", memory.as_str()]);
    let mut socket = TcpStream::connect(memcached(&server)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let value = "v".repeat(900);
    let mut requests = String::new();
    for number in 0..150_000 {
        requests += &format!("set key{number} 0 0 900 noreply\r\n{value}\r\n");
        if requests.len() > 1 << 16 {
            socket.write_all(requests.as_bytes()).unwrap();
            requests.clear();
        }
    }
    let mut deaf = TcpStream::connect(memcached(&server)).unwrap();
    let large = "v".repeat(1 << 20);
    deaf.write_all(format!("set large 0 0 {}\r\n{large}\r\n", large.len()).as_bytes()).unwrap();
    deaf.write_all("get large large large large\r\n".repeat(20).as_bytes()).unwrap();
    // The last reply comes when everything before has been stored.
    requests += "mn\r\n";
    socket.write_all(requests.as_bytes()).unwrap();
    let mut reply = [0; 4];
    socket.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"MN\r\n");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let kibibytes = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    // The pages of the program's code do not count: processes share them.
    let kibibytes = kibibytes("VmHWM:") - kibibytes("RssFile:");
    assert!(kibibytes <= MEBIBYTES * 1024 * 103 / 100, "{kibibytes} KiB of {MEBIBYTES} MiB");
    drop(deaf);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn serve__says_why_it_cannot() {
    let server = start(&["--store", "--memory", "32MiB"]);
    let taken = petrel(&["cache", "serve", "--memcached", memcached(&server)]);
    assert_eq!(taken.status.code(), Some(1));
    let open = petrel(&["cache", "serve", "--memcached", "0.0.0.0:0"]);
    assert!(stderr(&open).contains("--insecure"), "{}", stderr(&open));
    let small = petrel(&["cache", "serve", "--memcached", "127.0.0.1:0", "--memory", "1MiB"]);
    assert!(stderr(&small).contains("too few"), "{}", stderr(&small));
}

/// The server raises a small limit on descriptors.
#[test]
fn serve__has_descriptors_for_all_connections() {
    let limited = |limits: &str, connections: &str| {
        let server = format!(
            "ulimit {limits}; exec {} cache serve --json --memcached 127.0.0.1:0 --connections {connections}",
            env!("CARGO_BIN_EXE_petrel")
        );
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &server]).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell.spawn().unwrap()
    };
    let server = Server::of("cache", limited("-Sn 64", "100"));
    let mut clients: Vec<_> =
        (0..100).map(|_| TcpStream::connect(memcached(&server)).unwrap()).collect();
    for client in &mut clients {
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(b"mn\r\n").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
    }
    let refused = finish(limited("-n 64", "100"));
    assert!(stderr(&refused).contains("--connections"), "{refused:?}");
}

#[test]
fn attacks__leave_honest_clients_as_many_calls_as_memcached() {
    let attacks = ["cache", "attacks", "--json", "--rounds", "1", "--window", "1s", "--attack"];
    let absent = petrel(&[&attacks[..], &["http", "--beside", "no-such-program"]].concat());
    assert_eq!(absent.status.code(), Some(1));
    assert!(stdout(&absent).contains("not installed"), "{absent:?}");
    if let Err(error) = std::process::Command::new("memcached").arg("-V").output() {
        return skip(Need::Memcached, format!("memcached: {error}"));
    }
    let output = petrel(&[&attacks[..], &["http,half-values"]].concat());
    let rows: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 4, "{output:?}");
    for row in &rows {
        assert_eq!((&row["failed"], &row["newcomers_failed"]), (&json!(0), &json!(0)), "{row}");
        assert!(row["honest"].as_u64() > Some(0) && row["ratio"].as_f64() >= Some(0.0), "{row}");
    }
}
