//! Staging: 2 MiB frames of transparent huge pages between the program and the devices.
//!
//! A frame is *empty* (nothing mapped), *ready* (a huge page is there, zeroed or with old bytes),
//! or in use by the transfer whose range names it. Moving a folio out fills an empty frame;
//! moving one in empties a ready frame.
//!
//! There are two kinds. A folio's frames take huge pages. What leaves in pieces has frames of its own, where the kernel
//! makes no huge pages: khugepaged would make 2 MiB of the few pages that wait there.
//!
//! Frames are opened as they are needed: writable addresses count against the program's RLIMIT_DATA, and
//! where memory is not overcommitted against the system's, also those that nobody has used.
#![allow(unsafe_code)]

use super::Memory;
use crate::mm::{PageMask, PAGE_SIZE, PMD_SIZE};
use crate::sync::Mutex;
use crate::sys::limits::beyond_memory;
use crate::sys::{mem, Errno};
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Frames of each kind.
pub const FRAMES: usize = 512;
pub const MAX_FRAMES: usize = 2 * FRAMES;
/// So many are opened at a time.
const STEP: usize = 16;

const _: () = assert!(FRAMES % STEP == 0);

/// Behind the frames: where the contents of a range are for the moment in which they are copied. What lies beyond
/// keeps the kernel from joining it with anything.
pub const ALIAS: Frame = Frame(MAX_FRAMES as u32);

/// One frame, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame(pub u32);

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    Folio,
    Pieces,
}

impl For {
    fn first(self) -> usize {
        match self {
            For::Folio => 0,
            For::Pieces => FRAMES,
        }
    }
}

impl Frame {
    pub fn is_for(self) -> For {
        match (self.0 as usize) < FRAMES {
            true => For::Folio,
            false => For::Pieces,
        }
    }
}

/// What a ready frame has in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes {
    Zeros,
    /// Of what was there before.
    Old,
}

/// What a frame that is given back was filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// One huge page, or nothing.
    Folio,
    /// Base pages: a page table is in the way of the next huge page.
    Pieces,
}

struct Stack {
    items: [u16; FRAMES],
    len: usize,
}

impl Stack {
    const fn new() -> Stack {
        Stack {
            items: [0; FRAMES],
            len: 0,
        }
    }
    fn push(&mut self, f: Frame) {
        if self.len < FRAMES {
            self.items[self.len] = f.0 as u16;
            self.len += 1;
        }
    }
    fn pop(&mut self) -> Option<Frame> {
        self.len = self.len.checked_sub(1)?;
        Some(Frame(self.items[self.len] as u32))
    }
}

struct Lists {
    empty: Stack,
    empty_for_pieces: Stack,
    zeroed: Stack,
    used: Stack,
}

impl Lists {
    const fn new() -> Lists {
        Lists {
            empty: Stack::new(),
            empty_for_pieces: Stack::new(),
            zeroed: Stack::new(),
            used: Stack::new(),
        }
    }

    fn empty(&mut self, what: For) -> &mut Stack {
        match what {
            For::Folio => &mut self.empty,
            For::Pieces => &mut self.empty_for_pieces,
        }
    }

    fn of(&mut self, bytes: Bytes) -> &mut Stack {
        match bytes {
            Bytes::Zeros => &mut self.zeroed,
            Bytes::Old => &mut self.used,
        }
    }
}

pub struct Frames {
    base: usize,
    lists: Mutex<Lists>,
    /// So many of each kind are accessible, from the first on.
    open: [AtomicUsize; 2],
    /// Whether folios are moved in: a few pages that are copied must not get a huge page.
    huge: bool,
    /// Whether MADV_DONTNEED gives page tables back, so that an emptied frame can take a huge
    /// page again (Linux 6.14 and later).
    pt_reclaim: bool,
}

impl Frames {
    pub(super) fn new(memory: &impl Memory, huge: bool, pt_reclaim: bool) -> Result<Frames, Errno> {
        let f = Frames {
            base: mem::reserve_aligned((MAX_FRAMES + 2) * PMD_SIZE)?,
            lists: Mutex::new(Lists::new()),
            open: Default::default(),
            huge,
            pt_reclaim,
        };
        f.prepare(memory)?;
        Ok(f)
    }

    /// No frame is open but the first.
    fn prepare(&self, memory: &impl Memory) -> Result<(), Errno> {
        for what in [For::Folio, For::Pieces] {
            let first = Frame(what.first() as u32);
            self.map(first, FRAMES, libc::PROT_NONE, memory)?;
            self.open[what as usize].store(0, Relaxed);
        }
        let first = self.open_more(For::Folio)?.ok_or(Errno::ENOMEM)?;
        self.put_empty(first);
        Ok(())
    }

