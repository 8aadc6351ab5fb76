//! Calls that the worker makes, and how it ends when one of them is wrong.

#![allow(unsafe_code)]

use crate::plan::KINDS;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Exit status of a worker that found a difference.
pub const FOUND: i32 = 99;

/// The operation under way, for messages; and where they and the trace go.
pub static CURRENT: AtomicU64 = AtomicU64::new(0);
pub static KIND: AtomicUsize = AtomicUsize::new(0);
pub static SEQUENCE: AtomicU64 = AtomicU64::new(0);
pub static FINDINGS: AtomicI32 = AtomicI32::new(2);
pub static TRACE: AtomicI32 = AtomicI32::new(-1);

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the bytes are valid for their length.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if n <= 0 {
            return;
        }
        bytes = &bytes[n as usize..];
    }
}

/// A message without the heap: what is wrong may have struck in the middle of malloc.
struct FixedText {
    bytes: [u8; 400],
    len: usize,
}

impl core::fmt::Write for FixedText {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Ends this process with a finding.
pub fn fail_with(what: core::fmt::Arguments<'_>) -> ! {
    let mut line = FixedText {
        bytes: [0; 400],
        len: 0,
    };
    let _ = core::fmt::write(
        &mut line,
        format_args!(
            "sequence {} operation {:#x} {} pid {}: {what}\n",
            SEQUENCE.load(Relaxed),
            CURRENT.load(Relaxed),
            KINDS[KIND.load(Relaxed)].1,
            std::process::id()
        ),
    );
    write_all(FINDINGS.load(Relaxed), &line.bytes[..line.len]);
    // SAFETY: ends the process.
    unsafe { libc::_exit(FOUND) }
}

pub fn fail(what: &str) -> ! {
    fail_with(format_args!("{what}"))
}

/// Notes that the operation is carried out.
pub fn trace(id: u64) {
    let fd = TRACE.load(Relaxed);
    if fd >= 0 {
        write_all(fd, &id.to_ne_bytes());
    }
}

/// A new file without a name.
pub fn temporary(dir: &std::path::Path, len: usize) -> i32 {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).unwrap_or_default();
    // SAFETY: the path is a C string.
    let fd = unsafe {
        libc::open(
            path.as_ptr(),
            libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC,
            0o600,
        )
    };
    // SAFETY: no memory is passed.
    if fd < 0 || unsafe { libc::ftruncate(fd, len as i64) } != 0 {
        fail_with(format_args!("no temporary file: errno {}", errno()));
    }
    fd
}

pub fn close(fd: i32) {
    // SAFETY: the descriptor is the caller's.
    unsafe { libc::close(fd) };
}

/// Maps a file, shared: at `at`, replacing what is there, if it is not 0.
///
/// # Safety
/// Nothing else may use what is replaced.
pub unsafe fn map_shared(fd: i32, len: usize, at: usize) -> usize {
    let fixed = if at != 0 { libc::MAP_FIXED } else { 0 };
    // SAFETY: the caller's contract.
    let p = unsafe {
        libc::mmap(
            at as *mut _,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | fixed,
            fd,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        fail_with(format_args!("the file cannot be mapped: errno {}", errno()));
    }
    p as usize
}

/// A count that the process shares with all its children to come.
pub fn shared_count(dir: &std::path::Path) -> &'static AtomicI32 {
    let fd = temporary(dir, size_of::<AtomicI32>());
    // SAFETY: a new mapping of zeros, which is never unmapped.
    let count = unsafe { &*(map_shared(fd, size_of::<AtomicI32>(), 0) as *const AtomicI32) };
    close(fd);
    count
}

/// Stops unless a call returned 0.
#[track_caller]
pub fn must(r: i32, what: &str) {
    if r != 0 {
        fail_with(format_args!("{what}: errno {}", errno()));
    }
}
