//! The threads that wait for the program and for the front.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hugeswap_sys::futex::{self, Scope};

use crate::failure::EXIT_OURS;
use crate::sys::{self, Change, Ended, Process, Status};
use crate::words::{News, GOES_ON};
use crate::{signals, tasks};

/// So long a program that all of its group is stopped with may take to stop, before the front goes on as it does.
const ABOUT_TO_STOP: Duration = Duration::from_secs(1);

/// What is known of the front.
pub(super) struct Front {
    process: Process,
    number: u32,
    gone: AtomicBool,
    /// How often it was told to stop, and how often it has gone on after that.
    told: AtomicU32,
    went_on: AtomicU32,
}

impl Front {
    pub(super) fn new(process: Process) -> Front {
        Front {
            process,
            number: std::os::unix::process::parent_id(),
            gone: AtomicBool::new(false),
            told: AtomicU32::new(0),
            went_on: AtomicU32::new(0),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Acquire)
    }

    fn stop(&self, signal: i32, status: &File) {
        self.told.fetch_add(1, AcqRel);
        News::Stopped(signal).tell(status);
    }

    /// The shell lets the whole group go on; somebody else perhaps the program alone. The front may be
    /// about to stop only now, so once is not enough. While it runs it is left alone: our signal would take away
    /// one to stop that it has not seen. And so it is where the program has stopped again, or is about to: the front
    /// may have been quicker.
    fn go_on(&self, program: i32) {
        let began = Instant::now();
        loop {
            let went = self.went_on.load(Acquire);
            if went == self.told.load(Acquire) || self.is_gone() {
                return;
            }
            if sys::may_be_stopped(self.number) {
                if sys::is_stopped(program) {
                    return;
                }
                if !signals::stop_waits() || began.elapsed() > ABOUT_TO_STOP {
                    signals::forget_stops();
                    self.process.go_on();
                }
            }
            futex::wait(&self.went_on, went, Some(10), Scope::Process);
        }
    }
}

/// The pipe's other end is the front's; it closes when the front dies.
pub(super) fn front(
    alive: OwnedFd,
    status: Arc<File>,
    front: Arc<Front>,
    bell: Arc<OwnedFd>,
) -> io::Result<()> {
    tasks::start(move || {
        let mut from = File::from(alive);
        let mut word = [0u8; 1];
        while matches!(std::io::Read::read(&mut from, &mut word), Ok(1)) {
            match word[0] {
                GOES_ON => {
                    front.went_on.fetch_add(1, AcqRel);
                    futex::wake(&front.went_on, 1, Scope::Process);
                }
                signal => News::OfGroup(signals::take(signal.into())).tell(&status),
            }
        }
        front.gone.store(true, Release);
        sys::set_event(&bell);
    })
}

/// Waits for the program; the front stops and goes on with it. How it ended is in what this gives back.
pub(super) fn program(
    pid: i32,
    status: Arc<File>,
    front: Arc<Front>,
    bell: Arc<OwnedFd>,
) -> io::Result<Arc<Mutex<Option<Ended>>>> {
    let result = Arc::new(Mutex::new(None));
    let to = Arc::clone(&result);
    tasks::start(move || {
        let ended = loop {
            match sys::wait_change(pid) {
                Ok(Change::Stopped(signal)) => front.stop(signal, &status),
                Ok(Change::GoesOn) => front.go_on(pid),
                Ok(Change::Ended(e)) => break e,
                Err(_) => {
                    break Ended {
                        status: Status::Exited(EXIT_OURS),
                        core: false,
                    }
                }
            }
        };
        front.go_on(pid);
        *to.lock().unwrap_or_else(|e| e.into_inner()) = Some(ended);
        sys::set_event(&bell);
    })?;
    Ok(result)
}
