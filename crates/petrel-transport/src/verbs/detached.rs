//! Cards in memory behind the library's functions, for tests: completions come late, packets without a request are lost, and the path of
//! the card [`DEAF`] is dead.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;

use super::error::VerbsError;
use super::table::{
    AddressHandle, AddressSettings, Channel, Completion, CompletionQueue, Context, Device, Domain,
    Event, FATAL_EVENTS, LINK_LAYER_ETHERNET, Operations, PORT_ACTIVE, Pair, PairSettings,
    PairState, Piece, PortState, QP_QKEY, ReceiveRequest, Registration, SEND_INLINE, SEND_SIGNALED,
    SendRequest, Table, WC_GRH, WC_SUCCESS,
};
use super::{Verbs, VerbsConfig};
use crate::wake::Waker;

/// The card whose packets are lost.
pub const DEAF: &str = "deaf0";

/// The names of the cards.
const CARDS: [&CStr; 2] = [c"fake0", c"deaf0"];

/// Opens a card in memory.
///
/// # Errors
/// As [`Verbs::open`].
pub fn open(config: &VerbsConfig, waker: Waker) -> Result<Verbs, VerbsError> {
    Verbs::by(table(), config, waker)
}

/// Has a card in memory tell of its end.
pub fn end(verbs: &Verbs) {
    verbs.pair.tell_of_the_end();
}

/// A queue pair of the card in memory.
struct FakePair {
    card: usize,
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
pub(super) struct Network {
    pairs: Vec<Option<FakePair>>,
    queues: Vec<FakeQueue>,
    /// The traffic class of each.
    handles: Vec<u8>,
    /// Whether packets that may be marked get the mark of congestion.
    pub(super) marks: bool,
    pub(super) lost: u64,
}

static NETWORK: Mutex<Network> = Mutex::new(Network {
    pairs: Vec::new(),
    queues: Vec::new(),
    handles: Vec::new(),
    marks: false,
    lost: 0,
});

/// Polls of a send queue until its completions come.
const POLLS_UNTIL_SENT: u32 = 3;

const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 1];

pub(super) fn network() -> std::sync::MutexGuard<'static, Network> {
    NETWORK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn name<T>(index: usize) -> *mut T {
    (index + 1) as *mut T
}

fn index<T>(object: *mut T) -> usize {
    object as usize - 1
}

unsafe extern "C" fn device_list(count: *mut c_int) -> *mut *mut Device {
    unsafe { *count = CARDS.len() as c_int };
    Box::into_raw(Box::new([name::<Device>(0), name(1), ptr::null_mut()])).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    drop(unsafe { Box::from_raw(list.cast::<[*mut Device; 3]>()) });
}

unsafe extern "C" fn device_name(device: *mut Device) -> *const c_char {
    CARDS[index(device)].as_ptr()
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

unsafe extern "C" fn alloc_domain(context: *mut Context) -> *mut Domain {
    unsafe { (*context).device }
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

unsafe extern "C" fn create_pair(domain: *mut Domain, settings: *mut PairSettings) -> *mut Pair {
    let settings = unsafe { &*settings };
    if settings.capacity.inline_bytes > 60 {
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return ptr::null_mut();
    }
    let mut network = network();
    let at = network.pairs.len();
    network.pairs.push(Some(FakePair {
        card: index(domain),
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
    if settings.route.gid != GID {
        unsafe { *libc::__errno_location() = libc::ETIMEDOUT };
        return ptr::null_mut();
    }
    let handles = &mut network().handles;
    handles.push(settings.route.traffic_class);
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
        let card = network.pairs[at].as_ref().expect("the sender lives").card;
        deliver(&mut network, (number, card), one, piece);
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
fn deliver(network: &mut Network, (from, card): (u32, usize), request: &SendRequest, piece: Piece) {
    let class = network.handles[index(request.handle)];
    let (marks, to) = (network.marks && class == 2, request.pair.wrapping_sub(100) as usize);
    let receiver = network.pairs.get_mut(to).and_then(Option::as_mut);
    let place = receiver
        .filter(|receiver| card == 0 && receiver.card == 0 && receiver.key == request.key)
        .and_then(|receiver| Some((receiver.received, receiver.requests.pop_front()?)));
    let Some((queue, (id, to))) = place else {
        network.lost += 1;
        return;
    };
    assert!(to.length >= piece.length + 40, "a request has room for the largest packet");
    let mut header = [0_u8; 40];
    (header[20], header[21]) = (0x45, if marks { 3 } else { class });
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

pub(super) fn table() -> Table {
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
