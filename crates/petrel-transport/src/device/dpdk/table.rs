//! The functions of the shim: `shim.c` has the other side of every declaration here.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs, mem, ptr};

use super::super::Judgement;

/// The shim's source.
const SOURCE: &str = include_str!("shim.c");

/// The file of the compiled shim.
const LIBRARY: &str = "libpetrel_dpdk.so";

/// The command that compiles the shim, given a folder.
const COMPILE: &str = "cc -O3 -Wall -shared -fPIC -o libpetrel_dpdk.so petrel_dpdk.c $(pkg-config --cflags --libs libdpdk)";

/// The interface's version, which changes with the table.
const ABI: u32 = 2;

/// Most frames of a burst.
pub(super) const BURST_MAX: usize = 64;

/// The functions, as the shim exports them.
#[repr(C)]
pub(super) struct Table {
    abi: u32,
    port_info_bytes: u32,
    version: extern "C" fn() -> *const c_char,
    last_error: extern "C" fn() -> *const c_char,
    start_eal: unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int,
    list_ports: unsafe extern "C" fn(*mut u16, c_uint) -> c_uint,
    describe: unsafe extern "C" fn(u16, *mut PortInfo) -> c_int,
    prepare: unsafe extern "C" fn(u16, *mut PortInfo, c_uint, u16) -> c_int,
    start: unsafe extern "C" fn(u16) -> c_int,
    stop: unsafe extern "C" fn(u16),
    is_up: unsafe extern "C" fn(u16) -> c_int,
    is_removed: unsafe extern "C" fn(u16) -> c_int,
    dropped: unsafe extern "C" fn(u16) -> u64,
    close_gate: unsafe extern "C" fn(),
    is_held: unsafe extern "C" fn() -> c_int,
    open_gate: unsafe extern "C" fn(),
    receive: unsafe extern "C" fn(u16, *mut Frame, c_uint) -> c_uint,
    allocate: unsafe extern "C" fn(*mut Frame, c_uint) -> c_int,
    send: unsafe extern "C" fn(u16, *const Frame, c_uint) -> c_uint,
    release: unsafe extern "C" fn(*const Frame, c_uint),
}

/// A port's properties.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PortInfo {
    name: [c_char; 64],
    driver: [c_char; 64],
    pub(super) mac: [u8; 6],
    pub(super) mtu_bytes: u16,
    /// The kernel's interface behind the port, or 0.
    pub(super) interface: u32,
    pub(super) receive_frames: u16,
    pub(super) send_frames: u16,
    /// 1: the port completes the checksums of frames to send.
    pub(super) completes_sums: u32,
}

impl PortInfo {
    pub(super) fn name(&self) -> String {
        text(&self.name)
    }

    pub(super) fn driver(&self) -> String {
        text(&self.driver)
    }
}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A buffer of DPDK, with the bytes of a frame. The owner alone accesses the buffer, and gives it back by dropping the frame.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Frame {
    buffer: *mut c_void,
    data: *mut u8,
    bytes: u32,
    room: u32,
    judgement: u32,
    /// Bytes of the IP header of a frame to send whose checksum the port completes, or 0.
    ip_bytes: u32,
}

// SAFETY: the buffer has one owner, and DPDK's pools of buffers serve every thread.
unsafe impl Send for Frame {}

impl Frame {
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the buffer holds `bytes` bytes from `data` on, and belongs to this frame.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.bytes as usize) }
    }

    /// The port's judgement about the checksums of a received frame.
    #[inline]
    pub(super) fn judgement(&self) -> Judgement {
        match self.judgement {
            1 => Judgement::Right,
            2 => Judgement::Wrong,
            _ => Judgement::Unknown,
        }
    }

    /// Has the port complete the UDP checksum of a frame to send, behind an IP header of so many bytes.
    #[inline]
    pub(super) fn complete_sum(&mut self, ip_bytes: usize) {
        self.ip_bytes = ip_bytes as u32;
    }

    /// The memory for the bytes of a frame to send.
    pub(super) fn room(&mut self) -> &mut [u8] {
        // SAFETY: the shim gives memory of `room` bytes from `data` on, which belongs to this frame. The bytes may be of earlier frames; the
        // pool's memory was set by the kernel at first.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.room as usize) }
    }

    /// # Panics
    /// If the memory has fewer bytes.
    pub(super) fn set_bytes(&mut self, bytes: usize) {
        assert!(bytes <= self.room as usize, "the frame is in the buffer");
        self.bytes = bytes as u32;
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let table = TABLE.get().expect("frames come from the shim");
        // SAFETY: the buffer belongs to this frame, and is not used again.
        unsafe { (table.release)(self, 1) };
    }
}

