//! `hugeswap bench huge-copy`: one process copies or clears cold huge pages, 0
//! to N-1 others press on the cache.

use super::clock::{Clock, Tick};
use super::method::{Method, Op};
use super::plot::{self, Line, Panel};
use super::region::{whole_huge_pages, Region};
use super::stats::{median, paired_ratio, Random};
use super::{probe, process};
use hugeswap_host::out;
use hugeswap_host::size::Size;
use hugeswap_mm::{PAGE_SIZE, PMD_ORDER};
use hugeswap_page_copy::{self as copy, Isa};
use std::path::PathBuf;

/// Copy or clear huge pages beside the C library, under cache pressure
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Orders of the huge page (9 is 2 MiB)
    #[arg(long, value_delimiter = ',', default_values_t = [9, 13])]
    order: Vec<u8>,
    /// Copy or clear
    #[arg(long, value_enum, default_value = "copy")]
    op: Op,
    /// Processes in all: 0 to N-1 others press on the cache
    #[arg(long, short = 'n', default_value_t = 4)]
    processes: usize,
    /// Memory to take source and destination pages from, each
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    footprint: Size,
    /// Rounds; in each, every method works on a batch of pages
    #[arg(long, default_value_t = 41)]
    rounds: usize,
    /// Target sub-page: an index, `first`, `middle`, `last` or `random`
    #[arg(long, default_value = "random")]
    target: Target,
    /// Instructions of our own methods: portable, sse2, avx2 or avx512
    /// [default: the widest]
    #[arg(long, value_parser = parse_isa)]
    isa: Option<Isa>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

fn parse_isa(name: &str) -> Result<Isa, String> {
    Isa::from_name(name).ok_or_else(|| "no such instruction set".to_string())
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Index(usize),
    Middle,
    Last,
    Random,
}

impl core::str::FromStr for Target {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "first" => Ok(Self::Index(0)),
            "middle" => Ok(Self::Middle),
            "last" => Ok(Self::Last),
            "random" => Ok(Self::Random),
            _ => s.parse().map(Self::Index).map_err(|e| e.to_string()),
        }
    }
}

impl Target {
    fn pick(self, nr: usize, random: &mut Random) -> usize {
        match self {
            Self::Index(i) => i,
            Self::Middle => nr / 2,
            Self::Last => nr - 1,
            Self::Random => random.below(nr),
        }
    }
}

/// One method at one order and pressure. Times are medians.
#[derive(serde::Serialize)]
struct Row {
    order: u8,
    pressure: usize,
    method: &'static str,
    /// Of the copy or clear, in microseconds.
    copy_us: f64,
    /// Per cache line of the target sub-page, right after it.
    target_ns: f64,
    /// Of the sequential walk that writes each word, from the target on.
    walk_gb_s: f64,
    total_us: f64,
    /// Medians of the ratios within a round.
    copy_to_libc: f64,
    total_to_libc: f64,
    total_to_sub_pages: f64,
    total_to_ascending: f64,
    target_to_ascending: f64,
}

#[derive(serde::Serialize)]
struct Report {
    op: &'static str,
    isa: &'static str,
    rounds: usize,
    footprint_bytes: usize,
    huge_share: Option<f64>,
    cache_share: usize,
    rows: Vec<Row>,
}

#[derive(Default, Clone)]
struct Samples {
    copy: Vec<f64>,
    target: Vec<f64>,
    walk: Vec<f64>,
    total: Vec<f64>,
}

