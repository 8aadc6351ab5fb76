//! Asking the kernel how memory is mapped.

use super::syscall::{syscall, Errno};
use super::{fd, mem};
use hugeswap_mm::{PAGE_SIZE, PMD_NR, PMD_SIZE};

const PAGEMAP_SCAN: usize = (3 << 30 | 96 << 16 | (b'f' as u32) << 8 | 16) as usize;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_HUGE: u64 = 1 << 6;
const PAGE_IS_GUARD: u64 = 1 << 8;

/// Of an entry: the page is in memory, or in the kernel's own swap.
const PRESENT_OR_SWAPPED: u64 = 3 << 62;
/// It is in memory, and mapped nowhere else.
const EXCLUSIVE: u64 = 1 << 63 | 1 << 56;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    categories: u64,
}

/// A look for pages that have contents, from an address on.
pub struct Filled {
    /// What was found.
    pub regions: [Region; 64],
    pub found: usize,
    /// How far it got: the rest is still to be looked at.
    pub looked: usize,
}

impl Filled {
    pub fn new() -> Filled {
        Filled {
            regions: [Region::default(); 64],
            found: 0,
            looked: 0,
        }
    }
}

impl Default for Filled {
    fn default() -> Filled {
        Filled::new()
    }
}

/// `/proc/self/pagemap` of this process. Copies share the descriptor; -1 where it cannot be had.
#[derive(Clone, Copy)]
pub struct Pagemap {
    fd: i32,
}

impl Pagemap {
    /// What is open under this number.
    pub fn from_fd(fd: i32) -> Pagemap {
        Pagemap { fd }
    }

    pub fn fd(&self) -> i32 {
        self.fd
    }

    pub fn close(self) {
        fd::close(self.fd);
    }

    pub fn open() -> Result<Pagemap, Errno> {
        fd::open(c"/proc/thread-self/pagemap").map(|fd| Pagemap { fd })
    }

    /// Which of the first `n` pages, 512 at most, have contents.
    fn filled(&self, addr: usize, n: usize) -> Result<[bool; PMD_NR], Errno> {
        let entries = self.entries(addr, n)?;
        Ok(entries.map(|e| e & PRESENT_OR_SWAPPED != 0))
    }

    /// How many of the first `n` pages, 512 at most, are in memory and no other process maps them.
    pub fn exclusive(&self, addr: usize, n: usize) -> Result<usize, Errno> {
        let entries = self.entries(addr, n)?;
        Ok(entries
            .iter()
            .filter(|&e| e & EXCLUSIVE == EXCLUSIVE)
            .count())
    }

    /// What is known of the first `n` pages, 512 at most; zeros for the others.
    fn entries(&self, addr: usize, n: usize) -> Result<[u64; PMD_NR], Errno> {
        let mut entries = [0u64; PMD_NR];
        // SAFETY: the array is large enough for so many entries.
        let got = unsafe {
            syscall(
                libc::SYS_pread64,
                [
                    self.fd as usize,
                    entries.as_mut_ptr() as usize,
                    n.min(PMD_NR) * size_of::<u64>(),
                    addr / PAGE_SIZE * size_of::<u64>(),
                ],
            )
        }?;
        if got < n.min(PMD_NR) * size_of::<u64>() {
            return Err(Errno(libc::EIO));
        }
        Ok(entries)
    }

