//! Wiring: from a control page to running threads, and the calls that interposition makes.
//!
//! Engine threads live on memory, signal masks and a descriptor table of their own. The program's
//! threads have no descriptor of ours; what only the engine can do for them they ask for by a
//! *doorbell*: they write a request and touch a missing page that belongs to it, and the fault
//! handler answers by filling the page.
#![allow(unsafe_code)]

mod aside;
mod doorbell;
mod failure;
mod faults;
mod fork;
mod hold;
mod probe;
mod rights;
mod run;
mod start;

pub use doorbell::{Doorbells, DOORBELLS};
pub use failure::{StartError, EXIT_START};
pub use fork::ForkToken;
pub use hold::{Fate, Hold, Stretch};
pub use rights::May;
pub use start::{start, Regions};

use crate::device::Device;
use crate::dump::Signpost;
use crate::mm::{split_by_pmd, PageMask, Pmd, PAGE_SIZE, PMD_NR};
use crate::policy::Hints;
use crate::pressure::Pressure;
use crate::swap_cache::SwapCache;
use crate::sys::pagemap::Filled;
use crate::sys::{mem, Errno};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Of the program's memory that may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Adds,
    Removes,
}

/// The running engine of this process. Exists from `start` until the process ends.
pub struct Engine {
    pub cache: SwapCache,
    /// Replaced in a forked child; only engine threads use it.
    devices: AtomicPtr<Vec<Box<dyn Device>>>,
    doorbells: Doorbells,
    /// `/proc/self/maps`, in the engine threads' table.
    maps: AtomicI32,
    pressure: Pressure,
    link: run::Link,
    /// Even: running. Odd: asked to stand still, for a fork; each fork has a number of its own.
    frozen: AtomicU32,
    /// The fork for which reclaim stands still.
    reclaim_parked: AtomicU32,
    /// The reclaim thread has what it needs.
    reclaim_ready: AtomicU32,
    /// See `aside`; the number of the socket there, and in whose table that is.
    aside: AtomicU32,
    aside_socket: AtomicI32,
    aside_tid: AtomicU32,
    /// For the reclaim thread; see `rights`.
    change: AtomicPtr<rights::Change>,
    managed_bytes: AtomicU64,
    /// For whoever reads a core file of this process.
    signpost: Signpost,
}

/// Bytes of a stretch of which advice is kept for memory that is not in use yet.
const HINTED: usize = 64 << 30;

static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(core::ptr::null_mut());

/// The engine, once it has started.
#[inline]
pub fn get() -> Option<&'static Engine> {
    let p = ENGINE.load(Acquire);
    // SAFETY: set once, to memory that is never freed.
    (!p.is_null()).then(|| unsafe { &*p })
}

