//! The page that one image of a program shares with the supervisor: its limit down, its counters up.
//!
//! Each image has one of its own, in a memory file that the supervisor makes. Whoever has it mapped, or
//! has its file registered with an io_uring, is not gone yet: the supervisor holds a lock on the open
//! file that it hands out, which ends when the last of these lets go of it.

use super::{MAX_DEVICES, MAX_SEGMENTS, SEGMENT_CLUSTERS, WRITES};
use crate::mm::PAGE_SIZE;
use crate::seal::Unwrap;
use crate::stats::Stats;
use crate::sys::{mem, Errno};
use core::ops::Deref;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*};

#[repr(C, align(64))]
pub struct Proc {
    /// Pages that the process may keep resident. The supervisor writes it.
    pub limit_pages: AtomicI64,
    /// Pages that the run's other processes keep, as the supervisor last saw it.
    pub others_pages: AtomicI64,
    /// Nonzero while somebody may read slots of this process. The supervisor writes it.
    pub lends: AtomicU32,
    /// The sweep for which the process is to say in `marks` which slots it may read. The supervisor
    /// writes it.
    pub mark_wanted: AtomicU32,
    /// The last sweep that ended for this process: but for `lent` nobody reads what it has freed. The
    /// supervisor writes these.
    pub swept: AtomicU32,
    pub lent: Clusters,
    /// Of the last place for a child that was given before that sweep's end, the key.
    pub swept_after: AtomicU64,
    /// Wakes the process's reclaim thread when the limit changed.
    pub limit_seq: AtomicU32,
    /// Pages that it keeps. The process writes it, and all that follows.
    pub charged_pages: AtomicI64,
    /// While a fork is prepared: the process keeps at most this; 0 for no such cap.
    pub fork_cap: AtomicI64,
    /// Nonzero when it would use more if it could.
    pub pressed: AtomicU32,
    /// Numbers of the engine's threads, as the process sees them.
    pub engine_tids: [AtomicU32; 3],
    /// For each device the epoch of the last swapoff of which this process has nothing left there.
    pub left: [AtomicU32; MAX_DEVICES],
    /// Where the process has its `dump::Signpost`, and the key in it; 0 for none yet.
    pub signpost: AtomicU64,
    pub dump_key: AtomicU64,
    /// What opens the copy of its keys; see `Proc::hand_keys`.
    unwrap: [AtomicU64; 2],
    /// Nonzero when it wants to know which of its slots are still lent.
    pub sweep_wanted: AtomicU32,
    /// Of the last place for a child that it was given, the key.
    pub last_place: AtomicU64,
    /// The sweep for which `marks` are complete.
    pub marked: AtomicU32,
    pub marks: Clusters,
    /// Segments that its writes in flight may reach; see `Writing`. Set before the first request of a
    /// write, taken back after the last has ended.
    pub writing: [Writing; WRITES],
    pub stats: Stats,
}

const WORDS: usize = MAX_SEGMENTS * SEGMENT_CLUSTERS / 64;

/// A set of clusters of all devices.
#[repr(C)]
pub struct Clusters([[AtomicU64; WORDS]; MAX_DEVICES]);

impl Clusters {
    pub fn add(&self, device: usize, cluster: usize) {
        self.0[device][cluster / 64].fetch_or(1 << (cluster % 64), Relaxed);
    }

    pub fn has(&self, device: usize, cluster: usize) -> bool {
        self.0[device][cluster / 64].load(Relaxed) >> (cluster % 64) & 1 != 0
    }

    /// Whether any cluster of the segment is there.
    pub fn has_of_segment(&self, device: usize, segment: usize) -> bool {
        let first = segment * SEGMENT_CLUSTERS;
        (first..first + SEGMENT_CLUSTERS).any(|c| self.has(device, c))
    }

    /// Becomes all that is in any of the others, of a device's first segments.
    pub fn unite<'c>(
        &self,
        device: usize,
        segments: usize,
        others: impl Iterator<Item = &'c Clusters> + Clone,
    ) {
        let words = (segments * SEGMENT_CLUSTERS).div_ceil(64);
        for i in 0..words.min(WORDS) {
            let all = others.clone().map(|o| o.0[device][i].load(Relaxed));
            self.0[device][i].store(all.fold(0, |a, b| a | b), Relaxed);
        }
    }
}

/// Segments that one write may reach: each word one more than device and number of a segment, 0 for
/// none, `ANY` where there are too many to say.
#[derive(Default)]
#[repr(C)]
pub struct Writing([AtomicU64; 4]);

const ANY: u64 = u64::MAX;

impl Writing {
    fn word(device: usize, segment: usize) -> u64 {
        (device as u64) << 32 | (segment as u64 + 1)
    }

