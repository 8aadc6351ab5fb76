//! The library that `hugeswap run` preloads: it starts the engine in the program's process and
//! stands between the program and its address space.
//!
//! It uses the engine, and through it the rooms below. It may not decide what is in memory, use a descriptor
//! of the engine's, or touch managed memory while it holds a lock; nobody uses it but by preloading.
//!
//! | file | what |
//! |---|---|
//! | `init` | the constructor |
//! | `patch` | the C library's functions become ours |
//! | `entry` | from such a call to a hook: what the entries call |
//! | `frame` | a call on its way to a hook and back |
//! | `gate` | the stacks of hooks, and how a fork comes to be alone |
//! | `calls` | what is looked at before it is made: syscall, prctl, ioctl |
//! | `hooks` | which hook stands for which call |
//! | `manageable` | which memory can be managed |
//! | `map`, `remap` | mmap, munmap, shmat; mremap |
//! | `protect`, `advise` | mprotect; madvise, process_madvise |
//! | `stretch` | hooks keep out of each other's way |
//! | `brk`, `fork`, `clone` | the heap; fork and what is like it |
//! | `alone` | unshare, setns: namespaces for processes of one thread |
//! | `rights` | setuid and its like: the engine's threads give up rights with the program |
//! | `arch` | what the processor decides: assembly, layouts of registers and threads |
//! | `clone_args` | the memory that the kernel reads and writes when a child is made |
//! | `lock`, `resident` | mlock; what of the C library the kernel itself reads |
//! | `c_thread` | what the C library keeps of a thread |
//! | `look` | mincore |
//! | `release` | memory for a userfaultfd of the program's own |
//! | `exec` | whether hugeswap will be in the program that comes next |
//! | `tasks` | the program's list of its threads, without ours |
//! | `direct`, `marks` | opening files for direct I/O; and the one that takes the marks of written pages away |
//! | `sandbox`, `deputy` | filters of system calls; a thread that is under none |
//! | `own` | calls on addresses that are the engine's own |
//! | `state`, `window` | which addresses are ours, and which are free |
//! | `bare` | what of the window is unmapped, and mapped again |
//! | `failure` | a bug of ours ends the program with a message |
//! | `maps` | what was mapped before we came |
//! | `alloc` | the library's own heap |

mod advise;
mod alloc;
mod alone;
mod arch;
mod bare;
mod brk;
mod c_thread;
mod calls;
mod clone;
mod clone_args;
mod deputy;
mod direct;
mod elf;
mod entry;
mod exec;
mod failure;
mod fork;
mod found;
mod frame;
mod gate;
mod go;
mod hooks;
mod init;
mod lock;
mod look;
mod manageable;
mod map;
mod maps;
mod marks;
mod own;
mod patch;
mod protect;
mod release;
mod remap;
mod resident;
mod rights;
mod runtimes;
mod sandbox;
mod state;
mod stretch;
mod tasks;
mod window;
