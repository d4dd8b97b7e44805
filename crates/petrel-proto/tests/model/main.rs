//! The rules of `docs/wire-protocol.md` as state machines, searched for every order of frames by
//! [stateright](https://docs.rs/stateright).
//!
//! A model follows the specification's text and calls nothing of the library. The network of a model keeps every frame
//! ever sent: a frame may arrive at any time, again (a duplicate), or never (a loss). An enum `Without` names single
//! rules. The search without a rule must find a state with a broken property: neither rule nor property is idle.
//!
//! Progress is checked from every state by a run: all frames in flight are lost, and later frames arrive. The run also
//! finds calls without end.

mod credits;
mod order;
mod tokens;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Searches all states for a broken property. Fewer than `states_min` states are an error.
fn holds<M: Model<State: Step, Action: Step> + Send + Sync + 'static>(model: M, states_min: usize) {
    let checker = model.checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps deep", checker.max_depth());
    checker.assert_properties();
    assert!(states >= states_min, "{states} states: the model does too little");
}

/// Searches for a state in which the property is broken.
fn breaks<M: Model<State: Step, Action: Step> + Send + Sync + 'static>(
    model: M,
    property: &'static str,
) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(found).spawn_bfs().join();
    let path = checker.assert_any_discovery(property);
    println!("{property}: not after {:?}", path.into_actions());
}

/// Returns the state after a change; `None` if nothing has changed.
fn changed<S: Clone + PartialEq>(last: &S, change: impl FnOnce(&mut S)) -> Option<S> {
    let mut state = last.clone();
    change(&mut state);
    (state != *last).then_some(state)
}

/// States and actions, as a search keeps and prints.
trait Step: Clone + Debug + Hash + PartialEq + Send + Sync {}

impl<T: Clone + Debug + Hash + PartialEq + Send + Sync> Step for T {}
