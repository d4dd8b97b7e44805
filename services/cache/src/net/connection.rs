//! A connection: the socket, received bytes, and bytes to send.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::Ordering;

use mio::net::TcpStream;

use super::clients::Active;
use super::replies::Replies;
use super::tls::Tls;
use crate::limits::{MEMORY_WAIT_MS, OUTPUT_BYTES_MAX, READ_BYTES, REPLIES_MAX, SAFE_BYTES};
use crate::memcached::Parser;

/// Memory for output that a connection keeps when nothing is to be sent.
const OUTPUT_KEPT_BYTES: usize = 4 << 10;

pub(super) struct Connection {
    pub(super) socket: TcpStream,
    /// Differs between connections that had one number after another.
    pub(super) generation: u32,
    /// The bytes of the socket are inside TLS.
    tls: Option<Box<Tls>>,
    /// The client has given a password.
    pub(super) is_authenticated: bool,
    /// Wrong passwords so far.
    pub(super) failed_logins: u32,
    pub(super) parser: Parser,
    /// Bytes that have come and were kept. Requests have used the first.
    input: Vec<u8>,
    used: usize,
    pub(super) output: Vec<u8>,
    /// Bytes of the output that have been sent.
    written: usize,
    pub(super) replies: Replies,
    can_read: bool,
    can_write: bool,
    /// The peer has closed its side: reading goes on until the end shows.
    is_read_closed: bool,
    /// No bytes are read any more; the connection closes when the complete requests among those it has are run.
    pub(super) is_reading_over: bool,
    /// No request runs any more; the connection ends when its replies are sent.
    pub(super) is_closing: bool,
    /// The thread will look at the connection in this turn.
    pub(super) is_queued: bool,
    /// A request has been run.
    is_used: bool,
    /// The second in which bytes last came or went.
    active: Active,
    /// Bytes that were read and written and are not counted yet.
    traffic: (u64, u64),
    /// The beginning, in milliseconds, of a time with more than [`SAFE_BYTES`] in which no request has ended, nor the sending of
    /// replies.
    pub(super) heavy_since: Option<u64>,
    pub(super) wait: Option<MemoryWait>,
}

/// The wait of a connection for memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryWait {
    /// The bytes of the request; 0 for a wait until memory is not short.
    pub(super) bytes: usize,
    /// The millisecond in which the wait ends with a refusal.
    pub(super) ends_ms: u64,
    /// Whether the thread has the connection in its list.
    pub(super) is_listed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    Bytes(usize),
    /// Nothing has come.
    Later,
    /// The peer has sent everything, or the connection is broken.
    Ended,
}

impl MemoryWait {
    /// Returns true if a request need not be refused yet.
    pub(super) fn has_time(&self, now_ms: u64) -> bool {
        self.bytes == 0 || now_ms < self.ends_ms
    }
}

impl Connection {
    pub(super) fn new(socket: TcpStream, generation: u32, active: Active) -> Self {
        Self {
            socket,
            generation,
            tls: None,
            is_authenticated: false,
            failed_logins: 0,
            parser: Parser::new(),
            input: Vec::new(),
            used: 0,
            output: Vec::new(),
            written: 0,
            replies: Replies::default(),
            can_read: true,
            can_write: true,
            is_read_closed: false,
            is_reading_over: false,
            is_closing: false,
            is_queued: false,
            is_used: false,
            active,
            traffic: (0, 0),
            heavy_since: None,
            wait: None,
        }
    }

