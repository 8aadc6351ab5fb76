//! `hugeswap bench anon-cow-seq`: the case of reference 004. A range is
//! populated, N children are forked, each writes it from begin to end, so that
//! every huge page is copied when its first word is written.
//!
//! Each child copies with one of the methods into huge pages of its own and
//! then writes the copy; every other child is its cache pressure. The row
//! `kernel` writes the inherited range itself: the kernel's own copy-on-write,
//! with its faults and allocations. The row `hugeswap run` is the same in a program
//! under `hugeswap run`, which has memory enough: the engine's copy-on-write.

use super::clock::{Clock, Tick};
use super::method::{Method, Op};
use super::plot::{self, Line, Panel};
use super::probe;
use super::process::{Child, Shared, Told, CHILDREN};
use super::region::{whole_huge_pages, Region};
use super::stats::{median, paired_ratio, Random};
use hugeswap_host::out;
use hugeswap_host::size::Size;
use hugeswap_mm::PAGE_SIZE;
use hugeswap_page_copy as copy;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Copy-on-write by N children that write a populated range from begin to end
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Numbers of children
    #[arg(long, short = 'n', value_delimiter = ',', default_values_t = [1, 2, 4])]
    children: Vec<usize>,
    /// Order of the huge pages (9 is 2 MiB)
    #[arg(long, default_value_t = 9)]
    order: u8,
    /// Size of the range; each child needs as much again
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    size: Size,
    /// Rounds; in each, every method runs once
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Only the program's own writes, with and without hugeswap
    #[arg(long)]
    program: bool,
    /// Only the kernel's row, in this process
    #[arg(long, hide = true)]
    kernel: bool,
}

/// One method with one number of children. Medians over the rounds.
#[derive(serde::Serialize)]
struct Row {
    children: usize,
    method: &'static str,
    /// Of all children together, from the start to the last one's end.
    gb_s: f64,
    /// Per huge page, means over a child's range; 0 for the kernel, whose
    /// copying can't be told from the writing.
    copy_us: f64,
    target_ns: f64,
    walk_us: f64,
    /// Medians of the ratios of elapsed times within a round, to what was measured.
    time_to_libc: Option<f64>,
    time_to_sub_pages: Option<f64>,
    time_to_ascending: Option<f64>,
    time_to_kernel: Option<f64>,
}

#[derive(serde::Serialize)]
struct Report {
    order: u8,
    size_bytes: usize,
    rounds: usize,
    huge_share: Option<f64>,
    cache_share: usize,
    rows: Vec<Row>,
}

pub fn run(args: Args) -> Result<(), String> {
    if args.children.iter().any(|&n| n == 0 || n > CHILDREN) {
        return Err(format!("children are 1 to {CHILDREN}"));
    }
    let size = whole_huge_pages(args.size);
    if args.order > 18 || size < PAGE_SIZE << args.order {
        return Err("the range must hold one huge page of order 0 to 18".into());
    }
    if args.rounds == 0 {
        return Err("at least one round".into());
    }
    let clock = Clock::calibrate();
    let cpu = copy::init();
    let range = Region::populated(size)?;
    let huge_share = range.huge_share();
    let mut rows = Vec::new();
    for &children in &args.children {
        rows.extend(measure(&args, clock, &range, children)?);
    }
    let report = Report {
        order: args.order,
        size_bytes: size,
        rounds: args.rounds,
        huge_share,
        cache_share: cpu.cache_share,
        rows,
    };
    if let Some(file) = &args.plot {
        plot::write(file, &panels(&report))?;
    }
    if args.json {
        out::json(&report)?;
    } else {
        print(&report);
    }
    Ok(())
}

fn measure(args: &Args, clock: Clock, range: &Region, children: usize) -> Result<Vec<Row>, String> {
    let mut methods = vec![Method::Kernel];
    if !args.kernel {
        methods.push(Method::Managed);
        if !args.program {
            methods.extend(Method::all());
        }
    }
    let mut runs: Vec<Vec<Told>> = vec![Vec::new(); methods.len()];
    let mut turns: Vec<usize> = (0..methods.len()).collect();
    let mut random = Random::new(children as u64);
    for _ in 0..args.rounds {
        random.shuffle(&mut turns);
        for &which in &turns {
            let told = match methods[which] {
                Method::Managed => managed(args, children)?,
                method => once(clock, range, PAGE_SIZE << args.order, children, method)?,
            };
            runs[which].push(told);
        }
    }
    let elapsed = |which: usize| -> Vec<f64> { runs[which].iter().map(|t| t.total_ns).collect() };
    let times_of = |m: Method| methods.iter().position(|&x| x == m).map(elapsed);
    let libc = times_of(Method::Libc);
    let sub_pages = times_of(Method::SubPages);
    let ascending = times_of(Method::Ours(copy::Strategy::Ascending));
    let kernel = times_of(Method::Kernel);
    let ratio = |which: usize, to: &Option<Vec<f64>>| {
        to.as_ref().map(|to| paired_ratio(&elapsed(which), to))
    };
    let of = |which: usize, f: fn(&Told) -> f64| median(runs[which].iter().map(f).collect());
    let bytes = (range.len() * children) as f64;
    Ok((0..methods.len())
        .map(|i| Row {
            children,
            method: methods[i].name(Op::Copy),
            gb_s: bytes / of(i, |t| t.total_ns),
            copy_us: of(i, |t| t.copy_ns) / 1e3,
            target_ns: of(i, |t| t.target_ns),
            walk_us: of(i, |t| t.walk_ns) / 1e3,
            time_to_libc: ratio(i, &libc),
            time_to_sub_pages: ratio(i, &sub_pages),
            time_to_ascending: ratio(i, &ascending),
            time_to_kernel: ratio(i, &kernel),
        })
        .collect())
}

