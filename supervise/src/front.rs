//! The process that the user started.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use hugeswap_control::Control;
use hugeswap_sys::probe::{self, Limit};

use super::failure::{Failure, EXIT_USAGE};
use super::signals::{self, Came};
use super::sys::{self, Process, Side, Status};
use super::words::{News, GOES_ON};
use super::{inside, program, supervisor, tasks};
use crate::run_args::RunArgs;
use hugeswap_host::os;
use hugeswap_host::size::Size;
use hugeswap_host::sizing::{
    self, Chosen, LEAST_ADDRESSES, LEAST_DATA, LEAST_DESCRIPTORS, LEAST_MEMORY,
};

/// Everything that can go wrong before the program runs is found out here, in one process.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    check_proc()?;
    if let Some((group, address)) = args.group.as_ref().zip(inside::address()) {
        return Err(inside::run(args, group, &address));
    }
    signals::outgrow_limits();
    check_limits()?;
    tasks::check()?;
    let memory = limit(args)?;
    let name = &args.program[0];
    let path = program::find(name)?;
    program::check_manageable(&path)?;
    let library = program::preload_library()?;
    program::check_library(&library)?;
    check_kernel(args)?;
    check_addresses()?;
    check_file_size()?;

    let (status_in, status_out) =
        sys::pipe().map_err(|e| Failure::ours(format!("no pipe: {e}")))?;
    let (alive_in, alive_out) = sys::pipe().map_err(|e| Failure::ours(format!("no pipe: {e}")))?;
    let myself = Process::myself().map_err(|e| Failure::ours(format!("no pidfd: {e}")))?;
    let signals = signals::block().map_err(|e| Failure::ours(format!("no signals: {e}")))?;
    match sys::fork().map_err(tasks::refused)? {
        Side::Child => {
            drop(status_in);
            drop(alive_out);
            drop(signals);
            let plan = supervisor::Plan {
                args,
                memory,
                path,
                library,
            };
            let code = supervisor::run(plan, status_out, alive_in, myself);
            sys::exit_now(code)
        }
        Side::Parent { child: supervisor } => {
            drop((status_out, alive_in, myself));
            Front {
                news: status_in.into(),
                signals,
                supervisor,
                // Kept open as long as this process lives: its end tells the supervisor.
                to_supervisor: alive_out.into(),
                stopped_for: None,
                asked: VecDeque::new(),
                stops: VecDeque::new(),
                program: 0,
            }
            .follow()
        }
    }
}

/// What the user gave, but no more than the memory group can hold.
fn given(size: Size) -> Chosen {
    if let Some(less) = sizing::in_place_of(size.bytes()) {
        if less.bytes < LEAST_MEMORY {
            return less;
        }
        errln!(
            "hugeswap: warning: --memory {size} does not fit here, {} does: {}",
            Size::from_bytes(less.bytes),
            less.why
        );
        return less;
    }
    Chosen {
        bytes: size.bytes(),
        why: "as given".to_owned(),
    }
}

/// What the user gave, or what fits here.
fn limit(args: &RunArgs) -> Result<Chosen, Failure> {
    let chosen = match args.memory {
        Some(s) => given(s),
        None => sizing::memory(),
    };
    if let Some(total) = os::total_memory().filter(|&total| chosen.bytes > total) {
        errln!(
            "hugeswap: warning: --memory {} is more than the {} of this machine, so it bounds nothing",
            Size::from_bytes(chosen.bytes),
            Size::from_bytes(total)
        );
    }
    if chosen.bytes >= LEAST_MEMORY {
        return Ok(chosen);
    }
    let least = Size::from_bytes(LEAST_MEMORY);
    let message = match args.memory {
        Some(s) if s.bytes() >= LEAST_MEMORY => format!(
            "there is too little memory here for a run: {} ({}); give the group {} or more",
            Size::from_bytes(chosen.bytes),
            chosen.why,
            Size::from_bytes(sizing::LEAST_GROUP)
        ),
        Some(s) => format!(
            "--memory {} is too little: hugeswap itself needs some of it; give {least} or more",
            s.exact()
        ),
        None => format!(
            "there is too little memory here for a run: {} ({}); with --memory it is at least {least}",
            Size::from_bytes(chosen.bytes),
            chosen.why
        ),
    };
    Err(Failure {
        code: EXIT_USAGE,
        message,
    })
}