static TABLE: OnceLock<&'static Table> = OnceLock::new();

/// Finds the shim beside the program, or where the system's loader looks.
pub(super) fn load() -> Result<&'static Table, String> {
    if let Some(table) = TABLE.get() {
        return Ok(table);
    }
    let beside = program_folder().map(|folder| folder.join(LIBRARY));
    let name = match beside {
        Some(path) if path.exists() => path,
        _ => PathBuf::from(LIBRARY),
    };
    let name = CString::new(name.into_os_string().into_encoded_bytes())
        .map_err(|_| "the program's path contains a zero byte".to_owned())?;
    // SAFETY: the name ends with a zero. The library's initialisers are those of DPDK, which expects to be loaded this way.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        return Err(format!("{}; {}", loader_error(), remedy()));
    }
    // SAFETY: the library is open, and the name ends with a zero.
    let table = unsafe { libc::dlsym(library, c"petrel_dpdk".as_ptr()) }.cast::<Table>();
    // SAFETY: the symbol is the shim's table, which begins with the version in every version, and is never unloaded.
    let version = unsafe { table.cast::<[u32; 2]>().as_ref() };
    if version != Some(&[ABI, size_of::<PortInfo>() as u32]) {
        return Err(format!("{LIBRARY} is of another version of Petrel; {}", remedy()));
    }
    // SAFETY: the version says that the table is of this type.
    Ok(TABLE.get_or_init(|| unsafe { &*table }))
}

fn program_folder() -> Option<PathBuf> {
    Some(env::current_exe().ok()?.parent()?.to_owned())
}

fn remedy() -> String {
    let folder = program_folder().unwrap_or_default();
    format!(
        "`petrel dpdk-shim --out {}` compiles it (Debian: apt-get install libdpdk-dev gcc pkg-config)",
        folder.display()
    )
}

fn loader_error() -> String {
    // SAFETY: the function returns a null pointer, or a text that lives until the thread's next call of the loader.
    let said = unsafe { libc::dlerror().cast_const().as_ref() };
    // SAFETY: as above.
    said.map_or_else(String::new, |said| unsafe { CStr::from_ptr(said) }.to_string_lossy().into())
}

/// Compiles the shim in a folder, against the DPDK of this host. Returns the library's path, and the command.
///
/// # Errors
/// The folder cannot be written, or the compiler's errors.
pub fn compile_shim(folder: &Path) -> Result<(PathBuf, &'static str), String> {
    let cannot_write = |error| format!("cannot write to {}: {error}", folder.display());
    // A process that starts meanwhile finds a whole library.
    let aside = folder.join(format!("petrel_dpdk-{}", std::process::id()));
    fs::create_dir_all(&aside).map_err(cannot_write)?;
    let compiled = compile_in(&aside);
    let moved = fs::rename(aside.join(LIBRARY), folder.join(LIBRARY));
    fs::remove_dir_all(&aside).map_err(cannot_write)?;
    compiled?;
    moved.map_err(cannot_write)?;
    Ok((folder.join(LIBRARY), COMPILE))
}

fn compile_in(folder: &Path) -> Result<(), String> {
    let cannot_write = |error| format!("cannot write to {}: {error}", folder.display());
    fs::write(folder.join("petrel_dpdk.c"), SOURCE).map_err(cannot_write)?;
    let done = Command::new("sh").args(["-c", COMPILE]).current_dir(folder).output();
    let done = done.map_err(|error| format!("no shell: {error}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!(
            "`{COMPILE}` fails: {said}; it needs a C compiler, pkg-config and DPDK's headers (Debian: apt-get install libdpdk-dev gcc pkg-config)"
        ));
    }
    Ok(())
}