/// One run of the kernel's row as a program under `hugeswap run`.
fn managed(args: &Args, children: usize) -> Result<Told, String> {
    let this = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
    // For each process its own copy, and what they share.
    let size = whole_huge_pages(args.size);
    let memory = (size >> 20) * (2 * children + 2) + 256;
    let mut c = Command::new(&this);
    c.args([
        "run",
        "--swap",
        "ram",
        "--memory",
        &format!("{memory}M"),
        "--",
    ])
    .arg(&this)
    .args([
        "bench",
        "anon-cow-seq",
        "--kernel",
        "--json",
        "--rounds",
        "1",
    ])
    .args(["-n", &children.to_string()])
    .args(["--order", &args.order.to_string()])
    .args(["--size", &size.to_string()])
    .stderr(Stdio::inherit());
    let done = c.output().map_err(|e| format!("{}: {e}", this.display()))?;
    if !done.status.success() {
        return Err(format!("hugeswap run: {}", done.status));
    }
    let report: serde_json::Value =
        serde_json::from_slice(&done.stdout).map_err(|e| format!("what it said: {e}"))?;
    let gb_s = report["rows"][0]["gb_s"]
        .as_f64()
        .ok_or("it said nothing")?;
    Ok(Told {
        total_ns: (size * children) as f64 / gb_s,
        ..Told::default()
    })
}

/// One run: means over the children, the total until the last one's end.
fn once(
    clock: Clock,
    range: &Region,
    len: usize,
    children: usize,
    method: Method,
) -> Result<Told, String> {
    let shared = Shared::new()?;
    let mut running = Vec::new();
    for index in 0..children {
        running.push(Child::spawn(|| {
            let told = child(clock, range, len, method, &shared)?;
            shared.tell(index, told);
            Ok(())
        })?);
    }
    shared.start(children);
    for child in running {
        child.wait()?;
    }
    let told = shared.told(children);
    let mean = |f: fn(&Told) -> f64| told.iter().map(f).sum::<f64>() / children as f64;
    Ok(Told {
        copy_ns: mean(|t| t.copy_ns),
        target_ns: mean(|t| t.target_ns),
        walk_ns: mean(|t| t.walk_ns),
        total_ns: told.iter().map(|t| t.total_ns).fold(0.0, f64::max),
    })
}

fn child(
    clock: Clock,
    range: &Region,
    len: usize,
    method: Method,
    shared: &Shared,
) -> Result<Told, String> {
    if method == Method::Kernel {
        shared.wait_for_start();
        let start = Tick::now();
        for i in 0..range.nr(len) {
            // SAFETY: this process's copy of the range, which nobody else uses.
            unsafe { probe::walk(clock, range.page(i, len), len, 0) };
        }
        return Ok(Told {
            total_ns: clock.ns_since(start),
            ..Told::default()
        });
    }
    let own = Region::populated(range.len())?;
    let nr = range.nr(len);
    let isa = copy::Isa::detected();
    let mut sum = Told::default();
    shared.wait_for_start();
    let start = Tick::now();
    for i in 0..nr {
        let (d, s) = (own.page(i, len), range.page(i, len));
        // SAFETY: one page of each region; nobody writes the source.
        unsafe {
            let t = Tick::now();
            method.apply(Op::Copy, isa, d, s, len, 0)?;
            sum.copy_ns += clock.ns_since(t);
            sum.target_ns += probe::target(clock, d);
            sum.walk_ns += probe::walk(clock, d, len, 0);
        }
    }
    let nr = nr as f64;
    Ok(Told {
        copy_ns: sum.copy_ns / nr,
        target_ns: sum.target_ns / nr,
        walk_ns: sum.walk_ns / nr,
        total_ns: clock.ns_since(start),
    })
}

fn print(report: &Report) {
    outln!(
        "anon-cow-seq: {} MiB in pages of {} KiB, {} rounds, {:.0} % in huge pages, \
         cache share {} KiB",
        report.size_bytes >> 20,
        4usize << report.order,
        report.rounds,
        report.huge_share.unwrap_or(0.0) * 100.0,
        report.cache_share >> 10
    );
    let mut last = 0;
    for row in &report.rows {
        if core::mem::replace(&mut last, row.children) != row.children {
            outln!(
                "\n{} {}\n{:<12} {:>8} {:>9} {:>10} {:>9} {:>11} {:>11} {:>11} {:>12}",
                row.children,
                if row.children == 1 {
                    "child"
                } else {
                    "children"
                },
                "method",
                "GB/s",
                "copy us",
                "target ns",
                "walk us",
                "time/libc",
                "time/sub-p",
                "time/asc.",
                "time/kernel"
            );
        }
        outln!(
            "{:<12} {:>8.2} {:>9.1} {:>10.2} {:>9.1} {:>11} {:>11} {:>11} {:>12}",
            row.method,
            row.gb_s,
            row.copy_us,
            row.target_ns,
            row.walk_us,
            time(row.time_to_libc),
            time(row.time_to_sub_pages),
            time(row.time_to_ascending),
            time(row.time_to_kernel)
        );
    }
}

fn time(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |r| format!("{r:.3}"))
}

fn panels(report: &Report) -> Vec<Panel> {
    let mut lines: Vec<Line> = Vec::new();
    for row in &report.rows {
        let point = (row.children as f64, row.gb_s);
        match lines.iter_mut().find(|l| l.name == row.method) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name: row.method,
                points: vec![point],
            }),
        }
    }
    vec![Panel {
        title: format!(
            "anon-cow-seq, pages of {} KiB: GB/s",
            4usize << report.order
        ),
        x: "children",
        lines,
    }]
}
