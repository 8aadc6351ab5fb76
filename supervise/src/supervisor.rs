//! The process that owns the run.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hugeswap_control::link::{self, Address, ENV};
use hugeswap_control::stats::Stats;
use hugeswap_control::{
    CompressCodec, Control, DeviceEntry, NewDevice, Orders, Phase, Settings, SwapIn, Usage, Writer,
    CONTROL_FILE, ORDERS_FILE,
};

use hugeswap_mm::PAGE_SIZE;
use hugeswap_sys::futex::{self, Scope};
use hugeswap_sys::{sched, Errno};

use super::devices::{Places, Total};
use super::failure::{Failure, EXIT_CANNOT_RUN, EXIT_OURS};
use super::idle_latency::IdleLatency;
use super::left_behind::Mark;
use super::owners::{Owners, Swap};
use super::processes::{Door, Pages, Processes};
use super::signals;
use super::stats_file::StatsFile;
use super::sys::{self, Change, Ended, Process, Status};
use super::words::{News, GOES_ON};
use super::{
    arbiter, core_file, devices, fault_file, groups, inject, outside, report, tasks, unmanaged,
    zero_copy,
};
use crate::run_args::RunArgs;
use hugeswap_host::os;
use hugeswap_host::size::Size;
use hugeswap_host::sizing::Chosen;

pub struct Plan<'a> {
    pub args: &'a RunArgs,
    pub memory: Chosen,
    pub path: PathBuf,
    pub library: PathBuf,
}

/// Runs the program and everything it leaves behind. The exit status is for nobody but init.
pub fn run(plan: Plan<'_>, status: OwnedFd, alive: OwnedFd, front: Process) -> i32 {
    let status = File::from(status);
    match start(&plan) {
        Ok(run) => run.supervise(&plan, Arc::new(status), alive, front),
        Err(f) => {
            errln!("hugeswap: {}", f.message);
            News::Ended(Status::Exited(f.code), false).tell(&status);
            0
        }
    }
}

struct Run {
    control: Writer,
    orders: &'static Orders,
    swap: Arc<Swap>,
    devices: Arc<Vec<devices::Opened>>,
    /// What may go to those together that share it.
    total: Total,
    program: i32,
    /// The same, as long as nobody has waited for it.
    handle: Option<Process>,
    processes: Processes,
    /// Of the control page and of the orders: `hugeswap swapoff` finds them here.
    _files: [OwnedFd; 2],
    limit: u64,
    began: Instant,
    stats: Option<StatsFile>,
    unmanaged: unmanaged::Watch,
    outside: outside::Outside,
    latency: IdleLatency,
}

/// Descriptors that a process needs here, and those of the moment in which it comes.
const OF_A_PROCESS: usize = 13;