/// A port of DPDK, whose queues the holder of this value alone uses.
pub(super) struct Queues {
    table: &'static Table,
    port: u16,
    pub(super) gate: Gate,
}

/// The interrupt thread of DPDK, which changes rings while it runs: no burst runs unless the thread waits at the gate.
pub(super) struct Gate {
    table: &'static Table,
    thread: Thread,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    AtWork,
    Called,
    Waiting,
}

impl Gate {
    /// Calls the thread to the gate, if it was not called yet.
    pub(super) fn close(&mut self) {
        if self.thread == Thread::AtWork {
            self.thread = Thread::Called;
            // SAFETY: the gate was made with the EAL. Its functions serve every thread.
            unsafe { (self.table.close_gate)() };
        }
    }

    /// Returns true if the thread was called, and waits.
    #[inline]
    pub(super) fn is_held(&mut self) -> bool {
        // SAFETY: as in `close`.
        if self.thread == Thread::Called && unsafe { (self.table.is_held)() } != 0 {
            self.thread = Thread::Waiting;
        }
        self.thread == Thread::Waiting
    }

    /// Lets the thread go on, also if it has been called and has not come yet.
    pub(super) fn release(&mut self) {
        if self.thread == Thread::AtWork {
            return;
        }
        while !self.is_held() {
            std::thread::yield_now();
        }
        self.open();
    }

    /// Lets the thread go on.
    ///
    /// # Panics
    /// If the thread does not wait.
    pub(super) fn open(&mut self) {
        assert!(self.thread == Thread::Waiting, "the interrupt thread waits at the gate");
        self.thread = Thread::AtWork;
        // SAFETY: as in `close`.
        unsafe { (self.table.open_gate)() };
    }
}

impl Table {
    pub(super) fn version(&self) -> String {
        // SAFETY: DPDK returns a constant text.
        unsafe { CStr::from_ptr((self.version)()) }.to_string_lossy().into_owned()
    }

    fn last_error(&self) -> String {
        // SAFETY: DPDK returns a text that lives until the thread's next call.
        unsafe { CStr::from_ptr((self.last_error)()) }.to_string_lossy().into_owned()
    }

    /// Starts the EAL, once in a process.
    pub(super) fn start_eal(&self, arguments: Vec<CString>) -> Result<(), String> {
        // DPDK keeps the arguments.
        let mut arguments: Vec<*mut c_char> =
            arguments.into_iter().map(CString::into_raw).collect();
        let count = arguments.len() as c_int;
        arguments.push(ptr::null_mut());
        let arguments = Box::leak(arguments.into_boxed_slice());
        // SAFETY: `count` texts follow, and a null pointer, which live for ever.
        match unsafe { (self.start_eal)(count, arguments.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(self.last_error()),
        }
    }

    /// Returns the numbers of the ports, of eight at most.
    pub(super) fn ports(&self) -> Vec<u16> {
        let mut numbers = [0; 8];
        // SAFETY: the shim writes at most as many numbers as there are.
        let count = unsafe { (self.list_ports)(numbers.as_mut_ptr(), numbers.len() as c_uint) };
        numbers[..numbers.len().min(count as usize)].to_vec()
    }

    pub(super) fn describe(&self, port: u16) -> Result<PortInfo, String> {
        // SAFETY: zero is a value of every field.
        let mut info = unsafe { mem::zeroed() };
        // SAFETY: the shim writes a description of this size.
        match unsafe { (self.describe)(port, &raw mut info) } {
            0 => Ok(info),
            _ => Err(self.last_error()),
        }
    }

    /// Takes a port's only queues, with room for the frames of `info`, of which the port may grant fewer.
    ///
    /// The caller takes the queues of a port once.
    pub(super) fn queues(
        &'static self,
        port: u16,
        info: &mut PortInfo,
        buffers: u32,
    ) -> Result<Queues, String> {
        // Beyond Petrel's largest packets, and far from the end of the 16 bits that DPDK has.
        info.mtu_bytes = info.mtu_bytes.min(16_000);
        let buffer_bytes = info.mtu_bytes.saturating_add(200).max(2048);
        // SAFETY: the port exists, and was not started.
        if unsafe { (self.prepare)(port, info, buffers, buffer_bytes) } != 0 {
            return Err(self.last_error());
        }
        let gate = Gate { table: self, thread: Thread::AtWork };
        Ok(Queues { table: self, port, gate })
    }

    /// Adds `count` frames to send to `frames`, or none if the pool has fewer.
    pub(super) fn allocate(&self, frames: &mut Vec<Frame>, count: usize) -> bool {
        frames.reserve(count);
        let room = frames.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: there is room for `count` frames, and the shim writes all of them, or none.
        unsafe {
            let is_done = (self.allocate)(room, count as c_uint) != 0;
            frames.set_len(frames.len() + if is_done { count } else { 0 });
            is_done
        }
    }
}

impl Queues {
    /// Returns the work of a start, behind the stop of a port that `was_started`, which returns true if the port has started.
    ///
    /// Until the work is done, the caller calls no other method, and leaves the gate closed.
    pub(super) fn start_anew(&mut self, was_started: bool) -> impl FnOnce() -> bool + Send + use<> {
        assert!(self.gate.is_held(), "no interrupt comes meanwhile");
        let (table, port) = (self.table, self.port);
        move || {
            // SAFETY: the port is prepared, the interrupt thread waits, and no burst runs, by this function's contract.
            unsafe {
                if was_started {
                    (table.stop)(port);
                }
                (table.start)(port) == 0
            }
        }
    }

