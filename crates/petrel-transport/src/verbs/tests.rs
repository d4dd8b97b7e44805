//! The transport over a library in memory, whose card loses, delays and fails as told; and the layouts beside the installed headers.

use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::process::Command;
use std::ptr;
use std::sync::Mutex;

use petrel_skip::Need;

use super::table::*;
use super::*;
use crate::conformance::{self, End, Harness, Medium, Star};

/// A queue pair of the card in memory.
struct FakePair {
    number: u32,
    key: u32,
    sent: usize,
    received: usize,
    requests: VecDeque<(u64, Piece)>,
}

/// A completion queue. Send completions wait for `delay` polls.
#[derive(Default)]
struct FakeQueue {
    completions: VecDeque<Completion>,
    event_fd: c_int,
    is_armed: bool,
    polls: u32,
}

/// The network of all cards in memory. Objects are numbers, and a pointer holds the number plus one.
#[derive(Default)]
struct Network {
    pairs: Vec<Option<FakePair>>,
    queues: Vec<FakeQueue>,
    handles: Vec<[u8; 16]>,
    /// Whether packets get the mark of congestion.
    marks: bool,
    lost: u64,
}

static NETWORK: Mutex<Network> = Mutex::new(Network {
    pairs: Vec::new(),
    queues: Vec::new(),
    handles: Vec::new(),
    marks: false,
    lost: 0,
});

/// The tests share the network.
static ALONE: Mutex<()> = Mutex::new(());

/// Polls of a send queue until its completions come.
const POLLS_UNTIL_SENT: u32 = 3;

const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 1];

fn network() -> std::sync::MutexGuard<'static, Network> {
    NETWORK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn name<T>(index: usize) -> *mut T {
    (index + 1) as *mut T
}

fn index<T>(object: *mut T) -> usize {
    object as usize - 1
}

unsafe extern "C" fn device_list(count: *mut c_int) -> *mut *mut Device {
    unsafe { *count = 1 };
    Box::into_raw(Box::new([name::<Device>(0), ptr::null_mut()])).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    drop(unsafe { Box::from_raw(list.cast::<[*mut Device; 2]>()) });
}

unsafe extern "C" fn device_name(_: *mut Device) -> *const c_char {
    c"fake0".as_ptr()
}

unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    let operations = Operations {
        before: [ptr::null_mut(); 11],
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        between: [ptr::null_mut(); 12],
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        after: [ptr::null_mut(); 5],
    };
    let async_fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    Box::into_raw(Box::new(Context { device, operations, command_fd: -1, async_fd }))
}

unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    let context = unsafe { Box::from_raw(context) };
    unsafe { libc::close(context.async_fd) }
}

unsafe extern "C" fn query_port(_: *mut Context, port: u8, state: *mut PortState) -> c_int {
    let (mtu, active) = match port {
        1 => (5, PORT_ACTIVE),
        2 => (3, PORT_ACTIVE),
        3 => (5, 1),
        _ => return libc::EINVAL,
    };
    unsafe {
        *state = PortState {
            state: active,
            mtu,
            gids: 3,
            link_layer: LINK_LAYER_ETHERNET,
            ..PortState::default()
        };
    }
    0
}

unsafe extern "C" fn query_gid(_: *mut Context, _: u8, at: c_int, gid: *mut [u8; 16]) -> c_int {
    let linklocal = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    unsafe { *gid = [linklocal, [0; 16], GID][at as usize] };
    0
}

unsafe extern "C" fn alloc_domain(_: *mut Context) -> *mut Domain {
    name(0)
}

unsafe extern "C" fn nothing<T>(_: *mut T) -> c_int {
    0
}

unsafe extern "C" fn register(
    domain: *mut Domain,
    address: *mut c_void,
    length: usize,
    _: c_int,
) -> *mut Registration {
    let context = ptr::null_mut();
    Box::into_raw(Box::new(Registration {
        context,
        domain,
        address,
        length,
        handle: 0,
        local_key: 7,
        remote_key: 7,
    }))
}

unsafe extern "C" fn deregister(registration: *mut Registration) -> c_int {
    drop(unsafe { Box::from_raw(registration) });
    0
}

unsafe extern "C" fn create_channel(context: *mut Context) -> *mut Channel {
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    Box::into_raw(Box::new(Channel { context, fd }))
}

unsafe extern "C" fn destroy_channel(channel: *mut Channel) -> c_int {
    let channel = unsafe { Box::from_raw(channel) };
    unsafe { libc::close(channel.fd) }
}

unsafe extern "C" fn create_queue(
    _: *mut Context,
    _: c_int,
    _: *mut c_void,
    channel: *mut Channel,
    _: c_int,
) -> *mut CompletionQueue {
    let event_fd = if channel.is_null() { -1 } else { unsafe { (*channel).fd } };
    let queues = &mut network().queues;
    queues.push(FakeQueue { event_fd, ..FakeQueue::default() });
    name(queues.len() - 1)
}

