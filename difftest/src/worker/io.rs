//! System calls that are handed memory which may be swapped out.
#![allow(unsafe_code)]

use super::shadow::{render, Part, CELLS, FREED, PAGE, RW};
use super::sys::{self, errno, fail, fail_with, must};
use super::world::{World, SCRATCH};
use crate::plan::Rng;
use std::path::Path;

const WORDS: usize = PAGE / 8;
/// What fits a pipe or a socket's buffer.
const SMALL: usize = 16;
const LARGE: usize = SCRATCH / PAGE;

/// A file, and the same with O_DIRECT, where that is wanted; -1 for none.
pub fn open_files(dir: &Path, direct: bool) -> (i32, i32) {
    let file = sys::temporary(dir, SCRATCH);
    if !direct {
        return (file, -1);
    }
    let path = std::ffi::CString::new(format!("/proc/self/fd/{file}")).unwrap_or_default();
    // SAFETY: a C string.
    let direct = unsafe {
        libc::open(
            path.as_ptr(),
            libc::O_RDWR | libc::O_DIRECT | libc::O_CLOEXEC,
        )
    };
    (file, direct)
}

/// A part that system calls may read and write, with contents that are certain.
fn part(w: &mut World, r: &mut Rng, most: usize) -> Option<Part> {
    let p = w.open_part(r, most)?;
    w.shadow().all(p, |g| g.flags & FREED == 0).then_some(p)
}

impl World {
    fn scratch(&mut self, pages: usize) -> &'static mut [u64] {
        // SAFETY: the scratch mapping has this size and nobody else uses it.
        unsafe { core::slice::from_raw_parts_mut(self.scratch as *mut u64, pages * WORDS) }
    }

    /// What the part must hold, in scratch memory.
    fn render_part(&mut self, p: Part) {
        let out = self.scratch(p.count);
        for (i, page) in out.chunks_exact_mut(WORDS).enumerate() {
            let cells = self.shadow().page_at(p.region, p.from + i).cell;
            if let Ok(page) = page.try_into() {
                render(&cells, page);
            }
        }
    }

    /// The scratch memory must hold what the part holds.
    fn compare(&mut self, p: Part, what: &str) {
        let mut want = [0; WORDS];
        let got = self.scratch(p.count);
        for (i, page) in got.chunks_exact(WORDS).enumerate() {
            render(&self.shadow().page_at(p.region, p.from + i).cell, &mut want);
            if page != want {
                fail_with(format_args!("{what}: page {i} of {} is wrong", p.count));
            }
        }
        got.fill(0);
    }

    /// New contents for all of the part, in the model and in scratch memory.
    fn new_contents(&mut self, r: &mut Rng, p: Part) {
        for i in p.from..p.from + p.count {
            self.draw(r, p.region, i, CELLS);
        }
        self.render_part(p);
    }
}

/// A transfer of all bytes, in as many calls as it takes.
#[track_caller]
fn all(len: usize, what: &str, mut call: impl FnMut(usize) -> isize) {
    let mut done = 0;
    while done < len {
        match call(done) {
            n if n > 0 => done += n as usize,
            _ if errno() == libc::EINTR => {}
            n => fail_with(format_args!(
                "{what}: {n} after {done} of {len} bytes, errno {}",
                errno()
            )),
        }
    }
}

fn read_all(fd: i32, at: usize, len: usize, what: &str) {
    // SAFETY: the caller has the memory; the kernel looks whether it may.
    all(len, what, |done| unsafe {
        libc::read(fd, (at + done) as *mut _, len - done)
    });
}

fn write_all(fd: i32, at: usize, len: usize, what: &str) {
    // SAFETY: as above.
    all(len, what, |done| unsafe {
        libc::write(fd, (at + done) as *const _, len - done)
    });
}

fn pread_all(fd: i32, at: usize, len: usize, what: &str) {
    // SAFETY: as above.
    all(len, what, |done| unsafe {
        libc::pread(fd, (at + done) as *mut _, len - done, done as i64)
    });
}

fn pwrite_all(fd: i32, at: usize, len: usize, what: &str) {
    // SAFETY: as above.
    all(len, what, |done| unsafe {
        libc::pwrite(fd, (at + done) as *const _, len - done, done as i64)
    });
}

fn new_pipe() -> (i32, i32) {
    let mut fds = [0; 2];
    // SAFETY: room for two.
    must(
        unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) },
        "pipe",
    );
    (fds[0], fds[1])
}

