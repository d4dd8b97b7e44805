//! Bytes and descriptors over a Unix stream, on which a peer may send any.
//!
//! # Closing can block
//!
//! The last close of a descriptor runs its file's own code in the closing thread. A TCP socket with
//! `SO_LINGER` waits there until the data is acknowledged, for hours if the owner chose hours. A
//! peer that sends a lingering socket and closes its own copy makes the receiver's close the last.
//! Two more ways are to leave the socket in the queue of a Unix socket that the receiver closes, or
//! to send it to a receiver without room, where the kernel drops it.
//!
//! Therefore nothing here closes a peer's descriptor in the caller's thread, except memory files,
//! which close without waiting. A separate thread closes all further descriptors, and sockets with
//! descriptors in their queues ([`discard`], [`hang_up`]); the thread may be lost. At most
//! [`CLOSING_MAX`] closing threads exist. Beyond the limit descriptors are leaked, and
//! [`can_close`] returns false, for the owner to accept no more.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::credentials::peer_process;
use rustix::cmsg_space;
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, sendmsg, shutdown,
};

/// Most descriptors in a sent message. A pair of endpoints needs a single descriptor.
pub const MAX_FDS: usize = 8;

/// Most descriptors the kernel accepts in one message (`SCM_MAX_FD`). The receiver makes room for
/// all of them; otherwise the kernel would close the rest in the receiving thread.
const KERNEL_FDS_MAX: usize = 253;

const SEND_CONTROL_BYTES: usize = cmsg_space!(ScmRights(MAX_FDS));
const RECV_CONTROL_BYTES: usize = cmsg_space!(ScmRights(KERNEL_FDS_MAX));

/// Most concurrent threads for closes that may block: every thread stands for an attack by a peer.
pub const CLOSING_MAX: usize = 64;

/// Bytes that [`hang_up`] examines at once, and how often: more than the kernel queues by default.
const LOOK_BYTES: usize = 4096;
const LOOKS_MAX: usize = 256;

const CLOSING_STACK_BYTES: usize = 64 << 10;

static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Sends `bytes` and, with the first of them, `fds`. Returns the number of accepted bytes; send the
/// rest without `fds`.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] without bytes or with more than [`MAX_FDS`] descriptors, and the
/// kernel's errors. A closed peer is an error, not a signal.
pub fn send_with_fds(
    stream: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if bytes.is_empty() || fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); SEND_CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and at most `max_fds` descriptors sent with them; the descriptors close on
/// `exec`. Further descriptors are [discarded](discard). Zero bytes mean that the peer has closed
/// the stream.
///
/// # Errors
/// The kernel's errors, and [`io::ErrorKind::InvalidData`] if the kernel could not deliver wanted
/// descriptors because this process has too many open; delivered descriptors are then closed.
pub fn recv_with_fds(
    stream: &UnixStream,
    bytes: &mut [u8],
    max_fds: usize,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); RECV_CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(bytes)];
    let received = recvmsg(stream, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    if is_cut && fds.len() < max_fds {
        discard(fds);
        return Err(io::ErrorKind::InvalidData.into());
    }
    discard(fds.split_off(max_fds.min(fds.len())));
    Ok((received.bytes, fds))
}

/// The state of a stream's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queued {
    Nothing,
    /// Bytes without descriptors.
    Bytes(usize),
    /// Descriptors, attached to one of the next bytes.
    Descriptors,
    /// The peer has closed the stream, or it failed.
    End,
}

/// Examines up to `max` of the next bytes and receives none. Never blocks.
pub(super) fn look(stream: &UnixStream, max: usize) -> Queued {
    let mut bytes = [0; LOOK_BYTES];
    let mut buffers = [IoSliceMut::new(&mut bytes[..max.min(LOOK_BYTES)])];
    // Without room for descriptors, the kernel reports their presence and installs none.
    let mut control = RecvAncillaryBuffer::new(&mut []);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recvmsg(stream, &mut buffers, &mut control, flags) {
        Ok(seen) if seen.flags.contains(ReturnFlags::CTRUNC) => Queued::Descriptors,
        Ok(seen) if seen.bytes == 0 => Queued::End,
        Ok(seen) => Queued::Bytes(seen.bytes),
        Err(Errno::AGAIN | Errno::INTR) => Queued::Nothing,
        Err(_) => Queued::End,
    }
}

const IS_OPEN: &str = "a stream is open until it is dropped";

/// A stream to another process that closes by [`hang_up`].
#[derive(Debug)]
pub struct PeerStream(Option<UnixStream>);

