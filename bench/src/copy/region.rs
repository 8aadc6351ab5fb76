//! Memory of huge pages for the benchmarks.

use hugeswap_host::size::Size;
use hugeswap_mm::PMD_SIZE;

/// Bytes of the huge pages that hold so much.
pub fn whole_huge_pages(size: Size) -> usize {
    size.bytes().div_ceil(PMD_SIZE as u64) as usize * PMD_SIZE
}

/// A populated private anonymous mapping, aligned to huge pages and advised to
/// consist of them.
pub struct Region {
    map: *mut u8,
    map_len: usize,
    start: *mut u8,
    len: usize,
}

impl Region {
    /// Maps `len` bytes, rounded up to huge pages, and writes each base page.
    pub fn populated(len: usize) -> Result<Self, String> {
        let len = len.next_multiple_of(PMD_SIZE);
        let map_len = len + PMD_SIZE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let map = unsafe { libc::mmap(core::ptr::null_mut(), map_len, prot, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            let e = std::io::Error::last_os_error();
            return Err(format!("mapping {} MiB: {e}", len >> 20));
        }
        let map = map.cast::<u8>();
        let skip = map.addr().next_multiple_of(PMD_SIZE) - map.addr();
        // SAFETY: `skip` is less than a huge page, and there is one to spare;
        // advice does not change contents; the range is ours to write.
        let start = unsafe {
            let start = map.add(skip);
            libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
            core::ptr::write_bytes(start, 0x11, len);
            start
        };
        Ok(Self {
            map,
            map_len,
            start,
            len,
        })
    }

    /// The `index`th piece of `size` bytes, counted around the region.
    pub fn page(&self, index: usize, size: usize) -> *mut u8 {
        let nr = self.len / size;
        assert!(nr > 0, "region smaller than one huge page");
        // SAFETY: within the region.
        unsafe { self.start.add(index % nr * size) }
    }

    /// Number of pieces of `size` bytes.
    pub fn nr(&self, size: usize) -> usize {
        self.len / size
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Share of the region that huge pages map, from `/proc/self/smaps`.
    pub fn huge_share(&self) -> Option<f64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let (from, to) = (self.start.addr(), self.start.addr() + self.len);
        let mut inside = false;
        let mut huge = 0;
        for line in smaps.lines() {
            let word = line.split_whitespace().next()?;
            if let Some((lo, hi)) = word.split_once('-') {
                let lo = usize::from_str_radix(lo, 16).ok()?;
                let hi = usize::from_str_radix(hi, 16).ok()?;
                inside = lo < to && from < hi;
            } else if inside && word == "AnonHugePages:" {
                let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
                huge += kib << 10;
            }
        }
        Some((huge as f64 / self.len as f64).min(1.0))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, of which nothing is used any more.
        unsafe { libc::munmap(self.map.cast(), self.map_len) };
    }
}
