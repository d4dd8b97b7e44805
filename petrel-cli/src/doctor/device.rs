//! The device of `--device`: whether an endpoint gets it, and what slows it down.

use std::net::IpAddr;

use petrel::endpoint::{Device, DeviceState};
use petrel_transport::device::xdp::{PACKET_BYTES_MAX, queues_and_mtu};
use petrel_transport::host::{Host, HostConfig};
use petrel_transport::udp::UdpConfig;
use petrel_transport::verbs::Verbs;

use super::check::Check;

const AREA: &str = "device";

/// Packets of an RDMA card that no larger ones surpass.
const CARD_PACKET_BYTES: usize = 4_096;

/// Opens an endpoint's transports with the device, and looks at the interface.
pub(super) fn checks(device: &Device) -> Vec<Check> {
    let mut config = UdpConfig { device: Some(device.clone()), ..UdpConfig::default() };
    config.bind.set_ip(IpAddr::from([0, 0, 0, 0]));
    let opened = Host::new(HostConfig { udp: config, ..HostConfig::default() });
    let state = match &opened {
        Ok(host) => host.device(),
        Err(error) => Some(DeviceState::Off(error.to_string())),
    };
    match state {
        None => vec![Check::ok(AREA, "device", "datagrams go by the kernel")],
        Some(DeviceState::Off(why)) => {
            let advice =
                "mend the cause, or leave --device out: docs/kernel-bypass.md has the conditions";
            vec![Check::warn(AREA, "device", why, advice)]
        }
        Some(DeviceState::On(interface)) => {
            let found = format!("an endpoint gets packets of {interface} by {device}");
            let mut checks = vec![Check::ok(AREA, "device", found)];
            if matches!(device, Device::Xdp(_))
                && let Ok((count, bytes)) = queues_and_mtu(&interface)
            {
                checks.extend([queues(&interface, count), mtu(&interface, bytes)]);
            }
            let card = opened.as_ref().ok().and_then(|host| host.far().card()?.ok());
            checks.extend(card.map(packets));
            checks
        }
    }
}

/// An endpoint needs a queue of its own.
fn queues(interface: &str, count: u32) -> Check {
    let found = format!("{interface} has {count} receive queues: one endpoint each, at most");
    match count {
        1 => Check::info(AREA, "queues", found).advise(format!(
            "for several endpoints: `ethtool -L {interface} combined N`, where the driver can"
        )),
        _ => Check::info(AREA, "queues", found),
    }
}

/// Small packets cost more of them.
fn packets(card: &Verbs) -> Check {
    let bytes = card.frame_bytes();
    let found = format!("{} has packets of {bytes} bytes", card.card());
    match bytes {
        CARD_PACKET_BYTES => Check::ok(AREA, "packets", found),
        _ => Check::info(AREA, "packets", found)
            .advise("over Ethernet, for packets of 4 096 bytes: `ip link set IF mtu 4200`"),
    }
}

fn mtu(interface: &str, bytes: usize) -> Check {
    let found = format!("{interface} has an MTU of {bytes}");
    if bytes <= PACKET_BYTES_MAX {
        return Check::ok(AREA, "mtu", found);
    }
    let most = format!("{found}; packets of at most {PACKET_BYTES_MAX} bytes go by the device");
    Check::info(AREA, "mtu", most)
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
        let verbs = super::checks(&"verbs:no-such-card".parse().unwrap());
        assert_eq!((verbs.len(), verbs[0].status), (1, Status::Warn));
        let kernel = super::checks(&Device::Kernel);
        assert_eq!((kernel.len(), kernel[0].status), (1, Status::Ok));
    }
}
