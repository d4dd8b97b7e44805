//! Which sockets can be read, or written again.

use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};

/// Events taken by one system call.
const EVENTS_MAX: usize = 64;

/// The sockets of a transport, each with the index of its peer. The kernel reports each change once.
#[derive(Debug)]
pub(super) struct Sockets {
    epoll: OwnedFd,
}

impl Sockets {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll })
    }

    pub(super) fn add(&self, socket: &TcpStream, index: u32) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        let flags = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(index.into()), flags)?;
        Ok(())
    }

    /// Takes the next events, without a wait, and passes the index of each.
    pub(super) fn take_ready(&self, mut each: impl FnMut(u32)) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted by a signal: the next burst asks again.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&at_once)) else {
            return;
        };
        ready.iter().for_each(|event| each(event.data.u64() as u32));
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
