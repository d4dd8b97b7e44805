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

/// Requests whose replies must be those of memcached, to the byte; `|` is the end of a line. Versions are left out, since
/// they count other events. `docs/cache.md` lists the differences.
const DIALOGUE: &str = "
    |  get|  get |  bogus|  GET a|
    set a 5 0 3|abc|  get a|  get a b a|  set a 0 0 3|abcde|  get a|
    set a 0 0|  set a 0 0 -1|  set a x 0 1|b|  set a -1 0 1|b|  set a 0 x 1|b|  set a 0 0 x|
    set a 0 0 1 noreply|b|  set a 0 0 1 foo|b|  set a 0 0 1 foo noreply|b|  set a 0 0 1 1 1 1 1|b|
    add a 0 0 1|c|  replace zz 0 0 1|c|  append a 0 0 1|c|  prepend zz 5 0 1|c|  get a|
    cas a 0 0 1|  cas a 0 0 1 99999|x|  cas zz 0 0 1 999|x|  cas a 0 0 1 x|x|
    cas a 0 0 1 99999 noreply|x|  delete a 0|  delete a 0|  delete a 1|  delete a b c|  delete|
    set a 0 0 1|q|  delete a noreply|  delete a 0 noreply|  delete a|
    set n 7 0 2|10|  incr n 5|  incr n x|  incr n -1|  incr n 18446744073709551615|  incr n 5|
    incr n|  incr zz 1|  incr n 1 2 3|  incr n 18446744073709551616|  decr n 100|
    set t 0 0 3|abc|  incr t 1|  incr n 1 noreply|  set e 0 0 0||  incr e 1|
    touch n 0|  touch zz 0|  touch n x|  touch n|  touch n 0 noreply|  touch n 0 0 0|
    gat 0 t zz e|  gat 0|  gat x n|  gat|  set neg 0 -1 1|x|  get neg|
    set past 0 2592001 1|x|  get past|  set a 0 0 1|y|  get a t|
    verbosity|  verbosity 1|  verbosity x|  verbosity 1 noreply|  shutdown|
    flush_all x|  flush_all 0|  flush_all noreply|  get a|  flush_all 100 noreply|  flush_all|
    flush_all 0 noreply|  stats reset|  stats foo|  misbehave|
    delete k 10 noreply|  incr a x noreply|  touch a x noreply|  touch t noreply|  set a b c d noreply|
    flush_all x noreply|  cas a 0 0 1 x noreply|  decr a x noreply|  verbosity a b c|  verbosity a b|
    verbosity noreply|  verbosity x noreply|  set k 0 0 2147483646|  set k 0 0 2147483647|  ms k 2147483646|
    cache_memlimit|  cache_memlimit x|  cache_memlimit 1|  cache_memlimit x noreply|  cache_memlimit 1 2 3|
    stats cachedump|  stats cachedump 1|  stats cachedump x 1|  stats cachedump 1 x|  stats cachedump 64 1|
    stats cachedump 99999 1|  stats cachedump 63 1|  stats detail|  stats detail off|  stats detail dump|  stats detail x|
    stats sizes|  cache_memlimit 64|  cache_memlimit 60 noreply|
    set 1 5 100 3|abc|  mg|  mg 1|  mg zz|  mg 1 v|  mg 1 s v t f k O123 q|  mg zz q|
    mg zz k O12|  mg 1 q|  mg 1 k q|  mg 1 h t|  mg 1 zz|  mg 1 v v|  mg 1 Txx|  mg 1 T|
    mg 1 T30 t|  mg 1 O|  mg 1 Ooooooooooooooooooooooooooooooooooo|  mg 1 Lfoo Pbar|
    mg viv N30 t v|  mg viv N30 t v|  mg viv s|  ms viv 1|a|  mg viv v t|
    mg 1 R100 t|  mg 1 R100 t|  ms 1 2|ab|  ms 1|  ms 1 -1|  ms 1 x|ab|  ms 1 S2|ab|
    ms 1 2 q|ab|  ms 1 2 k O9 T10 F3|ab|  ms 1 2 ME|ab|  ms 1 2 ME q|ab|  ms new 2 MR|ab|
    ms new 2 MA|ab|  ms 1 2 MA|cd|  ms 1 2 mP|cd|  ms 1 2 MP|cd|  ms 1 2 MX|cd|  ms 1 2 M|cd|
    ms 1 2 MSS|cd|  mg 1 v f|  ms 1 2 C99999|zz|  ms zz 2 C1|zz|  ms zz 2 C1 q|zz|
    ms 1 2 C1 I|zz|  mg 1 v|  mg 1 v|  ms 1 2 Cx|zz|  ms 1 2 Fx|zz|  ms 1 2 Tx|zz|
    ms 1 2|abcd|  ms 1 2 q|abcd|  ms 1 2 y|ab|  ms 1 2 E77|ab|  md 1 I|  mg 1 v|
    ms 1 2|ok|  md 1 I T60 k O5|  mg 1 v t|  mg 1 v|  md 1 C99999|  md 1 q|  md 1 q|  md 1 k O3|
    md 1 v|  md|  ms n 2|10|  ma n|  ma n v|  ma n D5 v t|  ma n MD D100 v|  ma n M- v|  ma n MI q|
    ma n Mx v|  ma n Dx|  ma n D-1|  ma zz|  ma zz q|  ma zz k O1|  ma auto N30 J13 v t|
    ma auto N30 J13 v t|  ma auto q v|  ma auto T60 t v k O7|  ma n C99999|  ms s 3|abc|  ma s|  ma s q|
    mg Zm9v b k v|  ms Zm9v 3 b k|abc|  mg Zm9v b k v|  mg Zm9v k b v|  mg *** b|  md Zm9v b k|
    ma|  mx 1|  ms|
";

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
        let dialogue = DIALOGUE.replace("\n    ", "  ");
        let requests = dialogue.split("  ").map(str::trim).filter(|it| !it.is_empty());
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
