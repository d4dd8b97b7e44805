//! A card, its port, and the port's address.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::fs;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::error::VerbsError;
use super::table::{
    AddressHandle, AddressSettings, Context, Device, Domain, GlobalRoute, LINK_LAYER_ETHERNET,
    PORT_ACTIVE, PortState, Table,
};
use super::{Address, FRAME_BYTES_MIN, VerbsConfig};

/// An object of the library, which is destroyed with this value.
pub(super) struct Owned<T> {
    object: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
}

impl<T> Owned<T> {
    /// Takes the result of a function of this name, which is null if the function has failed.
    pub(super) fn new(
        object: *mut T,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
        call: &'static str,
    ) -> Result<Self, VerbsError> {
        match NonNull::new(object) {
            Some(object) => Ok(Self { object, destroy }),
            None => Err(VerbsError::last(call)),
        }
    }

    /// Destroys the object now. Returns false if the library refuses.
    pub(super) fn destroy(self) -> bool {
        let this = ManuallyDrop::new(self);
        // SAFETY: this value alone owns the object, and is used no more.
        unsafe { (this.destroy)(this.get()) == 0 }
    }

    pub(super) fn get(&self) -> *mut T {
        self.object.as_ptr()
    }
}

// SAFETY: the library's objects are not bound to a thread, and this value alone uses the object.
unsafe impl<T> Send for Owned<T> {}

// SAFETY: a shared reference gives the address alone, and the library's functions may run on several threads at once.
unsafe impl<T> Sync for Owned<T> {}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object.fmt(f)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: this value alone owns the object. The objects that use this object stand before it in their structure, and are
        // gone. A refusal leaves the object to the process's end.
        unsafe { (self.destroy)(self.get()) };
    }
}

/// An active port of an open card.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) context: Owned<Context>,
    /// The card's name.
    pub(super) name: String,
    pub(super) number: u8,
    /// The largest payload of a packet, in bytes.
    pub(super) mtu: usize,
    /// Whether packets have a global route: over Ethernet always, and within an InfiniBand subnet never.
    pub(super) is_ethernet: bool,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
}

impl Port {
    /// Opens the card and the port of the settings.
    pub(super) fn open(table: &Table, config: &VerbsConfig) -> Result<Self, VerbsError> {
        let (context, name) = open_card(table, &config.card)?;
        let number = config.port;
        let mut state = PortState::default();
        // SAFETY: the context is open, and the structure has the size that the library expects.
        let error = unsafe { (table.query_port)(context.get(), number, &mut state) };
        if error != 0 || state.state != PORT_ACTIVE {
            return Err(VerbsError::PortDown { name, port: number });
        }
        // The number of an MTU: 1 for 256 bytes, and each further number doubles the bytes.
        let mtu = 128 << state.mtu.min(5);
        let is_ethernet = state.link_layer == LINK_LAYER_ETHERNET;
        let (gid_index, gid) = match is_ethernet {
            true => gid_of(table, &context, (&name, number), state.gids)?,
            false => (0, [0; 16]),
        };
        Ok(Self { context, name, number, mtu, is_ethernet, gid_index, gid, lid: state.lid })
    }

    /// Returns the part of the address that the port determines.
    pub(super) fn address(&self) -> Address {
        Address { gid: self.gid, lid: self.lid, pair: 0, key: 0 }
    }

    /// Returns the path to a port. Switches may mark its packets if `ecn`.
    pub(super) fn path_to(&self, (gid, lid): ([u8; 16], u16), ecn: bool) -> AddressSettings {
        let mut settings = AddressSettings { lid, port: self.number, ..AddressSettings::default() };
        if self.is_ethernet {
            settings.is_global = 1;
            settings.route = GlobalRoute {
                gid,
                flow_label: 0,
                own_index: self.gid_index,
                hop_limit: HOPS,
                traffic_class: if ecn { ECN_CAPABLE } else { 0 },
            };
        }
        settings
    }
}

/// Hops of a packet's global route.
const HOPS: u8 = 64;

/// The traffic class of packets that switches mark in place of dropping (RFC 3168).
const ECN_CAPABLE: u8 = 2;

/// The card's port, and the domain of its objects: open as long as a handle or the queue pair uses them.
#[derive(Debug)]
pub(super) struct Ground {
    table: Table,
    pub(super) domain: Owned<Domain>,
    pub(super) port: Port,
}