fn start(plan: &Plan<'_>) -> Result<Run, Failure> {
    let ours = |what: &str, e: std::io::Error| Failure::ours(format!("{what}: {e}"));
    let args = plan.args;
    let faults = inject::from_environment()?;
    let no_move = env_flag("HUGESWAP_NO_MOVE") != 0 || !kernel_moves_pages();
    if no_move {
        evicts_by_copying(args.strict)?;
    }
    let Places { devices, total } = devices::open_all(args, plan.memory.bytes)?;
    // A huge page keeps a page table in reserve, base pages need one.
    let limit = plan.memory.bytes - plan.memory.bytes / hugeswap_control::OVERHEAD_SHARE;
    let settings = Settings {
        limit_bytes: limit,
        strict: args.strict.into(),
        user_mode_only: args.user_mode_only.into(),
        devices: 0,
        no_io_uring: env_flag("HUGESWAP_NO_IO_URING"),
        no_move: no_move.into(),
        swapin: SwapIn::from(args.swapin) as u32,
        encrypt: encrypts(args).into(),
        compress: args.compress().to_word(),
        codec: CompressCodec::from(args.compress_codec) as u32,
        swap_bytes: total.bytes(),
        faults,
    };
    let (file, control) = control_page(settings, &devices)?;
    let (orders_file, orders) = orders_page()?;
    if args.verbose {
        say_sizes(&plan.memory, &devices, total);
    }
    let mut handed = vec![&file];
    handed.extend(devices.iter().map(|d| &d.fd));
    let handed: Result<Vec<_>, _> = handed.into_iter().map(OwnedFd::try_clone).collect();
    let handed = handed.map_err(|e| ours("no descriptors", e))?;
    let door = Door::open()?;
    let pages = Pages::default();
    let address = door.address.clone();
    let secret = door.secret;
    let mark = Mark::new(&address);
    let sizes = control.devices().iter().map(DeviceEntry::segments);
    let shares = devices.iter().map(|d| d.shares);
    let swap = Swap::new(Owners::new(sizes.zip(shares)));
    let pages_of = Arc::clone(&pages);
    let mut processes =
        Processes::new((control, orders), Arc::clone(&swap), door, handed, pages_of).map_err(
            |e| match tasks::is_refusal(&e) {
                true => tasks::refused(e),
                false => ours("programs could not reach the supervisor", e),
            },
        )?;
    if let Some(path) = &args.record_faults {
        processes.record_to(fault_file::open(path)?);
    }
    let ram = devices.iter().filter(|d| d.kind != devices::Kind::File);
    let ram: Result<Vec<_>, _> = ram.map(|d| d.fd.try_clone().map(File::from)).collect();
    let ram = ram.map_err(|e| ours("no descriptors", e))?;
    let outside = outside::Outside::new(plan.memory.bytes, ram);
    let stats = args.stats_json.as_deref().and_then(StatsFile::open);
    let latency = idle_latency(args);
    // The first process would wait for ever for others to give some back.
    if !sys::has_descriptors(OF_A_PROCESS, &file) {
        return Err(Failure::ours(
            "too few file descriptors for a run: raise the hard limit, 'ulimit -Hn 64' or more",
        ));
    }
    let address = match &args.group {
        None => address,
        Some(name) => {
            let named = link::group_name(name.as_str()).ok_or(Errno::EINVAL);
            let group = named.and_then(|n| processes.groups.make(secret, plan.memory.bytes, &n));
            group
                .ok()
                .and_then(|group| Address::with_secret(&address, group))
                .ok_or_else(|| Failure::ours(format!("no group {name}")))?
        }
    };
    let program = spawn(plan, &address, control, pages)?;
    Ok(Run {
        control,
        orders,
        swap,
        devices: Arc::new(devices),
        total,
        program,
        handle: Process::of_child(program).ok(),
        processes,
        _files: [file, orders_file],
        limit,
        began: Instant::now(),
        stats,
        unmanaged: unmanaged::Watch::new(&plan.library, mark),
        outside,
        latency,
    })
}

/// Where a latency is asked for and can't be had, that is said.
fn idle_latency(args: &RunArgs) -> IdleLatency {
    let (latency, why) = IdleLatency::new(args.cpu_latency);
    if let (true, Err(not)) = (args.verbose, why) {
        errln!("hugeswap: idle processors are left alone: {}", not.why());
    }
    latency
}

fn say_sizes(memory: &Chosen, devices: &[devices::Opened], total: Total) {
    errln!(
        "hugeswap: memory {} ({}), swap {}",
        Size::from_bytes(memory.bytes),
        memory.why,
        devices::describe(devices, total)
    );
    if devices.iter().filter(|d| d.shares).count() > 1 {
        errln!(
            "hugeswap: swap in all up to {}",
            Size::from_bytes(total.bytes())
        );
    }
}

/// Whether what goes to swap is encrypted; the processor must have instructions for it, and right ones.
fn encrypts(args: &RunArgs) -> bool {
    if args.no_encrypt {
        return false;
    }
    let able = is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx");
    // The variable is for tests.
    if !able || env_flag("HUGESWAP_NO_AES") != 0 {
        if args.verbose {
            errln!(
                "hugeswap: this processor has no AES instructions: swap is checked, but not encrypted"
            );
        }
        return false;
    }
    let right = hugeswap_seal::cipher_is_right();
    if !right {
        errln!(
            "hugeswap: warning: this processor's AES instructions give wrong results, as some emulators' do: \
             swap is checked, but not encrypted"
        );
    }
    right
}