    /// Opens some more, and returns one of them; None if all are.
    fn open_more(&self, what: For) -> Result<Option<Frame>, Errno> {
        let open = &self.open[what as usize];
        let more = |open: usize| (open < FRAMES).then_some(open + STEP);
        let Ok(before) = open.fetch_update(AcqRel, Acquire, more) else {
            return Ok(None);
        };
        let first = what.first() + before;
        let at = self.base + first * PMD_SIZE;
        // SAFETY: our own reservation, of which nobody uses these frames yet.
        let opened = unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            beyond_memory(|| mem::mprotect(at, STEP * PMD_SIZE, rw))
        };
        if let Err(err) = opened {
            // They can be had later, unless another thread had more luck with the next.
            let _ = open.compare_exchange(before + STEP, before, AcqRel, Relaxed);
            return Err(err);
        }
        let mut l = self.lists.lock();
        for i in (first + 1..first + STEP).rev() {
            l.empty(what).push(Frame(i as u32));
        }
        Ok(Some(Frame(first as u32)))
    }

    /// Maps so many frames, in place of what is there.
    fn map(&self, first: Frame, n: usize, prot: i32, memory: &impl Memory) -> Result<(), Errno> {
        let (addr, len) = (self.addr(first), n * PMD_SIZE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the addresses are our own reservation and hold nothing that anyone needs.
        unsafe {
            crate::sys::syscall(
                libc::SYS_mmap,
                [addr, len, prot as usize, flags as usize, usize::MAX, 0],
            )?;
            let pages = match first.is_for() {
                For::Folio if self.huge => libc::MADV_HUGEPAGE,
                _ => libc::MADV_NOHUGEPAGE,
            };
            mem::madvise(addr, len, pages)?;
            // Not DONTFORK: the addresses must stay taken in a child, or its first new mapping may
            // land where staging is about to be set up again.
            // And part of a core dump: the program's pages are here while they leave.
            mem::madvise(addr, len, libc::MADV_WIPEONFORK)?;
        }
        memory.accept(addr, len)
    }

    /// Where the first is.
    pub fn base(&self) -> usize {
        self.base
    }

    pub fn addr(&self, f: Frame) -> usize {
        self.base + f.0 as usize * PMD_SIZE
    }

    pub fn take_empty(&self, what: For) -> Option<Frame> {
        let empty = self.lists.lock().empty(what).pop();
        empty.or_else(|| self.open_more(what).ok().flatten())
    }

    /// A frame with a huge page in it, and what that has in it: what was asked for, if there is such a one.
    pub fn take_ready(&self, wanted: Bytes) -> Option<(Frame, Bytes)> {
        let mut l = self.lists.lock();
        let other = match wanted {
            Bytes::Zeros => Bytes::Old,
            Bytes::Old => Bytes::Zeros,
        };
        [wanted, other]
            .into_iter()
            .find_map(|bytes| Some((l.of(bytes).pop()?, bytes)))
    }

    pub fn put_ready(&self, f: Frame, bytes: Bytes) {
        self.lists.lock().of(bytes).push(f);
    }

    /// For a frame out of which everything was moved.
    pub fn put_empty(&self, f: Frame) {
        self.lists.lock().empty(f.is_for()).push(f);
    }

    /// Frames with a huge page that nobody uses.
    pub fn ready(&self) -> usize {
        let l = self.lists.lock();
        l.zeroed.len + l.used.len
    }

    pub fn ready_zeroed(&self) -> usize {
        self.lists.lock().zeroed.len
    }

    /// Puts a zeroed huge page into an empty frame, or base pages where none can be had.
    pub(super) fn populate(&self, f: Frame, memory: &impl Memory) -> Result<(), Errno> {
        memory.populate(self.addr(f), PMD_SIZE)
    }

    /// Gives the memory of a frame back to the kernel.
    pub(super) fn clear(&self, f: Frame, left: Left, memory: &impl Memory) {
        if left == Left::Pieces && f.is_for() == For::Folio && !self.pt_reclaim {
            // A new mapping has no page table. If that fails the frame still works, in pieces.
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            if self.map(f, 1, rw, memory).is_ok() {
                return;
            }
        }
        // SAFETY: the frame is ours and its contents are not needed.
        let _ = unsafe { memory.drop_pages(self.addr(f), PMD_SIZE) };
    }

    /// Gives back the memory of some pages of a frame. If these were all, the frame is empty; where
    /// page tables are not reclaimed it will take its next folio in pieces.
    pub(super) fn drop_pages(&self, f: Frame, pages: PageMask, memory: &impl Memory) {
        for run in pages.runs() {
            let at = self.addr(f) + run.start * PAGE_SIZE;
            // SAFETY: the frame is ours and these pages are not needed.
            let _ = unsafe { memory.drop_pages(at, run.len() * PAGE_SIZE) };
        }
    }

    /// In a forked child, where staging is empty (MADV_WIPEONFORK) and nothing is in flight.
    pub(super) fn start_over(&self, memory: &impl Memory) -> Result<(), Errno> {
        self.lists.reset();
        {
            let mut l = self.lists.lock();
            *l = Lists::new();
        }
        self.prepare(memory)
    }
}
