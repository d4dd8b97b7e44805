//! A GPU with tables in memory, and lanes for batches to the GPU and back.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;

use crate::Failure;

/// The look-ups of `kernels.cu`, by number.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub enum Kernel {
    Increment = 0,
    Chain = 1,
    Sip = 2,
    Ipv4 = 3,
    Ipv6 = 4,
    Switch = 5,
    Names = 6,
}

/// As in `kernels.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawTable {
    arrays: [*const c_void; 2],
    lengths: [u64; 2],
    steps: u32,
}

#[repr(C)]
struct RawLane {
    _private: [u8; 0],
}

type Result<T> = std::result::Result<T, Failure>;
/// Null, or the description of an error.
type Outcome = *const c_char;

/// The functions of the shared library.
struct Functions {
    open: unsafe extern "C" fn(*mut c_char, c_int) -> Outcome,
    upload: unsafe extern "C" fn(*const c_void, usize, *mut *const c_void) -> Outcome,
    free: unsafe extern "C" fn(*const c_void) -> Outcome,
    lane_open: unsafe extern "C" fn(usize, usize, *mut *mut RawLane) -> Outcome,
    lane_close: unsafe extern "C" fn(*mut RawLane) -> Outcome,
    lane_keys: unsafe extern "C" fn(*mut RawLane) -> *mut c_void,
    lane_results: unsafe extern "C" fn(*mut RawLane) -> *mut u32,
    lane_words: unsafe extern "C" fn(*mut RawLane) -> *mut u32,
    lane_copy_in: unsafe extern "C" fn(*mut RawLane, usize) -> Outcome,
    lane_launch: unsafe extern "C" fn(*mut RawLane, c_int, *const RawTable, u32, bool) -> Outcome,
    lane_copy_out: unsafe extern "C" fn(*mut RawLane, usize) -> Outcome,
    lane_wait: unsafe extern "C" fn(*mut RawLane) -> Outcome,
    lane_poll: unsafe extern "C" fn(*mut RawLane, u32) -> Outcome,
}

impl Functions {
    fn load(library: &Library) -> Result<Self> {
        // SAFETY: `kernels.cu` defines these functions with these types.
        unsafe {
            Ok(Self {
                open: *library.get("gpu_open")?,
                upload: *library.get("gpu_upload")?,
                free: *library.get("gpu_free")?,
                lane_open: *library.get("lane_open")?,
                lane_close: *library.get("lane_close")?,
                lane_keys: *library.get("lane_keys")?,
                lane_results: *library.get("lane_results")?,
                lane_words: *library.get("lane_words")?,
                lane_copy_in: *library.get("lane_copy_in")?,
                lane_launch: *library.get("lane_launch")?,
                lane_copy_out: *library.get("lane_copy_out")?,
                lane_wait: *library.get("lane_wait")?,
                lane_poll: *library.get("lane_poll")?,
            })
        }
    }
}

fn check(outcome: Outcome) -> Result<()> {
    if outcome.is_null() {
        return Ok(());
    }
    // SAFETY: an outcome that is not null is a text that lives until the next call.
    Err(unsafe { CStr::from_ptr(outcome) }.to_string_lossy().into_owned().into())
}

/// The first GPU of the machine.
pub struct Device {
    functions: Functions,
    /// Describes the GPU for human readers.
    pub name: String,
    /// The functions are valid while the library is loaded.
    _library: Library,
}

