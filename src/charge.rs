//! What is resident, against what may be: the limit that `--memory` promises.
#![allow(unsafe_code)]

use crate::control::{Control, Proc};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// The account of one process, in base pages. Program pages and staging folios are charged
/// before they exist and uncharged after they are gone, so the sum is never too small.
pub struct Charge {
    pub control: &'static Control,
    /// This image's number in the run, and its page; both change in a forked child.
    id: AtomicU32,
    proc: AtomicPtr<Proc>,
}

impl Charge {
    pub fn new(control: &'static Control, id: u32, proc: &'static Proc) -> Charge {
        Charge {
            control,
            id: AtomicU32::new(id),
            proc: AtomicPtr::new(core::ptr::from_ref(proc).cast_mut()),
        }
    }

    pub fn id(&self) -> u32 {
        self.id.load(Relaxed)
    }

    pub fn set_image(&self, id: u32, proc: &'static Proc) {
        self.id.store(id, Relaxed);
        self.proc
            .store(core::ptr::from_ref(proc).cast_mut(), Release);
    }

    #[inline]
    pub fn proc(&self) -> &'static Proc {
        // SAFETY: made from a reference that lives as long as the process.
        unsafe { &*self.proc.load(Acquire) }
    }

    pub fn charge(&self, pages: usize) {
        let p = self.proc();
        let now = p.charged_pages.fetch_add(pages as i64, AcqRel) + pages as i64;
        p.stats
            .peak_resident_bytes
            .raise_to(now.max(0) as u64 * crate::mm::PAGE_SIZE as u64);
    }

    /// Charges only if the limit allows it.
    pub fn try_charge(&self, pages: usize) -> bool {
        let p = self.proc();
        let limit = self.limit();
        let mut now = p.charged_pages.load(Relaxed);
        loop {
            let then = now + pages as i64;
            if then > limit {
                return false;
            }
            match p
                .charged_pages
                .compare_exchange_weak(now, then, AcqRel, Relaxed)
            {
                Ok(_) => {
                    p.stats
                        .peak_resident_bytes
                        .raise_to(then.max(0) as u64 * crate::mm::PAGE_SIZE as u64);
                    return true;
                }
                Err(n) => now = n,
            }
        }
    }

    pub fn uncharge(&self, pages: usize) {
        self.proc().charged_pages.fetch_sub(pages as i64, AcqRel);
    }

    pub fn charged(&self) -> i64 {
        self.proc().charged_pages.load(Acquire)
    }

    pub fn limit(&self) -> i64 {
        let p = self.proc();
        let limit = p.limit_pages.load(Acquire);
        match p.fork_cap.load(Acquire) {
            0 => limit,
            cap => limit.min(cap),
        }
    }

    /// Pages that may still be charged; negative above the limit.
    pub fn room(&self) -> i64 {
        self.limit() - self.charged()
    }
}