    /// Has the bytes of the socket be inside TLS.
    pub(super) fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls: tls.map(Box::new), ..self }
    }

    /// The socket has become ready.
    pub(super) fn note_ready(&mut self, event: &mio::event::Event) {
        self.can_read |= event.is_readable() || event.is_error();
        self.can_write |= event.is_writable() || event.is_error();
        self.is_read_closed |= event.is_read_closed();
    }

    /// Reads once to `buffer`. A read that fills only a part has taken everything: no second call asks for more, unless the
    /// peer has closed its side, for which no further event comes. Bytes inside TLS may contain nothing for the program: the
    /// connection then takes a further turn, behind all waiting connections.
    pub(super) fn read(&mut self, buffer: &mut [u8], now: u32) -> ReadOutcome {
        if !self.can_read() {
            return ReadOutcome::Later;
        }
        if let Some(outcome) = self.tls.as_mut().and_then(|tls| read_decrypted(tls, buffer)) {
            return outcome;
        }
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return ReadOutcome::Ended,
                Ok(bytes) => {
                    self.can_read = bytes == buffer.len() || self.is_read_closed;
                    self.active.store(now, Ordering::Relaxed);
                    self.traffic.0 += bytes as u64;
                    return match self.tls.is_some() {
                        true => self.decrypt(buffer, bytes),
                        false => ReadOutcome::Bytes(bytes),
                    };
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.can_read = false;
                    return ReadOutcome::Later;
                }
                Err(_) => return ReadOutcome::Ended,
            }
        }
    }

    /// Decrypts the first `count` bytes of `buffer` in place.
    fn decrypt(&mut self, buffer: &mut [u8], count: usize) -> ReadOutcome {
        let tls = self.tls.as_mut().expect("the bytes are inside TLS");
        if let Err(reply) = tls.receive(&buffer[..count]) {
            if let Some(reply) = reply {
                self.tls = None;
                self.output.extend_from_slice(reply);
            }
            return ReadOutcome::Ended;
        }
        let outcome = match read_decrypted(tls, buffer) {
            Some(outcome) => outcome,
            None if tls.is_patient(count) => ReadOutcome::Later,
            None => ReadOutcome::Ended,
        };
        // More may be decrypted than the buffer takes.
        self.can_read |= outcome == ReadOutcome::Bytes(buffer.len());
        outcome
    }

    /// Returns true if the bytes of the socket are inside TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Sends the output, as far as the socket takes it.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self, now: u32) -> io::Result<()> {
        let is_last = self.is_closing && self.replies.is_empty();
        loop {
            let mut bytes = &self.output[self.written..];
            if let Some(tls) = &mut self.tls {
                self.written += tls.seal(bytes, is_last);
                bytes = tls.unsent();
            }
            if !self.can_write || bytes.is_empty() {
                break;
            }
            match self.socket.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    match &mut self.tls {
                        Some(tls) => tls.note_sent(bytes),
                        None => self.written += bytes,
                    }
                    self.active.store(now, Ordering::Relaxed);
                    self.traffic.1 += bytes as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                Err(error) => return Err(error),
            }
        }
        if let Some(tls) = &mut self.tls {
            tls.trim();
        }
        if self.written == self.output.len() {
            self.written = 0;
            match self.output.capacity() > OUTPUT_KEPT_BYTES {
                true => self.output = Vec::new(),
                false => self.output.clear(),
            }
        }
        Ok(())
    }

    /// Prepares the output for a reply of `bytes` bytes.
    pub(super) fn make_room(&mut self, bytes: usize) {
        self.written -= make_room(&mut self.output, self.written, bytes);
    }

    /// Bytes of replies that have not been sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        let sealed = self.tls.as_ref().map_or(0, |tls| tls.unsent().len());
        self.output.len() - self.written + sealed
    }

    /// Returns true if the replies must be sent before further requests run.
    pub(super) fn is_full(&self) -> bool {
        let ready_bytes = self.unsent_bytes() + self.replies.bytes();
        ready_bytes > OUTPUT_BYTES_MAX
            || ready_bytes + self.replies.expected_bytes() >= OUTPUT_BYTES_MAX
                && !self.replies.is_empty()
            || self.replies.len() >= REPLIES_MAX
    }

    /// Returns true if the client waits for this reply, and has read those before.
    pub(super) fn needs(&self, sequence: u64) -> bool {
        self.replies.is_next(sequence) && self.unsent_bytes() <= OUTPUT_BYTES_MAX
    }

    /// Returns true if the connection can end: nothing is to be sent any more.
    pub(super) fn is_finished(&self) -> bool {
        self.is_closing && self.unsent_bytes() == 0 && self.replies.is_empty()
    }

    /// Returns true if bytes may have come that were not read.
    pub(super) fn can_read(&self) -> bool {
        self.can_read && !self.is_reading_over && !self.is_closing
    }

    /// Seconds without a byte in either direction.
    pub(super) fn idle_s(&self, now: u32) -> u32 {
        now.saturating_sub(self.active.load(Ordering::Relaxed))
    }

    /// Removes and returns the bytes that were read and written since the last call.
    pub(super) fn take_traffic(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.traffic)
    }

    /// Notes that a request has been run; returns true for the first.
    pub(super) fn note_use(&mut self) -> bool {
        !std::mem::replace(&mut self.is_used, true)
    }

    /// Notes that the requests wait for memory, or do not wait any more. The time of a wait begins anew with another reason.
    pub(super) fn note_wait(&mut self, bytes: Option<usize>, now_ms: u64) {
        let former = self.wait;
        self.wait = bytes.map(|bytes| {
            let same = former.filter(|wait| (wait.bytes > 0) == (bytes > 0));
            MemoryWait {
                bytes,
                ends_ms: same.map_or(now_ms + MEMORY_WAIT_MS, |wait| wait.ends_ms),
                is_listed: former.is_some_and(|wait| wait.is_listed),
            }
        });
    }

    /// Notes whether the connection holds much memory, at the end of its turn. `has_advanced`: a request has been run.
    pub(super) fn note_weight(&mut self, now_ms: u64, has_advanced: bool) {
        let is_heavy = self.held_bytes() > SAFE_BYTES;
        let since = self.heavy_since.filter(|_| !has_advanced).unwrap_or(now_ms);
        self.heavy_since = is_heavy.then_some(since);
    }

    /// The memory for buffers.
    pub(super) fn held_bytes(&self) -> usize {
        let sealed = self.tls.as_ref().map_or(0, |tls| tls.held_bytes());
        self.input.capacity() + self.output.capacity() + self.replies.held_bytes() + sealed
    }

    /// Kept bytes that no request has used.
    pub(super) fn kept_bytes(&self) -> usize {
        self.input.len() - self.used
    }

    /// Keeps the rest of the bytes that have come.
    pub(super) fn keep(&mut self, rest: &[u8], needed: usize) {
        let kept = self.kept_bytes();
        if needed > kept {
            self.input.drain(..std::mem::take(&mut self.used));
            // A value of known size gets its memory at once.
            self.input.reserve_exact(rest.len().max(needed - kept));
        }
        self.input.extend_from_slice(rest);
    }

    /// Lets `run` use the kept bytes. The function returns the number of used bytes.
    pub(super) fn use_kept<T>(&mut self, run: impl FnOnce(&mut Self, &[u8]) -> (usize, T)) -> T {
        let input = std::mem::take(&mut self.input);
        let (used, result) = run(self, &input[self.used..]);
        self.input = input;
        self.used += used;
        if self.used == self.input.len() {
            (self.input, self.used) = (Vec::new(), 0);
        } else if self.used > self.input.len() / 2 {
            // Each byte moves once at most: a long list of keys is used in many turns.
            self.input.drain(..std::mem::take(&mut self.used));
        }
        result
    }
}

