//! The server that a client asks first, in services with a leader.

use petrel_planted::planted;

use crate::local::Key;

/// The leader, if known.
#[derive(Debug, Default)]
pub(super) struct Leader {
    connection: Option<Key>,
    /// Whether it has answered as the leader.
    is_confirmed: bool,
}

impl Leader {
    #[inline]
    pub(super) fn get(&self) -> Option<Key> {
        self.connection
    }

    /// Returns true if this server has answered as the leader, and is not known to have stopped leading.
    pub(super) fn is_confirmed(&self, connection: Key) -> bool {
        self.is_confirmed && self.connection == Some(connection)
    }

    /// Records that a server has answered as the leader. Returns true if that is new.
    pub(super) fn set_confirmed(&mut self, connection: Key) -> bool {
        let is_new = !self.is_confirmed(connection);
        *self = Self { connection: Some(connection), is_confirmed: true };
        is_new
    }

    /// Records a server named as the leader by another, unless a confirmed leader is known.
    pub(super) fn hint(&mut self, connection: Key) {
        if !self.is_confirmed {
            self.connection = Some(connection);
        }
    }

    /// Forgets a server that does not lead, or does not answer.
    pub(super) fn forget(&mut self, connection: Key) {
        if self.connection == Some(connection) {
            let is_confirmed = self.is_confirmed && planted("service_second_leader_unheard");
            *self = Self { connection: None, is_confirmed };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint__holds_until_a_server_has_answered_as_the_leader() {
        let [one, two, three] = [1, 2, 3].map(Key::from_bits);
        let mut leader = Leader::default();
        leader.hint(one);
        leader.hint(two);
        assert_eq!(leader.get(), Some(two));
        assert!(leader.set_confirmed(two), "it was only named by others");
        assert!(!leader.set_confirmed(two));
        leader.hint(one);
        assert_eq!(leader.get(), Some(two));
        assert!(leader.set_confirmed(three));
        leader.forget(two);
        assert_eq!(leader.get(), Some(three));
        leader.forget(three);
        assert_eq!(leader.get(), None);
        leader.hint(one);
        assert_eq!(leader.get(), Some(one), "the former leader is forgotten");
    }
}
