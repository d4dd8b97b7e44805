//! The transport over cards in memory, and over a card of the host; and the layouts beside the installed headers.

use std::ffi::CString;
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use petrel_skip::Need;

use super::detached::{network, table};
use super::*;
use crate::conformance::{self, End, Harness, Medium, Star};

/// The tests share the network.
static ALONE: Mutex<()> = Mutex::new(());

fn open(config: &VerbsConfig) -> Verbs {
    by(table(), config)
}

fn by(table: Table, config: &VerbsConfig) -> Verbs {
    Verbs::by(table, config, Waker::new().unwrap()).unwrap()
}

fn link_to(verbs: &Verbs) -> VerbsLink {
    VerbsLink { address: verbs.address(), max_frame: verbs.frame_bytes(), ecn: true }
}

/// Adds a peer, and waits for its place.
fn add(verbs: &mut Verbs, link: VerbsLink) -> PeerId {
    let peer = verbs.add_peer(link).unwrap();
    verbs.settle();
    peer
}

struct Cards {
    table: Table,
    config: VerbsConfig,
}

impl Harness for Cards {
    type T = Verbs;

    fn medium(&self) -> Medium {
        Medium::lossy_when_full().with_capacity(60_000)
    }

    fn star(&mut self) -> Star<Verbs> {
        let mut hub = by(self.table, &self.config);
        let leaves = [(); 2].map(|()| {
            let mut transport = by(self.table, &self.config);
            let peer = add(&mut transport, link_to(&hub));
            End { transport, peer }
        });
        let peers = [&leaves[0], &leaves[1]].map(|leaf| add(&mut hub, link_to(&leaf.transport)));
        Star { hub, peers, leaves }
    }
}

fn conforms(table: Table, card: &str) {
    let large = VerbsConfig { card: card.to_owned(), ..VerbsConfig::default() };
    let small = VerbsConfig { receives: 512, sends: 256, ..large.clone() };
    for config in [large, small] {
        conformance::run_all(&mut Cards { table, config: config.clone() });
        conformance::run_threaded(&mut Cards { table, config });
    }
}

#[test]
fn conformance() {
    let _alone = ALONE.lock();
    conforms(table(), "");
}

/// `PETREL_VERBS` names a card of the host, for example `rxe0`. Without one the test runs itself in an emulated machine.
#[test]
fn on_card() {
    if let Ok(card) = std::env::var("PETREL_VERBS") {
        one_sided::tests::all_on(&card);
        return conforms(Table::open(LIBRARY).unwrap(), &card);
    }
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().display();
    let script = format!("PETREL_VERBS=rxe0 {name} --exact verbs::tests::on_card --test-threads 1");
    match petrel_netns::in_guest(&script, &[&program]) {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("test result: ok. 1 passed"), "{text}");
        }
        Err(error) => petrel_skip::skip(Need::Card, error),
    }
}

fn send(verbs: &mut Verbs, peer: PeerId, bytes: &[u8]) -> bool {
    verbs.tx_burst(&[crate::TxFrame { peer, head: bytes, body: &[] }]) == 0
}

fn received(verbs: &mut Verbs) -> Vec<(PeerId, Vec<u8>)> {
    let mut frames = Vec::new();
    while verbs.rx_burst(64, |peer, frame| frames.push((peer, frame.to_vec()))) > 0 {}
    frames
}

/// A receive queue that no poll empties drops what the credits of sessions would not have let through.
#[test]
fn receive_queue__is_the_number_that_arrives() {
    let _alone = ALONE.lock();
    let config = VerbsConfig { receives: 64, ..VerbsConfig::default() };
    let (mut one, mut other) = (open(&config), open(&config));
    let to = add(&mut one, link_to(&other));
    let from = add(&mut other, link_to(&one));
    let lost_before = network().lost;
    for number in 0..70_u8 {
        assert!(send(&mut one, to, &[number; 100]));
    }
    let frames = received(&mut other);
    assert_eq!(other.receive_queue(), Some(ReceiveQueue::Ring(64)));
    assert_eq!((frames.len(), network().lost - lost_before), (64, 6));
    assert!(frames.iter().zip(0..).all(|(frame, number)| *frame == (from, vec![number; 100])));
}

#[test]
fn handle_marked__of_packets_that_a_switch_marked() {
    struct Marks(u32);
    impl FrameHandler<NoReturn> for &mut Marks {
        fn handle(&mut self, _: PeerId, _: &[u8], _: Option<&mut NoReturn>) {}
        fn handle_marked(&mut self, _: PeerId, _: &[u8]) {
            self.0 += 1;
        }
    }
    let _alone = ALONE.lock();
    let (mut one, mut other) = (open(&VerbsConfig::default()), open(&VerbsConfig::default()));
    let to = add(&mut one, link_to(&other));
    add(&mut other, link_to(&one));
    let mut marks = Marks(0);
    for is_marked in [true, false, true] {
        network().marks = is_marked;
        assert!(send(&mut one, to, b"x"));
        assert_eq!(other.rx_burst_to(24, &mut marks), 1);
    }
    network().marks = false;
    assert_eq!((marks.0, other.stats().rx_marked), (2, 2));
}

