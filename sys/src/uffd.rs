//! userfaultfd: the kernel's own words for it are in `Documentation/admin-guide/mm/userfaultfd.rst`
//! and `mm/userfaultfd.c`. Errnos become meanings here.

use super::fd::wait_readable;
use super::pagemap::{self, Pagemap};
use super::syscall::{syscall, Errno};
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use hugeswap_mm::PAGE_SIZE;

const UFFD_API: u64 = 0xAA;
pub const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
pub const FEATURE_POISON: u64 = 1 << 14;
pub const FEATURE_MOVE: u64 = 1 << 16;
pub const FLAG_USER_MODE_ONLY: i32 = 1;

pub const PAGEFAULT_FLAG_WRITE: u64 = 1 << 0;
pub const PAGEFAULT_FLAG_WP: u64 = 1 << 1;

const EVENT_PAGEFAULT: u8 = 0x12;

const MODE_MISSING: u64 = 1 << 0;
const MODE_WP: u64 = 1 << 1;

const fn iowr(nr: u32, size: usize) -> usize {
    (3 << 30 | (size as u32) << 16 | 0xAA << 8 | nr) as usize
}
const fn ior(nr: u32, size: usize) -> usize {
    (2 << 30 | (size as u32) << 16 | 0xAA << 8 | nr) as usize
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct Transfer {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct ZeroOrPoison {
    range: Range,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

/// `struct uffd_msg` as far as page faults need it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Msg {
    event: u8,
    _r: [u8; 7],
    flags: u64,
    address: u64,
    ptid: u32,
    _pad: u32,
}

/// A thread waits for the page at `addr`.
#[derive(Clone, Copy, Debug)]
pub struct PageFault {
    pub addr: usize,
    pub write: bool,
    /// The page is there but write-protected.
    pub wp: bool,
    pub tid: u32,
}

impl Msg {
    pub fn page_fault(&self) -> Option<PageFault> {
        (self.event == EVENT_PAGEFAULT).then_some(PageFault {
            addr: self.address as usize,
            write: self.flags & PAGEFAULT_FLAG_WRITE != 0,
            wp: self.flags & PAGEFAULT_FLAG_WP != 0,
            tid: self.ptid,
        })
    }
}

/// Why pages did not go where they should. `done` bytes at the front did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Something is mapped at the destination already (EEXIST).
    Exists { done: usize },
    /// The source has a hole, or the destination is not in a registered mapping (ENOENT).
    Hole { done: usize },
    /// The page is shared after fork or pinned by I/O (EBUSY).
    Busy { done: usize },
    /// The mappings are being changed, or the rest has to be asked for again (EAGAIN).
    Again { done: usize },
    /// Unequal protections, lock states, more than one mapping (EINVAL).
    Invalid,
    /// The address space is going away (ESRCH).
    Gone,
    /// No memory (ENOMEM), or an errno without a meaning here.
    Other(Errno),
}

impl Refused {
    /// Bytes at the front that went where they should.
    pub fn done(self) -> usize {
        match self {
            Refused::Exists { done }
            | Refused::Hole { done }
            | Refused::Busy { done }
            | Refused::Again { done } => done,
            Refused::Invalid | Refused::Gone | Refused::Other(_) => 0,
        }
    }

    /// The same refusal, seen from `before` bytes further to the front.
    pub fn after(self, before: usize) -> Refused {
        match self {
            Refused::Exists { done } => Refused::Exists {
                done: done + before,
            },
            Refused::Hole { done } => Refused::Hole {
                done: done + before,
            },
            Refused::Busy { done } => Refused::Busy {
                done: done + before,
            },
            Refused::Again { done } => Refused::Again {
                done: done + before,
            },
            // These say nothing of how far it went; the caller asks again for what is left.
            Refused::Invalid | Refused::Gone | Refused::Other(_) if before > 0 => {
                Refused::Again { done: before }
            }
            e => e,
        }
    }
}

fn refused(e: Errno, done: i64) -> Refused {
    // The kernel leaves a negative errno in the field when nothing was done.
    let done = done.max(0) as usize;
    match e {
        Errno::EEXIST => Refused::Exists { done },
        Errno::ENOENT => Refused::Hole { done },
        Errno::EBUSY => Refused::Busy { done },
        Errno::EAGAIN => Refused::Again { done },
        Errno::EINVAL => Refused::Invalid,
        Errno::ESRCH => Refused::Gone,
        e => Refused::Other(e),
    }
}

/// `/dev/userfaultfd`, once it was opened; -1 before. Its owner needs no other right, so it is
/// kept, and handed to forked children, whatever becomes of the program's privileges.
static DEVICE: AtomicI32 = AtomicI32::new(-1);

/// The open device.
pub fn device() -> Result<i32, Errno> {
    let dev = DEVICE.load(Relaxed);
    if dev >= 0 {
        return Ok(dev);
    }
    // SAFETY: the path is a constant C string.
    let dev = unsafe {
        syscall(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                c"/dev/userfaultfd".as_ptr() as usize,
                (libc::O_RDWR | libc::O_CLOEXEC) as usize,
            ],
        )
    }? as i32;
    set_device(dev);
    Ok(dev)
}

