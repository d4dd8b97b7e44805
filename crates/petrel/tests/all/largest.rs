//! Messages of 1 GiB, the largest that can be agreed on: a request and its response, over both transports.

use petrel::Status;
use petrel::endpoint::EndpointConfig;
use petrel_skip::{Need, skip};

use crate::common::{Server, client, over, pattern};

/// Answers with the request, in which each block has another number.
const RENUMBER: u16 = 2;
/// Answers with one byte more than the client accepts.
const EXCEED: u16 = 3;

const LARGEST: usize = 1 << 30;

/// Memory of the test: the client's request and response, and the server's message. A quarter is for the rest.
const MEMORY_BYTES: u64 = 3 * LARGEST as u64 / 4 * 5;

/// The unit of the contents, shorter than the packets of both transports.
const BLOCK: usize = 1 << 10;

/// Returns the memory that the host still has, and the process's control group allows.
fn available_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let host_kib = read("/proc/meminfo").lines().find_map(|line| {
        let field = line.strip_prefix("MemAvailable:")?;
        field.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    let number = |name: &str| read(&format!("/sys/fs/cgroup/{name}")).trim().parse::<u64>().ok();
    let group = number("memory.max").zip(number("memory.current"));
    let group_bytes = group.map_or(u64::MAX, |(most, current)| most.saturating_sub(current));
    host_kib.map_or(u64::MAX, |kib| kib << 10).min(group_bytes)
}

/// Blocks of a large message: each has its number, and bytes that depend on the number.
struct Blocks {
    source: Vec<u8>,
}

impl Blocks {
    fn new() -> Self {
        Self { source: pattern(2 * BLOCK, 11) }
    }

    fn write(&self, number: u64, block: &mut [u8]) {
        let offset = number as usize % (BLOCK - 1);
        block.copy_from_slice(&self.source[offset..][..BLOCK]);
        block[..8].copy_from_slice(&number.to_le_bytes());
    }

    fn fill(&self, message: &mut [u8]) {
        for (number, block) in (0..).zip(message.chunks_exact_mut(BLOCK)) {
            self.write(number, block);
        }
    }

    /// Panics unless the message is a response of `RENUMBER`.
    fn check_renumbered(&self, message: &[u8]) {
        assert_eq!(message.len(), LARGEST);
        let mut expected = [0; BLOCK];
        for (number, block) in (0..).zip(message.chunks_exact(BLOCK)) {
            self.write(number, &mut expected);
            renumber(&mut expected);
            assert!(block == expected, "block {number} differs");
        }
    }
}

fn renumber(block: &mut [u8]) {
    block[..8].iter_mut().for_each(|byte| *byte = !*byte);
}

fn config(udp: bool) -> EndpointConfig {
    let mut config = over(udp, !udp);
    config.sessions.message_bytes_max = LARGEST as u32;
    // One message takes a block of 1.5 GiB, of which it uses two thirds.
    config.memory.max_bytes = 8 << 30;
    config
}

fn server(config: EndpointConfig) -> Server {
    Server::start(config, "127.0.0.1:0", |endpoint| {
        // The response is made in the request's memory: the session's peer waits while the handler runs.
        endpoint.on(RENUMBER, |_, cx, request| {
            let (deferred, handled) = request.defer_message(cx);
            let (responder, mut message) = deferred.expect("the message came in several packets");
            message.chunks_exact_mut(BLOCK).for_each(renumber);
            responder.reply_buffer(cx, message);
            handled
        });
        endpoint.on(EXCEED, |_, cx, request| match cx.alloc(LARGEST + 1) {
            Ok(message) => request.reply_buffer(cx, message),
            Err(_) => request.fail(cx, Status::Internal, "the test has too little memory"),
        });
    })
}

#[test]
fn call__with_a_request_and_a_response_of_1_gib() {
    let available = available_bytes();
    if available < MEMORY_BYTES {
        let why = format!("{available} bytes of memory are left, the test needs {MEMORY_BYTES}");
        return skip(Need::Memory, why);
    }
    let blocks = Blocks::new();
    for udp in [true, false] {
        let server = server(config(udp));
        let mut client = client(config(udp));
        let session = client.connect_wait(server.address).unwrap();
        let mut request = client.alloc(LARGEST).unwrap();
        blocks.fill(&mut request);
        let response = client.call(session, RENUMBER, request).wait().unwrap();
        blocks.check_renumbered(&response);
    }
}

/// No byte of these messages is written, so they take no memory.
#[test]
fn call__with_a_message_above_1_gib_is_refused_by_name() {
    for udp in [true, false] {
        let server = server(config(udp));
        let mut client = client(config(udp));
        let session = client.connect_wait(server.address).unwrap();
        let request = client.alloc(LARGEST + 1).unwrap();
        let error = client.call(session, RENUMBER, request).wait().unwrap_err();
        assert_eq!(error.status, Status::ResourceExhausted);
        assert!(error.message.contains("1073741825 bytes, and the server accepts 1073741824"));
        let error = client.call(session, EXCEED, "").wait().unwrap_err();
        assert_eq!(error.status, Status::ResourceExhausted);
        assert!(error.message.contains("exceeds what the caller accepts"), "{error}");
    }
}

/// The limit of messages alone does not make room for them.
#[test]
fn call__with_a_message_beyond_the_servers_memory_is_refused_by_name() {
    for udp in [true, false] {
        let mut small = config(udp);
        small.memory.max_bytes = 256 << 20;
        let server = server(small);
        let mut client = client(config(udp));
        let session = client.connect_wait(server.address).unwrap();
        let request = client.alloc(LARGEST).unwrap();
        let error = client.call(session, RENUMBER, request).wait().unwrap_err();
        assert_eq!(error.status, Status::ResourceExhausted);
        assert!(error.message.contains("memory"), "{error}");
    }
}

#[test]
fn config__a_limit_above_1_gib_is_refused() {
    let mut config = config(true);
    config.sessions.message_bytes_max += 1;
    let refused = crate::common::nexus(None).endpoint(config).err().unwrap().to_string();
    assert!(refused.contains("1 GiB"), "{refused}");
}
