//! fork, in the place of the C library's `_Fork`: the clone itself and what must be around it.
//! The C library's fork (handlers, locks of streams and malloc) calls it and goes on unchanged.

use crate::entry::{self, Frame};
use hugeswap::engine::Engine;
use hugeswap::sys::syscall::{check, raw};
use hugeswap::sys::Errno;

/// Where glibc keeps the thread's number, from the thread pointer. Checked at start.
const TID: usize = 0x2d0;

fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: reads the word that x86-64 TLS keeps at the thread pointer: its own address.
    unsafe { core::arch::asm!("mov {}, fs:0x10", out(reg) tp, options(nostack, readonly)) };
    tp
}

/// The head of this thread's robust mutexes, as the kernel knows it.
fn robust_head() -> Option<(usize, usize)> {
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
    // SAFETY: inside the thread structure, which is larger than this.
    let tid = unsafe { ((thread_pointer() + TID) as *const u32).read() };
    tid == hugeswap::sys::thread::gettid()
        && robust_head().is_some_and(|(h, _)| h == thread_pointer() + TID + 16)
}

pub fn fork(e: &'static Engine, f: &mut Frame) -> Result<usize, Errno> {
    let tid = thread_pointer() + TID;
    let flags = libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
    let pid = around(e, f, libc::SYS_clone, [flags as usize, 0, 0, tid, 0, 0])?;
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
    around(e, f, nr, f.args)
}

/// The call that makes the child, and what must be before and after it on both sides.
fn around(e: &'static Engine, f: &mut Frame, nr: i64, args: [usize; 6]) -> Result<usize, Errno> {
    e.fork_make_room();
    entry::be_alone();
    let Some(token) = e.fork_prepare(f.bell()) else {
        entry::let_others_in();
        return Err(Errno::EAGAIN);
    };
    // SAFETY: a fork: the child goes on here with a copy of this stack.
    let pid = check(unsafe { raw(nr, args) });
    if pid == Ok(0) {
        entry::only_me(f);
        e.fork_child(token, &registered, &wiped());
        crate::lock::in_child(e, f.bell());
    } else {
        e.fork_parent(token, pid.ok().map(|p| p as u32));
    }
    entry::let_others_in();
    pid
}

/// What of the managed regions the child has: all of it but what was MADV_DONTFORK, and what the
/// program put other mappings over.
fn registered() -> Result<Vec<(usize, usize)>, Errno> {
    let mappings = crate::maps::read()?;
    let s = crate::state::state().lock();
    let mut out = crate::window::Extents::new();
    for m in mappings {
        if m.private && m.anonymous {
            for (from, to) in s.regions.overlaps(m.start, m.end) {
                out.insert(from, to);
            }
        }
    }
    for (from, to) in s.foreign.iter() {
        out.remove(from, to);
    }
    Ok(out.iter().collect())
}

/// What the child must find empty; the kernel wipes what is resident, and not what is in swap.
fn wiped() -> Vec<(usize, usize)> {
    crate::state::state().lock().wiped.iter().collect()
}

/// The kernel forgets the list at fork; it lies where it lay.
fn robust_head_in_child() -> Option<(usize, usize)> {
    Some((thread_pointer() + TID + 16, 24))
}
