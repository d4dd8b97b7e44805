//! The device of the command's process (`--device`), for every control plane of the process.

use std::process::Command;
use std::sync::OnceLock;

use petrel::endpoint::Device;

static DEVICE: OnceLock<Device> = OnceLock::new();

/// Sets the device, once, before any control plane is started.
///
/// # Panics
/// At a second call.
pub fn set(device: Device) {
    assert!(DEVICE.set(device).is_ok(), "a process has one device");
}

/// Returns the device of the process.
pub fn get() -> Device {
    DEVICE.get().cloned().unwrap_or_default()
}

/// Returns the flag that names the device, behind a space; empty for the default.
pub fn flag() -> String {
    DEVICE.get().map_or(String::new(), |device| format!(" --device {device}"))
}

/// Has another process of this command use the device as well.
pub fn pass_to(command: &mut Command) {
    command.envs(DEVICE.get().map(|device| ("PETREL_DEVICE", device.to_string())));
}
