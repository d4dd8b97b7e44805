use std::collections::HashMap;
use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::bundle;

/// A plan, with the state the peer table keeps beside it.
struct World {
    plan: Plan,
    lanes: HashMap<u32, u32>,
    limit: usize,
    /// Whether frames may go by [`Plan::try_extend`].
    has_short_way: bool,
}

fn name_of(peer: u32) -> RawAddr {
    RawAddr::from(SocketAddr::from(([10, 0, 0, 1], peer as u16)))
}

impl World {
    fn new(limit: usize, message_bytes_max: usize) -> Self {
        let plan = Plan::new(message_bytes_max).unwrap();
        Self { plan, lanes: HashMap::new(), limit, has_short_way: true }
    }

    /// # Safety
    /// As for [`Plan::add_large`].
    unsafe fn add(&mut self, peer: u32, bytes: &[u8]) {
        let (head, body) = bytes.split_at(bytes.len().min(16));
        // SAFETY: by this function's contract.
        if self.has_short_way && unsafe { self.plan.try_extend(PeerId(peer), head, body) } {
            return;
        }
        let target = Target {
            peer: PeerId(peer),
            name: &name_of(peer),
            datagram_bytes_max: self.limit,
            lane: self.lanes.entry(peer).or_default(),
        };
        if bytes.len() <= SMALL_FRAME_BYTES_MAX {
            self.plan.add_small(target, head, body);
        } else {
            // SAFETY: by this function's contract.
            unsafe { self.plan.add_large(target, head, body) };
        }
    }
}

/// Plans frames, given by peer and size. `bytes` holds the bytes of every frame.
fn plan(bytes: &[u8], frames: &[(u32, usize)], limit: usize, message_bytes_max: usize) -> Plan {
    let mut world = World::new(limit, message_bytes_max);
    for &(peer, size) in frames {
        assert!(world.plan.has_room());
        // SAFETY: `bytes` outlives the plan in every test.
        unsafe { world.add(peer, &bytes[..size]) };
    }
    world.plan.close();
    world.plan
}

fn to_one(sizes: &[usize], limit: usize, message_bytes_max: usize) -> Vec<Vec<usize>> {
    let bytes = vec![0x10; 70_000];
    let frames: Vec<_> = sizes.iter().map(|&size| (3, size)).collect();
    shape(&plan(&bytes, &frames, limit, message_bytes_max))
}

/// Sizes of the datagrams of each message.
fn shape(plan: &Plan) -> Vec<Vec<usize>> {
    let sizes = |message| datagrams(plan, message).iter().map(Vec::len).collect();
    plan.messages().iter().map(sizes).collect()
}

/// The bytes of a message as the kernel would gather them.
fn gathered(plan: &Plan, message: &Message) -> Vec<u8> {
    let pieces = plan.pieces_of(message).map(|piece| {
        // SAFETY: the tests' frames are still there, as is the plan's own memory.
        unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
    });
    pieces.collect::<Vec<_>>().concat()
}

/// The message as the kernel would cut it.
fn datagrams(plan: &Plan, message: &Message) -> Vec<Vec<u8>> {
    let bytes = gathered(plan, message);
    let cut: Vec<_> = bytes.chunks(plan.segment_bytes(message)).map(<[u8]>::to_vec).collect();
    assert_eq!(cut.len(), message.datagram_count);
    cut
}

fn port_of(plan: &Plan, message: &Message) -> u32 {
    let RawAddr::V4(v4) = plan.name_of(message) else { panic!("an IPv6 address") };
    u32::from(u16::from_be(v4.sin_port))
}

#[test]
fn close__leaves_a_single_small_frame_bare_and_bundles_several() {
    assert_eq!(to_one(&[40], 1232, 65_507), [[40]]);
    assert_eq!(to_one(&[1232], 1232, 65_507), [[1232]]);
    assert_eq!(to_one(&[40, 50, 60], 1232, 65_507), [[1 + 42 + 52 + 62]]);
    assert_eq!(to_one(&[40, 1232, 60], 1232, 65_507), [[40], [1232], [60]]);
    assert_eq!(to_one(&[600, 627], 1232, 65_507), [[1232]]);
    assert_eq!(to_one(&[600, 628], 1232, 0), [[600], [628]]);
}