/// UFFDIO_MOVE, since Linux 6.8.
fn kernel_moves_pages() -> bool {
    use hugeswap_sys::uffd::{Uffd, FEATURE_MOVE};
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
    errln!("hugeswap: warning: {WHY} it may go above its memory limit. Use Linux 6.8 or later");
    Ok(())
}

fn env_flag(name: &str) -> u32 {
    std::env::var_os(name).is_some_and(|v| v == "1").into()
}

#[allow(unsafe_code)]
fn control_page(
    settings: Settings,
    devices: &[devices::Opened],
) -> Result<(OwnedFd, Writer), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::ours(format!("no control page: {e}"));
    let devices: Vec<_> = devices
        .iter()
        .map(|d| NewDevice {
            name: &d.name,
            max_bytes: d.max_bytes,
            shares: d.shares,
            kind: d.kind as u32,
            rank: d.rank,
        })
        .collect();
    let file = os::sized_memory_file(CONTROL_FILE, Control::BYTES as u64);
    let file = file.map_err(|e| failed(&e))?;
    // SAFETY: just made, of this size, and sealed before anybody gets it.
    let control = unsafe { Writer::new(file.as_fd().as_raw_fd(), settings, &devices) };
    let control = control.map_err(|e| failed(&e))?;
    // From here on nobody can write but by the mapping that was just made.
    os::seal(&file, os::Seal::SizeAndContent).map_err(|e| failed(&e))?;
    Ok((file.into(), control))
}

#[allow(unsafe_code)]
fn orders_page() -> Result<(OwnedFd, &'static Orders), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::ours(format!("no page for orders: {e}"));
    let file = os::sealed_memory_file(ORDERS_FILE, Orders::BYTES as u64);
    let file = file.map_err(|e| failed(&e))?;
    // SAFETY: of this size for ever, and no process of the run gets it.
    let orders = unsafe { Orders::map(file.as_fd().as_raw_fd()) }.map_err(|e| failed(&e))?;
    orders.begin();
    Ok((file.into(), orders))
}

fn spawn(plan: &Plan<'_>, address: &str, control: Writer, pages: Pages) -> Result<i32, Failure> {
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
        .env(ENV, address);
    os::kill_with_me(&mut command);
    let watch = if control.settings.no_move != 0 {
        zero_copy::Watch::Pins
    } else {
        zero_copy::Watch::ZeroCopy
    };
    match zero_copy::install(&mut command, watch) {
        Ok(guard) => {
            zero_copy::take_over(guard, control, pages, watch).map_err(tasks::refused)?;
        }
        Err(e) => errln!("hugeswap: warning: staging folios are not used again: {e}"),
    }
    signals::give_back(&mut command);
    signals::forget_early();
    let child = command.spawn().map_err(|e| match tasks::is_refusal(&e) {
        true => tasks::refused(e),
        false => Failure {
            code: EXIT_CANNOT_RUN,
            message: format!("'{}' can't be run: {e}", plan.path.display()),
        },
    })?;
    Ok(child.id() as i32)
}

/// How long nothing may happen until is looked again: limits are divided by what processes do meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// The same while a process waits for its share, or a device is swapped off.
const LOOK_SOON: Duration = Duration::from_millis(10);

const STRICT_ENDS: &str = "hugeswap: a program of the run is unmanaged, so --strict ends the run";

/// Processes wait for what this thread gives them, be it memory or swap, and it has little to do.
fn hurry() {
    let _ = sched::shortest_slice();
    let _ = sched::nice().and_then(|nice| sched::set_nice(nice - sched::NICER));
}

fn pages(bytes: u64) -> i64 {
    (bytes / PAGE_SIZE as u64) as i64
}

