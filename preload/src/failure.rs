//! A bug of ours must never leave the program hanging: it ends with a message.

use core::fmt::Write;
use hugeswap::control;
use hugeswap::sys::thread::{self, Files};

/// EX_SOFTWARE.
const EXIT_BUG: i32 = 70;

/// A line that is built without a heap, whose lock the failing thread may hold.
struct FixedText {
    bytes: [u8; 240],
    len: usize,
}

impl Write for FixedText {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// From now on a panic in this library is logged, and ends the program.
pub fn report() {
    std::panic::set_hook(Box::new(|info| {
        let mut line = FixedText {
            bytes: [0; 240],
            len: 0,
        };
        let place = info.location();
        let _ = write!(
            line,
            "a bug in hugeswap ends process {}: {} at {}:{}",
            thread::getpid(),
            info.payload().downcast_ref::<&str>().unwrap_or(&"panic"),
            place.map_or("?", |p| p.file()),
            place.map_or(0, |p| p.line()),
        );
        let text = core::str::from_utf8(&line.bytes[..line.len]);
        control::log(text.unwrap_or("a bug in hugeswap"));
        thread::exit_group(EXIT_BUG);
    }));
}

/// For tests: HUGESWAP_TEST_PANIC=1 makes an engine thread panic.
pub fn fail_if_asked() {
    // SAFETY: the environment is not changed by anybody yet.
    if unsafe { libc::getenv(c"HUGESWAP_TEST_PANIC".as_ptr()) }.is_null() {
        return;
    }
    extern "C" fn fail(_: *mut u8) {
        panic!("asked for by HUGESWAP_TEST_PANIC");
    }
    // SAFETY: the thread does nothing but fail.
    let _ = unsafe { thread::spawn(fail, core::ptr::null_mut(), Files::Shared) };
}
