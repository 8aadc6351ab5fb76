//! What the processor decides: one file each, and nothing of it outside this folder.
//!
//! | what | why |
//! |---|---|
//! | `difftest_probe_read`, `difftest_probe_write` | each a function that touches the byte in its first instruction, and gives 0 |
//! | `difftest_probe_failed` | gives 1 in their place |
//! | `instruction`, `go_on_at` | where a signal has come, and where it goes on |

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{go_on_at, instruction};

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "this processor has no file beside `arch/x86_64.rs` yet: the table above says what it needs"
);

extern "C" {
    pub fn difftest_probe_read(at: usize) -> i32;
    pub fn difftest_probe_write(at: usize) -> i32;
    pub fn difftest_probe_failed() -> i32;
}