/// Without userfaultfd nothing works; say so before anything is set up.
fn check_kernel(args: &RunArgs) -> Result<(), Failure> {
    use hugeswap_sys::uffd::{Needs, Source, Uffd};
    match Uffd::open(0, Needs::UserFaults) {
        Ok((u, source)) => {
            u.close();
            if source == Source::UserModeOnly && !args.user_mode_only {
                return Err(Failure::ours(
                    "this user may not serve page faults of system calls, so programs would fail with EFAULT: \
                     run 'hugeswap doctor' for the one command that allows it, or give --user-mode-only and accept that",
                ));
            }
            Ok(())
        }
        Err(e) => Err(Failure::ours(format!(
            "userfaultfd is not available ({e}): 'hugeswap doctor' says what is missing"
        ))),
    }
}

/// Engines read what their programs have mapped, and find the supervisor there.
fn check_proc() -> Result<(), Failure> {
    match std::fs::read_link("/proc/self") {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::ours(
            "/proc is not mounted, and hugeswap needs it: 'mount -t proc proc /proc' mounts it",
        )),
    }
}

/// A supervisor that is stopped is waited for so long: programs that want swap from it stand still.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often is looked meanwhile.
const LOOK: Duration = Duration::from_secs(1);

/// The engine needs room among the program's addresses.
fn check_addresses() -> Result<(), Failure> {
    match probe::limit(Limit::AddressSpace) {
        Ok(Some(limit)) if limit < LEAST_ADDRESSES => Err(Failure::ours(format!(
            "'ulimit -v' is {}, and hugeswap needs {} of addresses (not of memory) in each process: \
             run 'ulimit -v unlimited' first; --memory bounds what the program uses",
            Size::from_bytes(limit),
            Size::from_bytes(LEAST_ADDRESSES)
        ))),
        _ => Ok(()),
    }
}

/// What supervisor and engines can't do without.
fn check_limits() -> Result<(), Failure> {
    if let Ok(Some(limit)) = probe::limit(Limit::Descriptors) {
        if limit < LEAST_DESCRIPTORS {
            return Err(Failure::ours(format!(
                "'ulimit -n' allows {limit} descriptors only, and hugeswap needs {LEAST_DESCRIPTORS}: \
                 run 'ulimit -n 1024' first"
            )));
        }
    }
    match probe::limit(Limit::Data) {
        Ok(Some(limit)) if limit < LEAST_DATA => Err(Failure::ours(format!(
            "'ulimit -d' is {}, and hugeswap needs {} of writable addresses (hardly any of it is used) in each \
             process: run 'ulimit -d unlimited' first; --memory bounds what the program uses",
            Size::from_bytes(limit),
            Size::from_bytes(LEAST_DATA)
        ))),
        _ => Ok(()),
    }
}

/// The control page is a file of memory, and what limits files limits it too.
fn check_file_size() -> Result<(), Failure> {
    let least = Control::BYTES as u64;
    match probe::limit(Limit::FileSize) {
        Ok(Some(limit)) if limit < least => Err(Failure::ours(format!(
            "'ulimit -f' allows files of {} only, and hugeswap itself needs {}: run 'ulimit -f unlimited' first",
            Size::from_bytes(limit),
            Size::from_bytes(least)
        ))),
        _ => Ok(()),
    }
}

struct Front {
    news: File,
    signals: OwnedFd,
    supervisor: i32,
    to_supervisor: File,
    /// How long the supervisor has been stopped, if it is, as far as this process has seen.
    stopped_for: Option<Duration>,
    /// Signals of which it is not known yet to whom they were sent.
    asked: VecDeque<Came>,
    /// The program was stopped by these, and this process has not stopped yet.
    stops: VecDeque<i32>,
    program: i32,
}

impl Front {
    /// Hands signals on and stops as the program stops, until it ends.
    fn follow(mut self) -> Result<u8, Failure> {
        loop {
            // Without a program nobody could have them.
            let signals = (self.program != 0).then_some(self.signals.as_fd());
            let left = self.stopped_for.map(|s| PATIENCE.saturating_sub(s));
            if left == Some(Duration::ZERO) {
                return Err(self.give_up());
            }
            let began = Instant::now();
            let [has_news, has_signal] = sys::wait_readable(
                [Some(self.news.as_fd()), signals],
                left.map(|left| left.min(LOOK)),
            );
            if let Some(stopped) = &mut self.stopped_for {
                // Who stood still himself, in a group that was frozen, has not seen more.
                *stopped += began.elapsed().min(2 * LOOK);
            }
            if has_signal {
                self.take_all();
            }
            if !has_news {
                continue;
            }
            match News::hear(&mut self.news) {
                Some(News::Started(pid)) => self.program = pid,
                Some(News::OfGroup(group)) => self.hand_on(group),
                Some(News::Stopped(signal)) => self.stops.push_back(signal),
                Some(News::Ended { status, stays }) => {
                    if !stays {
                        // When we are gone nothing of the run is left.
                        let _ = sys::wait(self.supervisor);
                    }
                    if let Status::Killed(signal) = status {
                        signals::die_of(signal);
                    }
                    return Ok(status.code());
                }
                None => {
                    let _ = sys::wait(self.supervisor);
                    return Err(Failure::ours(
                        "the supervisor was killed, and the program with it",
                    ));
                }
            }
            self.stop_as_told();
        }
    }

