//! The XDP program, which chooses the packets for AF_XDP sockets.
//!
//! A packet goes to a socket if all of these hold; all other packets go to the kernel's stack:
//!
//! - The frame has at most a given size. A train of a sender with segmentation offload that met no device arrives as one packet of up to 64 KiB,
//!   which no chunk holds.
//! - The destination of the Ethernet head is a single station. Multicast and broadcast have further receivers.
//! - IPv4 without options and not a fragment, or IPv6 without extension headers, directly behind an Ethernet head without a tag; UDP.
//! - The map of destinations has an entry for the packet's address and port, and for the receive queue. So a packet that the host forwards, or that
//!   is for another socket with the same port, reaches the kernel.
//!
//! A device that removes the tags of VLANs hides them from the program (`ethtool -K … rxvlan off`): a packet in a VLAN counts then as one without.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::bpf::{self, Instruction};

/// Sockets of one program: endpoints by queues.
pub(super) const SOCKETS_MAX: u32 = 256;

/// Destinations of one program: sockets by addresses of the interface.
const DESTINATIONS_MAX: u32 = 4096;

const XDP_PASS: i32 = 2;
const HELPER_MAP_LOOKUP: i32 = 1;
const HELPER_REDIRECT_MAP: i32 = 51;
const UDP: i32 = 17;

/// A loaded program with its maps.
#[derive(Debug)]
pub(super) struct Program {
    program: OwnedFd,
    /// From [`Destination`] to the index of a socket.
    destinations: OwnedFd,
    sockets: OwnedFd,
}

/// Marks the port of an IPv6 destination: no packet of one version reaches a socket by the address of the other.
const VERSION_6: u32 = 1 << 16;

/// An address, a port and a queue, in words as the program loads them from a packet. The address of IPv4 is the fourth word.
pub(super) type Destination = [u32; 6];

pub(super) fn destination(address: IpAddr, port: u16, queue: u32) -> Destination {
    let mut words = [0, 0, 0, 0, u32::from(port.to_be()), queue];
    match address {
        IpAddr::V4(address) => words[3] = u32::from_ne_bytes(address.octets()),
        IpAddr::V6(address) => {
            for (word, bytes) in words.iter_mut().zip(address.octets().as_chunks().0) {
                *word = u32::from_ne_bytes(*bytes);
            }
            words[4] |= VERSION_6;
        }
    }
    words
}

impl Program {
    /// Loads the program for frames of at most `frame_bytes_max` bytes.
    pub(super) fn load(frame_bytes_max: usize) -> Result<Self, Errno> {
        let key_bytes = size_of::<Destination>() as u32;
        let destinations = bpf::create_map(bpf::MAP_TYPE_HASH, key_bytes, DESTINATIONS_MAX)?;
        let sockets = bpf::create_map(bpf::MAP_TYPE_XSKMAP, 4, SOCKETS_MAX)?;
        let code = assemble(frame_bytes_max as i32, destinations.as_raw_fd(), sockets.as_raw_fd());
        Ok(Self { program: bpf::load(&code)?, destinations, sockets })
    }

    pub(super) fn attach(&self, interface: u32, flags: u32) -> Result<OwnedFd, Errno> {
        bpf::attach(self.program.as_fd(), interface, flags)
    }

    /// Gives a socket a free index.
    pub(super) fn add(&self, index: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        bpf::update(self.sockets.as_fd(), &index, socket.as_raw_fd().unsigned_abs())
    }

    /// Sends packets to the socket at an index. A destination that leads to another socket stays.
    pub(super) fn enter(&self, destination: &Destination, index: u32) -> Result<(), Errno> {
        bpf::insert(self.destinations.as_fd(), destination, index)
    }

    /// Sends packets to the kernel's stack again.
    pub(super) fn leave(&self, destination: &Destination) {
        // Only a missing entry is refused.
        let _ = bpf::delete(self.destinations.as_fd(), destination);
    }

    /// Frees an index.
    pub(super) fn remove(&self, index: u32) {
        // The kernel has deleted the entry of a closed socket itself.
        let _ = bpf::delete(self.sockets.as_fd(), &index);
    }
}

/// Registers: `R0` results, `R1` to `R5` arguments and scratch, `R6` kept over calls, `R10` the stack's end.
#[derive(Clone, Copy)]
enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R6 = 6,
    R10 = 10,
}

use Register::{R0, R1, R2, R3, R4, R6, R10};

/// The size of a memory access, as opcodes have it.
#[derive(Clone, Copy)]
enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

/// A place in the program, to which earlier instructions jump.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Ipv4,
    Ipv6,
    Lookup,
    Pass,
}

