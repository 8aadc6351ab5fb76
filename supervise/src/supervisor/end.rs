//! What is said of a run while it goes on, and when it has ended.

use std::fs::File;

use hugeswap_control::stats::Stats;
use hugeswap_host::aside;

use super::{Plan, Run, SAY, STRICT_ENDS};
use crate::core_file::Cores;
use crate::sys::{self, Ended, Status};
use crate::words::News;
use crate::{groups, report};

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

impl Run {
    /// Whoever waits for the program may look at its core file next.
    pub(super) fn waits_for_core(&self, ended: &Ended, cores: &Cores) -> bool {
        ended.core && self.processes.is_ending(self.program as u32) || cores.any_busy()
    }

    /// The program has ended. Says whether the supervisor stays for the sake of others.
    pub(super) fn report_end(
        &mut self,
        plan: &Plan<'_>,
        ended: Ended,
        cores: &Cores,
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
        // Who reads the program's output first, and then its errors, waits for the front's end.
        let stays = !aside::finish(SAY) || stays;
        News::Ended { status: s, stays }.tell(status);
        // Daemons may live on; readers of our streams need not wait for them.
        aside::then(|| sys::detach_streams(&[2]));
    }

    fn figures(&self, plan: &Plan<'_>, ended: Option<Status>) -> serde_json::Value {
        let run = report::Run {
            args: plan.args,
            program: self.program,
            memory: plan.memory.bytes,
            unmanaged: &self.unmanaged,
            outside: &self.outside,
            latency_held: self.latency.held(),
            seal_mode: self.control.settings.seal_mode(),
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

    pub(super) fn write_stats(&mut self, plan: &Plan<'_>, ended: Option<Status>) {
        if self.stats.is_some() {
            let figures = self.figures(plan, ended);
            self.stats
                .iter_mut()
                .for_each(|to| to.write(figures.clone()));
        }
    }
}
