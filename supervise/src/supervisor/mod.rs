//! The process that owns the run.

mod end;
mod start;
mod watch;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hugeswap_control::{Orders, Phase, Usage, Writer};
use hugeswap_host::aside;
use hugeswap_host::sizing::Chosen;
use hugeswap_mm::PAGE_SIZE;
use hugeswap_sys::sched;

use crate::arbiter::{Arbiter, Order};
use crate::core_file::Cores;
use crate::devices::{self, Total};
use crate::failure::Failure;
use crate::idle_latency::IdleLatency;
use crate::outside::Outside;
use crate::owners::Swap;
use crate::processes::Processes;
use crate::run_args::RunArgs;
use crate::stats_file::StatsFile;
use crate::sys::{self, Ended, Process};
use crate::words::News;
use crate::{tasks, unmanaged};
use watch::Front;

pub struct Plan<'a> {
    pub args: &'a RunArgs,
    pub memory: Chosen,
    pub path: PathBuf,
    pub library: PathBuf,
}

/// Runs the program and everything it leaves behind. The exit status is for nobody but init.
pub fn run(plan: Plan<'_>, status: OwnedFd, alive: OwnedFd, front: Process) -> i32 {
    let status = File::from(status);
    match start::start(&plan) {
        Ok(run) => run.supervise(&plan, Arc::new(status), alive, front),
        Err(f) => {
            errln!("hugeswap: {}", f.message);
            News::ended_alone(f.code).tell(&status);
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
    outside: Outside,
    latency: IdleLatency,
}

/// How long nothing may happen until is looked again: limits are divided by what processes do meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// The same while a process waits for its share, or a device is swapped off.
const LOOK_SOON: Duration = Duration::from_millis(10);

/// How long who waits for the program waits for what is said of it, where nobody reads that.
pub(super) const SAY: Duration = Duration::from_secs(1);
/// The same for the end of the supervisor, for which nobody waits then.
const SAY_LAST: Duration = Duration::from_secs(10);

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
        let mode = self.control.settings.seal_mode();
        let mut cores = Cores::new(mode, self.processes.bell(), plan.args.verbose);
        let mut arbiter = Arbiter::new(!self.devices.is_empty(), self.order(plan.args));
        self.processes.groups.set_run(pages(self.limit));
        let mut usages: Vec<Usage> = self.usages();
        hurry();
        loop {
            self.serve(&mut cores);
            self.look_for_strangers(plan, ended_reported.is_none());
            let pressed = self.share_limit(&mut arbiter);
            self.processes.tell();
            self.take_settings();
            self.follow_orders(&mut usages);
            if Instant::now() >= next_stats {
                next_stats += Duration::from_secs(1);
                self.write_stats(plan, ended_reported);
            }
            if ended_reported.is_none() {
                if front.is_gone() {
                    self.kill_all();
                }
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
                let _ = aside::finish(SAY_LAST);
                return 0;
            }
            let leaving = usages.iter().any(|u| u.phase == Phase::Leaving);
            self.rest(pressed || leaving);
        }
    }

    /// Whether processes are to take turns.
    fn order(&self, args: &RunArgs) -> Order {
        match self.control.settings.faults.turns {
            0 if args.no_turns => Order::AllAtATime,
            0 => Order::Auto,
            _ => Order::AtRandom,
        }
    }

    /// Until something happens, or it is time to look again. `soon`: somebody waits for what is done here.
    fn rest(&mut self, soon: bool) {
        self.processes
            .wait(match soon || self.processes.are_settling() {
                true => LOOK_SOON,
                false => self.outside.rests().clamp(LOOK_SOON, LOOK),
            });
    }

    /// What processes wait for, and what the dead have left.
    fn serve(&mut self, cores: &mut Cores) {
        let is_on = |d| self.orders.usage(d).phase == Phase::On;
        self.processes.grant(self.total, is_on);
        self.processes.print_logs();
        cores.look_around(self.processes.present());
        let devices = Arc::clone(&self.devices);
        self.processes
            .bury(|id, m, borrows| cores.is_busy(id, m, borrows, &devices));
        self.processes.settle_loans();
        self.swap.settle();
    }

    /// Divides what the run may have. Says whether somebody waits for a part of it.
    fn share_limit(&mut self, arbiter: &mut Arbiter) -> bool {
        if let Some(limit) = self.outside.look(&mut self.processes, &self.unmanaged) {
            self.processes.groups.set_run(pages(limit));
        }
        let pressed = arbiter.turn(&self.processes);
        self.latency
            .look(self.processes.pages_waited_for(), Instant::now());
        pressed
    }

    /// Those that the supervisor has as long as it lives. How the program ended is known from one of them.
    fn start_threads(
        &self,
        alive: OwnedFd,
        status: &Arc<File>,
        front: &Arc<Front>,
    ) -> io::Result<Arc<Mutex<Option<Ended>>>> {
        aside::begin(tasks::start)?;
        self.discard_free()?;
        let bell = || self.processes.bell();
        watch::front(alive, Arc::clone(status), Arc::clone(front), bell())?;
        watch::program(self.program, Arc::clone(status), Arc::clone(front), bell())
    }

    /// The program has just been started, and can't go on.
    fn give_up(&mut self, why: Failure, status: &File) -> i32 {
        self.kill_all();
        let _ = sys::wait(self.program);
        errln!("hugeswap: {}", why.message);
        let _ = aside::finish(SAY);
        News::ended_alone(why.code).tell(status);
        0
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
                || sys::set_event(&bell),
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

    /// The front was killed: the run ends.
    fn kill_all(&mut self) {
        if let Some(program) = &self.handle {
            program.kill();
        }
        self.processes.kill_all();
    }
}
