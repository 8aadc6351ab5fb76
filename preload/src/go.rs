//! Go's runtime gives memory back by a system call of its own, which nobody sees, and takes it for zeros when it comes
//! again; of what is in swap it would get the old contents. With cgo it maps its memory by the C library, where it
//! would be managed. So what Go code maps is left alone, unless the runtime was told to write the zeros itself
//! (`control::go`). `hugeswap run` tells it, and so does a program of the run that starts one (`exec`).

use core::ffi::{c_int, c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use hugeswap::control::go;

/// The C library's `_dl_find_object` (2.35), which takes no lock.
static FIND: AtomicUsize = AtomicUsize::new(0);
/// No memory is taken for zeros.
static WRITES_ZEROS: AtomicBool = AtomicBool::new(false);
/// Something that was loaded at the start is Go's: for calls of which the caller is not known.
static ANY: AtomicBool = AtomicBool::new(false);

/// In the constructor.
pub fn set_up() {
    // SAFETY: plain look-ups; nobody changes the environment yet.
    unsafe {
        let find = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr());
        FIND.store(find as usize, Relaxed);
        libc::dl_iterate_phdr(Some(look_at), core::ptr::null_mut());
        let debug = libc::getenv(c"GODEBUG".as_ptr());
        if !debug.is_null() {
            let said = go::writes_zeros(CStr::from_ptr(debug).to_bytes());
            WRITES_ZEROS.store(said == Some(true), Relaxed);
        }
    }
}

unsafe extern "C" fn look_at(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader passes what is loaded, with its headers.
    let has_note = unsafe {
        let info = &*info;
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        has_note(headers, info.dlpi_addr as usize)
    };
    if has_note {
        ANY.store(true, Relaxed);
    }
    0
}

/// Whether memory that the code at this address maps can't be managed. 0: it is not known which code.
pub fn must_be_left_alone(caller: usize) -> bool {
    if WRITES_ZEROS.load(Relaxed) {
        return false;
    }
    match (FIND.load(Relaxed), caller) {
        (0, _) | (_, 0) => ANY.load(Relaxed),
        (find, caller) => is_of_go(find, caller),
    }
}

/// `struct dl_find_object`.
#[repr(C)]
struct Found {
    flags: u64,
    start: *const u8,
    end: *const u8,
    /// Of which the first word is by how much it lies higher than its file says.
    link_map: *const usize,
    frames: *const c_void,
    reserved: [u64; 7],
}

/// Whether the loaded file that has this code is Go's.
fn is_of_go(find: usize, code: usize) -> bool {
    let mut found = core::mem::MaybeUninit::<Found>::zeroed();
    // SAFETY: the function of that name, as the C library declares it.
    let find: extern "C" fn(*const c_void, *mut Found) -> c_int =
        unsafe { core::mem::transmute(find) };
    if find(code as *const c_void, found.as_mut_ptr()) != 0 {
        return false;
    }
    // SAFETY: all zeros are valid. A loaded file begins with its header, and stays as long as its code calls.
    unsafe {
        let Found {
            start,
            end,
            link_map,
            ..
        } = found.assume_init();
        let file = &*start.cast::<libc::Elf64_Ehdr>();
        let len = usize::from(file.e_phnum) * size_of::<libc::Elf64_Phdr>();
        let headers_end = (file.e_phoff as usize).saturating_add(len);
        if file.e_ident[..4] != *b"\x7fELF" || headers_end > end as usize - start as usize {
            return false;
        }
        let first = start.add(file.e_phoff as usize).cast();
        has_note(
            core::slice::from_raw_parts(first, file.e_phnum.into()),
            *link_map,
        )
    }
}

/// # Safety
/// These are the headers of a loaded file, `by` so much higher than they say.
unsafe fn has_note(headers: &[libc::Elf64_Phdr], by: usize) -> bool {
    let notes = headers.iter().filter(|h| h.p_type == libc::PT_NOTE);
    notes.into_iter().any(|h| {
        let at = by.wrapping_add(h.p_vaddr as usize) as *const u8;
        // SAFETY: the caller's contract; notes are loaded, and stay as they are.
        go::has_note(unsafe { core::slice::from_raw_parts(at, h.p_memsz as usize) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_is_not_go() {
        set_up();
        assert_ne!(FIND.load(Relaxed), 0);
        let here = this_is_not_go as *const () as usize;
        let there = libc::getpid as *const () as usize;
        for caller in [0, 1, here, there] {
            assert!(!must_be_left_alone(caller), "{caller:x}");
        }
    }
}
