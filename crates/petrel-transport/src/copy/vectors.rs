//! Long copies by vector registers, for processors whose `rep movsb` is slow.
//!
//! The C library copies more than some 2 KiB by `rep movsb` where the processor promises that the instruction is fast.
//! On AMD's processors the promise does not hold in general. On Zen 3 a copy from the second-level cache takes 25 times
//! as long if its target lies 1 to 31 bytes behind its source, up to a multiple of the page: packets of a message, whose
//! headers are of any length, meet this at random. On Zen 4 messages of 8 MiB over shared memory gained 47 % by vectors.

use std::arch::asm;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Shorter copies are left to the C library, which copies them by vectors itself.
const LONG_BYTES_MIN: usize = 2048;

/// Bytes of a round of the loop.
const ROUND_BYTES: usize = 128;

const REGISTER_BYTES: usize = 32;

/// Length from which vectors copy here: a single comparison, for every copy. While the processor is unknown, copies of
/// all lengths call [`copy_or_ask`].
static LENGTH_FROM: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;

/// Returns true for the lengths that [`copy_or_ask`] has to copy.
#[inline(always)]
pub(super) fn are_better_for(len: usize) -> bool {
    len >= LENGTH_FROM.load(Ordering::Relaxed)
}

/// Copies by vectors, on processors of AMD and Hygon with AVX. The first call asks for the type of
/// processor.
///
/// # Safety
/// `from` is readable and `to` is valid for writes of `len` bytes, and the two do not overlap.
#[inline(never)]
pub(super) unsafe fn copy_or_ask(from: *const u8, to: *mut u8, len: usize) {
    let mut length_from = LENGTH_FROM.load(Ordering::Relaxed);
    if length_from == UNKNOWN {
        length_from = find_length();
        LENGTH_FROM.store(length_from, Ordering::Relaxed);
    }
    // Another thread may have found the answer since the caller's comparison.
    if len < length_from {
        // SAFETY: by this function's contract.
        return unsafe { copy_nonoverlapping(from, to, len) };
    }
    // SAFETY: by this function's contract; lengths from [`LONG_BYTES_MIN`] on, on a processor with AVX.
    unsafe { copy(from, to, len) }
}

/// Asks the processor: this takes a virtual machine a microsecond or more.
#[cold]
fn find_length() -> usize {
    let vendor = std::arch::x86_64::__cpuid(0);
    let is_slow = has_slow_movsb([vendor.ebx, vendor.edx, vendor.ecx]);
    let is_better = is_slow && std::arch::is_x86_feature_detected!("avx");
    if is_better { LONG_BYTES_MIN } else { usize::MAX }
}

/// Judges by the vendor's name, without memory from the heap: the first copy may be one of the datapath.
fn has_slow_movsb(vendor: [u32; 3]) -> bool {
    [b"AuthenticAMD", b"HygonGenuine"].into_iter().any(|name| vendor == words_of(name))
}

/// Returns the words in which the processor reports a vendor's name.
fn words_of(name: &[u8; 12]) -> [u32; 3] {
    [0, 4, 8].map(|at| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]))
}

