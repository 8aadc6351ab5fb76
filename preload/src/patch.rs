//! Taking the place of functions of the C library.
//!
//! glibc's malloc calls the library's own mmap, not the symbol, so a preloaded `mmap` would miss
//! it. The first bytes of the function itself are replaced by an absolute jump. This happens in
//! the constructor, before the program has threads of its own.

use crate::arch::{jump_to, JUMP};
use crate::elf::Symbols;
use core::ffi::{c_char, c_void, CStr};
use hugeswap::sys::syscall::syscall;
use hugeswap::sys::{fd, mem, Errno};

/// Why a function cannot be replaced.
#[derive(Debug)]
pub enum PatchError {
    Missing(&'static CStr),
    /// Too short, or not the code we know how to stand for.
    Unknown(&'static CStr),
    Protect(Errno),
}

impl core::fmt::Display for PatchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PatchError::Missing(name) => write!(f, "it has no {}", name.to_string_lossy()),
            PatchError::Unknown(name) => {
                write!(f, "its {} is not as expected", name.to_string_lossy())
            }
            PatchError::Protect(e) => write!(f, "its code cannot be written to ({e})"),
        }
    }
}

/// The address of a function of the C library itself.
pub fn find(name: &'static CStr) -> Result<usize, PatchError> {
    let library = library();
    let p = match library.is_null() {
        true => core::ptr::null_mut(),
        // SAFETY: a plain look-up with a constant string.
        false => unsafe { libc::dlsym(library, name.as_ptr()) },
    };
    if p.is_null() {
        Err(PatchError::Missing(name))
    } else {
        Ok(p as usize)
    }
}

/// The symbols of the C library.
fn symbols() -> Symbols {
    /// `struct link_map`, as far as it is public.
    #[repr(C)]
    struct LinkMap {
        base: usize,
        name: *const c_char,
        dynamic: usize,
    }
    const RTLD_DI_LINKMAP: i32 = 2;
    let mut map: *const LinkMap = core::ptr::null();
    // SAFETY: the loader gives what it has of a library that is loaded, and stays.
    unsafe {
        let library = library();
        let into = (&raw mut map).cast();
        if library.is_null() || libc::dlinfo(library, RTLD_DI_LINKMAP, into) != 0 {
            return Symbols::default();
        }
        Symbols::of((*map).base, (*map).dynamic)
    }
}

/// The C library; null if it is not there.
fn library() -> *mut c_void {
    // SAFETY: a constant string; nothing is loaded.
    unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// Code of the C library that is writable until this is dropped.
pub struct Writable {
    start: usize,
    len: usize,
}

impl Writable {
    /// From the first of these functions to the last, of those that are the C library's own: what lies between is its
    /// code. None where that is not allowed: then each is made writable when its turn comes, as far as that is.
    pub fn between(functions: impl Iterator<Item = (&'static CStr, usize)>) -> Option<Writable> {
        let page = hugeswap::mm::PAGE_SIZE;
        let symbols = symbols();
        let own = functions.filter(|&(name, from)| symbols.size_of(name, from) >= JUMP);
        let (first, last) = own.fold((usize::MAX, 0), |(first, last), (_, from)| {
            (first.min(from), last.max(from))
        });
        let start = first & !(page - 1);
        let len = (last + JUMP).next_multiple_of(page).checked_sub(start)?;
        let code = Writable { start, len };
        // SAFETY: one library's code, which stays executable. Where only a part of it could be changed, that ends with
        // `code`.
        let done = unsafe { mem::mprotect(start, len, WRITABLE_CODE) };
        done.is_ok().then_some(code)
    }

    fn has(&self, from: usize) -> bool {
        from >= self.start && from + JUMP <= self.start + self.len
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        // SAFETY: as it was before.
        let _ = unsafe { mem::mprotect(self.start, self.len, CODE) };
    }
}

const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;
const WRITABLE_CODE: i32 = CODE | libc::PROT_WRITE;

/// Makes the function at `from` go to `to`.
///
/// # Safety
/// No thread may be running in the first bytes of the function, and `to` must do what the
/// function's callers expect.
pub unsafe fn redirect(
    name: &'static CStr,
    from: usize,
    to: usize,
    writable: Option<&Writable>,
) -> Result<(), PatchError> {
    if symbols().size_of(name, from) < JUMP {
        return Err(PatchError::Unknown(name));
    }
    let code = jump_to(to);
    if writable.is_some_and(|w| w.has(from)) {
        // SAFETY: it is writable, and long enough; the rest is the caller's contract.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), from as *mut u8, JUMP) };
        return Ok(());
    }
    // Where writable code is forbidden (PR_SET_MDWE, or a filter of system calls), which outlives exec, the
    // kernel still writes as a debugger does.
    // SAFETY: passed on.
    match unsafe { write_code(from, &code) } {
        Err(PatchError::Protect(_)) if write_as_debugger(from, &code) => Ok(()),
        result => result,
    }
}

/// How a function begins.
pub struct Code {
    from: usize,
    bytes: [u8; JUMP],
}

impl Code {
    /// Of the C library's function of that name, as it is now. None where it is too short.
    pub fn of(name: &'static CStr) -> Option<Code> {
        let from = find(name).ok()?;
        // SAFETY: it has so many bytes.
        let read = || unsafe { bytes_at(from) };
        (symbols().size_of(name, from) >= JUMP).then(|| Code {
            from,
            bytes: read(),
        })
    }

    pub fn is_in(&self, start: usize, end: usize) -> bool {
        (start..end).contains(&self.from)
    }

    /// Makes it that again.
    ///
    /// # Safety
    /// No thread may be running in the first bytes of the function.
    pub unsafe fn restore(&self) -> Result<(), PatchError> {
        // SAFETY: it has had so many bytes from the start; the rest is passed on.
        match unsafe { bytes_at(self.from) } == self.bytes {
            true => Ok(()),
            // SAFETY: as above.
            false => unsafe { write_code(self.from, &self.bytes) },
        }
    }
}

/// # Safety
/// There is code of that length.
unsafe fn bytes_at(from: usize) -> [u8; JUMP] {
    // SAFETY: the caller's contract.
    unsafe { (from as *const [u8; JUMP]).read_unaligned() }
}

/// # Safety
/// See [`redirect`].
unsafe fn write_code(from: usize, code: &[u8; JUMP]) -> Result<(), PatchError> {
    let page = hugeswap::mm::PAGE_SIZE;
    let start = from & !(page - 1);
    let len = (from + JUMP).next_multiple_of(page) - start;
    // SAFETY: the pages hold the function; they are writable for a moment and as before after it.
    unsafe {
        mem::mprotect(start, len, WRITABLE_CODE).map_err(PatchError::Protect)?;
        core::ptr::copy_nonoverlapping(code.as_ptr(), from as *mut u8, JUMP);
        mem::mprotect(start, len, CODE).map_err(PatchError::Protect)
    }
}

/// By `/proc/self/mem`; whether all of it was written.
fn write_as_debugger(at: usize, code: &[u8; JUMP]) -> bool {
    let path = c"/proc/self/mem".as_ptr() as usize;
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    let args = [libc::AT_FDCWD as usize, path, flags, 0];
    // SAFETY: a constant path.
    let Ok(file) = (unsafe { syscall(libc::SYS_openat, args) }) else {
        return false;
    };
    let args = [file, code.as_ptr() as usize, JUMP, at];
    // SAFETY: the bytes outlive the call; what they take the place of is the caller's affair.
    let written = unsafe { syscall(libc::SYS_pwrite64, args) };
    fd::close(file as i32);
    written == Ok(JUMP)
}
