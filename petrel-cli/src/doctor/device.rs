//! The device of `--device`: whether an endpoint gets it, and what slows it down.

use std::fs;
use std::net::IpAddr;

use petrel::endpoint::{Device, DeviceState};
use petrel_transport::udp::{Udp, UdpConfig};

use super::check::Check;

const AREA: &str = "device";

/// The interfaces' folder.
const INTERFACES: &str = "/sys/class/net";

/// The MTU above which packets of the largest size miss the device.
const MTU_MAX: u32 = petrel_transport::device::xdp::PACKET_BYTES_MAX as u32;

/// Opens an endpoint's data port with the device, and looks at the interface.
pub(super) fn checks(device: &Device) -> Vec<Check> {
    let mut config = UdpConfig { device: Some(device.clone()), ..UdpConfig::default() };
    config.bind.set_ip(IpAddr::from([0, 0, 0, 0]));
    let opened = match Udp::bind(config) {
        Ok(udp) => udp.device(),
        Err(error) => Some(DeviceState::Off(error.to_string())),
    };
    match opened {
        None => vec![Check::ok(AREA, "device", "datagrams go by the kernel")],
        Some(DeviceState::Off(why)) => {
            let advice =
                "mend the cause, or leave --device out: docs/kernel-bypass.md has the conditions";
            vec![Check::warn(AREA, "device", why, advice)]
        }
        Some(DeviceState::On(interface)) => {
            let found = format!("an endpoint gets packets of {interface} by {device}");
            let mut checks = vec![Check::ok(AREA, "device", found)];
            if matches!(device, Device::Xdp(_)) {
                checks.extend([queues(&interface), mtu(&interface)]);
            }
            checks
        }
    }
}

/// An endpoint needs a queue of its own.
fn queues(interface: &str) -> Check {
    let entries = fs::read_dir(format!("{INTERFACES}/{interface}/queues")).into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    let count = names.filter(|name| name.to_string_lossy().starts_with("rx-")).count();
    let found = format!("{interface} has {count} receive queues: one endpoint each, at most");
    match count {
        1 => Check::info(AREA, "queues", found).advise(format!(
            "for several endpoints: `ethtool -L {interface} combined N`, where the driver can"
        )),
        _ => Check::info(AREA, "queues", found),
    }
}

fn mtu(interface: &str) -> Check {
    let text = fs::read_to_string(format!("{INTERFACES}/{interface}/mtu")).unwrap_or_default();
    match text.trim().parse::<u32>() {
        Ok(mtu) if mtu > MTU_MAX => Check::info(
            AREA,
            "mtu",
            format!(
                "{interface} has an MTU of {mtu}; packets of at most {MTU_MAX} bytes go by the device"
            ),
        ),
        Ok(mtu) => Check::ok(AREA, "mtu", format!("{interface} has an MTU of {mtu}")),
        Err(_) => Check::info(AREA, "mtu", "unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    #[test]
    fn checks__of_an_interface_that_is_not_there_say_so() {
        let checks = checks(&"xdp:no-such-one".parse().unwrap());
        assert_eq!((checks.len(), checks[0].status), (1, Status::Warn));
        assert!(checks[0].found.contains("no-such-one"), "{checks:?}");
        let kernel = super::checks(&Device::Kernel);
        assert_eq!((kernel.len(), kernel[0].status), (1, Status::Ok));
    }
}
