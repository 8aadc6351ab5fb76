//! A thread of ours that does for the program's threads what a filter forbids them.
//!
//! It runs whole hooks. A program's thread that is under a filter may be able to make no system call at
//! all, so it asks without any: it writes its request and reads a page that is registered with a
//! userfaultfd of the deputy's and missing. The deputy fills the page when it is done. Each request
//! slot has two pages, used in turn: while one is waited for, the other is dropped.
//!
//! Where the filters leave the signal mask alone, signals are blocked meanwhile, as around any hook.
//! Where they do not, a signal's handler may leave by `siglongjmp` or end the thread, and nobody comes for
//! the answer. So each request has a mark on its thread's stack: when that is gone, so is the thread's
//! interest in it, and the slot is free again.

use crate::c_thread;
use crate::gate::DELEGATING;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*,
};
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::futex::{self, Scope};
use hugeswap::sys::limits::RoomForDescriptor;
use hugeswap::sys::thread::{self, Files};
use hugeswap::sys::uffd::{Msg, Needs, Uffd};
use hugeswap::sys::{fd, mem, task, Errno};

/// Requests at a time.
const SLOTS: usize = 64;
/// It looks so often for requests whose page was there, because the program looked at all of its memory.
const LOOK_MS: u64 = 100;

const FREE: u64 = 0;
const TAKEN: u64 = 1;
const ASKED: u64 = 2;
const DONE: u64 = 3;

#[repr(C)]
struct Request {
    /// The state, and above it how often the slot was used: that says which page, and tells one use from
    /// the next.
    word: AtomicU64,
    call: AtomicUsize,
    args: [AtomicUsize; 6],
    result: AtomicI64,
    /// Who asked, and where on its stack the word stands that this use of the slot began with.
    tid: AtomicU32,
    mark: AtomicUsize,
}

const fn state(word: u64) -> u64 {
    word & 3
}

const fn turn(word: u64) -> u64 {
    word >> 2
}

const fn word(turn: u64, state: u64) -> u64 {
    turn << 2 | state
}

impl Request {
    /// The slot becomes the caller's; the word that says so.
    fn take(&self) -> Option<u64> {
        let w = self.word.load(Acquire);
        let mine = word(turn(w) + 1, TAKEN);
        (state(w) == FREE && self.change(w, mine)).then_some(mine)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.word
            .compare_exchange(from, to, AcqRel, Acquire)
            .is_ok()
    }

    /// Frees the slot if nobody will come for the answer. `mark` reads the word at an address, if there
    /// is one.
    fn reclaim(&self, mark: impl Fn(usize) -> Option<u64>, is_alive: impl Fn(u32) -> bool) {
        let w = self.word.load(Acquire);
        if state(w) != DONE {
            return;
        }
        let began = word(turn(w), TAKEN);
        let waits =
            is_alive(self.tid.load(Relaxed)) && mark(self.mark.load(Relaxed)) == Some(began);
        if !waits {
            // It may have taken the answer meanwhile, and the slot may be in use again: then the word is
            // another.
            self.change(w, word(turn(w), FREE));
        }
    }
}

struct Deputy {
    requests: &'static [Request],
    pages: usize,
    zeros: usize,
    /// Runs the hook for a call.
    run: RunHook,
}

/// A call and its arguments; the result is as the kernel's.
pub type RunHook = fn(usize, [usize; 6]) -> i64;

static DEPUTY: AtomicPtr<Deputy> = AtomicPtr::new(core::ptr::null_mut());
/// 0 while it starts, then 1, or 2 if it could not.
static STARTED: AtomicU32 = AtomicU32::new(0);

pub fn is_there() -> bool {
    DELEGATING.load(Acquire) != 0
}

impl Deputy {
    fn page(&self, slot: usize, turn: u64) -> usize {
        self.pages + (2 * slot + turn as usize % 2) * PAGE_SIZE
    }

    fn serve(&self, uffd: Uffd, slot: usize) {
        let r = &self.requests[slot];
        let w = r.word.load(Acquire);
        if state(w) != ASKED {
            return;
        }
        let args = core::array::from_fn(|i| r.args[i].load(Relaxed));
        r.result
            .store((self.run)(r.call.load(Relaxed), args), Relaxed);
        let turn = turn(w);
        let (page, other) = (self.page(slot, turn), self.page(slot, turn + 1));
        // SAFETY: nobody reads the other page before the next request of this slot.
        let _ = unsafe { mem::madvise(other, PAGE_SIZE, libc::MADV_DONTNEED) };
        r.word.store(word(turn, DONE), Release);
        let filled = uffd.copy(page, self.zeros as *const u8, PAGE_SIZE);
        if filled.is_err() {
            uffd.wake(page, PAGE_SIZE);
        }
    }
}