/// The place of a peer, as the card needs it.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) handle: Owned<AddressHandle>,
    pub(super) pair: u32,
    pub(super) key: u32,
    /// Closed after the handle.
    _ground: Arc<Ground>,
}

impl Ground {
    pub(super) fn open(table: Table, config: &VerbsConfig) -> Result<Arc<Self>, VerbsError> {
        let port = Port::open(&table, config)?;
        if port.mtu < FRAME_BYTES_MIN {
            return Err(VerbsError::SmallMtu { name: port.name, port: port.number, mtu: port.mtu });
        }
        // SAFETY: the context is open.
        let domain = unsafe { (table.alloc_domain)(port.context.get()) };
        let domain = Owned::new(domain, table.dealloc_domain, "ibv_alloc_pd")?;
        Ok(Arc::new(Self { table, domain, port }))
    }

    /// Returns the place of a peer, to which packets may be marked if `ecn`. Over Ethernet the system may ask the network for the peer's
    /// link-layer address, for a second and more.
    pub(super) fn handle_to(
        self: &Arc<Self>,
        to: &Address,
        ecn: bool,
    ) -> Result<Handle, VerbsError> {
        let mut settings = self.port.path_to((to.gid, to.lid), ecn);
        // SAFETY: the domain is open, and the settings have the library's layout.
        let handle = unsafe { (self.table.create_handle)(self.domain.get(), &mut settings) };
        let handle = Owned::new(handle, self.table.destroy_handle, "ibv_create_ah")?;
        Ok(Handle { handle, pair: to.pair, key: to.key, _ground: Arc::clone(self) })
    }
}

/// Opens the card of a name, or the first one.
fn open_card(table: &Table, wanted: &str) -> Result<(Owned<Context>, String), VerbsError> {
    let mut count = 0;
    // SAFETY: the count has room for the result.
    let list = unsafe { (table.device_list)(&mut count) };
    if list.is_null() {
        return Err(VerbsError::NoDevice { name: wanted.to_owned(), others: "none".to_owned() });
    }
    let mut names = Vec::new();
    let mut found: *mut Device = ptr::null_mut();
    for index in 0..count.max(0) as usize {
        // SAFETY: the list has `count` devices, whose names live as long as the list.
        let (device, name) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr((table.device_name)(device)).to_string_lossy().into_owned())
        };
        if found.is_null() && (wanted.is_empty() || wanted == name) {
            found = device;
            names.insert(0, name);
        } else {
            names.push(name);
        }
    }
    let opened = match found.is_null() {
        true => Err(VerbsError::NoDevice {
            name: wanted.to_owned(),
            others: if names.is_empty() { "none".to_owned() } else { names.join(", ") },
        }),
        false => Owned::new(
            // SAFETY: the device is one of the list, which is freed below.
            unsafe { (table.open_device)(found) },
            table.close_device,
            "ibv_open_device",
        ),
    };
    // SAFETY: an open card does not need the list.
    unsafe { (table.free_device_list)(list) };
    Ok((opened?, names.swap_remove(0)))
}

/// Returns the port's address for RoCE v2, an address of IPv4 if there is one.
fn gid_of(
    table: &Table,
    context: &Owned<Context>,
    (name, port): (&str, u8),
    count: c_int,
) -> Result<(u8, [u8; 16]), VerbsError> {
    let mut best = None;
    for index in 0..count.clamp(0, 256) {
        let mut gid = [0; 16];
        // SAFETY: the context is open, and the result has room.
        let error = unsafe { (table.query_gid)(context.get(), port, index, &mut gid) };
        if error != 0 || gid == [0; 16] || !is_version_2(name, port, index) {
            continue;
        }
        if best.is_none() || is_of_ipv4(&gid) {
            best = Some((index as u8, gid));
        }
        if is_of_ipv4(&gid) {
            break;
        }
    }
    best.ok_or_else(|| VerbsError::NoAddress { name: name.to_owned(), port })
}

/// Returns true if an address is an IPv4 address, mapped (RFC 4291 §2.5.5.2).
pub(super) fn is_of_ipv4(gid: &[u8; 16]) -> bool {
    gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]
}

/// Returns true if packets from the address of this index are UDP packets (RoCE v2), which routers and ECN know. A card that does not say
/// has no other kind.
fn is_version_2(name: &str, port: u8, index: c_int) -> bool {
    let file = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{index}");
    fs::read_to_string(file).map_or(true, |kind| kind.trim() == "RoCE v2")
}
