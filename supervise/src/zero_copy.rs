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
//! Without UFFDIO_MOVE (before Linux 6.8) more depends on it: pages leave by copying, and whatever
//! was written to one by a device, or by the kernel through a hold that it took before, would be lost. So
//! there the filter also stops at calls by which such holds are taken ([`Watch::Pins`]), and nothing
//! leaves from then on.
//!
//! The kernel allows one listener. A program that wants its own gets it: the library tells us by a call that
//! does nothing, and ours ends.
//!
//! Installing a filter takes CAP_SYS_ADMIN, or no_new_privs, which would break setuid programs:
//! without the right, folios are not used again, which is safe and a little slower.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use hugeswap_control::{Writer, GUARD_PASS, GUARD_STOP};

use super::processes::{is_engine_thread, Pages};

const BPF_LD_W_ABS: u16 = 0x20;
const BPF_JEQ_K: u16 = 0x15;
const BPF_JSET_K: u16 = 0x45;
const BPF_RSH_K: u16 = 0x74;
const BPF_AND_K: u16 = 0x54;
const BPF_RET_K: u16 = 0x06;
/// Offsets in `struct seccomp_data`: the call's number, the architecture, the low halves of the
/// arguments.
const NR: u32 = 0;
const ARCH: u32 = 4;
const fn arg(i: u32) -> u32 {
    16 + 8 * i
}
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const AUDIT_ARCH_I386: u32 = 0x4000_0003;
const MSG_ZEROCOPY: u32 = libc::MSG_ZEROCOPY as u32;
const RET_ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const RET_NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;

const fn op(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Calls by the x32 convention have this bit in their number.
const X32: u32 = 0x4000_0000;

/// What must not go by unseen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Calls that may keep pages without a pin that UFFDIO_MOVE sees.
    ZeroCopy,
    /// Calls that may pin pages, too.
    Pins,
}

