//! Discovery: replicas keep sessions to all known addresses, and exchange hellos.

use std::net::SocketAddr;

use petrel::endpoint::{CallOptions, Handled};
use petrel::task::{Handle, Session};
use petrel::{Context, Request, Status};

use super::{PEER_TIMEOUT, Shared, State};
use crate::persist::Identity;
use crate::replica::ReplicaError;
use crate::replica::bootstrap::{BootstrapStep, next_step};
use crate::replica::hello::{Hello, Join};
use crate::replica::member::Member;
use crate::replica::membership::{Members, node_of};
use crate::replica::methods;

/// Election timeouts without a leader after which a replica asks itself whether another has taken its place.
const REPLACED_ELECTIONS: usize = 20;

impl Shared {
    /// Keeps a session to an address, and reconnects after the session ends.
    async fn maintain_session(self, address: SocketAddr) {
        let (handle, pause) = {
            let state = self.borrow();
            (state.handle.clone(), state.config.heartbeat)
        };
        loop {
            if let Ok(session) = handle.connect(address).await {
                self.exchange_hellos(&handle, address, &session).await;
                session.close();
                self.borrow_mut().forget(address);
            }
            handle.sleep(pause).await;
        }
    }

    /// Sends hellos until the peer proves to be a member of this cluster, and then refreshes them until the session
    /// ends.
    async fn exchange_hellos(&self, handle: &Handle, address: SocketAddr, session: &Session) {
        loop {
            let hello = self.borrow().hello().encode();
            let options = CallOptions::new().timeout(PEER_TIMEOUT);
            let Ok(answer) = session.call(methods::HELLO, &hello).options(options).await else {
                return;
            };
            let Ok(Some(hello)) = Hello::decode(&answer) else { return };
            let peer = hello.replica;
            let is_same_cluster = self.borrow_mut().record_hello(self, address, hello, session);
            if is_same_cluster {
                self.refresh_members(handle, address, session).await;
                self.borrow_mut().links.remove(peer, session);
                return;
            }
            let pause = self.borrow().config.heartbeat;
            if handle.timeout(pause, session.unavailable()).await.is_ok() {
                return;
            }
        }
    }

    /// Refreshes the list of members that another member knows, until the session ends. A new member may become the
    /// leader of a replica that was away before. The replica must learn the newcomer's address before it gets the log.
    async fn refresh_members(&self, handle: &Handle, address: SocketAddr, session: &Session) {
        while handle.timeout(PEER_TIMEOUT, session.unavailable()).await.is_err() {
            let hello = self.borrow().hello().encode();
            let options = CallOptions::new().timeout(PEER_TIMEOUT);
            let Ok(answer) = session.call(methods::HELLO, &hello).options(options).await else {
                continue;
            };
            if let Ok(Some(hello)) = Hello::decode(&answer) {
                self.borrow_mut().hellos.insert(address, hello);
            }
        }
    }

    /// Answers the hello of a peer.
    pub(crate) fn handle_hello(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        match Hello::decode(request.data()) {
            Ok(Some(theirs)) => {
                let state = &mut *self.borrow_mut();
                state.note_hello(self, &theirs);
                request.reply(cx, &state.hello().encode())
            }
            Ok(None) => {
                request.fail(cx, Status::FailedPrecondition, "the replicas' versions do not agree")
            }
            Err(error) => request.fail(cx, Status::InvalidArgument, &error.to_string()),
        }
    }

    pub(crate) fn handle_join(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let joined = match Join::decode(request.data()) {
            Err(error) => return request.fail(cx, Status::InvalidArgument, &error.to_string()),
            Ok(join) => match &mut self.borrow_mut().member {
                Some(member) => member.handle_join(join),
                None => Err("this replica is no member yet"),
            },
        };
        match joined {
            Ok(()) => request.reply(cx, &[]),
            Err(why) => request.fail(cx, Status::FailedPrecondition, why),
        }
    }
}

