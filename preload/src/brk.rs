//! The program's heap by brk, in memory of the window: sqlite, for one, uses nothing else.

use crate::patch::Code;
use crate::state::state;
use crate::{lock, map};
use hugeswap::engine::Engine;
use hugeswap::mm::{PAGE_SIZE, PMD_SIZE};
use hugeswap::sync::Mutex;
use hugeswap::sys::syscall::raw;
use hugeswap::sys::{limits, mem, Errno};
use std::sync::OnceLock;

/// Addresses kept for it.
pub const RESERVED: usize = 1 << 40;

struct Heap {
    start: usize,
    end: usize,
    now: usize,
    /// Accessible up to here: whole 2 MiB ranges where nothing is in the way, so that the first touch of one finds
    /// it whole.
    open: usize,
    /// The C library's own variable.
    curbrk: usize,
}

static HEAP: Mutex<Heap> = Mutex::new(Heap {
    start: 0,
    end: 0,
    now: 0,
    open: 0,
    curbrk: 0,
});

/// How the C library's `brk` and `sbrk` begin: the first one leads here.
static ENTRIES: OnceLock<[Option<Code>; 2]> = OnceLock::new();

/// The C library's functions are as they are to stay.
pub fn note_entries() {
    let _ = ENTRIES.set([c"brk", c"sbrk"].map(Code::of));
}

/// Code at these addresses may have been changed. Who wants to hear of what is unmapped (UCX, for one) lays itself over
/// `brk`, and asks the kernel by an instruction of its own, whose break is not this one. So `brk` goes on leading here. Who
/// lays itself over other functions calls them by `syscall`, and that is a hook as well.
pub fn keep_entries(start: usize, end: usize) {
    let all = ENTRIES.get().into_iter().flatten().flatten();
    for code in all.filter(|code| code.is_in(start, end)) {
        // SAFETY: so it was before. Who has changed it just now had to care for threads that run in it.
        let _ = unsafe { code.restore() };
    }
}

/// Puts the break at the start of our stretch, if the C library lets itself be told so.
pub fn set_up(start: usize, curbrk: usize) {
    let mut h = HEAP.lock();
    *h = Heap {
        start,
        end: start + RESERVED,
        now: start,
        open: start,
        curbrk,
    };
    // SAFETY: the address of the C library's `__curbrk`; nobody else runs yet.
    unsafe { (curbrk as *mut usize).write(start) };
}

/// Holes that the program has made there are mapped again. ENOMEM where it has mapped something else.
fn fill_holes(e: &Engine, bell: usize, start: usize, end: usize) -> Result<(), Errno> {
    let holes = state().lock().missing_heap(start, end);
    for (from, to) in holes {
        // SAFETY: nothing is replaced.
        unsafe { mem::map_at_noreplace(from, to - from, libc::PROT_NONE) }
            .map_err(|_| Errno::ENOMEM)?;
        map::map_heap_anew(e, bell, from, to)?;
    }
    Ok(())
}

/// As brk(3): 0, or ENOMEM.
pub fn brk(e: &Engine, bell: usize, addr: usize) -> Result<usize, Errno> {
    let mut h = HEAP.lock();
    if h.start == 0 {
        return Err(Errno(libc::ENOSYS));
    }
    // Of an address below its start the kernel says where the break is, and changes nothing; the C library takes
    // that for success.
    if addr >= h.start {
        set(e, bell, &mut h, addr)?;
    }
    // SAFETY: the C library's own variable.
    unsafe { (h.curbrk as *mut usize).write(h.now) };
    Ok(0)
}

/// As the system call: where the break is afterwards. The C library does not learn of it.
pub fn by_number(e: &Engine, bell: usize, addr: usize) -> usize {
    let mut h = HEAP.lock();
    if h.start == 0 {
        // SAFETY: the program's own call.
        return unsafe { raw(libc::SYS_brk, [addr, 0, 0, 0, 0, 0]) } as usize;
    }
    if addr >= h.start {
        let _ = set(e, bell, &mut h, addr);
    }
    h.now
}

fn set(e: &Engine, bell: usize, h: &mut Heap, addr: usize) -> Result<(), Errno> {
    if addr > h.end || addr - h.start > limits::soft(libc::RLIMIT_DATA) {
        return Err(Errno::ENOMEM);
    }
    let page = |a: usize| a.next_multiple_of(PAGE_SIZE);
    // The kernel leaves a page between the heap and what comes next.
    let beyond = (page(addr) + PAGE_SIZE).min(h.end);
    if page(addr) > page(h.now) {
        if state().lock().in_heap.intersects(page(h.now), beyond) {
            return Err(Errno::ENOMEM);
        }
        fill_holes(e, bell, page(h.now), beyond)?;
    }
    if addr > h.open {
        let whole = addr.next_multiple_of(PMD_SIZE);
        let is_free = state().lock().is_unused_heap(h.open, whole.min(h.end));
        let open = if is_free { whole } else { page(addr) };
        let (at, n) = (h.open, open - h.open);
        // SAFETY: the stretch belongs to the heap and was not accessible before.
        unsafe { mem::mprotect(at, n, libc::PROT_READ | libc::PROT_WRITE) }?;
        e.add_writable(at, n)?;
        h.open = open;
    } else if addr < h.now {
        // What is given up reads as zeros if the heap grows again.
        let (from, to) = (page(addr), page(h.now));
        if from < to {
            // What the program had protected there is forgotten with it.
            map::map_heap_anew(e, bell, from, to)?;
        }
    }
    // Under mlockall(MCL_FUTURE).
    let (from, to) = (page(h.now), page(addr));
    if from < to {
        lock::mapped(e, from, to - from).map_err(|_| Errno::ENOMEM)?;
    }
    h.now = addr;
    Ok(())
}
