//! `hugeswap bench anon-cow-seq`: the case of reference 004. A range is
//! populated, N children are forked, each writes it from begin to end, so that
//! every huge page is copied when its first word is written.
//!
//! Each child copies with one of the methods into huge pages of its own and
//! then writes the copy; every other child is its cache pressure. The row
//! `kernel` writes the inherited range itself: the kernel's own copy-on-write,
//! with its faults and allocations.

use super::clock::{Clock, Tick};
use super::method::{Method, Op};
use super::plot::{self, Line, Panel};
use super::probe;
use super::process::{Child, Shared, Told, CHILDREN};
use super::region::Region;
use super::stats::{median, paired_ratio, Random};
use hugeswap_mm::PAGE_SIZE;
use hugeswap_page_copy as copy;
use std::path::PathBuf;

/// Copy-on-write by N children that write a populated range from begin to end
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Numbers of children
    #[arg(long, short = 'n', value_delimiter = ',', default_values_t = [1, 2, 4])]
    children: Vec<usize>,
    /// Order of the huge pages (9 is 2 MiB)
    #[arg(long, default_value_t = 9)]
    order: u8,
    /// Size of the range in MiB; each child needs as much again
    #[arg(long, default_value_t = 256)]
    size: usize,
    /// Rounds; in each, every method runs once
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
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
    /// Medians of the ratios of elapsed times within a round.
    time_to_libc: f64,
    time_to_sub_pages: f64,
    time_to_ascending: f64,
    time_to_kernel: f64,
}

#[derive(serde::Serialize)]
struct Report {
    order: u8,
    size_mib: usize,
    rounds: usize,
    huge_share: Option<f64>,
    cache_share: usize,
    rows: Vec<Row>,
}

pub fn run(args: Args) -> Result<(), String> {
    if args.children.iter().any(|&n| n == 0 || n > CHILDREN) {
        return Err(format!("children are 1 to {CHILDREN}"));
    }
    if args.order > 18 || args.size << 20 < PAGE_SIZE << args.order {
        return Err("the range must hold one huge page of order 0 to 18".into());
    }
    if args.rounds == 0 {
        return Err("at least one round".into());
    }
    let clock = Clock::calibrate();
    let cpu = copy::init();
    let range = Region::populated(args.size << 20)?;
    let huge_share = range.huge_share();
    let mut rows = Vec::new();
    for &children in &args.children {
        rows.extend(measure(&args, clock, &range, children)?);
    }
    let report = Report {
        order: args.order,
        size_mib: args.size,
        rounds: args.rounds,
        huge_share,
        cache_share: cpu.cache_share,
        rows,
    };
    if let Some(file) = &args.plot {
        plot::write(file, &panels(&report))?;
    }
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        outln!("{text}");
    } else {
        print(&report);
    }
    Ok(())
}

fn measure(args: &Args, clock: Clock, range: &Region, children: usize) -> Result<Vec<Row>, String> {
    let mut methods = Method::all();
    methods.push(Method::Kernel);
    let mut runs: Vec<Vec<Told>> = vec![Vec::new(); methods.len()];
    let mut turns: Vec<usize> = (0..methods.len()).collect();
    let mut random = Random::new(children as u64);
    for _ in 0..args.rounds {
        random.shuffle(&mut turns);
        for &which in &turns {
            let told = once(
                clock,
                range,
                PAGE_SIZE << args.order,
                children,
                methods[which],
            )?;
            runs[which].push(told);
        }
    }
    let elapsed = |which: usize| -> Vec<f64> { runs[which].iter().map(|t| t.total_ns).collect() };
    let position = |m: Method| methods.iter().position(|&x| x == m).unwrap_or(0);
    let libc = elapsed(position(Method::Libc));
    let sub_pages = elapsed(position(Method::SubPages));
    let ascending = elapsed(position(Method::Ours(copy::Strategy::Ascending)));
    let kernel = elapsed(position(Method::Kernel));
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
            time_to_libc: paired_ratio(&elapsed(i), &libc),
            time_to_sub_pages: paired_ratio(&elapsed(i), &sub_pages),
            time_to_ascending: paired_ratio(&elapsed(i), &ascending),
            time_to_kernel: paired_ratio(&elapsed(i), &kernel),
        })
        .collect())
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
        report.size_mib,
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
            "{:<12} {:>8.2} {:>9.1} {:>10.2} {:>9.1} {:>11.3} {:>11.3} {:>11.3} {:>12.3}",
            row.method,
            row.gb_s,
            row.copy_us,
            row.target_ns,
            row.walk_us,
            row.time_to_libc,
            row.time_to_sub_pages,
            row.time_to_ascending,
            row.time_to_kernel
        );
    }
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
