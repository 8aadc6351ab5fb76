//! The process that owns the run.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hugeswap::control::{Control, Phase, Settings, SwapIn, ENV, LIVE};
use hugeswap::sys::futex::{self, Scope};

use super::sys::{self, Ended, Status};
use super::{arbiter, core_file, devices, inject, report, zero_copy, Failure, EXIT_OURS};
use crate::os;
use crate::run_args::RunArgs;
use crate::size::Size;

pub struct Plan<'a> {
    pub args: &'a RunArgs,
    pub memory: u64,
    pub path: PathBuf,
    pub library: PathBuf,
}

/// Runs the program and everything it leaves behind. The exit status is for nobody but init.
pub fn run(plan: Plan<'_>, mut status: OwnedFd, alive: OwnedFd) -> i32 {
    match start(&plan) {
        Ok(run) => run.supervise(&plan, status, alive),
        Err(f) => {
            eprintln!("hugeswap: {}", f.message);
            tell(&mut status, &[0, 0, i32::from(f.code), 0]);
            0
        }
    }
}

/// Words for the front: the program's number, then 0 and its exit code or 1 and its signal, and
/// then 1 if this process stays for the sake of others.
fn tell(to: &mut OwnedFd, words: &[i32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    // If the front is gone there is nobody to tell.
    let _ = to
        .try_clone()
        .and_then(|fd| File::from(fd).write_all(&bytes));
}

struct Run {
    control: &'static Control,
    devices: Vec<devices::Opened>,
    program: i32,
    /// Keeps the control page's file open for the processes to map.
    _control_file: File,
    limit: u64,
}

fn start(plan: &Plan<'_>) -> Result<Run, Failure> {
    let ours = |what: &str, e: std::io::Error| Failure::ours(format!("{what}: {e}"));
    let args = plan.args;
    let faults = inject::from_environment()?;
    let no_move = env_flag("HUGESWAP_NO_MOVE") != 0 || !kernel_moves_pages();
    if no_move {
        evicts_by_copying(args.strict)?;
    }
    let devices = devices::open_all(args)?;
    let file = os::memory_file("hugeswap-control").map_err(|e| ours("no control page", e))?;
    file.set_len(Control::BYTES as u64)
        .map_err(|e| ours("no control page", e))?;
    let control = map_control(&file)?;
    // A huge page keeps a page table in reserve, base pages need one.
    let limit = plan.memory - plan.memory / hugeswap::engine::OVERHEAD_SHARE;
    init_control(
        control,
        Settings {
            limit_bytes: limit,
            strict: args.strict.into(),
            user_mode_only: args.user_mode_only.into(),
            devices: devices.len() as u32,
            no_io_uring: env_flag("HUGESWAP_NO_IO_URING"),
            no_move: no_move.into(),
            swapin: SwapIn::from(args.swapin) as u32,
            faults,
        },
        &devices,
    );
    if args.verbose {
        eprintln!(
            "hugeswap: memory {}, swap on {}",
            Size::from_bytes(plan.memory),
            devices
                .iter()
                .map(|d| format!("{} up to {}", d.description, Size::from_bytes(d.max_bytes)))
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let program = spawn(plan, &path, control)?;
    Ok(Run {
        control,
        devices,
        program,
        _control_file: file,
        limit,
    })
}

/// UFFDIO_MOVE, since Linux 6.8.
fn kernel_moves_pages() -> bool {
    use hugeswap::sys::uffd::{Uffd, FEATURE_MOVE};
    Uffd::open(FEATURE_MOVE, true)
        .map(|(u, _)| u.close())
        .is_ok()
}

/// Without moves pages leave by copying, as long as the program can have none of them in use for
/// I/O; `swap_cache::swapout` says why.
fn evicts_by_copying(strict: bool) -> Result<(), Failure> {
    const WHY: &str =
        "this kernel can't move pages (UFFDIO_MOVE came with Linux 6.8), so they are \
                       copied, and once the program asks for direct I/O or the like";
    if strict {
        return Err(Failure::ours(format!(
            "{WHY} the memory limit can't be kept, as --strict wants; use Linux 6.8 or later"
        )));
    }
    eprintln!("hugeswap: warning: {WHY} it may go above its memory limit. Use Linux 6.8 or later");
    Ok(())
}

fn env_flag(name: &str) -> u32 {
    std::env::var_os(name).is_some_and(|v| v == "1").into()
}

#[allow(unsafe_code)]
fn map_control(file: &File) -> Result<&'static Control, Failure> {
    // SAFETY: the file was just made by us, at this size.
    unsafe { Control::map(file.as_fd().as_raw_fd()) }
        .map_err(|e| Failure::ours(format!("no control page: {e}")))
}

#[allow(unsafe_code)]
fn init_control(control: &Control, settings: Settings, devices: &[devices::Opened]) {
    // SAFETY: no other process has the page yet.
    unsafe {
        for (i, d) in devices.iter().enumerate() {
            control.set_device(
                i,
                &devices::path_for_processes(&d.fd),
                &d.name,
                d.max_bytes,
                d.kind as u32,
            );
        }
        control.init(settings, std::process::id());
    }
}

fn spawn(plan: &Plan<'_>, control_path: &str, control: &'static Control) -> Result<i32, Failure> {
    let mut preload = plan.library.clone().into_os_string();
    if let Some(theirs) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        preload.push(":");
        preload.push(theirs);
    }
    let mut command = Command::new(&plan.path);
    use std::os::unix::process::CommandExt;
    command
        .arg0(&plan.args.program[0])
        .args(&plan.args.program[1..])
        .env("LD_PRELOAD", preload)
        .env(ENV, control_path);
    sys::kill_with_me(&mut command);
    let watch = if control.settings.no_move != 0 {
        zero_copy::Watch::Pins
    } else {
        zero_copy::Watch::ZeroCopy
    };
    match zero_copy::install(&mut command, watch) {
        Ok(guard) => zero_copy::take_over(guard, control, watch),
        Err(e) => eprintln!("hugeswap: warning: staging folios are not used again: {e}"),
    }
    let child = command.spawn().map_err(|e| Failure {
        code: super::EXIT_CANNOT_RUN,
        message: format!("'{}' can't be run: {e}", plan.path.display()),
    })?;
    Ok(child.id() as i32)
}

impl Run {
    fn supervise(self, plan: &Plan<'_>, mut status: OwnedFd, alive: OwnedFd) -> i32 {
        sys::ignore_signals(&sys::FORWARDED);
        tell(&mut status, &[self.program]);
        // The program has the caller's streams; ours would keep pipes open.
        sys::detach_streams(&[0, 1]);
        let ended = self.watch_program();
        let front_gone = watch_front(alive, self.control);
        let mut log_seen = 0;
        let mut next_stats = Instant::now() + Duration::from_secs(1);
        let mut ended_reported = None;
        let mut stays = true;
        let cores = core_file::Cores::new(self.control, plan.args.verbose);
        let mut arbiter = arbiter::Arbiter::new(self.control, self.limit, cores);
        loop {
            let seen = self.control.need.load(Acquire);
            let pressed = arbiter.turn(&self.devices);
            self.empty_devices();
            log_seen = self
                .control
                .read_log(log_seen, |line| eprintln!("hugeswap: {line}"));
            if Instant::now() >= next_stats {
                next_stats += Duration::from_secs(1);
                self.write_stats(plan, ended_reported);
            }
            if ended_reported.is_none() {
                let ended = *ended.lock().unwrap_or_else(|e| e.into_inner());
                if let Some(Ended { status: s, core }) = ended {
                    arbiter.take_back_dead(&self.devices);
                    // Whoever waits for the program may look at its core file next.
                    if !arbiter.cores().any_busy() {
                        ended_reported = Some(s);
                        if let Some(line) = self.about_core(core, &arbiter) {
                            self.control.log(&line);
                        }
                        stays = arbiter.anyone_left();
                        self.finish(plan, s, &mut status, &mut log_seen, stays);
                    }
                } else if front_gone.load(Acquire) {
                    self.kill_all();
                }
            }
            let busy = arbiter.cores().any_busy();
            if ended_reported.is_some() && !busy && (!stays || !arbiter.anyone_left()) {
                return 0;
            }
            let ms = if pressed { 10 } else { 200 };
            futex::wait(&self.control.need, seen, Some(ms), Scope::Shared);
        }
    }

    /// What there is to be said of the program's core, if it left one.
    fn about_core(&self, core: bool, arbiter: &arbiter::Arbiter) -> Option<String> {
        let pid = u32::try_from(self.program).ok().filter(|_| core)?;
        arbiter.cores().explain(pid)
    }

    /// Gives back the space of devices that every process has left.
    fn empty_devices(&self) {
        for (i, (d, entry)) in self.devices.iter().zip(&self.control.devices).enumerate() {
            let usage = entry.usage();
            if usage.phase != Phase::Leaving || !self.control.all_left(i, usage.epoch) {
                continue;
            }
            // From here on nobody can turn it on again while its contents are thrown away.
            if let Some(usage) = entry.change(usage, Phase::Releasing) {
                devices::empty(d);
                entry.change(usage, Phase::Off);
            }
        }
    }

    /// The program itself has ended: report, and let the front go.
    fn finish(
        &self,
        plan: &Plan<'_>,
        s: Status,
        status: &mut OwnedFd,
        log_seen: &mut u64,
        stays: bool,
    ) {
        *log_seen = self
            .control
            .read_log(*log_seen, |line| eprintln!("hugeswap: {line}"));
        self.write_stats(plan, Some(s));
        if plan.args.verbose {
            eprintln!("hugeswap: {}", report::summary(self.control));
        }
        self.control.released.store(1, Release);
        match s {
            Status::Exited(c) => tell(status, &[0, i32::from(c), stays.into()]),
            Status::Killed(n) => tell(status, &[1, n, stays.into()]),
        }
        // Daemons may live on; whoever reads our streams need not wait for them.
        sys::detach_streams(&[2]);
    }

    fn write_stats(&self, plan: &Plan<'_>, ended: Option<Status>) {
        let Some(path) = &plan.args.stats_json else {
            return;
        };
        if let Err(e) = report::write(path, self.control, plan.memory, ended) {
            eprintln!(
                "hugeswap: warning: can't write the statistics to '{}': {e}",
                path.display()
            );
        }
    }

    /// The front was killed: the run ends.
    fn kill_all(&self) {
        sys::kill(self.program, libc::SIGKILL);
        for p in &self.control.procs {
            if p.state.load(Acquire) == LIVE {
                sys::kill(p.pid.load(Relaxed) as i32, libc::SIGKILL);
            }
        }
    }

    fn watch_program(&self) -> Arc<Mutex<Option<Ended>>> {
        let result = Arc::new(Mutex::new(None));
        let (r, pid, control) = (Arc::clone(&result), self.program, self.control);
        std::thread::spawn(move || {
            let s = sys::wait(pid).unwrap_or(Ended {
                status: Status::Exited(EXIT_OURS),
                core: false,
            });
            *r.lock().unwrap_or_else(|e| e.into_inner()) = Some(s);
            control.call();
        });
        result
    }
}

/// The pipe's other end is the front's; it closes when the front dies.
fn watch_front(alive: OwnedFd, control: &'static Control) -> Arc<std::sync::atomic::AtomicBool> {
    let gone = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let g = Arc::clone(&gone);
    std::thread::spawn(move || {
        let mut b = [0u8; 1];
        let _ = std::io::Read::read(&mut File::from(alive), &mut b);
        g.store(true, Release);
        control.call();
    });
    gone
}
