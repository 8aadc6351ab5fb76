//! The guard that makes it safe to use staging folios again.
//!
//! Some calls keep a hold of the program's pages that UFFDIO_MOVE does not see: vmsplice,
//! MSG_ZEROCOPY and io_uring's zero-copy sends, and direct I/O on file systems that take plain
//! references (NFS, 9p). A page that left memory and whose folio is used again at once would then
//! be sent, or written, with other bytes. So the program runs under a seccomp filter that stops it
//! at the first call that could lead there, until the supervisor has switched reuse off for the
//! whole run; then the call goes on. The engine asks after it has moved a folio out, so whatever
//! took hold of it before did so with reuse already off. All other calls pass the filter's bitmap
//! unseen.
//!
//! Installing a filter takes CAP_SYS_ADMIN, or no_new_privs, which would break setuid programs:
//! without the right, folios are not used again, which is safe and a little slower.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use hugeswap::control::Control;

const BPF_LD_W_ABS: u16 = 0x20;
const BPF_JEQ_K: u16 = 0x15;
const BPF_JSET_K: u16 = 0x45;
const BPF_RET_K: u16 = 0x06;
/// Offsets in `struct seccomp_data`: the call's number, the architecture, the low halves of the
/// arguments.
const NR: u32 = 0;
const ARCH: u32 = 4;
const fn arg(i: u32) -> u32 {
    16 + 8 * i
}
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const SO_ZEROCOPY: u32 = 60;
const RET_ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const RET_NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

const fn op(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Calls by the x32 convention have this bit in their number.
const X32: u32 = 0x4000_0000;

/// Numbered lines; a jump skips so many of those after it. Calls of 32-bit programs pass: such a
/// program is not managed, and a 64-bit one that makes them cannot name managed memory, which lies
/// above 4 GiB.
const FILTER: [libc::sock_filter; 23] = [
    /* 0*/ op(BPF_LD_W_ABS, ARCH, 0, 0),
    /* 1*/ op(BPF_JEQ_K, AUDIT_ARCH_X86_64, 0, 19),
    /* 2*/ op(BPF_LD_W_ABS, NR, 0, 0),
    /* 3*/ op(BPF_JSET_K, X32, 18, 0),
    /* 4*/ op(BPF_JEQ_K, libc::SYS_vmsplice as u32, 17, 0),
    /* 5*/ op(BPF_JEQ_K, libc::SYS_io_uring_setup as u32, 16, 0),
    /* 6*/ op(BPF_JEQ_K, libc::SYS_openat2 as u32, 15, 0),
    /* 7*/ op(BPF_JEQ_K, libc::SYS_openat as u32, 3, 0),
    /* 8*/ op(BPF_JEQ_K, libc::SYS_open as u32, 4, 0),
    /* 9*/ op(BPF_JEQ_K, libc::SYS_fcntl as u32, 5, 0),
    /*10*/ op(BPF_JEQ_K, libc::SYS_setsockopt as u32, 8, 10),
    /*11*/ op(BPF_LD_W_ABS, arg(2), 0, 0),
    /*12*/ op(BPF_JSET_K, libc::O_DIRECT as u32, 9, 8),
    /*13*/ op(BPF_LD_W_ABS, arg(1), 0, 0),
    /*14*/ op(BPF_JSET_K, libc::O_DIRECT as u32, 7, 6),
    /*15*/ op(BPF_LD_W_ABS, arg(1), 0, 0),
    /*16*/ op(BPF_JEQ_K, libc::F_SETFL as u32, 0, 4),
    /*17*/ op(BPF_LD_W_ABS, arg(2), 0, 0),
    /*18*/ op(BPF_JSET_K, libc::O_DIRECT as u32, 3, 2),
    /*19*/ op(BPF_LD_W_ABS, arg(2), 0, 0),
    /*20*/ op(BPF_JEQ_K, SO_ZEROCOPY, 1, 0),
    /*21*/ op(BPF_RET_K, RET_ALLOW, 0, 0),
    /*22*/ op(BPF_RET_K, RET_NOTIFY, 0, 0),
];

/// The program's side and the supervisor's side of handing over the filter's descriptor.
pub struct Guard {
    /// The child writes its process number and the descriptor's here.
    numbers: OwnedFd,
    /// It waits here until the descriptor was copied.
    taken: OwnedFd,
}

/// Lets the command install the filter before it becomes the program.
pub fn install(command: &mut Command) -> io::Result<Guard> {
    let (numbers_in, numbers_out) = super::sys::pipe()?;
    let (taken_in, taken_out) = super::sys::pipe()?;
    // SAFETY: the closure makes system calls only, on memory of its own.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog {
                len: FILTER.len() as u16,
                filter: FILTER.as_ptr() as *mut libc::sock_filter,
            };
            let fd = libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &program,
            ) as i32;
            let words = [libc::getpid(), fd];
            libc::write(numbers_out.as_raw_fd(), words.as_ptr().cast(), 8);
            if fd >= 0 {
                // The supervisor takes a copy of the descriptor; then ours can go.
                let mut b = 0u8;
                libc::read(taken_in.as_raw_fd(), (&raw mut b).cast(), 1);
                libc::close(fd);
            }
            Ok(())
        });
    }
    Ok(Guard {
        numbers: numbers_in,
        taken: taken_out,
    })
}