pub fn run(args: Args) -> Result<(), String> {
    validate(&args)?;
    let clock = Clock::calibrate();
    let cpu = copy::init();
    let largest = args.order.iter().max().map_or(0, |&o| PAGE_SIZE << o);
    let bytes = whole_huge_pages(args.footprint).max(4 * largest);
    let mut rows = Vec::new();
    let mut huge_share = None;
    for pressure in 0..args.processes {
        // First the others, so that they don't inherit the pages and make each
        // write a copy-on-write.
        let _others = process::press(pressure)?;
        let (src, dst) = (Region::populated(bytes)?, Region::populated(bytes)?);
        for &order in &args.order {
            rows.extend(measure(&args, clock, &src, &dst, order, pressure)?);
        }
        let source = match args.op {
            Op::Copy => src.huge_share(),
            Op::Clear => Some(1.0),
        };
        for share in [source, dst.huge_share()].into_iter().flatten() {
            huge_share = Some(huge_share.map_or(share, |least: f64| least.min(share)));
        }
    }
    let report = Report {
        op: args.op.name(),
        isa: args.isa.unwrap_or(cpu.isa).name(),
        rounds: args.rounds,
        footprint_bytes: bytes,
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

fn validate(args: &Args) -> Result<(), String> {
    if args.order.is_empty() || args.order.iter().any(|&o| o > 18) {
        return Err("orders are 0 to 18".into());
    }
    if args.processes == 0 || args.processes > process::CHILDREN {
        return Err(format!("processes are 1 to {}", process::CHILDREN));
    }
    if args.rounds == 0 {
        return Err("at least one round".into());
    }
    if let Target::Index(i) = args.target {
        if args.order.iter().any(|&o| i >= 1 << o) {
            return Err(format!("target {i} lies outside the huge page"));
        }
    }
    Ok(())
}

fn measure(
    args: &Args,
    clock: Clock,
    src: &Region,
    dst: &Region,
    order: u8,
    pressure: usize,
) -> Result<Vec<Row>, String> {
    let len = PAGE_SIZE << order;
    let mut methods = Method::all();
    if args.op == Op::Clear && order == PMD_ORDER {
        methods.push(Method::Kernel);
    }
    let mut samples = vec![Samples::default(); methods.len()];
    let mut random = Random::new(1 + order as u64);
    let mut index = 0;
    let mut turns: Vec<usize> = (0..methods.len()).collect();
    for _ in 0..args.rounds {
        let target = args.target.pick(1 << order, &mut random);
        random.shuffle(&mut turns);
        for &which in &turns {
            let mut batch = Samples::default();
            for _ in 0..batch_size(len) {
                // Source pages come in another order, so that no pair stays.
                let (d, s) = (dst.page(index, len), src.page(index * 5 + 3, len));
                index += 1;
                // SAFETY: one page of each region, which are disjoint and live.
                unsafe { sample(args, clock, methods[which], d, s, len, target, &mut batch)? };
            }
            let of = &mut samples[which];
            of.copy.push(median(batch.copy));
            of.target.push(median(batch.target));
            of.walk.push(median(batch.walk));
            of.total.push(median(batch.total));
        }
    }
    let position = |m: Method| methods.iter().position(|&x| x == m).unwrap_or(0);
    let libc = &samples[position(Method::Libc)];
    let sub_pages = &samples[position(Method::SubPages)];
    let ascending = &samples[position(Method::Ours(copy::Strategy::Ascending))];
    Ok(methods
        .iter()
        .zip(&samples)
        .map(|(method, s)| Row {
            order,
            pressure,
            method: method.name(args.op),
            copy_us: median(s.copy.clone()) / 1e3,
            target_ns: median(s.target.clone()),
            walk_gb_s: len as f64 / median(s.walk.clone()),
            total_us: median(s.total.clone()) / 1e3,
            copy_to_libc: paired_ratio(&s.copy, &libc.copy),
            total_to_libc: paired_ratio(&s.total, &libc.total),
            total_to_sub_pages: paired_ratio(&s.total, &sub_pages.total),
            total_to_ascending: paired_ratio(&s.total, &ascending.total),
            target_to_ascending: paired_ratio(&s.target, &ascending.target),
        })
        .collect())
}

/// Pages that a method works on in succession: what it leaves to be written
/// back then falls on itself, not on the next method.
const fn batch_size(len: usize) -> usize {
    const BATCH: usize = 64 << 20;
    match BATCH / len {
        0 => 1,
        n if n > 64 => 64,
        n => n,
    }
}

/// Times one page: the copy, the target, the walk.
///
/// # Safety
/// As [`Method::apply`]; nobody needs the contents of `dst`.
#[allow(clippy::too_many_arguments)]
unsafe fn sample(
    args: &Args,
    clock: Clock,
    method: Method,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    target: usize,
    samples: &mut Samples,
) -> Result<(), String> {
    let at = target * PAGE_SIZE;
    // SAFETY: the caller's promise, passed on.
    let (copy, hot, walk) = unsafe {
        method.prepare(dst, len);
        let start = Tick::now();
        method.apply(
            args.op,
            args.isa.unwrap_or(Isa::detected()),
            dst,
            src,
            len,
            target,
        )?;
        let copy = clock.ns_since(start);
        let hot = probe::target(clock, dst.add(at));
        (copy, hot, probe::walk(clock, dst, len, at))
    };
    samples.copy.push(copy);
    samples.target.push(hot);
    samples.walk.push(walk);
    samples.total.push(copy + hot * probe::LINES as f64 + walk);
    Ok(())
}

fn print(report: &Report) {
    outln!(
        "{} ({}): {} rounds, {} MiB each of source and destination, {:.0} % in huge pages, \
         cache share {} KiB",
        report.op,
        report.isa,
        report.rounds,
        report.footprint_bytes >> 20,
        report.huge_share.unwrap_or(0.0) * 100.0,
        report.cache_share >> 10
    );
    let mut last = None;
    for row in &report.rows {
        if last.replace((row.order, row.pressure)) != Some((row.order, row.pressure)) {
            outln!(
                "\norder {} ({} KiB), other processes: {}\n{:<12} {:>10} {:>10} {:>10} {:>10} \
                 {:>10} {:>10} {:>10} {:>10} {:>10}",
                row.order,
                4usize << row.order,
                row.pressure,
                "method",
                "copy us",
                "target ns",
                "walk GB/s",
                "total us",
                "copy/libc",
                "tot./libc",
                "tot./sub-p",
                "tot./asc.",
                "targ./asc."
            );
        }
        outln!(
            "{:<12} {:>10.1} {:>10.2} {:>10.1} {:>10.1} {:>10.3} {:>10.3} {:>10.3} {:>10.3} {:>10.3}",
            row.method,
            row.copy_us,
            row.target_ns,
            row.walk_gb_s,
            row.total_us,
            row.copy_to_libc,
            row.total_to_libc,
            row.total_to_sub_pages,
            row.total_to_ascending,
            row.target_to_ascending
        );
    }
}

/// For each order: total time and time of the target, over the pressure.
fn panels(report: &Report) -> Vec<Panel> {
    let mut orders: Vec<u8> = report.rows.iter().map(|r| r.order).collect();
    orders.dedup();
    orders.sort_unstable();
    orders.dedup();
    let mut panels = Vec::new();
    for order in orders {
        let lines = |value: fn(&Row) -> f64| -> Vec<Line> {
            let mut lines: Vec<Line> = Vec::new();
            for row in report.rows.iter().filter(|r| r.order == order) {
                let point = (row.pressure as f64, value(row));
                match lines.iter_mut().find(|l| l.name == row.method) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line {
                        name: row.method,
                        points: vec![point],
                    }),
                }
            }
            lines
        };
        let what = format!("{} of {} KiB", report.op, 4usize << order);
        panels.push(Panel {
            title: format!("{what}, target and walk: µs"),
            x: "other processes",
            lines: lines(|r| r.total_us),
        });
        panels.push(Panel {
            title: format!("{what}: ns per line of the target"),
            x: "other processes",
            lines: lines(|r| r.target_ns),
        });
    }
    panels
}
