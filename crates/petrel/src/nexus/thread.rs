//! The owner and the end of the nexus's thread.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use petrel_proto::Status;

use super::attach::Attach;
use super::mailbox::{Command, Inbox, Mailbox};
use super::media::{HostLinks, Medium, media_of};
use super::net::{MioNetwork, Network, SharedMemory};
use super::reactor::Reactor;
use crate::control::{EndpointId, Reason};
use crate::error::SetupError;
use crate::security::Authorize;

/// Keeps the thread alive; shared by all handles and ports. The last one stops the thread and waits until the sockets
/// are closed: then the address is free again.
#[derive(Debug)]
pub(super) struct Owner<N: Network = MioNetwork> {
    mailbox: Arc<Mailbox<N>>,
    endpoints: Mutex<BTreeSet<EndpointId>>,
    authorization: Option<Arc<dyn Authorize>>,
    /// `None` if a simulator drives the reactor.
    thread: Option<JoinHandle<()>>,
}

/// The number of an endpoint, and the queue of messages to it.
type Attached<N> = (EndpointId, Arc<Inbox<<N as SharedMemory>::Link>>);

impl<L: HostLinks> Owner<MioNetwork<L>> {
    pub(super) fn start(
        mailbox: Arc<Mailbox<MioNetwork<L>>>,
        reactor: Reactor<MioNetwork<L>>,
    ) -> io::Result<Self> {
        let authorization = reactor.authorization().cloned();
        let builder = std::thread::Builder::new().name("petrel-nexus".to_owned());
        let thread = Some(builder.spawn(move || run(reactor))?);
        Ok(Self { mailbox, endpoints: Mutex::default(), authorization, thread })
    }
}

impl<N: Network> Owner<N> {
    /// Creates the owner of a reactor without a thread of its own.
    pub(super) fn of(mailbox: Arc<Mailbox<N>>) -> Self {
        Self { mailbox, endpoints: Mutex::default(), authorization: None, thread: None }
    }

    /// Returns the decisions about callers, for all endpoints.
    pub(super) fn authorization(&self) -> Option<&Arc<dyn Authorize>> {
        self.authorization.as_ref()
    }

    /// Attaches an endpoint, and returns its number and the queue of messages to it.
    pub(super) fn attach(
        &self,
        attach: &Attach,
        others: Vec<Box<dyn Medium<N::Link>>>,
    ) -> Result<Attached<N>, SetupError> {
        let id = self.take_endpoint(attach.id)?;
        let inbox = Arc::new(Inbox::new(attach.waker.clone()));
        let command = Command::Attach(id, media_of(attach, others), inbox.clone());
        if self.mailbox.post(command).is_err() {
            self.free_endpoint(id);
            return Err(thread_has_ended());
        }
        Ok((id, inbox))
    }

    pub(super) fn mailbox(&self) -> &Mailbox<N> {
        &self.mailbox
    }

    /// Takes the wanted number, or the lowest free one.
    fn take_endpoint(&self, id: Option<EndpointId>) -> Result<EndpointId, SetupError> {
        let mut taken = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let id = match id {
            Some(id) if id.0 == u16::MAX => {
                let text = "65535 is no endpoint's number; choose one below, or none";
                return Err(SetupError::refused(text));
            }
            Some(id) => id,
            None => lowest_free(&taken).ok_or_else(|| {
                SetupError::refused("this process has 65535 endpoints already; drop some first")
            })?,
        };
        match taken.insert(id) {
            true => Ok(id),
            false => Err(SetupError::refused(format!(
                "endpoint {} exists already in this process; choose another number, or none",
                id.0
            ))),
        }
    }

    pub(super) fn stop_listening(&self) {
        // A post fails only after the end of the thread, when nothing listens.
        let _ = self.mailbox.post(Command::StopListening);
    }

    pub(super) fn free_endpoint(&self, id: EndpointId) {
        let mut taken = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(taken.remove(&id), "an endpoint's number is given back once: {}", id.0);
    }
}

/// Returns why requests fail once the nexus's thread has ended.
pub(super) fn thread_ended() -> Reason {
    Reason::new(Status::Internal, ENDED)
}

/// Returns the end of the nexus's thread as an error of setup.
pub(super) fn thread_has_ended() -> SetupError {
    SetupError::Panicked(ENDED)
}

const ENDED: &str =
    "the control plane of this process has ended by an internal error; restart the process";

fn lowest_free(taken: &BTreeSet<EndpointId>) -> Option<EndpointId> {
    (0..u16::MAX).map(EndpointId).find(|id| !taken.contains(id))
}

impl<N: Network> Drop for Owner<N> {
    fn drop(&mut self) {
        // A failed post, or join, means that the thread has ended already.
        let _ = self.mailbox.post(Command::Shutdown);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs the thread. An error in it must not leave endpoints waiting for answers: their links go down in any case.
fn run<N: Network>(mut reactor: Reactor<N>) {
    let ended_well = catch_unwind(AssertUnwindSafe(|| reactor.run()));
    if !matches!(ended_well, Ok(Ok(()))) {
        reactor.abandon(&thread_ended());
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::Status;

    use super::*;
    use crate::control::{AllowedTransports, FromNexus, ToNexus};
    use crate::nexus::port::NexusHandle;
    use crate::nexus::reactor::tests::reactor;

    const TRANSPORTS: AllowedTransports = AllowedTransports::UDP;

    fn open_link(request: u64) -> ToNexus {
        ToNexus::OpenLink {
            request,
            remote: "127.0.0.1:1".parse().unwrap(),
            remote_endpoint: EndpointId(0),
            transports: TRANSPORTS,
            reverse: false,
        }
    }

    #[test]
    fn abandon__answers_waiting_and_later_requests() {
        [true, false].into_iter().for_each(abandon);
    }

    /// The thread dies, before or after it attached the endpoint.
    fn abandon(has_taken_in: bool) {
        let (mut reactor, mailbox) = reactor();
        let waker = petrel_transport::wake::Waker::new().unwrap();
        let attach = Attach { id: None, udp: None, shm: None, stream: false, waker };
        let owner = Arc::new(Owner::of(mailbox.clone()));
        let mut port = NexusHandle::attach(&owner, &attach, Vec::new()).unwrap();
        if has_taken_in {
            reactor.run_commands();
        }
        // The thread has died before carrying the command out.
        mailbox.post(Command::Post(EndpointId(0), open_link(1))).unwrap();
        reactor.abandon(&thread_ended());
        port.post(open_link(2));
        for expected in [1, 2] {
            match port.poll() {
                Some(FromNexus::LinkFailed { request, reason }) => {
                    assert_eq!((request, reason.status), (expected, Status::Internal));
                }
                other => panic!("not LinkFailed: {other:?}"),
            }
        }
    }
}
