//! Folios that are shared since a fork, and become this process's own as a whole (reference 004).
//!
//! After a fork the folios that both processes have are protected against writing ([`SwapCache::tell_of_writes`]), so
//! that the handler hears of the first write to each. Where it finds a walk it asks for copies
//! ([`SwapCache::begin_copy`]); the reclaim thread makes them ([`SwapCache::copy_shared`]):
//!
//! | step | the contents are |
//! |---|---|
//! | `move_contents`: out of the program's reach, to the alias | at the alias |
//! | a look: still one huge page, still shared? | |
//! | copy to a frame, the target page last | at the alias, and in the frame |
//! | the frame is moved in | the program's |
//!
//! Nobody else can come to the alias, so what is seen there is true: a page that somebody has pinned for reading is
//! the process's own alone by then, and its folio no huge page any more. What is not as expected goes back by the way it
//! came, with whatever holds it.
#![allow(unsafe_code)]

use super::frames::ALIAS;
use super::{Dir, Memory, SwapCache, EXIT_LOST};
use crate::mm::{copy, PageMask, Pmd, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::sync::Mutex;
use crate::sys::mem;
use crate::vma::{IoState, RangeGuard};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Copies that can be asked for at a time.
const COPIES: usize = 32;
/// For fewer folios nobody wants to hear of writes.
const FOLIOS_MIN: usize = 4;

/// A folio that is to be copied, and the page that is to be the hottest afterwards.
#[derive(Clone, Copy)]
struct Asked {
    pmd: Pmd,
    target: usize,
}

struct Queue {
    items: [Asked; COPIES],
    head: usize,
    len: usize,
}

/// What is to be copied: the handler asks, the reclaim thread does it.
pub struct Copies {
    queue: Mutex<Queue>,
    /// Something is mapped at the alias that nobody needs.
    alias_used: AtomicBool,
    /// This process's engine may not make the calls that it takes.
    forbidden: AtomicBool,
}

impl Default for Copies {
    fn default() -> Copies {
        let none = Asked {
            pmd: Pmd(0),
            target: 0,
        };
        Copies {
            queue: Mutex::new(Queue {
                items: [none; COPIES],
                head: 0,
                len: 0,
            }),
            alias_used: AtomicBool::new(false),
            forbidden: AtomicBool::new(false),
        }
    }
}

impl Copies {
    fn push(&self, asked: Asked) -> bool {
        let mut q = self.queue.lock();
        if q.len == COPIES {
            return false;
        }
        let at = (q.head + q.len) % COPIES;
        q.items[at] = asked;
        q.len += 1;
        true
    }

    fn pop(&self) -> Option<Asked> {
        let mut q = self.queue.lock();
        q.len = q.len.checked_sub(1)?;
        let asked = q.items[q.head];
        q.head = (q.head + 1) % COPIES;
        Some(asked)
    }
}

/// One huge page, all of it the program's, with nothing under way.
fn is_folio(g: &RangeGuard<'_>) -> bool {
    g.io() == IoState::Idle && g.huge && g.is_whole()
}

impl<M: Memory> SwapCache<M> {
    /// The program may write to the range, and who waits to do so goes on.
    pub fn allow_writes(&self, pmd: Pmd, page: usize) {
        match self.ranges.get(pmd) {
            Some(r) => self.allow_writes_to(pmd, &r.lock(), page),
            None => self.memory.wake(pmd.page_addr(page), PAGE_SIZE),
        }
    }

    /// The same. Where not all of it is managed, to the page; and where something is lazy, since writes to that are to be
    /// told.
    pub(super) fn allow_writes_to(&self, pmd: Pmd, g: &RangeGuard<'_>, page: usize) {
        let (memory, at) = (&self.memory, pmd.page_addr(page));
        if g.lazy.is_empty() && memory.allow_writes(pmd.addr(), PMD_SIZE).is_ok() {
            return;
        }
        if g.lazy.has(page) || memory.allow_writes(at, PAGE_SIZE).is_err() {
            // Who waits finds out what is there by now.
            memory.wake(at, PAGE_SIZE);
        }
    }
}

/// For whom a folio is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyFor {
    /// One that waits for it already.
    AThread,
    /// One that is expected there.
    Later,
}

