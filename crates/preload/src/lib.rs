//! The library that `hugeswap run` preloads: it starts the engine in the program's process and
//! stands between the program and its address space.
//!
//! | file | what |
//! |---|---|
//! | `init` | the constructor |
//! | `patch` | the C library's functions become ours |
//! | `entry` | from such a call to a hook: signals blocked, own stack |
//! | `hooks` | mmap, munmap, mprotect, madvise, mremap |
//! | `brk`, `fork`, `clone` | the heap; fork and what is like it |
//! | `lock`, `resident` | mlock; what of the C library the kernel itself reads |
//! | `release` | memory for a userfaultfd of the program's own |
//! | `sandbox`, `deputy` | filters of system calls; a thread that is under none |
//! | `state`, `window` | which addresses are ours, and which are free |
//! | `failure` | a bug of ours ends the program with a message |
//! | `maps` | what was mapped before we came |
//! | `alloc` | the library's own heap |

mod alloc;
mod brk;
mod clone;
mod deputy;
mod entry;
mod failure;
mod fork;
mod hooks;
mod init;
mod lock;
mod maps;
mod patch;
mod release;
mod resident;
mod sandbox;
mod state;
mod window;
