//! The servers of a service: their load, and the choice of a server for a call.

use std::cell::Cell;
use std::rc::Rc;

use crate::local::Key;
use crate::values::client::balance::is_less_busy;

/// The load of a server. The server's connection updates it; the service reads it without access to the connection.
#[derive(Debug)]
pub(super) struct Load {
    /// Outstanding attempts, with [`NOT_READY`] if there is no session, not even a draining one, and with [`AVOIDED`].
    state: Cell<u32>,
    weight: Cell<u32>,
    /// The bound of the service's [`Servers`].
    least: Rc<Cell<u32>>,
}

/// The bit of a server without a session: as a number, such a server is busier than any other.
const NOT_READY: u32 = 1 << 31;

/// The bit of an avoided server. As a number, the state is busier than the state of any server with a session.
const AVOIDED: u32 = 1 << 30;

impl Load {
    pub(super) fn set_ready(&self, is_ready: bool) {
        self.set(self.state.get() & !NOT_READY | if is_ready { 0 } else { NOT_READY });
    }

    /// Sets the state, and lowers `least`, the bound of all states, to it.
    #[inline]
    fn set(&self, state: u32) {
        self.state.set(state);
        if state < self.least.get() {
            self.least.set(state);
        }
    }

    /// Sets the weight of a server that is not in [`Servers`] now.
    pub(super) fn set_weight(&self, weight: u32) {
        self.weight.set(weight);
    }

    /// Counts the begin of an attempt.
    #[inline]
    pub(super) fn add(&self) {
        self.state.set(self.state.get() + 1);
    }

    /// Counts the end of an attempt.
    #[inline(always)]
    pub(super) fn subtract(&self) {
        assert!(self.busy() > 0, "an attempt that ends has begun");
        self.set(self.state.get() - 1);
    }

    #[inline(always)]
    pub(super) fn busy(&self) -> u32 {
        self.state.get() & (AVOIDED - 1)
    }

    /// Sets whether the server is chosen only if no other has a session.
    pub(super) fn set_avoided(&self, is_avoided: bool) {
        self.set(self.state.get() & !AVOIDED | if is_avoided { AVOIDED } else { 0 });
    }

    fn is_ready(&self) -> bool {
        self.state.get() < NOT_READY
    }

    /// Returns the outstanding attempts and the weight. An avoided server counts as busier than any other.
    #[inline]
    pub(super) fn get(&self) -> (u32, u32) {
        (self.state.get() & !NOT_READY, self.weight.get())
    }
}

#[derive(Debug)]
struct Server {
    key: Key,
    load: Rc<Load>,
}

/// The servers of a service, in the given order.
#[derive(Debug, Default)]
pub(super) struct Servers {
    list: Vec<Server>,
    /// Whether the weights differ.
    is_weighed: bool,
    /// Where the search for the least busy server begins: equals take turns.
    turn: usize,
    /// A lower bound of the servers' attempts: a search ends at the first server with so few. Shared with the loads, which lower it; a
    /// search in vain raises it.
    least: Rc<Cell<u32>>,
}

impl Servers {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the load of a further server, without a session.
    pub(super) fn new_load(&self, weight: u32) -> Rc<Load> {
        let (state, weight) = (Cell::new(NOT_READY), Cell::new(weight));
        Rc::new(Load { state, weight, least: Rc::clone(&self.least) })
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.list.iter().map(|server| server.key)
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.keys().any(|server| server == key)
    }

    /// Adds a server, whose load is of [`new_load`](Self::new_load).
    pub(super) fn push(&mut self, key: Key, load: Rc<Load>) {
        assert!(Rc::ptr_eq(&load.least, &self.least), "a load is of the service's servers");
        let first = self.list.first().map_or(&load, |server| &server.load);
        self.is_weighed |= first.weight != load.weight;
        self.list.push(Server { key, load });
    }

    /// Removes a server, if it is there.
    pub(super) fn remove(&mut self, key: Key) {
        self.list.retain(|server| server.key != key);
        self.turn = 0;
    }

