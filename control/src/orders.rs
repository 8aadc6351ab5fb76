//! What is ordered from outside the run: devices that are to go and to come back, and settings.
//!
//! `hugeswap swapoff`, `hugeswap set` and the supervisor write here. No process of the run has it: the supervisor says in
//! the control page what concerns them.

use super::{Phase, SwapIn, Usage, LAYOUT, MAX_DEVICES};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use hugeswap_mm::PAGE_SIZE;
use hugeswap_sys::futex::{self, Scope};
use hugeswap_sys::{mem, Errno};

#[repr(C)]
pub struct Orders {
    magic: AtomicU64,
    /// Bumped to call the supervisor.
    pub need: AtomicU32,
    /// A `Usage` for each device.
    usages: [AtomicU32; MAX_DEVICES],
    /// One more than a `SwapIn`; zero until one was ordered.
    swapin: AtomicU32,
}

impl Orders {
    pub const BYTES: usize = size_of::<Orders>().next_multiple_of(PAGE_SIZE);

    /// # Safety
    /// The file must have `BYTES` bytes for ever, and only this code may write to it.
    pub unsafe fn map(fd: i32) -> Result<&'static Orders, Errno> {
        // Never unmapped.
        let a = mem::map_shared(fd, Self::BYTES, mem::Access::Write)?;
        // SAFETY: mapped with this size; every bit pattern is valid, and every field is atomic.
        Ok(unsafe { &*(a as *const Orders) })
    }

    /// For the supervisor, when it has made the file.
    pub fn begin(&self) {
        self.magic.store(LAYOUT, Release);
    }

    pub fn is_valid(&self) -> bool {
        self.magic.load(Acquire) == LAYOUT
    }

    /// Calls the supervisor's attention.
    pub fn call(&self) {
        self.need.fetch_add(1, Release);
        futex::wake(&self.need, 1, Scope::Shared);
    }

    pub fn order_swap_in(&self, mode: SwapIn) {
        self.swapin.store(mode as u32 + 1, Release);
    }

    pub fn swap_in(&self) -> Option<SwapIn> {
        let word = self.swapin.load(Acquire);
        word.checked_sub(1).map(SwapIn::of_word)
    }

    pub fn usage(&self, device: usize) -> Usage {
        Usage::of_word(self.usages[device].load(Acquire))
    }

    /// Goes from `from` to another phase; a new epoch begins with `Leaving`. None if it is not in
    /// `from` any more.
    pub fn change(&self, device: usize, from: Usage, phase: Phase) -> Option<Usage> {
        let epoch = from.epoch.wrapping_add((phase == Phase::Leaving).into());
        let to = Usage {
            epoch: epoch & u32::MAX >> 2,
            phase,
        };
        self.usages[device]
            .compare_exchange(from.word(), to.word(), AcqRel, Acquire)
            .is_ok()
            .then_some(to)
    }
}