#[test]
fn close__groups_equal_datagrams_with_a_shorter_last_one() {
    let grouped = to_one(&[3000, 3000, 3000, 2900, 3000], 3000, 65_507);
    assert_eq!(grouped, [vec![3000, 3000, 3000, 2900], vec![3000]]);
    assert_eq!(to_one(&[3000, 3000, 3000], 3000, 0), [[3000], [3000], [3000]]);
    let limited = to_one(&[3000; 5], 3000, 6000);
    assert_eq!(limited, [vec![3000, 3000], vec![3000, 3000], vec![3000]]);
    assert_eq!(to_one(&[3000, 4000, 5000], 5000, 65_507), [[3000], [4000], [5000]]);
}

#[test]
fn close__makes_no_message_of_more_datagrams_than_the_kernel_cuts() {
    let counts: Vec<_> = to_one(&[700; 100], 1232, 1 << 20).iter().map(Vec::len).collect();
    assert_eq!(counts, [64, 36]);
}

#[test]
fn close__of_frames_to_two_peers_by_turns_groups_each_peers() {
    let bytes = vec![0x10; 4000];
    let turns = [(1, 40), (2, 50), (1, 60), (2, 3000), (1, 70), (2, 3000), (2, 9)];
    let plan = plan(&bytes, &turns, 3000, 65_507);
    // In order of completion.
    assert_eq!(shape(&plan), [vec![50], vec![3000, 3000, 9], vec![1 + 42 + 62 + 72]]);
    let ports: Vec<_> = plan.messages().iter().map(|message| port_of(&plan, message)).collect();
    assert_eq!(ports, [2, 2, 1]);
    let expected = [40, 60, 70].map(|size| vec![0x10; size]);
    let bundle = gathered(&plan, &plan.messages()[2]);
    assert!(bundle::frames(&bundle).unwrap().eq(expected.iter().map(Vec::as_slice)));
    let load = plan.load_of(&plan.messages()[2]);
    assert_eq!(load, Load { frames: 3, frame_bytes: 170 });
}

#[test]
fn ungroup__leaves_what_was_sent() {
    let bytes = vec![0x10; 4000];
    let frames = [3000, 3000, 4000, 4000, 3900].map(|size| (1, size));
    let mut plan = plan(&bytes, &frames, 4000, 65_507);
    assert_eq!(shape(&plan), [vec![3000, 3000], vec![4000, 4000, 3900]]);
    plan.ungroup(1);
    assert_eq!(shape(&plan), [vec![3000, 3000], vec![4000], vec![4000], vec![3900]]);
    plan.ungroup(0);
    assert_eq!(shape(&plan), [[3000], [3000], [4000], [4000], [3900]]);
    plan.ungroup(5);
    assert_eq!(plan.messages().len(), 5);
}

#[test]
fn keep__copies_large_frames_and_leaves_what_was_sent() {
    let mut bytes = vec![0x10; 4000];
    let frames = [(1, 3000), (2, 40), (2, 50), (1, 4000), (2, 3500)];
    let mut plan = plan(&bytes, &frames, 4000, 0);
    let before: Vec<_> = plan.messages().iter().map(|m| gathered(&plan, m)).collect();
    plan.keep(1);
    assert_eq!(plan.kept.len(), 3000 + 4000 + 3500, "the small ones are the plan's own");
    bytes.fill(0xEE);
    let after: Vec<_> = plan.messages().iter().map(|m| gathered(&plan, m)).collect();
    assert_eq!(after, before[1..]);
    plan.keep(2);
    let after: Vec<_> = plan.messages().iter().map(|m| gathered(&plan, m)).collect();
    assert_eq!(after, before[3..]);
}

#[test]
fn close_lane__gives_a_reused_number_a_lane_of_its_own() {
    let mut world = World::new(3000, 0);
    // SAFETY: small frames are copied.
    unsafe {
        world.add(1, &[0x10; 20]);
        world.plan.close_lane(PeerId(1), false);
        world.add(1, &[0x11; 20]);
    }
    world.plan.close();
    let sent: Vec<_> = world.plan.messages().iter().map(|m| gathered(&world.plan, m)).collect();
    assert_eq!(sent, [[0x10; 20], [0x11; 20]]);
}

fn frame_sizes() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..100usize, 2 => 1..2100usize, 1 => 1..9000usize, 2 => Just(3000)]
}

