//! The clients of a world.

use std::rc::Rc;
use std::time::Duration;

use petrel::overload::BackoffConfig;
use petrel::task::Handle;
use petrel_kv::{KvClient, KvClientConfig};

use super::World;
use crate::client::Client;
use crate::common::address_of;
use crate::connection::Connection;
use crate::kv_client::KvClientUser;
use crate::leases::LeaseUser;
use crate::node::Node;
use crate::watches::WatchUser;
use petrel_sim::SimEndpoint;
use petrel_sim::fabric::{ActorId, HostId};

impl World {
    pub(super) fn start_clients(&mut self, endpoint: &mut SimEndpoint) -> Result<(), String> {
        let (handle, scenario) = (endpoint.handle(), self.common.scenario.clone());
        let mut shared: Option<KvClient> = None;
        for _ in 0..scenario.load.clients {
            let (rng, number) = (self.next_rng(), self.next_number());
            let common = Rc::clone(&self.common);
            if !scenario.kv_client.has(number) {
                let connection = Connection::new(common, handle.clone(), rng);
                handle.spawn(Client::new(connection, number).run());
                continue;
            }
            let client = match &shared {
                Some(client) => client.clone(),
                None => self.kv_client(endpoint)?,
            };
            if scenario.kv_client.is_shared {
                shared = Some(client.clone());
            }
            handle.spawn(KvClientUser::new(common, handle.clone(), client, number, rng).run());
        }
        Ok(())
    }

    /// Starts a user of leases for the time of the faults, if the scenario has one. Its client stays for
    /// [`World::leave_a_lease`].
    pub(super) fn start_lease_user(&mut self, endpoint: &mut SimEndpoint) -> Result<(), String> {
        let client = self.kv_client(endpoint)?;
        self.lease_client = Some(client.clone());
        let handle = endpoint.handle();
        handle.spawn(self.lease_user(handle.clone(), client).run());
        Ok(())
    }

    /// Starts a user of a lease after the faults, if the scenario has one.
    pub(super) fn leave_a_lease(&mut self) {
        let Some(client) = self.lease_client.clone() else { return };
        let (id, handle) = self.last_client();
        let user = self.lease_user(handle.clone(), client);
        let hosts = self.expected.iter().copied().collect();
        handle.spawn(user.run_in_time(hosts, Rc::clone(&self.operator)));
        self.simulation.wake(id);
    }

    /// Starts a user of a watch, which has a client of its own.
    pub(super) fn start_watch_user(&mut self, endpoint: &mut SimEndpoint) -> Result<(), String> {
        let (client, handle) = (self.kv_client(endpoint)?, endpoint.handle());
        let (common, rng) = (Rc::clone(&self.common), self.next_rng());
        let busy = &common.watches_busy;
        busy.set(busy.get() + 1);
        let number = busy.get();
        let user = WatchUser::new(Rc::clone(&common), handle.clone(), client, number, rng);
        handle.spawn(user.run());
        Ok(())
    }

    fn lease_user(&mut self, handle: Handle, client: KvClient) -> LeaseUser {
        let (rng, number) = (self.next_rng(), self.next_number());
        LeaseUser { common: Rc::clone(&self.common), handle, client, rng, number }
    }

    fn last_client(&self) -> (ActorId, Handle) {
        let actors = self.simulation.actors();
        let last = actors.filter(|(_, node)| matches!(node, Node::Client(_))).last();
        let Some((id, Node::Client(node))) = last else { unreachable!("a world has clients") };
        (id, node.endpoint.handle())
    }

    /// The store's own client, with timeouts that fit the world's elections.
    fn kv_client(&self, endpoint: &mut SimEndpoint) -> Result<KvClient, String> {
        let scenario = &self.common.scenario;
        let pauses = BackoffConfig {
            first: Duration::from_nanos(scenario.tick_ns),
            max: Duration::from_nanos(scenario.election_ns()),
            ..BackoffConfig::default()
        };
        let mut config = KvClientConfig::default();
        config.attempt_timeout = Duration::from_nanos(scenario.load.timeout_ns);
        config.timeout = config.attempt_timeout * scenario.kv_client.attempts;
        (config.backoff, config.connect_backoff) = (pauses, pauses);
        config.refresh = Duration::from_nanos(scenario.kv_client.refresh_ns);
        // The client discovers later members itself.
        let addresses = (0..scenario.nodes).map(|host| address_of(HostId(host)));
        let client =
            KvClient::on(addresses, config, |named, config| endpoint.client(named, config));
        client.map_err(|error| error.to_string())
    }

    /// Starts a last client that reads every key.
    pub(super) fn read_all(&mut self) {
        let (id, handle) = self.last_client();
        let common = Rc::clone(&self.common);
        let connection = Connection::new(common, handle.clone(), self.next_rng());
        let client = Client::new(connection, self.next_number());
        handle.spawn(client.read_all());
        self.simulation.wake(id);
    }

    pub(super) fn connection(&mut self, endpoint: &SimEndpoint) -> Connection {
        Connection::new(Rc::clone(&self.common), endpoint.handle(), self.next_rng())
    }

    /// The number of another client, which is counted as busy.
    fn next_number(&mut self) -> u32 {
        self.clients += 1;
        let busy = &self.common.clients_busy;
        busy.set(busy.get() + 1);
        self.clients
    }
}
