//! The credentials of the command's process (`--credentials`), for every control plane that it starts.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use petrel::nexus::NexusBuilder;
use petrel::security::{Security, expect_name};

static CREDENTIALS: OnceLock<Arc<dyn Security>> = OnceLock::new();

/// Sets the credentials, once, before any control plane is started.
///
/// # Panics
/// When they were set before.
pub fn set(security: Arc<dyn Security>) {
    assert!(CREDENTIALS.set(security).is_ok(), "a process has credentials once");
}

/// Returns the credentials, if the process has any.
pub fn get() -> Option<&'static Arc<dyn Security>> {
    CREDENTIALS.get()
}

/// Gives a control plane the credentials. Without any it stays on this host, unless `may_be_insecure`.
pub fn apply(builder: NexusBuilder, may_be_insecure: bool) -> NexusBuilder {
    match get() {
        Some(security) => builder.credentials(Arc::clone(security)),
        None if may_be_insecure => builder.insecure(),
        None => builder,
    }
}

/// Demands that the server at these addresses proves the name by which the user has called it.
pub(crate) fn expect(addresses: &[SocketAddr], name: &str) {
    if get().is_some() && name.parse::<std::net::IpAddr>().is_err() {
        addresses.iter().for_each(|address| expect_name(*address, name));
    }
}