unsafe extern "C" fn take_event(
    channel: *mut Channel,
    _: *mut *mut CompletionQueue,
    _: *mut *mut c_void,
) -> c_int {
    let mut count = 0_u64;
    let read = unsafe { libc::read((*channel).fd, (&raw mut count).cast(), 8) };
    if read == 8 { 0 } else { -1 }
}

unsafe extern "C" fn acknowledge_events(_: *mut CompletionQueue, count: c_uint) {
    assert!(count > 0, "events are acknowledged that were taken");
}

unsafe extern "C" fn create_pair(_: *mut Domain, settings: *mut PairSettings) -> *mut Pair {
    let settings = unsafe { &*settings };
    if settings.capacity.inline_bytes > 60 {
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return ptr::null_mut();
    }
    let mut network = network();
    let at = network.pairs.len();
    network.pairs.push(Some(FakePair {
        number: at as u32 + 100,
        key: 0,
        sent: index(settings.send_queue),
        received: index(settings.receive_queue),
        requests: VecDeque::new(),
    }));
    Box::into_raw(Box::new(Pair {
        context: ptr::null_mut(),
        owner: ptr::null_mut(),
        domain: ptr::null_mut(),
        send_queue: settings.send_queue,
        receive_queue: settings.receive_queue,
        shared_queue: ptr::null_mut(),
        handle: at as u32,
        number: at as u32 + 100,
    }))
}

unsafe extern "C" fn modify_pair(pair: *mut Pair, state: *mut PairState, mask: c_int) -> c_int {
    if mask & QP_QKEY != 0 {
        let (at, key) = unsafe { ((*pair).handle as usize, (*state).key) };
        network().pairs[at].as_mut().expect("a pair that lives").key = key;
    }
    0
}

unsafe extern "C" fn destroy_pair(pair: *mut Pair) -> c_int {
    let pair = unsafe { Box::from_raw(pair) };
    network().pairs[pair.handle as usize] = None;
    0
}

unsafe extern "C" fn create_handle(
    _: *mut Domain,
    settings: *mut AddressSettings,
) -> *mut AddressHandle {
    let settings = unsafe { &*settings };
    assert!(settings.is_global == 1 && settings.route.own_index == 2, "RoCE needs the route");
    let handles = &mut network().handles;
    handles.push(settings.route.gid);
    name(handles.len() - 1)
}

unsafe extern "C" fn async_event(context: *mut Context, event: *mut Event) -> c_int {
    let mut count = 0_u64;
    let read = unsafe { libc::read((*context).async_fd, (&raw mut count).cast(), 8) };
    if read != 8 {
        return -1;
    }
    unsafe { (*event).kind = FATAL_EVENTS[2] };
    0
}

unsafe extern "C" fn acknowledge_async(_: *mut Event) {}

