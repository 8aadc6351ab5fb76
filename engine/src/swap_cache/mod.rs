//! Where the way down (fault) and the way up (reclaim) meet.
//!
//! Every change of a range's state is made here, under the range's lock. Fault and reclaim only
//! decide when, and carry the transfers out between a `begin_…` and a `…_done`.

mod ahead;
mod clean;
mod collapse;
mod copy_in;
mod deactivate;
mod fill;
mod first_touch;
mod frames;
mod gather;
mod lazyfree;
mod lost;
mod mapping;
mod marks;
mod memory;
#[cfg(test)]
mod model;
mod move_pages;
mod moves;
mod pieces;
mod plan;
mod seals;
mod second_chance;
mod shared;
mod slots;
mod swapin;
mod swapoff;
mod swapout;
mod way;
mod writeback;
mod zswap;

pub use ahead::Ahead;
pub use deactivate::{Taken, Victim};
pub use fill::FillBuffers;
pub use frames::{Bytes, Frame, Frames, FRAMES};
pub use gather::{Gather, Plan as GatherPlan};
pub use mapping::Shift;
pub use memory::{Dir, Kernel, Memory};
pub use moves::{Moves, Since};
pub use pieces::{Piece, Pieces};
pub use plan::Plan;
pub use seals::{SealBuffers, Source, Writes};
pub use shared::{Copies, CopyFor};
pub use slots::{DeviceSet, NoSlots, SwapSlots};
pub use swapoff::Leave;
pub use swapout::{Start, To, Transfer};
pub use zswap::{WriteBack, Zswap, WRITE_BACK};

use clean::KeepFolios;
use lazyfree::LazyFree;
use move_pages::{Busy, Moved};

use crate::charge::Charge;
use crate::mm::{PageMask, Pmd, SwapEntry, PMD_NR, PMD_SIZE};
use crate::seal::Sealer;
use crate::stats::Stats;
use crate::sys::pagemap::Pagemap;
use crate::sys::pages::OwnPages;
use crate::sys::uffd::Uffd;
use crate::sys::Errno;
use crate::vma::{IoState, Lru, RangeGuard, Ranges};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::*};

/// What the kernel can do, found out at start.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// UFFDIO_MOVE (Linux 6.8).
    pub mv: bool,
    /// MADV_DONTNEED frees page tables (Linux 6.14): a range that a fault gave a page table to
    /// can take a huge page again.
    pub pt_reclaim: bool,
    /// UFFDIO_POISON (Linux 6.6).
    pub poison: bool,
}

/// The rooms that both directions use.
pub struct SwapCache<M = Kernel> {
    memory: M,
    pub ranges: Ranges,
    pub lru: Lru,
    pub frames: Frames,
    pub slots: SwapSlots,
    pub charge: Charge,
    pub abilities: Abilities,
    /// Pages that faults may take above the limit rather than wait for ever, since reclaim found
    /// nothing more to evict. So many at a time: reclaim may not get to run for a while, and what it
    /// found may not be true any more.
    grace: AtomicI64,
    /// No place in swap was to be had: ranges without one stay where they are.
    pub full: AtomicBool,
    /// Ranges that the program asked to be swapped out, at the front of the list.
    pub asked: AtomicUsize,
    /// Swap entries that go from one range to another.
    pub moves: Moves,
    /// The loss of a page was told.
    warned_lost: AtomicBool,
    /// A range for which there is no descriptor to be had: which, since when, and when last.
    without: [AtomicU64; 3],
    /// Memory that was never written to.
    zeros: OwnPages,
    /// Of what goes to slots.
    pub sealer: Sealer,
    seal_buffers: SealBuffers,
    /// A page for the reclaim thread alone.
    scratch: OwnPages,
    /// Pages that are charged and that a child does not get.
    own_pages: AtomicI64,
    keep_folios: KeepFolios,
    lazyfree: LazyFree,
    pub zswap: Zswap,
    /// Folios that are shared since a fork and are to be copied.
    copies: Copies,
}

/// What only a real process has.
impl SwapCache {
    /// The userfaultfd of the program's ranges.
    pub fn program(&self) -> Uffd {
        self.memory.program()
    }

    /// The userfaultfd of staging.
    pub fn staging(&self) -> Uffd {
        self.memory.staging()
    }

    /// The same descriptors have other numbers.
    pub fn set_descriptors(&self, program: Uffd, staging: Uffd, pagemap: i32) {
        self.memory.set(program, staging, pagemap);
    }

    /// In a forked child: new descriptors, and staging begins anew.
    pub fn start_over(&self, program: Uffd, staging: Uffd, pagemap: i32) -> Result<(), Errno> {
        self.set_descriptors(program, staging, pagemap);
        self.frames.start_over(&self.memory)
    }

    pub fn pagemap_fd(&self) -> i32 {
        self.memory.pagemap_fd()
    }

    pub fn pagemap(&self) -> Pagemap {
        self.memory.pagemap()
    }
}

