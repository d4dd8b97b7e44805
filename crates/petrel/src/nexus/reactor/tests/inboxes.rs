//! Messages of peers to endpoints that do not keep up.

use petrel_proto::Status;
use petrel_proto::control::{GroupLeave, SessionClose};

use super::super::*;
use crate::nexus::limits::INBOX_MAX;
use crate::nexus::link::Stage;
use crate::nexus::reactor::links::tests::link_open;
use crate::nexus::reactor::tests::{attach, open_connection, reactor};
use crate::nexus::relay::sessions::tests::open as session_open;

impl Reactor {
    /// A message of the peer, and its consequence for the connection.
    fn say(&mut self, at: ConnectionId, message: impl Into<Message>) {
        if let Err(ending) = self.on_message(at, message.into()) {
            self.on_ending(at, ending);
        }
    }
}

/// A peer cannot add to the inbox of an overloaded endpoint: requests are refused, and a message without an answer
/// closes the peer's connection.
#[test]
fn peers__add_nothing_to_an_inbox_that_is_full() {
    let (mut reactor, mailbox) = reactor();
    let inbox = attach(&mailbox);
    reactor.run_commands();
    let fill = || {
        while inbox.len() < INBOX_MAX {
            inbox.push(FromNexus::StatsRequested { request: 0 });
        }
    };
    let mut say = |what: usize| {
        let (at, peer) = open_connection(&mut reactor, false);
        reactor.add_test_link(at, 5, Stage::Up { is_opener: false, max_frame: 1_472 });
        let before = reactor.relay.counters().snapshot();
        match what {
            0 => {
                reactor.on_link_open(at, &link_open(6)).unwrap();
            }
            1 => reactor.relay.on_session_open(at, session_open(5, 1)).unwrap(),
            2 => {
                let (link, session, token, from_client) = (5, 1, 2, true);
                let (status, text) = (Status::Ok, String::new());
                let close = SessionClose { link, session, token, from_client, status, text };
                reactor.say(at, close);
            }
            _ => reactor.say(at, GroupLeave { link: 5, group: 1 }),
        }
        let after = reactor.relay.counters().snapshot();
        let refused = (after.links_refused - before.links_refused)
            + (after.sessions_refused - before.sessions_refused);
        let is_left = reactor.relay.connections.closing().contains(&at)
            || !reactor.relay.connections.contains(at);
        drop(peer);
        (refused, is_left)
    };
    for (what, has_answer) in [(0, true), (1, true), (2, false), (3, false)] {
        fill();
        let said = say(what);
        assert_eq!(said, (u64::from(has_answer), !has_answer), "{what}");
        // An endpoint learns of a link's end in any case.
        assert_eq!(inbox.len(), INBOX_MAX + usize::from(!has_answer));
        while inbox.len() >= INBOX_MAX {
            inbox.pop();
        }
        assert_eq!(say(what), (0, false), "{what}");
        assert_eq!(inbox.len(), INBOX_MAX, "it got the last place");
    }
}