impl PeerStream {
    /// Returns the user of the process at the other end when the two were connected.
    ///
    /// # Errors
    /// The kernel's.
    pub fn user(&self) -> io::Result<u32> {
        Ok(peer_process(self.as_fd())?.uid)
    }
}

impl From<UnixStream> for PeerStream {
    fn from(stream: UnixStream) -> Self {
        Self(Some(stream))
    }
}

impl Deref for PeerStream {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        self.0.as_ref().expect(IS_OPEN)
    }
}

impl DerefMut for PeerStream {
    fn deref_mut(&mut self) -> &mut UnixStream {
        self.0.as_mut().expect(IS_OPEN)
    }
}

impl AsFd for PeerStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl Drop for PeerStream {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(hang_up);
    }
}

/// A peer's descriptors, which close by [`discard`].
#[derive(Debug, Default)]
pub struct PeerFds(Vec<OwnedFd>);

impl PeerFds {
    /// Adds more descriptors.
    pub fn add(&mut self, fds: Vec<OwnedFd>) {
        self.0.extend(fds);
    }

    /// Returns the descriptor, unless none or several came.
    pub fn take_only(&mut self) -> Option<OwnedFd> {
        if self.0.len() == 1 { self.0.pop() } else { None }
    }

    /// The number of descriptors.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Drop for PeerFds {
    fn drop(&mut self) {
        discard(std::mem::take(&mut self.0));
    }
}

/// Closes a stream, without waiting for descriptors in the queue.
pub fn hang_up(stream: UnixStream) {
    // Nothing is queued afterwards. Fails only for a stream that is no longer connected.
    let _ = shutdown(&stream, Shutdown::Both);
    for _ in 0..LOOKS_MAX {
        match look(&stream, LOOK_BYTES) {
            Queued::Bytes(count) => {
                let taken = recv(&stream, &mut [0; LOOK_BYTES][..count], RecvFlags::DONTWAIT);
                if taken.is_err() {
                    break;
                }
            }
            Queued::Nothing | Queued::End => return,
            Queued::Descriptors => break,
        }
    }
    close_elsewhere(vec![stream.into()]);
}

/// Closes a peer's descriptors, without waiting.
pub fn discard(mut fds: Vec<OwnedFd>) {
    // Only memory files have seals, and closing them does not wait.
    fds.retain(|fd| fcntl_get_seals(fd.as_fd()).is_err());
    if !fds.is_empty() {
        close_elsewhere(fds);
    }
}

/// Returns true if a descriptor with a blocking close can be closed: false while blocking closes
/// hold up [`CLOSING_MAX`] threads.
pub fn can_close() -> bool {
    CLOSING.load(Ordering::Relaxed) < CLOSING_MAX
}

