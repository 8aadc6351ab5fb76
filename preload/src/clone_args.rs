//! The memory that the kernel reads and writes when a child is made.
//!
//! While the kernel does so the handler stands still, and a fault would never be served; and in the
//! child no fault is, before its engine runs: the page would be zeros but for the word that was
//! written. So the kernel is given memory of ours. What it reads is copied before, what it writes is
//! handed on afterwards: in the parent when the handler goes on, in the child when it has one.

use crate::{arch, lock, sandbox};
use hugeswap::engine::Engine;
use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::{mem, syscall, thread, Errno};

type Result<T> = core::result::Result<T, Errno>;

const PARENT_SETTID: u64 = libc::CLONE_PARENT_SETTID as u64;
const CHILD_SETTID: u64 = libc::CLONE_CHILD_SETTID as u64;
const CHILD_CLEARTID: u64 = libc::CLONE_CHILD_CLEARTID as u64;
const PIDFD: u64 = libc::CLONE_PIDFD as u64;

/// Words of `struct clone_args`, whose first version has eight.
const FLAGS: usize = 0;
const PIDFD_AT: usize = 1;
const CHILD_TID: usize = 2;
const PARENT_TID: usize = 3;
const SET_TID: usize = 8;
const SET_TID_SIZE: usize = 9;
const LEAST: usize = 8 * 8;
/// The kernel takes no more than a page.
const WORDS: usize = PAGE_SIZE / 8;
/// Levels of pid namespaces: MAX_PID_NS_LEVEL.
const LEVELS: usize = 32;

/// A call that makes a child, as the kernel is to see it. It must not be moved once `args` was called.
pub struct CloneArgs {
    nr: i64,
    args: [usize; 6],
    words: [u64; WORDS],
    set_tid: [i32; LEVELS],
    /// What the kernel writes.
    pidfd: i32,
    /// Where the program wants to have it; 0 for nowhere.
    pidfd_at: usize,
    parent_tid_at: usize,
    child_tid_at: usize,
    clear_tid_at: usize,
}

impl CloneArgs {
    const fn new(nr: i64, args: [usize; 6]) -> CloneArgs {
        CloneArgs {
            nr,
            args,
            words: [0; WORDS],
            set_tid: [0; LEVELS],
            pidfd: -1,
            pidfd_at: 0,
            parent_tid_at: 0,
            child_tid_at: 0,
            clear_tid_at: 0,
        }
    }

    /// As the C library's fork, for the thread whose number is at `tid`.
    pub fn fork(tid: usize) -> CloneArgs {
        let mut c = CloneArgs::new(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]);
        c.child_tid_at = tid;
        c.clear_tid_at = tid;
        c
    }

    /// The system call `clone`: flags, stack, parent_tid, and two more.
    pub fn clone(args: [usize; 6]) -> Result<CloneArgs> {
        let mut c = CloneArgs::new(libc::SYS_clone, args);
        let flags = args[0] as u64;
        c.args[0] = c.take_words(flags, args[2], args[2], args[arch::CLONE_CHILD_TID]) as usize;
        c.check()?;
        Ok(c)
    }

    /// The system call `clone3`: the address of a structure, and its size.
    pub fn clone3(args: [usize; 6]) -> Result<CloneArgs> {
        let mut c = CloneArgs::new(libc::SYS_clone3, args);
        let size = args[1];
        if !(LEAST..=PAGE_SIZE).contains(&size) {
            // The kernel refuses it before it looks.
            return Ok(c);
        }
        // SAFETY: memory of ours, at least as long as said.
        unsafe { mem::copy_from_program(args[0], c.words.as_mut_ptr().cast(), size) }?;
        let w = c.words;
        let at = |i: usize| w[i] as usize;
        c.words[FLAGS] = c.take_words(w[FLAGS], at(PIDFD_AT), at(PARENT_TID), at(CHILD_TID));
        let levels = at(SET_TID_SIZE);
        if at(SET_TID) != 0 && (1..=LEVELS).contains(&levels) {
            let to = c.set_tid.as_mut_ptr().cast();
            // SAFETY: memory of ours, at least as long as said.
            unsafe { mem::copy_from_program(at(SET_TID), to, levels * size_of::<i32>()) }?;
        }
        c.check()?;
        Ok(c)
    }

    /// Notes what the flags have the kernel write, and where; returns those that it is to see.
    fn take_words(&mut self, flags: u64, pidfd: usize, parent: usize, child: usize) -> u64 {
        let wanted = |flag: u64, at: usize| if flags & flag != 0 { at } else { 0 };
        self.pidfd_at = wanted(PIDFD, pidfd);
        self.parent_tid_at = wanted(PARENT_SETTID, parent);
        self.child_tid_at = wanted(CHILD_SETTID, child);
        self.clear_tid_at = wanted(CHILD_CLEARTID, child);
        // clone has one place for both, and refuses them together.
        let both = self.nr == libc::SYS_clone && flags & PIDFD != 0;
        let ours = CHILD_SETTID | CHILD_CLEARTID | if both { 0 } else { PARENT_SETTID };
        flags & !ours
    }

    /// Where the descriptor can't be written there is no child. The other words are written where that
    /// can be done, and else not.
    fn check(&self) -> Result<()> {
        if self.pidfd_at != 0 && !can_write(self.pidfd_at) {
            return Err(Errno::EFAULT);
        }
        Ok(())
    }

    fn flags(&self) -> u64 {
        match self.nr {
            libc::SYS_clone => self.args[0] as u64,
            _ => self.words[FLAGS],
        }
    }

    /// Whether the child will be in namespaces from which the supervisor may not be seen.
    pub fn goes_apart(&self) -> bool {
        self.flags() & (libc::CLONE_NEWNET | libc::CLONE_NEWUSER) as u64 != 0
    }

    pub fn shares_files(&self) -> bool {
        self.flags() & libc::CLONE_FILES as u64 != 0
    }

    /// Number and arguments, with pointers to memory of ours.
    pub fn args(&mut self) -> (i64, [usize; 6]) {
        let pidfd = &raw mut self.pidfd as usize;
        let mut args = self.args;
        if self.nr == libc::SYS_clone {
            if self.pidfd_at != 0 {
                args[2] = pidfd;
            }
        } else if (LEAST..=PAGE_SIZE).contains(&args[1]) {
            if self.pidfd_at != 0 {
                self.words[PIDFD_AT] = pidfd as u64;
            }
            if self.words[SET_TID] != 0 && (1..=LEVELS as u64).contains(&self.words[SET_TID_SIZE]) {
                self.words[SET_TID] = self.set_tid.as_ptr() as u64;
            }
            args[0] = self.words.as_ptr() as usize;
        }
        (self.nr, args)
    }

    /// In the parent, whose handler goes on.
    pub fn hand_on_in_parent(&self, pid: usize) {
        write(self.pidfd_at, self.pidfd);
        write(self.parent_tid_at, pid as i32);
    }

    /// In the child, whose engine runs.
    pub fn hand_on_in_child(&self, e: &Engine) {
        write(self.child_tid_at, thread::gettid() as i32);
        if self.clear_tid_at != 0 {
            let _ = lock::pin(e, self.clear_tid_at, size_of::<i32>());
            // SAFETY: no memory is used before the thread ends, and then as the program asked.
            let _ = unsafe { syscall(libc::SYS_set_tid_address, [self.clear_tid_at]) };
        }
    }
}