unsafe extern "C" fn poll_cq(
    queue: *mut CompletionQueue,
    most: c_int,
    into: *mut Completion,
) -> c_int {
    let mut network = network();
    let queue = &mut network.queues[index(queue)];
    queue.polls += 1;
    if queue.event_fd < 0 && !queue.polls.is_multiple_of(POLLS_UNTIL_SENT) {
        return 0;
    }
    let count = queue.completions.len().min(most as usize);
    for (at, completion) in queue.completions.drain(..count).enumerate() {
        unsafe { *into.add(at) = completion };
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(queue: *mut CompletionQueue, _: c_int) -> c_int {
    network().queues[index(queue)].is_armed = true;
    0
}

unsafe extern "C" fn post_recv(
    pair: *mut Pair,
    mut request: *mut ReceiveRequest,
    _: *mut *mut ReceiveRequest,
) -> c_int {
    let mut network = network();
    let pair =
        network.pairs[unsafe { (*pair).handle as usize }].as_mut().expect("a pair that lives");
    while let Some(one) = unsafe { request.as_ref() } {
        pair.requests.push_back((one.id, unsafe { *one.pieces }));
        request = one.next;
    }
    0
}

unsafe extern "C" fn post_send(
    pair: *mut Pair,
    mut request: *mut SendRequest,
    _: *mut *mut SendRequest,
) -> c_int {
    let mut network = network();
    let (at, number) = unsafe { ((*pair).handle as usize, (*pair).number) };
    while let Some(one) = unsafe { request.as_ref() } {
        let piece = unsafe { *one.pieces };
        assert!(piece.local_key == 7, "the memory is registered");
        assert!(one.flags & SEND_INLINE == 0 || piece.length <= 60, "inline only what fits");
        deliver(&mut network, number, one, piece);
        if one.flags & SEND_SIGNALED != 0 {
            let sent = network.pairs[at].as_ref().expect("the sender lives").sent;
            network.queues[sent].completions.push_back(completion(one.id, 0, number));
        }
        request = one.next;
    }
    0
}

fn completion(id: u64, bytes: u32, source_pair: u32) -> Completion {
    Completion {
        id,
        status: WC_SUCCESS,
        operation: 0,
        vendor_error: 0,
        bytes,
        immediate: 0,
        pair: 0,
        source_pair,
        flags: WC_GRH,
        key_index: 0,
        source_lid: 0,
        service_level: 0,
        path_bits: 0,
    }
}

/// Writes a packet, behind its IPv4 header, to the next request of the receiver; a packet without a request is lost.
fn deliver(network: &mut Network, from: u32, request: &SendRequest, piece: Piece) {
    let gid = network.handles[index(request.handle)];
    let (marks, to) = (network.marks, request.pair.wrapping_sub(100) as usize);
    let receiver = network.pairs.get_mut(to).and_then(Option::as_mut);
    let place = receiver
        .filter(|receiver| {
            gid == GID && receiver.number == request.pair && receiver.key == request.key
        })
        .and_then(|receiver| Some((receiver.received, receiver.requests.pop_front()?)));
    let Some((queue, (id, to))) = place else {
        network.lost += 1;
        return;
    };
    assert!(to.length >= piece.length + 40, "a request has room for the largest packet");
    let mut header = [0_u8; 40];
    (header[20], header[21]) = (0x45, if marks { 3 } else { 2 });
    header[32..36].copy_from_slice(&GID[12..]);
    // SAFETY: both pieces lie within registered memory of their transports.
    unsafe {
        let into = to.address as *mut u8;
        ptr::copy_nonoverlapping(header.as_ptr(), into, 40);
        ptr::copy_nonoverlapping(piece.address as *const u8, into.add(40), piece.length as usize);
    }
    let queue = &mut network.queues[queue];
    queue.completions.push_back(completion(id, piece.length + 40, from));
    if std::mem::take(&mut queue.is_armed) {
        let one = 1_u64;
        unsafe { libc::write(queue.event_fd, (&raw const one).cast(), 8) };
    }
}

fn table() -> Table {
    Table {
        device_list,
        free_device_list,
        device_name,
        open_device,
        close_device,
        query_port,
        query_gid,
        alloc_domain,
        dealloc_domain: nothing,
        register,
        deregister,
        create_channel,
        destroy_channel,
        create_queue,
        destroy_queue: nothing,
        take_event,
        acknowledge_events,
        create_pair,
        modify_pair,
        destroy_pair,
        create_handle,
        destroy_handle: nothing,
        async_event,
        acknowledge_async,
    }
}

fn open(config: &VerbsConfig) -> Verbs {
    by(table(), config)
}

fn by(table: Table, config: &VerbsConfig) -> Verbs {
    Verbs::by(table, config, Waker::new().unwrap()).unwrap()
}

fn link_to(verbs: &Verbs) -> VerbsLink {
    VerbsLink { address: verbs.address(), max_frame: verbs.frame_bytes() }
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
            let peer = transport.add_peer(link_to(&hub)).unwrap();
            End { transport, peer }
        });
        let peers =
            [&leaves[0], &leaves[1]].map(|leaf| hub.add_peer(link_to(&leaf.transport)).unwrap());
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
        accesses::all_on(&card);
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
    let to = one.add_peer(link_to(&other)).unwrap();
    let from = other.add_peer(link_to(&one)).unwrap();
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
    let to = one.add_peer(link_to(&other)).unwrap();
    other.add_peer(link_to(&one)).unwrap();
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
    let to = one.add_peer(right).unwrap();
    let address = Address { key: 5, ..right.address };
    let wrong = one.add_peer(VerbsLink { address, ..right }).unwrap();
    assert!(send(&mut one, wrong, b"wrong key") && send(&mut one, to, b"stranger"));
    assert_eq!(received(&mut other), []);
    assert_eq!(other.stats().rx_dropped_unknown_peer, 1);
}

/// Two links of other terms to one address are two peers; a packet names the first, and the second after the first is gone.
#[test]
fn add_peer__twice_to_one_address() {
    let _alone = ALONE.lock();
    let (mut one, mut other) = (open(&VerbsConfig::default()), open(&VerbsConfig::default()));
    let to = one.add_peer(link_to(&other)).unwrap();
    let link = link_to(&one);
    let first = other.add_peer(link).unwrap();
    assert_eq!(other.add_peer(link).unwrap(), first);
    let second = other.add_peer(VerbsLink { max_frame: 1_500, ..link }).unwrap();
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
    let to = one.add_peer(link_to(&other)).unwrap();
    assert!(one.take_notice().is_none() && !one.has_broken());
    one.pair.tell_of_the_end();
    assert!(one.take_notice().unwrap().contains("card"));
    assert_eq!(one.take_broken().map(|(peer, _)| peer), Some(to));
    assert!(one.take_broken().is_none() && one.take_notice().is_none());
    assert!(send(&mut one, to, b"x"));
    assert_eq!((one.stats().tx_dropped_error, one.stats().tx_frames), (1, 0));
}

#[test]
fn open__names_what_is_missing() {
    let text = |config: VerbsConfig| {
        Verbs::by(table(), &config, Waker::new().unwrap()).unwrap_err().to_string()
    };
    let default = VerbsConfig::default();
    for (config, part) in [
        (VerbsConfig { card: "mlx5_0".into(), ..default.clone() }, "the host has: fake0"),
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
