//! The credentials of the command's process (`--credentials`), for every control plane that it starts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use petrel::nexus::NexusBuilder;
use petrel::security::{Security, expect_name};

static CREDENTIALS: OnceLock<(Arc<dyn Security>, PathBuf)> = OnceLock::new();

/// Sets the credentials and their folder, once, before any control plane is started.
///
/// # Panics
/// When they were set before.
pub fn set(security: Arc<dyn Security>, folder: &Path) {
    let is_first = CREDENTIALS.set((security, folder.to_owned())).is_ok();
    assert!(is_first, "a process has credentials once");
}

/// Returns the credentials, if the process has any.
pub fn get() -> Option<&'static Arc<dyn Security>> {
    CREDENTIALS.get().map(|(security, _)| security)
}

/// Has another process of this command use the credentials as well.
pub fn pass_to(command: &mut Command) {
    command.envs(CREDENTIALS.get().map(|(_, folder)| ("PETREL_CREDENTIALS", folder)));
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