    /// Stops as the program has, when it is known of every signal that came whether the program has it. A stop
    /// takes pending signals away unseen, and one to go on that was asked for before would then be handed on
    /// although it is over. A program that goes on again is not stopped for: this process may have stopped with it
    /// already, by the same key, before it has heard of it.
    fn stop_as_told(&mut self) {
        while let Some(&signal) = self.stops.front() {
            signals::settle();
            self.take_all();
            if !self.asked.is_empty() {
                return;
            }
            self.stops.pop_front();
            signals::stop_with(signal, || sys::may_be_stopped(self.program as u32));
            self.tell(GOES_ON);
        }
    }

    /// Ends the run: with the supervisor all that it runs ends.
    fn give_up(&self) -> Failure {
        sys::kill(self.supervisor, libc::SIGKILL);
        let _ = sys::wait(self.supervisor);
        Failure::ours(format!(
            "the supervisor was stopped, and did not go on for {} s: the run was ended. Stop the \
             program and not the supervisor",
            PATIENCE.as_secs()
        ))
    }

    fn tell(&mut self, word: u8) {
        // If it is gone, the other pipe says so.
        let _ = self.to_supervisor.write_all(&[word]);
    }

    /// Who lets this process go on means the run. Where the whole group was stopped, and only this process goes on,
    /// the supervisor stands still: it could not even say who else has the signal. Whether that was so.
    fn wake_supervisor(&mut self) -> bool {
        if !sys::is_stopped(self.supervisor) {
            return false;
        }
        sys::kill(self.supervisor, libc::SIGCONT);
        self.stopped_for = None;
        true
    }

    /// If it has yet to say who else was to go on, it was stopped with all others, a moment after this process: it
    /// goes on with it.
    fn supervisor_stopped(&mut self) {
        self.stopped_for = self.stopped_for.or(Some(Duration::ZERO));
        let waits = |came: &Came| came.signal == libc::SIGCONT && !came.is_over;
        if self.asked.iter().any(waits) && self.wake_supervisor() {
            for came in self.asked.iter_mut().filter(|came| waits(came)) {
                came.is_passed_on = true;
            }
        }
    }

    fn take(&mut self, mut came: Came) {
        if came.signal == libc::SIGCHLD {
            signals::reap_others(self.supervisor);
            match sys::is_stopped(self.supervisor) {
                true => self.supervisor_stopped(),
                false => self.stopped_for = None,
            }
            return;
        }
        self.undo(came.signal);
        let own = came.sender == std::process::id() as i32 || came.sender == self.supervisor;
        if own && !came.by_kernel {
            // A pipe of ours that nobody reads; or we are to go on, as the program has. That takes away one to stop
            // that came since, so what was asked for before may be over without our knowing.
            self.undo(libc::SIGTSTP);
            return;
        }
        signals::settle();
        came.is_passed_on = came.signal == libc::SIGCONT && self.wake_supervisor();
        self.tell(came.signal as u8);
        self.asked.push_back(came);
    }

    fn take_all(&mut self) {
        while let Some(came) = signals::next(&self.signals) {
            self.take(came);
        }
    }

    fn hand_on(&mut self, group: bool) {
        signals::settle();
        self.take_all();
        let Some(came) = self.asked.pop_front() else {
            return;
        };
        let has_it = group && !came.is_passed_on && came.is_for_group();
        if !has_it && !came.is_over {
            came.send_to(self.program);
        }
    }

    /// A signal to stop takes away one to go on that still waits at the supervisor, and the other way round:
    /// so that one was perhaps sent to the group, and in any case what it was for is over.
    fn undo(&mut self, by: i32) {
        for earlier in &mut self.asked {
            earlier.is_over |= earlier.is_undone_by(by);
        }
    }
}
