//! TCP over loopback or between namespaces, polled: messages of equal length in a stream, answered when they are complete.
//!
//! The ends keep messages in flight in a ring of memory. The kernel copies from and to the ring, and the program
//! copies nothing. Messages that are ready leave together, by a single system call.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use petrel_command::failure::Failure;
use petrel_command::output::latency::Latencies;
use petrel_transport::clock;

use super::super::ends::{ClientEnd, ServerEnd};
use super::super::window::Window;
use super::{WindowCounts, message_bytes, socket};

/// A byte of a message behind its number.
const FILLING: u8 = 0x5a;

/// Memory of the messages in flight; positions count the bytes of the whole stream.
struct Ring {
    memory: Box<[u8]>,
    message_bytes: usize,
    /// The stream's first byte that is still wanted, or not sent yet.
    begin: u64,
    /// The stream's first byte that does not exist yet.
    end: u64,
}

impl Ring {
    fn new(message_bytes: usize, messages: u16) -> Self {
        let memory = vec![FILLING; message_bytes * usize::from(messages)].into();
        Self { memory, message_bytes, begin: 0, end: 0 }
    }

    /// Returns the place of message `number`.
    fn message(&mut self, number: u64) -> &mut [u8] {
        let at = self.index(number * self.message_bytes as u64);
        &mut self.memory[at..at + self.message_bytes]
    }

    fn index(&self, position: u64) -> usize {
        (position % self.memory.len() as u64) as usize
    }

