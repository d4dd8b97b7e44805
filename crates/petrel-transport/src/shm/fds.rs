//! Bytes and descriptors over a Unix stream.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors in one message. A pair of endpoints needs two.
pub const MAX_FDS: usize = 8;

const CONTROL_BYTES: usize = cmsg_space!(ScmRights(MAX_FDS));

/// Sends `bytes` and, with the first of them, `fds`. Returns how many bytes were taken; the rest is
/// to be sent without `fds`.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] without bytes or with more than [`MAX_FDS`] descriptors, and
/// what the kernel says. A peer that is gone is an error, not a signal.
pub fn send_with_fds(
    stream: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if bytes.is_empty() || fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and at most `max_fds` descriptors that came with them, which close on `exec`.
/// Descriptors beyond that are closed. Zero bytes mean that the peer has closed the stream.
///
/// # Errors
/// What the kernel says, and [`io::ErrorKind::InvalidData`] if it could not hand over descriptors
/// that were wanted, because this process has too many open; those that came are closed.
pub fn recv_with_fds(
    stream: &UnixStream,
    bytes: &mut [u8],
    max_fds: usize,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let max_fds = max_fds.min(MAX_FDS);
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
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
        return Err(io::ErrorKind::InvalidData.into());
    }
    fds.truncate(max_fds);
    Ok((received.bytes, fds))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use rustix::io::{FdFlags, fcntl_getfd};

    /// A pipe's two ends: what is read from the first shows whether all others are closed.
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
            // Reads to the end: no copy of the writing end is open any more.
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
}