    /// For the process that writes.
    pub fn add(&self, device: usize, segment: usize) {
        let word = Self::word(device, segment);
        for w in &self.0 {
            match w.load(Relaxed) {
                0 => return w.store(word, Release),
                w if w == word => return,
                _ => {}
            }
        }
        self.0[0].store(ANY, Release);
    }

    pub fn clear(&self) {
        self.0.iter().for_each(|w| w.store(0, Release));
    }

    /// For the supervisor, when the process is dead: whether the write may reach the segment.
    pub fn may_reach(&self, device: usize, segment: usize) -> bool {
        let word = Self::word(device, segment);
        self.0
            .iter()
            .any(|w| matches!(w.load(Acquire), x if x == word || x == ANY))
    }
}

impl Proc {
    pub const BYTES: usize = size_of::<Proc>().next_multiple_of(PAGE_SIZE);

    /// A process lets the supervisor read its swap once it is dead, for its core file.
    pub fn hand_keys(&self, unwrap: Unwrap) {
        for (to, word) in self.unwrap.iter().zip(unwrap.0) {
            to.store(word, Release);
        }
    }

    /// For the supervisor: what `hand_keys` said.
    pub fn handed_keys(&self) -> Unwrap {
        Unwrap([0, 1].map(|i| self.unwrap[i].load(Acquire)))
    }

    /// The process is gone, and its core file is complete.
    pub fn forget_keys(&self) {
        self.hand_keys(Unwrap([0; 2]));
    }
}

/// A mapping of an image's page.
pub struct Mapped(core::ptr::NonNull<Proc>);

// SAFETY: every field is atomic.
unsafe impl Send for Mapped {}
// SAFETY: every field is atomic.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// # Safety
    /// The file must have `Proc::BYTES` bytes, for as long as this lives.
    pub unsafe fn new(fd: i32) -> Result<Mapped, Errno> {
        let a = mem::map_shared(fd, Proc::BYTES)?;
        let mapped = core::ptr::NonNull::new(a as *mut Proc)
            .map(Mapped)
            .ok_or(Errno::ENOMEM)?;
        // There is a key in it, which is not for core files.
        // SAFETY: the mapping just made; contents do not change.
        unsafe { mem::madvise(a, Proc::BYTES, libc::MADV_DONTDUMP) }?;
        Ok(mapped)
    }

    /// Keeps the mapping as long as the process lives.
    pub fn leak(self) -> &'static Proc {
        let p = self.0;
        core::mem::forget(self);
        // SAFETY: mapped with this size, never unmapped; every bit pattern is valid.
        unsafe { p.as_ref() }
    }
}

impl Deref for Mapped {
    type Target = Proc;
    fn deref(&self) -> &Proc {
        // SAFETY: mapped with this size as long as this lives; every bit pattern is valid, and every
        // field is atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our mapping, which nobody has a reference into any more.
        unsafe { mem::unmap_own(self.0.as_ptr() as usize, Proc::BYTES) };
    }
}

/// Children do not inherit the mapping.
pub fn keep_from_children(p: &'static Proc) {
    let at = p as *const Proc as usize;
    // SAFETY: contents do not change.
    let _ = unsafe { mem::madvise(at, Proc::BYTES, libc::MADV_DONTFORK) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_clusters() {
        let new = || {
            let bytes = size_of::<Clusters>();
            // SAFETY: mapped with this size and never unmapped; every bit pattern is valid.
            unsafe { &*(mem::map_anon(bytes).unwrap() as *const Clusters) }
        };
        let (a, b, both) = (new(), new(), new());
        a.add(0, 17);
        b.add(0, 16 * 40);
        b.add(7, 16 * MAX_SEGMENTS - 1);
        both.add(0, 3);
        for d in [0, 7] {
            both.unite(d, MAX_SEGMENTS, [a, b].into_iter());
        }
        assert!(both.has(0, 17) && both.has(0, 640) && !both.has(0, 3));
        assert!(both.has_of_segment(7, MAX_SEGMENTS - 1) && !both.has_of_segment(0, 0));
        assert!(both.has_of_segment(0, 1) && both.has_of_segment(0, 40));
    }

    #[test]
    fn writes_say_what_they_may_reach() {
        let w = Writing::default();
        for segment in [7, 7, 0, 9, 9, 65535] {
            w.add(1, segment);
        }
        assert!(w.may_reach(1, 7) && w.may_reach(1, 0) && w.may_reach(1, 65535));
        assert!(!w.may_reach(0, 7) && !w.may_reach(1, 8));
        w.add(0, 0);
        assert!(w.may_reach(0, 0) && w.may_reach(3, 100), "too many to say");
        w.clear();
        assert!(!w.may_reach(0, 0) && !w.may_reach(1, 7));
    }
}