    /// Sends from `begin` up to `end`, for as long as the socket has room.
    fn send(&mut self, mut socket: &TcpStream, end: u64) -> io::Result<()> {
        while self.begin < end {
            let at = self.index(self.begin);
            let bytes = ((end - self.begin) as usize).min(self.memory.len() - at);
            match socket.write(&self.memory[at..at + bytes]) {
                Ok(sent) => self.begin += sent as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives behind `end`, by one system call. Returns false if nothing came.
    fn receive(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        let at = self.index(self.end);
        let room = self.memory.len() - (self.end - self.begin) as usize;
        let bytes = room.min(self.memory.len() - at);
        match socket.read(&mut self.memory[at..at + bytes]) {
            Ok(0) if bytes > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(received) => {
                self.end += received as u64;
                Ok(received > 0)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of whole messages before `end`.
    fn whole(&self) -> u64 {
        self.end / self.message_bytes as u64
    }
}

/// The calling end.
pub(in super::super) struct Caller {
    socket: TcpStream,
    requests: Ring,
    responses: Ring,
    in_flight: u64,
    size: usize,
    /// The times of the calls in flight, by place in the ring.
    called_ns: Box<[u64]>,
    started: u64,
    answered: u64,
    started_ns: u64,
    end_ns: u64,
    is_stopping: bool,
    window: WindowCounts,
    /// `Some` if each call is timed.
    latencies: Option<Latencies>,
}

/// The answering end. The connection is accepted by the first poll with a caller.
pub(in super::super) struct Echo {
    listener: TcpListener,
    socket: Option<TcpStream>,
    messages: Ring,
}

impl Caller {
    /// Creates a calling end, for messages of `size` bytes.
    pub(in super::super) fn connect(
        server: SocketAddr,
        (size, in_flight): (usize, u16),
        is_timed: bool,
    ) -> Result<Self, Failure> {
        let socket = TcpStream::connect(server)?;
        prepare(&socket)?;
        let bytes = message_bytes(size);
        Ok(Self {
            socket,
            requests: Ring::new(bytes, in_flight),
            responses: Ring::new(bytes, in_flight),
            in_flight: in_flight.into(),
            size,
            called_ns: vec![0; in_flight.into()].into(),
            started: 0,
            answered: 0,
            started_ns: 0,
            end_ns: 0,
            is_stopping: true,
            window: WindowCounts::default(),
            latencies: is_timed.then(Latencies::default),
        })
    }

    /// Makes the allowed calls, and sends as much as the socket takes.
    fn call(&mut self, now_ns: u64) -> io::Result<()> {
        self.is_stopping |= now_ns >= self.end_ns;
        while !self.is_stopping && self.started - self.answered < self.in_flight {
            let number = self.started.to_le_bytes();
            self.requests.message(self.started)[..8].copy_from_slice(&number);
            self.called_ns[(self.started % self.in_flight) as usize] = now_ns;
            self.started += 1;
            self.window.calls += 1;
        }
        self.requests.end = self.started * self.requests.message_bytes as u64;
        self.requests.send(&self.socket, self.requests.end)
    }

    /// Checks the responses that have become whole, and frees their memory.
    fn check(&mut self) {
        let whole = self.responses.whole();
        if whole == self.answered {
            return;
        }
        let now_ns = clock::now_ns();
        for number in self.answered..whole {
            let response = self.responses.message(number);
            let is_right = socket::stamp(response) == number && response.last() == Some(&FILLING);
            self.window.answered += 1;
            self.window.mismatched += u64::from(!is_right);
            if let Some(latencies) = &mut self.latencies {
                let called_ns = self.called_ns[(number % self.in_flight) as usize];
                latencies.record(now_ns - called_ns);
            }
        }
        self.answered = whole;
        self.responses.begin = whole * self.responses.message_bytes as u64;
    }

    fn poll(&mut self) -> io::Result<()> {
        if self.responses.receive(&self.socket)? {
            self.check();
            self.call(clock::now_ns())?;
        } else if self.requests.begin < self.requests.end {
            self.requests.send(&self.socket, self.requests.end)?;
        }
        Ok(())
    }

    /// Gives up all calls in flight: their answers would be taken for answers to later calls.
    fn end(&mut self) {
        self.is_stopping = true;
        self.window.lost += self.started - self.answered;
        self.answered = self.started;
    }
}

impl ClientEnd for Caller {
    fn begin(&mut self, end_ns: u64) {
        self.window = WindowCounts::default();
        (self.end_ns, self.is_stopping) = (end_ns, false);
        self.started_ns = clock::now_ns();
        if self.call(self.started_ns).is_err() {
            self.end();
        }
    }

    #[inline]
    fn poll_once(&mut self) {
        if self.poll().is_err() {
            self.end();
        }
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.is_stopping && self.answered == self.started
    }

    fn give_up(&mut self, _: Duration) {
        // A broken stream is of no use: later windows end with an error.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.end();
    }

    fn finish(&mut self) -> Window {
        self.window.bytes = self.window.answered * self.size as u64;
        let latencies = self.latencies.as_mut().map(std::mem::take);
        self.window.finish(self.started_ns, latencies)
    }
}

impl Echo {
    /// Creates an answering end at a free port, for messages of `size` bytes.
    pub(in super::super) fn bind(
        address: IpAddr,
        (size, in_flight): (usize, u16),
    ) -> Result<Self, Failure> {
        let listener = TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, socket: None, messages: Ring::new(message_bytes(size), in_flight) })
    }

    /// Returns the listener's address.
    pub(in super::super) fn address(&self) -> Result<SocketAddr, Failure> {
        Ok(self.listener.local_addr()?)
    }

    fn poll(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            let (socket, _) = self.listener.accept()?;
            prepare(&socket)?;
            self.socket = Some(socket);
            return Ok(());
        };
        self.messages.receive(socket)?;
        let end = self.messages.whole() * self.messages.message_bytes as u64;
        self.messages.send(socket, end)
    }
}

impl ServerEnd for Echo {
    #[inline]
    fn poll_once(&mut self) {
        // The other end reports a broken connection.
        let _ = self.poll();
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(size: usize, in_flight: u16, is_timed: bool) -> (Caller, Echo) {
        let echo = Echo::bind([127, 0, 0, 1].into(), (size, in_flight)).unwrap();
        let caller = Caller::connect(echo.address().unwrap(), (size, in_flight), is_timed).unwrap();
        (caller, echo)
    }

    #[test]
    fn ends__answer_all_that_was_sent() {
        // Messages of 1 MiB are longer than what a socket takes at once.
        for (size, in_flight, is_timed) in [(32, 60, false), (1 << 20, 3, false), (32, 1, true)] {
            let (mut caller, mut echo) = ends(size, in_flight, is_timed);
            for _ in 0..2 {
                caller.begin(clock::now_ns() + 2_000_000);
                while !caller.is_over() {
                    caller.poll_once();
                    echo.poll_once();
                }
                let window = caller.finish();
                assert!(window.calls >= u64::from(in_flight));
                assert_eq!((window.checked, window.mismatched), (window.calls, 0));
                let timed = window.latencies.map(|latencies| latencies.summary().unwrap().count);
                assert_eq!(timed, is_timed.then_some(window.checked));
            }
        }
    }

    #[test]
    fn check__distinguishes_lost_from_wrong() {
        let (mut caller, mut echo) = ends(32, 2, false);
        caller.begin(u64::MAX);
        echo.poll_once();
        while echo.messages.whole() < 2 {
            echo.messages.receive(echo.socket.as_ref().unwrap()).unwrap();
        }
        echo.messages.message(1)[47] ^= 1;
        while caller.window.answered < 2 {
            echo.poll_once();
            caller.poll_once();
        }
        assert_eq!(caller.window.mismatched, 1);
        caller.give_up(Duration::ZERO);
        let window = caller.finish();
        assert_eq!(window.lost, window.calls - window.checked);
        assert!(caller.is_over());
    }
}
