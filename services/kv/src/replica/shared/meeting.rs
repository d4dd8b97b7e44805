//! Replicas find each other: each keeps a session to all that it has heard of, and asks who is there.

use std::net::SocketAddr;

use petrel::{CallOptions, Context, Handle, Handled, Request, Session, Status};

use super::{QUESTION, Shared, State};
use crate::persist::Identity;
use crate::replica::book::node_of;
use crate::replica::founding::{Beginning, find_beginning};
use crate::replica::hello::{Hello, Join};
use crate::replica::member::Member;
use crate::replica::methods;

impl Shared {
    /// Keeps a session to whoever is at an address.
    async fn keep_in_touch(self, address: SocketAddr) {
        let (handle, pause) = {
            let state = self.borrow();
            (state.handle.clone(), state.config.heartbeat)
        };
        loop {
            if let Ok(session) = handle.connect(address).await {
                self.talk(&handle, address, &session).await;
                session.close();
            }
            handle.sleep(pause).await;
        }
    }

    /// Asks who is there, now and then until it is a member of this cluster, and then until it goes away.
    async fn talk(&self, handle: &Handle, address: SocketAddr, session: &Session) {
        loop {
            let hello = self.borrow().hello().encode();
            let options = CallOptions::new().timeout(QUESTION);
            let Ok(answer) = session.start_with(methods::HELLO, &hello, options).await else {
                return;
            };
            let Ok(Some(hello)) = Hello::decode(&answer) else { return };
            let peer = hello.replica;
            let is_fellow = self.borrow_mut().meet(self, address, hello, session);
            if is_fellow {
                self.keep_listening(handle, address, session).await;
                self.borrow_mut().links.remove(peer, session);
                return;
            }
            let pause = self.borrow().config.heartbeat;
            if handle.timeout(pause, session.left()).await.is_ok() {
                return;
            }
        }
    }

    /// Hears now and then whom a fellow knows, until it goes away: who was away when somebody became a member may
    /// have that one as its leader, and has to find it before it has its log.
    async fn keep_listening(&self, handle: &Handle, address: SocketAddr, session: &Session) {
        while handle.timeout(QUESTION, session.left()).await.is_err() {
            let hello = self.borrow().hello().encode();
            let options = CallOptions::new().timeout(QUESTION);
            let Ok(answer) = session.start_with(methods::HELLO, &hello, options).await else {
                continue;
            };
            if let Ok(Some(hello)) = Hello::decode(&answer) {
                self.borrow_mut().heard.insert(address, hello);
            }
        }
    }

    /// Somebody says who it is.
    pub(in crate::replica) fn handle_hello(
        &self,
        cx: &mut Context<'_>,
        request: Request<'_>,
    ) -> Handled {
        match Hello::decode(request.data()) {
            Ok(Some(_)) => {
                let hello = self.borrow().hello().encode();
                request.reply(cx, &hello)
            }
            Ok(None) => {
                request.fail(cx, Status::FailedPrecondition, "the replicas' versions do not agree")
            }
            Err(error) => request.fail(cx, Status::InvalidArgument, &error.to_string()),
        }
    }

    pub(in crate::replica) fn handle_join(
        &self,
        cx: &mut Context<'_>,
        request: Request<'_>,
    ) -> Handled {
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
    /// Sees to it that a task keeps in touch with each peer and member.
    pub(in crate::replica) fn dial_members(&mut self, shared: &Shared) {
        let own = self.config.address;
        let peers = self.config.others().map(|(_, address)| address);
        let members = self.member.iter().flat_map(|member| member.book.members.values());
        let heard = self.heard.values().flat_map(|hello| hello.members.iter().map(|(_, at)| at));
        let others = members.chain(heard).filter_map(|address| address.parse().ok());
        let new: Vec<SocketAddr> = peers
            .chain(others)
            .filter(|address| *address != own && !self.dialled.contains(address))
            .collect();
        for address in new {
            if self.dialled.insert(address) {
                self.handle.spawn(shared.clone().keep_in_touch(address));
            }
        }
    }

    /// What this replica says of itself.
    fn hello(&self) -> Hello {
        let Some(member) = &self.member else {
            return Hello { replica: self.name, ..Hello::default() };
        };
        Hello {
            cluster: member.identity.cluster,
            replica: member.identity.replica,
            leader: member.raft.raft.leader_id,
            founders: member.founders.clone(),
            members: member.book.members.clone().into_iter().collect(),
        }
    }

    /// Hears who is at an address. Tells whether it is a fellow member.
    fn meet(
        &mut self,
        shared: &Shared,
        address: SocketAddr,
        hello: Hello,
        session: &Session,
    ) -> bool {
        self.heard.insert(address, hello.clone());
        if self.member.is_none() {
            self.look_for_beginning(shared, session, &hello);
        }
        let Some(member) = &self.member else { return false };
        let is_fellow = hello.cluster == member.identity.cluster;
        if is_fellow {
            self.links.add(hello.replica, session.clone());
        } else if hello.cluster != 0 {
            slog::warn!(self.config.logger, "somebody of another cluster is at a member's address";
                "address" => %address);
        }
        is_fellow
    }

    /// Looks whether this replica can begin: a cluster of its own, or in one that there is.
    fn look_for_beginning(&mut self, shared: &Shared, session: &Session, hello: &Hello) {
        match find_beginning(&self.config, self.name, &self.heard) {
            Beginning::None => {}
            Beginning::Found(founders) => self.found(shared, founders),
            Beginning::Belong { cluster, founders } => self.begin(shared, cluster, founders),
            Beginning::Ask { cluster } if hello.leader == hello.replica => {
                let address = self.config.address.to_string();
                let join = Join { cluster, replica: self.name, address };
                let options = CallOptions::new().timeout(QUESTION);
                let asked = session.start_with(methods::JOIN, &join.encode(), options);
                let logger = self.config.logger.clone();
                let task = async move {
                    if let Err(failure) = asked.await {
                        slog::warn!(logger, "the leader does not take this replica in";
                            "reason" => failure.message.clone());
                    }
                };
                self.handle.spawn(task);
            }
            Beginning::Ask { .. } => {}
        }
    }

    /// A cluster of one needs to hear nobody before it begins.
    pub(in crate::replica) fn begin_alone(&mut self, shared: &Shared) {
        if let Beginning::Found(founders) = find_beginning(&self.config, self.name, &self.heard) {
            self.found(shared, founders);
        }
    }

    fn found(&mut self, shared: &Shared, founders: Vec<(u64, String)>) {
        let cluster = self.rng.next().max(1);
        self.begin(shared, cluster, Some(founders));
    }

    fn begin(&mut self, shared: &Shared, cluster: u64, founders: Option<Vec<(u64, String)>>) {
        let Some(disk) = self.disk.take() else { return };
        let identity = Identity { cluster, replica: self.name };
        let member = match founders {
            Some(founders) => Member::found(&self.config, identity, founders, disk),
            None => Member::join(&self.config, identity, disk),
        };
        slog::info!(self.config.logger, "this replica belongs to a cluster";
            "cluster" => cluster, "replica" => self.name, "node" => node_of(self.name));
        match member {
            Ok(member) => self.member = Some(member),
            Err(error) => self.failure = Some(error),
        }
        self.handle.spawn(shared.clone().keep_writing());
    }
}
