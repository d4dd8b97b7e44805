//! Evidence of loss within a path and by age, against a list of all transmissions.

use proptest::prelude::*;

use super::*;

const US: u64 = 1_000;

fn never(_: PathId) -> Option<u64> {
    None
}

panics! {
    path__of_a_packet_that_was_not_sent: "a packet has a path once it is sent"
        => PacketPaths::new(1).path(0);
    note_acked__of_a_packet_a_window_behind: "the record has the packets of one window" => {
        let mut paths = PacketPaths::new(1);
        (0..=WINDOW_PACKETS).for_each(|packet| paths.note_new(0, packet, PathId(0)));
        paths.note_acked(1_000, 0);
    };
}

#[test]
fn lost__overtaken_on_its_own_path_alone() {
    let mut paths = PacketPaths::new(1);
    for (packet, path) in [0, 1, 0, 1].into_iter().enumerate() {
        paths.note_new(0, packet as u32, PathId(path));
    }
    assert!(paths.note_acked(9 * US, 3).is_only());
    assert_eq!(paths.lost(9 * US, 0, never), None, "order between two paths says nothing");
    assert_eq!(paths.lost(9 * US, 1, never), Some(Evidence::Overtaken));
    assert_eq!(paths.lost(9 * US, 2, never), None);
}

#[test]
fn lost__after_as_many_later_packets_as_the_threshold() {
    let mut paths = PacketPaths::new(3);
    (0..5).for_each(|packet| paths.note_new(0, packet, PathId(4)));
    for (acked, evidence) in [(1, None), (2, None), (3, Some(Evidence::Overtaken))] {
        paths.note_acked(0, acked);
        assert_eq!(paths.lost(0, 0, never), evidence, "{acked}");
    }
}

#[test]
fn lost__overdue_when_a_copy_has_arrived_that_was_sent_a_lead_later() {
    let mut paths = PacketPaths::new(1);
    let lead = |path: PathId| Some(if path == PathId(1) { 30 * US } else { 0 });
    for (packet, (sent_us, path)) in [(100, 1), (130, 2), (131, 2)].into_iter().enumerate() {
        paths.note_new(sent_us * US, packet as u32, PathId(path));
    }
    // However late the acknowledgement comes, and however old the copy is then.
    paths.note_acked(900 * US, 1);
    assert_eq!(paths.lost(900 * US, 0, lead), None);
    paths.note_acked(950 * US, 2);
    assert_eq!(paths.lost(950 * US, 0, lead), Some(Evidence::Overdue));
    assert_eq!(paths.lost(950 * US, 0, never), None, "no round trip was measured");
    // The repetition is younger than all that has arrived.
    paths.note_repeat(951 * US, 0, PathId(1));
    assert_eq!(paths.lost(2_000 * US, 0, lead), None);
}

/// Which repetition has arrived is not known: the last one, or an earlier one, a round trip ago at least.
#[test]
fn note_repeat_arrived__shows_that_copies_sent_long_before_are_lost() {
    for (repeated_us, sent_later_us) in [(&[140][..], 40), (&[140, 195][..], 90), (&[][..], 0)] {
        let mut paths = PacketPaths::new(1);
        paths.note_new(100 * US, 0, PathId(1));
        paths.note_new(100 * US, 1, PathId(2));
        for repeated_us in repeated_us {
            paths.note_repeat(repeated_us * US, 1, PathId(2));
        }
        paths.note_repeat_arrived(200 * US, 1, 10 * US);
        let is_lost = |lead_us: u64| paths.lost(200 * US, 0, |_| Some(lead_us * US)).is_some();
        assert!(!is_lost(sent_later_us), "{repeated_us:?}");
        assert_eq!(sent_later_us > 0 && is_lost(sent_later_us - 1), sent_later_us > 0);
    }
}

#[test]
fn note_acked__a_repeated_packet_is_no_evidence_about_paths() {
    let mut paths = PacketPaths::new(1);
    paths.note_new(0, 0, PathId(0));
    paths.note_new(0, 1, PathId(1));
    paths.note_repeat(20 * US, 0, PathId(1));
    paths.note_new(21 * US, 2, PathId(1));
    let copy = paths.note_acked(40 * US, 0);
    assert_eq!((copy.path, copy.is_only()), (PathId(1), false));
    assert_eq!(paths.lost(40 * US, 1, never), None, "the first copy of packet 0 may have come");
    let copy = paths.note_acked(45 * US, 2);
    assert_eq!(copy, LastCopy { path: PathId(1), rtt_ns: Some(24 * US) });
    assert_eq!(paths.lost(45 * US, 1, never), Some(Evidence::Overtaken));
}

