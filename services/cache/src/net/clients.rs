//! The clients of all threads, for `stats conns`.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::net::TcpStream;

/// The second in which bytes of a client last came or went. Its thread writes the second, and all threads read.
pub(super) type Active = Arc<AtomicU32>;

/// Addresses by descriptor.
#[derive(Default)]
pub(crate) struct Clients(Mutex<BTreeMap<i32, (String, Active)>>);

impl Clients {
    pub(super) fn add(&self, socket: &TcpStream, now: u32) -> Active {
        // A socket of the file system has no address.
        let address = socket.peer_addr().map_or("unix".to_owned(), |peer| match peer.is_ipv4() {
            true => format!("tcp:{peer}"),
            false => format!("tcp6:{peer}"),
        });
        let active = Active::new(now.into());
        self.clients().insert(socket.as_raw_fd(), (address, Arc::clone(&active)));
        active
    }

    pub(super) fn remove(&self, socket: &TcpStream) {
        self.clients().remove(&socket.as_raw_fd());
    }

    /// Descriptors, addresses and seconds.
    pub(super) fn all(&self) -> Vec<(i32, String, u32)> {
        let each = |(file, (address, active)): (&i32, &(String, Active))| {
            (*file, address.clone(), active.load(Ordering::Relaxed))
        };
        self.clients().iter().map(each).collect()
    }

    /// The state is a map, which no panic leaves in between.
    fn clients(&self) -> MutexGuard<'_, BTreeMap<i32, (String, Active)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