fn close_elsewhere(fds: Vec<OwnedFd>) {
    // Leaked if no thread can be had: a leak is better than a hang.
    let fds = ManuallyDrop::new(fds);
    if CLOSING.fetch_add(1, Ordering::Relaxed) < CLOSING_MAX {
        let thread = std::thread::Builder::new().name("petrel-close".to_owned());
        let started = thread.stack_size(CLOSING_STACK_BYTES).spawn(move || {
            drop(ManuallyDrop::into_inner(fds));
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_ok() {
            return;
        }
    }
    CLOSING.fetch_sub(1, Ordering::Relaxed);
}

#[cfg(test)]
#[allow(non_snake_case)]
pub(super) mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    use rustix::io::{FdFlags, fcntl_getfd};

    /// A pipe's two ends: the end of the first shows that all copies of the second are closed.
    fn pipe() -> (File, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        (reader.into(), writer)
    }

    #[test]
    fn recv_with_fds__gives_what_was_sent() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut reader, writer) = pipe();
        assert_eq!(send_with_fds(&a, b"hello", &[writer.as_fd()]).unwrap(), 5);
        drop(writer);
        let mut bytes = [0; 16];
        let (count, mut fds) = recv_with_fds(&b, &mut bytes, 1).unwrap();
        assert_eq!(&bytes[..count], b"hello");
        assert!(fcntl_getfd(&fds[0]).unwrap().contains(FdFlags::CLOEXEC));
        File::from(fds.pop().unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), fds.len()), ("through", 0));
    }

    #[test]
    fn recv_with_fds__closes_descriptors_that_are_too_many() {
        let (a, b) = UnixStream::pair().unwrap();
        for (sent, wanted) in [(3, 2), (MAX_FDS, 1), (1, 0)] {
            let (mut reader, writer) = pipe();
            send_with_fds(&a, b"x", &vec![writer.as_fd(); sent]).unwrap();
            drop(writer);
            let (count, fds) = recv_with_fds(&b, &mut [0; 16], wanted).unwrap();
            assert_eq!((count, fds.len()), (1, wanted));
            drop(fds);
            // Reads to the end: no copy of the writing end is open.
            assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
        }
    }

    #[test]
    fn recv_with_fds__closes_what_the_kernel_had_no_room_for() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut reader, writer) = pipe();
        let many = vec![writer.as_fd(); 100];
        let mut space = vec![MaybeUninit::uninit(); cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        drop(many);
        drop(writer);
        let (count, fds) = recv_with_fds(&b, &mut [0; 16], 2).unwrap();
        assert_eq!((count, fds.len()), (1, 2));
        drop(fds);
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn recv_with_fds__without_descriptors_and_at_the_end_of_the_stream() {
        let (a, b) = UnixStream::pair().unwrap();
        send_with_fds(&a, b"plain", &[]).unwrap();
        assert!(send_with_fds(&a, b"", &[]).is_err());
        drop(a);
        assert_eq!(recv_with_fds(&b, &mut [0; 16], 2).unwrap().0, 5);
        assert_eq!(recv_with_fds(&b, &mut [0; 16], 2).unwrap().0, 0);
        assert!(send_with_fds(&b, b"x", &[]).is_err(), "a signal would have ended the test");
    }

    #[test]
    fn peer_fds__count_what_was_kept_and_give_only_the_only_one() {
        let (mut reader, writer) = pipe();
        let copies = |count| (0..count).map(|_| writer.try_clone().unwrap()).collect::<Vec<_>>();
        let mut fds = PeerFds::default();
        assert!(fds.count() == 0 && fds.take_only().is_none());
        fds.add(copies(1));
        assert_eq!(fds.count(), 1);
        assert!(fds.take_only().is_some());
        assert_eq!(fds.count(), 0);
        for (more, all) in [(2, 2), (0, 2), (3, 5)] {
            fds.add(copies(more));
            assert!(fds.count() == all && fds.take_only().is_none());
        }
        drop((fds, writer));
        // Reads to the end: all are closed.
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    /// A TCP socket whose close waits for a minute: the peer does not receive the data.
    pub(in crate::shm) fn lingering() -> (std::net::TcpStream, std::net::TcpListener) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let linger = Some(std::time::Duration::from_secs(60));
        rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        (stream, listener)
    }

    /// Runs `f`, which must end long before a waiting close.
    pub(in crate::shm) fn ends_soon(f: impl FnOnce() + Send + 'static) {
        let (ended, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            f();
            ended.send(()).unwrap();
        });
        wait.recv_timeout(std::time::Duration::from_secs(30)).expect("it waits for a close");
    }

    #[test]
    fn recv_with_fds__does_not_wait_for_the_close_of_what_it_does_not_want() {
        let (a, b) = UnixStream::pair().unwrap();
        let (stream, _listener) = lingering();
        send_with_fds(&a, b"x", &[stream.as_fd()]).unwrap();
        drop(stream);
        ends_soon(move || {
            assert_eq!(recv_with_fds(&b, &mut [0; 16], 0).unwrap().0, 1);
        });
    }

    #[test]
    fn hang_up__does_not_wait_for_the_close_of_what_is_in_the_queue() {
        let (a, b) = UnixStream::pair().unwrap();
        let (stream, _listener) = lingering();
        send_with_fds(&a, b"abc", &[]).unwrap();
        send_with_fds(&a, b"x", &[stream.as_fd()]).unwrap();
        drop(stream);
        ends_soon(move || hang_up(b));
    }

    #[test]
    fn look__takes_nothing_and_tells_of_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let (reader, _writer) = pipe();
        assert_eq!(look(&b, 64), Queued::Nothing);
        send_with_fds(&a, b"abc", &[]).unwrap();
        assert_eq!((look(&b, 64), look(&b, 2)), (Queued::Bytes(3), Queued::Bytes(2)));
        send_with_fds(&a, b"x", &[reader.as_fd()]).unwrap();
        assert_eq!(look(&b, 64), Queued::Descriptors);
        assert_eq!(recv_with_fds(&b, &mut [0; 3], 0).unwrap().0, 3);
        assert_eq!(look(&b, 64), Queued::Descriptors);
        assert_eq!(recv_with_fds(&b, &mut [0; 3], 1).unwrap().1.len(), 1);
        drop(a);
        assert_eq!(look(&b, 64), Queued::End);
    }
}