impl State {
    /// Starts the missing tasks for the known addresses of peers and members.
    pub(crate) fn connect_members(&mut self, shared: &Shared) {
        let own = self.config.address;
        let peers = self.config.others().map(|(_, address)| address);
        let members = self.member.iter().flat_map(|member| member.membership.members.values());
        let known = self.hellos.values().flat_map(|hello| hello.members.values());
        let others = members.chain(known).filter_map(|address| address.parse().ok());
        let new: Vec<SocketAddr> = peers
            .chain(others)
            .filter(|address| *address != own && !self.session_tasks.contains(address))
            .collect();
        for address in new {
            if self.session_tasks.insert(address) {
                self.handle.spawn(shared.clone().maintain_session(address));
            }
        }
    }

    /// Stops the replica if another has taken its place: no leader has been heard of for long, and by the hellos of a
    /// majority of the members the node is elsewhere. A new replica, which lagging members do not know yet, hears of its
    /// leader.
    pub(crate) fn note_replacement(&mut self) {
        let Some(member) = &self.member else { return };
        let has_leader = member.raft.raft.leader_id != 0;
        self.leaderless_ticks = if has_leader { 0 } else { self.leaderless_ticks + 1 };
        if self.leaderless_ticks < REPLACED_ELECTIONS * self.config.election_ticks() {
            return;
        }
        let own = member.identity;
        let (node, own_address) = (node_of(own.replica), self.config.address.to_string());
        let place = |hello: &Hello| {
            let is_known = hello.cluster != own.cluster || hello.members.contains_key(&own.replica);
            let mut others = hello.members.iter().filter(|(replica, _)| node_of(**replica) == node);
            let (_, address) = others.next().filter(|_| !is_known)?;
            // At this address a former replica may be meant, whose disk was lost.
            (*address != own_address).then(|| address.clone())
        };
        let places = self.hellos.values().filter_map(|hello| Some((hello.replica, place(hello)?)));
        let (sayers, addresses): (Vec<u64>, Vec<String>) = places.unzip();
        if let (Some(address), true) =
            (addresses.first(), member.raft.raft.prs().has_quorum(&sayers.into_iter().collect()))
        {
            self.failure = Some(ReplicaError::Replaced { node, address: address.clone() });
        }
    }

    /// This replica's own hello.
    fn hello(&self) -> Hello {
        let Some(member) = &self.member else {
            return Hello { replica: self.name, ..Hello::default() };
        };
        Hello {
            cluster: member.identity.cluster,
            replica: member.identity.replica,
            leader: member.raft.raft.leader_id,
            initial_members: member.initial_members.clone(),
            members: member.membership.members.clone(),
        }
    }

    /// Records the replica at an address. Returns true for a member of the same cluster.
    fn record_hello(
        &mut self,
        shared: &Shared,
        address: SocketAddr,
        hello: Hello,
        session: &Session,
    ) -> bool {
        self.hellos.insert(address, hello.clone());
        if self.member.is_none() {
            self.try_start(shared, session, &hello);
        }
        let Some(member) = &self.member else { return false };
        let is_same_cluster = hello.cluster == member.identity.cluster;
        if is_same_cluster {
            self.links.add(hello.replica, session.clone());
        } else if hello.cluster != 0 {
            slog::warn!(self.config.logger, "a process of another cluster is at a member's address";
                "address" => %address);
        }
        is_same_cluster
    }

    /// Forgets the replica at an address whose session ended, unless the replica belongs to a cluster. A replica
    /// without a cluster returns under a new name.
    fn forget(&mut self, address: SocketAddr) {
        self.hellos.retain(|other, hello| *other != address || hello.cluster != 0);
    }

    /// Notes the hello of a peer. If the bootstrap waited only for this hello, and the peer is an initial member,
    /// bootstraps the cluster. The answer then names the peer.
    fn note_hello(&mut self, shared: &Shared, theirs: &Hello) {
        let node = node_of(theirs.replica);
        if self.member.is_some() || self.config.others().all(|(other, _)| other != node) {
            return;
        }
        if theirs.cluster != 0 {
            self.hellos_received.remove(&node);
            return;
        }
        self.hellos_received.insert(node, theirs.replica);
        if self.hellos.values().any(|hello| hello.replica == theirs.replica) {
            self.try_bootstrap(shared);
        }
    }

