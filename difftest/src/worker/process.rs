//! Children: each goes on with operations of its own, over memory and a model of its own.
#![allow(unsafe_code)]

use super::shadow::{Shadow, FREED};
use super::sys::{self, errno, fail, fail_with, FOUND};
use super::world::{Child, World, SCRATCH};
use crate::plan::{mix, Kind, Rng};
use core::sync::atomic::Ordering::Relaxed;

/// Children of a process at a time.
const MOST: usize = 3;
/// Forks from the first process.
const DEEPEST: usize = 3;

/// Grandchildren whose parent is gone come to the first process.
pub fn collect_orphans() {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

fn copy_shadow(w: &World) -> i32 {
    let fd = sys::temporary(&w.dir, size_of::<Shadow>());
    let mut off = 0;
    while off < size_of::<Shadow>() {
        // SAFETY: the mapping has this size.
        let n = unsafe {
            libc::pwrite(
                fd,
                (w.shadow as usize + off) as *const _,
                size_of::<Shadow>() - off,
                off as i64,
            )
        };
        if n <= 0 {
            fail_with(format_args!(
                "the model cannot be copied: errno {}",
                errno()
            ));
        }
        off += n as usize;
    }
    fd
}

/// In the child: the model is the copy from now on.
fn become_child(w: &mut World, shadow_fd: i32) {
    // SAFETY: replaces the parent's model at the same address; the child's is a copy.
    unsafe { sys::map_shared(shadow_fd, size_of::<Shadow>(), w.shadow as usize) };
    sys::close(w.shadow_fd);
    w.shadow_fd = shadow_fd;
    w.children.clear();
    w.has_killed = false;
    w.depth += 1;
    if !w.shadow().become_child() {
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    // The scratch memory and the file would be used by both.
    let fd = sys::temporary(&w.dir, SCRATCH);
    // SAFETY: replaces the shared scratch memory by one of the child's.
    unsafe { sys::map_shared(fd, SCRATCH, w.scratch) };
    sys::close(fd);
    sys::close(w.file);
    let direct = w.mixture.has(Kind::Direct);
    sys::close(w.direct);
    (w.file, w.direct) = super::io::open_files(&w.dir, direct);
}

/// A child by the C library, by one of the system calls, or in a pid namespace of its own.
fn make_child(r: &mut Rng) -> i32 {
    let (mut parent_tid, mut child_tid) = (0i32, 0i32);
    let flags = libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_SETTID;
    let mut args = |more: i32| {
        [
            (flags | more) as u64,
            0,
            &raw mut child_tid as u64,
            &raw mut parent_tid as u64,
            libc::SIGCHLD as u64,
            0,
            0,
            0,
        ]
    };
    // SAFETY: the child is a copy with this thread alone, and uses nothing of the others; what the kernel
    // reads and writes outlives the calls.
    let (pid, told) = unsafe {
        match r.below(6) {
            0 => {
                let flags = flags | libc::SIGCHLD;
                let (parent, child) = (&raw mut parent_tid, &raw mut child_tid);
                (
                    libc::syscall(libc::SYS_clone, flags, 0, parent, child, 0),
                    true,
                )
            }
            1 => {
                let a = args(0);
                (libc::syscall(libc::SYS_clone3, &a, size_of_val(&a)), true)
            }
            2 => {
                let a = args(libc::CLONE_NEWPID);
                let pid = libc::syscall(libc::SYS_clone3, &a, size_of_val(&a));
                // Who has dropped his rights may not.
                if pid < 0 && errno() == libc::EPERM {
                    (libc::fork().into(), false)
                } else {
                    (pid, true)
                }
            }
            _ => (libc::fork().into(), false),
        }
    };
    let pid = pid as i32;
    if told && pid == 0 && child_tid != gettid() {
        fail_with(format_args!("a child is told that it is {child_tid}"));
    }
    if told && pid > 0 && parent_tid != pid {
        fail_with(format_args!("of child {pid} we are told {parent_tid}"));
    }
    pid
}

fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Who will not have the right to must still be able to lock.
fn lock_without_rights() {
    let most = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the structure outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &most) };
}

/// Enters namespaces that are for processes of one thread only.
pub fn namespace(w: &mut World, r: &mut Rng) {
    let user = w.depth > 0 && r.one_in(3);
    let net = if r.one_in(2) { libc::CLONE_NEWNET } else { 0 };
    if user {
        lock_without_rights();
    }
    // SAFETY: a C string; else no memory is passed.
    let enter = || unsafe {
        if user {
            return libc::unshare(libc::CLONE_NEWUSER | net);
        }
        let fd = libc::open(c"/proc/self/ns/time".as_ptr(), libc::O_RDONLY);
        let failed = libc::setns(fd, 0);
        let e = errno();
        sys::close(fd);
        *libc::__errno_location() = e;
        failed
    };
    // A thread that was joined may not be gone yet.
    let mut failed = enter();
    for _ in 0..200 {
        if failed == 0 || ![libc::EINVAL, libc::EUSERS].contains(&errno()) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        failed = enter();
    }
    // Without rights, or one in another too often.
    let may_be = [libc::EPERM, libc::ENOSPC, libc::EBADF];
    if failed != 0 && !may_be.contains(&errno()) {
        fail_with(format_args!("a namespace is refused: errno {}", errno()));
    }
    w.check_some(r, 64);
}

/// The child goes on as nobody.
fn drop_rights(r: &mut Rng) {
    const NOBODY: u32 = 65534;
    lock_without_rights();
    // SAFETY: no memory is passed. Who has no rights loses none.
    unsafe {
        libc::setgroups(0, core::ptr::null());
        libc::setresgid(NOBODY, NOBODY, NOBODY);
        libc::setresuid(NOBODY, NOBODY, NOBODY);
        if r.one_in(2) {
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        }
    }
}