impl Run {
    fn supervise(
        mut self,
        plan: &Plan<'_>,
        status: Arc<File>,
        alive: OwnedFd,
        front: Process,
    ) -> i32 {
        News::Started(self.program).tell(&status);
        // The program has the caller's streams; ours would keep pipes open.
        sys::detach_streams(&[0, 1]);
        let front = Arc::new(Front::new(front));
        let ended = match self.start_threads(alive, &status, &front) {
            Ok(ended) => ended,
            Err(e) => return self.give_up(tasks::refused(e), &status),
        };
        let mut next_stats = Instant::now() + Duration::from_secs(1);
        let mut ended_reported = None;
        let mut stays = true;
        let mut cores = {
            let mode = self.control.settings.seal_mode();
            core_file::Cores::new(mode, self.processes.bell(), plan.args.verbose)
        };
        let mut arbiter = arbiter::Arbiter::new(!self.devices.is_empty());
        self.processes.groups.set_run(pages(self.limit));
        let mut usages: Vec<Usage> = self.usages();
        hurry();
        loop {
            let is_on = |d| self.orders.usage(d).phase == Phase::On;
            self.processes.grant(self.total, is_on);
            self.processes.print_logs();
            cores.look_around(self.processes.present());
            let devices = Arc::clone(&self.devices);
            self.processes
                .bury(|id, m, borrows| cores.is_busy(id, m, borrows, &devices));
            self.processes.settle_loans();
            self.swap.settle();
            self.look_for_strangers(plan, ended_reported.is_none());
            if let Some(limit) = self.outside.look(&mut self.processes, &self.unmanaged) {
                self.processes.groups.set_run(pages(limit));
            }
            let pressed = arbiter.turn(&self.processes);
            self.latency
                .look(self.processes.pages_waited_for(), Instant::now());
            self.processes.tell();
            self.take_settings();
            self.follow_orders(&mut usages);
            if Instant::now() >= next_stats {
                next_stats += Duration::from_secs(1);
                self.write_stats(plan, ended_reported);
            }
            if front.gone.load(Acquire) && ended_reported.is_none() {
                self.kill_all();
            }
            if ended_reported.is_none() {
                let ended = *ended.lock().unwrap_or_else(|e| e.into_inner());
                if let Some(ended) = ended.filter(|e| !self.waits_for_core(e, &cores)) {
                    ended_reported = Some(ended.status);
                    stays = self.report_end(plan, ended, &cores, &status);
                }
            }
            if ended_reported.is_some() && !cores.any_busy() && (!stays || !self.is_anyone_left()) {
                // A thread that punches holes may have the devices longer than we do.
                self.devices
                    .iter()
                    .for_each(devices::Opened::give_length_back);
                return 0;
            }
            let leaving = usages.iter().any(|u| u.phase == Phase::Leaving);
            let soon = pressed || leaving || self.processes.are_settling();
            self.processes.wait(match soon {
                true => LOOK_SOON,
                false => self.outside.rests().clamp(LOOK_SOON, LOOK),
            });
        }
    }

    /// Those that the supervisor has as long as it lives. How the program ended is known from one of them.
    fn start_threads(
        &self,
        alive: OwnedFd,
        status: &Arc<File>,
        front: &Arc<Front>,
    ) -> io::Result<Arc<Mutex<Option<Ended>>>> {
        self.discard_free()?;
        watch_front(
            alive,
            Arc::clone(status),
            Arc::clone(front),
            self.processes.bell(),
        )?;
        self.watch_program(Arc::clone(status), Arc::clone(front))
    }

    /// The program has just been started, and can't go on.
    fn give_up(&mut self, why: Failure, status: &File) -> i32 {
        self.kill_all();
        let _ = sys::wait(self.program);
        errln!("hugeswap: {}", why.message);
        News::Ended(Status::Exited(why.code), false).tell(status);
        0
    }

    /// Whoever waits for the program may look at its core file next.
    fn waits_for_core(&self, ended: &Ended, cores: &core_file::Cores) -> bool {
        ended.core && self.processes.is_ending(self.program as u32) || cores.any_busy()
    }

