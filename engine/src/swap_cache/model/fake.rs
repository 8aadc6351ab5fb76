//! Memory of a test: it knows where each page is, refuses when it is told to, and has the state of the range looked
//! at after every effect, as a core file would show it if the process had been killed there.

use super::super::frames::MAX_FRAMES;
use super::super::{Dir, Memory, FRAMES};
use crate::mm::{PageMask, Pmd, PAGE_SIZE, PMD_NR, PMD_SIZE};
use crate::sys::uffd::Refused;
use crate::sys::Errno;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::rc::Rc;

/// What is at a page's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    Nothing,
    Page,
    Poison,
}

/// How the next move or copy ends early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A page is pinned.
    Busy,
    /// The mappings are being changed.
    Again,
    /// Protections differ.
    Invalid,
}

/// Neighbouring pages, and what is at them.
struct Stretch {
    base: Cell<usize>,
    at: RefCell<Vec<At>>,
    /// Which 2 MiB of it are one huge page.
    huge: RefCell<Vec<bool>>,
    /// Pages that trap writes.
    protected: RefCell<Vec<bool>>,
    /// Pages that the kernel may take.
    lazy: RefCell<Vec<bool>>,
}

impl Stretch {
    fn new(base: usize, ranges: usize) -> Stretch {
        Stretch {
            base: Cell::new(base),
            at: RefCell::new(vec![At::Nothing; ranges * PMD_NR]),
            huge: RefCell::new(vec![false; ranges]),
            protected: RefCell::new(vec![false; ranges * PMD_NR]),
            lazy: RefCell::new(vec![false; ranges * PMD_NR]),
        }
    }

    /// The number of a page, if it is one of these.
    fn page(&self, addr: usize) -> Option<usize> {
        let page = addr.checked_sub(self.base.get())? / PAGE_SIZE;
        (page < self.at.borrow().len()).then_some(page)
    }

    fn set(&self, page: usize, n: usize, at: At, huge: bool) {
        self.at.borrow_mut()[page..page + n].fill(at);
        self.protected.borrow_mut()[page..page + n].fill(false);
        self.lazy.borrow_mut()[page..page + n].fill(false);
        let whole = n == PMD_NR && page % PMD_NR == 0;
        let mut all = self.huge.borrow_mut();
        if whole {
            all[page / PMD_NR] = huge && at == At::Page;
        } else {
            all[page / PMD_NR] = false;
        }
    }
}

/// How pages come somewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Copy,
    Move,
    /// As one huge page.
    MoveHuge,
}

/// Looks at the state after an effect.
pub type Watch = Rc<dyn Fn()>;

pub struct Fake {
    program: Stretch,
    frames: Stretch,
    /// Of the moves and copies from now on this one is refused, after so many of its pages.
    pub refusal: Cell<Option<(u32, Refusal, usize)>>,
    /// Pages of which a thread was woken since this was last emptied.
    pub woken: RefCell<Vec<(usize, usize)>>,
    pub watch: RefCell<Option<Watch>>,
    pub effects: Cell<u64>,
    /// Pages that could have been taken lazily so far.
    lazily: Cell<usize>,
}

impl Fake {
    /// Memory of a program that lies there, really mapped.
    pub fn new(program: usize, ranges: usize) -> Fake {
        Fake {
            program: Stretch::new(program, ranges),
            frames: Stretch::new(0, MAX_FRAMES + 2),
            refusal: Cell::new(None),
            woken: RefCell::default(),
            watch: RefCell::default(),
            effects: Cell::new(0),
            lazily: Cell::new(0),
        }
    }

    fn of(&self, addr: usize) -> (&Stretch, usize) {
        let stretches = [&self.program, &self.frames];
        let mut found = stretches
            .into_iter()
            .filter_map(|s| Some((s, s.page(addr)?)));
        found.next().expect("an address of nobody's")
    }

    pub fn at(&self, addr: usize) -> At {
        let (stretch, page) = self.of(addr);
        let at = stretch.at.borrow()[page];
        at
    }

    pub fn set(&self, addr: usize, len: usize, at: At) {
        let (stretch, page) = self.of(addr);
        stretch.set(page, len / PAGE_SIZE, at, false);
    }

    /// A write to the page is trapped.
    pub fn is_protected(&self, addr: usize) -> bool {
        let (stretch, page) = self.of(addr);
        let protected = stretch.protected.borrow()[page];
        protected
    }

    /// The program has written to the page: the kernel leaves it alone.
    pub fn was_written(&self, addr: usize) {
        let (stretch, page) = self.of(addr);
        assert!(!stretch.protected.borrow()[page]);
        stretch.lazy.borrow_mut()[page] = false;
    }

    /// The kernel takes one of two pages that it may take.
    pub fn reclaim(&self) {
        for (stretch, size) in [&self.program, &self.frames].map(|s| (s, s.at.borrow().len())) {
            for page in (0..size).filter(|page| page % 2 == self.lazily.get() % 2) {
                self.take(stretch, page);
            }
        }
        self.lazily.set(self.lazily.get() + 1);
        self.effect();
    }

