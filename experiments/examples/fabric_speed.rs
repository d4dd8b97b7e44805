//! The speed of the fabric itself: synthetic packets over a cluster of 100 hosts, ten sources each.
//!
//! `cargo run --release --manifest-path experiments/Cargo.toml --example fabric_speed [microseconds [payload [load%]]]`

use std::time::Instant;

use petrel_experiments::sim::LeafSpine;
use petrel_sim::fabric::{Arrivals, FabricConfig, FabricHandle, HostId, SimAddr, SourceConfig};

const PORTS: u16 = 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (virtual_us, payload, load_percent) = (next(1_000)?, next(50)?, next(40)?);

    let network = LeafSpine::cx4(20).oversubscribed(2, 1);
    let fabric = FabricHandle::new(&network.topology(), FabricConfig::default(), 1)?;
    let packet_bytes = payload + u64::from(FabricConfig::default().overhead_bytes);
    let host_bps = network.host_link.rate_bps * load_percent / 100;
    let mean_ps = packet_bytes * 8_000_000_000_000 * u64::from(PORTS) / host_bps.max(1);
    add_sources(&fabric, &network, payload.try_into()?, mean_ps)?;

    let start = Instant::now();
    fabric.advance(virtual_us * 1_000);
    let seconds = start.elapsed().as_secs_f64();

    let stats = fabric.stats();
    assert!(stats.is_balanced(), "every packet is accounted for");
    println!(
        "{} us of {} hosts x {PORTS} sources, {packet_bytes} B packets at {load_percent} % of each link",
        virtual_us,
        network.host_count()
    );
    println!(
        "{} packets, {} delivered, {} dropped, {} under way",
        stats.sent,
        stats.delivered,
        stats.dropped_total(),
        stats.in_flight
    );
    println!("digest {:016x}", fabric.digest());
    println!(
        "{} events in {seconds:.2} s: {:.2} M events/s ({:.1} ns each), {:.2} M packets/s",
        fabric.events(),
        fabric.events() as f64 / seconds / 1e6,
        seconds * 1e9 / fabric.events() as f64,
        stats.sent as f64 / seconds / 1e6,
    );
    Ok(())
}

/// Adds ten sources to every host, which send to all remaining hosts.
fn add_sources(
    fabric: &FabricHandle,
    network: &LeafSpine,
    payload_bytes: u32,
    mean_ps: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let hosts = || (0..network.host_count() as u16).map(HostId);
    for (host, port) in hosts().flat_map(|host| (0..PORTS).map(move |port| (host, port))) {
        let others = hosts().filter(|&other| other != host);
        let to = others.map(|other| SimAddr::new(other, port)).collect();
        let arrivals = Arrivals::Poisson { mean_ps };
        let from = SimAddr::new(host, port);
        let config = SourceConfig::new(from, from, payload_bytes, arrivals);
        fabric.add_source(SourceConfig { to, ..config })?;
    }
    Ok(())
}
