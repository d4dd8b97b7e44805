//! The state shared by the clients of an endpoint.

use super::places::Places;
use super::service_key::{ServiceKey, ServiceKeys};
use crate::inbox::InboxSender;
use crate::inbox_message::InboxMessage;
use crate::sync::Arc;
use crate::sync::thread::{self, ThreadId};

/// The state shared by the clients of an endpoint.
pub(crate) struct ClientShared {
    sender: InboxSender<InboxMessage>,
    places: Arc<Places>,
    services: ServiceKeys,
    endpoint_thread: ThreadId,
}

impl ClientShared {
    /// Creates the state on the endpoint's thread.
    pub(crate) fn new(sender: InboxSender<InboxMessage>, places: Arc<Places>) -> Self {
        let endpoint_thread = thread::current().id();
        Self { sender, places, services: ServiceKeys::default(), endpoint_thread }
    }

    /// Posts a message to the endpoint. Returns false if the endpoint is gone.
    pub(super) fn post(&self, message: InboxMessage) -> bool {
        self.sender.post(message).is_ok()
    }

    /// Returns true if the endpoint still exists.
    pub(super) fn is_open(&self) -> bool {
        self.sender.is_open()
    }

    /// Returns the places of outstanding calls.
    #[inline]
    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// Returns a number for a new service.
    pub(super) fn take_service(&self) -> ServiceKey {
        self.services.take()
    }

    /// Frees the number of a service that the endpoint has forgotten.
    pub(crate) fn free_service(&self, key: ServiceKey) {
        self.services.free(key);
    }

    /// # Panics
    /// On the thread of the endpoint, while the endpoint exists.
    pub(super) fn check_thread(&self) {
        assert!(
            thread::current().id() != self.endpoint_thread || !self.is_open(),
            "the thread that runs the endpoint cannot wait for a call of its client: the endpoint would not run; await \
             the call in a task there"
        );
    }
}
