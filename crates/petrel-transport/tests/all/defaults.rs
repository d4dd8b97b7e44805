//! The default settings of transports, as documented.

use petrel_transport::buf::PoolConfig;
use petrel_transport::shm::ShmConfig;
use petrel_transport::udp::{Mtu, UdpConfig};

#[test]
fn udp_config__takes_all_that_the_kernel_offers() {
    let UdpConfig {
        bind,
        mtu,
        device,
        gso,
        gro,
        ecn,
        recv_buffer_bytes,
        send_buffer_bytes,
        further_ports,
    } = UdpConfig::default();
    assert_eq!(bind, "127.0.0.1:0".parse().unwrap());
    assert_eq!(mtu, Mtu::Auto { cap_bytes: 9_000 });
    assert!(gso && gro && ecn);
    assert_eq!((further_ports, device), (0, None));
    assert_eq!((recv_buffer_bytes, send_buffer_bytes), (4 << 20, 4 << 20));
}

#[test]
fn shm_config__has_rings_of_a_mebibyte() {
    let config = ShmConfig {
        ring_bytes: 1 << 20,
        max_frame_bytes: 16_448,
        huge_pages: false,
        max_peers: 1_024,
        never_sleeps: false,
    };
    assert_eq!(ShmConfig::default(), config);
}

#[test]
fn pool_config__maps_a_gibibyte_at_most() {
    let PoolConfig { max_bytes, huge_pages, poison } = PoolConfig::default();
    assert_eq!((max_bytes, huge_pages, poison), (1 << 30, false, false));
}