/// Instructions so far, and the jumps whose offset is still open.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn emit(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        let registers = to as u8 | (from as u8) << 4;
        self.code.push(Instruction { code, registers, offset, immediate });
    }

    fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.emit(0x61 | size as u8, to, from, offset, 0);
    }

    fn store_word(&mut self, to: Register, offset: i16, from: Register) {
        self.emit(0x63, to, from, offset, 0);
    }

    fn copy(&mut self, to: Register, from: Register) {
        self.emit(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: Register, value: i32) {
        self.emit(0xb7, to, R0, 0, value);
    }

    fn add(&mut self, to: Register, value: i32) {
        self.emit(0x07, to, R0, 0, value);
    }

    fn and(&mut self, to: Register, value: i32) {
        self.emit(0x57, to, R0, 0, value);
    }

    fn or(&mut self, to: Register, value: i32) {
        self.emit(0x47, to, R0, 0, value);
    }

    /// A map's address: an instruction of two places.
    fn load_map(&mut self, to: Register, map: i32) {
        self.emit(0x18, to, R1, 0, map);
        self.emit(0, R0, R0, 0, 0);
    }

    fn call(&mut self, helper: i32) {
        self.emit(0x85, R0, R0, 0, helper);
    }

    fn exit(&mut self) {
        self.emit(0x95, R0, R0, 0, 0);
    }

    fn jump(&mut self, label: Label) {
        self.jump_by(0x05, R0, R0, 0, label);
    }

    fn jump_if_equal(&mut self, register: Register, value: i32, label: Label) {
        self.jump_by(0x15, register, R0, value, label);
    }

    fn jump_if_differs(&mut self, register: Register, value: i32, label: Label) {
        self.jump_by(0x55, register, R0, value, label);
    }

    fn jump_if_greater(&mut self, register: Register, other: Register, label: Label) {
        self.jump_by(0x2d, register, other, 0, label);
    }

    fn jump_if_less(&mut self, register: Register, other: Register, label: Label) {
        self.jump_by(0xad, register, other, 0, label);
    }

    fn jump_by(&mut self, code: u8, to: Register, from: Register, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(code, to, from, 0, value);
    }

    /// Places a label here.
    ///
    /// All jumps to the label are above: the kernel's verifier then sees no loop.
    fn label(&mut self, label: Label) {
        let here = self.code.len();
        for (place, _) in self.jumps.extract_if(.., |jump| jump.1 == label) {
            self.code[place].offset = (here - place - 1) as i16;
        }
    }

    fn finish(self) -> Vec<Instruction> {
        assert!(self.jumps.is_empty(), "every label has a place");
        self.code
    }
}

/// A value of two bytes in network order, as a load returns the value.
fn wire(value: u16) -> i32 {
    i32::from(value.to_be())
}

fn assemble(frame_bytes_max: i32, destinations: i32, sockets: i32) -> Vec<Instruction> {
    let (data, end, scratch, context) = (R2, R3, R4, R6);
    let mut code = Assembler::default();
    // Offsets of `struct xdp_md`.
    code.copy(context, R1);
    code.load(Size::Word, data, context, 0);
    code.load(Size::Word, end, context, 4);
    // Too large: the end lies behind the largest frame's end.
    code.copy(scratch, data);
    code.add(scratch, frame_bytes_max);
    code.jump_if_less(scratch, end, Label::Pass);
    // Too small for Ethernet, IPv4 and UDP.
    code.copy(scratch, data);
    code.add(scratch, 14 + 20 + 8);
    code.jump_if_greater(scratch, end, Label::Pass);
    // The group bit of the destination station.
    code.load(Size::Byte, scratch, data, 0);
    code.and(scratch, 1);
    code.jump_if_differs(scratch, 0, Label::Pass);
    code.load(Size::Half, scratch, data, 12);
    code.jump_if_equal(scratch, wire(0x0800), Label::Ipv4);
    code.jump_if_equal(scratch, wire(0x86dd), Label::Ipv6);
    code.jump(Label::Pass);

    code.label(Label::Ipv4);
    // Version 4, and a header of five words.
    code.load(Size::Byte, scratch, data, 14);
    code.jump_if_differs(scratch, 0x45, Label::Pass);
    // Neither more fragments, nor an offset, nor the reserved flag; "don't fragment" is allowed.
    code.load(Size::Half, scratch, data, 20);
    code.and(scratch, wire(0xbfff));
    code.jump_if_differs(scratch, 0, Label::Pass);
    code.load(Size::Byte, scratch, data, 23);
    code.jump_if_differs(scratch, UDP, Label::Pass);
    code.set(R1, 0);
    for word in 0..3 {
        code.store_word(R10, -24 + 4 * word, R1);
    }
    code.load(Size::Word, R1, data, 30);
    code.store_word(R10, -12, R1);
    code.load(Size::Half, scratch, data, 36);
    code.jump(Label::Lookup);

    code.label(Label::Ipv6);
    code.copy(scratch, data);
    code.add(scratch, 14 + 40 + 8);
    code.jump_if_greater(scratch, end, Label::Pass);
    code.load(Size::Byte, scratch, data, 14);
    code.and(scratch, 0xf0);
    code.jump_if_differs(scratch, 0x60, Label::Pass);
    code.load(Size::Byte, scratch, data, 20);
    code.jump_if_differs(scratch, UDP, Label::Pass);
    for word in 0..4 {
        code.load(Size::Word, R1, data, 38 + 4 * word);
        code.store_word(R10, -24 + 4 * word, R1);
    }
    code.load(Size::Half, scratch, data, 56);
    code.or(scratch, VERSION_6 as i32);

    code.label(Label::Lookup);
    // The destination, on the stack, goes on with the port, and the queue from the context.
    code.store_word(R10, -8, scratch);
    code.load(Size::Word, scratch, context, 16);
    code.store_word(R10, -4, scratch);
    code.load_map(R1, destinations);
    code.copy(R2, R10);
    code.add(R2, -24);
    code.call(HELPER_MAP_LOOKUP);
    code.jump_if_equal(R0, 0, Label::Pass);
    // Without a socket at the index, the helper returns the last argument.
    code.load(Size::Word, R2, R0, 0);
    code.load_map(R1, sockets);
    code.set(R3, XDP_PASS);
    code.call(HELPER_REDIRECT_MAP);
    code.exit();

    code.label(Label::Pass);
    code.set(R0, XDP_PASS);
    code.exit();
    code.finish()
}

#[cfg(test)]
mod tests;