/// Beside `spawn`, because the child waits before exec: takes the filter's descriptor over and
/// serves it. Without it reuse is never switched on.
pub fn take_over(guard: Guard, control: &'static Control) {
    std::thread::spawn(move || {
        if let Some(listener) = copy_listener(&guard, control) {
            drop(guard);
            serve(listener, control);
        }
    });
}

fn copy_listener(guard: &Guard, control: &Control) -> Option<OwnedFd> {
    let mut words = [0i32; 2];
    // SAFETY: the buffers outlive the calls; the descriptors are ours.
    unsafe {
        if libc::read(guard.numbers.as_raw_fd(), words.as_mut_ptr().cast(), 8) != 8 {
            return None;
        }
        let [pid, fd] = words;
        if fd < 0 {
            return None;
        }
        let mut copy = -1;
        let pid_fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        if pid_fd >= 0 {
            copy = libc::syscall(libc::SYS_pidfd_getfd, pid_fd, fd, 0) as i32;
            libc::close(pid_fd);
        }
        if copy >= 0 {
            control.start_recycling();
        }
        libc::write(guard.taken.as_raw_fd(), [1u8].as_ptr().cast(), 1);
        (copy >= 0).then(|| OwnedFd::from_raw_fd(copy))
    }
}

const fn iowr(nr: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | (b'!' as u64) << 8 | nr
}

/// Every call that comes here switches reuse off, and goes on.
fn serve(listener: OwnedFd, control: &'static Control) {
    let recv = iowr(0, size_of::<libc::seccomp_notif>());
    let send = iowr(1, size_of::<libc::seccomp_notif_resp>());
    loop {
        // SAFETY: zeroed structures are what the kernel asks for; both outlive the calls.
        unsafe {
            let mut call: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(listener.as_raw_fd(), recv, &raw mut call) == -1 {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR | libc::ENOENT) => continue,
                    // Nobody runs under the filter any more.
                    _ => return,
                }
            }
            // The engine's own descriptors do not touch the program's pages.
            if !control.is_engine_thread(call.pid) {
                control.stop_recycling();
            }
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = call.id;
            answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            libc::ioctl(listener.as_raw_fd(), send, &raw mut answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter says of a call.
    fn judge(nr: i64, args: [u32; 6]) -> u32 {
        judge_of(AUDIT_ARCH_X86_64, nr, args)
    }

    fn judge_of(arch: u32, nr: i64, args: [u32; 6]) -> u32 {
        let load = |k: u32| match k {
            NR => nr as u32,
            ARCH => arch,
            k => args[(k as usize - 16) / 8],
        };
        let (mut at, mut a) = (0, 0);
        loop {
            let o = FILTER[at];
            at += 1;
            match o.code {
                BPF_LD_W_ABS => a = load(o.k),
                BPF_JEQ_K => at += if a == o.k { o.jt } else { o.jf } as usize,
                BPF_JSET_K => at += if a & o.k != 0 { o.jt } else { o.jf } as usize,
                _ => return o.k,
            }
        }
    }

    #[test]
    fn calls_that_may_keep_pages_are_stopped() {
        let direct = (libc::O_DIRECT | libc::O_RDWR) as u32;
        for (nr, args) in [
            (libc::SYS_vmsplice, [0; 6]),
            (i64::from(X32) + 1, [0; 6]),
            (libc::SYS_io_uring_setup, [0; 6]),
            (libc::SYS_openat2, [0; 6]),
            (libc::SYS_openat, [0, 0, direct, 0, 0, 0]),
            (libc::SYS_open, [0, direct, 0, 0, 0, 0]),
            (libc::SYS_fcntl, [3, libc::F_SETFL as u32, direct, 0, 0, 0]),
            (libc::SYS_setsockopt, [3, 1, SO_ZEROCOPY, 0, 0, 0]),
        ] {
            assert_eq!(judge(nr, args), RET_NOTIFY, "{nr} {args:?}");
        }
        let plain = libc::O_RDWR as u32;
        for (nr, args) in [
            (libc::SYS_read, [0; 6]),
            (libc::SYS_openat, [0, 0, plain, 0, 0, 0]),
            (libc::SYS_open, [0, plain, direct, 0, 0, 0]),
            (libc::SYS_fcntl, [3, libc::F_GETFL as u32, direct, 0, 0, 0]),
            (libc::SYS_fcntl, [3, libc::F_SETFL as u32, plain, 0, 0, 0]),
            (libc::SYS_setsockopt, [3, 1, 2, 0, 0, 0]),
            (9999, [direct; 6]),
        ] {
            assert_eq!(judge(nr, args), RET_ALLOW, "{nr} {args:?}");
        }
        assert_eq!(judge_of(3, libc::SYS_vmsplice, [0; 6]), RET_ALLOW);
    }
}
