//! `hugeswap promote`: brings hot, unmapped page cache back from slow memory.

mod simulation;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use hugeswap_promote::daemon::{Config, Daemon, End};
use hugeswap_promote::machine::Linux;
use hugeswap_promote::page::PAGE;
use hugeswap_promote::policy::Limits;
use hugeswap_promote::stats::Stats;
use hugeswap_promote::sys;
use hugeswap_promote::tiers::{self, Fast, Route};
use hugeswap_promote::trace::points::{Kind, Points};

use hugeswap_host::size::MIB;

#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "\
Runs as root until a signal ends it. What the counters say is in docs/promote.md.

  hugeswap promote --from 1 --to 0 --rate-limit-mbps 1000")]
pub struct PromoteArgs {
    /// A slow node; may be repeated [default: the nodes of the lower memory tiers]
    #[arg(long, value_name = "NODE")]
    pub from: Vec<u32>,

    /// The fast node [default: of the highest memory tier that nearest to the readers]
    #[arg(long, value_name = "NODE")]
    pub to: Option<u32>,

    /// Most that is moved in any second, in MiB [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1 << 24))]
    pub rate_limit_mbps: Option<u64>,

    /// Time between two looks, as in 500ms or 2s
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub interval: Duration,

    /// Two accesses within this time make a page hot
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s")]
    pub window: Duration,

    /// Share of a processor's time that watching may cost, and looking for pages that are not moved
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "1%")]
    pub overhead_budget: f64,

    /// Share of a processor's time that moving pages may cost, with looking for them
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "50%")]
    pub work_budget: f64,

    /// Only files below this directory; may be repeated
    #[arg(long, value_name = "DIR")]
    pub path: Vec<PathBuf>,

    /// Make room on the fast node by moving cold file pages to the slow one
    #[arg(long)]
    pub demote: bool,

    /// Look and count, but move nothing
    #[arg(long)]
    pub observe: bool,

    /// Watch for one interval, half a second at least, promote what is hot, and end
    #[arg(long)]
    pub once: bool,

    /// Print the counters as JSON, one object for each interval
    #[arg(long)]
    pub json: bool,

    /// Move nothing: run the policy over a trace and a model of two tiers
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["from", "to", "path", "demote", "observe", "once"])]
    pub simulate: Option<PathBuf>,

    /// Use the kernel's activations, as on kernels without an event for reads
    #[arg(long, hide = true)]
    pub activations: bool,
}

/// "500ms", "2s", "1m"; a number alone is seconds.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        _ => {
            return Err(format!(
                "'{text}' is not a time: write it as in 500ms, 2s or 1m"
            ))
        }
    };
    let number: f64 = digits
        .parse()
        .map_err(|_| format!("'{text}' is not a time: write it as in 500ms, 2s or 1m"))?;
    let seconds = number * unit;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err(format!("'{text}' is not between 10ms and a day"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// "1%" or "0.5"; a share between 0 and 1.
fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| format!("'{text}' is not a percentage: write it as in 1% or 0.5%"))?;
    if !(0.01..=100.0).contains(&number) {
        return Err(format!("'{text}' is not between 0.01% and 100%"));
    }
    Ok(number / 100.0)
}

