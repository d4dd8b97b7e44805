//! Multicast to the members of a group.

use petrel_proto::SessionId;
use petrel_transport::Transport;

use super::Group;
use crate::control::ControlPlane;
use crate::endpoint::{Endpoint, MembershipState, MulticastConfig};
use crate::error::SetupError;

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Sends messages to a group by multicast where useful: messages longer than a packet, to receiving members. The
    /// members are asked now. A member that does not answer, or refuses, or proves unreachable, gets unicast, as
    /// without this call.
    ///
    /// # Errors
    /// No member is reached over UDP, the endpoint sends to too many groups, or its transport cannot send to the
    /// address. The group is then unchanged, and is called by unicast.
    pub fn start_multicast(
        &mut self,
        group: &Group,
        config: MulticastConfig,
    ) -> Result<(), SetupError> {
        self.stop_multicast(group);
        let number = self.send_to_members(group.members(), config)?;
        group.set_multicast(Some(number));
        Ok(())
    }

    /// Ends multicast to a group: it is called by unicast again.
    pub fn stop_multicast(&mut self, group: &Group) {
        let Some(number) = group.multicast() else { return };
        group.set_multicast(None);
        self.end_group(number);
    }

    /// Returns which members of a group receive multicast; empty if the group has none.
    pub fn multicast_members(&self, group: &Group) -> Vec<(SessionId, MembershipState)> {
        let Some(number) = group.multicast() else { return Vec::new() };
        self.states_of_members(number, group.members())
    }
}