/// Copies `len` bytes, at least [`LONG_BYTES_MIN`].
///
/// # Safety
/// The processor has AVX. `from` is readable and `to` is valid for writes of `len` bytes, and the two do not overlap.
#[target_feature(enable = "avx")]
#[inline(never)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    assert!(len >= LONG_BYTES_MIN, "a long copy has more than a round of bytes");
    // The stores of the loop are aligned: the first register covers the bytes up to there.
    let skipped = REGISTER_BYTES - to.addr() % REGISTER_BYTES;
    let rounds = (len - skipped) / ROUND_BYTES;
    // SAFETY: the first register ends within both ranges. The rounds begin at most a register's bytes after the start,
    // and end at or before the end. The last round ends at the end, and begins after the start, as `len` exceeds it.
    // All bytes of the target are written: the last round covers the remainder, which is shorter than a round.
    // Assembler, since the compiler makes a call of `memcpy` of a copying loop.
    unsafe {
        asm!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu [{to}], ymm0",
            "add {from}, {skipped}",
            "add {to}, {skipped}",
            "2:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + 64]",
            "vmovdqu ymm3, [{from} + 96]",
            "vmovdqa [{to}], ymm0",
            "vmovdqa [{to} + 32], ymm1",
            "vmovdqa [{to} + 64], ymm2",
            "vmovdqa [{to} + 96], ymm3",
            "sub {from}, -128",
            "sub {to}, -128",
            "dec {rounds}",
            "jnz 2b",
            "vmovdqu ymm0, [{last_from}]",
            "vmovdqu ymm1, [{last_from} + 32]",
            "vmovdqu ymm2, [{last_from} + 64]",
            "vmovdqu ymm3, [{last_from} + 96]",
            "vmovdqu [{last_to}], ymm0",
            "vmovdqu [{last_to} + 32], ymm1",
            "vmovdqu [{last_to} + 64], ymm2",
            "vmovdqu [{last_to} + 96], ymm3",
            // Code of the older vector instructions follows, which would be slow otherwise.
            "vzeroupper",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            skipped = in(reg) skipped,
            rounds = inout(reg) rounds => _,
            last_from = in(reg) from.add(len - ROUND_BYTES),
            last_to = in(reg) to.add(len - ROUND_BYTES),
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy__every_alignment_and_length_and_nothing_else() {
        // The function has a precondition on the processor.
        if !std::arch::is_x86_feature_detected!("avx") {
            return println!("skipped: the processor has no AVX");
        }
        let source: Vec<u8> = (0..9_000_u32).map(|i| (i * 7 + i / 251 + 1) as u8).collect();
        let lengths = (LONG_BYTES_MIN..LONG_BYTES_MIN + 2 * ROUND_BYTES).chain([4096, 8191, 8192]);
        for len in lengths {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 31), (31, 3), (16, 24), (64, 63)] {
                let mut target = vec![0xEE; len + 2 * REGISTER_BYTES + 64];
                // SAFETY: the processor has AVX, and both ranges lie within their vectors.
                unsafe { copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
                assert_eq!(target[to..to + len], source[from..from + len], "{len}, {from}, {to}");
                let rest = target[..to].iter().chain(&target[to + len..]);
                assert!(rest.into_iter().all(|byte| *byte == 0xEE), "{len}, {from}, {to}");
            }
        }
    }

    #[test]
    fn has_slow_movsb__by_the_name_of_the_vendor() {
        // The registers EBX, EDX and ECX of an AMD processor: "Auth", "enti", "cAMD".
        assert!(has_slow_movsb([0x6874_7541, 0x6974_6e65, 0x444d_4163]));
        let parts = words_of;
        assert!(has_slow_movsb(parts(b"AuthenticAMD")));
        assert!(has_slow_movsb(parts(b"HygonGenuine")));
        assert!(!has_slow_movsb(parts(b"GenuineIntel")));
    }

    #[test]
    fn copy_or_ask__asks_once_and_copies_every_length() {
        let source: Vec<u8> = (0..5_000_u32).map(|i| (i * 7 + i / 251 + 1) as u8).collect();
        for len in [1, 100, LONG_BYTES_MIN - 1, LONG_BYTES_MIN, 5_000] {
            LENGTH_FROM.store(UNKNOWN, Ordering::Relaxed);
            for _ in 0..2 {
                let mut target = vec![0; len];
                // SAFETY: both vectors have `len` bytes.
                unsafe { copy_or_ask(source.as_ptr(), target.as_mut_ptr(), len) };
                assert_eq!(target, source[..len], "{len}");
            }
            assert_eq!(LENGTH_FROM.load(Ordering::Relaxed), find_length(), "the answer is kept");
        }
    }
}