fn write(at: usize, value: i32) {
    if at != 0 && can_write(at) {
        // SAFETY: the program asked for this word to be written; it was writable just now.
        unsafe { (at as *mut i32).write_unaligned(value) };
    }
}

/// Whether the word can be written, as the kernel would find out; it is resident for the moment.
fn can_write(at: usize) -> bool {
    const MADV_POPULATE_WRITE: usize = 23;
    let populate = |at: usize| {
        let start = at & !(PAGE_SIZE - 1);
        let len = (at + size_of::<i32>()).next_multiple_of(PAGE_SIZE) - start;
        // SAFETY: contents do not change; where there is nothing to fill it fails.
        unsafe { syscall(libc::SYS_madvise, [start, len, MADV_POPULATE_WRITE]) }
    };
    if at > usize::MAX - 2 * PAGE_SIZE {
        return false;
    }
    if !sandbox::is_allowed(libc::SYS_madvise, [at, 4, MADV_POPULATE_WRITE, 0, 0, 0]) {
        return true;
    }
    let mut ours = 0i32;
    match populate(at) {
        // It may not be written, or the kernel does not know the advice (before Linux 5.14).
        Err(Errno::EINVAL) => populate(&raw mut ours as usize).is_err(),
        r => r.is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_sees_no_memory_of_the_program() {
        let (mut pidfd, mut parent, child) = (0i32, 0i32, 0i32);
        let at = |p: *const i32| p as usize;
        let flags = PIDFD | PARENT_SETTID | CHILD_SETTID | CHILD_CLEARTID;
        let ids = [7i32, 8];
        let theirs = [
            flags,
            at(&pidfd) as u64,
            at(&child) as u64,
            at(&parent) as u64,
            libc::SIGCHLD as u64,
            0,
            0,
            0,
            ids.as_ptr() as u64,
            2,
        ];
        let given = [theirs.as_ptr() as usize, size_of_val(&theirs), 0, 0, 0, 0];
        let mut c = CloneArgs::clone3(given).unwrap();
        let (nr, args) = c.args();
        assert_eq!((nr, args[1]), (libc::SYS_clone3, size_of_val(&theirs)));
        let ours =
            &c as *const CloneArgs as usize..&c as *const CloneArgs as usize + size_of_val(&c);
        assert!(ours.contains(&args[0]));
        assert_eq!(c.words[FLAGS], PIDFD);
        assert!(ours.contains(&(c.words[PIDFD_AT] as usize)));
        assert!(ours.contains(&(c.words[SET_TID] as usize)));
        assert_eq!(c.set_tid[..2], ids);
        c.pidfd = 5;
        c.hand_on_in_parent(77);
        assert_eq!((pidfd, parent), (5, 77));
        (pidfd, parent) = (0, 0);
        let mut c = CloneArgs::clone([PARENT_SETTID as usize, 0, at(&parent), 0, 0, 0]).unwrap();
        assert_eq!(c.args().1[0], 0);
        c.hand_on_in_parent(78);
        assert_eq!((pidfd, parent), (0, 78));
    }

    #[test]
    fn what_cannot_be_written_is_refused_or_left() {
        let bad = 4096usize;
        let refused = |r: Result<CloneArgs>| r.err() == Some(Errno::EFAULT);
        assert!(refused(CloneArgs::clone([PIDFD as usize, 0, bad, 0, 0, 0])));
        assert!(refused(CloneArgs::clone3([bad, LEAST, 0, 0, 0, 0])));
        let code = can_write as fn(usize) -> bool as usize;
        assert!(refused(CloneArgs::clone([
            PIDFD as usize,
            0,
            code,
            0,
            0,
            0
        ])));
        let c = CloneArgs::clone([PARENT_SETTID as usize, 0, bad, 0, 0, 0]).unwrap();
        c.hand_on_in_parent(1);
        let mut c = CloneArgs::clone3([bad, 8, 0, 0, 0, 0]).unwrap();
        assert_eq!(c.args(), (libc::SYS_clone3, [bad, 8, 0, 0, 0, 0]));
    }
}
