//! The server that a client asks first, in services in which one leads.

use crate::local::Key;

/// Which server leads, as far as is known.
#[derive(Debug, Default)]
pub(super) struct Leader {
    connection: Option<Key>,
    /// Whether it has answered as only the server does that leads.
    is_confirmed: bool,
}

impl Leader {
    #[inline]
    pub(super) fn get(&self) -> Option<Key> {
        self.connection
    }

    /// Whether this server has answered as only the leader does, and is not known to have stopped leading.
    pub(super) fn is_confirmed(&self, connection: Key) -> bool {
        self.is_confirmed && self.connection == Some(connection)
    }

    /// A server has answered as only the leader does. Tells whether that is news.
    pub(super) fn confirm(&mut self, connection: Key) -> bool {
        let is_news = !self.is_confirmed(connection);
        *self = Self { connection: Some(connection), is_confirmed: true };
        is_news
    }

    /// Another server says that this one leads. A server that has answered as the leader since knows better.
    pub(super) fn suppose(&mut self, connection: Key) {
        if !self.is_confirmed {
            self.connection = Some(connection);
        }
    }

    /// A server does not lead, or does not answer.
    pub(super) fn forget(&mut self, connection: Key) {
        if self.connection == Some(connection) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppose__holds_until_a_server_has_answered_as_the_leader() {
        let [one, two, three] = [1, 2, 3].map(Key::from_bits);
        let mut leader = Leader::default();
        leader.suppose(one);
        leader.suppose(two);
        assert_eq!(leader.get(), Some(two));
        assert!(leader.confirm(two), "it was only supposed");
        assert!(!leader.confirm(two));
        leader.suppose(one);
        assert_eq!(leader.get(), Some(two));
        assert!(leader.confirm(three));
        leader.forget(two);
        assert_eq!(leader.get(), Some(three));
        leader.forget(three);
        assert_eq!(leader.get(), None);
        leader.suppose(one);
        assert_eq!(leader.get(), Some(one), "the leader of before is forgotten");
    }
}
