//! The functions and structures of `libibverbs` that the transport uses, opened at run time: building Petrel needs neither rdma-core nor
//! its headers.
//!
//! The structures are the stable part of the library's interface (symbol version `IBVERBS_1.1`), whose layout rdma-core has kept since
//! 2007. Sizes and places are asserted here, and compared with the installed headers by a test.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use super::error::VerbsError;

/// The library's name, with the version of its interface.
pub(super) const LIBRARY: &CStr = c"libibverbs.so.1";

pub(super) const QPT_RC: c_uint = 2;
pub(super) const QPT_UC: c_uint = 3;
pub(super) const QPT_UD: c_uint = 4;
pub(super) const QPS_INIT: c_uint = 1;
pub(super) const QPS_RTR: c_uint = 2;
pub(super) const QPS_RTS: c_uint = 3;
pub(super) const QPS_ERROR: c_uint = 6;
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_QKEY: c_int = 1 << 6;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_COUNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_READS: c_int = 1 << 13;
pub(super) const QP_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_PEER_READS: c_int = 1 << 17;
pub(super) const QP_PEER: c_int = 1 << 20;
pub(super) const WR_RDMA_WRITE: c_uint = 0;
pub(super) const WR_SEND: c_uint = 2;
pub(super) const WR_RDMA_READ: c_uint = 4;
pub(super) const SEND_FENCE: c_uint = 1;
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const SEND_INLINE: c_uint = 1 << 3;
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(super) const WC_SUCCESS: c_uint = 0;
pub(super) const WC_REMOTE_INVALID: c_uint = 9;
pub(super) const WC_REMOTE_ACCESS: c_uint = 10;
pub(super) const WC_GRH: c_uint = 1;
pub(super) const PORT_ACTIVE: c_uint = 4;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
/// Events after which a queue pair carries nothing any more: CQ_ERR, QP_FATAL, DEVICE_FATAL.
pub(super) const FATAL_EVENTS: [c_uint; 3] = [0, 1, 8];

/// An object of the library of which only the address is used.
#[repr(C)]
pub(super) struct Opaque {
    _private: [u8; 0],
}

pub(super) type Device = Opaque;
pub(super) type Domain = Opaque;
pub(super) type AddressHandle = Opaque;
pub(super) type CompletionQueue = Opaque;

#[repr(C)]
pub(super) struct Operations {
    pub(super) before: [*mut c_void; 11],
    pub(super) poll_cq:
        Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Completion) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    pub(super) between: [*mut c_void; 12],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut Pair, *mut SendRequest, *mut *mut SendRequest) -> c_int>,
    pub(super) post_recv: Option<
        unsafe extern "C" fn(*mut Pair, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int,
    >,
    pub(super) after: [*mut c_void; 5],
}

#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) operations: Operations,
    pub(super) command_fd: c_int,
    pub(super) async_fd: c_int,
}

#[repr(C)]
pub(super) struct Pair {
    pub(super) context: *mut Context,
    pub(super) owner: *mut c_void,
    pub(super) domain: *mut Domain,
    pub(super) send_queue: *mut CompletionQueue,
    pub(super) receive_queue: *mut CompletionQueue,
    pub(super) shared_queue: *mut c_void,
    pub(super) handle: u32,
    pub(super) number: u32,
}

#[repr(C)]
pub(super) struct Registration {
    pub(super) context: *mut Context,
    pub(super) domain: *mut Domain,
    pub(super) address: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) local_key: u32,
    pub(super) remote_key: u32,
}