impl Device {
    /// Compiles the kernels and opens the GPU.
    ///
    /// # Errors
    /// If there is no compiler, or no GPU.
    pub fn open(nvcc: &Path, folder: &Path) -> Result<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels.cu");
        // A copy of the program may run elsewhere, with the source in the folder of today.
        let source = if source.exists() { source } else { "experiments/gpu/kernels.cu".into() };
        let library = folder.join("libpetrel_gpu_kernels.so");
        let mut command = Command::new(nvcc);
        command.args(["-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o"]);
        let status = command.arg(&library).arg(&source).status();
        let status = status.map_err(|error| format!("{}: {error}", nvcc.display()))?;
        if !status.success() {
            return Err(format!("{} cannot compile {}", nvcc.display(), source.display()).into());
        }
        // SAFETY: loading the library runs the constructors of the CUDA runtime, which have no requirements.
        let library = unsafe { Library::new(&library)? };
        let functions = Functions::load(&library)?;
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the function writes at most 256 bytes, the last of them 0.
        check(unsafe { (functions.open)(name.as_mut_ptr(), 256) })?;
        // SAFETY: the function has written a text that ends with 0.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Self { functions, name, _library: library })
    }

    /// Copies arrays to the GPU's memory.
    pub fn table(&self, arrays: &[*const [u8]]) -> Result<Table<'_>> {
        let mut raw = RawTable { arrays: [std::ptr::null(); 2], lengths: [0; 2], steps: 0 };
        for (index, array) in arrays.iter().enumerate() {
            // An array without entries has no copy: no entry refers to it.
            if array.is_empty() {
                continue;
            }
            raw.lengths[index] = array.len() as u64;
            // SAFETY: the caller's table lives, and has the array.
            check(unsafe {
                (self.functions.upload)(array.cast(), array.len(), &mut raw.arrays[index])
            })?;
        }
        Ok(Table { device: self, raw })
    }

    /// Makes a lane for batches of up to `keys` keys.
    pub fn lane<K: Copy>(&self, keys: usize) -> Result<Lane<'_, K>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function sets `raw`, or returns an error.
        check(unsafe { (self.functions.lane_open)(keys * size_of::<K>(), keys * 4, &mut raw) })?;
        Ok(Lane { device: self, raw, capacity: keys, count: 0, is_busy: false, _keys: PhantomData })
    }
}

/// A table in the GPU's memory.
pub struct Table<'a> {
    device: &'a Device,
    raw: RawTable,
}

impl Table<'_> {
    /// Sets the steps of look-ups that have a number of steps.
    pub fn set_steps(&mut self, steps: usize) {
        self.raw.steps = u32::try_from(steps).expect("few steps");
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        for array in self.raw.arrays.into_iter().filter(|array| !array.is_null()) {
            // SAFETY: the lanes that use a table borrow it, and have ended.
            let outcome = unsafe { (self.device.functions.free)(array) };
            check(outcome).expect("the GPU frees what it allocated");
        }
    }
}

/// A stream of the GPU, with memory for a batch of keys and of results on both sides.
pub struct Lane<'a, K> {
    device: &'a Device,
    raw: *mut RawLane,
    capacity: usize,
    /// The keys of the batch.
    count: usize,
    /// Whether the GPU may be using the lane's memory.
    is_busy: bool,
    _keys: PhantomData<K>,
}

