//! Counters, under the kernel's names where it has one. They live in memory shared with the
//! supervisor, so that they survive `kill -9` of the program.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One counter; all-zero bytes are a valid zero.
#[derive(Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
    pub fn raise_to(&self, n: u64) {
        self.0.fetch_max(n, Relaxed);
    }
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How the values of several processes become one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    Sum,
    Max,
    /// A state, not a count: of processes that live.
    Now,
}

macro_rules! counters {
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $text:literal) => { $text };
    ($($(#[doc = $doc:literal])* $name:ident $($text:literal)?: $merge:ident,)*) => {
        /// Counters of one process.
        #[derive(Default)]
        #[repr(C)]
        pub struct Stats {
            $($(#[doc = $doc])* pub $name: Counter,)*
            /// Nanoseconds from the fault message to the page.
            pub fault_ns: Histogram,
        }

        /// Names of the counters, with what they mean.
        pub const NAMES: &[(&str, &str)] = &[$((counters!(@name $name $($text)?), concat!($($doc),*))),*];

        impl Stats {
            /// Every counter in the order of `NAMES`.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((counters!(@name $name $($text)?), self.$name.get())),*].into_iter()
            }
            /// Everything zero again.
            pub fn clear(&self) {
                $(self.$name.set(0);)*
                self.fault_ns.clear();
            }
            /// Adds the counters of another process.
            pub fn merge(&self, o: &Stats) {
                self.merge_ended(o);
                $(if let Merge::Now = Merge::$merge {
                    self.$name.add(o.$name.get());
                })*
            }
            /// The same of one that has ended: it has nothing now.
            pub fn merge_ended(&self, o: &Stats) {
                $(match Merge::$merge {
                    Merge::Sum => self.$name.add(o.$name.get()),
                    Merge::Max => self.$name.raise_to(o.$name.get()),
                    Merge::Now => {}
                })*
                self.fault_ns.merge(&o.fault_ns);
            }
        }
    };
}

counters! {
    /// Base pages read from swap.
    pswpin: Sum,
    /// Base pages written to swap.
    pswpout: Sum,
    /// 2 MiB folios that came back whole.
    thp_swpin: Sum,
    /// Whole swap-ins that ended as base pages.
    thp_swpin_fallback: Sum,
    /// 2 MiB folios that left whole.
    thp_swpout: Sum,
    /// Ranges that were resident in part, and one huge page when the rest had come in.
    thp_collapse_alloc: Sum,
    /// The same, where pages could not be taken out of the program's reach.
    thp_collapse_alloc_failed: Sum,
    /// Ranges that left page by page.
    thp_swpout_fallback: Sum,
    /// First touches served with a zeroed 2 MiB folio.
    thp_fault_alloc: Sum,
    /// First touches of a whole range that got no huge page.
    thp_fault_fallback: Sum,
    /// Folios that were shared since a fork and were taken to be copied as a whole.
    thp_cow: Sum,
    /// Folios that were shared since a fork and written to, and whose pages the kernel copies one by one.
    thp_cow_fallback: Sum,
    /// Base pages served with zeros.
    anon_fault_alloc: Sum,
    /// Faults that needed a read, and faults that found the page in the swap cache.
    pgmajfault: Sum,
    /// Faults served without a read.
    pgminfault: Sum,
    /// Faults on pages that were there already when the message was read.
    fault_stale: Sum,
    /// Faults outside everything managed; their threads were only woken.
    fault_unknown: Sum,
    /// Base pages that came out of compressed memory because they were wanted.
    zswpin: Sum,
    /// Base pages that went into compressed memory.
    zswpout: Sum,
    /// Base pages that went on from compressed memory to a device.
    zswpwb: Sum,
    /// Base pages that Zstandard has compressed.
    zswpout_zstd: Sum,
    /// Base pages that the fault handler has compressed while it waited for memory.
    zswpout_direct: Sum,
    /// Nanoseconds for compressing pages.
    zswpout_ns: Sum,
    /// Nanoseconds for getting pages back.
    zswpin_ns: Sum,
    /// Base pages that did not become small enough for compressed memory.
    zswap_reject_compress_poor: Sum,
    /// Base pages that came along with a read and went to compressed memory.
    zswap_ra: Sum,
    /// Bytes that compressed memory takes now; part of `resident_bytes`.
    zswap_pool_bytes: Now,
    /// The most that it took, of the process in which it took most.
    peak_zswap_pool_bytes: Max,
    /// Bytes of the program that are in compressed memory now.
    zswap_stored_bytes: Now,
    /// Bytes of the places in compressed memory that are taken; the rest of it is free places and empty blocks.
    zswap_object_bytes: Now,
    /// Blocks of compressed memory that were emptied, by moving what was there to others.
    zswap_compacted: Sum,
    /// Folios read ahead of their fault.
    swap_ra: Sum,
    /// Folios read ahead that were wanted then.
    swap_ra_hit: Sum,
    /// Base pages that a stride was expected to come to; those in swap were read.
    stride_ra: Sum,
    /// Of these, the ones that it has passed without a fault.
    stride_ra_hit: Sum,
    /// Faults that found the page being written and got it back without a read.
    swap_cache_hit: Sum,
    /// Base pages that left and stayed where they were, for the kernel to take (`MADV_FREE`).
    pglazyfree: Sum,
    /// Bytes that are so now, unless the kernel has taken them; not part of `resident_bytes`.
    lazyfree_bytes: Now,
    /// Such pages that the program wrote to, or comes to next with a walk that writes: its own again. Reads are no faults.
    lazyfree_reuse: Sum,
    /// Faults on such pages that the kernel had taken.
    lazyfree_lost: Sum,
    /// Base pages that came back while they were being written, or before that out of a huge page.
    writeback_copied: Sum,
    /// Faults that waited for the end of a write of their range.
    writeback_wait: Sum,
    /// Faults of the reclaim thread itself, on pages dropped behind the engine's back.
    fault_own: Sum,
    /// Inactive ranges that the program touched again before they were written.
    pgactivate: Sum,
    /// Ranges made inactive.
    pgdeactivate: Sum,
    /// Base pages that left without a write, because their slots held the same.
    swap_clean: Sum,
    /// Base pages that left without a write and without a slot, because they were full of zeros.
    swpout_zero: Sum,
    /// Small fills (up to 64 KiB).
    fill: Sum,
    /// Reads in the order of the slots, since that took far fewer requests.
    swpin_gathered: Sum,
    /// Times the handler went to a CPU on which a thread jumps, to serve it there.
    fault_colocated: Sum,
    /// Times it did not get to run there, or there was nothing to do.
    fault_colocated_ended: Sum,
    /// Faults that came while more threads wanted to run than there are processors.
    fault_crowded: Sum,
    /// Moves refused because a page is shared after fork or pinned by I/O.
    move_busy: Sum,
    /// Moves that were split because mappings or protections differ within 2 MiB.
    move_split: Sum,
    /// Moves that met a hole: memory dropped behind the engine's back.
    move_hole: Sum,
    /// Base pages that the kernel moved and did not count (see `sys::uffd::Uffd::mv`).
    move_uncounted: Sum,
    /// Base pages that were made the process's own before they could leave, because a fork had
    /// left them shared.
    pgunshare: Sum,
    /// Times a fault waited for reclaim.
    allocstall: Sum,
    /// Faults that waited until it was their process's turn.
    turn_wait: Sum,
    /// Nanoseconds for which processes waited for that.
    turn_wait_ns: Sum,
    /// Ranges that reclaim looked at.
    pgscan: Sum,
    /// Base pages that reclaim freed.
    pgsteal: Sum,
    /// Of these, the ones that walks had brought in.
    pgsteal_walk: Sum,
    /// Base pages that came back from their second chance: those that were touched, and their neighbours.
    pgrescue: Sum,
    /// Reads for a jump whose range lost pages lately: since then less has left than three quarters of memory.
    workingset_refault_anon: Sum,
    /// Base pages that were written again, since they had changed when they left the next time.
    pswpout_again: Sum,
    /// Staging folios used again without zeroing.
    folio_recycled: Sum,
    /// Staging folios given back to the kernel.
    folio_freed: Sum,
    /// Evictions that found no place in swap; memory stays above the limit.
    swap_full: Sum,
    /// Base pages moved off devices that were swapped off.
    swapoff_pages: Sum,
    /// Failed reads of the device.
    swap_read_errors: Sum,
    /// Base pages that came from the device otherwise than they were written; each counts as one that
    /// can't be read.
    swap_corrupt: Sum,
    /// Failed writes of the device.
    swap_write_errors: Sum,
    /// Pages lost to read errors; a thread that touches one gets SIGBUS.
    pages_poisoned: Sum,
    /// Bytes read from the devices.
    device_read_bytes: Sum,
    /// Bytes written to the devices.
    device_write_bytes: Sum,
    /// Bytes of managed memory mapped by the program now.
    managed_bytes: Now,
    /// The most managed memory that was mapped.
    peak_managed_bytes: Sum,
    /// Bytes of anonymous memory that the program mapped and that could not be managed, stacks and
    /// executable memory included; never counted down.
    unmanaged_bytes: Sum,
    /// Bytes of managed memory resident now, staging included.
    resident_bytes: Now,
    /// Bytes that are free: what the limit leaves, and folios that are held ready.
    free_bytes: Now,
    /// Bytes on their second chance now; part of `resident_bytes`.
    inactive_bytes: Now,
    /// Ranges on the list of those that walks brought in.
    walk_ranges: Now,
    /// The most that was resident, of the process that had most.
    peak_resident_bytes: Max,
    /// Bytes in swap now.
    swapped_bytes: Now,
    /// The most that was in swap, of the process that had most.
    peak_swapped_bytes: Max,
    /// Forks of managed processes.
    forks: Sum,
    /// Reads from swap of one base page.
    swpin_order_0 "hugepages-4kB/swpin": Sum,
    /// Reads from swap of 2 to 3 base pages.
    swpin_order_1 "hugepages-8kB/swpin": Sum,
    /// Reads from swap of 4 to 7 base pages.
    swpin_order_2 "hugepages-16kB/swpin": Sum,
    /// Reads from swap of 8 to 15 base pages.
    swpin_order_3 "hugepages-32kB/swpin": Sum,
    /// Reads from swap of 16 to 31 base pages.
    swpin_order_4 "hugepages-64kB/swpin": Sum,
    /// Reads from swap of 32 to 63 base pages.
    swpin_order_5 "hugepages-128kB/swpin": Sum,
    /// Reads from swap of 64 to 127 base pages.
    swpin_order_6 "hugepages-256kB/swpin": Sum,
    /// Reads from swap of 128 to 255 base pages.
    swpin_order_7 "hugepages-512kB/swpin": Sum,
    /// Reads from swap of 256 to 511 base pages.
    swpin_order_8 "hugepages-1024kB/swpin": Sum,
    /// Reads from swap of a whole folio.
    swpin_order_9 "hugepages-2048kB/swpin": Sum,
    /// Writes to swap of one base page.
    swpout_order_0 "hugepages-4kB/swpout": Sum,
    /// Writes to swap of 2 to 3 base pages, each in one piece.
    swpout_order_1 "hugepages-8kB/swpout": Sum,
    /// Writes to swap of 4 to 7 base pages, each in one piece.
    swpout_order_2 "hugepages-16kB/swpout": Sum,
    /// Writes to swap of 8 to 15 base pages, each in one piece.
    swpout_order_3 "hugepages-32kB/swpout": Sum,
    /// Writes to swap of 16 to 31 base pages, each in one piece.
    swpout_order_4 "hugepages-64kB/swpout": Sum,
    /// Writes to swap of 32 to 63 base pages, each in one piece.
    swpout_order_5 "hugepages-128kB/swpout": Sum,
    /// Writes to swap of 64 to 127 base pages, each in one piece.
    swpout_order_6 "hugepages-256kB/swpout": Sum,
    /// Writes to swap of 128 to 255 base pages, each in one piece.
    swpout_order_7 "hugepages-512kB/swpout": Sum,
    /// Writes to swap of 256 to 511 base pages, each in one piece.
    swpout_order_8 "hugepages-1024kB/swpout": Sum,
    /// Writes to swap of a whole folio, in one piece.
    swpout_order_9 "hugepages-2048kB/swpout": Sum,
    /// 2 to 3 base pages that were to leave into one place and found none so large: they were spread.
    swpout_fallback_order_1 "hugepages-8kB/swpout_fallback": Sum,
    /// 4 to 7 base pages that were to leave into one place and found none so large: they were spread.
    swpout_fallback_order_2 "hugepages-16kB/swpout_fallback": Sum,
    /// 8 to 15 base pages that were to leave into one place and found none so large: they were spread.
    swpout_fallback_order_3 "hugepages-32kB/swpout_fallback": Sum,
    /// 16 to 31 base pages that were to leave into one place and found none so large: they were spread.
    swpout_fallback_order_4 "hugepages-64kB/swpout_fallback": Sum,
    /// 32 to 63 base pages that were to leave into one place and found none so large: they were spread.
    swpout_fallback_order_5 "hugepages-128kB/swpout_fallback": Sum,
    /// 64 to 127 base pages that were to leave into one place and found none so large: they were spread.
    swpout_fallback_order_6 "hugepages-256kB/swpout_fallback": Sum,
    /// 128 to 255 base pages that were to leave into one place and found none so large: they were spread.
    swpout_fallback_order_7 "hugepages-512kB/swpout_fallback": Sum,
    /// 256 to 511 base pages that were to leave into one place and found none so large: they were spread.
    swpout_fallback_order_8 "hugepages-1024kB/swpout_fallback": Sum,
    /// A whole folio that was to leave into one place and found none so large: they were spread.
    swpout_fallback_order_9 "hugepages-2048kB/swpout_fallback": Sum,
}

impl Stats {
    /// A read of so many pages, counted by order as the kernel counts folios.
    pub fn count_swpin(&self, pages: usize) {
        let orders = [
            &self.swpin_order_0,
            &self.swpin_order_1,
            &self.swpin_order_2,
            &self.swpin_order_3,
            &self.swpin_order_4,
            &self.swpin_order_5,
            &self.swpin_order_6,
            &self.swpin_order_7,
            &self.swpin_order_8,
            &self.swpin_order_9,
        ];
        count_order(&orders, pages);
    }

    /// A write of so many pages in one piece.
    pub fn count_swpout(&self, pages: usize) {
        let orders = [
            &self.swpout_order_0,
            &self.swpout_order_1,
            &self.swpout_order_2,
            &self.swpout_order_3,
            &self.swpout_order_4,
            &self.swpout_order_5,
            &self.swpout_order_6,
            &self.swpout_order_7,
            &self.swpout_order_8,
            &self.swpout_order_9,
        ];
        count_order(&orders, pages);
    }

    /// So many pages, two at least, were to leave into one place and left into several.
    pub fn count_swpout_fallback(&self, pages: usize) {
        let orders = [
            &self.swpout_fallback_order_1,
            &self.swpout_fallback_order_2,
            &self.swpout_fallback_order_3,
            &self.swpout_fallback_order_4,
            &self.swpout_fallback_order_5,
            &self.swpout_fallback_order_6,
            &self.swpout_fallback_order_7,
            &self.swpout_fallback_order_8,
            &self.swpout_fallback_order_9,
        ];
        count_order(&orders, pages / 2);
    }
}

fn count_order(orders: &[&Counter], pages: usize) {
    let order = pages.max(1).ilog2() as usize;
    if let Some(counter) = orders.get(order) {
        counter.inc();
    }
}

const SUB: usize = 8;
const BUCKETS: usize = 40 * SUB;

/// A histogram with eight buckets to each doubling: quantiles are right within 13 %.
#[repr(C)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    max: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: [const { Counter(AtomicU64::new(0)) }; BUCKETS],
            max: Counter::default(),
        }
    }
}