/// The child carries operations of its own out by `step`.
pub fn fork(w: &mut World, r: &mut Rng, id: u64, step: fn(&mut World, u64)) {
    if w.children.len() >= MOST || w.depth >= DEEPEST {
        return wait_for_one(w);
    }
    let steps = [0, 1, 4, 12, 24][r.below(5)];
    let orphan = r.one_in(6);
    let check_first = r.one_in(2);
    // Sometimes every page; that takes as long as everything else together.
    let share = [1, 16, 64, 512][r.below(4)];
    let shadow_fd = copy_shadow(w);
    let drops = r.one_in(5);
    let (parent_walks, child_walks) = (r.one_in(2), r.one_in(2));
    let pid = make_child(r);
    if pid < 0 {
        // All places of the run may be taken for a moment.
        if errno() != libc::EAGAIN {
            fail_with(format_args!("fork: errno {}", errno()));
        }
        return sys::close(shadow_fd);
    }
    if pid > 0 {
        sys::close(shadow_fd);
        w.children.push(Child { pid, killed: false });
        if parent_walks {
            w.walk(r);
        }
        return;
    }
    if orphan {
        // As daemon(3): the parent is gone at once.
        // SAFETY: as above.
        if unsafe { libc::fork() } != 0 {
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
    }
    become_child(w, shadow_fd);
    if drops {
        drop_rights(r);
    }
    if child_walks {
        w.walk(r);
    }
    if check_first {
        w.check_some(r, share);
    }
    for k in 0..steps {
        // A child's operations have numbers of their own, far from the first process's.
        step(w, mix(id).wrapping_add(k) | 1 << 63);
    }
    w.check_some(r, share);
    w.wait_for_all();
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

fn reap(w: &mut World, pid: i32, status: i32) {
    let known = w.children.iter().position(|c| c.pid == pid);
    let killed = known.is_some_and(|i| w.children.remove(i).killed);
    let by = |signal| libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal;
    // A program that was started by a child that was killed: nobody reads what it writes. And before it is
    // a program it has the memory of that child, whose engine is gone.
    let lost = || w.starting.load(Relaxed) > 0 && by(libc::SIGBUS);
    // A child that was killed may have killed one of its own just before.
    let orphan = || w.has_killed && by(libc::SIGKILL);
    let stray = known.is_none() && (by(libc::SIGPIPE) || lost() || orphan());
    let killed = killed || w.disturbed;
    if status == 0 || killed && by(libc::SIGKILL) || stray {
        return;
    }
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == FOUND {
        // It said what it found.
        // SAFETY: ends the process.
        unsafe { libc::_exit(FOUND) };
    }
    fail_with(format_args!("a child ended with status {status:#x}"));
}

pub fn wait_for_one(w: &mut World) {
    if w.children.is_empty() {
        return;
    }
    let mut status = 0;
    // SAFETY: the variable outlives the call.
    let pid = unsafe { libc::waitpid(-1, &mut status, 0) };
    if pid > 0 {
        reap(w, pid, status);
    }
}

pub fn kill(w: &mut World, r: &mut Rng) {
    if w.children.is_empty() {
        return;
    }
    let i = r.below(w.children.len());
    w.children[i].killed = true;
    w.has_killed = true;
    // SAFETY: no memory is passed.
    unsafe { libc::kill(w.children[i].pid, libc::SIGKILL) };
    wait_for_one(w);
}

/// A child stands still for a while.
pub fn stop(w: &mut World, r: &mut Rng) {
    if w.children.is_empty() {
        return;
    }
    let pid = w.children[r.below(w.children.len())].pid;
    // SAFETY: no memory is passed.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    for _ in 0..2 {
        super::maps::push_out(w, r);
        w.write_some(r);
    }
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
}

impl World {
    /// Also for orphans.
    pub fn wait_for_all(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: the variable outlives the call.
            let pid = unsafe { libc::waitpid(-1, &mut status, 0) };
            if pid < 0 {
                return;
            }
            reap(self, pid, status);
        }
    }
}

/// Another program, by vfork and exec, that is given swapped memory to read.
pub fn spawn(w: &mut World, r: &mut Rng) {
    use std::io::{Read, Write};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus, Stdio};
    let Some(p) = w.open_part(r, 8) else { return };
    if !w.shadow().all(p, |g| g.flags & FREED == 0) {
        return;
    }
    let at = w.shadow().addr(p);
    // SAFETY: the part is mapped and readable, and not written meanwhile.
    let bytes =
        unsafe { core::slice::from_raw_parts(at as *const u8, p.count * super::shadow::PAGE) };
    w.starting.fetch_add(1, Relaxed);
    let child = Command::new("/bin/cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    w.starting.fetch_sub(1, Relaxed);
    let Ok(mut child) = child else {
        fail("cat could not be started");
    };
    let mut got = Vec::new();
    let ok = child
        .stdin
        .take()
        .is_some_and(|mut i| i.write_all(bytes).is_ok())
        && child
            .stdout
            .take()
            .is_some_and(|mut o| o.read_to_end(&mut got).is_ok());
    let status = child.wait();
    let killed = |s: &ExitStatus| s.signal() == Some(libc::SIGKILL);
    if w.disturbed && status.as_ref().is_ok_and(killed) {
        return;
    }
    if !ok || got != bytes || !status.is_ok_and(|s| s.success()) {
        fail("what cat was given did not come back");
    }
    w.check(p);
}
