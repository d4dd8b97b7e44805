//! The system call `bpf`: maps, programs and links.
//!
//! The kernel's argument is a union. Each command here has the part of the union that it reads; the kernel takes missing bytes as zeros.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

// `linux/bpf.h`.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const LINK_CREATE: libc::c_long = 28;
/// Only for a new key.
const NO_EXIST: u64 = 1;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
pub(super) const MAP_TYPE_HASH: u32 = 1;
pub(super) const MAP_TYPE_XSKMAP: u32 = 17;
/// Attach for all packets that the kernel's stack gets.
pub(super) const FLAGS_SKB_MODE: u32 = 1 << 1;
/// Attach in the driver.
pub(super) const FLAGS_DRV_MODE: u32 = 1 << 2;

/// An instruction: opcode, registers (the destination in the low half), offset, immediate value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u8,
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
}

#[repr(C)]
struct MapElement {
    map: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// # Safety
/// `A` is the command's part of the union, without padding, and its pointers lead to as many bytes as the kernel reads and writes.
unsafe fn bpf<A>(command: libc::c_long, argument: &mut A) -> Result<libc::c_long, Errno> {
    let at = std::ptr::from_mut(argument);
    // SAFETY: the caller's promise; the kernel accesses at most `size_of::<A>()` bytes at `at`.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<A>()) };
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

/// Returns the error of the system call before.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

/// # Safety
/// As [`bpf`]; the command returns a new descriptor, which closes on `exec`, as all of this system call do.
unsafe fn bpf_descriptor<A>(command: libc::c_long, mut argument: A) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, &mut argument)? };
    // SAFETY: the kernel has just made the descriptor for this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(super) fn create_map(
    map_type: u32,
    key_bytes: u32,
    entries_max: u32,
) -> Result<OwnedFd, Errno> {
    let argument = MapCreate { map_type, key_bytes, value_bytes: 4, entries_max };
    // SAFETY: the argument has no pointers.
    unsafe { bpf_descriptor(MAP_CREATE, argument) }
}

/// Sets the value of a key, of a map with such keys and with values of four bytes.
pub(super) fn update<K: Copy>(map: BorrowedFd<'_>, key: &K, value: u32) -> Result<(), Errno> {
    set(map, key, value, 0)
}

fn set<K: Copy>(map: BorrowedFd<'_>, key: &K, value: u32, flags: u64) -> Result<(), Errno> {
    let (key, value) = (std::ptr::from_ref(key) as u64, &raw const value as u64);
    let mut argument = MapElement { map: number(map), _padding: 0, key, value, flags };
    // SAFETY: key and value live, and have the sizes that the map was created with.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut argument) }.map(drop)
}

/// Sets the value of a new key; a key that exists keeps its value, and the error is `EEXIST`.
pub(super) fn insert<K: Copy>(map: BorrowedFd<'_>, key: &K, value: u32) -> Result<(), Errno> {
    set(map, key, value, NO_EXIST)
}

/// Deletes a key.
pub(super) fn delete<K: Copy>(map: BorrowedFd<'_>, key: &K) -> Result<(), Errno> {
    let key = std::ptr::from_ref(key) as u64;
    let mut argument = MapElement { map: number(map), _padding: 0, key, value: 0, flags: 0 };
    // SAFETY: as above.
    unsafe { bpf(MAP_DELETE_ELEM, &mut argument) }.map(drop)
}

pub(super) fn load(instructions: &[Instruction]) -> Result<OwnedFd, Errno> {
    let argument = ProgramLoad {
        program_type: PROG_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"Apache-2.0 OR MIT".as_ptr() as u64,
    };
    // SAFETY: the instructions and the text live during the call.
    unsafe { bpf_descriptor(PROG_LOAD, argument) }
}

/// Attaches a program to an interface, until the descriptor is closed.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    interface: u32,
    flags: u32,
) -> Result<OwnedFd, Errno> {
    let argument =
        LinkCreate { program: number(program), interface, attach_type: ATTACH_XDP, flags };
    // SAFETY: the argument has no pointers.
    unsafe { bpf_descriptor(LINK_CREATE, argument) }
}

/// Returns true if a link still leads to an interface: a manager of programs can detach a link by force.
pub(super) fn is_attached(link: BorrowedFd<'_>) -> bool {
    #[repr(C)]
    struct InfoByFd {
        object: u32,
        info_bytes: u32,
        info: u64,
    }
    // `struct bpf_link_info`: type, id, program's id, padding, interface.
    let mut info = [0_u32; 5];
    let info_bytes = size_of_val(&info) as u32;
    let mut argument =
        InfoByFd { object: number(link), info_bytes, info: info.as_mut_ptr() as u64 };
    // SAFETY: the kernel writes at most `info_bytes` bytes to the words, which live.
    let result = unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut argument) };
    result.is_err() || info[4] != 0
}

/// Ends a link, as another process with the right could.
#[cfg(test)]
pub(super) fn detach(link: BorrowedFd<'_>) -> Result<(), Errno> {
    const LINK_DETACH: libc::c_long = 34;
    // SAFETY: the argument has no pointers.
    unsafe { bpf(LINK_DETACH, &mut number(link)) }.map(drop)
}

/// Runs a program on one frame, as if the interface's queue had received the frame. Returns the program's verdict.
#[cfg(test)]
pub(super) fn run(program: BorrowedFd<'_>, frame: &[u8], on: (u32, u32)) -> Result<u32, Errno> {
    #[repr(C)]
    struct TestRun {
        program: u32,
        verdict: u32,
        bytes_in: u32,
        bytes_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        context_in_bytes: u32,
        context_out_bytes: u32,
        context_in: u64,
        context_out: u64,
    }
    const PROG_TEST_RUN: libc::c_long = 10;
    // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let context = [0, frame.len() as u32, 0, on.0, on.1, 0];
    let mut argument = TestRun {
        program: number(program),
        verdict: 0,
        bytes_in: frame.len() as u32,
        bytes_out: 0,
        data_in: frame.as_ptr() as u64,
        data_out: 0,
        repeat: 1,
        duration: 0,
        context_in_bytes: size_of_val(&context) as u32,
        context_out_bytes: 0,
        context_in: context.as_ptr() as u64,
        context_out: 0,
    };
    // SAFETY: frame and context live during the call; by the sizes of 0, the kernel writes neither data nor context.
    unsafe { bpf(PROG_TEST_RUN, &mut argument)? };
    Ok(argument.verdict)
}
