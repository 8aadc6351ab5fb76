//! What memory must hold, in a file mapping that is shared and so never managed.
//!
//! A page is 16 cells of 256 bytes. A cell's 32 words follow from one number, 0 for zeros; no two
//! words of a cell are alike, so that what is misplaced is found.

pub const PAGE: usize = 4096;
pub const CELLS: usize = 16;
pub const CELL: usize = PAGE / CELLS;
/// 640 MiB.
pub const MOST_PAGES: usize = 160 << 10;
pub const REGIONS: usize = 64;
/// Pages of a region at most.
pub const LARGEST: usize = 8192;

/// Dropped by MADV_FREE: as it was, or zeros.
pub const FREED: u8 = 1;
pub const LOCKED: u8 = 2;
/// A child finds zeros.
pub const WIPED: u8 = 4;
/// A child does not have it.
pub const KEPT: u8 = 8;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Page {
    pub cell: [u32; CELLS],
    /// What each held before its last write, for messages.
    pub was: [u32; CELLS],
    pub prot: u8,
    pub flags: u8,
}

#[repr(C)]
pub struct Region {
    pub at: usize,
    pub pages: usize,
    pub heap: bool,
    ids: [u32; LARGEST],
}

#[repr(C)]
pub struct Shadow {
    free: usize,
    count: usize,
    free_ids: [u32; MOST_PAGES],
    region: [Region; REGIONS],
    page: [Page; MOST_PAGES],
}

pub const RW: u8 = (libc::PROT_READ | libc::PROT_WRITE) as u8;

/// A part of a region.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub region: usize,
    pub from: usize,
    pub count: usize,
}