    fn take(&self, stretch: &Stretch, page: usize) {
        if stretch.lazy.borrow()[page] {
            let at = stretch.base.get() + page * PAGE_SIZE;
            // SAFETY: the test has mapped it.
            unsafe { core::ptr::write_bytes(at as *mut u8, STALE, PAGE_SIZE) };
            stretch.set(page, 1, At::Nothing, false);
        }
    }

    fn protect(&self, at: usize, len: usize, so: bool) {
        let (stretch, page) = self.of(at);
        let there = stretch.at.borrow();
        let mut protected = stretch.protected.borrow_mut();
        for page in page..page + len / PAGE_SIZE {
            protected[page] = so && there[page] == At::Page;
        }
    }

    /// What is at one page of the program goes to another, by the kernel's own call.
    pub fn carry(&self, from: usize, to: usize) {
        assert_eq!(self.at(to), At::Nothing);
        assert!(!self.is_protected(from), "the protection is lost");
        // SAFETY: both are pages that the test has mapped.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, PAGE_SIZE) };
        self.set(to, PAGE_SIZE, self.at(from));
        self.set(from, PAGE_SIZE, At::Nothing);
    }

    /// What of the frames has memory.
    pub fn frames_in_use(&self) -> usize {
        let at = self.frames.at.borrow();
        at.iter().filter(|&&at| at == At::Page).count()
    }

    /// One of three pages that the kernel may take is gone at once.
    fn takes_lazily(&self) -> bool {
        self.lazily.set(self.lazily.get() + 1);
        self.lazily.get() % 3 == 0
    }

    fn effect(&self) {
        self.effects.set(self.effects.get() + 1);
        let watch = self.watch.borrow().clone();
        if let Some(watch) = watch {
            watch();
        }
    }

    /// How many pages of `n` go before this call is refused, if it is.
    fn refused(&self, n: usize, copy: bool) -> Option<(Refusal, usize)> {
        // A copy is refused for want of patience only.
        let (calls, why, after) = self
            .refusal
            .get()
            .filter(|r| !copy || r.1 == Refusal::Again)?;
        if calls > 0 {
            self.refusal.set(Some((calls - 1, why, after)));
            return None;
        }
        self.refusal.set(None);
        Some((why, after.min(n - 1)))
    }

    /// Page by page, as far as each can be placed.
    fn place(
        &self,
        dst: usize,
        n: usize,
        how: How,
        mut one: impl FnMut(usize) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let refused = self.refused(n, how == How::Copy);
        let (to, first) = self.of(dst);
        for i in 0..n {
            let done = i * PAGE_SIZE;
            match refused {
                Some((Refusal::Busy, at)) if at == i => return Err(Refused::Busy { done }),
                Some((Refusal::Again, at)) if at == i => return Err(Refused::Again { done }),
                Some((Refusal::Invalid, _)) if i == 0 => return Err(Refused::Invalid),
                _ => {}
            }
            let there = to.at.borrow()[first + i];
            assert_ne!(there, At::Poison, "poison is wiped out");
            if there == At::Page {
                return Err(Refused::Exists { done });
            }
            one(i).map_err(|e| e.after(done))?;
            to.set(first + i, 1, At::Page, false);
            if n < FEW || i == 0 || i == n / 2 || i == n - 1 {
                self.effect();
            }
        }
        if n == PMD_NR && how == How::MoveHuge {
            to.set(first, n, At::Page, true);
        }
        Ok(())
    }
}

/// Of more pages not each is an effect that is looked at.
const FEW: usize = 16;
/// What is left where a page was: nobody may need it.
const STALE: u8 = 0xdb;

impl Memory for Fake {
    unsafe fn mv(
        &self,
        dir: Dir,
        dst: usize,
        src: usize,
        len: usize,
        _: &mut usize,
    ) -> Result<(), Refused> {
        let (from, first) = self.of(src);
        let out = core::ptr::eq(from, &self.program);
        assert_eq!(out, dir == Dir::Out);
        let n = len / PAGE_SIZE;
        let how = match n == PMD_NR && from.huge.borrow()[first / PMD_NR] {
            true => How::MoveHuge,
            false => How::Move,
        };
        let r = self.place(dst, n, how, |i| {
            if from.at.borrow()[first + i] != At::Page {
                return Err(Refused::Hole { done: 0 });
            }
            let (to, from_at) = (
                (dst + i * PAGE_SIZE) as *mut u8,
                (src + i * PAGE_SIZE) as *mut u8,
            );
            // SAFETY: both are pages that the test has mapped.
            unsafe {
                core::ptr::copy_nonoverlapping(from_at, to, PAGE_SIZE);
                core::ptr::write_bytes(from_at, STALE, 16);
                core::ptr::write_bytes(from_at.add(PAGE_SIZE - 16), STALE, 16);
            }
            if core::mem::take(&mut from.lazy.borrow_mut()[first + i]) && self.takes_lazily() {
                // Whoever touches it there finds zeros.
                // SAFETY: as above.
                unsafe { core::ptr::write_bytes(to, 0, PAGE_SIZE) };
            }
            from.set(first + i, 1, At::Nothing, false);
            Ok(())
        });
        if dir == Dir::In {
            self.wake(dst, len);
        }
        r
    }

