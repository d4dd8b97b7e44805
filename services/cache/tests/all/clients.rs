//! Programs that others have written for memcached, and memcached itself, if they are on this host.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use petrel_cache::{CacheConfig, CacheServer};
use petrel_skip::{Need, skip};

fn start(threads: u16) -> CacheServer {
    let config = CacheConfig { threads, ..CacheConfig::at("127.0.0.1:0".parse().unwrap()) };
    CacheServer::start(&config).unwrap()
}

/// Runs a program; `None` if the host lacks it.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            skip(Need::Memcached, format!("{program}: {error}"));
            None
        }
    }
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].concat().escape_ascii().to_string().replace("\\n", "\n")
}

#[test]
fn memccapable__passes() {
    let server = start(2);
    let port = server.memcached().unwrap().port().to_string();
    // Debian's name of libmemcached's test of servers. `-a` is the text protocol.
    let arguments = ["-a", "-h", "127.0.0.1", "-p", &port, "-t", "60"];
    if let Some(output) = run("memccapable", &arguments) {
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("All tests passed"), "{}", text(&output));
    }
    server.stop().unwrap();
}

/// Returns a Python with the module `pymemcache`, or the reason why there is none. The system's Python has the module of
/// the system's package, and another may come before it in `PATH`.
fn python() -> Result<&'static str, String> {
    let mut why = String::new();
    for python in ["python3", "/usr/bin/python3"] {
        match Command::new(python).args(["-c", "import pymemcache"]).output() {
            Ok(output) if output.status.success() => return Ok(python),
            Ok(output) => why += &text(&output),
            Err(error) => why += &format!("{python}: {error}"),
        }
    }
    Err(why)
}

#[test]
fn pymemcache__works() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return skip(Need::Memcached, why),
    };
    for threads in [1, 3] {
        let server = start(threads);
        let port = server.memcached().unwrap().port().to_string();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/pymemcache_client.py");
        let output = run(python, &[script, &port]).unwrap();
        assert!(output.status.success(), "{}", text(&output));
        server.stop().unwrap();
    }
}

/// The tests that pymemcache has of itself, with a server. Its measurements, and its tests of compression and of TLS, are left out.
#[test]
fn pymemcaches_tests__pass() {
    let directory = python().and_then(|python| {
        let script =
            "import os, pytest, mock, pymemcache.test as t; print(os.path.dirname(t.__file__))";
        let output = Command::new(python).args(["-c", script]).output();
        let output = output.ok().filter(|output| output.status.success());
        let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
        let directory =
            text.ok_or_else(|| format!("{python} has no pytest or mock, or no pymemcache.test"))?;
        Ok((python, directory.trim().to_owned()))
    });
    let (python, directory) = match directory {
        Ok(found) => found,
        Err(why) => return skip(Need::Memcached, why),
    };
    for threads in [1, 3] {
        let server = start(threads);
        let port = format!("--port={}", server.memcached().unwrap().port());
        let [measurements, compression] =
            ["benchmark", "compression"].map(|name| format!("--ignore={directory}/test_{name}.py"));
        let tests = [
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "not tls",
            &directory,
            "--server=127.0.0.1",
        ];
        let output = run(python, &[&tests[..], &[&port, &measurements, &compression]].concat());
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output));
        server.stop().unwrap();
    }
}

/// A running memcached; killed on drop.
struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    fn start() -> Option<Self> {
        // An address of this process's own: memcached cannot tell its port, and another server could take a free one before.
        static NEXT: AtomicU16 = AtomicU16::new(20_000);
        let [_, b, c, d] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, b, c, d);
        let address = SocketAddr::from((ip, NEXT.fetch_add(1, Ordering::Relaxed)));
        let (ip, port) = (ip.to_string(), address.port().to_string());
        let child = Command::new("memcached")
            .args(["-l", &ip, "-p", &port, "-U", "0", "-t", "1", "-u", "nobody"])
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                skip(Need::Memcached, format!("memcached: {error}"));
                return None;
            }
        };
        let memcached = Self { child, address };
        while TcpStream::connect(address).is_err() {
            // A guard of the loop is the limit of the whole test.
            thread::yield_now();
        }
        Some(memcached)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request, then `mn`; returns the reply up to that of `mn`.
fn ask(socket: &mut BufReader<TcpStream>, request: &[u8]) -> Vec<u8> {
    socket.get_mut().write_all(&[request, b"mn\r\n"].concat()).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"MN\r\n") {
        let read = socket.read_until(b'\n', &mut reply);
        let is_more = read.as_ref().is_ok_and(|bytes| *bytes > 0);
        let (request, reply) = (request.escape_ascii(), reply.escape_ascii());
        assert!(is_more, "{read:?} for {request}, after {reply}");
    }
    reply
}

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    BufReader::new(socket)
}

/// A reply for people, without the seconds that an item has left: the two clocks tick at different moments.
fn shown(reply: &[u8]) -> String {
    let is_seconds = |word: &&str| {
        word.strip_prefix('t').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let text = reply.escape_ascii().to_string();
    let words = text.split(' ').map(|word| if is_seconds(&word) { "t#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Requests with the replies of memcached; the file has its own description.
const DIALOGUE: &str = include_str!("../../src/memcached/dialogue.txt");

#[test]
fn memcached__answers_alike() {
    let Some(memcached) = Memcached::start() else { return };
    for threads in [1, 2] {
        ask(&mut connect(memcached.address), b"flush_all\r\n");
        let server = start(threads);
        let (mut theirs, mut ours) =
            (connect(memcached.address), connect(server.memcached().unwrap()));
        let long = [
            "get {}",
            "get a {} a",
            "set {} 0 0 1",
            "mg {} v",
            "delete {}",
            "delete {} noreply",
            "set {} 0 0 1 noreply",
            "incr {} 1 noreply",
            "touch {} 1 noreply",
        ]
        .map(|line| line.replace("{}", &"k".repeat(251)) + "|");
        let lines = DIALOGUE.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.flat_map(|line| line.split(" ; "));
        let requests = pairs.filter_map(|pair| Some(pair.split_once(" ->")?.0));
        for request in requests.chain(long.iter().map(String::as_str)) {
            let request = request.replace('|', "\r\n");
            let (theirs, ours) =
                (ask(&mut theirs, request.as_bytes()), ask(&mut ours, request.as_bytes()));
            assert_eq!(shown(&ours), shown(&theirs), "{request:?}, {threads} threads");
        }
        let mut rest = Vec::new();
        theirs.get_mut().write_all(b"quit\r\n").unwrap();
        theirs.read_to_end(&mut rest).unwrap();
        server.stop().unwrap();
    }
}
