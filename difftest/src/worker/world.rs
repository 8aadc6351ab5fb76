//! What a worker has, and what must be in its memory.

use super::shadow::{self, render, Part, Shadow, CELL, CELLS, FREED, PAGE, RW};
use super::sys;
use crate::plan::{mix, Mixture, Rng};
use core::sync::atomic::AtomicI32;
use std::path::PathBuf;

/// Scratch memory: a shared file, so never managed.
pub const SCRATCH: usize = 4 << 20;

/// Pages that are walked through.
const WALK_LEAST: usize = 5 * 512;
const WALK_MOST: usize = 16 * 512;

pub struct World {
    pub seed: u64,
    pub mixture: Mixture,
    /// Operations to carry out, sorted; all of them where there is no list.
    pub keep: Option<Vec<u64>>,
    pub dir: PathBuf,
    pub shadow: *mut Shadow,
    pub shadow_fd: i32,
    pub scratch: usize,
    /// A file for reads and writes, opened also with O_DIRECT.
    pub file: i32,
    pub direct: i32,
    pub children: Vec<Child>,
    /// This process has killed some of its children.
    pub has_killed: bool,
    /// The driver kills children, too.
    pub disturbed: bool,
    /// How many processes are about to start a program, or were killed there. Shared by all.
    pub starting: &'static AtomicI32,
    /// How many forks this process is away from the first.
    pub depth: usize,
}

pub struct Child {
    pub pid: i32,
    pub killed: bool,
}

impl World {
    #[allow(unsafe_code)]
    pub fn shadow(&mut self) -> &mut Shadow {
        // SAFETY: the mapping lives as long as the process, and only this thread of it uses it;
        // all-zero bytes and what `Shadow` wrote are valid.
        unsafe { &mut *self.shadow }
    }

    /// A part of some region, at its begin, its end or between.
    pub fn part(&mut self, r: &mut Rng) -> Option<Part> {
        let n = self.shadow().count();
        if n == 0 {
            return None;
        }
        let region = r.below(n);
        let pages = self.shadow().pages(region);
        let count = r.some_pages(pages);
        let from = match r.below(3) {
            0 => 0,
            1 => pages - count,
            _ => r.below(pages - count + 1),
        };
        Some(Part {
            region,
            from,
            count,
        })
    }

    /// As `part`, readable and writable, and at most so long.
    pub fn open_part(&mut self, r: &mut Rng, most: usize) -> Option<Part> {
        for _ in 0..4 {
            let mut p = self.part(r)?;
            p.count = p.count.min(most);
            if self.shadow().all(p, |g| g.prot == RW) {
                return Some(p);
            }
        }
        None
    }