impl Shadow {
    pub fn set_up(&mut self, pages: usize) {
        self.free = pages.min(MOST_PAGES);
        for (i, id) in self.free_ids[..self.free].iter_mut().enumerate() {
            *id = i as u32;
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn free_pages(&self) -> usize {
        self.free
    }

    pub fn is_full(&self) -> bool {
        self.count == REGIONS
    }

    pub fn at(&self, r: usize) -> usize {
        self.region[r].at
    }

    pub fn pages(&self, r: usize) -> usize {
        self.region[r].pages
    }

    pub fn is_heap(&self, r: usize) -> bool {
        self.region[r].heap
    }

    pub fn heap(&self) -> Option<usize> {
        (0..self.count).find(|&r| self.region[r].heap)
    }

    pub fn addr(&self, p: Part) -> usize {
        self.region[p.region].at + p.from * PAGE
    }

    pub fn page(&mut self, r: usize, i: usize) -> &mut Page {
        let id = self.region[r].ids[i];
        &mut self.page[id as usize]
    }

    pub fn page_at(&self, r: usize, i: usize) -> Page {
        self.page[self.region[r].ids[i] as usize]
    }

    pub fn all(&self, p: Part, mut is: impl FnMut(Page) -> bool) -> bool {
        (p.from..p.from + p.count).all(|i| is(self.page_at(p.region, i)))
    }

    pub fn each(&mut self, p: Part, mut f: impl FnMut(&mut Page)) {
        for i in p.from..p.from + p.count {
            f(self.page(p.region, i));
        }
    }

    fn new_id(&mut self, prot: u8) -> u32 {
        self.free -= 1;
        let id = self.free_ids[self.free];
        self.page[id as usize] = Page {
            cell: [0; CELLS],
            was: [0; CELLS],
            prot,
            flags: 0,
        };
        id
    }

    fn drop_ids(&mut self, p: Part) {
        for i in p.from..p.from + p.count {
            self.free_ids[self.free] = self.region[p.region].ids[i];
            self.free += 1;
        }
    }

    /// A new region of zeros; the caller looked whether there is room.
    pub fn add(&mut self, at: usize, pages: usize, prot: u8) -> usize {
        let r = self.count;
        self.count += 1;
        self.region[r].at = at;
        self.region[r].pages = 0;
        self.region[r].heap = false;
        self.grow(r, pages, prot);
        r
    }

    pub fn set_heap(&mut self, r: usize) {
        self.region[r].heap = true;
    }

    pub fn grow(&mut self, r: usize, pages: usize, prot: u8) {
        for _ in 0..pages {
            let id = self.new_id(prot);
            let n = self.region[r].pages;
            self.region[r].ids[n] = id;
            self.region[r].pages += 1;
        }
    }

    pub fn moved(&mut self, r: usize, at: usize) {
        self.region[r].at = at;
    }

    /// The part is zeros again, ordinary memory.
    pub fn renew(&mut self, p: Part) {
        self.each(p, |g| {
            *g = Page {
                cell: [0; CELLS],
                was: [0; CELLS],
                prot: RW,
                flags: 0,
            }
        });
    }

    /// The part is not mapped any more. What lies behind it becomes a region of its own, for which
    /// there must be room.
    pub fn remove(&mut self, p: Part) {
        self.drop_ids(p);
        self.cut(p);
    }

    /// Takes the part out as a region of its own, at another address; there must be room for two.
    pub fn split_off(&mut self, p: Part, at: usize) -> usize {
        let n = self.count;
        self.count += 1;
        let (old, new) = self.region.split_at_mut(n);
        let (old, new) = (&old[p.region], &mut new[0]);
        new.at = at;
        new.pages = p.count;
        new.heap = false;
        new.ids[..p.count].copy_from_slice(&old.ids[p.from..p.from + p.count]);
        self.cut(p);
        // `cut` may have put the last region, which is the new one, in the place of an empty one.
        (0..self.count)
            .find(|&r| self.region[r].at == at)
            .unwrap_or(0)
    }

    fn cut(&mut self, p: Part) {
        let rest = self.region[p.region].pages - p.from - p.count;
        if p.from > 0 && rest > 0 {
            let n = self.count;
            self.count += 1;
            let (old, new) = self.region.split_at_mut(n);
            let (old, new) = (&mut old[p.region], &mut new[0]);
            new.at = old.at + (p.from + p.count) * PAGE;
            new.pages = rest;
            new.heap = false;
            new.ids[..rest].copy_from_slice(&old.ids[p.from + p.count..old.pages]);
            old.pages = p.from;
        } else if p.from > 0 {
            self.region[p.region].pages = p.from;
        } else if rest > 0 {
            let r = &mut self.region[p.region];
            r.at += p.count * PAGE;
            r.ids.copy_within(p.count..p.count + rest, 0);
            r.pages = rest;
        } else {
            self.count -= 1;
            let last = self.count;
            if p.region != last {
                let (head, tail) = self.region.split_at_mut(last);
                let (to, from) = (&mut head[p.region], &tail[0]);
                to.at = from.at;
                to.pages = from.pages;
                to.heap = from.heap;
                to.ids[..from.pages].copy_from_slice(&from.ids[..from.pages]);
            }
        }
    }

    /// As a forked child sees it. False if there are too many regions for that.
    pub fn become_child(&mut self) -> bool {
        let mut r = 0;
        while r < self.count {
            let n = self.pages(r);
            let gone = (0..n).find(|&i| self.page_at(r, i).flags & KEPT != 0);
            if let Some(from) = gone {
                let to = (from..n)
                    .find(|&i| self.page_at(r, i).flags & KEPT == 0)
                    .unwrap_or(n);
                if self.is_full() && from > 0 && to < n {
                    return false;
                }
                self.remove(Part {
                    region: r,
                    from,
                    count: to - from,
                });
                continue;
            }
            let whole = Part {
                region: r,
                from: 0,
                count: n,
            };
            self.each(whole, |g| {
                if g.flags & WIPED != 0 {
                    g.cell = [0; CELLS];
                    g.flags &= !FREED;
                }
                g.flags &= !LOCKED;
            });
            r += 1;
        }
        true
    }
}

/// Word `k` of a cell.
#[inline]
pub fn word(cell: u32, k: usize) -> u64 {
    if cell == 0 {
        return 0;
    }
    // Half of all cells compress.
    let step = if cell % 2 == 0 { 0x0100_0000_01b3 } else { 1 };
    ((cell as u64) << 32 | cell as u64).wrapping_add(k as u64 * step)
}

/// The bytes of a page, as words.
pub fn render(cells: &[u32; CELLS], out: &mut [u64; PAGE / 8]) {
    for (c, &v) in cells.iter().enumerate() {
        for k in 0..CELL / 8 {
            out[c * CELL / 8 + k] = word(v, k);
        }
    }
}