    /// Returns the outstanding attempts of the least busy server with a session.
    pub(super) fn least_load(&self) -> Option<u32> {
        let ready = self.list.iter().filter(|server| server.load.is_ready());
        ready.map(|server| server.load.busy()).min()
    }

    /// Takes all servers.
    pub(super) fn take(&mut self) -> Vec<Key> {
        (self.turn, self.is_weighed) = (0, false);
        self.list.drain(..).map(|server| server.key).collect()
    }

    /// Returns the only server, unless there are several.
    #[inline]
    pub(super) fn only(&self) -> Option<Key> {
        match &self.list[..] {
            [only] => Some(only.key),
            _ => None,
        }
    }

    /// Returns all servers, in rotation.
    pub(super) fn in_turn(&mut self) -> impl Iterator<Item = Key> {
        let (before, after) = self.list.split_at(next_turn(&mut self.turn, self.list.len()));
        after.iter().chain(before).map(|server| server.key)
    }

    /// Returns the server with the fewest attempts relative to its weight, among servers with a session.
    #[inline]
    pub(super) fn least_busy(&mut self) -> Option<Key> {
        let turn = next_turn(&mut self.turn, self.list.len());
        match self.list.get(turn) {
            Some(next) if !self.is_weighed && next.load.state.get() <= self.least.get() => {
                Some(next.key)
            }
            _ => self.search_least_busy(turn),
        }
    }

    /// Searches from `turn` for the server with the fewest attempts relative to its weight.
    #[inline(never)]
    fn search_least_busy(&self, turn: usize) -> Option<Key> {
        let (before, after) = self.list.split_at(turn);
        if self.is_weighed {
            return least_busy_by_weight(after.iter().chain(before));
        }
        let bound = self.least.get();
        let (mut chosen, mut least) = (None, NOT_READY);
        for part in [after, before] {
            for server in part {
                let state = server.load.state.get();
                if state <= bound {
                    return Some(server.key);
                }
                if state < least {
                    (chosen, least) = (Some(server.key), state);
                }
            }
        }
        if chosen.is_some() {
            self.least.set(least);
        }
        chosen
    }

    /// Returns the less busy of two servers drawn by random bits. None if neither has a session.
    pub(super) fn better_of_two(&self, random: u64) -> Option<Key> {
        let count = self.list.len() as u64;
        assert!(count > 1, "two servers are drawn of several");
        // The offset to the second is at least 1: the two servers differ.
        let place = (random >> 32) % count;
        let offset = 1 + (random & u64::from(u32::MAX)) % (count - 1);
        let [first, second] =
            [place, (place + offset) % count].map(|place| &self.list[place as usize]);
        match (first.load.is_ready(), second.load.is_ready()) {
            (true, true) if is_less_busy(second.load.get(), first.load.get()) => Some(second.key),
            (true, _) => Some(first.key),
            (false, true) => Some(second.key),
            (false, false) => None,
        }
    }
}

/// Returns the first of the servers with the fewest attempts relative to their weights, among servers with a session.
#[inline(never)]
fn least_busy_by_weight<'a>(servers: impl Iterator<Item = &'a Server>) -> Option<Key> {
    let is_less_busy =
        |one: &Server, other: &Server| is_less_busy(one.load.get(), other.load.get());
    let ready = servers.filter(|server| server.load.is_ready());
    let chosen =
        ready.reduce(|chosen, other| if is_less_busy(other, chosen) { other } else { chosen });
    chosen.map(|server| server.key)
}

