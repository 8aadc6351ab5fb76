//! Taking the place of functions of the C library.
//!
//! glibc's malloc calls the library's own mmap, not the symbol, so a preloaded `mmap` would miss
//! it. The first bytes of the function itself are replaced by an absolute jump. This happens in
//! the constructor, before the program has threads of its own.

use crate::arch::{jump_to, JUMP};
use core::ffi::{c_void, CStr};
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
    // SAFETY: plain look-ups with constant strings.
    let p = unsafe {
        let libc_handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if libc_handle.is_null() {
            core::ptr::null_mut()
        } else {
            libc::dlsym(libc_handle, name.as_ptr())
        }
    };
    if p.is_null() {
        Err(PatchError::Missing(name))
    } else {
        Ok(p as usize)
    }
}

/// The size that the symbol table gives the function.
fn size_of_function(addr: usize) -> usize {
    #[repr(C)]
    struct Elf64Sym {
        _name: u32,
        _info: u8,
        _other: u8,
        _shndx: u16,
        _value: u64,
        size: u64,
    }
    extern "C" {
        fn dladdr1(
            addr: *const c_void,
            info: *mut libc::Dl_info,
            extra: *mut *mut c_void,
            flags: i32,
        ) -> i32;
    }
    const RTLD_DL_SYMENT: i32 = 1;
    let mut sym: *mut c_void = core::ptr::null_mut();
    // SAFETY: the structures outlive the call; the symbol entry is in the library's own memory.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if dladdr1(addr as *const c_void, &mut info, &mut sym, RTLD_DL_SYMENT) == 0 || sym.is_null()
        {
            return 0;
        }
        (*(sym as *const Elf64Sym)).size as usize
    }
}

/// Makes the function at `from` go to `to`.
///
/// # Safety
/// No thread may be running in the first bytes of the function, and `to` must do what the
/// function's callers expect.
pub unsafe fn redirect(name: &'static CStr, from: usize, to: usize) -> Result<(), PatchError> {
    if size_of_function(from) < JUMP {
        return Err(PatchError::Unknown(name));
    }
    let code = jump_to(to);
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
    /// As it is now. None where the function is too short.
    pub fn at(from: usize) -> Option<Code> {
        // SAFETY: it has so many bytes.
        let read = || unsafe { bytes_at(from) };
        (size_of_function(from) >= JUMP).then(|| Code {
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
        mem::mprotect(
            start,
            len,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        )
        .map_err(PatchError::Protect)?;
        core::ptr::copy_nonoverlapping(code.as_ptr(), from as *mut u8, JUMP);
        mem::mprotect(start, len, libc::PROT_READ | libc::PROT_EXEC).map_err(PatchError::Protect)
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