/// Frames to four peers, often several of one size to one peer.
fn bursts() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    let several = (1..5u32, frame_sizes(), prop_oneof![1..3usize, 1..20usize]);
    vec(several, 1..if cfg!(miri) { 10 } else { 60 }).prop_map(|list| {
        let sizes = list.into_iter().flat_map(|(peer, size, count)| vec![(peer, size); count]);
        let frame = |(index, (peer, size))| (peer, vec![0x10 + (index % 0xE0) as u8; size]);
        sizes.enumerate().map(frame).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 6 } else { 256 }))]

    #[test]
    fn loose__is_what_the_general_way_makes_of_the_same_frames(
        sizes in vec(1..300usize, 1..30),
        limit in 1232..9000usize,
        other_at in 0..40usize,
    ) {
        let mut world = World::new(limit, 65_507);
        for (index, &size) in sizes.iter().enumerate() {
            let bytes = vec![0x10 + index as u8; size];
            let peer = if index == other_at { 2 } else { 1 };
            // SAFETY: small frames are copied.
            unsafe { world.add(peer, &bytes) };
        }
        let plan = &mut world.plan;
        let loose = plan.loose().map(|Loose { name, piece, load, .. }| {
            let port = if other_at == 0 { 2u16 } else { 1 };
            assert!(matches!(name, RawAddr::V4(v4) if v4.sin_port == port.to_be()));
            // SAFETY: the piece lies in the plan.
            let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) };
            (bytes.to_vec(), load)
        });
        plan.close();
        prop_assert!(plan.loose().is_none());
        let closed: Vec<_> = plan.messages().iter().map(|m| (gathered(plan, m), m.load)).collect();
        // A full bundle and a short rest together may be no longer than one datagram.
        let is_one = matches!(plan.messages(), [message] if message.datagram_count == 1);
        prop_assert_eq!(loose.is_some(), is_one);
        prop_assert!(loose.is_none_or(|loose| loose == closed[0]));
        plan.clear();
        prop_assert!(plan.is_empty() && plan.loose().is_none());
    }

    #[test]
    fn try_extend__makes_the_same_messages_as_the_general_way(
        owned in bursts(),
        limit in 9000..65_508usize,
    ) {
        let mut worlds = [true, false].map(|has_short_way| {
            World { has_short_way, ..World::new(limit, 65_507) }
        });
        for (peer, bytes) in &owned {
            if worlds.iter().all(|world| world.plan.has_room()) {
                // SAFETY: the frames live until the end of the test.
                worlds.iter_mut().for_each(|world| unsafe { world.add(*peer, bytes) });
            }
        }
        let [short, general] = worlds.map(|mut world| {
            world.plan.close();
            let messages = world.plan.messages().iter();
            let seen = |message: &Message| {
                let plan = &world.plan;
                (port_of(plan, message), datagrams(plan, message), plan.load_of(message))
            };
            messages.map(seen).collect::<Vec<_>>()
        });
        prop_assert_eq!(short, general);
    }
}

#[test]
fn close__joins_no_datagrams_that_a_packet_of_a_device_could_hold_except_on_loopback() {
    for (ip, frames, expected) in
        [([10, 0, 0, 1], 2, vec![1, 1]), ([10, 0, 0, 1], 3, vec![3]), ([127, 0, 0, 1], 2, vec![2])]
    {
        let mut plan = Plan::new(60_000).unwrap();
        let (name, mut lane) = (RawAddr::from(SocketAddr::from((ip, 7))), 0);
        let frame = vec![0x10; 1_900];
        for _ in 0..frames {
            let lane = &mut lane;
            let target = Target { peer: PeerId(1), name: &name, datagram_bytes_max: 1_900, lane };
            // SAFETY: the frame stays until the plan is dropped.
            unsafe {
                if !plan.try_extend(PeerId(1), &frame, &[]) {
                    plan.add_large(target, &frame, &[]);
                }
            }
        }
        plan.close();
        let counts: Vec<_> = plan.messages().iter().map(|message| message.datagram_count).collect();
        assert_eq!(counts, expected, "{frames} frames to {ip:?}");
        let bytes: usize = plan.messages().iter().map(|message| message.bytes).sum();
        assert_eq!(bytes, frames * 1_900);
    }
}
