//! The names by which the process knows addresses. A secured connection to an address demands that the peer proves the name
//! (`docs/wire-protocol.md` §17.1).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Most addresses with a name; with more, all names are forgotten, and noted again when they are looked up.
const NAMES_MAX: usize = 65_536;

/// By address, since processes connect to addresses, and share a connection for all names of one.
static NAMES: LazyLock<Mutex<HashMap<SocketAddr, Arc<str>>>> = LazyLock::new(Mutex::default);

/// Notes the program's name for an address; a later name replaces an earlier name.
pub(crate) fn note(address: SocketAddr, name: &str) {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if names.len() >= NAMES_MAX && !names.contains_key(&address) {
        names.clear();
    }
    names.insert(address, name.into());
}

/// Returns the name that the program has for an address.
pub(crate) fn of(address: SocketAddr) -> Option<Arc<str>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).get(&address).cloned()
}