    /// Checks whether the replica can become a member of a new or an existing cluster.
    fn try_start(&mut self, shared: &Shared, session: &Session, hello: &Hello) {
        match next_step(&self.config, self.name, &self.hellos, &self.hellos_received) {
            // Bootstrap happens only as the answer to the next hello.
            BootstrapStep::Wait | BootstrapStep::Bootstrap(_) => {}
            BootstrapStep::Start { cluster, initial_members } => {
                self.begin(shared, cluster, initial_members)
            }
            BootstrapStep::RequestJoin { cluster } if hello.leader == hello.replica => {
                let address = self.config.address.to_string();
                let join = Join { cluster, replica: self.name, address };
                let options = CallOptions::new().timeout(PEER_TIMEOUT);
                let asked = session.call(methods::JOIN, &join.encode()).options(options).started();
                let logger = self.config.logger.clone();
                let task = async move {
                    if let Err(failure) = asked.await {
                        slog::warn!(logger, "the leader does not take this replica in";
                            "reason" => failure.message.clone());
                    }
                };
                self.handle.spawn(task);
            }
            BootstrapStep::RequestJoin { .. } => {}
        }
    }

    /// Bootstraps the cluster if the conditions hold. A cluster of a single node needs no hello.
    pub(crate) fn try_bootstrap(&mut self, shared: &Shared) {
        let step = next_step(&self.config, self.name, &self.hellos, &self.hellos_received);
        if let BootstrapStep::Bootstrap(initial_members) = step {
            self.bootstrap(shared, initial_members);
        }
    }

    fn bootstrap(&mut self, shared: &Shared, initial_members: Members) {
        let cluster = self.rng.next().max(1);
        self.begin(shared, cluster, Some(initial_members));
    }