impl<M: Memory> SwapCache<M> {
    pub fn new(memory: M, charge: Charge, abilities: Abilities) -> Result<SwapCache<M>, Errno> {
        let zswap = Zswap::new(&charge.control.settings)?;
        Ok(SwapCache {
            ranges: Ranges::new()?,
            lru: Lru::default(),
            frames: Frames::new(&memory, abilities.mv, abilities.pt_reclaim)?,
            slots: SwapSlots::new(charge.control.devices())?,
            abilities,
            memory,
            grace: AtomicI64::new(0),
            full: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            moves: Moves::default(),
            warned_lost: AtomicBool::new(false),
            without: Default::default(),
            zeros: OwnPages::new(PMD_NR)?,
            sealer: Sealer::new(charge.control.settings.seal_mode())?,
            seal_buffers: SealBuffers::new()?,
            scratch: OwnPages::new(1)?,
            own_pages: AtomicI64::new(0),
            keep_folios: KeepFolios::default(),
            lazyfree: LazyFree::new(charge.control),
            zswap,
            copies: Copies::default(),
            charge,
        })
    }

    pub fn stats(&self) -> &'static Stats {
        &self.charge.proc().stats
    }

    /// Whether the frame holds one huge page. A move that finds a page table at its destination goes
    /// page by page, takes the huge page apart, and does not say so.
    fn is_huge(&self, frame: Frame) -> bool {
        let huge = self.memory.is_huge(self.frames.addr(frame), PMD_SIZE);
        // Where it cannot be known we go by what we did.
        huge != Some(false)
    }

    /// Pages that can be had without reclaim: what the limit leaves, and what staging holds ready.
    pub fn free_pages(&self) -> i64 {
        self.charge.room() + (self.frames.ready() * PMD_NR) as i64
    }

    /// Charges pages for a fault if the limit allows it, or if nothing can be done about it.
    fn charge_for_fault(&self, pages: usize) -> bool {
        if self.charge.try_charge(pages) {
            return true;
        }
        let over = self.take_grace(pages);
        if over {
            self.charge.charge(pages);
        }
        over
    }

    /// Reclaim found nothing more to evict. True if faults had no leave to go on before.
    pub fn give_grace(&self) -> bool {
        let had = self.is_stuck();
        if !had {
            self.grace.store(grace(self.charge.limit()), Relaxed);
        }
        !had
    }

    pub fn end_grace(&self) {
        self.grace.store(0, Relaxed);
    }

    /// Reclaim found nothing more to evict, and faults may still go above the limit for that.
    pub fn is_stuck(&self) -> bool {
        self.grace.load(Relaxed) > 0
    }

    fn take_grace(&self, pages: usize) -> bool {
        let less = |grace: i64| (grace > 0).then(|| grace - pages as i64);
        self.grace.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    /// Notes that pages became resident.
    fn became_present(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        g.present = g.present.or(pages);
        self.note_return(pmd, pages);
        if !g.listed && !g.present.is_empty() {
            g.listed = true;
            self.lru.push(&self.ranges, pmd, g.list);
        }
    }

    /// The pages' slots are not needed any more.
    fn forget_slots(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        self.drop_slots(pmd, g, pages, SwapSlots::free);
    }

    /// Forgets every slot of a page that is also resident; says whether there were any. For when
    /// there are no others. The caller has no range's lock.
    fn forget_kept_slots(&self) -> bool {
        let mut any = false;
        self.ranges.for_each(|pmd, r| {
            let mut g = r.lock();
            let kept = g.present.or(g.compressed).and(g.swapped);
            if g.io() == IoState::Idle && !kept.is_empty() {
                self.forget_slots(pmd, &mut g, kept);
                any = true;
            }
        });
        any
    }

    /// As `forget_slots`; the device failed on them.
    fn give_slots_up(&self, pmd: Pmd, g: &mut RangeGuard<'_>, pages: PageMask) {
        self.drop_slots(pmd, g, pages, SwapSlots::give_up);
    }

    fn drop_slots(
        &self,
        pmd: Pmd,
        g: &mut RangeGuard<'_>,
        pages: PageMask,
        how: impl Fn(&SwapSlots, SwapEntry, usize),
    ) {
        let gone = g.swapped.and(pages);
        let Some(place) = g.entry.filter(|_| !gone.is_empty()) else {
            return;
        };
        g.swapped = g.swapped.minus(gone);
        for piece in self.pieces(pmd, place, gone) {
            how(&self.slots, piece.entry, piece.pages.len());
        }
        if g.swapped.is_empty() {
            g.entry = None;
            g.salvage = false;
        }
        if self.full.load(Relaxed) && self.slots.free_hint() >= PMD_NR as u64 {
            // Where swap was full there is room again.
            self.full.store(false, Relaxed);
            self.end_grace();
        }
    }
}

/// A process may take so many pages at a time above its limit: a quarter of it, 16 MiB at most. A hundred small ones
/// together take little of what the run may have.
fn grace(limit: i64) -> i64 {
    (limit / 4).clamp(GRACE_LEAST, GRACE_MOST)
}

const GRACE_LEAST: i64 = 64;
const GRACE_MOST: i64 = (8 * PMD_NR) as i64;

/// Exit status of a program that had to be ended because its bytes were lost: EX_IOERR.
const EXIT_LOST: i32 = 74;
