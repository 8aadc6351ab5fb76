//! Several threads on the same memory, and stacks in it.
#![allow(unsafe_code)]

use super::maps;
use super::shadow::{Part, CELLS, LOCKED, PAGE, RW};
use super::sys::{fail, fail_with, must};
use super::world::World;
use crate::plan::Rng;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// Each thread writes every so many-th page of the part, while others do and reclaim works.
pub fn write_together(w: &mut World, r: &mut Rng) {
    let Some(p) = w.open_part(r, 1024) else {
        return;
    };
    let threads = 2 + r.below(3);
    for i in p.from..p.from + p.count {
        w.draw(r, p.region, i, CELLS);
    }
    let at = w.shadow().addr(p);
    let pages: Vec<[u32; CELLS]> = (p.from..p.from + p.count)
        .map(|i| w.shadow().page_at(p.region, i).cell)
        .collect();
    std::thread::scope(|s| {
        for t in 0..threads {
            let pages = &pages;
            s.spawn(move || {
                let mut want = [0; PAGE / 8];
                for round in 0..2 {
                    for i in (t..pages.len()).step_by(threads) {
                        super::shadow::render(&pages[i], &mut want);
                        let here = (at + i * PAGE) as *mut [u64; PAGE / 8];
                        // SAFETY: mapped and writable, this page is this thread's.
                        unsafe {
                            if round == 1 && *here != want {
                                fail_with(format_args!("page {i} of a thread is wrong"));
                            }
                            *here = want;
                        }
                    }
                }
            });
        }
        for _ in 0..4 {
            maps::push_out(w, r);
        }
    });
    w.check(p);
}

/// A fork while another thread writes: the child sees one moment of each page.
pub fn fork_meanwhile(w: &mut World, r: &mut Rng) {
    let Some(p) = w.open_part(r, 32) else { return };
    if !w.shadow().all(p, |g| g.flags == 0) {
        return;
    }
    let at = w.shadow().addr(p);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let word = |i: usize, k: usize| (at + i * PAGE + k * 8) as *const AtomicU64;
    let mut last = 0;
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut v = 0;
            while !stop.load(Relaxed) || v == 0 {
                v += 1;
                for i in 0..p.count {
                    for k in 0..PAGE / 8 {
                        // SAFETY: mapped and writable; everybody uses atomics.
                        unsafe { (*word(i, k)).store(v, Relaxed) };
                    }
                }
                rounds.store(v, Relaxed);
            }
        });
        while rounds.load(Relaxed) < 2 {
            std::hint::spin_loop();
        }
        // SAFETY: the child has this thread alone, and ends without returning.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            for i in 0..p.count {
                // SAFETY: mapped; nobody else is there.
                let load = |k| unsafe { (*word(i, k)).load(Relaxed) };
                must_be_of_one_moment(i, load);
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        stop.store(true, Relaxed);
        let mut status = 0;
        // SAFETY: the variable outlives the call.
        let waited = pid > 0 && unsafe { libc::waitpid(pid, &mut status, 0) } == pid;
        let killed = w.disturbed && status == libc::SIGKILL;
        if waited && status != 0 && !killed {
            // It said what it found.
            // SAFETY: ends the process.
            unsafe { libc::_exit(super::sys::FOUND) };
        }
    });
    last += rounds.load(Relaxed);
    for i in 0..p.count {
        for k in 0..PAGE / 8 {
            // SAFETY: mapped; the other thread is gone.
            let v = unsafe { (*word(i, k)).load(Relaxed) };
            if v != last {
                fail_with(format_args!("page {i} of a thread has {v}, not {last}"));
            }
        }
    }
    w.write(r, p);
}

/// The writer goes through a page from its beginning, so that it has at most two values, the larger one first.
fn must_be_of_one_moment(page: usize, load: impl Fn(usize) -> u64) {
    let words: Vec<u64> = (0..PAGE / 8).map(load).collect();
    let (first, end) = (words[0], words[PAGE / 8 - 1]);
    let falls = words.windows(2).filter(|p| p[0] != p[1]).count();
    if first < 2 || first - end > 1 || falls as u64 != first - end {
        fail_with(format_args!(
            "page {page} in the child is of several moments: {first} to {end}"
        ));
    }
}

static RUNS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_user_signal(_: i32) {
    // Something on the stack.
    let a = core::hint::black_box([7u8; 2048]);
    RUNS.fetch_add(u32::from(a[2047] == 7), Relaxed);
}