    fn begin(&mut self, shared: &Shared, cluster: u64, initial_members: Option<Members>) {
        let Some(disk) = self.disk.take() else { return };
        let identity = Identity { cluster, replica: self.name };
        let member = match initial_members {
            Some(initial_members) => {
                Member::bootstrap(&self.config, identity, initial_members, disk)
            }
            None => Member::join(&self.config, identity, disk),
        };
        slog::info!(self.config.logger, "this replica belongs to a cluster";
            "cluster" => cluster, "replica" => self.name, "node" => node_of(self.name));
        match member {
            Ok(member) => self.member = Some(member),
            Err(error) => self.failure = Some(error),
        }
        self.handle.spawn(shared.clone().wake_on_durable());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::time::{Duration, Instant};

    use petrel::endpoint::EndpointConfig;
    use petrel::{Endpoint, Nexus};

    use super::*;
    use crate::persist::Volatile;
    use crate::replica::membership::replica_name;
    use crate::replica::{Replica, ReplicaConfig};

    /// Timeout of the tests, far longer than any step takes.
    const TEST_TIMEOUT: Duration = Duration::from_secs(120);

    /// A test's stand-in for another replica: it answers hellos, and sends a hello on request.
    struct Peer {
        endpoint: Endpoint,
        address: SocketAddr,
        hello: Rc<RefCell<Hello>>,
        /// Number of hellos received.
        hellos_received: Rc<Cell<u32>>,
    }

    /// The lowest node of three, and stand-ins for the other two.
    struct Stage {
        endpoint: Endpoint,
        replica: Replica,
        address: SocketAddr,
        peers: Vec<Peer>,
    }

    fn endpoint() -> (Endpoint, SocketAddr) {
        let nexus = Nexus::builder().listen(SocketAddr::from(([127, 0, 0, 1], 0))).start().unwrap();
        let address = nexus.local_addr().unwrap();
        (nexus.endpoint(EndpointConfig::default()).unwrap(), address)
    }

    impl Peer {
        fn start() -> Self {
            let (mut endpoint, address) = endpoint();
            let (hello, hellos_received) =
                (Rc::<RefCell<Hello>>::default(), Rc::<Cell<u32>>::default());
            let (says, counts) = (Rc::clone(&hello), Rc::clone(&hellos_received));
            endpoint.on(methods::HELLO, move |_, cx, request| {
                counts.set(counts.get() + 1);
                let answer = says.borrow().encode();
                request.reply(cx, &answer)
            });
            Self { endpoint, address, hello, hellos_received }
        }

        /// Sends a replica a hello under the name `replica`.
        fn send_hello_as(&self, replica: u64, address: SocketAddr) -> Rc<RefCell<Option<Hello>>> {
            let (received, handle) =
                (Rc::<RefCell<Option<Hello>>>::default(), self.endpoint.handle());
            let hello = Hello { replica, ..Hello::default() }.encode();
            let answer = Rc::clone(&received);
            self.endpoint.handle().spawn(async move {
                let session = handle.connect(address).await.unwrap();
                let reply = session.call(methods::HELLO, &hello).await;
                *answer.borrow_mut() = Hello::decode(&reply.unwrap()).unwrap();
            });
            received
        }
    }

    impl Stage {
        /// Starts with unnamed peers.
        fn silent() -> Self {
            let peers = vec![Peer::start(), Peer::start()];
            let (mut endpoint, address) = endpoint();
            let nodes = std::iter::once(address).chain(peers.iter().map(|peer| peer.address));
            let config = ReplicaConfig::new(1, address, (1..).zip(nodes).collect(), 7);
            let disk = Box::<Volatile>::default();
            let replica = Replica::start(&mut endpoint, config, disk, None).unwrap();
            Self { endpoint, replica, address, peers }
        }

        fn start() -> Self {
            let mut stage = Self::silent();
            stage.restart_peers(1);
            stage
        }

        /// Renames the peers and waits until the lowest node knows the new names.
        fn restart_peers(&mut self, life: u64) {
            for (node, peer) in (2..).zip(&self.peers) {
                peer.hello.borrow_mut().replica = replica_name(node, life);
                peer.hellos_received.set(0);
            }
            // The node sends the next hello only after it has processed the last answer. The first hello may have been
            // in flight before the change.
            self.run_until(|stage| stage.peers.iter().all(|peer| peer.hellos_received.get() >= 3));
        }

        fn run_until(&mut self, holds: impl Fn(&Self) -> bool) {
            let begin = Instant::now();
            while !holds(self) {
                assert!(begin.elapsed() < TEST_TIMEOUT);
                let replica = &self.replica;
                self.endpoint.run_for(Duration::from_millis(1), |_, cx| {
                    replica.turn(cx).unwrap();
                    false
                });
                for peer in &mut self.peers {
                    peer.endpoint.run_for(Duration::from_millis(1), |_, _| false);
                }
            }
        }

        /// The lowest node's answer to the hello of a peer under the name `replica`.
        fn send_hello_as(&mut self, place: usize, replica: u64) -> Hello {
            let received = self.peers[place].send_hello_as(replica, self.address);
            self.run_until(|_| received.borrow().is_some());
            let hello = received.borrow_mut().take();
            hello.expect("it was there")
        }
    }

    #[test]
    fn bootstrap__not_before_a_named_peer_sends_a_hello_and_learns_of_it() {
        let mut stage = Stage::start();
        assert_eq!(stage.replica.status().members, []);
        // As if the peers had failed to reach the node and were restarted.
        stage.restart_peers(2);
        let hello = stage.send_hello_as(0, replica_name(2, 2));
        assert_ne!(hello.cluster, 0);
        let named: Vec<u64> = hello.initial_members.keys().copied().skip(1).collect();
        assert_eq!(named, [replica_name(2, 2), replica_name(3, 2)]);
    }

    #[test]
    fn bootstrap__not_as_the_answer_to_one_that_would_not_be_named() {
        let mut stage = Stage::silent();
        assert_eq!(
            stage.send_hello_as(1, replica_name(3, 1)).cluster,
            0,
            "no peer has answered a hello"
        );
        stage.restart_peers(1);
        assert_eq!(
            stage.send_hello_as(0, replica_name(2, 2)).cluster,
            0,
            "another replica answered there"
        );
        assert_ne!(stage.send_hello_as(1, replica_name(3, 1)).cluster, 0);
    }

    #[test]
    fn bootstrap__not_with_one_that_has_gone() {
        let mut stage = Stage::start();
        let gone = stage.peers.pop().expect("there are two").address;
        stage.run_until(|stage| !stage.replica.shared.borrow().hellos.contains_key(&gone));
        assert_eq!(
            stage.send_hello_as(0, replica_name(2, 1)),
            Hello { replica: stage.replica.status().raft_id, ..Hello::default() }
        );
    }
}
