//! Copy and clear loops for x86-64. Lengths are whole base pages, at least one;
//! addresses are page-aligned; each loop runs upwards.
//!
//! In assembly for two reasons: AVX-512 intrinsics are newer than this crate's
//! oldest compiler, and streaming stores are outside the compiler's memory
//! model. A caller of a streaming loop calls [`fence`] before anyone else may look at the memory.
#![allow(unsafe_code)]

use core::arch::asm;

/// A copy loop of four vectors per turn.
///
/// `ahead` is the distance in bytes from what is copied to what is prefetched;
/// prefetches of unmapped addresses are ignored by the processor.
macro_rules! copy_loop {
    ($(#[$doc:meta])* $name:ident, $prefetch:literal, [$($line:literal)*],
     $load:literal, $store:literal, $reg:literal, $turn:literal,
     [$o0:literal $o1:literal $o2:literal $o3:literal]) => {
        $(#[$doc])*
        pub(super) unsafe fn $name(dst: *mut u8, src: *const u8, len: usize, ahead: isize) {
            // SAFETY: reads `src..src + len` and writes `dst..dst + len`, which
            // the caller vouches for; `len` is a positive multiple of the turn.
            unsafe {
                asm!(
                    "2:",
                    $(concat!($prefetch, " [{s} + {a} + ", $line, "]"),)*
                    concat!($load, " ", $reg, "0, [{s} + ", $o0, "]"),
                    concat!($load, " ", $reg, "1, [{s} + ", $o1, "]"),
                    concat!($load, " ", $reg, "2, [{s} + ", $o2, "]"),
                    concat!($load, " ", $reg, "3, [{s} + ", $o3, "]"),
                    concat!($store, " [{d} + ", $o0, "], ", $reg, "0"),
                    concat!($store, " [{d} + ", $o1, "], ", $reg, "1"),
                    concat!($store, " [{d} + ", $o2, "], ", $reg, "2"),
                    concat!($store, " [{d} + ", $o3, "], ", $reg, "3"),
                    concat!("add {s}, ", $turn),
                    concat!("add {d}, ", $turn),
                    concat!("sub {n}, ", $turn),
                    "jnz 2b",
                    s = inout(reg) src => _,
                    d = inout(reg) dst => _,
                    n = inout(reg) len => _,
                    a = in(reg) ahead,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    options(nostack),
                )
            }
        }
    };
}

copy_loop!(
    /// # Safety
    /// As the module says, on memory that the caller may read and write.
    copy_sse2, "prefetcht0", ["0"], "movdqa", "movdqa", "xmm", "64", ["0" "16" "32" "48"]);
copy_loop!(
    /// # Safety
    /// As [`copy_sse2`]; needs AVX2.
    copy_avx2, "prefetcht0", ["0" "64"], "vmovdqa", "vmovdqa", "ymm", "128", ["0" "32" "64" "96"]);
copy_loop!(
    /// # Safety
    /// As [`copy_sse2`]; needs AVX-512F.
    copy_avx512, "prefetcht0", ["0" "64" "128" "192"], "vmovdqa64", "vmovdqa64", "zmm", "256",
    ["0" "64" "128" "192"]);
copy_loop!(
    /// # Safety
    /// As [`copy_sse2`]; the stores are weakly ordered until [`fence`].
    stream_sse2, "prefetchnta", ["0"], "movdqa", "movntdq", "xmm", "64", ["0" "16" "32" "48"]);
copy_loop!(
    /// # Safety
    /// As [`stream_sse2`]; needs AVX2.
    stream_avx2, "prefetchnta", ["0" "64"], "vmovdqa", "vmovntdq", "ymm", "128",
    ["0" "32" "64" "96"]);
copy_loop!(
    /// # Safety
    /// As [`stream_sse2`]; needs AVX-512F.
    stream_avx512, "prefetchnta", ["0" "64" "128" "192"], "vmovdqa64", "vmovntdq", "zmm", "256",
    ["0" "64" "128" "192"]);

/// A clear loop of four vectors per turn.
macro_rules! clear_loop {
    ($(#[$doc:meta])* $name:ident, $zero:literal, $store:literal, $reg:literal, $turn:literal,
     [$o0:literal $o1:literal $o2:literal $o3:literal]) => {
        $(#[$doc])*
        pub(super) unsafe fn $name(dst: *mut u8, len: usize) {
            // SAFETY: writes `dst..dst + len`, which the caller vouches for;
            // `len` is a positive multiple of the turn.
            unsafe {
                asm!(
                    $zero,
                    "2:",
                    concat!($store, " [{d} + ", $o0, "], ", $reg, "0"),
                    concat!($store, " [{d} + ", $o1, "], ", $reg, "0"),
                    concat!($store, " [{d} + ", $o2, "], ", $reg, "0"),
                    concat!($store, " [{d} + ", $o3, "], ", $reg, "0"),
                    concat!("add {d}, ", $turn),
                    concat!("sub {n}, ", $turn),
                    "jnz 2b",
                    d = inout(reg) dst => _,
                    n = inout(reg) len => _,
                    out("xmm0") _,
                    options(nostack),
                )
            }
        }
    };
}

clear_loop!(
    /// # Safety
    /// As the module says, on memory that the caller may write.
    clear_sse2, "pxor xmm0, xmm0", "movdqa", "xmm", "64", ["0" "16" "32" "48"]);
clear_loop!(
    /// # Safety
    /// As [`clear_sse2`]; needs AVX2.
    clear_avx2, "vpxor xmm0, xmm0, xmm0", "vmovdqa", "ymm", "128", ["0" "32" "64" "96"]);
clear_loop!(
    /// # Safety
    /// As [`clear_sse2`]; needs AVX-512F.
    clear_avx512, "vpxor xmm0, xmm0, xmm0", "vmovdqa64", "zmm", "256", ["0" "64" "128" "192"]);
clear_loop!(
    /// # Safety
    /// As [`clear_sse2`]; the stores are weakly ordered until [`fence`].
    wipe_sse2, "pxor xmm0, xmm0", "movntdq", "xmm", "64", ["0" "16" "32" "48"]);
clear_loop!(
    /// # Safety
    /// As [`wipe_sse2`]; needs AVX2.
    wipe_avx2, "vpxor xmm0, xmm0, xmm0", "vmovntdq", "ymm", "128", ["0" "32" "64" "96"]);
clear_loop!(
    /// # Safety
    /// As [`wipe_sse2`]; needs AVX-512F.
    wipe_avx512, "vpxor xmm0, xmm0, xmm0", "vmovntdq", "zmm", "256", ["0" "64" "128" "192"]);

/// Copies with `rep movsb`: large blocks without reading the destination
/// first, where the processor has fast string moves.
///
/// # Safety
/// As [`copy_sse2`].
pub(super) unsafe fn copy_string(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: reads and writes `len` bytes, which the caller vouches for; the
    // direction flag is clear on entry to inline assembly.
    unsafe {
        asm!(
            "rep movsb",
            inout("rsi") src => _,
            inout("rdi") dst => _,
            inout("rcx") len => _,
            options(nostack, preserves_flags),
        )
    }
}

/// Clears with `rep stosb`.
///
/// # Safety
/// As [`clear_sse2`].
pub(super) unsafe fn clear_string(dst: *mut u8, len: usize) {
    // SAFETY: writes `len` bytes, which the caller vouches for; the direction
    // flag is clear on entry to inline assembly.
    unsafe {
        asm!(
            "rep stosb",
            inout("rdi") dst => _,
            inout("rcx") len => _,
            in("al") 0u8,
            options(nostack, preserves_flags),
        )
    }
}

/// Fetches a base page into the first-level cache.
pub(super) fn prefetch_page(page: *const u8) {
    for line in (0..hugeswap_mm::PAGE_SIZE).step_by(64) {
        let at = page.wrapping_add(line);
        // SAFETY: a prefetch has no effect but on the caches, mapped or not.
        unsafe {
            asm!("prefetcht0 [{at}]", at = in(reg) at,
                options(nostack, readonly, preserves_flags))
        }
    }
}

/// Leaves the wide registers in the state that older code expects.
///
/// # Safety
/// Needs AVX.
pub(super) unsafe fn leave_wide() {
    // SAFETY: clears only the upper parts, which nothing holds across a call.
    unsafe {
        asm!(
            "vzeroupper",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, nomem, preserves_flags),
        )
    }
}

/// Orders all streaming stores before what follows.
pub(super) fn fence() {
    // SAFETY: `sfence` touches no memory and every x86-64 processor has it.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}