    #[allow(unsafe_code)]
    pub fn page_mut(&mut self, region: usize, i: usize) -> &'static mut [u64; PAGE / 8] {
        let at = self.shadow().at(region) + i * PAGE;
        // SAFETY: the model says that the page is mapped and may be read (and written, where the
        // caller does so); nobody else uses it now.
        unsafe { &mut *(at as *mut [u64; PAGE / 8]) }
    }

    /// Looks at every byte of the page.
    pub fn check_page(&mut self, region: usize, i: usize) {
        let g = self.shadow().page_at(region, i);
        if g.prot & libc::PROT_READ as u8 == 0 {
            return;
        }
        let here = self.page_mut(region, i);
        let mut want = [0; PAGE / 8];
        render(&g.cell, &mut want);
        if *here == want {
            return;
        }
        let is_zero = here.iter().all(|w| *w == 0);
        if g.flags & FREED != 0 && is_zero {
            let p = self.shadow().page(region, i);
            p.cell = [0; CELLS];
            p.flags &= !FREED;
            return;
        }
        let k = (0..PAGE / 8).find(|&k| here[k] != want[k]).unwrap_or(0);
        let wrong = (0..PAGE / 8).filter(|&k| here[k] != want[k]).count();
        let (pages, found) = (self.shadow().pages(region), here[k]);
        sys::fail_with(format_args!(
            "page {i} of {pages} at {:p}: {wrong} of 512 words differ, word {k} is {found:#x}, not {:#x}{}",
            here.as_ptr(),
            want[k],
            match found == shadow::word(g.was[k * 8 / CELL], k % (CELL / 8)) {
                _ if is_zero => "; the page is zeros",
                true => "; it is what was there before the last write",
                false => "",
            }
        ));
    }

    pub fn check(&mut self, p: Part) {
        for i in p.from..p.from + p.count {
            self.check_page(p.region, i);
        }
    }

    pub fn whole(&mut self, region: usize) -> Part {
        Part {
            region,
            from: 0,
            count: self.shadow().pages(region),
        }
    }

    pub fn check_all(&mut self) {
        for region in 0..self.shadow().count() {
            let p = self.whole(region);
            self.check(p);
        }
    }

    /// One page in so many, of every region.
    pub fn check_some(&mut self, r: &mut Rng, one_in: usize) {
        for region in 0..self.shadow().count() {
            for i in 0..self.shadow().pages(region) {
                if r.one_in(one_in) {
                    self.check_page(region, i);
                }
            }
        }
    }

    /// New contents for so many cells of the page, in the model.
    pub fn draw(&mut self, r: &mut Rng, region: usize, i: usize, cells: usize) {
        let (first, v) = (r.below(CELLS), r.next());
        let g = self.shadow().page(region, i);
        let cells = if g.flags & FREED != 0 { CELLS } else { cells };
        g.flags &= !FREED;
        for n in 0..cells {
            let c = (first + n) % CELLS;
            g.was[c] = g.cell[c];
            g.cell[c] = mix(v + n as u64) as u32;
        }
    }

    /// Writes new contents to so many cells of the page.
    pub fn write_page(&mut self, r: &mut Rng, region: usize, i: usize, cells: usize) {
        let before = self.shadow().page_at(region, i);
        if before.prot != RW {
            return;
        }
        self.draw(r, region, i, cells);
        let after = self.shadow().page_at(region, i);
        let all = before.flags & FREED != 0;
        let here = self.page_mut(region, i);
        for c in 0..CELLS {
            if all || before.cell[c] != after.cell[c] {
                for k in 0..CELL / 8 {
                    here[c * CELL / 8 + k] = shadow::word(after.cell[c], k);
                }
            }
        }
    }

    pub fn write(&mut self, r: &mut Rng, p: Part) {
        for i in p.from..p.from + p.count {
            self.write_page(r, p.region, i, CELLS);
        }
    }

    /// Writes to page after page of a region of several huge pages, in either direction, as who has just forked may
    /// while it shares them.
    pub fn walk(&mut self, r: &mut Rng) {
        let n = self.shadow().count();
        let first = if n == 0 { 0 } else { r.below(n) };
        let mut regions = (0..n).map(|k| (first + k) % n);
        let Some(region) = regions.find(|&g| self.shadow().pages(g) >= WALK_LEAST) else {
            return;
        };
        let pages = self.shadow().pages(region).min(WALK_MOST);
        let down = r.one_in(2);
        for k in 0..pages {
            let i = if down { pages - 1 - k } else { k };
            self.write_page(r, region, i, 1);
        }
        let p = Part {
            region,
            from: 0,
            count: pages,
        };
        self.check(p);
    }

    pub fn write_some(&mut self, r: &mut Rng) {
        let Some(p) = self.part(r) else { return };
        if r.one_in(2) {
            return self.write(r, p);
        }
        for _ in 0..(p.count / 8).clamp(1, 64) {
            let (i, cells) = (p.from + r.below(p.count), 1 + r.below(4));
            self.write_page(r, p.region, i, cells);
        }
    }

    pub fn read_some(&mut self, r: &mut Rng) {
        let Some(p) = self.part(r) else { return };
        if r.one_in(2) {
            return self.check(p);
        }
        for _ in 0..(p.count / 8).clamp(1, 64) {
            let i = p.from + r.below(p.count);
            self.check_page(p.region, i);
        }
    }
}
