//! Waiting for signals and rings.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use super::{check, owned};

/// A descriptor that is readable when one of `signals` has come; they are
/// blocked otherwise.
pub fn signals(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    // SAFETY: a set of signals is initialised before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        check(libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()).into())?;
        owned(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())
    }
}

/// Many descriptors that are waited for at once; what it costs depends on those that have something
/// to say only.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
}

/// Of the signals' descriptor; all else is a ring.
const SIGNALS: u64 = 1;
const RING: u64 = 0;

impl Waiter {
    pub fn new() -> io::Result<Waiter> {
        // SAFETY: takes flags only.
        let epoll = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC).into())? };
        Ok(Waiter { epoll })
    }

    pub fn add_signals(&self, signals: BorrowedFd) -> io::Result<()> {
        self.add(signals, libc::EPOLLIN as u32, SIGNALS)
    }

    /// Once for each time that it is woken: the ring of a processor that went offline hangs up for
    /// good, and must not keep us awake. It goes when its descriptor is closed.
    pub fn add_ring(&self, ring: BorrowedFd) -> io::Result<()> {
        let events = libc::EPOLLIN as u32 | libc::EPOLLET as u32;
        self.add(ring, events, RING)
    }

    fn add(&self, fd: BorrowedFd, events: u32, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: key };
        // SAFETY: the kernel reads the event and keeps no pointer to it.
        let ret = unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.as_raw_fd(),
                &mut event,
            )
        };
        check(ret.into()).map(drop)
    }

    /// Waits until there is something, or the time is over; says whether a signal has come.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        const MOST: usize = 64;
        let mut events = [libc::epoll_event {
            events: 0,
            u64: RING,
        }; MOST];
        // Upwards: one who wakes too soon finds nothing to do, and sleeps again.
        let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128);
        // SAFETY: the array has room for as many events as it is said to.
        let ret = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                MOST as libc::c_int,
                millis as libc::c_int,
            )
        };
        let ready = match check(ret.into()) {
            Err(err) if err.kind() != io::ErrorKind::Interrupted => return Err(err),
            Err(_) => 0,
            Ok(ready) => ready as usize,
        };
        Ok(events[..ready].iter().any(|event| event.u64 == SIGNALS))
    }
}
