//! The library's own heap. The program's is managed, so nothing of ours may live there.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use dlmalloc::{Allocator, Dlmalloc};
use hugeswap::sync::RawLock;
use hugeswap::sys::mem;

struct Pages;

// SAFETY: regions are fresh private mappings of the size that is returned.
unsafe impl Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match mem::map_anon(size) {
            Ok(p) => (p, size, 0),
            Err(_) => (core::ptr::null_mut(), 0, 0),
        }
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        core::ptr::null_mut()
    }
    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }
    fn free(&self, ptr: *mut u8, size: usize) -> bool {
        // SAFETY: the allocator gives back a region that `alloc` made.
        unsafe { mem::unmap_own(ptr as usize, size) };
        true
    }
    fn can_release_part(&self, _: u32) -> bool {
        false
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        hugeswap::mm::PAGE_SIZE
    }
}

struct Heap {
    lock: RawLock,
    heap: UnsafeCell<Dlmalloc<Pages>>,
}

// SAFETY: the heap is only used with the lock held.
unsafe impl Sync for Heap {}

impl Heap {
    fn with<R>(&self, f: impl FnOnce(&mut Dlmalloc<Pages>) -> R) -> R {
        self.lock.lock();
        // SAFETY: the lock is held.
        let r = f(unsafe { &mut *self.heap.get() });
        self.lock.unlock();
        r
    }
}

#[global_allocator]
static HEAP: Heap = Heap {
    lock: RawLock::new(),
    heap: UnsafeCell::new(Dlmalloc::new_with_allocator(Pages)),
};

// SAFETY: dlmalloc's own contract is GlobalAlloc's.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        self.with(|h| unsafe { h.malloc(l.size(), l.align()) })
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        self.with(|h| unsafe { h.calloc(l.size(), l.align()) })
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        // SAFETY: the caller's contract.
        self.with(|h| unsafe { h.free(p, l.size(), l.align()) })
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, n: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        self.with(|h| unsafe { h.realloc(p, l.size(), l.align(), n) })
    }
}