/// Returns decrypted bytes, or the end after the last; `None` if the socket is next.
fn read_decrypted(tls: &mut Tls, buffer: &mut [u8]) -> Option<ReadOutcome> {
    match tls.read(buffer) {
        0 => tls.has_ended().then_some(ReadOutcome::Ended),
        bytes => Some(ReadOutcome::Bytes(bytes)),
    }
}

/// Returns true if the rest of a request of `needed` bytes, of which some were read, lies in the socket.
pub(super) fn has_come(socket: &TcpStream, needed: usize, read: usize) -> bool {
    let in_socket = rustix::io::ioctl_fionread(socket);
    needed > read && in_socket.is_ok_and(|bytes| bytes >= (needed - read) as u64)
}

/// Prepares the output for a reply of `bytes` bytes, where the output has to grow. Returns the number of sent bytes that
/// were removed from its front.
///
/// Sent bytes leave first, and a large reply gets no more than its own memory. With a vector's doubled memory, a client that
/// read values of a mebibyte slowly had more than the memory of all connections, and was closed.
fn make_room(output: &mut Vec<u8>, written: usize, bytes: usize) -> usize {
    if output.capacity() - output.len() >= bytes {
        return 0;
    }
    output.drain(..written);
    if bytes > READ_BYTES {
        output.reserve_exact(bytes);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_kept__goes_on_behind_the_used_bytes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut connection = Connection::new(socket, 1, Active::new(1.into()));
        connection.keep(b"0123456789", 0);
        for expected in 0..10 {
            if expected == 4 {
                connection.keep(b"ab", 12);
            }
            let first = connection.use_kept(|_, input| (1, input[0]));
            assert_eq!(first, b'0' + expected);
        }
        assert_eq!(connection.use_kept(|_, input| (input.len(), input.to_vec())), b"ab");
        assert_eq!((connection.kept_bytes(), connection.held_bytes()), (0, 0));
    }

    /// A client that does not read its replies needs no further replies.
    #[test]
    fn needs__the_next_reply_of_a_client_that_reads() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut connection = Connection::new(socket, 1, Active::new(1.into()));
        let [first, second] = [(); 2].map(|()| connection.replies.owe());
        for (unsent, needs_first) in
            [(0, true), (OUTPUT_BYTES_MAX, true), (OUTPUT_BYTES_MAX + 1, false)]
        {
            connection.output.resize(unsent, 0);
            assert_eq!(connection.needs(first), needs_first, "{unsent}");
            assert!(!connection.needs(second), "the first is owed before");
        }
        // Sent bytes count no more.
        connection.written = 1;
        assert!(connection.needs(first));
    }

    #[test]
    fn make_room__of_a_large_reply_takes_its_size_and_drops_sent_bytes() {
        let large = 8 * READ_BYTES;
        let mut output = vec![7; 3 * large];
        output[2 * large..].fill(9);
        assert_eq!(make_room(&mut output, 2 * large, large), 2 * large);
        assert_eq!(output, vec![9; large]);
        // The memory of the sent bytes takes two further replies.
        let before = output.capacity();
        for replies in 2..=3 {
            assert_eq!(make_room(&mut output, 0, large), 0);
            output.resize(replies * large, 9);
            assert_eq!(output.capacity(), before);
        }
        assert_eq!(make_room(&mut output, 0, large), 0);
        assert!(output.capacity() < 5 * large, "{} bytes", output.capacity());
    }

    #[test]
    fn make_room__of_a_small_reply_leaves_the_growth_to_the_vector() {
        let mut output = Vec::with_capacity(100);
        output.extend([1; 90]);
        assert_eq!(make_room(&mut output, 50, 10), 0);
        assert_eq!(make_room(&mut output, 50, 11), 50);
        assert_eq!((output.len(), output.capacity()), (40, 100));
    }
}