    /// Looks for pages that are in memory or in the kernel's own swap (Linux 6.7 and later).
    pub fn look(&self, start: usize, end: usize, out: &mut Filled) -> Result<(), Errno> {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: start as u64,
            end: end as u64,
            vec: out.regions.as_mut_ptr() as u64,
            vec_len: out.regions.len() as u64,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            ..ScanArg::default()
        };
        out.found = self.scan(&mut arg)?;
        out.looked = arg.walk_end as usize;
        Ok(())
    }

    /// Whether all of the range is mapped by huge pages (Linux 6.7 and later).
    pub fn is_huge(&self, addr: usize, len: usize) -> Result<bool, Errno> {
        let mut region = Region::default();
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: addr as u64,
            end: (addr + len) as u64,
            vec: &mut region as *mut Region as u64,
            vec_len: 1,
            category_mask: PAGE_IS_HUGE,
            return_mask: PAGE_IS_HUGE,
            ..ScanArg::default()
        };
        let n = self.scan(&mut arg)?;
        Ok(n == 1 && region.start as usize == addr && region.end as usize == addr + len)
    }

    /// Whether there are guard pages (MADV_GUARD_INSTALL); an error before Linux 6.15, which does not tell.
    pub fn has_guards(&self, start: usize, end: usize) -> Result<bool, Errno> {
        let mut region = Region::default();
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: start as u64,
            end: end as u64,
            vec: &mut region as *mut Region as u64,
            vec_len: 1,
            category_mask: PAGE_IS_GUARD,
            return_mask: PAGE_IS_GUARD,
            ..ScanArg::default()
        };
        self.scan(&mut arg).map(|n| n != 0)
    }

    fn scan(&self, arg: &mut ScanArg) -> Result<usize, Errno> {
        let args = [self.fd as usize, PAGEMAP_SCAN, arg as *mut ScanArg as usize];
        // SAFETY: the callers' structures outlive the call and match the request.
        unsafe { syscall(libc::SYS_ioctl, args) }
    }
}

/// How many bytes at the front are pages that `dst` has and `src` has not; looks at 2 MiB.
pub fn moved(map: Pagemap, dst: usize, src: usize, len: usize) -> usize {
    let n = (len / PAGE_SIZE).min(PMD_NR);
    // Without /proc what the kernel itself has swapped out is not seen.
    let filled = |at| map.filled(at, n).or_else(|_| resident(at, n));
    let (Ok(here), Ok(there)) = (filled(dst), filled(src)) else {
        return 0;
    };
    let pages = (0..n).take_while(|&i| here[i] && !there[i]).count();
    pages * PAGE_SIZE
}

fn resident(addr: usize, n: usize) -> Result<[bool; PMD_NR], Errno> {
    let mut out = [false; PMD_NR];
    for (page, is) in out.iter_mut().zip(mem::resident(addr, n)?) {
        *page = is;
    }
    Ok(out)
}

/// Whether MADV_DONTNEED frees page tables: gives a range one, drops its memory, and sees whether
/// a huge page takes the place.
pub fn frees_page_tables() -> Result<bool, Errno> {
    let addr = mem::reserve_aligned(PMD_SIZE)?;
    // SAFETY: the scratch range is ours alone.
    unsafe {
        let r = (|| {
            mem::mprotect(addr, PMD_SIZE, libc::PROT_READ | libc::PROT_WRITE)?;
            mem::madvise(addr, PMD_SIZE, libc::MADV_NOHUGEPAGE)?;
            (addr as *mut u8).write_volatile(1);
            mem::madvise(addr, PMD_SIZE, libc::MADV_DONTNEED)?;
            mem::madvise(addr, PMD_SIZE, libc::MADV_HUGEPAGE)?;
            (addr as *mut u8).write_volatile(1);
            let map = Pagemap::open()?;
            let huge = map.is_huge(addr, PMD_SIZE);
            map.close();
            huge
        })();
        mem::unmap_own(addr, PMD_SIZE);
        r
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_contents_are_found_and_no_others() {
        let n = 300;
        let at = mem::map_anon(n * PAGE_SIZE).unwrap() as usize;
        let is_written = |i: usize| i % 3 == 1;
        for i in (0..n).filter(|&i| is_written(i)) {
            // SAFETY: a page of the mapping just made.
            unsafe { ((at + i * PAGE_SIZE) as *mut u8).write_volatile(1) };
        }
        let map = Pagemap::open().unwrap();
        let (mut from, end, mut seen) = (at, at + n * PAGE_SIZE, vec![false; n]);
        let mut found = Filled::new();
        while from < end {
            map.look(from, end, &mut found)
                .expect("this test needs Linux 6.7");
            assert!(found.looked > from && found.found <= found.regions.len());
            for r in &found.regions[..found.found] {
                for page in (r.start as usize..r.end as usize).step_by(PAGE_SIZE) {
                    seen[(page - at) / PAGE_SIZE] = true;
                }
            }
            from = found.looked;
        }
        map.close();
        assert!((0..n).all(|i| seen[i] == is_written(i)));
    }
}
