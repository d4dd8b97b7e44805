//! The replicas as a client knows them, and a session to each.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use petrel::endpoint::{CallOptions, SessionState};
use petrel::overload::Backoff;
use petrel::task::{Call, Session};

use super::Inner;
use super::changes::{Changes, News};
use crate::api::{Leader, Role, Status, methods};
use crate::limits::CLIENT_MEMBERS_MAX;

/// A replica, and the session to it.
pub(super) struct Connection {
    pub(super) address: SocketAddr,
    /// Whether the application named it: then it stays, whatever the replicas say.
    is_seed: bool,
    /// Whether it is no member any more.
    is_retired: Cell<bool>,
    session: RefCell<Option<Session>>,
    /// Why there is no session.
    failure: RefCell<String>,
}

impl Connection {
    fn new(address: SocketAddr, is_seed: bool) -> Self {
        Self {
            address,
            is_seed,
            is_retired: Cell::new(false),
            session: RefCell::default(),
            failure: RefCell::new("it has not been reached yet".to_owned()),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.session.borrow().as_ref().is_some_and(Session::is_open)
    }

    /// Starts a call, if there is a session.
    pub(super) fn start(&self, method: u16, request: &[u8], options: CallOptions) -> Option<Call> {
        let session = self.session.borrow();
        Some(session.as_ref()?.call(method, request).options(options).started())
    }

    fn set(&self, session: Result<Session, String>) {
        match session {
            Ok(session) => *self.session.borrow_mut() = Some(session),
            Err(failure) => {
                *self.session.borrow_mut() = None;
                *self.failure.borrow_mut() = failure;
            }
        }
    }

    fn retire(&self) {
        self.is_retired.set(true);
        if let Some(session) = self.session.borrow_mut().take() {
            session.close();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, if self.is_ready() { "" } else { " (no session)" })
    }
}

/// Who may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Whoever leads, as far as is known.
    Leader,
    /// Any replica.
    Any,
}

/// All replicas that are known.
#[derive(Debug, Default)]
pub(super) struct Members {
    connections: RefCell<Vec<Rc<Connection>>>,
    /// Who leads, as far as is known, and whether it has answered as the leader.
    leader: RefCell<Option<Rc<Connection>>>,
    is_confirmed: Cell<bool>,
    /// Whose turn it is while nobody knows who leads.
    turn: Cell<usize>,
    pub(super) changes: Changes,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.connections.borrow().len()
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.connections.borrow().iter().map(|connection| connection.address).collect()
    }

    /// Whom to ask: one that has a session.
    pub(super) fn choose(&self, target: Target) -> Option<Rc<Connection>> {
        if target == Target::Leader
            && let Some(leader) = &*self.leader.borrow()
            && leader.is_ready()
        {
            return Some(Rc::clone(leader));
        }
        self.next_in_turn()
    }

    fn next_in_turn(&self) -> Option<Rc<Connection>> {
        let connections = self.connections.borrow();
        let (count, first) = (connections.len(), self.turn.get());
        let mut places = (0..count).map(|ahead| (first + ahead) % count);
        let place = places.find(|place| connections[*place].is_ready())?;
        self.turn.set(place + 1);
        Some(Rc::clone(&connections[place]))
    }

    pub(super) fn ready(&self, address: SocketAddr) -> Option<Rc<Connection>> {
        let connections = self.connections.borrow();
        let is_it =
            |connection: &&Rc<Connection>| connection.address == address && connection.is_ready();
        connections.iter().find(is_it).cloned()
    }

    /// It has answered as only a leader does.
    pub(super) fn confirm(&self, connection: &Rc<Connection>) {
        let is_leader =
            self.leader.borrow().as_ref().is_some_and(|leader| Rc::ptr_eq(leader, connection));
        if is_leader && self.is_confirmed.get() {
            return;
        }
        *self.leader.borrow_mut() = Some(Rc::clone(connection));
        self.is_confirmed.set(true);
        self.changes.tell(News::Leader);
    }

    /// It does not lead, or does not answer.
    pub(super) fn forget_leader(&self, connection: &Rc<Connection>) {
        let mut leader = self.leader.borrow_mut();
        if leader.as_ref().is_some_and(|leader| Rc::ptr_eq(leader, connection)) {
            *leader = None;
            self.is_confirmed.set(false);
        }
    }

    /// Somebody says that it leads.
    fn suppose(&self, connection: Rc<Connection>) {
        *self.leader.borrow_mut() = Some(connection);
        self.is_confirmed.set(false);
    }

    fn find(&self, address: SocketAddr) -> Option<Rc<Connection>> {
        let connections = self.connections.borrow();
        connections.iter().find(|connection| connection.address == address).cloned()
    }

    /// What came of the last attempt, behind the reason for it: that nobody is known to lead, and how many replicas
    /// can be reached. Fewer than a majority elect nobody.
    pub(super) fn without_leader(&self, last: String) -> String {
        if self.leader.borrow().is_some() {
            return last;
        }
        let connections = self.connections.borrow();
        let (count, ready) = (
            connections.len(),
            connections.iter().filter(|connection| connection.is_ready()).count(),
        );
        format!("no leader: {ready} of {count} replicas answer; {last}")
    }

    /// Why nobody can be asked.
    pub(super) fn failures(&self) -> String {
        let connections = self.connections.borrow();
        let failure = |connection: &Rc<Connection>| {
            format!("{}: {}", connection.address, connection.failure.borrow())
        };
        let failures: Vec<_> =
            connections.iter().filter(|connection| !connection.is_ready()).map(failure).collect();
        failures.join("; ")
    }

    pub(super) fn close(&self) {
        self.connections.borrow_mut().drain(..).for_each(|connection| connection.retire());
    }

    /// Lets those go that the leader does not name, and the application did not.
    fn retain(&self, members: &[SocketAddr]) {
        self.connections.borrow_mut().retain(|connection| {
            let stays = connection.is_seed || members.contains(&connection.address);
            if !stays {
                connection.retire();
                self.forget_leader(connection);
            }
            stays
        });
    }
}