/// What a folio is that was to be copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Became {
    /// The process's own.
    Own,
    /// Still shared: the kernel copies what is written to.
    Shared,
}

impl SwapCache {
    /// In a child, before its engine starts: whether that may make the calls of `copy_shared`. A filter of the
    /// program's that ends who makes them would end the child.
    pub fn let_copy_shared(&self, may: bool) {
        self.copies.forbidden.store(!may, Relaxed);
    }

    /// In the handler thread, after a fork: from now on the first write to each folio is told.
    pub fn tell_of_writes(&self) {
        // System calls of the program's would not wait for us: they would fail on memory that is there.
        let by_program_only = self.charge.control.settings.user_mode_only != 0;
        let blind = self.pagemap_fd() < 0;
        if by_program_only || blind || self.copies.forbidden.load(Relaxed) {
            return;
        }
        let mut folios = 0;
        self.ranges
            .for_each(|_, r| folios += usize::from(is_folio(&r.lock())));
        if self.abilities.mv && folios >= FOLIOS_MIN {
            // Where it can't be done nothing is told, and the kernel copies.
            self.for_each_run(|at, len| {
                let _ = self.program().trap_writes(at, len);
            });
        }
    }

    /// The program writes as it likes, and who waits to write to the page goes on.
    pub fn tell_no_more(&self, pmd: Pmd, page: usize) {
        self.for_each_run(|at, len| {
            let _ = self.program().allow_writes(at, len);
        });
        // Reclaim may have taken that one since it was looked at, or the kernel have refused.
        self.allow_writes(pmd, page);
    }

    /// Calls `f` with folios that lie side by side: where, and how many bytes.
    fn for_each_run(&self, f: impl Fn(usize, usize)) {
        let mut run: Option<(Pmd, usize)> = None;
        let end = |run: Option<(Pmd, usize)>| {
            if let Some((first, n)) = run {
                f(first.addr(), n * PMD_SIZE);
            }
        };
        self.ranges.for_each(|pmd, r| {
            if !is_folio(&r.lock()) {
                return;
            }
            run = match run {
                Some((first, n)) if first.0 as usize + n == pmd.0 as usize => Some((first, n + 1)),
                other => {
                    end(other);
                    Some((pmd, 1))
                }
            };
        });
        end(run);
    }

    /// Whether the range can be copied as a whole.
    pub fn is_shared_folio(&self, pmd: Pmd) -> bool {
        self.ranges.get(pmd).is_some_and(|r| is_folio(&r.lock()))
    }

    /// Whether no other process has the page any more.
    pub fn is_alone(&self, pmd: Pmd, page: usize) -> bool {
        self.pagemap().exclusive(pmd.page_addr(page), 1) == Ok(1)
    }

    /// How many pages of the range no other process has.
    pub fn own_pages_of(&self, pmd: Pmd) -> usize {
        self.pagemap().exclusive(pmd.addr(), PMD_NR).unwrap_or(0)
    }

    /// The folio will be copied; a thread that touches it meanwhile waits. False if that can't be.
    pub fn begin_copy(&self, pmd: Pmd, target: usize, whom: CopyFor) -> bool {
        let Some(r) = self.ranges.get(pmd) else {
            return false;
        };
        let mut g = r.lock();
        if !is_folio(&g) || !self.copies.push(Asked { pmd, target }) {
            return false;
        }
        if whom == CopyFor::AThread {
            g.want();
        }
        g.begin_leaving();
        true
    }

    /// In the reclaim thread: makes the copies that were asked for.
    pub fn copy_shared(&self) {
        while let Some(c) = self.copies.pop() {
            let folio = match self.copy_one(c.pmd, c.target) {
                true => Became::Own,
                false => {
                    self.stats().thp_cow_fallback.inc();
                    Became::Shared
                }
            };
            self.end_copy(c.pmd, folio);
        }
        if self.copies.alias_used.swap(false, Relaxed) {
            // SAFETY: ours, and what is there was copied.
            let _ = unsafe { mem::close(self.frames.addr(ALIAS), PMD_SIZE) };
        }
    }

    /// In the reclaim thread: what was asked for is left to the kernel.
    pub fn cancel_copies(&self) {
        while let Some(c) = self.copies.pop() {
            self.end_copy(c.pmd, Became::Shared);
        }
    }