/// The device if the engine has it open, by its number in the engine's table.
pub fn opened_device() -> Option<i32> {
    Some(DEVICE.load(Relaxed)).filter(|&d| d >= 0)
}

/// The device was opened by somebody else, under this number; -1 for not at all.
pub fn set_device(fd: i32) {
    DEVICE.store(fd, Relaxed);
}

/// Which faults a userfaultfd must serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Those of system calls too.
    AllFaults,
    /// Those of the program's own instructions suffice.
    UserFaults,
}

impl Needs {
    pub fn of_user_mode_only(yes: bool) -> Needs {
        match yes {
            true => Needs::UserFaults,
            false => Needs::AllFaults,
        }
    }
}

/// How the descriptor was obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// `userfaultfd(2)` with full rights.
    Syscall,
    /// `/dev/userfaultfd`.
    Device,
    /// `userfaultfd(2)` with UFFD_USER_MODE_ONLY.
    UserModeOnly,
}

/// A userfaultfd of this address space. Copies share the descriptor; it lives as long as the
/// engine and is closed with its descriptor table.
#[derive(Clone, Copy)]
pub struct Uffd {
    fd: i32,
}

impl Uffd {
    /// Full rights by system call or device; user-mode faults only if these suffice and
    /// nothing better can be had.
    pub fn open(features: u64, needs: Needs) -> Result<(Uffd, Source), Errno> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: no pointers.
        let by_syscall = unsafe { syscall(libc::SYS_userfaultfd, [flags as usize]) };
        let (fd, source) = match by_syscall {
            Ok(fd) => (fd as i32, Source::Syscall),
            Err(e) => match Self::open_device(flags) {
                Ok(fd) => (fd, Source::Device),
                Err(_) if needs == Needs::UserFaults => {
                    // SAFETY: no pointers.
                    let fd = unsafe {
                        syscall(
                            libc::SYS_userfaultfd,
                            [(flags | FLAG_USER_MODE_ONLY) as usize],
                        )
                    }?;
                    (fd as i32, Source::UserModeOnly)
                }
                Err(_) => return Err(e),
            },
        };
        let mut api = Api {
            api: UFFD_API,
            features,
            ioctls: 0,
        };
        let u = Uffd { fd };
        // SAFETY: the structure outlives the call.
        match unsafe { u.ioctl(iowr(0x3F, size_of::<Api>()), &mut api) } {
            Ok(()) => Ok((u, source)),
            Err(e) => {
                u.close();
                Err(e)
            }
        }
    }

    fn open_device(flags: i32) -> Result<i32, Errno> {
        let dev = device()?;
        const USERFAULTFD_IOC_NEW: usize = 0xAA00;
        // SAFETY: an ioctl without pointers on a descriptor of ours.
        unsafe {
            syscall(
                libc::SYS_ioctl,
                [dev as usize, USERFAULTFD_IOC_NEW, flags as usize],
            )
        }
        .map(|f| f as i32)
    }

    /// The userfaultfd that is open under this number.
    pub fn from_fd(fd: i32) -> Uffd {
        Uffd { fd }
    }

    pub fn fd(&self) -> i32 {
        self.fd
    }

    pub fn close(self) {
        // SAFETY: our descriptor, not used again.
        let _ = unsafe { syscall(libc::SYS_close, [self.fd as usize]) };
    }

    /// # Safety
    /// `arg` must be the structure that `req` takes.
    unsafe fn ioctl<T>(&self, req: usize, arg: &mut T) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        unsafe {
            syscall(
                libc::SYS_ioctl,
                [self.fd as usize, req, arg as *mut T as usize],
            )
        }
        .map(drop)
    }

    fn register(&self, addr: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let mut r = Register {
            range: Range {
                start: addr as u64,
                len: len as u64,
            },
            mode,
            ioctls: 0,
        };
        // SAFETY: the structure matches the request.
        unsafe { self.ioctl(iowr(0x00, size_of::<Register>()), &mut r) }
    }

    /// Faults on missing pages of the range come to us; pages can be write-protected.
    pub fn register_missing(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.register(addr, len, MODE_MISSING | MODE_WP)
    }

    /// The range is not ours any more; threads that wait there look again.
    pub fn unregister(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let mut r = Range {
            start: addr as u64,
            len: len as u64,
        };
        // SAFETY: the structure matches the request.
        unsafe { self.ioctl(ior(0x01, size_of::<Range>()), &mut r) }
    }

    /// The range can be the destination of a move, but the kernel serves its faults.
    pub fn register_destination(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.register(addr, len, MODE_WP)
    }

    /// Whether a fault waits to be read.
    pub fn has_message(&self) -> bool {
        self.wait(0)
    }

    /// Waits for a fault, at most so long; whether there is one.
    pub fn wait(&self, ms: u64) -> bool {
        let mut fds = [libc::pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        let limit = libc::timespec {
            tv_sec: (ms / 1000) as i64,
            tv_nsec: (ms % 1000 * 1_000_000) as i64,
        };
        wait_readable(&mut fds, Some(limit));
        fds[0].revents & libc::POLLIN != 0
    }

    /// Faults that wait now; fewer than `buf` holds when there are no more.
    pub fn read<'a>(&self, buf: &'a mut [Msg]) -> &'a [Msg] {
        // SAFETY: the buffer is valid for its length, and any bytes are a valid Msg.
        let n = unsafe {
            syscall(
                libc::SYS_read,
                [
                    self.fd as usize,
                    buf.as_mut_ptr() as usize,
                    size_of_val(buf),
                ],
            )
        }
        .unwrap_or(0);
        &buf[..n / size_of::<Msg>()]
    }

    /// As `read`, of a descriptor that others have too: never waits, whatever they do with it. An error: it
    /// is of no use.
    pub fn read_now<'a>(&self, buf: &'a mut [Msg]) -> Result<&'a [Msg], Errno> {
        const RWF_NOWAIT: usize = 8;
        let piece = [buf.as_mut_ptr() as usize, size_of_val(buf)];
        let fd = self.fd as usize;
        let here = [fd, &raw const piece as usize, 1, usize::MAX, 0, RWF_NOWAIT];
        // SAFETY: the buffer is valid for its length, and any bytes are a valid Msg.
        let n = match unsafe { syscall(libc::SYS_preadv2, here) } {
            // Before Linux 6.10 nothing else can be done than to look first.
            Err(Errno(libc::EOPNOTSUPP)) => {
                // SAFETY: no pointers; then as above.
                unsafe {
                    let flags = syscall(libc::SYS_fcntl, [fd, libc::F_GETFL as usize])?;
                    if flags & libc::O_NONBLOCK as usize == 0 {
                        return Err(Errno::EINVAL);
                    }
                    syscall(libc::SYS_read, [fd, piece[0], piece[1]])
                }
            }
            r => r,
        };
        match n {
            Ok(n) => Ok(&buf[..n / size_of::<Msg>()]),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(&[]),
            Err(e) => Err(e),
        }
    }

    fn transfer(&self, nr: u32, mut t: Transfer) -> Result<(), Refused> {
        loop {
            // SAFETY: the structure matches the request; what the kernel does to the ranges is
            // the contract of the callers below.
            match unsafe { self.ioctl(iowr(nr, size_of::<Transfer>()), &mut t) } {
                Ok(()) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(refused(e, t.done)),
            }
        }
    }

    /// Moves the pages of `src` to `dst` by their page tables (UFFDIO_MOVE), waking who waits.
    /// Holes are refused.
    ///
    /// Linux 6.18 moves pages that it does not count: when a page table entry changed under it
    /// (somebody touched the page for the first time), `move_pages` in `mm/userfaultfd.c` tries
    /// again with `err` still at EAGAIN. The next pages are moved, `err` says that they are not, and
    /// the third try finds them at the destination: EEXIST. So after EEXIST the page tables
    /// are asked (`map`). Such pages are added to `uncounted`, and count here as moved.
    ///
    /// # Safety
    /// Both ranges must be under the engine's control: nothing in Rust may hold references into
    /// the source, and nothing but this call fills a page of it that is missing.
    pub unsafe fn mv(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        map: Pagemap,
        uncounted: &mut usize,
    ) -> Result<(), Refused> {
        let mut at = 0;
        loop {
            let part = Transfer {
                dst: (dst + at) as u64,
                src: (src + at) as u64,
                len: (len - at) as u64,
                mode: 0,
                done: 0,
            };
            let refused = match self.transfer(0x05, part) {
                Ok(()) => return Ok(()),
                Err(e) => e.after(at),
            };
            let Refused::Exists { done } = refused else {
                return Err(refused);
            };
            let more = pagemap::moved(map, dst + done, src + done, len - done);
            if more == 0 {
                return Err(refused);
            }
            *uncounted += more / PAGE_SIZE;
            // The kernel wakes for what it counts.
            self.wake(dst + done, more);
            at = done + more;
            if at == len {
                return Ok(());
            }
        }
    }

    /// Fills missing pages at `dst` with a copy of `src` (UFFDIO_COPY), waking who waits. What is there already stays
    /// as it is, and what is not registered, or can't be read, is refused. Reading `src` must not need an answer of ours.
    pub fn copy(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Refused> {
        self.transfer(
            0x03,
            Transfer {
                dst: dst as u64,
                src: src as u64,
                len: len as u64,
                mode: 0,
                done: 0,
            },
        )
    }

    /// As `copy`; whoever writes to the pages waits.
    pub fn copy_protected(&self, dst: usize, src: *const u8, len: usize) -> Result<(), Refused> {
        const MODE_WP: u64 = 1 << 1;
        self.transfer(
            0x03,
            Transfer {
                dst: dst as u64,
                src: src as u64,
                len: len as u64,
                mode: MODE_WP,
                done: 0,
            },
        )
    }

    /// Whoever touches the missing page gets SIGBUS from now on (UFFDIO_POISON).
    pub fn poison(&self, addr: usize, len: usize) -> Result<(), Refused> {
        let mut z = ZeroOrPoison {
            range: Range {
                start: addr as u64,
                len: len as u64,
            },
            mode: 0,
            done: 0,
        };
        // SAFETY: the structure matches the request; only missing pages are changed.
        unsafe { self.ioctl(iowr(0x08, size_of::<ZeroOrPoison>()), &mut z) }
            .map_err(|e| refused(e, z.done))
    }

    /// Traps writes to the present pages of the range.
    pub fn trap_writes(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(addr, len, true)
    }

    /// Lets writes to the range through again, and those who wait to write.
    pub fn allow_writes(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(addr, len, false)
    }

    fn write_protect(&self, addr: usize, len: usize, on: bool) -> Result<(), Errno> {
        let mut w = WriteProtect {
            range: Range {
                start: addr as u64,
                len: len as u64,
            },
            mode: on as u64,
        };
        loop {
            // SAFETY: the structure matches the request; contents do not change.
            match unsafe { self.ioctl(iowr(0x06, size_of::<WriteProtect>()), &mut w) } {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                r => return r,
            }
        }
    }

    /// Lets the threads that wait for pages of the range look again.
    pub fn wake(&self, addr: usize, len: usize) {
        let mut r = Range {
            start: addr as u64,
            len: len as u64,
        };
        // SAFETY: the structure matches the request.
        let _ = unsafe { self.ioctl(ior(0x02, size_of::<Range>()), &mut r) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem;
    use std::sync::atomic::{AtomicU64, Ordering::*};
    use std::time::{Duration, Instant};

    const PAGES: usize = 64;

    /// Pages are moved while a thread writes to each for the first time since a fork: their page
    /// table entries change just then, and that is where the count goes wrong. A page that is where
    /// the answers do not say loses a write.
    #[test]
    fn pages_are_where_the_count_says() {
        let open = || Uffd::open(FEATURE_MOVE, Needs::UserFaults);
        let ((program, _), (staging, _)) = open()
            .and_then(|p| Ok((p, open()?)))
            .expect("this test needs a userfaultfd with UFFDIO_MOVE, as of Linux 6.8");
        let len = PAGES * PAGE_SIZE;
        let map = || {
            let at = mem::map_anon(len).unwrap() as usize;
            // SAFETY: just mapped.
            unsafe { mem::madvise(at, len, libc::MADV_NOHUGEPAGE).unwrap() };
            at
        };
        let (here, there) = (map(), map());
        let word = |page: usize| {
            // SAFETY: mapped until the end of the test; only atomics are used there.
            unsafe { &*((here + page * PAGE_SIZE) as *const AtomicU64) }
        };
        (0..PAGES).for_each(|page| word(page).store(0, Relaxed));
        program.register_missing(here, len).unwrap();
        staging.register_destination(there, len).unwrap();

        const ROUNDS: u64 = 2000;
        let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut uncounted = 0;
        std::thread::scope(|s| {
            s.spawn(|| {
                for round in 1.. {
                    while begun.load(Acquire) < round {
                        std::hint::spin_loop();
                    }
                    if begun.load(Acquire) == u64::MAX {
                        return;
                    }
                    for page in 0..PAGES {
                        word(page).fetch_add(1, Relaxed);
                    }
                    done.store(round, Release);
                }
            });
            let _end = End(&begun, program);
            let end = Instant::now() + Duration::from_secs(5);
            for round in (1..=ROUNDS).take_while(|_| Instant::now() < end) {
                share();
                begun.store(round, Release);
                for _ in 0..round * 7 % 64 {
                    std::hint::spin_loop();
                }
                let away = go(staging, there, here, [true; PAGES], &mut uncounted);
                let back = go(program, here, there, away, &mut 0);
                assert_eq!(back, away);
                // Whoever waits finds its page here.
                program.wake(here, len);
                while done.load(Acquire) < round {
                    std::hint::spin_loop();
                }
                for page in 0..PAGES {
                    assert_eq!(word(page).load(Relaxed), round, "page {page}");
                }
            }
        });
        println!("{uncounted} pages not counted");
        // SAFETY: not used again.
        unsafe {
            mem::munmap(here, len).unwrap();
            mem::munmap(there, len).unwrap();
        }
        staging.close();
    }

    /// Lets the writer go, also where the test has failed.
    struct End<'a>(&'a AtomicU64, Uffd);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(u64::MAX, Release);
            // From here on the kernel fills what is missing.
            self.1.close();
        }
    }

    /// A fork, after which nobody else has the pages, and each is still write-protected.
    fn share() {
        // SAFETY: the child ends at once.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(pid, core::ptr::null_mut(), 0), pid);
        }
    }

    /// Moves those of the pages that can be moved; says which.
    fn go(
        uffd: Uffd,
        dst: usize,
        src: usize,
        pages: [bool; PAGES],
        uncounted: &mut usize,
    ) -> [bool; PAGES] {
        let map = Pagemap::open().unwrap();
        let mut moved = [false; PAGES];
        let mut page = 0;
        while page < PAGES {
            let n = pages[page..].iter().take_while(|is| **is).count();
            if n == 0 {
                page += 1;
                continue;
            }
            let (at, len) = (page * PAGE_SIZE, n * PAGE_SIZE);
            // SAFETY: both are this test's; only atomics are used there.
            let r = unsafe { uffd.mv(dst + at, src + at, len, map, uncounted) };
            let done = r.map_or_else(Refused::done, |()| len) / PAGE_SIZE;
            moved[page..page + done].fill(true);
            page += done;
            match r {
                Ok(()) | Err(Refused::Again { .. }) => {}
                // Shared still: it stays.
                Err(Refused::Busy { .. }) => page += 1,
                Err(e) => panic!("page {page}: {e:?}"),
            }
        }
        map.close();
        moved
    }
}