/// A later packet takes the entry, and its first copy counts again.
#[test]
fn note_new__takes_over_the_entry_of_an_old_packet() {
    let mut paths = PacketPaths::new(1);
    paths.note_new(0, 0, PathId(0));
    paths.note_repeat(0, 0, PathId(3));
    (1..WINDOW_PACKETS).for_each(|packet| paths.note_new(0, packet, PathId(2)));
    paths.note_new(70 * US, WINDOW_PACKETS, PathId(5));
    let copy = paths.note_acked(90 * US, WINDOW_PACKETS);
    assert_eq!(copy, LastCopy { path: PathId(5), rtt_ns: Some(20 * US) });
}

/// Counters of transmissions wrap, and so does the clock.
#[test]
fn lost__when_counters_have_wrapped() {
    let mut paths = PacketPaths::new(1);
    for packet in 0..70_000 {
        let now_ns = u64::from(packet) * US;
        paths.note_new(now_ns, packet, PathId(0));
        if packet % 7 != 0 {
            assert_eq!(paths.note_acked(now_ns + 9 * US, packet).rtt_ns, Some(9 * US));
            let evidence = (packet % 7 == 1).then_some(Evidence::Overtaken);
            let before = packet - packet % 7;
            assert!(evidence.is_none() || paths.lost(now_ns, before, never) == evidence);
        }
    }
}

/// All transmissions, in order.
#[derive(Default)]
struct Model(Vec<(u32, PathId, u64)>);

impl Model {
    fn copies(&self, packet: u32) -> usize {
        self.0.iter().filter(|sent| sent.0 == packet).count()
    }

    fn last(&self, packet: u32) -> usize {
        self.0.iter().rposition(|sent| sent.0 == packet).unwrap()
    }

    fn evidence(&self, packet: u32, acked: &[u32], lead_ns: u64) -> Option<Evidence> {
        let last = self.last(packet);
        let (_, path, sent_ns) = self.0[last];
        let of_path = |at: usize| self.0[..=at].iter().filter(|sent| sent.1 == path).count();
        let only =
            acked.iter().filter(|acked| self.copies(**acked) == 1).map(|acked| self.last(*acked));
        let only: Vec<usize> = only.collect();
        let is_overtaken =
            only.iter().any(|at| self.0[*at].1 == path && of_path(*at) > of_path(last));
        let is_overdue = only.iter().any(|at| self.0[*at].2 > sent_ns + lead_ns);
        if is_overtaken {
            Some(Evidence::Overtaken)
        } else {
            is_overdue.then_some(Evidence::Overdue)
        }
    }
}

proptest! {
    #[test]
    fn packet_paths__match_a_list_of_transmissions(
        steps in prop::collection::vec((0..4u8, 0..5u8, 0..40u32, 0..9u64), 1..150),
    ) {
        let (mut paths, mut model) = (PacketPaths::new(1), Model::default());
        let (mut next, mut now_ns, mut acked) = (0, 0, Vec::new());
        for (step, path, back, wait_us) in steps {
            let path = PathId(path);
            now_ns += wait_us * US;
            let packet = next - 1u32.max(back).min(next);
            match step {
                0 | 1 => {
                    paths.note_new(now_ns, next, path);
                    model.0.push((next, path, now_ns));
                    next += 1;
                }
                // An acknowledged packet is not sent again.
                2 if packet < next && !acked.contains(&packet) => {
                    paths.note_repeat(now_ns, packet, path);
                    model.0.push((packet, path, now_ns));
                }
                3 if packet < next && !acked.contains(&packet) => {
                    let (_, path, sent_ns) = model.0[model.last(packet)];
                    let only_repeat = (model.copies(packet) == 2).then(|| (path, now_ns - sent_ns));
                    prop_assert_eq!(paths.only_repeat(now_ns, packet), only_repeat);
                    let copy = paths.note_acked(now_ns, packet);
                    let rtt_ns = (model.copies(packet) == 1).then_some(now_ns - sent_ns);
                    prop_assert_eq!(copy, LastCopy { path, rtt_ns });
                    acked.push(packet);
                }
                _ => {}
            }
            for packet in (0..next).filter(|packet| !acked.contains(packet)) {
                let evidence = paths.lost(now_ns, packet, |_| Some(50 * US));
                prop_assert_eq!(evidence, model.evidence(packet, &acked, 50 * US));
            }
        }
    }
}

panics! {
    note_new__with_a_gap: "new packets are sent in sequence"
        => PacketPaths::new(1).note_new(0, 1, PathId(0));
    note_repeat__of_a_packet_that_was_not_sent: "a packet is repeated after its first transmission"
        => PacketPaths::new(1).note_repeat(0, 0, PathId(0));
    new__a_packet_is_no_evidence_against_itself: "later packets are evidence"
        => PacketPaths::new(0);
}
