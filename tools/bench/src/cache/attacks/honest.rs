//! Honest clients of memcached's protocol: values of several sizes without pause, each answer checked, and newcomers.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use petrel_command::failure::Failure;

use super::kinds::PAGE_KEY;
use crate::attacks::{Honest, Report, Shared};

/// Honest clients with a connection each: both servers give consecutive connections to their threads in turn.
const CLIENTS: usize = 2;

/// Sizes of values in bytes: mostly small, some of several reads.
const SIZES: [usize; 16] =
    [32, 32, 32, 1_440, 32, 32, 5_000, 32, 32, 32, 60_000, 32, 32, 1_440, 32, 100 << 10];

/// A longer call has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause before an honest client connects again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct Client {
    socket: BufReader<TcpStream>,
    bytes: Vec<u8>,
}

impl Client {
    pub(super) fn connect(server: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&server, CALL_TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(CALL_TIMEOUT))?;
        socket.set_write_timeout(Some(CALL_TIMEOUT))?;
        Ok(Self { socket: BufReader::with_capacity(64 << 10, socket), bytes: Vec::new() })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.socket.get_mut().write_all(bytes).map_err(|error| describe(&error))
    }

    fn line(&mut self) -> Result<(), String> {
        self.bytes.clear();
        match self.socket.read_until(b'\n', &mut self.bytes) {
            Ok(0) => Err("the server has closed the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(describe(&error)),
        }
    }

    fn wrong(&self) -> String {
        format!("the reply is {}", self.bytes[..self.bytes.len().min(80)].escape_ascii())
    }

    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let length = value.len().to_string();
        let head = [b"set ", key, b" 0 0 ", length.as_bytes(), b"\r\n"].concat();
        self.send(&[&head, value, b"\r\n"].concat())?;
        self.line()?;
        if self.bytes == b"STORED\r\n" { Ok(()) } else { Err(self.wrong()) }
    }

    /// Returns a value, or `None` if the key has none.
    pub(super) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.send(&[b"get ", key, b"\r\n"].concat())?;
        self.line()?;
        if self.bytes == b"END\r\n" {
            return Ok(None);
        }
        let head = [b"VALUE ", key, b" 0 "].concat();
        let length = self.bytes.strip_prefix(&head[..]).and_then(|it| it.strip_suffix(b"\r\n"));
        let length = length.and_then(|text| std::str::from_utf8(text).ok()?.parse::<usize>().ok());
        let Some(length) = length else { return Err(self.wrong()) };
        let mut value = vec![0; length + 2];
        self.socket.read_exact(&mut value).map_err(|error| describe(&error))?;
        self.line()?;
        if self.bytes != b"END\r\n" {
            return Err(self.wrong());
        }
        value.truncate(length);
        Ok(Some(value))
    }

    /// Sends requests at once, and reads replies up to as many lines `END`.
    pub(super) fn pipeline(&mut self, requests: &[u8], ends: usize) -> Result<(), String> {
        self.send(requests)?;
        let mut left = ends;
        while left > 0 {
            self.line()?;
            left -= usize::from(self.bytes == b"END\r\n");
            if self.bytes.starts_with(b"CLIENT_ERROR") || self.bytes.starts_with(b"ERROR") {
                return Err(self.wrong());
            }
        }
        Ok(())
    }
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("no reply in {CALL_TIMEOUT:?}"),
        _ => error.to_string(),
    }
}

/// Starts the clients.
pub(super) fn start(server: SocketAddr) -> Result<Honest, Failure> {
    let clients = (0..CLIENTS).map(|_| Client::connect(server));
    let clients = clients.collect::<Result<Vec<_>, _>>()?;
    let run = |(number, client)| move |shared: &Shared| call(server, number, client, shared);
    Ok(Honest::start(clients.into_iter().enumerate().map(run)))
}

/// Stores and fetches values until the end.
fn call(server: SocketAddr, number: usize, client: Client, shared: &Shared) -> Report {
    let (mut report, mut client) = (Report::default(), Some(client));
    while !shared.is_over() {
        let step = (report.calls / 2) as usize;
        let value = vec![step as u8; SIZES[step % SIZES.len()]];
        let key = format!("honest-{number}-{}", step % SIZES.len());
        let is_set = report.calls.is_multiple_of(2);
        let outcome = match &mut client {
            None => Err("the server accepts no connection".to_owned()),
            Some(client) if is_set => client.set(key.as_bytes(), &value),
            Some(client) => match client.get(key.as_bytes()) {
                Ok(Some(stored)) if stored != value => Err("the value is wrong".to_owned()),
                Ok(stored) => {
                    report.missed += u64::from(stored.is_none());
                    Ok(())
                }
                Err(failure) => Err(failure),
            },
        };
        report.calls += 1;
        let Err(failure) = outcome else {
            shared.count();
            continue;
        };
        report.failed += 1;
        let name = if is_set { "set" } else { "get" };
        report.failure.get_or_insert(format!("{name} of {} B: {failure}", value.len()));
        thread::sleep(RECONNECT_PAUSE);
        client = Client::connect(server).ok();
        // Only a `get` after a successful `set` can find the value.
        report.calls += u64::from(is_set);
        report.failed += u64::from(is_set);
    }
    report
}

/// Runs an independent client: connects, stores and fetches a small and a larger value, and looks for values from web
/// pages.
pub(super) fn newcomer(server: SocketAddr) -> Result<(), String> {
    let mut client = Client::connect(server).map_err(|error| describe(&error))?;
    for size in [32, 100 << 10] {
        let value = vec![b'n'; size];
        client.set(b"newcomer", &value)?;
        if client.get(b"newcomer")?.is_some_and(|stored| stored != value) {
            return Err("the value is wrong".to_owned());
        }
    }
    match client.get(PAGE_KEY)? {
        None => Ok(()),
        Some(_) => Err("a command in the body of HTTP was run".to_owned()),
    }
}
