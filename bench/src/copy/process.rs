//! Other processes: those that press on the cache, and the reference's
//! children. The benchmark has one thread, so `fork` is safe.

use super::region::Region;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A child that is killed when dropped.
pub struct Child(libc::pid_t);

impl Child {
    /// Runs `body` in a new process and ends it with `body`'s success.
    pub fn spawn(body: impl FnOnce() -> Result<(), String>) -> Result<Self, String> {
        // SAFETY: this process has one thread.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(format!("fork: {}", std::io::Error::last_os_error())),
            0 => {
                // SAFETY: asks for a signal when the parent ends; ends without
                // running the parent's destructors.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    let code = match body() {
                        Ok(()) => 0,
                        Err(e) => {
                            errln!("{e}");
                            1
                        }
                    };
                    libc::_exit(code)
                }
            }
            pid => Ok(Self(pid)),
        }
    }

    /// Waits for the end; an error unless it was a success.
    pub fn wait(self) -> Result<(), String> {
        let mut status = 0;
        // SAFETY: our own child, not waited for yet.
        let got = unsafe { libc::waitpid(self.0, &mut status, 0) };
        let pid = self.0;
        core::mem::forget(self);
        if got == pid && status == 0 {
            Ok(())
        } else {
            Err(format!("a child ended with status {status}"))
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, core::ptr::null_mut(), 0);
        }
    }
}

/// `nr` processes that copy memory to and fro, 64 MiB each way, for ever.
pub fn press(nr: usize) -> Result<Vec<Child>, String> {
    const SIZE: usize = 64 << 20;
    (0..nr)
        .map(|_| {
            Child::spawn(|| {
                let (a, b) = (Region::populated(SIZE)?, Region::populated(SIZE)?);
                loop {
                    // SAFETY: two mappings of that size.
                    unsafe {
                        core::ptr::copy_nonoverlapping(a.page(0, SIZE), b.page(0, SIZE), SIZE);
                        core::ptr::copy_nonoverlapping(b.page(0, SIZE), a.page(0, SIZE), SIZE);
                    }
                }
            })
        })
        .collect()
}

/// What a child of the reference's case tells its parent.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Told {
    pub copy_ns: f64,
    pub target_ns: f64,
    pub walk_ns: f64,
    /// From the common start to this child's end.
    pub total_ns: f64,
}

/// Most children of one run.
pub const CHILDREN: usize = 64;

/// Memory that parent and children share: a starting line and the answers.
pub struct Shared(*mut Board);

#[repr(C)]
struct Board {
    ready: AtomicU32,
    go: AtomicU32,
    told: [core::cell::UnsafeCell<Told>; CHILDREN],
}

impl Shared {
    pub fn new() -> Result<Self, String> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let len = size_of::<Board>();
        // SAFETY: a new zeroed mapping, which is a valid board.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(format!("mapping: {}", std::io::Error::last_os_error()));
        }
        Ok(Self(at.cast()))
    }

    fn board(&self) -> &Board {
        // SAFETY: mapped until dropped; written through atomics and cells.
        unsafe { &*self.0 }
    }

    /// A child says that it is ready and waits for the start.
    pub fn wait_for_start(&self) {
        self.board().ready.fetch_add(1, SeqCst);
        while self.board().go.load(SeqCst) == 0 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    /// The parent waits until `nr` children are ready and starts them.
    pub fn start(&self, nr: usize) {
        while (self.board().ready.load(SeqCst) as usize) < nr {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        self.board().go.store(1, SeqCst);
    }

    /// The answer of child `index`, by that child only.
    pub fn tell(&self, index: usize, told: Told) {
        // SAFETY: each child has a cell of its own; the parent reads it when
        // the child has ended.
        unsafe { *self.board().told[index].get() = told }
    }

    /// The answers of `nr` children that have ended.
    pub fn told(&self, nr: usize) -> Vec<Told> {
        let cells = &self.board().told[..nr];
        // SAFETY: the children have ended.
        cells.iter().map(|c| unsafe { *c.get() }).collect()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the whole mapping.
        unsafe { libc::munmap(self.0.cast(), size_of::<Board>()) };
    }
}