impl<K: Copy> Lane<'_, K> {
    /// Copies a batch to the host's memory of the lane.
    pub fn fill(&mut self, keys: &[K]) {
        assert!(!self.is_busy && keys.len() <= self.capacity, "the lane has room, and is idle");
        self.count = keys.len();
        // SAFETY: the lane has memory for `capacity` keys, which the GPU does not use now.
        unsafe {
            let memory = (self.device.functions.lane_keys)(self.raw).cast::<K>();
            std::ptr::copy_nonoverlapping(keys.as_ptr(), memory, keys.len());
        }
    }

    /// Starts a copy of the keys to the GPU.
    pub fn copy_in(&mut self) -> Result<()> {
        self.is_busy = true;
        // SAFETY: the lane has memory for `count` keys on both sides.
        check(unsafe {
            (self.device.functions.lane_copy_in)(self.raw, self.count * size_of::<K>())
        })
    }

    /// Starts the look-up of the copied keys.
    pub fn launch(&mut self, kernel: Kernel, table: &Table<'_>) -> Result<()> {
        self.launch_in(kernel, table, false)
    }

    /// Starts the look-up of keys in the host's memory, with results there.
    pub fn launch_mapped(&mut self, kernel: Kernel, table: &Table<'_>) -> Result<()> {
        self.launch_in(kernel, table, true)
    }

    fn launch_in(&mut self, kernel: Kernel, table: &Table<'_>, is_mapped: bool) -> Result<()> {
        self.is_busy = true;
        let (kernel, count) = (kernel as c_int, self.count as u32);
        // SAFETY: the table has the arrays of the look-up, and the lane `count` keys.
        check(unsafe {
            (self.device.functions.lane_launch)(self.raw, kernel, &table.raw, count, is_mapped)
        })
    }

    /// Starts a copy of the results to the host.
    pub fn copy_out(&mut self) -> Result<()> {
        self.is_busy = true;
        // SAFETY: the lane has memory for `count` results on both sides.
        check(unsafe { (self.device.functions.lane_copy_out)(self.raw, self.count * 4) })
    }

    /// Starts all steps of a round.
    pub fn start(&mut self, keys: &[K], kernel: Kernel, table: &Table<'_>) -> Result<()> {
        self.fill(keys);
        self.copy_in()?;
        self.launch(kernel, table)?;
        self.copy_out()
    }

    /// Waits until the GPU has done all that was started.
    pub fn wait(&mut self) -> Result<()> {
        // SAFETY: the lane is open.
        check(unsafe { (self.device.functions.lane_wait)(self.raw) })?;
        self.is_busy = false;
        Ok(())
    }

    /// Returns the results of the last round, after `wait`.
    pub fn results(&self) -> &[u32] {
        assert!(!self.is_busy, "the GPU may still write results");
        // SAFETY: the lane has memory for `count` results. The GPU writes none after `wait`, nor between two rounds of polling.
        unsafe {
            let results = (self.device.functions.lane_results)(self.raw);
            std::slice::from_raw_parts(results, self.count)
        }
    }

    /// Overwrites the results: a round without results is noticed.
    pub fn spoil(&mut self) {
        assert!(!self.is_busy, "the GPU may still write results");
        // SAFETY: as for `results`; nothing else refers to them.
        unsafe {
            let results = (self.device.functions.lane_results)(self.raw);
            results.write_bytes(0xa5, self.count);
        }
    }
}

impl<K> Drop for Lane<'_, K> {
    fn drop(&mut self) {
        // SAFETY: the lane is open, and not used again.
        let outcome = unsafe { (self.device.functions.lane_close)(self.raw) };
        check(outcome).expect("the GPU closes what it opened");
    }
}

/// A kernel that polls for batches in the host's memory.
pub struct Polling<'a, 'b> {
    lane: &'a mut Lane<'b, u32>,
    round: u32,
}

/// The round's number that ends the kernel.
const STOP: u32 = u32::MAX;

impl<'a, 'b> Polling<'a, 'b> {
    /// Starts the kernel, for batches as large as that in the lane.
    pub fn start(lane: &'a mut Lane<'b, u32>) -> Result<Self> {
        let polling = Self { lane, round: 0 };
        polling.word(0).store(0, Ordering::Relaxed);
        polling.word(32).store(0, Ordering::Release);
        let count = polling.lane.count as u32;
        // SAFETY: the lane has `count` keys, and words for the kernel.
        check(unsafe { (polling.lane.device.functions.lane_poll)(polling.lane.raw, count) })?;
        Ok(polling)
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the lane has 64 words. Host and GPU access them by atomic or volatile operations alone.
        unsafe {
            AtomicU32::from_ptr((self.lane.device.functions.lane_words)(self.lane.raw).add(index))
        }
    }

    /// Lets the kernel answer the lane's keys.
    pub fn round(&mut self) {
        self.round += 1;
        self.word(0).store(self.round, Ordering::Release);
        while self.word(32).load(Ordering::Acquire) != self.round {
            std::hint::spin_loop();
        }
    }

    /// The lane with its results.
    pub fn lane(&mut self) -> &mut Lane<'b, u32> {
        self.lane
    }
}

impl Drop for Polling<'_, '_> {
    fn drop(&mut self) {
        self.word(0).store(STOP, Ordering::Release);
        self.lane.wait().expect("the kernel ends");
    }
}
