//! Memory that somebody uses whose engine is gone: a child that shares it (`CLONE_VM` without
//! `CLONE_THREAD`, as `vfork` makes one) when its parent is killed or goes on as another program.
//!
//! The supervisor keeps a copy of each image's userfaultfd, so that the kernel does not take the end of the
//! engine for the end of the registrations: what is missing would be read as zeros. From the end of the
//! connection on it answers the faults: such a page is lost (SIGBUS). Before Linux 6.6 no page can be marked
//! so: then the process is sent the signal.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use hugeswap_mm::PAGE_SIZE;
use hugeswap_sys::uffd::{Msg, Needs, Uffd, FEATURE_POISON};

use super::object::Object;
use super::sys::{self, Process};

/// All addresses that can be managed.
const FROM: usize = 2 << 20;
const TO: usize = (1 << 47) - PAGE_SIZE;

/// The engine has ended. Threads that wait for its answers fault again.
pub fn begin(faults: &OwnedFd) {
    Uffd::from_fd(faults.as_raw_fd()).wake(FROM, TO - FROM);
}

/// Whether it is one at all: a process may send what it likes.
pub fn is_one(faults: &OwnedFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", faults.as_raw_fd()));
    name.is_ok_and(|n| n.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Whether pages can be marked as lost. `HUGESWAP_NO_POISON` stands for a kernel where they can't.
fn can_poison() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let Ok((uffd, _)) = Uffd::open(FEATURE_POISON, Needs::UserFaults) else {
            return false;
        };
        uffd.close();
        std::env::var_os("HUGESWAP_NO_POISON").is_none_or(|v| v != "1")
    })
}

/// Sends SIGBUS to the process that has this thread, if it has the image's memory: the number is what the
/// kernel calls the thread where it runs, and may be another's here.
fn signal(tid: u32, image: &Object) {
    let status = || std::fs::read_to_string(format!("/proc/{tid}/status")).ok();
    let word = |status: &str, name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.map(|l| l.trim().to_owned())
    };
    let number = status().and_then(|s| word(&s, "Tgid:")?.parse().ok());
    let Some(process) = number.and_then(|n| Process::of_child(n).ok()) else {
        return;
    };
    // From here on the number is that process's, if it has the memory.
    let maps = std::fs::read_to_string(format!("/proc/{tid}/maps")).unwrap_or_default();
    let (Some(status), Some(inode)) = (status(), image.inode()) else {
        return;
    };
    let has_page = |line: &str| {
        line.contains("hugeswap-process") && line.split_ascii_whitespace().nth(4) == Some(&inode)
    };
    if !maps.lines().any(has_page) {
        return;
    }
    let is_in = |name: &str| {
        let set = word(&status, name).and_then(|w| u64::from_str_radix(&w, 16).ok());
        set.is_some_and(|s| s >> (libc::SIGBUS - 1) & 1 != 0)
    };
    // The kernel's own would not be held back.
    match is_in("SigBlk:") || is_in("SigIgn:") {
        true => process.kill(),
        false => process.send(libc::SIGBUS),
    }
}

/// Answers what has come to the image's. False: it is of no use any more. The process that waits for its answers has it
/// too, and may have changed it.
pub fn answer(faults: &OwnedFd, image: &Object) -> bool {
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
            true => uffd.allow_writes(page, PAGE_SIZE).is_ok(),
            false if can_poison() => uffd.poison(page, PAGE_SIZE).is_ok(),
            false => {
                signal(f.tid, image);
                true
            }
        };
        if !answered {
            // It is there by now.
            uffd.wake(page, PAGE_SIZE);
        }
    }
    true
}