impl Engine {
    fn devices(&self) -> &'static [Box<dyn Device>] {
        // SAFETY: set before any engine thread runs, to memory that is never freed.
        unsafe { &*self.devices.load(Acquire) }
    }

    /// The program's pages at `[addr, addr+len)` are anonymous, readable and writable from now on: they may be moved.
    pub fn add_writable(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.change_writable(addr, len, Change::Adds)
    }

    /// They are so no more.
    pub fn remove_writable(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.change_writable(addr, len, Change::Removes)
    }

    fn change_writable(&self, addr: usize, len: usize, change: Change) -> Result<(), Errno> {
        let ranges = &self.cache.ranges;
        let mut more = 0;
        for (pmd, part) in split_by_pmd(addr, len) {
            if change == Change::Removes && !ranges.is_known(pmd) {
                continue;
            }
            // Without its descriptor, if nothing else is known of it.
            let whole = part.len() == PMD_NR;
            match change {
                Change::Adds if whole && ranges.begin_fresh(pmd) => {
                    more += PMD_NR as i64;
                    continue;
                }
                Change::Removes if whole && ranges.end_fresh(pmd) => {
                    more -= PMD_NR as i64;
                    continue;
                }
                _ => {}
            }
            let r = match ranges.get_or_map(pmd) {
                Ok(r) => r,
                Err(err) => {
                    self.count_managed(more);
                    return Err(err);
                }
            };
            // Pages that are in a frame now come back by copy if they cannot be moved any more.
            let mut g = r.lock_settled();
            let pages = PageMask::of(part);
            let before = g.writable.count();
            g.writable = match change {
                Change::Adds => g.writable.or(pages),
                Change::Removes => g.writable.minus(pages),
            };
            more += g.writable.count() as i64 - before as i64;
        }
        self.count_managed(more);
        Ok(())
    }

    fn count_managed(&self, pages: i64) {
        let d = (pages * crate::mm::PAGE_SIZE as i64) as u64;
        let now = self.managed_bytes.fetch_add(d, Relaxed).wrapping_add(d);
        self.cache.stats().managed_bytes.set(now);
        self.cache.stats().peak_managed_bytes.raise_to(now);
    }

    /// The contents of `[addr, addr+len)` are not needed: they read as zeros from now on. The
    /// caller drops the memory itself afterwards (MADV_DONTNEED, munmap).
    pub fn discard(&self, addr: usize, len: usize) {
        for (pmd, part) in split_by_pmd(addr, len) {
            let Some(r) = self.cache.ranges.get(pmd) else {
                continue;
            };
            let mut g = r.lock_settled();
            self.cache.discard(pmd, &mut g, PageMask::of(part));
        }
    }

    /// What has left of `[addr, addr+len)` is no longer mapped.
    pub fn drop_lazy(&self, addr: usize, len: usize) {
        for (pmd, part) in split_by_pmd(addr, len) {
            if let Some(r) = self.cache.ranges.get(pmd) {
                let mut g = r.lock_settled();
                self.cache.drop_lazy(pmd, &mut g, PageMask::of(part));
            }
        }
    }

    /// Whether the page at `addr` has contents, resident or in swap.
    pub fn holds(&self, addr: usize) -> bool {
        let page = crate::mm::page_in_pmd(addr);
        self.cache
            .ranges
            .get(crate::mm::Pmd::of(addr))
            .is_some_and(|r| {
                let g = r.lock_settled();
                g.used().has(page)
            })
    }

    /// The first page of the stretch that is resident, as far as is known.
    pub fn first_resident(&self, (start, end): Stretch) -> Option<usize> {
        split_by_pmd(start, end - start).find_map(|(pmd, part)| {
            let here = self.cache.ranges.get(pmd)?.lock().present;
            let page = here.and(PageMask::of(part)).next_from(0)?;
            Some(pmd.page_addr(page))
        })
    }

    /// Whether the stretch is memory of the engine's own.
    pub fn is_own(&self, start: usize, end: usize) -> bool {
        let overlaps = |(s, e): (usize, usize)| s < end && start < e;
        mem::own().any(overlaps)
    }

    /// Swaps the ranges out soon, and does not wait for it: MADV_PAGEOUT.
    pub fn page_out(&self, addr: usize, len: usize) {
        for (pmd, _) in split_by_pmd(addr, len) {
            self.cache.page_out(pmd);
        }
        self.kick().kick();
    }

    /// The ranges are the next to leave when memory is needed: MADV_COLD.
    pub fn cool(&self, addr: usize, len: usize) {
        for (pmd, _) in split_by_pmd(addr, len) {
            self.cache.cool(pmd);
        }
    }

    /// What the program says of how it will use the memory. Of a range that is another's in part,
    /// whoever has the larger part speaks for it.
    /// Of more than [`HINTED`] only what is in use is told: each range that is takes some memory.
    pub fn hint(&self, addr: usize, len: usize, say: impl Fn(&mut Hints)) -> Result<(), Errno> {
        let ranges = &self.cache.ranges;
        for (pmd, part) in split_by_pmd(addr, len) {
            let range = match part.len() * 2 >= PMD_NR {
                true if len <= HINTED => Some(ranges.get_or_map(pmd)?),
                true => ranges.get(pmd),
                false => None,
            };
            if let Some(range) = range {
                say(&mut range.lock().hints);
            }
        }
        Ok(())
    }

    /// What is mapped there next is another's.
    pub fn forget_hints(&self, addr: usize, len: usize) {
        for (pmd, part) in split_by_pmd(addr, len) {
            if let Some(r) = self
                .cache
                .ranges
                .get(pmd)
                .filter(|_| part.len() * 2 >= PMD_NR)
            {
                r.lock().becomes_anothers();
            }
        }
    }

    fn kick(&self) -> crate::pressure::Kick<'_> {
        crate::pressure::Kick::new(&self.cache.charge, &self.pressure)
    }

    /// Program memory that was mapped before the engine knew of it: what has contents now is charged and can be
    /// evicted. Also what the kernel has in its own swap: what the engine does not know of it would throw away.
    pub fn adopt_resident(&self, bell: usize, addr: usize, len: usize) -> Result<(), Errno> {
        let (mut at, end) = (addr, addr + len);
        let mut found = Filled::new();
        while at < end {
            match self.look(bell, at, end, &mut found) {
                Ok(()) if found.looked > at => {}
                _ => return self.adopt_in_memory(at, end - at),
            }
            for r in &found.regions[..found.found] {
                let (start, end) = (r.start as usize, r.end as usize);
                for (pmd, part) in split_by_pmd(start, end - start) {
                    self.adopt_pages(pmd, PageMask::of(part))?;
                }
            }
            at = found.looked;
        }
        Ok(())
    }

    /// The same where the kernel can't be asked for that.
    fn adopt_in_memory(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let mut looked = addr;
        let mut any = false;
        for (pmd, part) in split_by_pmd(addr, len) {
            // Of large mappings nearly all is empty.
            if pmd.page_addr(part.start) >= looked {
                let n = (addr + len - looked).div_ceil(PAGE_SIZE).min(mem::LOOK);
                any = mem::is_any_resident(looked, n)?;
                looked += n * PAGE_SIZE;
            }
            let goes_on = pmd.page_addr(part.end) > looked;
            if !any && !goes_on {
                continue;
            }
            let resident = mem::resident(pmd.page_addr(part.start), part.len())?;
            let mut pages = PageMask::EMPTY;
            for (i, here) in part.zip(resident) {
                if here {
                    pages = pages.or(PageMask::of(i..i + 1));
                }
            }
            if !pages.is_empty() {
                self.adopt_pages(pmd, pages)?;
            }
        }
        Ok(())
    }

    fn adopt_pages(&self, pmd: Pmd, pages: PageMask) -> Result<(), Errno> {
        self.cache.charge.charge(pages.count());
        let r = self.cache.ranges.get_or_map(pmd)?;
        let mut g = r.lock_settled();
        self.cache.adopt(pmd, &mut g, pages);
        Ok(())
    }

    /// From now on a core file of this process can be told from others and completed.
    fn put_signpost_up(&self) {
        let p = self.cache.charge.proc();
        let key = self.signpost.renew(crate::sys::thread::random());
        p.dump_key.store(key, Release);
        p.signpost
            .store(&self.signpost as *const Signpost as u64, Release);
    }

    /// The supervisor will need them if there is a core file to be completed.
    fn hand_keys(&self) {
        let unwrap = self.cache.sealer.keys.unwrap();
        self.cache.charge.proc().hand_keys(unwrap);
    }

    /// Bytes of the program's memory under management.
    pub fn managed_bytes(&self) -> u64 {
        self.managed_bytes.load(Relaxed)
    }
}
