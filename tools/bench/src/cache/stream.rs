//! The load generator of memcached's protocol: connections with pipelined requests, on one thread.
//!
//! Each connection sends a batch of requests, and then reads all replies; the connections take turns, so that the server
//! works on the batches of the others meanwhile.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use petrel_command::failure::Failure;

use super::Work;
use super::keys::{Items, Popularity};

/// Connections, unless fewer operations are in flight.
const CONNECTIONS: u16 = 16;

/// Requests of a batch that stores the items.
const FILL_BATCH: u32 = 256;

/// A guard against hanging.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Stream {
    items: Items,
    connections: Vec<Connection>,
    depth: u16,
    rng: fastrand::Rng,
    bytes: Vec<u8>,
}

struct Connection {
    socket: BufReader<TcpStream>,
    /// The operations without a reply, and whether each is a GET.
    batch: Vec<(u32, bool)>,
    sent: Instant,
    line: Vec<u8>,
}

impl Stream {
    pub(super) fn connect(
        address: SocketAddr,
        items: Items,
        in_flight: u16,
    ) -> Result<Self, Failure> {
        let count = in_flight.min(CONNECTIONS);
        let connections = (0..count).map(|_| Connection::new(address)).collect::<Result<_, _>>()?;
        let rng = fastrand::Rng::with_seed(0x7065_7472_656c);
        Ok(Self { items, connections, depth: in_flight.div_ceil(count), rng, bytes: Vec::new() })
    }

    /// Stores all items.
    pub(super) fn fill(&mut self, count: u32) -> Result<Work, Failure> {
        let mut work = Work::default();
        let connection = &mut self.connections[0];
        for first in (0..count).step_by(FILL_BATCH as usize) {
            let batch = (first..count.min(first + FILL_BATCH)).map(|number| (number, false));
            connection.send(self.items, batch, &mut self.bytes)?;
            connection.receive(self.items, &mut work)?;
        }
        Ok(work)
    }

    /// Makes operations for a window.
    pub(super) fn window(
        &mut self,
        popularity: &Popularity,
        get: u8,
        length: Duration,
    ) -> Result<Work, Failure> {
        let (mut work, begin) = (Work::default(), Instant::now());
        let Self { items, connections, depth, rng, bytes } = self;
        let mut goes_on = true;
        while goes_on || connections.iter().any(|connection| !connection.batch.is_empty()) {
            goes_on = goes_on && begin.elapsed() < length;
            for connection in &mut *connections {
                if !connection.batch.is_empty() {
                    connection.receive(*items, &mut work)?;
                }
                if goes_on {
                    let operations =
                        (0..*depth).map(|_| (popularity.draw(rng), rng.u8(..100) < get));
                    connection.send(*items, operations, bytes)?;
                }
            }
        }
        work.elapsed_ns = begin.elapsed().as_nanos() as u64;
        Ok(work)
    }
}

impl Connection {
    fn new(address: SocketAddr) -> Result<Self, Failure> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let (batch, line) = (Vec::new(), Vec::new());
        Ok(Self {
            socket: BufReader::with_capacity(64 << 10, socket),
            batch,
            sent: Instant::now(),
            line,
        })
    }

    fn send(
        &mut self,
        items: Items,
        operations: impl Iterator<Item = (u32, bool)>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        bytes.clear();
        for (number, is_get) in operations {
            bytes.extend_from_slice(if is_get { b"get " } else { b"set " });
            items.put_key(number, bytes);
            if !is_get {
                write!(bytes, " 0 0 {}\r\n", items.value_bytes)?;
                items.put_value(number, bytes);
            }
            bytes.extend_from_slice(b"\r\n");
            self.batch.push((number, is_get));
        }
        self.sent = Instant::now();
        Ok(self.socket.get_mut().write_all(bytes)?)
    }

    /// Reads and checks the replies to the batch.
    fn receive(&mut self, items: Items, work: &mut Work) -> Result<(), Failure> {
        for (number, is_get) in std::mem::take(&mut self.batch) {
            self.read_line()?;
            work.count += 1;
            match (is_get, self.line.as_slice()) {
                (false, line) => work.wrong += u64::from(line != b"STORED\r\n"),
                (true, b"END\r\n") => work.missed += 1,
                (true, line) => {
                    let is_value = line.starts_with(b"VALUE ");
                    self.line.resize(items.value_bytes + b"\r\nEND\r\n".len(), 0);
                    self.socket.read_exact(&mut self.line)?;
                    let (value, end) = self.line.split_at(items.value_bytes);
                    let is_right =
                        is_value && items.is_value(number, value) && end == b"\r\nEND\r\n";
                    work.wrong += u64::from(!is_right);
                }
            }
            work.latencies.record(self.sent.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    fn read_line(&mut self) -> Result<(), Failure> {
        self.line.clear();
        self.socket.read_until(b'\n', &mut self.line)?;
        match self.line.ends_with(b"\r\n") {
            true => Ok(()),
            false => Err(Failure::because("the server has closed a connection")),
        }
    }
}