/// Returns the place where a search begins, and advances it for the next search.
fn next_turn(turn: &mut usize, count: usize) -> usize {
    let now = *turn;
    *turn = if now + 1 < count { now + 1 } else { 0 };
    now
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn servers(loads: &[(bool, u32, u32)]) -> Servers {
        let mut servers = Servers::default();
        for (bits, &(is_ready, busy, weight)) in (0..).zip(loads) {
            let load = servers.new_load(weight);
            load.set_ready(is_ready);
            (0..busy).for_each(|_| load.add());
            servers.push(Key::from_bits(bits), load);
        }
        servers
    }

    fn least_busy(servers: &mut Servers) -> Option<u64> {
        servers.least_busy().map(Key::to_bits)
    }

    #[test]
    fn least_busy__equals_take_turns() {
        let mut servers = servers(&[(true, 1, 1), (true, 1, 1), (true, 1, 1)]);
        let chosen: Vec<_> = (0..6).map(|_| least_busy(&mut servers)).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2].map(Some));
    }

    proptest! {
        /// The bound ends a search early; it must not change what is found.
        #[test]
        fn least_busy__is_the_first_of_the_least_from_the_turn_on(
            count in 2_usize..6,
            steps in prop::collection::vec((0_u8..5, 0_usize..6), 1..200),
        ) {
            let mut servers = servers(&vec![(true, 0, 1); count]);
            for (step, place) in steps {
                let load = Rc::clone(&servers.list[place % count].load);
                match step {
                    0 if load.busy() > 0 => load.subtract(),
                    1 => load.set_ready(!load.is_ready()),
                    0 | 2 => load.add(),
                    _ => {
                        let in_turn = (0..count).map(|at| (servers.turn + at) % count);
                        let states = in_turn.map(|at| (servers.list[at].load.state.get(), at));
                        let ready = states.filter(|&(state, _)| state < NOT_READY);
                        let least = ready.min_by_key(|&(state, _)| state);
                        let expected = least.map(|(_, at)| servers.list[at].key);
                        prop_assert_eq!(servers.least_busy(), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn least_busy__by_weight_and_only_with_a_session() {
        let mut servers = servers(&[(true, 3, 1), (false, 0, 1), (true, 6, 4), (true, 2, 1)]);
        for _ in 0..4 {
            assert_eq!(least_busy(&mut servers), Some(2));
        }
        servers.list[2].load.set_ready(false);
        assert_eq!(least_busy(&mut servers), Some(3));
        servers.list[3].load.add();
        servers.list[3].load.add();
        assert_eq!(least_busy(&mut servers), Some(0));
        servers.list[0].load.set_weight(2);
        servers.list[3].load.set_weight(4);
        assert_eq!(least_busy(&mut servers), Some(3));
        servers.list.iter().for_each(|server| server.load.set_ready(false));
        assert_eq!(least_busy(&mut servers), None);
    }

    /// The bits draw the first server and the distance to the other.
    #[test]
    fn better_of_two__of_the_drawn_servers() {
        let servers = servers(&[(true, 5, 1), (true, 1, 1), (false, 0, 1), (false, 0, 1)]);
        let chosen = |first: u64, distance: u64| {
            servers.better_of_two(first << 32 | (distance - 1)).map(Key::to_bits)
        };
        assert_eq!((chosen(0, 1), chosen(1, 3)), (Some(1), Some(1)));
        assert_eq!((chosen(0, 2), chosen(2, 2), chosen(3, 2)), (Some(0), Some(0), Some(1)));
        assert_eq!((chosen(2, 1), chosen(3, 3)), (None, None));
    }

    #[test]
    fn in_turn__begins_with_another_each_time() {
        let mut servers = servers(&[(true, 0, 1), (false, 0, 1), (true, 0, 1)]);
        let mut round = || servers.in_turn().map(Key::to_bits).collect::<Vec<_>>();
        assert_eq!((round(), round(), round()), (vec![0, 1, 2], vec![1, 2, 0], vec![2, 0, 1]));
        assert_eq!(servers.take().len(), 3);
        assert_eq!((servers.len(), servers.only()), (0, None));
        let load = servers.new_load(1);
        servers.push(Key::from_bits(9), load);
        assert_eq!(servers.only().map(Key::to_bits), Some(9));
    }
}