pub fn pipe(w: &mut World, r: &mut Rng) {
    let Some(p) = part(w, r, SMALL) else { return };
    let (at, len, scratch) = (w.shadow().addr(p), p.count * PAGE, w.scratch);
    let (from, to) = new_pipe();
    if r.one_in(2) {
        write_all(to, at, len, "write to a pipe");
        read_all(from, scratch, len, "read");
        w.compare(p, "through a pipe");
    } else {
        w.new_contents(r, p);
        write_all(to, scratch, len, "write");
        read_all(from, at, len, "read from a pipe");
        w.check(p);
    }
    sys::close(from);
    sys::close(to);
}

pub fn file(w: &mut World, r: &mut Rng) {
    through(w, r, w.file, "a file");
}

pub fn direct(w: &mut World, r: &mut Rng) {
    if w.direct >= 0 {
        through(w, r, w.direct, "a file with O_DIRECT");
    }
}

/// Writes memory to the file and compares, or reads new contents from it.
fn through(w: &mut World, r: &mut Rng, fd: i32, what: &str) {
    let Some(p) = part(w, r, LARGE) else { return };
    let (at, len, scratch) = (w.shadow().addr(p), p.count * PAGE, w.scratch);
    if r.one_in(2) {
        pwrite_all(fd, at, len, &format!("pwrite to {what}"));
        pread_all(fd, scratch, len, &format!("pread of {what} to scratch"));
        w.compare(p, &format!("through {what}"));
    } else {
        w.new_contents(r, p);
        pwrite_all(fd, scratch, len, &format!("pwrite from scratch to {what}"));
        pread_all(fd, at, len, &format!("pread of {what}"));
        w.check(p);
    }
}

/// A file's bytes from and to many places in another order.
pub fn vector(w: &mut World, r: &mut Rng) {
    let Some(p) = part(w, r, 64) else { return };
    let (at, len, fd) = (w.shadow().addr(p), p.count * PAGE, w.file);
    let write = r.one_in(2);
    if !write {
        w.new_contents(r, p);
    } else {
        w.render_part(p);
    }
    // Places of the part, and of the scratch memory, in the same order.
    let mut order: Vec<usize> = (0..p.count).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, r.below(i + 1));
    }
    let list = |base: usize| -> Vec<libc::iovec> {
        let half = PAGE / 2;
        order
            .iter()
            .flat_map(|&i| [(base + i * PAGE + half), (base + i * PAGE)])
            .map(|at| libc::iovec {
                iov_base: at as *mut _,
                iov_len: half,
            })
            .collect()
    };
    let (ours, theirs) = (list(at), list(w.scratch));
    let (out, into) = if write {
        (&ours, &theirs)
    } else {
        (&theirs, &ours)
    };
    // SAFETY: every piece lies in the part or in the scratch memory.
    let (wrote, read) = unsafe {
        let wrote = libc::pwritev(fd, out.as_ptr(), out.len() as i32, 0);
        if write {
            w.scratch(p.count).fill(0);
        }
        (wrote, libc::preadv(fd, into.as_ptr(), into.len() as i32, 0))
    };
    if (wrote, read) != (len as isize, len as isize) {
        fail_with(format_args!(
            "pwritev {wrote}, preadv {read} of {len}: errno {}",
            errno()
        ));
    }
    if write {
        w.compare(p, "by pwritev");
    } else {
        w.check(p);
    }
}

pub fn socket(w: &mut World, r: &mut Rng) {
    let Some(p) = part(w, r, SMALL) else { return };
    let (at, len, scratch) = (w.shadow().addr(p), p.count * PAGE, w.scratch);
    let mut fds = [0; 2];
    // SAFETY: room for two.
    must(
        unsafe {
            libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
                0,
                fds.as_mut_ptr(),
            )
        },
        "socketpair",
    );
    let send = |at: usize| {
        all(len, "sendmsg", |done| {
            let mut v = libc::iovec {
                iov_base: (at + done) as *mut _,
                iov_len: len - done,
            };
            // SAFETY: all-zero is an empty message; the vector outlives the call.
            unsafe {
                let mut m: libc::msghdr = core::mem::zeroed();
                m.msg_iov = &mut v;
                m.msg_iovlen = 1;
                libc::sendmsg(fds[0], &m, 0)
            }
        });
    };
    // SAFETY: the caller's memory.
    let receive = |at: usize| {
        all(len, "recv", |done| unsafe {
            libc::recv(fds[1], (at + done) as *mut _, len - done, 0)
        })
    };
    if r.one_in(2) {
        send(at);
        receive(scratch);
        w.compare(p, "through a socket");
    } else {
        w.new_contents(r, p);
        send(scratch);
        receive(at);
        w.check(p);
    }
    sys::close(fds[0]);
    sys::close(fds[1]);
}