/// When a call is stopped.
enum When {
    Always,
    /// The argument has one of these bits.
    Bits(u32, u32),
    /// So, and the last argument does not say that we were told before.
    BitsUntold(u32, u32),
    Equals(u32, u32),
    OneOf(u32, &'static [u32]),
    /// The first argument is the first value and the second has one of the bits.
    EqualsAndBits((u32, u32), (u32, u32)),
    /// The argument, an ioctl's request, is of none of these types.
    TypeOtherThan(u32, &'static [u8]),
}

const O_DIRECT: u32 = libc::O_DIRECT as u32;

fn rules(watch: Watch) -> Vec<(i64, When)> {
    let fcntl = When::EqualsAndBits((1, libc::F_SETFL as u32), (2, O_DIRECT));
    let openat = match watch {
        Watch::ZeroCopy => When::BitsUntold(2, O_DIRECT),
        Watch::Pins => When::Bits(2, O_DIRECT),
    };
    let mut rules = vec![
        (libc::SYS_vmsplice, When::Always),
        (libc::SYS_io_uring_setup, When::Always),
        (libc::SYS_openat2, When::Always),
        (libc::SYS_openat, openat),
        (libc::SYS_open, When::Bits(1, O_DIRECT)),
        (libc::SYS_fcntl, fcntl),
        // Not SO_ZEROCOPY, without which the flag does nothing: a socket may have come with that.
        (libc::SYS_sendto, When::Bits(3, MSG_ZEROCOPY)),
        (libc::SYS_sendmsg, When::Bits(2, MSG_ZEROCOPY)),
        (libc::SYS_sendmmsg, When::Bits(3, MSG_ZEROCOPY)),
    ];
    if watch == Watch::Pins {
        rules.extend([
            (libc::SYS_io_setup, When::Always),
            // These write to memory through a hold of their own.
            (libc::SYS_process_vm_writev, When::Always),
            (libc::SYS_ptrace, When::Always),
            // Packet rings and the like in the program's memory.
            (libc::SYS_socket, When::Equals(0, libc::AF_XDP as u32)),
            // Devices take hold of memory by ioctl (graphics, video, RDMA, VFIO). Those of terminals,
            // sockets, files, userfaultfd and pidfd do not.
            (
                libc::SYS_ioctl,
                When::TypeOtherThan(1, &[b'T', 0x89, b'f', b'X', 0x94, 0xaa, 0xff]),
            ),
        ]);
    }
    rules
}

/// The same by int 0x80, which a 64-bit program may use too. Its memory can lie below 4 GiB, where such
/// calls reach it: where it asks for that by a hint.
fn rules_32(watch: Watch) -> Vec<(i64, When)> {
    const OPEN: i64 = 5;
    const SETFL: (u32, u32) = (1, libc::F_SETFL as u32);
    const SOCKETCALL: i64 = 102;
    let mut rules = vec![
        (OPEN, When::Bits(1, O_DIRECT)),
        (55, When::EqualsAndBits(SETFL, (2, O_DIRECT))),
        (221, When::EqualsAndBits(SETFL, (2, O_DIRECT))),
        (295, When::Bits(2, O_DIRECT)),
        // vmsplice, io_uring_setup, openat2
        (316, When::Always),
        (425, When::Always),
        (437, When::Always),
        (369, When::Bits(3, MSG_ZEROCOPY)),
        (370, When::Bits(2, MSG_ZEROCOPY)),
        (345, When::Bits(3, MSG_ZEROCOPY)),
        // send, sendto, sendmsg, sendmmsg, whose flags are in memory.
        (SOCKETCALL, When::OneOf(0, &[9, 11, 16, 20])),
    ];
    if watch == Watch::Pins {
        // ptrace, socketcall, ioctl, io_setup, process_vm_writev, socket
        let pins = [26, SOCKETCALL, 54, 245, 348, 359];
        rules.splice(0..0, pins.map(|nr| (nr, When::Always)));
    }
    rules
}

fn filter(watch: Watch) -> Vec<libc::sock_filter> {
    let old = judge_by(&rules_32(watch));
    let mut f = vec![
        op(BPF_LD_W_ABS, ARCH, 0, 0),
        op(BPF_JEQ_K, AUDIT_ARCH_X86_64, old.len() as u8 + 3, 0),
        op(BPF_JEQ_K, AUDIT_ARCH_I386, 1, 0),
        op(BPF_RET_K, RET_ALLOW, 0, 0),
        op(BPF_LD_W_ABS, NR, 0, 0),
    ];
    f.extend(old);
    f.extend([
        op(BPF_LD_W_ABS, NR, 0, 0),
        op(BPF_JSET_K, X32, 0, 1),
        op(BPF_RET_K, RET_NOTIFY, 0, 0),
    ]);
    f.extend(judge_by(&rules(watch)));
    f
}

/// What is done with a call, its number loaded.
fn judge_by(rules: &[(i64, When)]) -> Vec<libc::sock_filter> {
    let mut f = Vec::new();
    for (nr, when) in rules {
        let body = body(when);
        f.push(op(BPF_JEQ_K, *nr as u32, 0, body.len() as u8));
        f.extend(body);
    }
    f.push(op(BPF_RET_K, RET_ALLOW, 0, 0));
    f
}

/// What is done with a call of the rule's number; ends in an answer. A jump skips so many lines.
fn body(when: &When) -> Vec<libc::sock_filter> {
    let load = |i: u32| op(BPF_LD_W_ABS, arg(i), 0, 0);
    let mut f = match *when {
        When::Always => return vec![op(BPF_RET_K, RET_NOTIFY, 0, 0)],
        When::Bits(i, bits) => vec![load(i), op(BPF_JSET_K, bits, 0, 1)],
        When::BitsUntold(i, bits) => vec![
            load(i),
            op(BPF_JSET_K, bits, 0, 3),
            load(5),
            op(BPF_JEQ_K, GUARD_PASS as u32, 1, 0),
        ],
        When::Equals(i, value) => vec![load(i), op(BPF_JEQ_K, value, 0, 1)],
        When::OneOf(i, values) => {
            let mut f = vec![load(i)];
            for (k, &value) in values.iter().enumerate() {
                // To the first answer, or after the last value to the second.
                let rest = (values.len() - 1 - k) as u8;
                f.push(op(BPF_JEQ_K, value, rest, u8::from(rest == 0)));
            }
            f
        }
        When::EqualsAndBits((i, value), (j, bits)) => vec![
            load(i),
            op(BPF_JEQ_K, value, 0, 3),
            load(j),
            op(BPF_JSET_K, bits, 0, 1),
        ],
        When::TypeOtherThan(i, types) => {
            let mut f = vec![load(i), op(BPF_RSH_K, 8, 0, 0), op(BPF_AND_K, 0xff, 0, 0)];
            for (k, &t) in types.iter().enumerate() {
                f.push(op(BPF_JEQ_K, t.into(), (types.len() - k) as u8, 0));
            }
            f
        }
    };
    f.push(op(BPF_RET_K, RET_NOTIFY, 0, 0));
    f.push(op(BPF_RET_K, RET_ALLOW, 0, 0));
    f
}

/// The program's side and the supervisor's side of handing over the filter's descriptor.
pub struct Guard {
    /// The child writes its process number and the descriptor's here.
    numbers: OwnedFd,
    /// It waits here until the descriptor was copied.
    taken: OwnedFd,
}

/// Lets the command install the filter before it becomes the program.
pub fn install(command: &mut Command, watch: Watch) -> io::Result<Guard> {
    let filter = filter(watch);
    let (numbers_in, numbers_out) = super::sys::pipe()?;
    let (taken_in, taken_out) = super::sys::pipe()?;
    // SAFETY: the closure makes system calls only, on memory of its own.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_ptr() as *mut libc::sock_filter,
            };
            // Once we have seen the call no signal ends it (Linux 5.19).
            const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
            let install = |more: libc::c_ulong| {
                libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | more,
                    &program,
                ) as i32
            };
            let fd = match install(WAIT_KILLABLE_RECV) {
                -1 => install(0),
                fd => fd,
            };
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
pub fn take_over(guard: Guard, control: Writer, pages: Pages, watch: Watch) -> io::Result<()> {
    let direct = watch == Watch::Pins && inherits_direct();
    super::tasks::start(move || {
        if let Some(listener) = copy_listener(&guard) {
            if direct {
                errln!("hugeswap: {NOTHING_LEAVES}");
            } else {
                control.start_recycling();
            }
            guard.let_go();
            serve(listener, control, &pages, watch);
        } else {
            if watch == Watch::Pins {
                errln!("hugeswap: {NOTHING_LEAVES_UNGUARDED}");
            }
            guard.let_go();
        }
    })
}

/// Whether the program gets a file that was opened for direct I/O already.
fn inherits_direct() -> bool {
    let fds = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers = fds
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok());
    let is = |fd: i32| {
        // SAFETY: asks for flags only; a number that is not open is an error.
        let (of_fd, of_file) = unsafe {
            (
                libc::fcntl(fd, libc::F_GETFD),
                libc::fcntl(fd, libc::F_GETFL),
            )
        };
        of_fd >= 0 && of_fd & libc::FD_CLOEXEC == 0 && of_file & libc::O_DIRECT != 0
    };
    numbers.into_iter().any(is)
}