    /// The program has ended. Says whether the supervisor stays for the sake of others.
    fn report_end(
        &mut self,
        plan: &Plan<'_>,
        ended: Ended,
        cores: &core_file::Cores,
        status: &File,
    ) -> bool {
        let why = cores.explain(self.program as u32);
        if let Some(line) = why.filter(|_| ended.core) {
            errln!("hugeswap: {line}");
        }
        let stays = self.is_anyone_left();
        self.finish(plan, ended.status, status, stays);
        stays
    }

    fn is_anyone_left(&mut self) -> bool {
        self.processes.present().next().is_some()
            || self.unmanaged.is_anyone_starting(&self.processes)
    }

    /// Devices that are to be left, or used again. `usages`: as they were known before.
    fn follow_orders(&self, usages: &mut Vec<Usage>) {
        self.empty_devices();
        let now = self.usages();
        self.show_devices(&now);
        if *usages != now {
            *usages = now;
            self.processes.call_all();
        }
    }

    /// As ordered.
    fn usages(&self) -> Vec<Usage> {
        let devices = 0..self.devices.len();
        devices.map(|d| self.orders.usage(d)).collect()
    }

    /// Tells the processes, and who asks from outside.
    fn show_devices(&self, usages: &[Usage]) {
        let owners = self.swap.owners();
        for (d, &usage) in usages.iter().enumerate() {
            self.control.set_device(d, usage, owners.taken(d));
        }
    }

    /// Settings that were changed from outside.
    fn take_settings(&self) {
        if let Some(mode) = self.orders.swap_in() {
            self.control.set_swap_in(mode);
        }
    }

    /// Gives back the space of what nobody has, as long as the run lasts.
    fn discard_free(&self) -> io::Result<()> {
        let (swap, devices) = (Arc::clone(&self.swap), Arc::clone(&self.devices));
        let bell = self.processes.bell();
        tasks::start(move || {
            swap.discard(
                |d, clusters| devices::give_back(&devices[d], clusters),
                || sys::set_event(&bell, true),
            );
        })
    }

    /// Gives back the space of devices that every process has left.
    fn empty_devices(&self) {
        for (i, d) in self.devices.iter().enumerate() {
            let usage = self.orders.usage(i);
            if usage.phase != Phase::Leaving || !self.processes.all_left(i, usage.epoch) {
                continue;
            }
            // From here on nobody can turn it on again while its contents are thrown away.
            if let Some(usage) = self.orders.change(i, usage, Phase::Releasing) {
                devices::empty(d);
                self.orders.change(i, usage, Phase::Off);
            }
        }
    }

    /// Programs that hugeswap is not in are told of; with --strict they end the run.
    fn look_for_strangers(&mut self, plan: &Plan<'_>, goes_on: bool) {
        self.unmanaged.hear(self.processes.take_execs());
        let mut is_new = self.unmanaged.hear_declined(self.processes.take_declined());
        let program = self.program as u32;
        is_new |= match is_new {
            true => self.unmanaged.look_now(program, &self.processes),
            false => self.unmanaged.look(program, &self.processes),
        };
        if is_new && goes_on && plan.args.strict {
            errln!("{STRICT_ENDS}");
            self.kill_all();
            self.unmanaged.kill_all();
        }
    }

