//! The addresses of servers, found on a thread: the system or a file is asked, which may take seconds.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use petrel_proto::Status;

use super::servers_file::ServersFile;
use super::targets::{Kind, Names, Targets};
use crate::error::Error;
use crate::sync::{Arc, Mutex, lock};
use crate::values::client::Target;

/// The servers of a service, and how to detect changes.
pub(super) struct Found {
    pub(super) servers: Vec<Target>,
    pub(super) by: FoundBy,
}

pub(super) enum FoundBy {
    Address,
    Name(Names),
    /// Names without an address so far.
    Nothing(Names),
    File(ServersFile),
}

impl Found {
    /// Returns true if the system has to be asked, or a file be read.
    pub(super) fn takes_time(targets: &Targets) -> bool {
        match &targets.0 {
            Kind::Names(names) => names.have_to_be_asked_for(),
            Kind::File(_) => true,
        }
    }

    /// Finds the servers of a client that may begin without one: names may have no address yet.
    pub(super) fn of_lazy(targets: Targets) -> Result<Self, Error> {
        let names = match &targets.0 {
            Kind::Names(names) if names.have_to_be_asked_for() => Some(names.clone()),
            _ => None,
        };
        match (Self::of(targets), names) {
            (Err(error), Some(names)) if error.status == Status::Unavailable => {
                Ok(Self { servers: Vec::new(), by: FoundBy::Nothing(names) })
            }
            (found, _) => found,
        }
    }

    pub(super) fn of(targets: Targets) -> Result<Self, Error> {
        match targets.0 {
            Kind::Names(names) => {
                let servers = names.resolve()?;
                let is_named = names.have_to_be_asked_for();
                let by = if is_named { FoundBy::Name(names) } else { FoundBy::Address };
                Ok(Self { servers, by })
            }
            Kind::File(path) => {
                let file = ServersFile::open(path)?;
                Ok(Self { servers: file.targets(), by: FoundBy::File(file) })
            }
        }
    }
}

/// The result of a thread, and the waker of its waiter.
type Slot = Mutex<(Option<Result<Found, Error>>, Option<Waker>)>;

/// A lookup of a service's servers on a thread.
pub(super) struct Finding(Arc<Slot>);

impl Finding {
    /// Begins to look for servers. A lazy client may have none at first.
    pub(super) fn begin(targets: Targets, is_lazy: bool) -> Result<Self, Error> {
        let slot: Arc<Slot> = Arc::new(Mutex::new((None, None)));
        let put = Arc::clone(&slot);
        on_thread(move || {
            let found = if is_lazy { Found::of_lazy(targets) } else { Found::of(targets) };
            let waker = {
                let (result, waker) = &mut *lock(&put);
                *result = Some(found);
                waker.take()
            };
            waker.into_iter().for_each(Waker::wake);
        })?;
        Ok(Self(slot))
    }
}

impl Future for Finding {
    type Output = Result<Found, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (result, waker) = &mut *lock(&self.0);
        *waker = Some(cx.waker().clone());
        result.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Starts a thread to ask the system for addresses or read a file, which may take seconds.
pub(super) fn on_thread(resolve: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let named = std::thread::Builder::new().name("petrel-names".to_owned());
    let started = named.spawn(resolve).map(drop);
    started.map_err(|error| {
        let message = format!("no thread to ask for addresses: {error}");
        Error::not_sent(Status::ResourceExhausted, message)
    })
}
