//! fork, in the place of the C library's `_Fork`: the clone itself and what must be around it.
//! The C library's fork (handlers, locks of streams and malloc) calls it and goes on unchanged.

use crate::arch::TID;
use crate::clone_args::CloneArgs;
use crate::frame::{Frame, RESTART};
use crate::resident::keep_kernels_words;
use crate::state::state;
use crate::stretch::reserve;
use crate::window::Extents;
use crate::{alone, c_thread, deputy, gate, map, maps, rights, sandbox};
use hugeswap::control::link;
use hugeswap::engine::{Engine, Stretch};
use hugeswap::sync::Mutex;
use hugeswap::sys::arch::thread_pointer;
use hugeswap::sys::limits::RoomForThreads;
use hugeswap::sys::maps::MapsFile;
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::{fd, thread, Errno};

pub fn fork(e: &'static Engine, f: &mut Frame) -> Result<usize, Errno> {
    keep_kernels_words(e);
    let mut call = CloneArgs::fork(thread_pointer() + TID);
    let pid = around(e, f, &mut call)?;
    if pid == 0 {
        if let Some((head, len)) = c_thread::robust_head_in_child() {
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

/// How often a fork begins again for signals that came meanwhile: not for ever, under a timer that is faster than a fork.
const AGAIN_AT_MOST: usize = 3;

/// Whether the program is to have a signal first. The kernel lets signals in before it makes a child (`copy_process`): who is
/// ended by one leaves no child behind, and what a handler does the child has seen.
fn must_wait_for_signals(f: &Frame) -> bool {
    f.begun_again < AGAIN_AT_MOST
        && sandbox::is_allowed(libc::SYS_rt_sigpending, [sandbox::AT, 8, 0, 0, 0, 0])
        && thread::pending_signals() & !f.blocked != 0
}

/// The call that makes the child, and what must be before and after it on both sides.
fn around(e: &'static Engine, f: &mut Frame, call: &mut CloneArgs) -> Result<usize, Errno> {
    const RESTARTED: Errno = Errno(-RESTART as i32);
    e.fork_make_room();
    if must_wait_for_signals(f) {
        e.fork_given_up();
        return Err(RESTARTED);
    }
    gate::be_alone();
    // In other namespaces a child may not find the supervisor.
    let apart = alone::may_be_apart() || call.goes_apart();
    let [door, theirs] = match apart {
        true => link::pair().unwrap_or([-1; 2]),
        false => [-1; 2],
    };
    let token = e.fork_prepare(f.bell(), theirs);
    fd::close(theirs);
    let Some(token) = token else {
        fd::close(door);
        gate::let_others_in();
        return Err(Errno::EAGAIN);
    };
    let shares_files = call.shares_files();
    let (nr, args) = call.args();
    let room = RoomForThreads::make(|| e.threads_of_engine());
    let pid = match must_wait_for_signals(f) {
        true => Err(RESTARTED),
        // SAFETY: a fork: the child goes on here with a copy of this stack. What the kernel reads and
        // writes is on it.
        false => check(unsafe { raw(nr, args) }),
    };
    drop(room);
    if pid == Ok(0) {
        gate::only_me(f.index);
        c_thread::in_child();
        deputy::forget();
        if apart {
            alone::go_apart();
        }
        e.cache.let_copy_shared(sandbox::may_remap());
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
    gate::let_others_in();
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