impl Histogram {
    #[inline]
    fn bucket(v: u64) -> usize {
        if v < SUB as u64 {
            return v as usize;
        }
        let exp = 63 - v.leading_zeros() as usize;
        let sub = (v >> (exp - 3)) as usize & (SUB - 1);
        ((exp - 2) * SUB + sub).min(BUCKETS - 1)
    }

    fn lower_bound(b: usize) -> u64 {
        if b < SUB {
            return b as u64;
        }
        let exp = b / SUB + 2;
        (SUB + b % SUB) as u64 * (1 << (exp - 3))
    }

    #[inline]
    pub fn record(&self, v: u64) {
        self.buckets[Self::bucket(v)].inc();
        self.max.raise_to(v);
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Counter::get).sum()
    }

    pub fn max(&self) -> u64 {
        self.max.get()
    }

    /// The value below which the share `q` of all records lies.
    pub fn quantile(&self, q: f64) -> u64 {
        let want = (self.count() as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (i, b) in self.buckets.iter().enumerate() {
            seen += b.get();
            if seen >= want && seen > 0 {
                return Self::lower_bound(i + 1).min(self.max());
            }
        }
        self.max()
    }

    /// The sum of the `n` largest records, each within 13 %.
    pub fn sum_of_largest(&self, n: u64) -> u64 {
        let mut left = n;
        let mut sum = 0u64;
        for (i, b) in self.buckets.iter().enumerate().rev() {
            let here = b.get().min(left);
            left -= here;
            let middle = Self::lower_bound(i).midpoint(Self::lower_bound(i + 1));
            sum = sum.saturating_add(here.saturating_mul(middle.min(self.max())));
        }
        sum
    }

    fn clear(&self) {
        for b in &self.buckets {
            b.set(0);
        }
        self.max.set(0);
    }

    fn merge(&self, o: &Histogram) {
        for (a, b) in self.buckets.iter().zip(&o.buckets) {
            a.add(b.get());
        }
        self.max.raise_to(o.max());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near() {
        let h = Histogram::default();
        for v in 1..=10_000u64 {
            h.record(v);
        }
        for (q, want) in [(0.5, 5_000.0), (0.99, 9_900.0)] {
            let got = h.quantile(q) as f64;
            assert!((got / want - 1.0).abs() < 0.13, "{q}: {got}");
        }
        assert_eq!(h.max(), 10_000);
        assert_eq!(h.count(), 10_000);
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }

    #[test]
    fn sums_of_the_largest_are_near() {
        let h = Histogram::default();
        for _ in 0..1000 {
            h.record(100);
            h.record(80_000);
        }
        for (n, want) in [
            (1000, 80e6),
            (2000, 80.1e6),
            (u64::MAX, 80.1e6),
            (10, 0.8e6),
        ] {
            let got = h.sum_of_largest(n) as f64;
            assert!((got / want - 1.0).abs() < 0.13, "{n}: {got}");
        }
        assert_eq!(h.sum_of_largest(0), 0);
        assert_eq!(Histogram::default().sum_of_largest(9), 0);
    }

    #[test]
    fn pieces_are_counted_by_order() {
        let s = Stats::default();
        for pages in [1, 2, 3, 64, 511, 512] {
            s.count_swpout(pages);
            if pages > 1 {
                s.count_swpout_fallback(pages);
            }
        }
        let of = |what: &str| -> Vec<(&str, u64)> {
            let all = s.each().filter(|(name, n)| *n > 0 && name.ends_with(what));
            all.map(|(name, n)| (name.split_once('/').unwrap().0, n))
                .collect()
        };
        let large = [
            ("hugepages-8kB", 2),
            ("hugepages-256kB", 1),
            ("hugepages-1024kB", 1),
            ("hugepages-2048kB", 1),
        ];
        assert_eq!(of("/swpout_fallback"), large);
        assert_eq!(of("/swpout")[0], ("hugepages-4kB", 1));
        assert_eq!(of("/swpout")[1..], large);
    }

    #[test]
    #[inline]
    fn buckets_are_ordered() {
        let mut last = 0;
        for v in (0..100_000u64).step_by(7) {
            let b = Histogram::bucket(v);
            assert!(b >= last && Histogram::lower_bound(b) <= v);
            last = b;
        }
    }
}
