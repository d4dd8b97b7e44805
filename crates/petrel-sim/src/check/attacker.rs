//! The attacker of sealed worlds (`docs/wire-protocol.md` §17.3): an eavesdropper on the network who knows the
//! contents of datagrams, and lacks the keys. The attacks may change no result: all rules of a world hold.

use petrel_transport::seal::{HEAD_BYTES, SEALED_MARK};

use super::nemesis::FaultAction;
use super::node::{Common, data_port};
use super::scenario::{FaultLevel, Scenario};
use crate::fabric::{Attack, HostId, Recorded, SimAddr};
use crate::rng::Rng;

/// Adds the attacker's actions, at any time of the run. Worlds without faults have no attacker, because packets take room in queues.
pub(super) fn add_attacks(
    scenario: &Scenario,
    rng: &mut Rng,
    actions: &mut Vec<(u64, FaultAction)>,
) {
    if scenario.epoch_bits.is_none() || scenario.fault_level == FaultLevel::None {
        return;
    }
    for _ in 0..rng.between(5, 60) {
        let at_ns = rng.between(0, scenario.active_ns);
        actions.push((at_ns, FaultAction::Attack { count: rng.between(1, 20) }));
    }
    actions.sort_by_key(|&(at_ns, _)| at_ns);
}

/// Sends a packet, made from recorded packets.
pub(super) fn attack(common: &Common, rng: &mut Rng) {
    // At once, or later than links and processes live.
    let most = rng.between(10, 26);
    let delay_ns = rng.between(1, 1 << most);
    let kind = Attack::ALL[rng.below(Attack::ALL.len() as u64) as usize];
    let made = match kind {
        Attack::Plain => plain(common, rng),
        _ => pick(common, rng).and_then(|recorded| change(common, rng, kind, recorded)),
    };
    if let Some(packet) = made {
        common.fabric.attack(kind, &packet, delay_ns);
    }
}

/// Returns a recorded sealed datagram.
fn pick(common: &Common, rng: &mut Rng) -> Option<Recorded> {
    let recorded = common.fabric.recorded(|count| rng.below(count.max(1) as u64) as usize)?;
    let is_sealed = recorded.frames.first()?.first() == Some(&SEALED_MARK);
    is_sealed.then_some(recorded)
}

/// Makes a packet of the given kind from a sealed datagram, if possible.
fn change(common: &Common, rng: &mut Rng, kind: Attack, packet: Recorded) -> Option<Recorded> {
    let Recorded { from, to, frames } = packet;
    let bytes = frames.concat();
    let made = |from, to, bytes| Some(Recorded { from, to, frames: vec![bytes] });
    match kind {
        Attack::Replay => made(from, to, bytes),
        Attack::Reflect => made(to, from, bytes),
        Attack::Mix => {
            let (other, also) = (anybody(common, rng), pick(common, rng)?);
            match rng.below(3) {
                0 if other != from => made(other, to, bytes),
                1 if other != to => made(from, other, bytes),
                _ => {
                    // The head's mark and path, of another link.
                    let path = also.frames.concat()[..4].to_vec();
                    let is_other = path != bytes[..4];
                    is_other.then(|| made(from, also.to, [&path, &bytes[4..]].concat())).flatten()
                }
            }
        }
        Attack::Flip => {
            let mut bytes = bytes;
            let reach = if rng.below(2) == 0 { HEAD_BYTES + 1 } else { bytes.len() };
            let bit = rng.below(8 * reach as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            made(from, to, bytes)
        }
        Attack::Truncate => {
            let left = rng.between(1, bytes.len() as u64 - 1) as usize;
            made(from, to, bytes[..left].to_vec())
        }
        Attack::ToPlain => {
            let Scenario { plain_host, endpoints_per_host, .. } = common.scenario;
            let to = data_port(plain_host?, rng.below(u64::from(endpoints_per_host)) as u16);
            made(anybody(common, rng), to, bytes)
        }
        Attack::Plain => None,
    }
}

/// Makes a plain packet from the contents of a sealed packet: a frame with the token of a session, or a bundle. In half of the cases the
/// last byte is changed, to break a rule of calls if accepted.
fn plain(common: &Common, rng: &mut Rng) -> Option<Recorded> {
    let pick = |count| rng.below(count as u64) as usize;
    let mut recorded = common.fabric.recorded_contents(pick)?;
    if rng.below(2) == 0 {
        *recorded.frames[0].last_mut()? ^= 0xFF;
    }
    Some(recorded)
}

fn anybody(common: &Common, rng: &mut Rng) -> SimAddr {
    let Scenario { hosts, endpoints_per_host, .. } = common.scenario;
    let host = HostId(rng.below(u64::from(hosts)) as u16);
    data_port(host, rng.below(u64::from(endpoints_per_host)) as u16)
}
