//! The credentials of the command's process (`--credentials`), the policy (`--authorize`) and the device (`--device`), for every control
//! plane of the process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use petrel::endpoint::Device;
use petrel::nexus::NexusBuilder;
use petrel::security::{Authorize, Security, expect_name};

static CREDENTIALS: OnceLock<(Arc<dyn Security>, PathBuf)> = OnceLock::new();
static DEVICE: OnceLock<(Device, String)> = OnceLock::new();
static AUTHORIZATION: OnceLock<Arc<dyn Authorize>> = OnceLock::new();

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

/// Has another process of this command use the credentials and the device as well.
pub fn pass_to(command: &mut Command) {
    command.envs(CREDENTIALS.get().map(|(_, folder)| ("PETREL_CREDENTIALS", folder)));
    command.envs(DEVICE.get().map(|(_, words)| ("PETREL_DEVICE", words)));
}

/// Sets the rights of callers, once, before any control plane is started.
///
/// # Panics
/// At a second call.
pub fn set_authorization(rules: Arc<dyn Authorize>) {
    assert!(AUTHORIZATION.set(rules).is_ok(), "a process has one policy");
}

/// Returns the rights of callers, if the process has a policy.
pub fn authorization() -> Option<&'static Arc<dyn Authorize>> {
    AUTHORIZATION.get()
}

/// Sets the device, once, before any control plane is started.
///
/// # Panics
/// At a second call.
pub fn set_device(device: Device, words: String) {
    assert!(DEVICE.set((device, words)).is_ok(), "a process has one device");
}

/// Returns the device of the process.
pub fn device() -> Device {
    DEVICE.get().map_or(Device::Kernel, |(device, _)| device.clone())
}

/// Returns the flag that names the device; empty for the default.
pub fn device_flag() -> String {
    DEVICE.get().map_or(String::new(), |(_, words)| format!(" --device {words}"))
}

/// Gives a control plane the credentials, the policy and the device. Without credentials it stays on this host, unless `may_be_insecure`.
pub fn apply(builder: NexusBuilder, may_be_insecure: bool) -> NexusBuilder {
    let builder = builder.device(device());
    let builder = match authorization() {
        Some(rules) => builder.authorize(Arc::clone(rules)),
        None => builder,
    };
    match get() {
        Some(security) => builder.credentials(Arc::clone(security)),
        None if may_be_insecure => builder.insecure(),
        None => builder,
    }
}

/// Demands that the server at these addresses proves the name by which the user has called it.
pub fn expect(addresses: &[SocketAddr], name: &str) {
    if get().is_some() && name.parse::<std::net::IpAddr>().is_err() {
        addresses.iter().for_each(|address| expect_name(*address, name));
    }
}