/// Starts the thread, in a hook, before the filter is there that it must not be under.
pub fn start(run: RunHook) -> Result<(), Errno> {
    // SAFETY: all-zero is a valid Request.
    let requests = unsafe { mem::map_table(SLOTS) }?;
    let deputy = Box::leak(Box::new(Deputy {
        requests,
        pages: mem::map_anon(2 * SLOTS * PAGE_SIZE)? as usize,
        zeros: mem::map_anon(PAGE_SIZE)? as usize,
        run,
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
    // Its table is empty, and it opens two at most.
    let room = RoomForDescriptor::make(1);
    // The pages are read by the program itself, so the right to serve system calls is not needed.
    let uffd = match Uffd::open(0, Needs::UserFaults) {
        Ok((u, _))
            if u.register_missing(deputy.pages, 2 * SLOTS * PAGE_SIZE)
                .is_ok() =>
        {
            u
        }
        _ => return started(2),
    };
    drop(room);
    thread::refuse_filters();
    started(1);
    let mut messages = [Msg::default(); 16];
    let mut looked_ns = thread::now_ns();
    loop {
        uffd.wait(LOOK_MS);
        let _ = uffd.read(&mut messages);
        for slot in 0..SLOTS {
            deputy.serve(uffd, slot);
        }
        if thread::now_ns() - looked_ns >= LOOK_MS * 1_000_000 {
            for r in deputy.requests {
                r.reclaim(read_word, task::is_alive);
            }
            looked_ns = thread::now_ns();
        }
    }
}

fn read_word(at: usize) -> Option<u64> {
    let mut word = 0u64;
    let to = (&raw mut word).cast();
    // SAFETY: memory of ours, as long as said.
    let r = unsafe { mem::copy_from_program(at, to, size_of::<u64>()) };
    r.is_ok().then_some(word)
}

/// Has the deputy run a hook; the result is as the kernel's. No lock is held: a signal may come in
/// between, and its handler ask too.
pub fn ask(call: usize, args: [usize; 6]) -> Option<i64> {
    // SAFETY: null, or never freed.
    let deputy = unsafe { DEPUTY.load(Acquire).as_ref() }?;
    if !MAY_BLOCK.load(Acquire) {
        return Some(deputy.ask(call, args));
    }
    let mask = thread::block_signals();
    let result = deputy.ask(call, args);
    thread::restore_signals(mask);
    Some(result)
}

/// Whether the program's threads may change their signal masks, as far as filters are known.
static MAY_BLOCK: AtomicBool = AtomicBool::new(true);

/// A filter is about to be installed that forbids it.
pub fn leave_signals_alone() {
    MAY_BLOCK.store(false, Release);
}

/// It was not installed.
pub fn may_block_signals() {
    MAY_BLOCK.store(true, Release);
}

impl Deputy {
    /// No system call is made here.
    fn ask(&self, call: usize, args: [usize; 6]) -> i64 {
        let (slot, began) = loop {
            let mut all = self.requests.iter().enumerate();
            if let Some(taken) = all.find_map(|(i, r)| Some((i, r.take()?))) {
                break taken;
            }
            core::hint::spin_loop();
        };
        let r = &self.requests[slot];
        let turn = turn(began);
        let mark = AtomicU64::new(began);
        r.mark.store(&raw const mark as usize, Relaxed);
        r.tid.store(c_thread::tid(), Relaxed);
        r.call.store(call, Relaxed);
        for (to, a) in r.args.iter().zip(args) {
            to.store(a, Relaxed);
        }
        r.word.store(word(turn, ASKED), Release);
        let page = self.page(slot, turn) as *const u8;
        while r.word.load(Acquire) != word(turn, DONE) {
            // SAFETY: a page of ours; reading it faults, which is the point.
            unsafe { page.read_volatile() };
            core::hint::spin_loop();
        }
        let result = r.result.load(Relaxed);
        r.change(word(turn, DONE), word(turn, FREE));
        // The next frame at this place must not be taken for this one.
        mark.store(0, Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_those_who_left_are_free_again() {
        // SAFETY: all-zero is a valid Request.
        let r: Request = unsafe { core::mem::zeroed() };
        let began = r.take().unwrap();
        assert_eq!(r.take(), None);
        r.mark.store(8, Relaxed);
        let kept = |_| Some(began);
        let lost = |_| Some(began + 1);
        r.reclaim(lost, |_| true);
        assert_eq!(r.word.load(Relaxed), began, "it has not been asked yet");
        r.word.store(word(turn(began), DONE), Relaxed);
        r.reclaim(kept, |_| true);
        assert_eq!(r.take(), None, "somebody comes for it");
        r.reclaim(lost, |_| true);
        assert_eq!(turn(r.take().unwrap()), 2);
        r.word.store(word(2, DONE), Relaxed);
        r.reclaim(|_| Some(word(2, TAKEN)), |_| false);
        assert!(r.take().is_some(), "its thread has ended");
    }
}
