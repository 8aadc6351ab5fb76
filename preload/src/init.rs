//! The constructor: before the program's own code runs.

use crate::patch::Writable;
use crate::state::state;
use crate::window::Window;
use crate::{
    alone, arch, brk, c_thread, calls, exec, failure, found, gate, go, maps, patch, resident,
    rights, runtimes, tasks,
};
use core::ffi::CStr;
use hugeswap::control;
use hugeswap::control::link::{self, Address};
use hugeswap::engine::{self, Engine, StartError};
use hugeswap::mm::{PAGE_SIZE, PMD_SIZE};
use hugeswap::sys::{self, fd, mem, syscall, thread, Errno};

/// Where the window is looked for: far below what the kernel maps by itself, above where
/// position-independent programs and their heap lie.
const WINDOW_AT: usize = 0x6000_0000_0000;
const WINDOW: usize = 4 << 40;

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    // SAFETY: the environment is not changed by anybody yet.
    let address = unsafe { libc::getenv(c"HUGESWAP_RUN".as_ptr()) };
    if address.is_null() {
        return;
    }
    if sys::arch::is_emulated() {
        // The emulator has an engine, if anybody has: to it the program's memory is its own.
        return;
    }
    // SAFETY: a C string of the environment.
    let address = unsafe { CStr::from_ptr(address) };
    if let Some(what) = runtimes::other() {
        say(&format!("hugeswap: this program runs unmanaged: {what}\n"));
        decline(address.to_bytes());
        show();
        return;
    }
    let e = match set_up(address.to_bytes()) {
        Ok(()) => return,
        Err(e) => e,
    };
    match e {
        Failed::NoRun(e) => {
            say(&format!(
                "hugeswap: this program runs unmanaged: the run's supervisor can't be reached ({e})\n"
            ));
            show();
        }
        Failed::Other(e) => {
            let why = format!("process {}: {e}", thread::getpid());
            if !control::log(&why) {
                say(&format!("hugeswap: {why}\n"));
            }
            thread::exit_group(engine::EXIT_START);
        }
    }
}

/// Why there is no engine.
enum Failed {
    /// No run is there: the program goes on without.
    NoRun(Errno),
    Other(String),
}

impl From<String> for Failed {
    fn from(e: String) -> Failed {
        Failed::Other(e)
    }
}

/// Tells the supervisor.
fn decline(address: &[u8]) {
    let (address, door) = find(address);
    if let Some(address) = address {
        address.decline(door);
    }
}

/// Shows it to a supervisor that can't be spoken to: by `control::DOES_WITHOUT`. A filter of system calls may be there
/// already, and let pass only what a loader needs.
fn show() {
    if let Ok(page) = mem::map_anon(PAGE_SIZE) {
        // SAFETY: a page of its own, which nobody touches.
        let _ = unsafe { mem::mprotect(page as usize, PAGE_SIZE, libc::PROT_WRITE) };
    }
}

/// What the environment says of the run: its address, and a door or -1.
fn find(text: &[u8]) -> (Option<Address>, i32) {
    let (address, door) = link::Door::split(text);
    let door = door.filter(|d| d.is_there()).map_or(-1, |d| d.number);
    (Address::parse(address), door)
}

fn say(text: &str) {
    // SAFETY: writes the bytes of the text.
    let _ = unsafe { syscall(libc::SYS_write, [2, text.as_ptr() as usize, text.len()]) };
}

fn set_up(address: &[u8]) -> Result<(), Failed> {
    let (address, door) = find(address);
    let address = address.ok_or(Failed::NoRun(Errno::EINVAL))?;
    failure::report();
    if let Ok(clock) = patch::find(c"clock_gettime") {
        // SAFETY: found in the C library.
        unsafe { thread::ask_for_time(clock) };
    }
    mem::set_up_arena();
    let single = maps::is_single_threaded();
    let started = engine::start(address, door);
    fd::close(door);
    let e = started.map_err(|e| match e {
        StartError::NoRun(e) => Failed::NoRun(e),
        e => Failed::Other(e.to_string()),
    })?;
    if door >= 0 {
        alone::go_apart();
    }
    if !c_thread::is_known() {
        return Err(Failed::Other(
            "this C library is not one that hugeswap knows (glibc 2.34 and later)".into(),
        ));
    }
    rights::note();
    let targets = Targets::find().map_err(|e| format!("the C library cannot be hooked: {e}"))?;
    failure::fail_if_asked();
    gate::set_up().map_err(|e| format!("no stacks for hooks: {e}"))?;
    make_window(e, &targets)?;
    if single {
        found::adopt(e);
    }
    exec::set_up();
    go::set_up();
    // SAFETY: in the constructor, before the program's threads.
    unsafe { targets.redirect() }.map_err(|e| format!("the C library cannot be hooked: {e}"))?;
    brk::note_entries();
    resident::find_rseq();
    resident::keep_kernels_words(e);
    Ok(())
}