    fn copy(&self, dir: Dir, dst: usize, src: *const u8, len: usize) -> Result<(), Refused> {
        let n = len / PAGE_SIZE;
        let r = self.place(dst, n, How::Copy, |i| {
            // SAFETY: the source is the engine's own; the destination is mapped.
            unsafe {
                let to = (dst + i * PAGE_SIZE) as *mut u8;
                core::ptr::copy_nonoverlapping(src.add(i * PAGE_SIZE), to, PAGE_SIZE);
            }
            Ok(())
        });
        if dir == Dir::In {
            let done = r.err().map_or(len, Refused::done);
            if done > 0 {
                self.wake(dst, done);
            }
        }
        r
    }

    fn copy_protected(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Refused> {
        let r = self.copy(Dir::In, dst, src, len);
        self.protect(dst, r.err().map_or(len, Refused::done), true);
        r
    }

    fn poison(&self, at: usize, len: usize) -> Result<(), Refused> {
        if self.at(at) != At::Nothing {
            return Err(Refused::Exists { done: 0 });
        }
        self.set(at, len, At::Poison);
        self.wake(at, len);
        self.effect();
        Ok(())
    }

    fn trap_writes(&self, at: usize, len: usize) -> Result<(), Errno> {
        self.protect(at, len, true);
        Ok(())
    }

    fn allow_writes(&self, at: usize, len: usize) -> Result<(), Errno> {
        self.protect(at, len, false);
        Ok(())
    }

    fn wake(&self, at: usize, len: usize) {
        self.woken.borrow_mut().push((at, len));
    }

    unsafe fn drop_pages(&self, at: usize, len: usize) -> Result<(), Errno> {
        let (stretch, page) = self.of(at);
        let n = len / PAGE_SIZE;
        let poisoned = |&at: &At| at == At::Poison;
        assert!(
            !stretch.at.borrow()[page..page + n].iter().any(poisoned),
            "poison is wiped out"
        );
        // SAFETY: the test has mapped it.
        unsafe { core::ptr::write_bytes(at as *mut u8, STALE, len) };
        stretch.set(page, n, At::Nothing, false);
        self.effect();
        Ok(())
    }

    unsafe fn drop_even_locked(&self, at: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.drop_pages(at, len) }
    }

    unsafe fn free_lazily(&self, at: usize, len: usize) -> Result<(), Errno> {
        let (stretch, first) = self.of(at);
        for page in first..first + len / PAGE_SIZE {
            assert!(stretch.protected.borrow()[page], "a write may be lost");
            stretch.lazy.borrow_mut()[page] = true;
            if self.takes_lazily() {
                self.take(stretch, page);
            }
        }
        self.effect();
        Ok(())
    }

    fn populate(&self, at: usize, len: usize) -> Result<(), Errno> {
        let (stretch, page) = self.of(at);
        if core::ptr::eq(stretch, &self.program) {
            // To make it this process's own changes nothing here.
            return Ok(());
        }
        assert_eq!(len, PMD_SIZE);
        // SAFETY: the test has mapped it.
        unsafe { core::ptr::write_bytes(at as *mut u8, 0, len) };
        stretch.set(page, PMD_NR, At::Page, true);
        self.effect();
        Ok(())
    }

    unsafe fn read(&self, from: usize, to: *mut u8, len: usize) -> Result<(), Errno> {
        let (stretch, page) = self.of(from);
        let there = |&at: &At| at == At::Page;
        let all = stretch.at.borrow()[page..page + len / PAGE_SIZE]
            .iter()
            .all(there);
        if !all {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller's contract.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to, len) };
        let (frames, first) = self.of(to as usize);
        frames.set(first, len / PAGE_SIZE, At::Page, false);
        self.effect();
        Ok(())
    }

    fn is_mapped(&self, _: usize, _: usize) -> bool {
        true
    }

    fn which_are_there(&self, pmd: Pmd, pages: Range<usize>) -> Option<PageMask> {
        let mut there = PageMask::EMPTY;
        for page in pages.filter(|&page| self.at(pmd.page_addr(page)) == At::Page) {
            there.insert(page);
        }
        Some(there)
    }

    fn is_huge(&self, at: usize, _: usize) -> Option<bool> {
        let (stretch, page) = self.of(at);
        let huge = stretch.huge.borrow()[page / PMD_NR];
        Some(huge)
    }

    fn accept(&self, at: usize, len: usize) -> Result<(), Errno> {
        if len == FRAMES * PMD_SIZE {
            // The first of the two kinds comes first.
            if self.frames.base.get() == 0 {
                self.frames.base.set(at);
            }
        } else {
            // A new mapping in place of the old one.
            self.set(at, len, At::Nothing);
        }
        Ok(())
    }
}