    fn end_copy(&self, pmd: Pmd, folio: Became) {
        let mut wanted = true;
        if let Some(r) = self.ranges.get(pmd) {
            let mut g = r.lock();
            wanted = g.take_wanted();
            g.end_leaving();
        }
        if folio == Became::Shared {
            self.allow_writes(pmd, 0);
        }
        if wanted {
            self.program().wake(pmd.addr(), PMD_SIZE);
        }
    }

    /// The range is Leaving: nobody else changes it.
    fn copy_one(&self, pmd: Pmd, target: usize) -> bool {
        let Some(r) = self.ranges.get(pmd) else {
            return false;
        };
        if self.is_alone(pmd, 0) {
            return false;
        }
        let Some(frame) = self.ready_within_limit() else {
            return false;
        };
        let alias = self.frames.addr(ALIAS);
        {
            let mut g = r.lock();
            g.track(ALIAS.0, PageMask::FULL);
        }
        // Before anything happens: it says that a core file may lack something (`supervise::core_file`).
        self.stats().thp_cow.inc();
        // SAFETY: what is at the alias is ours and was copied. The range stays mapped; a thread that touches it waits
        // for us.
        let moved = unsafe { mem::move_contents(pmd.addr(), alias, PMD_SIZE) };
        let map = self.pagemap();
        let as_expected = moved.is_ok()
            && map.is_huge(alias, PMD_SIZE) == Ok(true)
            && map.exclusive(alias, 1) != Ok(1);
        if !as_expected {
            if moved.is_ok() {
                self.give_back(pmd, alias);
            }
            r.lock().untrack();
            self.put_or_clear(frame);
            return false;
        }
        self.copies.alias_used.store(true, Relaxed);
        // SAFETY: the alias has a whole folio, which nobody else can reach; the frame is ours.
        let copied = unsafe {
            copy::copy_raw(
                self.frames.addr(frame) as *mut u8,
                alias as *const u8,
                PMD_SIZE,
                target,
                copy::Strategy::default(),
            )
        };
        debug_assert!(copied.is_ok(), "both are aligned folios");
        let mut g = r.lock();
        g.present = PageMask::EMPTY;
        self.charge.uncharge(PMD_NR);
        g.track(frame.0, PageMask::FULL);
        self.bring_back(pmd, &mut g, frame, PageMask::FULL);
        g.untrack();
        g.huge = map.is_huge(pmd.addr(), PMD_SIZE) != Ok(false);
        true
    }

    /// Puts what is at the alias back, as it was.
    fn give_back(&self, pmd: Pmd, alias: usize) {
        // SAFETY: what came from there goes back; meanwhile the range has had nothing, since whoever touches it waits.
        let back = unsafe { mem::move_mapping(alias, pmd.addr(), PMD_SIZE) };
        let kept = match back {
            Ok(()) => {
                // SAFETY: the addresses are ours, and nothing is mapped there any more.
                let closed = unsafe { mem::close(alias, PMD_SIZE) };
                let registered = self.program().register_missing(pmd.addr(), PMD_SIZE);
                closed.and(registered).is_ok()
            }
            // There are no mappings left: the range's is still there, as it was.
            Err(_) => self.give_pages_back(pmd, alias),
        };
        if !kept {
            self.charge.log(
                "pages could not be given back to the program, which has no memory left: ending it",
            );
            crate::sys::thread::exit_group(EXIT_LOST);
        }
    }

    /// The same page by page: what is the process's own is moved, what is shared is copied. False if there is a page for
    /// which neither can be done, for somebody has pinned it.
    fn give_pages_back(&self, pmd: Pmd, alias: usize) -> bool {
        self.copies.alias_used.store(true, Relaxed);
        let moved = self.move_pages(Dir::In, pmd, ALIAS, PageMask::FULL);
        let left = PageMask::FULL.minus(moved.moved).minus(moved.holes);
        let is_pinned =
            |page: usize| self.pagemap().exclusive(alias + page * PAGE_SIZE, 1) == Ok(1);
        if left.runs().any(|mut run| run.any(is_pinned)) {
            return false;
        }
        self.copy_in(pmd, left, alias as *const u8) == left
    }
}
