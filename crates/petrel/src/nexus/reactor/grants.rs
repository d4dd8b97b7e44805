//! The decisions about callers: after a change, all sessions are judged again.

use crate::control::FromNexus;
use crate::events;
use crate::nexus::deadlines::Due;
use crate::nexus::net::Network;
use crate::nexus::relay::Relay;
use crate::panics::catch;
use crate::security::{LOOK_EVERY, SecurityError};

/// The decisions at the last look.
#[derive(Debug, Default)]
pub(super) struct GrantWatch {
    version: Option<u64>,
    failure: Option<SecurityError>,
}

impl GrantWatch {
    /// Begins to look, if there are decisions.
    pub(super) fn begin<N: Network>(&mut self, relay: &mut Relay<N>) {
        let Some(rules) = relay.settings().authorization() else { return };
        self.version = Some(rules.look().0);
        relay.remind(LOOK_EVERY, Due::Grants);
    }

    /// Tells all endpoints if the decisions have changed.
    pub(super) fn look<N: Network>(&mut self, relay: &mut Relay<N>) {
        let Some(rules) = relay.settings().authorization() else { return };
        let look = catch(|| rules.look());
        let (version, failure) = look.map_or_else(
            |_| (self.version, Some(SecurityError::new("the look for decisions panicked"))),
            |(version, failure)| (Some(version), failure),
        );
        // A change counts beside a later file that is broken.
        if self.version != version {
            self.version = version;
            events::grants_changed();
            let endpoints = relay.endpoints.iter();
            endpoints.for_each(|(_, endpoint)| endpoint.tell(FromNexus::GrantsChanged));
        }
        if let Some(error) = failure.iter().find(|error| self.failure.as_ref() != Some(error)) {
            events::grants_failed(error);
        }
        self.failure = failure;
        relay.remind(LOOK_EVERY, Due::Grants);
    }
}
