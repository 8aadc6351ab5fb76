//! After a queue is made, using it allocates nothing: it runs inside fault handlers that must not
//! touch the program's heap.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use hugeswap_device::faulty::ShortTransfers;
use hugeswap_device::file::{FileDevice, Options, Via};
use hugeswap_device::ram::RamDevice;
use hugeswap_device::{Device, Op, Request, Until};
use support::{Memory, MIB, PAGE};

struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    if ON.load(Ordering::Relaxed) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, addr: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(addr, layout) }
    }
    unsafe fn realloc(&self, addr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract.
        unsafe { System.realloc(addr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn exercise(device: &dyn Device) {
    const DEPTH: u64 = 8;
    let mut queue = device.queue(DEPTH as u32).expect("queue");
    let memory = Memory::new(DEPTH as usize * 512 * PAGE);
    let errors = Cell::new(0);
    CALLS.store(0, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    let grown = device.grow(64 * MIB);
    for round in 0..32 {
        for i in 0..DEPTH {
            let req = Request {
                op: if round % 2 == 0 { Op::Write } else { Op::Read },
                // The last one is past the end.
                offset: if i == DEPTH - 1 { 1 << 40 } else { i << 21 },
                addr: memory.addr().wrapping_add(i as usize * 512 * PAGE),
                len: 512 * PAGE,
                tag: i,
                target: (i as usize) << 18,
            };
            // SAFETY: the memory outlives the loop below.
            let taken = unsafe { queue.submit(req) };
            errors.set(errors.get() + u64::from(taken.is_err()));
        }
        queue.kick();
        while queue.in_flight() > 0 {
            queue.reap(Until::OneEnded, &mut |completion| {
                errors.set(errors.get() + u64::from(completion.result.is_err()));
            });
        }
        let discarded = device.discard(0, 2 << 21);
        errors.set(errors.get() + u64::from(discarded.is_err()));
    }
    ON.store(false, Ordering::Relaxed);
    assert_eq!(
        CALLS.load(Ordering::Relaxed),
        0,
        "allocated: {}",
        device.describe()
    );
    assert_eq!(grown, Ok(()));
    assert_eq!(errors.get(), 32, "the request past the end, each round");
}

// One test only: others would allocate meanwhile.
#[test]
fn queues_allocate_nothing_in_use() {
    let file = |via, piece, short: bool| {
        let mut options = Options::new(128 * MIB);
        (options.via, options.piece) = (via, piece);
        if short {
            options.inject = Some(Arc::new(ShortTransfers::new(5, 3)));
        }
        FileDevice::open(Path::new("/var/tmp"), &options).expect("a swap file")
    };
    for short in [false, true] {
        exercise(&file(Via::Uring, 2 << 20, short));
        exercise(&file(Via::Uring, 512 << 10, short));
        exercise(&file(Via::Sync, 2 << 20, short));
    }
    exercise(&RamDevice::new(128 * MIB).expect("memory"));
}
