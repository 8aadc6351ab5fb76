//! A child reads the swap file of its parent. In a file of its own, because a child inherits the
//! descriptors of every test that runs at the time.

mod support;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use hugeswap_device::file::{FileDevice, Options};
use hugeswap_device::Device;
use support::{expect, grown, write, MIB};

#[test]
fn a_child_reads_its_ancestors_file() {
    let device = FileDevice::open(Path::new("/var/tmp"), &Options::new(64 * MIB)).expect("open");
    grown(&device, 8 * MIB);
    let mut queue = device.queue(4).expect("queue");
    write(&mut *queue, 512, 512, 3).expect("write");
    // SAFETY: the child only makes system calls and allocates, and this libc's malloc is usable
    // after fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let number = device.as_fd().as_raw_fd();
            // SAFETY: inherited, and the child's other owner is forgotten with the process.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            let mine = FileDevice::from_fd(fd, 128 * MIB).expect("reopen");
            assert!(mine.is_direct() && mine.capacity() >= 8 * MIB);
            let mut queue = mine.queue(4).expect("queue");
            expect(&mut *queue, 512, 512, &[3]);
            grown(&mine, 80 * MIB);
            write(&mut *queue, 18 * 1024, 512, 4).expect("write");
            expect(&mut *queue, 18 * 1024, 512, &[4]);
        }));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(good.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    expect(&mut *queue, 512, 512, &[3]);
}