/// A signal handler, and a thread, on a stack in memory that may be swapped out.
pub fn signal_stack(w: &mut World, r: &mut Rng) {
    const PAGES: usize = 64;
    let Some(p) = w.open_part(r, PAGES) else {
        return;
    };
    if p.count < PAGES || !w.shadow().all(p, |g| g.flags & LOCKED == 0) {
        return;
    }
    let at = w.shadow().addr(p);
    let before = RUNS.load(Relaxed);
    // SAFETY: the stack is writable memory whose contents are not needed; it is taken back before
    // anything else happens to it.
    unsafe {
        let mut a: libc::sigaction = core::mem::zeroed();
        a.sa_sigaction = on_user_signal as *const () as usize;
        a.sa_flags = libc::SA_ONSTACK;
        must(
            libc::sigaction(libc::SIGUSR1, &a, core::ptr::null_mut()),
            "sigaction",
        );
        let mut s: libc::stack_t = core::mem::zeroed();
        s.ss_sp = at as *mut _;
        s.ss_size = PAGES * PAGE;
        must(libc::sigaltstack(&s, core::ptr::null_mut()), "sigaltstack");
        for _ in 0..3 {
            const MADV_PAGEOUT: i32 = 21;
            libc::madvise(at as *mut _, PAGES * PAGE, MADV_PAGEOUT);
            libc::raise(libc::SIGUSR1);
        }
        s.ss_flags = libc::SS_DISABLE;
        must(libc::sigaltstack(&s, core::ptr::null_mut()), "sigaltstack");
        on_own_stack(at, PAGES * PAGE);
    }
    if RUNS.load(Relaxed) != before + 3 {
        fail("signal handlers did not run");
    }
    w.write(r, p);
}

/// A thread that uses the memory as its stack.
///
/// # Safety
/// The memory must be free to be used.
unsafe fn on_own_stack(at: usize, len: usize) {
    extern "C" fn body(_: *mut libc::c_void) -> *mut libc::c_void {
        let mut sum = 0u64;
        for i in 0..4u64 {
            let a = core::hint::black_box([i as u8; 32 << 10]);
            sum += u64::from(a[a.len() - 1]);
            std::thread::yield_now();
        }
        sum as *mut _
    }
    // SAFETY: the caller's memory is the stack until the thread was joined.
    unsafe {
        let mut attr: libc::pthread_attr_t = core::mem::zeroed();
        must(libc::pthread_attr_init(&mut attr), "pthread_attr_init");
        must(
            libc::pthread_attr_setstack(&mut attr, at as *mut _, len),
            "pthread_attr_setstack",
        );
        let mut t = 0;
        must(
            libc::pthread_create(&mut t, &attr, body, core::ptr::null_mut()),
            "pthread_create",
        );
        let mut out = core::ptr::null_mut();
        must(libc::pthread_join(t, &mut out), "pthread_join");
        libc::pthread_attr_destroy(&mut attr);
        if out as usize != 6 {
            fail("a thread on such a stack went wrong");
        }
    }
}

/// A thread sleeps on a word that is swapped out meanwhile.
pub fn futex(w: &mut World, r: &mut Rng) {
    let Some(p) = w.open_part(r, 1) else { return };
    if !w.shadow().all(p, |g| g.flags & LOCKED == 0 && g.prot == RW) {
        return;
    }
    let at = w.shadow().addr(p) + r.below(PAGE / 4) * 4;
    let flag = if r.one_in(2) {
        libc::FUTEX_PRIVATE_FLAG
    } else {
        0
    };
    // SAFETY: the page is mapped and writable; everybody uses atomics until it is written anew.
    let word = unsafe { &*(at as *const AtomicU32) };
    word.store(1, SeqCst);
    let call = |op: i32, value: u32| {
        // SAFETY: the word outlives the call; no time limit.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                at,
                op | flag,
                value,
                core::ptr::null::<libc::timespec>(),
            )
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            while word.load(SeqCst) == 1 {
                let r = call(libc::FUTEX_WAIT, 1);
                let e = super::sys::errno();
                if r != 0 && e != libc::EAGAIN && e != libc::EINTR {
                    fail_with(format_args!("FUTEX_WAIT: errno {e}"));
                }
            }
        });
        maps::push_out(w, r);
        const MADV_PAGEOUT: i32 = 21;
        // SAFETY: contents do not change.
        unsafe { libc::madvise((at & !(PAGE - 1)) as *mut _, PAGE, MADV_PAGEOUT) };
        std::thread::yield_now();
        word.store(2, SeqCst);
        if call(libc::FUTEX_WAKE, i32::MAX as u32) < 0 {
            fail_with(format_args!("FUTEX_WAKE: errno {}", super::sys::errno()));
        }
    });
    let p = Part { count: 1, ..p };
    w.write(r, p);
}