pub fn vm_readv(w: &mut World, r: &mut Rng) {
    let Some(p) = part(w, r, LARGE) else { return };
    let len = p.count * PAGE;
    let piece = |at: usize| libc::iovec {
        iov_base: at as *mut _,
        iov_len: len,
    };
    let (ours, scratch) = (piece(w.shadow().addr(p)), piece(w.scratch));
    let read = r.one_in(2);
    if !read {
        w.new_contents(r, p);
    }
    // SAFETY: the part and the scratch memory have this size.
    let n = unsafe {
        let me = libc::getpid();
        if read {
            libc::process_vm_readv(me, &scratch, 1, &ours, 1, 0)
        } else {
            libc::process_vm_writev(me, &scratch, 1, &ours, 1, 0)
        }
    };
    if n != len as isize {
        fail_with(format_args!("process_vm: {n} of {len}, errno {}", errno()));
    }
    if read {
        w.compare(p, "process_vm_readv");
    } else {
        w.check(p);
    }
}

/// Several requests in flight.
pub fn uring(w: &mut World, r: &mut Rng) {
    use io_uring::{opcode, types, IoUring};
    let Some(p) = part(w, r, 256) else { return };
    let Ok(mut ring) = IoUring::new(16) else {
        return;
    };
    let (at, len, scratch) = (w.shadow().addr(p), p.count * PAGE, w.scratch);
    let fd = if w.direct >= 0 && r.one_in(2) {
        w.direct
    } else {
        w.file
    };
    let write = r.one_in(2);
    if !write {
        w.new_contents(r, p);
        pwrite_all(w.file, scratch, len, "pwrite from scratch");
    }
    let piece = p.count.div_ceil(16) * PAGE;
    let mut wanted = 0;
    for off in (0..len).step_by(piece) {
        let n = piece.min(len - off);
        let e = if write {
            opcode::Write::new(types::Fd(fd), (at + off) as *const u8, n as u32)
                .offset(off as u64)
                .build()
        } else {
            opcode::Read::new(types::Fd(fd), (at + off) as *mut u8, n as u32)
                .offset(off as u64)
                .build()
        };
        // SAFETY: the part stays mapped until all requests are done, below.
        if unsafe { ring.submission().push(&e.user_data(n as u64)) }.is_err() {
            fail("the ring is full");
        }
        wanted += 1;
    }
    complete(&mut ring, wanted);
    if write {
        pread_all(w.file, scratch, len, "pread to scratch");
        w.compare(p, "through io_uring");
    } else {
        w.check(p);
    }
}

/// Waits for all requests; each must have done as many bytes as its user data says.
fn complete(ring: &mut io_uring::IoUring, wanted: usize) {
    let mut done = 0;
    while done < wanted {
        if let Err(e) = ring.submit_and_wait(wanted - done) {
            if e.raw_os_error() != Some(libc::EINTR) {
                fail_with(format_args!("io_uring_enter: {e}"));
            }
        }
        for c in ring.completion() {
            if c.result() != c.user_data() as i32 {
                fail_with(format_args!(
                    "io_uring: {} of {} bytes",
                    c.result(),
                    c.user_data()
                ));
            }
            done += 1;
        }
    }
}

/// Pages that a pipe refers to, read when they may long be out of memory.
pub fn splice(w: &mut World, r: &mut Rng) {
    let Some(p) = part(w, r, SMALL) else { return };
    let (at, len, scratch) = (w.shadow().addr(p), p.count * PAGE, w.scratch);
    let (from, to) = new_pipe();
    let v = libc::iovec {
        iov_base: at as *mut _,
        iov_len: len,
    };
    // SAFETY: the part is not written until the pipe is empty.
    let n = unsafe { libc::vmsplice(to, &v, 1, 0) };
    if n < 0 {
        fail_with(format_args!("vmsplice: errno {}", errno()));
    }
    const MADV_PAGEOUT: i32 = 21;
    // SAFETY: contents do not change.
    unsafe { libc::madvise(at as *mut _, len, MADV_PAGEOUT) };
    if let Some(q) = w.part(r) {
        let q = Part {
            count: q.count.min(64),
            ..q
        };
        let open = w.shadow().all(q, |g| g.prot == RW);
        if open && q.region != p.region {
            w.write(r, q);
        }
    }
    let n = n as usize;
    read_all(from, scratch, n, "read of a splice");
    let whole = Part {
        count: n / PAGE,
        ..p
    };
    w.compare(whole, "through vmsplice");
    w.check(p);
    sys::close(from);
    sys::close(to);
}