impl Inner {
    /// The connection to an address; a new one, if there is room for it.
    pub(super) fn connection(
        self: &Rc<Self>,
        address: SocketAddr,
        is_seed: bool,
    ) -> Option<Rc<Connection>> {
        if let Some(connection) = self.members.find(address) {
            return Some(connection);
        }
        if self.members.len() >= CLIENT_MEMBERS_MAX {
            return None;
        }
        let connection = Rc::new(Connection::new(address, is_seed));
        self.members.connections.borrow_mut().push(Rc::clone(&connection));
        self.handle.spawn(keep(Rc::downgrade(self), Rc::clone(&connection)));
        Some(connection)
    }

    /// A replica says that it does not lead, and perhaps who does.
    pub(super) fn take_hint(self: &Rc<Self>, from: &Rc<Connection>, leader: Option<Leader<'_>>) {
        self.members.forget_leader(from);
        let address = leader.and_then(|leader| leader.address.parse().ok());
        let Some(address) = address.filter(|address| *address != from.address) else { return };
        let connection = self.connection(address, false);
        // Who has answered as the leader since knows better.
        if let Some(connection) = connection.filter(|_| !self.members.is_confirmed.get()) {
            self.members.suppose(connection);
        }
    }

    /// A replica says who the members are.
    fn learn(self: &Rc<Self>, from: &Rc<Connection>, status: &Status) {
        let of = |member: &crate::api::Member| member.address.parse().ok();
        let addresses: Vec<SocketAddr> = status.members.iter().filter_map(of).collect();
        for address in &addresses {
            self.connection(*address, false);
        }
        let leads = status.role == Role::Leader;
        if leads {
            self.members.retain(&addresses);
        }
        if leads && self.members.leader.borrow().is_none() {
            self.members.suppose(Rc::clone(from));
        }
    }
}

/// Keeps a session to a replica as long as there is the client.
async fn keep(client: Weak<Inner>, connection: Rc<Connection>) {
    let Some((handle, mut backoff)) = client
        .upgrade()
        .map(|inner| (inner.handle.clone(), Backoff::new(inner.config.connect_backoff)))
    else {
        return;
    };
    loop {
        let opened = handle.connect(connection.address).await;
        let Some(inner) = client.upgrade().filter(|_| !connection.is_retired.get()) else {
            opened.iter().for_each(Session::close);
            return;
        };
        let opened = opened.map_err(|error| error.to_string());
        connection.set(opened.clone());
        inner.members.changes.tell(News::Connection);
        drop(inner);
        if let Ok(session) = opened {
            if watch(&client, &connection, &session).await {
                backoff.reset();
            }
            connection.set(Err(why_left(&session)));
        }
        let Some(random) = client.upgrade().map(|inner| inner.random()) else { return };
        handle.sleep(Duration::from_nanos(backoff.next_ns(random))).await;
        if connection.is_retired.get() {
            return;
        }
    }
}

/// Asks a replica now and then who the members are, until the session is over. Tells whether it ever answered.
async fn watch(client: &Weak<Inner>, connection: &Rc<Connection>, session: &Session) -> bool {
    let mut has_answered = false;
    while session.is_open() {
        let Some((handle, refresh, options)) = client.upgrade().map(|inner| {
            let options = CallOptions::new().timeout(inner.config.attempt_timeout);
            (inner.handle.clone(), inner.config.refresh, options)
        }) else {
            return has_answered;
        };
        if let Ok(answer) = session.call(methods::STATUS, &[]).options(options).await
            && let Ok(status) = Status::decode(&answer)
            && let Some(inner) = client.upgrade()
        {
            has_answered = true;
            inner.learn(connection, &status);
        }
        // Whether the session or the time ended is seen by the loop.
        let _ = handle.timeout(refresh, session.left()).await;
    }
    has_answered
}

fn why_left(session: &Session) -> String {
    match session.state() {
        SessionState::Ended(Some(reason)) => reason.message,
        SessionState::Draining => "it is about to end".to_owned(),
        _ => "the session to it has ended".to_owned(),
    }
}
