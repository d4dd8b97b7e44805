//! The server with real sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use petrel_cache::{CacheConfig, CacheServer, Mode};

fn config(threads: u16) -> CacheConfig {
    CacheConfig { threads, ..CacheConfig::at("127.0.0.1:0".parse().unwrap()) }
}

fn start(config: &CacheConfig) -> CacheServer {
    CacheServer::start(config).unwrap()
}

struct Client(TcpStream);

impl Client {
    fn new(server: &CacheServer) -> Self {
        let socket = TcpStream::connect(server.memcached().unwrap()).unwrap();
        // A guard against hanging.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(socket)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn expect(&mut self, bytes: &[u8]) {
        let mut got = vec![0; bytes.len()];
        self.0.read_exact(&mut got).unwrap();
        assert!(got == bytes, "{:?} in place of {:?}", shown(&got), shown(bytes));
    }

    fn ask(&mut self, request: &[u8], reply: &[u8]) {
        self.send(request);
        self.expect(reply);
    }

    /// Asks for a report: lines up to `END`, as one text.
    fn report(&mut self, request: &str) -> String {
        self.send(request.as_bytes());
        let mut text = Vec::new();
        while !text.ends_with(b"END\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        String::from_utf8(text).unwrap()
    }

    /// Stores a value of a mebibyte.
    fn set_large(&mut self, key: &str, fill: u8) {
        let head = format!("set {key} 0 0 {}\r\n", 1 << 20);
        self.ask(&[head.as_bytes(), &vec![fill; 1 << 20], b"\r\n"].concat(), b"STORED\r\n");
    }

    fn stat(&mut self, name: &str) -> u64 {
        let stats = self.report("stats\r\n");
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {stats}")).parse().unwrap()
    }

    fn expect_end(&mut self) {
        assert_eq!(self.0.read(&mut [0; 16]).unwrap(), 0);
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}

#[test]
fn replies__come_in_order_from_all_partitions() {
    for threads in [1, 2, 3] {
        let server = start(&config(threads));
        let mut client = Client::new(&server);
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for number in 0..3_000 {
            write!(requests, "set key{number} {number} 0 4\r\n{number:04}\r\nget key{number}\r\n")
                .unwrap();
            write!(replies, "STORED\r\nVALUE key{number} {number} 4\r\n{number:04}\r\nEND\r\n")
                .unwrap();
        }
        write!(requests, "get").unwrap();
        for number in 0..3_000 {
            write!(requests, " key{number} none{number}").unwrap();
            write!(replies, "VALUE key{number} {number} 4\r\n{number:04}\r\n").unwrap();
        }
        write!(requests, "\r\nmn\r\n").unwrap();
        write!(replies, "END\r\nMN\r\n").unwrap();
        client.ask(&requests, &replies);
        assert_eq!(client.stat("curr_items"), 3_000, "{threads} threads");
        assert_eq!(client.stat("get_hits"), 6_000);
        let stopped = server.stop().unwrap();
        assert!(stopped.counters.contains(&("get_misses", 3_000)));
        client.expect_end();
    }
}

#[test]
fn operations_on_all_partitions__are_answered_once() {
    let server = start(&config(3));
    let mut client = Client::new(&server);
    for number in 0..20 {
        client.ask(format!("set k{number} 0 0 1\r\nx\r\n").as_bytes(), b"STORED\r\n");
    }
    client.ask(
        b"flush_all\r\nget k1 k2 k3 k4\r\nflush_all noreply\r\nstats reset\r\n",
        b"OK\r\nEND\r\nRESET\r\n",
    );
    assert_eq!((client.stat("curr_items"), client.stat("cmd_set")), (0, 0));
    client.send(b"stats settings\r\nbogus\r\n");
    let mut settings = vec![0; 16];
    client.0.read_exact(&mut settings).unwrap();
    assert!(settings.starts_with(b"STAT maxbytes "));
    server.stop().unwrap();
}

#[test]
fn large_values__pass_between_threads() {
    let server = start(&CacheConfig { memory_bytes: 256 << 20, ..config(2) });
    let mut client = Client::new(&server);
    let value = |number: u8| vec![number; 1 << 20];
    for number in 0..16 {
        client.set_large(&format!("big{number}"), number);
    }
    // 64 MiB of replies to one line; the client reads while the server sends.
    let keys: String = (0..64).map(|number| format!(" big{}", number % 16)).collect();
    client.send(format!("get{keys}\r\n").as_bytes());
    for number in 0..64 {
        let number = number % 16;
        client.expect(format!("VALUE big{number} 0 {}\r\n", 1 << 20).as_bytes());
        client.expect(&value(number));
        client.expect(b"\r\n");
    }
    client.expect(b"END\r\n");
    server.stop().unwrap();
}

#[test]
fn connections__are_limited_and_end_when_idle() {
    let idle = Some(Duration::from_secs(5));
    let server = start(&CacheConfig { connections_max: 2, idle, ..config(2) });
    let mut clients = [Client::new(&server), Client::new(&server)];
    clients.iter_mut().for_each(|client| client.ask(b"mn\r\n", b"MN\r\n"));
    let mut third = Client::new(&server);
    third.expect(b"ERROR Too many open connections\r\n");
    third.expect_end();
    // Both have been quiet for long enough at some time.
    clients.iter_mut().for_each(Client::expect_end);
    let mut again = Client::new(&server);
    assert_eq!((again.stat("rejected_connections"), again.stat("idle_kicks")), (1, 2));
    server.stop().unwrap();
}

/// A flood of connections that send nothing keeps no newcomer out, and ends no connection that has made a request.
#[test]
fn connections_without_a_request__yield_to_newcomers() {
    for threads in [1, 2] {
        let server = start(&CacheConfig { connections_max: 32, ..config(threads) });
        let mut clients: Vec<_> = (0..8).map(|_| Client::new(&server)).collect();
        clients.iter_mut().for_each(|client| client.ask(b"mn\r\n", b"MN\r\n"));
        let mut half = Client::new(&server);
        half.send(b"set half 0 0 100\r\nv");
        let silent: Vec<_> = (0..200).map(|_| Client::new(&server)).collect();
        for _ in 0..8 {
            let mut newcomer = Client::new(&server);
            newcomer.ask(b"mn\r\n", b"MN\r\n");
            clients.push(newcomer);
            clients.iter_mut().for_each(|client| client.ask(b"mn\r\n", b"MN\r\n"));
        }
        let [displaced, rejected] =
            ["displaced_connections", "rejected_connections"].map(|name| clients[0].stat(name));
        assert!(displaced > 150 && rejected == 0, "{displaced} displaced, {rejected} rejected");
        drop((half, silent));
        server.stop().unwrap();
    }
}

#[test]
fn half_closed_connections__get_their_replies() {
    let server = start(&config(2));
    let mut client = Client::new(&server);
    client.send(b"set a 0 0 1\r\nx\r\nset b 0 0 1\r\ny\r\nget a b\r\n");
    client.0.shutdown(Shutdown::Write).unwrap();
    client.expect(b"STORED\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\n");
    client.expect_end();
    let mut client = Client::new(&server);
    client.ask(b"mn\r\nquit\r\nmn\r\n", b"MN\r\n");
    client.expect_end();
    server.stop().unwrap();
}

#[test]
fn store__refuses_when_it_is_full() {
    let server = start(&CacheConfig { mode: Mode::Store, ..config(1) });
    let mut client = Client::new(&server);
    let mut stored = 0;
    for number in 0..400 {
        let head = format!("set key{number} 0 0 200000\r\n");
        client.send(&[head.as_bytes(), &vec![b'v'; 200_000], b"\r\n"].concat());
        let mut first = [0];
        client.0.read_exact(&mut first).unwrap();
        match first[0] {
            b'S' if stored == number => {
                let mut rest = [0; 7];
                client.0.read_exact(&mut rest).unwrap();
                match &rest {
                    b"TORED\r\n" => stored += 1,
                    _ => client.expect(b"ERROR out of memory storing object\r\n"[1..].as_ref()),
                }
            }
            _ => client.expect(&b"SERVER_ERROR out of memory storing object\r\n"[1..]),
        }
    }
    assert!((100..400).contains(&stored), "{stored} stored");
    assert_eq!((client.stat("curr_items"), client.stat("evictions")), (stored, 0));
    server.stop().unwrap();
}

#[test]
fn start__refuses_what_cannot_work() {
    let refused = |config: &CacheConfig| CacheServer::start(config).unwrap_err().to_string();
    assert!(refused(&config(0)).contains("threads"));
    assert!(refused(&CacheConfig { memory_bytes: 8 << 20, ..config(1) }).contains("too few"));
    let empty = CacheConfig { connections_max: 0, ..config(1) };
    assert!(refused(&empty).contains("one connection"));
    let anywhere = CacheConfig::at("0.0.0.0:0".parse().unwrap());
    assert!(refused(&anywhere).contains("--insecure"));
    let server = start(&config(1));
    let taken = CacheConfig::at(server.memcached().unwrap());
    assert!(!refused(&taken).is_empty());
    server.stop().unwrap();
}

#[test]
fn reports__have_one_class_for_all_items() {
    let server = start(&config(3));
    let mut client = Client::new(&server);
    assert_eq!(client.report("stats items\r\n"), "END\r\n");
    for number in 0..20 {
        client.ask(format!("set k{number} 0 0 3\r\nabc\r\n").as_bytes(), b"STORED\r\n");
    }
    let items = client.report("stats items\r\n");
    assert!(items.contains("STAT items:1:number 20\r\n"), "{items}");
    let slabs = client.report("stats slabs\r\n");
    let malloced = slabs.lines().find_map(|line| line.strip_prefix("STAT total_malloced "));
    let malloced: u64 = malloced.unwrap().parse().unwrap();
    assert!(malloced >= (64 << 20) * 4 / 5, "{malloced} of 64 MiB are for items");
    // A key that would end a line.
    client.ask(b"ms DQo= 1 b\r\na\r\n", b"HD\r\n");
    let dump = client.report("stats cachedump 1 0\r\n");
    assert_eq!(dump.matches(" [3 b; 0 s]\r\n").count(), 20, "{dump}");
    assert_eq!(dump.lines().count(), 21, "{dump}");
    assert_eq!(client.report("stats cachedump 1 2\r\n").lines().count(), 3);
    let other = Client::new(&server);
    let connections = client.report("stats conns\r\n");
    let own = other.0.local_addr().unwrap();
    assert!(connections.contains(&format!(":addr tcp:{own}\r\n")), "{connections}");
    for name in ["bytes_read", "bytes_written", "hash_bytes"] {
        assert!(client.stat(name) > 100, "{name}");
    }
    server.stop().unwrap();
}

/// Each item is of one size, so that the log takes as many as memory is left.
#[test]
fn cache_memlimit__leaves_memory_unused_up_to_a_half() {
    let server = start(&config(2));
    let mut client = Client::new(&server);
    let value = vec![b'v'; 100_000];
    let fill = |client: &mut Client| {
        for number in 0..1_000 {
            client.send(format!("set key{number} 0 0 {} noreply\r\n", value.len()).as_bytes());
            client.send(&value);
            client.send(b"\r\n");
        }
        client.stat("bytes")
    };
    let before = fill(&mut client);
    client.ask(b"cache_memlimit 48\r\n", b"OK\r\n");
    assert_eq!(client.stat("limit_maxbytes"), 48 << 20);
    let after = client.stat("bytes");
    assert!((14 << 20..19 << 20).contains(&(before - after)), "{before}, {after} bytes");
    assert!(fill(&mut client) <= after + 200_000);
    for mebibytes in [10, 65] {
        let failed = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
        client.ask(format!("cache_memlimit {mebibytes}\r\n").as_bytes(), failed);
    }
    client.ask(b"cache_memlimit 64\r\n", b"OK\r\n");
    assert!(fill(&mut client) > before - 400_000);
    server.stop().unwrap();
}

#[test]
fn flush_all__can_be_refused() {
    let server = start(&CacheConfig { refuses_flush: true, ..config(1) });
    let mut client = Client::new(&server);
    let reply = b"CLIENT_ERROR flush_all not allowed\r\nMN\r\n";
    client.ask(b"flush_all 10\r\nflush_all noreply\r\nmn\r\n", reply);
    server.stop().unwrap();
}

#[test]
fn value_bytes_max__is_what_the_settings_say() {
    let small = CacheConfig { value_bytes_max: 5_000, ..config(1) };
    // An eighth of a partition.
    let cramped = CacheConfig { memory_bytes: 12 << 20, ..config(4) };
    for config in [small, cramped, config(4)] {
        let server = start(&config);
        let mut client = Client::new(&server);
        let settings = client.report("stats settings\r\n");
        let most = settings.lines().find_map(|line| line.strip_prefix("STAT item_size_max "));
        let most: usize = most.unwrap().parse().unwrap();
        let key = "k".repeat(250);
        let mut set = |bytes: usize, reply: &[u8]| {
            client.send(format!("set {key} 0 0 {bytes}\r\n").as_bytes());
            client.send(&vec![b'v'; bytes]);
            client.ask(b"\r\n", reply);
        };
        set(most, b"STORED\r\n");
        // A partition takes some bytes more, to whole words.
        set(most + 8, b"SERVER_ERROR object too large for cache\r\n");
        server.stop().unwrap();
    }
}

#[test]
fn memcached_path__serves_the_file_systems_clients() {
    use std::os::unix::net::UnixStream;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let config = CacheConfig { memcached: None, memcached_path: Some(path.clone()), ..config(2) };
    // The second server finds the socket that the first has left.
    for _ in 0..2 {
        let server = start(&config);
        let mut client = UnixStream::connect(&path).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(b"set a 0 0 1\r\nx\r\nget a\r\nstats conns\r\n").unwrap();
        let mut reply = [0; 45];
        client.read_exact(&mut reply).unwrap();
        assert!(reply.starts_with(b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nSTAT "), "{reply:?}");
        server.stop().unwrap();
    }
    let taken = start(&config);
    assert!(CacheServer::start(&config).unwrap_err().to_string().contains("cache: "));
    taken.stop().unwrap();
}

/// Items that are read stay while a scan stores ten times as many as the cache has room for.
#[test]
fn scans__push_no_hot_items_out() {
    let server = start(&config(2));
    let mut client = Client::new(&server);
    let value = vec![b'v'; 10_000];
    let set = |client: &mut Client, key: &str| {
        client.send(format!("set {key} 0 0 {} noreply\r\n", value.len()).as_bytes());
        client.send(&value);
        client.send(b"\r\n");
    };
    (0..1_000).for_each(|number| set(&mut client, &format!("hot{number}")));
    for number in 0..50_000 {
        set(&mut client, &format!("scan{number}"));
        if number % 2_000 == 0 {
            let hits = client.stat("get_hits");
            (0..1_000).for_each(|number| client.send(format!("get hot{number}\r\n").as_bytes()));
            client.send(b"mn\r\n");
            let (mut bytes, mut text) = (vec![0; 1 << 20], Vec::new());
            while !text.ends_with(b"MN\r\n") {
                let read = client.0.read(&mut bytes).unwrap();
                text.extend_from_slice(&bytes[..read]);
            }
            // The budget of moves does not take the first lap's long run of hot items; later cold items lie between.
            let hits = client.stat("get_hits") - hits;
            assert!(hits > 700, "{hits} hits after {number}");
        }
    }
    server.stop().unwrap();
}

/// A value that is too large comes while the batch of its owner is full: the request comes again, with its bytes.
#[test]
fn large_values__wait_for_room_in_a_batch() {
    let server = start(&config(3));
    let mut client = Client::new(&server);
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    let value = vec![b'v'; (1 << 20) + 1];
    for round in 0..8 {
        for number in 0..2_000 {
            write!(requests, "set key{number} 0 0 1 noreply\r\n{round}\r\n").unwrap();
        }
        write!(requests, "set key{round} 0 0 {}\r\n", value.len()).unwrap();
        requests.extend_from_slice(&value);
        write!(requests, "\r\nget key{round}\r\nget key{}\r\n", round + 8).unwrap();
        write!(replies, "SERVER_ERROR object too large for cache\r\nEND\r\n").unwrap();
        write!(replies, "VALUE key{} 0 1\r\n{round}\r\nEND\r\n", round + 8).unwrap();
    }
    client.ask(&requests, &replies);
    assert_eq!((client.stat("store_too_large"), client.stat("delete_hits")), (8, 0));
    server.stop().unwrap();
}

/// A value for which there are no buffers leaves no former value, and its client gets the reply that it asked for.
#[test]
fn values_without_buffers__are_refused() {
    let server = start(&config(1));
    // The buffers of a thread have 4 MiB, and values may wait in half of the memory. A holder of 15 000 bytes is never ended.
    let holders: Vec<_> = (0..150)
        .map(|_| {
            let mut holder = Client::new(&server);
            holder.ask(b"mn\r\nset a 0 0 15000\r\nfirst", b"MN\r\n");
            holder
        })
        .collect();
    let mut client = Client::new(&server);
    let value = vec![b'v'; 1 << 20];
    for (end, reply) in
        [("", &b"SERVER_ERROR out of memory storing object\r\n"[..]), (" noreply", b"")]
    {
        client.ask(b"set key 0 0 1\r\nx\r\n", b"STORED\r\n");
        let head = format!("set key 0 0 {}{end}\r\n", value.len());
        client.ask(&[head.as_bytes(), &value, b"\r\n"].concat(), reply);
        client.ask(b"get key\r\n", b"END\r\n");
    }
    assert_eq!(client.stat("store_no_memory"), 2);
    drop(holders);
    server.stop().unwrap();
}

/// Gets wait with their own client while large replies are unread, not before the gets of others in a batch for another thread.
#[test]
fn gets_of_clients_that_do_not_read__do_not_run() {
    let server = start(&CacheConfig { memory_bytes: 128 << 20, ..config(2) });
    let mut client = Client::new(&server);
    client.set_large("big", b'v');
    let deaf = |_| {
        let mut deaf = Client::new(&server);
        deaf.send(&b"get big\r\n".repeat(100));
        deaf
    };
    let deaf: Vec<_> = (0..60).map(deaf).collect();
    for number in 0..100 {
        client.ask(format!("set s{number} 0 0 1\r\nx\r\n").as_bytes(), b"STORED\r\n");
    }
    drop(deaf);
    // 30 clients wait for another thread. Sockets take some four values of a client, and the server asks for as many.
    let hits = client.stat("get_hits");
    assert!(hits < 60 * 16, "{hits} gets");
    server.stop().unwrap();
}

/// Small and large values of an honest client, all answered, while others hold memory. Before connections had shares, the first
/// kind of attack stopped every request, and the last let values be refused.
#[test]
fn clients_that_hold_memory__stop_nobody_else() {
    let large = vec![b'v'; 1 << 20];
    let gets = b"get big\r\n".repeat(100);
    let endless = [b"get".to_vec(), b" k".repeat(300_000)].concat();
    let half = format!("set half 0 0 {}\r\nv", 100_000).into_bytes();
    for (attackers, bytes) in [(60, &gets), (60, &endless), (200, &half)] {
        for threads in [1, 2] {
            let server = start(&CacheConfig { memory_bytes: 128 << 20, ..config(threads) });
            let mut client = Client::new(&server);
            client.set_large("big", b'v');
            let attack = |_| {
                let mut attacker = Client::new(&server);
                attacker.0.set_nonblocking(true).unwrap();
                // As much as the server takes.
                let _ = attacker.0.write_all(bytes);
                attacker
            };
            let attackers: Vec<_> = (0..attackers).map(attack).collect();
            let middle = &large[..100_000];
            for number in 0..500 {
                client.ask(format!("set s{number} 0 0 1\r\nx\r\n").as_bytes(), b"STORED\r\n");
                let reply = format!("VALUE s{number} 0 1\r\nx\r\nEND\r\n");
                client.ask(format!("get s{number}\r\n").as_bytes(), reply.as_bytes());
                if number % 100 == 0 {
                    let set = [b"set m 0 0 100000\r\n", middle, b"\r\n"].concat();
                    client.ask(&set, b"STORED\r\n");
                    client.ask(
                        b"get m\r\n",
                        &[b"VALUE m 0 100000\r\n", middle, b"\r\nEND\r\n"].concat(),
                    );
                }
            }
            drop(attackers);
            server.stop().unwrap();
        }
    }
}

/// A browser sends a page's bytes behind a line of HTTP.
#[test]
fn http__ends_the_connection_before_its_body_is_read() {
    let server = start(&config(1));
    for line in ["POST / HTTP/1.1", "GET /set HTTP/1.0", "OPTIONS * HTTP/1.1", "PRI * HTTP/2.0"] {
        let mut browser = Client::new(&server);
        browser.send(format!("{line}\r\nHost: cache\r\n\r\nset pwn 0 0 1\r\nx\r\n").as_bytes());
        browser.expect_end();
    }
    let mut client = Client::new(&server);
    client.ask(
        b"get pwn\r\nHTTP\r\nset HTTP/1.1 0 0 1\r\nx\r\nget HTTP/1.1\r\n",
        b"END\r\nERROR\r\nSTORED\r\nVALUE HTTP/1.1 0 1\r\nx\r\nEND\r\n",
    );
    server.stop().unwrap();
}

/// Requests that have come before the end are answered, also those that wait for room in the output.
#[test]
fn stop__answers_the_requests_that_have_come() {
    let server = start(&config(1));
    let mut client = Client::new(&server);
    let value = vec![b'v'; 200_000];
    client.ask(&[b"set big 0 0 200000\r\n", &value[..], b"\r\n"].concat(), b"STORED\r\n");
    client.send(&[b"get big\r\n".repeat(60), b"unfinished".to_vec()].concat());
    let reply = [b"VALUE big 0 200000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    // One read has taken all requests.
    client.expect(&reply);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| server.stop().unwrap());
        (1..60).for_each(|_| client.expect(&reply));
        client.expect_end();
        stopping.join().unwrap();
    });
}