#[repr(C)]
pub(super) struct Channel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Completion {
    pub(super) id: u64,
    pub(super) status: c_uint,
    pub(super) operation: c_uint,
    pub(super) vendor_error: u32,
    pub(super) bytes: u32,
    pub(super) immediate: u32,
    pub(super) pair: u32,
    pub(super) source_pair: u32,
    pub(super) flags: c_uint,
    pub(super) key_index: u16,
    pub(super) source_lid: u16,
    pub(super) service_level: u8,
    pub(super) path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) local_key: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendRequest {
    pub(super) id: u64,
    pub(super) next: *mut SendRequest,
    pub(super) pieces: *mut Piece,
    pub(super) count: c_int,
    pub(super) operation: c_uint,
    pub(super) flags: c_uint,
    pub(super) immediate: u32,
    /// Of a datagram: the place of the receiver. Of an access to a peer's memory: the address there.
    pub(super) handle: *mut AddressHandle,
    /// Of a datagram: the receiver's number. Of an access: the key of the memory.
    pub(super) pair: u32,
    pub(super) key: u32,
    pub(super) rest: [u64; 9],
}

impl SendRequest {
    /// A request of one piece, to be filled in.
    pub(super) fn of(id: u64, operation: c_uint) -> Self {
        Self {
            id,
            next: ptr::null_mut(),
            pieces: ptr::null_mut(),
            count: 1,
            operation,
            flags: 0,
            immediate: 0,
            handle: ptr::null_mut(),
            pair: 0,
            key: 0,
            rest: [0; 9],
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ReceiveRequest {
    pub(super) id: u64,
    pub(super) next: *mut ReceiveRequest,
    pub(super) pieces: *mut Piece,
    pub(super) count: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Capacity {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) send_pieces: u32,
    pub(super) receive_pieces: u32,
    pub(super) inline_bytes: u32,
}

#[repr(C)]
pub(super) struct PairSettings {
    pub(super) owner: *mut c_void,
    pub(super) send_queue: *mut CompletionQueue,
    pub(super) receive_queue: *mut CompletionQueue,
    pub(super) shared_queue: *mut c_void,
    pub(super) capacity: Capacity,
    pub(super) kind: c_uint,
    pub(super) signal_all: c_int,
}

/// The attributes of a queue pair.
#[repr(C)]
pub(super) struct PairState {
    pub(super) state: c_uint,
    pub(super) current: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) migration: c_uint,
    pub(super) key: u32,
    pub(super) receive_number: u32,
    pub(super) send_number: u32,
    pub(super) peer: u32,
    pub(super) access: c_int,
    pub(super) capacity: Capacity,
    pub(super) path: AddressSettings,
    pub(super) other_path: AddressSettings,
    pub(super) key_index: u16,
    pub(super) other_key_index: u16,
    pub(super) draining: [u8; 2],
    pub(super) reads: u8,
    pub(super) peer_reads: u8,
    pub(super) rnr_timer: u8,
    pub(super) port: u8,
    pub(super) timeout: u8,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) after: [u8; 11],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub(super) gid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) own_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct AddressSettings {
    pub(super) route: GlobalRoute,
    pub(super) lid: u16,
    pub(super) service_level: u8,
    pub(super) path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct PortState {
    pub(super) state: c_uint,
    pub(super) largest_mtu: c_uint,
    pub(super) mtu: c_uint,
    pub(super) gids: c_int,
    pub(super) other: [u32; 4],
    pub(super) counters: u16,
    pub(super) lid: u16,
    pub(super) between: [u8; 10],
    pub(super) link_layer: u8,
    pub(super) after: [u8; 5],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Event {
    pub(super) element: *mut c_void,
    pub(super) kind: c_uint,
}

const _: () = {
    assert!(size_of::<Operations>() == 256);
    assert!(offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Pair, number) == 52);
    assert!(offset_of!(Registration, remote_key) == 40);
    assert!(size_of::<Channel>() == 16);
    assert!(size_of::<Completion>() == 48 && offset_of!(Completion, source_lid) == 42);
    assert!(size_of::<SendRequest>() == 128 && offset_of!(SendRequest, handle) == 40);
    assert!(size_of::<ReceiveRequest>() == 32);
    assert!(size_of::<PairSettings>() == 64 && offset_of!(PairSettings, kind) == 52);
    assert!(size_of::<PairState>() == 144 && offset_of!(PairState, port) == 129);
    assert!(offset_of!(PairState, peer) == 28 && offset_of!(PairState, path) == 56);
    assert!(offset_of!(PairState, key_index) == 120 && offset_of!(PairState, reads) == 126);
    assert!(offset_of!(PairState, retries) == 131);
    assert!(size_of::<AddressSettings>() == 32 && offset_of!(AddressSettings, port) == 30);
    assert!(size_of::<PortState>() == 52 && offset_of!(PortState, link_layer) == 46);
    assert!(size_of::<Event>() == 16);
};

macro_rules! table {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty,)*) => {
        /// The functions of the library.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Table {
            /// Opens the library, which stays open until the process ends: threads of its own may run.
            pub(super) fn open(library: &CStr) -> Result<Self, VerbsError> {
                // SAFETY: the name ends with zero; the initialisers of a system library run.
                let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
                if handle.is_null() {
                    return Err(VerbsError::Missing { why: last_error() });
                }
                Ok(Self {
                    $($field: {
                        let symbol = symbol_of(handle, $symbol)?;
                        // SAFETY: the symbol's newest version has this signature (`infiniband/verbs.h`).
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

table! {
    device_list = c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut Device,
    free_device_list = c"ibv_free_device_list": fn(*mut *mut Device) -> (),
    device_name = c"ibv_get_device_name": fn(*mut Device) -> *const c_char,
    open_device = c"ibv_open_device": fn(*mut Device) -> *mut Context,
    close_device = c"ibv_close_device": fn(*mut Context) -> c_int,
    query_port = c"ibv_query_port": fn(*mut Context, u8, *mut PortState) -> c_int,
    query_gid = c"ibv_query_gid": fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int,
    alloc_domain = c"ibv_alloc_pd": fn(*mut Context) -> *mut Domain,
    dealloc_domain = c"ibv_dealloc_pd": fn(*mut Domain) -> c_int,
    register = c"ibv_reg_mr": fn(*mut Domain, *mut c_void, usize, c_int) -> *mut Registration,
    deregister = c"ibv_dereg_mr": fn(*mut Registration) -> c_int,
    create_channel = c"ibv_create_comp_channel": fn(*mut Context) -> *mut Channel,
    destroy_channel = c"ibv_destroy_comp_channel": fn(*mut Channel) -> c_int,
    create_queue = c"ibv_create_cq":
        fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut CompletionQueue,
    destroy_queue = c"ibv_destroy_cq": fn(*mut CompletionQueue) -> c_int,
    take_event = c"ibv_get_cq_event":
        fn(*mut Channel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int,
    acknowledge_events = c"ibv_ack_cq_events": fn(*mut CompletionQueue, c_uint) -> (),
    create_pair = c"ibv_create_qp": fn(*mut Domain, *mut PairSettings) -> *mut Pair,
    modify_pair = c"ibv_modify_qp": fn(*mut Pair, *mut PairState, c_int) -> c_int,
    destroy_pair = c"ibv_destroy_qp": fn(*mut Pair) -> c_int,
    create_handle = c"ibv_create_ah": fn(*mut Domain, *mut AddressSettings) -> *mut AddressHandle,
    destroy_handle = c"ibv_destroy_ah": fn(*mut AddressHandle) -> c_int,
    async_event = c"ibv_get_async_event": fn(*mut Context, *mut Event) -> c_int,
    acknowledge_async = c"ibv_ack_async_event": fn(*mut Event) -> (),
}

fn symbol_of(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, VerbsError> {
    // SAFETY: the handle is that of an open library, and the name ends with zero.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    match symbol.is_null() {
        true => Err(VerbsError::Missing { why: last_error() }),
        false => Ok(symbol),
    }
}

/// Returns the reason for which the loader refused.
fn last_error() -> String {
    // SAFETY: the result is null or a string that lives until the thread's next call of the loader.
    unsafe {
        let text = libc::dlerror();
        match ptr::NonNull::new(text) {
            Some(text) => CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned(),
            None => "the loader names no reason".to_owned(),
        }
    }
}
