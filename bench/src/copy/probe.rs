//! What the program does after the fault: it uses the target sub-page, then it
//! walks on.

use super::clock::{Clock, Tick};
use hugeswap_mm::PAGE_SIZE;

const LINE: usize = 64;
/// Cache lines of a base page.
pub const LINES: usize = PAGE_SIZE / LINE;

/// Nanoseconds per cache line of the target sub-page, each read after the one
/// before has arrived, in an order that no prefetcher guesses.
///
/// # Safety
/// `page` is readable for one base page.
pub unsafe fn target(clock: Clock, page: *const u8) -> f64 {
    let mut carry = 0usize;
    let start = Tick::now();
    for i in 0..LINES {
        let line = (i * 37 + 11) % LINES;
        // SAFETY: a line of the page; `carry` is always zero.
        let word = unsafe { page.add(line * LINE + carry).cast::<u64>().read_volatile() };
        carry = not_known_to_be_zero(word);
    }
    clock.ns_since(start) / LINES as f64
}

/// Zero, by way of `word`: the next address waits for it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn not_known_to_be_zero(word: u64) -> usize {
    let zero: u64;
    // SAFETY: one `and` on a register.
    unsafe {
        core::arch::asm!("and {x}, 0", x = inout(reg) word => zero, options(pure, nomem, nostack));
    }
    zero as usize
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn not_known_to_be_zero(word: u64) -> usize {
    core::hint::black_box(word & core::hint::black_box(0)) as usize
}

/// Nanoseconds for writing every word of `len` bytes, upwards from `from` to
/// the end and then from the start to `from`.
///
/// # Safety
/// `start` is writable for `len` bytes; `from` is a multiple of a word below
/// `len`.
pub unsafe fn walk(clock: Clock, start: *mut u8, len: usize, from: usize) -> f64 {
    let t = Tick::now();
    for (lo, hi) in [(from, len), (0, from)] {
        for at in (lo..hi).step_by(8) {
            // SAFETY: within `len`.
            unsafe { start.add(at).cast::<u64>().write_volatile(at as u64) };
        }
    }
    clock.ns_since(t)
}
