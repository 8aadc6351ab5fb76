//! The kernel's marks of pages that were written (soft-dirty). A page in swap has none: a garbage collector that asks for
//! them would take it for one that nobody has written to, and free what it names. So a program that wants to take its
//! marks away, to see which come back, is told that it may not.

use core::ffi::{c_char, CStr};
use hugeswap::sys::{fd, thread};

/// Whether the path is that of the marks of this process.
fn names_marks(path: &[u8]) -> bool {
    let Some(owner) = path.strip_prefix(b"/proc/") else {
        return false;
    };
    let Some(owner) = owner.strip_suffix(b"/clear_refs") else {
        return false;
    };
    let number = || core::str::from_utf8(owner).ok()?.parse::<u32>().ok();
    owner == b"self" || owner == b"thread-self" || number() == Some(thread::getpid())
}

/// What is to be said of a file that was opened by `path`.
///
/// # Safety
/// If there is a descriptor, the path is a C string.
pub unsafe fn check(opened: i32, path: *const c_char, flags: i32) -> i32 {
    if opened < 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
        return opened;
    }
    // SAFETY: the caller's contract.
    let path = unsafe { CStr::from_ptr(path) };
    if !names_marks(path.to_bytes()) || hugeswap::engine::get().is_none() {
        return opened;
    }
    fd::close(opened);
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = libc::EACCES };
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_marks() {
        let own = std::format!("/proc/{}/clear_refs", std::process::id());
        for path in ["/proc/self/clear_refs", &own] {
            assert!(names_marks(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "/proc/self/maps",
            "/proc/1/clear_refs",
            "/tmp/clear_refs",
        ] {
            assert!(!names_marks(path.as_bytes()), "{path}");
        }
    }
}