    pub(super) fn is_up(&self) -> bool {
        // SAFETY: the port exists.
        unsafe { (self.table.is_up)(self.port) != 0 }
    }

    pub(super) fn is_removed(&self) -> bool {
        // SAFETY: the port exists, or existed.
        unsafe { (self.table.is_removed)(self.port) != 0 }
    }

    /// Frames that the port has dropped for want of memory or room.
    pub(super) fn dropped(&self) -> u64 {
        // SAFETY: the port exists.
        unsafe { (self.table.dropped)(self.port) }
    }

    pub(super) fn table(&self) -> &'static Table {
        self.table
    }

    /// Starts the port. Returns true if the port has started.
    ///
    /// # Safety
    /// Nothing else uses the port.
    pub(super) unsafe fn start(&self) -> bool {
        // SAFETY: the port is prepared, and idle by this function's contract.
        unsafe { (self.table.start)(self.port) == 0 }
    }

    /// Adds received frames to `frames`, up to a burst.
    pub(super) fn receive(&mut self, frames: &mut Vec<Frame>) {
        assert!(self.gate.is_held(), "no interrupt comes meanwhile");
        // SAFETY: as asserted.
        unsafe { self.receive_now(frames) };
    }

    /// See [`Queues::receive`].
    ///
    /// # Safety
    /// DPDK's thread does not touch the rings.
    #[inline]
    pub(super) unsafe fn receive_now(&mut self, frames: &mut Vec<Frame>) {
        frames.reserve(BURST_MAX);
        let room = frames.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: there is room for a burst, of which the shim writes the frames that it returns. This thread alone uses the queue, by
        // `&mut self`.
        unsafe {
            let count = (self.table.receive)(self.port, room, BURST_MAX as c_uint) as usize;
            assert!(count <= BURST_MAX, "a burst has a limit");
            frames.set_len(frames.len() + count);
        }
    }

    /// Sends frames from the first one on, and takes them out of `frames`.
    pub(super) fn send(&mut self, frames: &mut Vec<Frame>) {
        assert!(self.gate.is_held(), "no interrupt comes meanwhile");
        // SAFETY: as asserted.
        unsafe { self.send_now(frames) };
    }

    /// See [`Queues::send`].
    ///
    /// # Safety
    /// DPDK's thread does not touch the rings.
    #[inline]
    pub(super) unsafe fn send_now(&mut self, frames: &mut Vec<Frame>) {
        let mut sent = 0;
        while sent < frames.len() {
            let rest = &frames[sent..];
            // SAFETY: `rest` has this number of frames; the queue is used by this thread alone, by `&mut self`.
            let count =
                unsafe { (self.table.send)(self.port, rest.as_ptr(), rest.len() as c_uint) };
            if count == 0 {
                break;
            }
            sent += count as usize;
        }
        // The device has the buffers.
        frames.drain(..sent).for_each(mem::forget);
    }
}
