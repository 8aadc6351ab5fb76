//! A thread of ours that does for the program's threads what a filter forbids them.
//!
//! It runs whole hooks. A program's thread that is under a filter may be able to make no system call at
//! all, so it asks without any: it writes its request and reads a page that is registered with a
//! userfaultfd of the deputy's and missing. The deputy fills the page when it is done. Each request
//! slot has two pages, used in turn: while one is waited for, the other is dropped.

use crate::entry;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU8, AtomicUsize, Ordering::*};
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::futex::{self, Scope};
use hugeswap::sys::thread::{self, Files};
use hugeswap::sys::uffd::{Msg, Uffd};
use hugeswap::sys::{fd, mem, Errno};

/// Requests at a time.
const SLOTS: usize = 64;
/// It looks so often for requests whose page was there, because the program looked at all of its memory.
const LOOK_MS: u64 = 100;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const ASKED: u32 = 2;
const DONE: u32 = 3;

#[repr(C)]
struct Request {
    state: AtomicU32,
    /// How often the slot was used: says which page.
    turn: AtomicU32,
    call: AtomicUsize,
    args: [AtomicUsize; 6],
    result: AtomicI64,
}

struct Deputy {
    requests: &'static [Request],
    pages: usize,
    zeros: usize,
}

/// Not zero: hooks run in the deputy's thread. The entries read it.
pub static DELEGATING: AtomicU8 = AtomicU8::new(0);
static DEPUTY: AtomicPtr<Deputy> = AtomicPtr::new(core::ptr::null_mut());
/// 0 while it starts, then 1, or 2 if it could not.
static STARTED: AtomicU32 = AtomicU32::new(0);

pub fn is_there() -> bool {
    DELEGATING.load(Acquire) != 0
}

impl Deputy {
    fn page(&self, slot: usize, turn: u32) -> usize {
        self.pages + (2 * slot + turn as usize % 2) * PAGE_SIZE
    }

    fn serve(&self, uffd: Uffd, slot: usize) {
        let r = &self.requests[slot];
        if r.state.load(Acquire) != ASKED {
            return;
        }
        let args = core::array::from_fn(|i| r.args[i].load(Relaxed));
        r.result
            .store(entry::on_behalf(r.call.load(Relaxed), args), Relaxed);
        let turn = r.turn.load(Relaxed);
        let (page, other) = (self.page(slot, turn), self.page(slot, turn + 1));
        // SAFETY: nobody reads the other page before the next request of this slot.
        let _ = unsafe { mem::madvise(other, PAGE_SIZE, libc::MADV_DONTNEED) };
        r.state.store(DONE, Release);
        // SAFETY: a page of zeros of ours; only a missing page is filled.
        if unsafe { uffd.copy(page, self.zeros as *const u8, PAGE_SIZE) }.is_err() {
            uffd.wake(page, PAGE_SIZE);
        }
    }
}

/// Starts the thread, in a hook, before the filter is there that it must not be under.
pub fn start() -> Result<(), Errno> {
    // SAFETY: all-zero is a valid Request.
    let requests = unsafe { mem::map_table(SLOTS) }?;
    let deputy = Box::leak(Box::new(Deputy {
        requests,
        pages: mem::map_anon(2 * SLOTS * PAGE_SIZE)? as usize,
        zeros: mem::map_anon(PAGE_SIZE)? as usize,
    }));
    if DEPUTY
        .compare_exchange(core::ptr::null_mut(), deputy, AcqRel, Acquire)
        .is_ok()
    {
        STARTED.store(0, Release);
        // SAFETY: the entry only uses what engine threads may; the deputy is never freed.
        let spawned =
            unsafe { thread::spawn(main, deputy as *const Deputy as *mut u8, Files::Own) };
        if let Err(e) = spawned {
            DEPUTY.store(core::ptr::null_mut(), Release);
            return Err(e);
        }
    }
    while STARTED.load(Acquire) == 0 {
        futex::wait(&STARTED, 0, Some(100), Scope::Process);
    }
    if STARTED.load(Acquire) == 1 {
        DELEGATING.store(1, Release);
    }
    Ok(())
}

/// In a forked child, which has no such thread. One that it started would be under the filter.
pub fn forget() {
    DELEGATING.store(0, Release);
    DEPUTY.store(core::ptr::null_mut(), Release);
}

extern "C" fn main(arg: *mut u8) {
    // SAFETY: never freed.
    let deputy = unsafe { &*(arg as *const Deputy) };
    fd::close_all_but(&[]);
    if let Some(e) = hugeswap::engine::get() {
        e.note_deputy(thread::gettid());
    }
    let started = |how: u32| {
        STARTED.store(how, Release);
        futex::wake(&STARTED, u32::MAX, Scope::Process);
    };
    // The pages are read by the program itself, so the right to serve system calls is not needed.
    let uffd = match Uffd::open(0, true) {
        Ok((u, _))
            if u.register_missing(deputy.pages, 2 * SLOTS * PAGE_SIZE)
                .is_ok() =>
        {
            u
        }
        _ => return started(2),
    };
    thread::refuse_filters();
    started(1);
    let mut messages = [Msg::default(); 16];
    loop {
        uffd.wait(LOOK_MS);
        let _ = uffd.read(&mut messages);
        for slot in 0..SLOTS {
            deputy.serve(uffd, slot);
        }
    }
}

/// Has the deputy run a hook; the result is as the kernel's. No system call is made here, and no lock
/// held: a signal may come in between, and its handler ask too.
pub fn ask(call: usize, args: [usize; 6]) -> Option<i64> {
    // SAFETY: null, or never freed.
    let deputy = unsafe { DEPUTY.load(Acquire).as_ref() }?;
    let slot = loop {
        let take = |r: &Request| {
            r.state
                .compare_exchange(FREE, TAKEN, AcqRel, Relaxed)
                .is_ok()
        };
        if let Some(slot) = deputy.requests.iter().position(take) {
            break slot;
        }
        core::hint::spin_loop();
    };
    let r = &deputy.requests[slot];
    let turn = r.turn.fetch_add(1, Relaxed).wrapping_add(1);
    r.call.store(call, Relaxed);
    for (to, a) in r.args.iter().zip(args) {
        to.store(a, Relaxed);
    }
    r.state.store(ASKED, Release);
    let page = deputy.page(slot, turn) as *const u8;
    while r.state.load(Acquire) != DONE {
        // SAFETY: a page of ours; reading it faults, which is the point.
        unsafe { page.read_volatile() };
        core::hint::spin_loop();
    }
    let result = r.result.load(Relaxed);
    r.state.store(FREE, Release);
    Some(result)
}