    /// The program itself has ended: report, and let the front go.
    fn finish(&mut self, plan: &Plan<'_>, s: Status, status: &File, stays: bool) {
        self.processes.print_logs();
        self.unmanaged.hear(self.processes.take_execs());
        // What was heard just now has been done by now, or was taken back.
        let known = self.unmanaged.count_all();
        self.unmanaged.hear_declined(self.processes.take_declined());
        for _ in 0..2 {
            self.unmanaged
                .look_now(self.program as u32, &self.processes);
        }
        // What the loader or a shell can't run ends with 127.
        if !self.processes.have_come() && matches!(s, Status::Exited(code) if code != 127) {
            self.unmanaged.never_came(&plan.path.display().to_string());
        }
        if !self.processes.have_come()
            && matches!(s, Status::Killed(signal) if is_of_a_fault(signal))
        {
            errln!("{DIED_AT_START}");
        }
        let all = self.unmanaged.count_all();
        if plan.args.strict && all > known {
            errln!("{STRICT_ENDS}");
        }
        // However soon it was over.
        let s = match plan.args.strict && all > 0 {
            true => Status::Killed(libc::SIGKILL),
            false => s,
        };
        let figures = self.figures(plan, Some(s));
        if !self.stats.as_mut().is_some_and(|to| to.write_last(figures)) {
            self.stats = None;
        }
        if let Some(line) = self.unmanaged.summary() {
            errln!("hugeswap: warning: {line}");
        }
        if plan.args.verbose {
            let total = self.processes.total();
            errln!("hugeswap: {}", report::summary(&total));
            errln!(
                "hugeswap: {}",
                report::limited_by(&total, self.began.elapsed())
            );
            for (group, total) in self.groups() {
                errln!(
                    "hugeswap: group {}: {}",
                    group.path,
                    report::summary(&total)
                );
            }
        }
        News::Ended(s, stays).tell(status);
        // Daemons may live on; whoever reads our streams need not wait for them.
        sys::detach_streams(&[2]);
    }

    fn figures(&self, plan: &Plan<'_>, ended: Option<Status>) -> serde_json::Value {
        let run = report::Run {
            args: plan.args,
            program: self.program,
            memory: plan.memory.bytes,
            unmanaged: &self.unmanaged,
            outside: &self.outside,
            latency_held: self.latency.held(),
        };
        let groups = self.groups();
        report::figures(&run, &self.processes.total(), &groups, ended)
    }

    fn groups(&self) -> Vec<(groups::Figures, Box<Stats>)> {
        let groups = &self.processes.groups;
        let speak = || self.processes.groups_of_live();
        let figures = |g| (groups.figures(g, speak()), self.processes.total_of(g));
        groups.numbers().map(figures).collect()
    }

    fn write_stats(&mut self, plan: &Plan<'_>, ended: Option<Status>) {
        if self.stats.is_some() {
            let figures = self.figures(plan, ended);
            self.stats
                .iter_mut()
                .for_each(|to| to.write(figures.clone()));
        }
    }

    /// The front was killed: the run ends.
    fn kill_all(&mut self) {
        if let Some(program) = &self.handle {
            program.kill();
        }
        self.processes.kill_all();
    }

    /// Waits for the program; the front stops and goes on with it.
    fn watch_program(
        &self,
        status: Arc<File>,
        front: Arc<Front>,
    ) -> io::Result<Arc<Mutex<Option<Ended>>>> {
        let result = Arc::new(Mutex::new(None));
        let (r, pid, bell) = (Arc::clone(&result), self.program, self.processes.bell());
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
            *r.lock().unwrap_or_else(|e| e.into_inner()) = Some(ended);
            sys::set_event(&bell, true);
        })?;
        Ok(result)
    }
}

/// The program may have done it by itself, but has hardly begun.
const DIED_AT_START: &str =
    "hugeswap: the program died before hugeswap could start in it; the library may be damaged: \
                             'hugeswap doctor' tries it";

fn is_of_a_fault(signal: i32) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGTRAP | libc::SIGABRT
    )
}

/// So long a program that all of its group is stopped with may take to stop, before the front goes on as it does.
const ABOUT_TO_STOP: Duration = Duration::from_secs(1);

/// What is known of the front.
struct Front {
    process: Process,
    number: u32,
    gone: AtomicBool,
    /// How often it was told to stop, and how often it has gone on after that.
    told: AtomicU32,
    went_on: AtomicU32,
}

impl Front {
    fn new(process: Process) -> Front {
        Front {
            process,
            number: std::os::unix::process::parent_id(),
            gone: AtomicBool::new(false),
            told: AtomicU32::new(0),
            went_on: AtomicU32::new(0),
        }
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
            if went == self.told.load(Acquire) || self.gone.load(Acquire) {
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
fn watch_front(
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
        sys::set_event(&bell, true);
    })
}
