//! Memory that somebody uses whose engine is gone: a child that shares it (`CLONE_VM` without
//! `CLONE_THREAD`, as `vfork` makes one) when its parent is killed or goes on as another program.
//!
//! The supervisor keeps a copy of each image's userfaultfd, so that the kernel does not take the end of the
//! engine for the end of the registrations: what is missing would be read as zeros. From the end of the
//! connection on it answers the faults: such a page is lost (SIGBUS).

use std::os::fd::{AsRawFd, OwnedFd};

use hugeswap::mm::PAGE_SIZE;
use hugeswap::sys::uffd::{Msg, Uffd};

use super::sys;

/// All addresses that can be managed.
const FROM: usize = 2 << 20;
const TO: usize = (1 << 47) - PAGE_SIZE;

/// The engine has ended. Who waits for its answers faults again.
pub fn begin(faults: &OwnedFd) {
    Uffd::from_fd(faults.as_raw_fd()).wake(FROM, TO - FROM);
}

/// Whether it is one at all: a process may send what it likes.
pub fn is_one(faults: &OwnedFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", faults.as_raw_fd()));
    name.is_ok_and(|n| n.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Answers what has come. False: it is of no use any more. Who waits for its answers has it too, and may have
/// changed it.
pub fn answer(faults: &OwnedFd) -> bool {
    let uffd = Uffd::from_fd(faults.as_raw_fd());
    let mut room = [Msg::default(); 16];
    if !sys::is_nonblocking(faults) {
        // It could not be waited for.
        return false;
    }
    let Ok(came) = uffd.read_now(&mut room) else {
        return false;
    };
    for f in came.iter().filter_map(Msg::page_fault) {
        let page = f.addr & !(PAGE_SIZE - 1);
        let answered = match f.wp {
            // What is there may be written.
            true => uffd.write_protect(page, PAGE_SIZE, false).is_ok(),
            false => uffd.poison(page, PAGE_SIZE).is_ok(),
        };
        if !answered {
            // It is there by now. Or the kernel has no poison (before Linux 6.6): who faults again goes
            // on waiting.
            uffd.wake(page, PAGE_SIZE);
        }
    }
    true
}