const NOTHING_LEAVES_UNGUARDED: &str =
    "warning: this kernel can't move pages (UFFDIO_MOVE came with Linux 6.8), and without \
     CAP_SYS_ADMIN the program can't be watched: nothing is swapped out. Run as root, or use Linux 6.8";
const NOTHING_LEAVES: &str =
    "warning: the program asked for direct I/O or the like, and this kernel can't move pages (Linux \
     6.8): nothing is swapped out any more";

impl Guard {
    /// The program goes on.
    fn let_go(self) {
        // SAFETY: the buffer outlives the call; the descriptor is ours. It ends here, which lets the
        // program go as well.
        unsafe { libc::write(self.taken.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
    }
}

fn copy_listener(guard: &Guard) -> Option<OwnedFd> {
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
        (copy >= 0).then(|| OwnedFd::from_raw_fd(copy))
    }
}

const fn iowr(nr: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | (b'!' as u64) << 8 | nr
}

/// Every call that comes here switches reuse off, and goes on.
fn serve(listener: OwnedFd, control: Writer, pages: &Pages, watch: Watch) {
    let recv = iowr(0, size_of::<libc::seccomp_notif>());
    let send = iowr(1, size_of::<libc::seccomp_notif_resp>());
    loop {
        // SAFETY: zeroed structures are what the kernel asks for; both outlive the calls.
        unsafe {
            let mut call: libc::seccomp_notif = std::mem::zeroed();
            if libc::ioctl(listener.as_raw_fd(), recv, &raw mut call) == -1 {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    // Who made the call was killed.
                    Some(libc::ENOENT) if !is_abandoned(&listener) => continue,
                    _ => return,
                }
            }
            if call.data.nr as i64 == libc::SYS_openat2 && call.data.args[5] == GUARD_STOP as u64 {
                // The program wants a listener of its own. The thread that asks goes on when ours
                // is closed.
                control.stop_recycling();
                return;
            }
            // The engine's own descriptors do not touch the program's pages.
            if !is_engine_thread(pages, call.pid) {
                if watch == Watch::Pins && control.may_recycle() {
                    errln!("hugeswap: {NOTHING_LEAVES}");
                }
                control.stop_recycling();
            }
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = call.id;
            answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            libc::ioctl(listener.as_raw_fd(), send, &raw mut answer);
        }
    }
}