fn make_window(e: &Engine, t: &Targets) -> Result<(), String> {
    let at = reserve_window().map_err(|e| {
        format!("no address space for the program's memory ({e}); is `ulimit -v` set? hugeswap needs it unlimited")
    })?;
    e.register(0, at, WINDOW)
        .map_err(|e| format!("userfaultfd refuses to register memory ({e})"))?;
    let mut s = state().lock();
    s.window = Window::new(at, at + WINDOW);
    s.regions.insert(at, at + WINDOW);
    // SAFETY: the C library's own variable.
    let now = unsafe { (t.curbrk as *const usize).read() };
    if now < at {
        // malloc accepts a break that moved up, not one that moved down.
        if let Some(heap) = s.window.take(brk::RESERVED, 0) {
            let end = heap + brk::RESERVED;
            s.heap = (heap, end);
            // What the program unmaps there is not for other mappings.
            s.window.begin_at(end);
            brk::set_up(heap, t.curbrk);
        }
    }
    Ok(())
}

fn reserve_window() -> Result<usize, Errno> {
    for k in 0..8 {
        let at = WINDOW_AT + k * (WINDOW + PMD_SIZE).next_multiple_of(1 << 40);
        // SAFETY: nothing is replaced.
        match unsafe { mem::map_at_noreplace(at, WINDOW, libc::PROT_NONE) } {
            Err(Errno::EEXIST) => continue,
            r => return r.map(|()| at),
        }
    }
    Err(Errno::ENOMEM)
}

/// The functions of the C library that we stand for.
struct Targets {
    functions: [(&'static CStr, usize, usize); 14],
    curbrk: usize,
}

/// More functions than we replace where they are there.
const OTHERS: usize = 64;

impl Targets {
    fn find() -> Result<Targets, patch::PatchError> {
        use arch::*;
        let list: [(&'static CStr, unsafe extern "C" fn()); 14] = [
            (c"mmap", hugeswap_entry_mmap),
            (c"munmap", hugeswap_entry_munmap),
            (c"mprotect", hugeswap_entry_mprotect),
            (c"madvise", hugeswap_entry_madvise),
            (c"mremap", hugeswap_entry_mremap),
            (c"brk", hugeswap_entry_brk),
            (c"_Fork", hugeswap_entry_fork),
            (c"mlock", hugeswap_entry_mlock),
            (c"munlock", hugeswap_entry_munlock),
            (c"mlock2", hugeswap_entry_mlock2),
            (c"mlockall", hugeswap_entry_mlockall),
            (c"munlockall", hugeswap_entry_munlockall),
            (c"mincore", hugeswap_entry_mincore),
            (c"syscall", hugeswap_entry_syscall),
        ];
        let mut functions = [(c"", 0, 0); 14];
        for (f, (name, to)) in functions.iter_mut().zip(list) {
            *f = (name, patch::find(name)?, to as usize);
        }
        Ok(Targets {
            functions,
            curbrk: patch::find(c"__curbrk")?,
        })
    }

    /// # Safety
    /// See `patch::redirect`.
    unsafe fn redirect(&self) -> Result<(), patch::PatchError> {
        // Few programs need these: filters of system calls, userfaultfds of their own, namespaces,
        // protection keys, memory that is shared in the way of System V; what tells of the process's
        // threads, and what ends it as this program. Not every C library has all of them.
        let optional = [
            (c"prctl", calls::prctl()),
            (c"ioctl", calls::ioctl()),
            (c"posix_madvise", calls::posix_madvise()),
            (c"shmat", arch::hugeswap_entry_shmat as *const () as usize),
            (c"shmdt", arch::hugeswap_entry_shmdt as *const () as usize),
            (
                c"pkey_mprotect",
                arch::hugeswap_entry_pkey_mprotect as *const () as usize,
            ),
            (
                c"unshare",
                arch::hugeswap_entry_unshare as *const () as usize,
            ),
            (c"setns", arch::hugeswap_entry_setns as *const () as usize),
            (
                c"process_madvise",
                arch::hugeswap_entry_process_madvise as *const () as usize,
            ),
        ]
        .into_iter()
        .chain(tasks::functions())
        .chain(exec::functions())
        .filter_map(|(name, to)| Some((name, patch::find(name).ok()?, to)));
        let mut others = [(c"", 0, 0); OTHERS];
        let mut nr = 0;
        for (place, other) in others.iter_mut().zip(optional) {
            *place = other;
            nr += 1;
        }
        let others = &others[..nr];
        let all = self.functions.iter().chain(others);
        let writable = Writable::between(all.map(|&(name, from, _)| (name, from)));
        for &(name, from, to) in &self.functions {
            // SAFETY: passed on.
            unsafe { patch::redirect(name, from, to, writable.as_ref()) }?;
        }
        for &(name, from, to) in others {
            // SAFETY: passed on.
            let _ = unsafe { patch::redirect(name, from, to, writable.as_ref()) };
        }
        Ok(())
    }
}
