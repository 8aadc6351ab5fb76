//! What a processor's instructions, registers and calling conventions decide: one file each, and nothing
//! of it outside this folder.
//!
//! | what | why |
//! |---|---|
//! | `raw` | a system call without the C library |
//! | `CALL_AND_RETURN` | what the same is made of, in memory |
//! | `clone_thread` | a thread that starts on a stack of ours and never returns to the C library |
//! | `lay_stack` | what such a thread finds on its stack |
//! | `lay_thread_block` | what stands at the thread pointer |
//! | `thread_pointer` | the calling thread's |
//! | `open_all_keys` | memory protection keys do not keep the calling thread out |
//! | `is_emulated` | a program, and not a machine, carries out this one's instructions |

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{
    clone_thread, lay_stack, lay_thread_block, open_all_keys, thread_pointer, CALL_AND_RETURN,
};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use x86_64::{is_emulated, raw};

#[cfg(miri)]
mod miri;
#[cfg(miri)]
pub use miri::raw;

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "this processor has no file beside `arch/x86_64.rs` yet: the table above says what it needs"
);
