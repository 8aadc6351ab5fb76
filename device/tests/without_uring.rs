//! Where io_uring is refused, as in most containers, requests go by pread and pwrite; also when it
//! is taken away while in use.

mod support;

use std::path::Path;

use hugeswap_device::file::{FileDevice, Options, Via};
use hugeswap_device::{Device, Op, OpenError, Request, Until};
use support::conformance::{conformance, MAX};
use support::{expect, grown, write, Memory, MIB, PAGE};

/// Has the kernel answer a system call of this thread with an errno from now on.
fn refuse(number: libc::c_long, errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = [
        // The system call's number is the first word of what the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            number as u32,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program outlives the call; it holds for this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program),
            0
        );
    }
}

fn open(via: Via) -> Result<FileDevice, OpenError> {
    let mut options = Options::new(MAX);
    options.via = via;
    FileDevice::open(Path::new("/var/tmp"), &options)
}

#[test]
fn refused_from_the_start() {
    for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
        let test = std::thread::spawn(move || {
            refuse(libc::SYS_io_uring_setup, errno);
            let device = open(Via::Auto).expect("open");
            assert!(
                device.describe().contains("pread/pwrite"),
                "{}",
                device.describe()
            );
            let error = open(Via::Uring).err();
            assert_eq!(error, Some(OpenError::NoUring { errno }));
            conformance(&|| Box::new(open(Via::Auto).expect("open")));
        });
        test.join().expect("passed");
    }
}

#[test]
fn refused_for_a_later_queue() {
    let test = std::thread::spawn(|| {
        let device = open(Via::Auto).expect("open");
        assert!(device.is_uring());
        refuse(libc::SYS_io_uring_setup, libc::ENOMEM);
        grown(&device, 4 * MIB);
        let mut queue = device.queue(4).expect("the other way");
        assert_eq!(queue.poll_fd(), None);
        write(&mut *queue, 0, 512, 1).expect("write");
        expect(&mut *queue, 0, 512, &[1]);
    });
    test.join().expect("passed");
}

#[test]
fn taken_away_with_requests_in_flight() {
    for errno in [libc::EPERM, libc::EBADF, libc::EAGAIN] {
        let test = std::thread::spawn(move || {
            let device = open(Via::Uring).expect("open");
            grown(&device, 32 * MIB);
            let mut queue = device.queue(8).expect("queue");
            for block in 0..8 {
                write(&mut *queue, block * 512, 512, block + 1).expect("write");
            }
            let mut memory: Vec<_> = (0..8).map(|_| Memory::new(512 * PAGE)).collect();
            for (tag, memory) in (0..).zip(&memory) {
                let (offset, addr, len) = (tag * 2 * MIB, memory.addr(), 512 * PAGE);
                let req = Request {
                    op: Op::Read,
                    offset,
                    addr,
                    len,
                    tag,
                    target: 0,
                };
                // SAFETY: the memory outlives the reaping below.
                unsafe { queue.submit(req) }.expect("submit");
                if tag == 3 {
                    queue.kick();
                }
            }
            refuse(libc::SYS_io_uring_enter, errno);
            let mut seen = [0; 8];
            while queue.in_flight() > 0 {
                queue.reap(Until::OneEnded, &mut |completion| {
                    assert_eq!(completion.result, Ok(()));
                    seen[completion.tag as usize] += 1;
                });
            }
            assert_eq!(seen, [1; 8]);
            for (block, memory) in (0..).zip(&mut memory) {
                for (page, bytes) in (block * 512..).zip(memory.bytes().chunks_exact(PAGE)) {
                    assert!(support::holds(bytes, page, block + 1));
                }
            }
            write(&mut *queue, 0, 512, 20).expect("write");
            expect(&mut *queue, 0, 512, &[20]);
        });
        test.join().expect("passed");
    }
}