pub fn run(args: &PromoteArgs) -> ExitCode {
    let done = match &args.simulate {
        Some(path) => simulation::run(path, args.json),
        None => start(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            errln!("hugeswap: promote: {message}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &PromoteArgs) -> Result<(), String> {
    let routes = routes(args)?;
    if !sys::is_root() {
        return Err("run this as root: it watches and moves the pages of all processes".to_owned());
    }
    for path in &args.path {
        std::fs::metadata(path).map_err(|err| format!("--path {}: {err}", path.display()))?;
    }
    sys::allow_descriptors();
    sys::drop_capabilities().map_err(|err| format!("can't give up what is not needed: {err}"))?;
    let points = if args.activations {
        Points::find_activations()
    } else {
        Points::find()
    };
    let points = points.map_err(|err| format!("can't watch reads: {err}"))?;
    // Before any thread and anything that takes time: a signal ends it cleanly.
    let signals = sys::signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
        .map_err(|err| format!("can't wait for signals: {err}"))?;
    let paths = canonical(&args.path)?;
    let config = Config {
        limits: Limits {
            window: args.window,
            rate: args.rate_limit_mbps.map(|rate| rate * MIB / PAGE),
            seen: tiers::blocks().clamp(1 << 16, 1 << 22) as usize,
            ..Limits::default()
        },
        interval: args.interval,
        budget: args.overhead_budget,
        work: args.work_budget,
        demote: args.demote,
        observe: args.observe,
        once: args.once,
        fast: if args.to.is_none() && args.from.is_empty() {
            Fast::find()
        } else {
            Fast::default()
        },
        routes,
    };
    let mut view = View::new(args.json, args.interval);
    view.begin(&config, points.kind);
    let machine = Linux::new(points, paths, signals.as_fd())
        .map_err(|err| format!("can't watch reads: {err}"))?;
    let mut daemon = Daemon::new(config, machine);
    view.costs(&daemon);
    let end = daemon
        .run(|stats| {
            view.show(stats);
            !args.once
        })
        .map_err(|err| format!("{err}"))?;
    if end == End::Signal {
        view.show(daemon.stats());
    }
    Ok(())
}

fn routes(args: &PromoteArgs) -> Result<Vec<Route>, String> {
    match tiers::routes(&args.from, args.to) {
        Err(_) if args.observe && args.from.is_empty() && args.to.is_none() => {
            // To look needs no fast node: then every node is a slow one.
            let nodes = tiers::nodes().map_err(|err| err.to_string())?;
            let route = |from| Route { from, to: from };
            Ok(nodes.into_iter().map(route).collect())
        }
        other => other,
    }
}

fn canonical(paths: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let one = |path: &PathBuf| {
        path.canonicalize()
            .map_err(|err| format!("--path {}: {err}", path.display()))
    };
    paths.iter().map(one).collect()
}

/// What is shown: JSON for programs, a table for people.
struct View {
    json: bool,
    rows: usize,
    last: Stats,
    interval: Duration,
    /// Seconds from phase to phase, as it was last said.
    every: f64,
}

const COLUMNS: &str =
    "  time s  sampled   candidate    promoted     demoted      failed   MiB/s  duty  overhead";

impl View {
    fn new(json: bool, interval: Duration) -> View {
        View {
            json,
            rows: 0,
            last: Stats::default(),
            interval,
            every: interval.as_secs_f64(),
        }
    }

    fn begin(&self, config: &Config, kind: Kind) {
        let mut text = format!("hugeswap: watching {}", kind.name());
        for route in &config.routes {
            if route.from == route.to {
                let _ = write!(text, ", node {}", route.from);
            } else {
                let _ = write!(text, ", node {} to node {}", route.from, route.to);
            }
        }
        if let Some(rate) = config.limits.rate {
            let _ = write!(text, ", at most {} MiB/s", rate * PAGE / MIB);
        }
        if config.observe {
            text += ", moving nothing";
        }
        errln!("{text}");
    }

    fn costs(&self, daemon: &Daemon<Linux>) {
        let costs = daemon.costs();
        errln!(
            "hugeswap: an event costs {:.0} ns, a record {:.0} ns more",
            costs.event,
            costs.sample
        );
        if let Some(why) = daemon.machine().without_tmpfs() {
            errln!("hugeswap: tmpfs files are not promoted: {why}");
        }
    }

    fn show(&mut self, stats: &Stats) {
        let text = if self.json {
            serde_json::to_string(stats).unwrap_or_else(|err| format!("{{\"error\":\"{err}\"}}"))
        } else {
            self.row(stats)
        };
        // Nobody to read it is no reason to stop promoting.
        let _ = writeln!(io::stdout(), "{text}");
        if let Some(note) = self.stretched(stats) {
            let _ = writeln!(io::stderr(), "hugeswap: {note}");
        }
        self.last = stats.clone();
    }

    /// What is to be said about how often reads are watched, where that has changed much.
    fn stretched(&mut self, stats: &Stats) -> Option<String> {
        let every = stats.watch_every;
        if every < self.every * 2.0 && every > self.every / 2.0 {
            return None;
        }
        self.every = every;
        Some(if every <= self.interval.as_secs_f64() {
            "reads are watched in each interval again".to_owned()
        } else {
            format!(
                "reads are watched every {every:.1} s and not in each interval: to switch the events \
                 takes {:.1} ms of a processor; a larger --overhead-budget does it more often",
                stats.switch_cost * 1e3
            )
        })
    }

    fn row(&mut self, stats: &Stats) -> String {
        let mut text = String::new();
        let every = if io::stdout().is_terminal() {
            20
        } else {
            usize::MAX
        };
        if self.rows % every == 0 {
            text = format!("{COLUMNS}\n");
        }
        self.rows += 1;
        let seconds = (stats.seconds - self.last.seconds).max(0.001);
        let moved = (stats.numa_pages_migrated - self.last.numa_pages_migrated) * PAGE;
        let _ = write!(
            text,
            "{:>8.1} {:>8} {:>11} {:>11} {:>11} {:>11} {:>7.1} {:>4.0}% {:>8.2}%{}",
            stats.seconds,
            stats.numa_hint_page_cache - self.last.numa_hint_page_cache,
            stats.pgpromote_candidate,
            stats.pgpromote_success,
            stats.pgdemote_proactive,
            stats.failed.sum(),
            moved as f64 / seconds / MIB as f64,
            stats.sample_duty * 100.0,
            (stats.overhead_sampling + stats.overhead_daemon) * 100.0,
            if stats.backing_off {
                "  backing off"
            } else {
                ""
            },
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2"), Ok(Duration::from_secs(2)));
        assert_eq!(time("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "x", "1h", "0s", "-1s", "1e9s"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn that_reads_are_watched_more_rarely_is_said_once() {
        let mut view = View::new(false, Duration::from_secs(1));
        let mut said = |watch_every| {
            let stats = Stats {
                watch_every,
                switch_cost: 0.0125,
                ..Stats::default()
            };
            view.stretched(&stats)
        };
        assert_eq!(said(1.0), None);
        assert_eq!(said(1.9), None);
        let text = said(10.0).unwrap();
        assert!(
            text.contains("every 10.0 s") && text.contains("12.5 ms"),
            "{text}"
        );
        assert_eq!(said(9.0), None);
        assert!(said(1.0).unwrap().contains("again"));
        assert_eq!(said(1.0), None);
    }

    #[test]
    fn percentages() {
        assert_eq!(percent("1%"), Ok(0.01));
        assert_eq!(percent("0.5"), Ok(0.005));
        for wrong in ["", "0%", "101%", "nan", "one"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