/// Strangers, and packets with another key, reach no session.
#[test]
fn rx_burst__of_strangers_and_other_keys() {
    let _alone = ALONE.lock();
    let (mut one, mut other) = (open(&VerbsConfig::default()), open(&VerbsConfig::default()));
    let right = link_to(&other);
    let to = add(&mut one, right);
    let address = Address { key: 5, ..right.address };
    let wrong = add(&mut one, VerbsLink { address, ..right });
    assert!(send(&mut one, wrong, b"wrong key") && send(&mut one, to, b"stranger"));
    assert_eq!(received(&mut other), []);
    assert_eq!(other.stats().rx_dropped_unknown_peer, 1);
}

/// Two links of other terms to one address are two peers; a packet names the first, and the second after the first is gone.
#[test]
fn add_peer__twice_to_one_address() {
    let _alone = ALONE.lock();
    let (mut one, mut other) = (open(&VerbsConfig::default()), open(&VerbsConfig::default()));
    let to = add(&mut one, link_to(&other));
    let link = link_to(&one);
    let first = add(&mut other, link);
    assert_eq!(add(&mut other, link), first);
    let second = add(&mut other, VerbsLink { max_frame: 1_500, ..link });
    assert_ne!(first, second);
    assert_eq!(other.source_of(second), first);
    for expected in [first, first, second] {
        assert!(send(&mut one, to, b"x"));
        assert_eq!(received(&mut other), [(expected, b"x".to_vec())]);
        other.remove_peer(first);
    }
    assert_eq!((other.source_of(second), other.max_frame_bytes(second)), (second, 1_500));
    let small = VerbsLink { max_frame: 1_000, ..link };
    assert!(matches!(other.add_peer(small), Err(LinkError::Unsupported(_))));
}

/// After the card's end each peer is reported once, frames are dropped, and nothing is asked of the card.
#[test]
fn take_broken__after_the_end_of_the_card() {
    let _alone = ALONE.lock();
    let (mut one, other) = (open(&VerbsConfig::default()), open(&VerbsConfig::default()));
    let to = add(&mut one, link_to(&other));
    assert!(one.take_notice().is_none() && !one.has_broken());
    detached::end(&one);
    assert!(one.take_notice().unwrap().contains("card"));
    assert_eq!(one.take_broken().map(|(peer, _)| peer), Some(to));
    assert!(one.take_broken().is_none() && one.take_notice().is_none());
    assert!(send(&mut one, to, b"x"));
    assert_eq!((one.stats().tx_dropped_error, one.stats().tx_frames), (1, 0));
}

/// Frames to a peer without a place are dropped, and the owner's log has the reason.
#[test]
fn take_notice__of_a_peer_without_a_place() {
    let (mut one, other) = (open(&VerbsConfig::default()), open(&VerbsConfig::default()));
    let mut link = link_to(&other);
    link.address.gid[15] = 9;
    let peer = one.add_peer(link).unwrap();
    assert!(send(&mut one, peer, b"x"));
    one.settle();
    assert!(send(&mut one, peer, b"x"));
    assert_eq!((one.stats().tx_dropped_no_peer, one.stats().tx_frames), (2, 0));
    let notice = one.take_notice().unwrap();
    assert!(notice.contains("10.0.0.9") && notice.contains("ibv_create_ah"), "{notice}");
    assert!(one.take_notice().is_none());
    one.remove_peer(peer);
}

/// The end of a card ends a sleep.
#[test]
fn wait__ends_with_the_card() {
    let (mut one, other) = (open(&VerbsConfig::default()), open(&VerbsConfig::default()));
    let peer = add(&mut one, link_to(&other));
    detached::end(&one);
    while !one.has_broken() {
        one.wait(Some(Duration::from_secs(60).as_nanos() as u64));
    }
    assert_eq!(one.take_broken().map(|(broken, _)| broken), Some(peer));
    assert!(one.take_notice().is_some());
}

#[test]
fn open__names_what_is_missing() {
    let text = |config: VerbsConfig| {
        Verbs::by(table(), &config, Waker::new().unwrap()).unwrap_err().to_string()
    };
    let default = VerbsConfig::default();
    for (config, part) in [
        (VerbsConfig { card: "mlx5_0".into(), ..default.clone() }, "the host has: fake0, deaf0"),
        (VerbsConfig { port: 3, ..default.clone() }, "port 3 of the RDMA card fake0 is not active"),
        (VerbsConfig { port: 2, ..default.clone() }, "ip link set IF mtu"),
    ] {
        let text = text(config);
        assert!(text.contains(part), "{text}");
    }
    let missing = CString::new("libibverbs-that-nobody-has.so.1").unwrap();
    let error = Table::open(&missing).err().unwrap().to_string();
    assert!(error.contains("ibverbs-providers"), "{error}");
}

/// The layouts of this module are those of the headers, where a compiler and the headers are installed.
#[test]
fn layouts__are_those_of_the_headers() {
    let folder = std::env::temp_dir().join(format!("petrel-verbs-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let compile = |text: &str| {
        let source = folder.join("layout.c");
        fs::write(&source, text).unwrap();
        Command::new("cc").args(["-fsyntax-only".as_ref(), source.as_os_str()]).output()
    };
    match compile("#include <infiniband/verbs.h>\n") {
        Ok(output) if output.status.success() => {
            let output = compile(include_str!("layout.c")).unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "a layout differs: {said}");
        }
        _ => petrel_skip::skip(Need::Verbs, "no C compiler, or no libibverbs-dev"),
    }
    fs::remove_dir_all(folder).unwrap();
}
