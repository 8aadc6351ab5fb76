//! fork, in the place of the C library's `_Fork`: the clone itself and what must be around it.
//! The C library's fork (handlers, locks of streams and malloc) calls it and goes on unchanged.

use crate::clone_args::CloneArgs;
use crate::entry::{self, Frame};
use crate::state::state;
use crate::stretch::reserve;
use crate::window::Extents;
use crate::{alone, map, maps, rights, sandbox};
use core::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use hugeswap::control::link;
use hugeswap::engine::{Engine, Stretch};
use hugeswap::sync::Mutex;
use hugeswap::sys::arch::thread_pointer;
use hugeswap::sys::limits::RoomForThreads;
use hugeswap::sys::maps::MapsFile;
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::{fd, Errno};

/// Where glibc keeps the thread's number, from the thread pointer. Checked at start.
const TID: usize = 0x2d0;

/// This thread's number, as the C library knows it.
pub fn tid() -> u32 {
    // SAFETY: inside the thread structure, which is larger than this (`is_known`).
    unsafe { ((thread_pointer() + TID) as *const u32).read() }
}

/// The head of this thread's robust mutexes, as the kernel knows it.
pub fn robust_head() -> Option<(usize, usize)> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: the variables outlive the call.
    unsafe {
        hugeswap::sys::syscall(
            libc::SYS_get_robust_list,
            [
                0,
                &mut head as *mut usize as usize,
                &mut len as *mut usize as usize,
            ],
        )
    }
    .ok()?;
    (head != 0).then_some((head, len))
}

/// Whether this C library keeps its thread structure as we know it.
pub fn is_known() -> bool {
    tid() == hugeswap::sys::thread::gettid()
        && robust_head().is_some_and(|(h, _)| h == thread_pointer() + TID + 16)
}

/// Where glibc has the rseq area, from the thread pointer.
static RSEQ: AtomicIsize = AtomicIsize::new(0);

/// In the constructor.
pub fn find_rseq() {
    // SAFETY: a plain look-up of a constant of the C library's (2.35 and later).
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) as *const isize;
        if let Some(offset) = offset.as_ref() {
            RSEQ.store(*offset, Relaxed);
        }
    }
}

/// What of this thread the kernel reads and writes: its number, the head of its robust mutexes, its rseq
/// area. It stays resident.
pub fn keep_kernels_words(e: &Engine) {
    let tp = thread_pointer();
    let rseq = tp.wrapping_add_signed(RSEQ.load(Relaxed));
    for (at, len) in [(tp, crate::resident::THREAD), (rseq, 32)] {
        let _ = crate::lock::pin(e, at, len);
    }
}

pub fn fork(e: &'static Engine, f: &mut Frame) -> Result<usize, Errno> {
    keep_kernels_words(e);
    let mut call = CloneArgs::fork(thread_pointer() + TID);
    let pid = around(e, f, &mut call)?;
    if pid == 0 {
        if let Some((head, len)) = robust_head_in_child() {
            // The child holds none of the parent's robust mutexes.
            // SAFETY: the thread's own list head, and the word before it, as glibc sets them.
            unsafe {
                (head as *mut usize).write(head);
                ((head - 8) as *mut usize).write(head);
                let _ = hugeswap::sys::syscall(libc::SYS_set_robust_list, [head, len]);
            }
        }
    }
    Ok(pid)
}

/// A new process that the program makes by the system call itself, with a copy of its memory.
pub fn clone(e: &'static Engine, f: &mut Frame, nr: i64) -> Result<usize, Errno> {
    let mut call = match nr {
        libc::SYS_clone3 => CloneArgs::clone3(f.args),
        _ => CloneArgs::clone(f.args),
    }?;
    keep_kernels_words(e);
    around(e, f, &mut call)
}

/// The call that makes the child, and what must be before and after it on both sides.
fn around(e: &'static Engine, f: &mut Frame, call: &mut CloneArgs) -> Result<usize, Errno> {
    e.fork_make_room();
    entry::be_alone();
    // In other name spaces a child may not find the supervisor.
    let apart = alone::may_be_apart() || call.goes_apart();
    let [door, theirs] = match apart {
        true => link::pair().unwrap_or([-1; 2]),
        false => [-1; 2],
    };
    let token = e.fork_prepare(f.bell(), theirs);
    fd::close(theirs);
    let Some(token) = token else {
        fd::close(door);
        entry::let_others_in();
        return Err(Errno::EAGAIN);
    };
    let shares_files = call.shares_files();
    let (nr, args) = call.args();
    let room = RoomForThreads::make(|| e.threads_of_engine());
    // SAFETY: a fork: the child goes on here with a copy of this stack. What the kernel reads and
    // writes is on it.
    let pid = check(unsafe { raw(nr, args) });
    drop(room);
    if pid == Ok(0) {
        entry::only_me(f);
        if apart {
            alone::go_apart();
        }
        e.fork_child(token, &registered, &wiped(), door);
        rights::note();
        sandbox::engine_starts();
        fd::close(door);
        crate::lock::in_child(e, f.bell());
        let not_there = core::mem::take(&mut *NOT_THERE.lock());
        for (from, to) in not_there {
            let _own = reserve(from, to);
            let _ = map::unmap(e, f.bell(), from, to);
        }
    } else {
        e.fork_parent(token, pid.ok().map(|p| p as u32));
        // One table: the child closes it when it needs it no more.
        if pid.is_err() || !shares_files {
            fd::close(door);
        }
    }
    entry::let_others_in();
    match pid {
        Ok(0) => call.hand_on_in_child(e),
        Ok(pid) => call.hand_on_in_parent(pid),
        Err(_) => {}
    }
    pid
}

/// In a child: what its parent has of what we know, and it has not.
static NOT_THERE: Mutex<Vec<Stretch>> = Mutex::new(Vec::new());

/// What of the managed regions the child has: all of it but what the program put other mappings over, and what
/// was MADV_DONTFORK, which is not there.
fn registered(maps: MapsFile) -> Result<Vec<Stretch>, Errno> {
    let mappings = maps::of(maps)?;
    let s = state().lock();
    let mut out = Extents::new();
    for m in &mappings {
        if m.private && m.anonymous {
            for (from, to) in s.regions.overlaps(m.start, m.end) {
                out.insert(from, to);
            }
        }
    }
    for (from, to) in s.foreign.iter() {
        out.remove(from, to);
    }
    let known = s.regions.iter().chain(s.foreign.iter());
    *NOT_THERE.lock() = maps::missing(known, &mappings);
    Ok(out.iter().collect())
}

/// What the child must find empty; the kernel wipes what is resident, and not what is in swap.
fn wiped() -> Vec<Stretch> {
    state().lock().wiped.iter().collect()
}

/// The kernel forgets the list at fork; it lies where it lay.
fn robust_head_in_child() -> Option<(usize, usize)> {
    Some((thread_pointer() + TID + 16, 24))
}
