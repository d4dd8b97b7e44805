//! The state shared by the clients of an endpoint.

use std::sync::{OnceLock, mpsc};

use petrel_proto::Status;

use super::Driver;
use crate::error::Error;
use crate::inbox::InboxSender;
use crate::inbox_message::{InboxMessage, RunTask};
use crate::local::Handle;
use crate::local::client_call::places::Places;
use crate::sync::Arc;
use crate::sync::thread::{self, ThreadId};
use crate::values::StreamConfig;
use crate::values::client::{ServiceKey, ServiceKeys};

/// The state shared by the clients of an endpoint.
pub(crate) struct ClientShared {
    sender: InboxSender<InboxMessage>,
    places: Arc<Places>,
    services: ServiceKeys,
    endpoint_thread: ThreadId,
    /// The limits of streams, and the bytes of the largest message.
    stream_limits: (StreamConfig, usize),
    /// The driver of a [`Background`](crate::client::Background)'s endpoint, whose callers may run the event loop.
    driver: OnceLock<Arc<Driver>>,
}

impl ClientShared {
    /// Creates the state on the endpoint's thread.
    pub(crate) fn new(
        sender: InboxSender<InboxMessage>,
        places: Arc<Places>,
        stream_limits: (StreamConfig, usize),
    ) -> Self {
        let endpoint_thread = thread::current().id();
        let (services, driver) = (ServiceKeys::default(), OnceLock::new());
        Self { sender, places, services, endpoint_thread, stream_limits, driver }
    }

    /// Posts a message to the endpoint. Returns false if the endpoint is gone.
    pub(crate) fn post(&self, message: InboxMessage) -> bool {
        self.sender.post(message).is_ok()
    }

    /// Returns true if the endpoint still exists.
    pub(crate) fn is_open(&self) -> bool {
        self.sender.is_open()
    }

    /// Returns the limits of streams, and the bytes of the largest message.
    pub(crate) fn stream_limits(&self) -> (StreamConfig, usize) {
        self.stream_limits
    }

    /// Returns the places of outstanding calls.
    #[inline]
    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// Returns a number for a new service.
    pub(crate) fn take_service(&self) -> ServiceKey {
        self.services.take()
    }

    /// Frees the number of a service that the endpoint has forgotten.
    pub(crate) fn free_service(&self, key: ServiceKey) {
        self.services.free(key);
    }

    /// Lets callers run the event loop.
    pub(crate) fn set_driver(&self, driver: Arc<Driver>) {
        assert!(self.driver.set(driver).is_ok(), "an endpoint has one driver");
    }

    /// Returns the driver, if callers may run the event loop.
    #[inline]
    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.driver.get().map(|driver| &**driver)
    }

    /// Returns true on the thread of the endpoint.
    pub(crate) fn is_on_thread(&self) -> bool {
        thread::current().id() == self.endpoint_thread
    }

    /// Keeps the endpoint on its thread from now on: values that cannot be sent are about to get there. Waits until the thread has taken the
    /// endpoint, some milliseconds at most.
    ///
    /// # Errors
    /// UNAVAILABLE if the endpoint is gone.
    pub(crate) fn bind(&self) -> Result<(), Error> {
        let (tell, told) = mpsc::channel();
        let begin = Box::new(move |_: &Handle| tell.send(()).unwrap_or_default());
        self.post(InboxMessage::Run(RunTask { begin, is_library: false }));
        // On the endpoint's own thread the message comes before any later one.
        match self.is_on_thread() || told.recv().is_ok() {
            true => Ok(()),
            false => Err(Error::not_sent(Status::Unavailable, "the client's endpoint is gone")),
        }
    }

    /// # Panics
    /// On the thread of the endpoint, while the endpoint exists.
    pub(crate) fn check_thread(&self) {
        assert!(
            !self.is_on_thread() || !self.is_open(),
            "the thread that runs the endpoint cannot wait for a call of its client: the endpoint would not run; await \
             the call in a task there"
        );
    }
}
