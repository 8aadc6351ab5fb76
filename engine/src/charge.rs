//! What is resident, against what may be: the limit that `--memory` promises.
#![allow(unsafe_code)]

use crate::control::link::Request;
use crate::control::{Control, Proc};
use crate::progress::Progress;
use crate::sys::thread;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::*};

/// The account of one process, in base pages. Program pages and staging folios are charged
/// before they exist and uncharged after they are gone, so the sum is never too small.
pub struct Charge {
    pub control: &'static Control,
    /// This image's number in the run, and its page; both change in a forked child.
    id: AtomicU32,
    proc: AtomicPtr<Proc>,
    /// The connection with the supervisor, in the table of the engine's threads.
    link: AtomicI32,
    /// Of making memory free.
    pub progress: Progress,
}

impl Charge {
    pub fn new(control: &'static Control, id: u32, proc: &'static Proc, link: i32) -> Charge {
        Charge {
            control,
            id: AtomicU32::new(id),
            proc: AtomicPtr::new(core::ptr::from_ref(proc).cast_mut()),
            link: AtomicI32::new(link),
            progress: Progress::default(),
        }
    }

    pub fn set_link(&self, link: i32) {
        self.link.store(link, Relaxed);
    }

    pub fn link(&self) -> i32 {
        self.link.load(Relaxed)
    }

    /// Leaves a line for the supervisor to print.
    pub fn log(&self, line: &str) {
        self.proc().log(line);
        self.call();
    }

    /// Calls the supervisor's attention to this process's page, without waiting. Only the engine's
    /// threads can; for others the number is a file of the program's.
    pub fn call(&self) {
        let (p, tid) = (self.proc(), thread::gettid());
        let is_engine = p.engine_tids[..2].iter().any(|t| t.load(Relaxed) == tid);
        if is_engine && p.called.swap(1, AcqRel) == 0 {
            // If the supervisor is gone the handler finds out.
            let _ = Request::Call.send(self.link());
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

    /// Pages that may stay in memory, uncharged, as long as the kernel has no other use for it.
    pub fn lazyfree_limit(&self) -> usize {
        self.proc().lazyfree_limit.load(Relaxed).max(0) as usize
    }

    /// What stays is not known to be counted by anybody: it must go.
    pub fn must_drop_lazy(&self) -> bool {
        self.proc().lazyfree_limit.load(Relaxed) < 0
    }

    /// A fork holds the process below its limit for now.
    pub fn is_capped(&self) -> bool {
        self.proc().fork_cap.load(Acquire) != 0
    }

    /// Pages that may still be charged; negative above the limit.
    pub fn room(&self) -> i64 {
        self.limit() - self.charged()
    }
}