/// Nobody runs under the filter any more.
fn is_abandoned(listener: &OwnedFd) -> bool {
    let mut fd = libc::pollfd {
        fd: listener.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: one structure, which outlives the call; it does not wait.
    unsafe { libc::poll(&raw mut fd, 1, 0) };
    fd.revents & libc::POLLHUP != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter says of a call.
    fn judge(nr: i64, args: [u32; 6]) -> u32 {
        judge_of(Watch::ZeroCopy, AUDIT_ARCH_X86_64, nr, args)
    }

    fn judge_of(watch: Watch, arch: u32, nr: i64, args: [u32; 6]) -> u32 {
        let filter = filter(watch);
        let load = |k: u32| match k {
            NR => nr as u32,
            ARCH => arch,
            k => args[(k as usize - 16) / 8],
        };
        let (mut at, mut a) = (0, 0);
        loop {
            let o = filter[at];
            at += 1;
            match o.code {
                BPF_LD_W_ABS => a = load(o.k),
                BPF_JEQ_K => at += if a == o.k { o.jt } else { o.jf } as usize,
                BPF_RSH_K => a >>= o.k,
                BPF_AND_K => a &= o.k,
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
            (libc::SYS_sendto, [3, 0, 9, MSG_ZEROCOPY | 64, 0, 0]),
            (libc::SYS_sendmsg, [3, 0, MSG_ZEROCOPY, 0, 0, 0]),
            (libc::SYS_sendmmsg, [3, 0, 1, MSG_ZEROCOPY, 0, 0]),
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
            (libc::SYS_sendto, [3, 0, MSG_ZEROCOPY, 64, 0, 0]),
            (libc::SYS_openat, [0, 0, direct, 0, 0, GUARD_PASS as u32]),
            (9999, [direct; 6]),
        ] {
            assert_eq!(judge(nr, args), RET_ALLOW, "{nr} {args:?}");
        }
        let other = judge_of(Watch::Pins, 3, libc::SYS_vmsplice, [0; 6]);
        assert_eq!(other, RET_ALLOW);
    }

    #[test]
    fn calls_by_int_0x80_are_stopped_too() {
        let judge = |watch, nr, args| judge_of(watch, AUDIT_ARCH_I386, nr, args);
        for (nr, args, stopped) in [
            (316, [0; 6], true),
            (425, [0; 6], true),
            (5, [0, O_DIRECT, 0, 0, 0, 0], true),
            (5, [0, 0, O_DIRECT, 0, 0, 0], false),
            (55, [3, libc::F_SETFL as u32, O_DIRECT, 0, 0, 0], true),
            (102, [9, 0, 0, 0, 0, 0], true),
            (102, [20, 0, 0, 0, 0, 0], true),
            (102, [3, 0, 0, 0, 0, 0], false),
            (3, [0; 6], false),
            // vmsplice of 64-bit programs is another call here.
            (libc::SYS_vmsplice, [0; 6], false),
        ] {
            let want = if stopped { RET_NOTIFY } else { RET_ALLOW };
            assert_eq!(judge(Watch::ZeroCopy, nr, args), want, "{nr} {args:?}");
        }
        assert_eq!(judge(Watch::Pins, 26, [0; 6]), RET_NOTIFY);
    }

    #[test]
    fn calls_that_may_pin_pages_are_stopped_where_these_would_be_copied() {
        let ioctl = |request: u64| (libc::SYS_ioctl, [3, request as u32, 0, 0, 0, 0]);
        for (call, pins) in [
            ((libc::SYS_io_setup, [0; 6]), true),
            ((libc::SYS_process_vm_writev, [0; 6]), true),
            ((libc::SYS_ptrace, [0; 6]), true),
            (
                (libc::SYS_socket, [libc::AF_XDP as u32, 3, 0, 0, 0, 0]),
                true,
            ),
            (
                (libc::SYS_socket, [libc::AF_UNIX as u32, 1, 0, 0, 0, 0]),
                false,
            ),
            ((libc::SYS_process_vm_readv, [0; 6]), false),
            // DRM_IOCTL_I915_GEM_USERPTR, VIDIOC_QBUF.
            (ioctl(0xc018_6473), true),
            (ioctl(0xc058_560f), true),
            (ioctl(0xc040_ff0b), false),
            (ioctl(libc::TCGETS), false),
            (ioctl(libc::FIONREAD), false),
            (ioctl(libc::SIOCGIFCONF), false),
        ] {
            let (nr, args) = call;
            let got = judge_of(Watch::Pins, AUDIT_ARCH_X86_64, nr, args);
            assert_eq!(got == RET_NOTIFY, pins, "{nr} {args:?}");
            assert_eq!(judge(nr, args), RET_ALLOW, "{nr} {args:?}");
        }
    }
}
