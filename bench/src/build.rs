//! `hugeswap bench build`: C files are compiled, many at a time, in a memory group, after the reference's
//! test of the kernel's allocator: a kernel compile in 470 MiB, whose first swap device is small and
//! overflows to a second one.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use serde::Serialize;

use super::arena::{Arena, Encryption, Grant, Options, Side, Uncharged};
use super::error::{io_error, Error};
use super::machine::Machine;
use super::report::median;
use super::swap_args::MARGIN;
use super::swap_test::with_clean_end;
use super::watch::{Seen, Watch};
use hugeswap_host::columns::align;
use hugeswap_host::kernel_swap::Backing;
use hugeswap_host::out;
use hugeswap_host::progress::Progress;
use hugeswap_host::size::{Size, GIB, MIB};
use hugeswap_host::sizing::LEAST_MEMORY;
use hugeswap_host::swap_spec::{self, SwapSpec, Target};
use hugeswap_host::undo::{Guard, Interrupt, Undo};

/// Compile C files in a memory group; a small first swap device overflows to a second one
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = AFTER)]
pub struct BuildArgs {
    /// How many are compiled at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: u32,

    /// How many files there are
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub files: u32,

    /// Lines of each file's table; a compiler needs about 130 MiB for 100000
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub lines: u32,

    /// Memory of the group
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub memory: Size,

    /// The first swap device: memory of that size under hugeswap, zram of that size for the kernel
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    pub first: Size,

    /// The second one: a directory [default: one on a disk]
    #[arg(long, value_name = "DIR", value_parser = swap_spec::parser())]
    pub swap: Option<SwapSpec>,

    /// Leave the kernel's side out
    #[arg(long)]
    pub no_kernel: bool,

    /// How often each side is measured, in turn; medians are shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,

    /// Print every figure of every run as JSON; the table goes to standard error then
    #[arg(long)]
    pub json: bool,
}

const AFTER: &str = "The files are generated, and what the compiler makes of them must be the same on every side. \
zram's memory is not charged to the group, and so the group of hugeswap has the size of the first device more.";

#[derive(Clone, Debug, Serialize)]
struct Run {
    real: f64,
    seen: Seen,
    peak_bytes: Option<u64>,
    /// Pages in, and out.
    swapped: Option<(u64, u64)>,
    /// What hugeswap counted itself.
    stats: Option<serde_json::Value>,
}

#[derive(Debug, Serialize)]
struct Column {
    name: String,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Document {
    test: &'static str,
    jobs: u32,
    files: u32,
    lines: u32,
    memory_bytes: u64,
    first_bytes: u64,
    swap: String,
    machine: Machine,
    contestants: Vec<Column>,
}

pub fn run(args: &BuildArgs) -> ExitCode {
    out::json_only(args.json);
    with_clean_end(|stop| {
        let document = compare(args, stop)?;
        out!("{}\n\n{}", heading(args), table(&document));
        match args.json {
            true => out::json(&document).map_err(Error::Report),
            false => Ok(()),
        }
    })
}

fn heading(args: &BuildArgs) -> String {
    format!(
        "build: {} files of {} lines, {} at a time, {} of memory, the first swap device {}, median of {} runs",
        args.files, args.lines, args.jobs, args.memory, args.first, args.runs
    )
}

fn compare(args: &BuildArgs, stop: &Interrupt) -> Result<Document, Error> {
    let least = LEAST_MEMORY + MARGIN;
    if args.memory.bytes() < least {
        return Err(Error::Usage(format!(
            "--memory {} is too little: give {} or more",
            args.memory,
            Size::from_bytes(least)
        )));
    }
    let (swap, dir) = place(&args.swap)?;
    let sources = dir.join(format!("hugeswap-build-{}", std::process::id()));
    let mut guard = Guard::new();
    guard.push(Undo::RemoveDir(sources.clone()));
    fs::create_dir(&sources).map_err(io_error("make a directory for the files"))?;
    for n in 0..args.files {
        stop.check()?;
        fs::write(sources.join(format!("{n}.c")), source(n, args.lines))
            .map_err(io_error("write a file to compile"))?;
    }
    let second = Backing::File(dir);
    let zram = Backing::Zram { every_size: false };
    let sides = sides(args, &swap, &second, &zram);
    let mut columns: Vec<Column> = Vec::new();
    for (name, _) in &sides {
        let (name, runs) = (name.clone(), Vec::new());
        columns.push(Column { name, runs });
    }
    let (mut progress, mut want) = (Progress::new(), None);
    for n in 1..=args.runs {
        for ((name, grant), column) in sides.iter().zip(&mut columns) {
            progress.show(&format!("build, run {n} of {}: {name}", args.runs));
            let (made, run) = once(args, &sources, grant, name, stop)?;
            let want = want.get_or_insert_with(|| made.clone());
            if *want != made {
                return Err(Error::Wrong {
                    who: name.clone(),
                    what: format!("the compiler made {made:?}, not {want:?}"),
                });
            }
            column.runs.push(run);
        }
    }
    Ok(Document {
        test: "build",
        jobs: args.jobs,
        files: args.files,
        lines: args.lines,
        memory_bytes: args.memory.bytes(),
        first_bytes: args.first.bytes(),
        swap: swap.to_string(),
        machine: Machine::here(),
        contestants: columns,
    })
}

fn place(swap: &Option<SwapSpec>) -> Result<(SwapSpec, PathBuf), Error> {
    let default = || swap_spec::default_directory().map(SwapSpec::Path);
    let plan = |err: swap_spec::SpecError| Error::Plan(err.into());
    let swap = match swap {
        Some(swap) => swap.clone(),
        None => default().map_err(plan)?,
    };
    match swap.resolve().map_err(plan)? {
        Target::Directory(dir) => Ok((swap, dir)),
        _ => Err(Error::Usage("--swap: give a directory".into())),
    }
}

fn sides<'a>(
    args: &BuildArgs,
    swap: &'a SwapSpec,
    second: &'a Backing,
    zram: &'a Backing,
) -> Vec<(String, Grant<'a>)> {
    let room = 4 * GIB;
    let limit = args.memory.bytes();
    let plain = Grant {
        or_none: false,
        ..Grant::unlimited()
    };
    let ours = Grant {
        group: limit + args.first.bytes(),
        or_none: false,
        uncharged: Uncharged::OnTop,
        side: Side::Hugeswap(Options {
            memory: Size::from_bytes(limit - MARGIN),
            swap: std::slice::from_ref(swap),
            room: room + args.first.bytes(),
            first: Some(args.first),
            compress: None,
            encryption: Encryption::On,
        }),
    };
    let mut sides = vec![
        ("no limit".to_owned(), plain),
        ("hugeswap".to_owned(), ours),
    ];
    if !args.no_kernel {
        let swaps = vec![(second, room), (zram, args.first.bytes())];
        let grant = Grant {
            group: limit,
            or_none: false,
            uncharged: Uncharged::OnTop,
            side: Side::Kernel(swaps),
        };
        sides.push((format!("{zram}, then {second}"), grant));
    }
    sides
}

/// What was made, as one line, and what it took.
fn once(
    args: &BuildArgs,
    sources: &Path,
    grant: &Grant<'_>,
    who: &str,
    stop: &Interrupt,
) -> Result<(String, Run), Error> {
    const SCRIPT: &str = "cd \"$1\" && ls | grep '[.]c$' | \
        xargs -P \"$2\" -n 1 sh -c 'gcc -O1 -S -o \"$0.s\" \"$0\"' && cat *.s | cksum";
    let arena = Arena::open(grant, stop)?;
    let mut command: Command = arena.command("sh")?;
    command
        .args(["-c", SCRIPT, "build"])
        .arg(sources)
        .arg(args.jobs.to_string());
    let (watch, start) = (Watch::begin(), Instant::now());
    let (output, status) = arena.run(command, stop, &mut |_| Ok(()))?;
    let real = start.elapsed().as_secs_f64();
    let (seen, usage) = (watch.seen(), arena.usage());
    if usage.oom_kills > 0 {
        return Err(Error::OutOfMemory {
            who: who.to_owned(),
            limit: arena.limit(),
        });
    }
    if !status.success() {
        return Err(Error::Failed {
            who: who.to_owned(),
            status,
        });
    }
    let run = Run {
        real,
        seen,
        peak_bytes: usage.peak,
        swapped: arena.swapped(),
        stats: arena.stats(),
    };
    Ok((output.trim().to_owned(), run))
}

/// A table, and functions that it names; each file has other numbers.
fn source(file: u32, lines: u32) -> String {
    let mut state = u64::from(file) * 0x9e37_79b9 + 12345;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    const FUNCTIONS: u64 = 100;
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = writeln!(
        text,
        "struct entry {{ unsigned key; const char *name; unsigned (*call)(unsigned); }};"
    );
    for n in 0..FUNCTIONS {
        let (a, b, c) = (1 + random(998), 1 + random(998), 1 + random(998));
        let _ = writeln!(
            text,
            "static unsigned f{n}(unsigned x) {{ unsigned y = {n}; while (x > {a}) {{ y += x * {b}; \
             if (y & {c}) x = x / 3 + y % 7; else x -= {a}; }} return x ^ y; }}"
        );
    }
    let _ = writeln!(text, "const struct entry table{file}[] = {{");
    for n in 0..lines {
        let _ = writeln!(
            text,
            "{{ {}u, \"name_{n}\", f{} }},",
            random(1 << 32),
            random(FUNCTIONS)
        );
    }
    text.push_str("};\n");
    text
}

fn of(runs: &[Run], get: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    median(runs.iter().filter_map(get))
}

/// hugeswap's own counters where it has run, else the kernel's.
fn counter(run: &Run, name: &str) -> Option<f64> {
    match &run.stats {
        Some(stats) => stats["counters"][name].as_u64().map(|n| n as f64),
        None => run.seen.sizes.get(name).map(|&n| n as f64),
    }
}

fn table(document: &Document) -> String {
    let mut lines = vec![vec![String::new()]];
    let columns = &document.contestants;
    lines[0].extend(columns.iter().map(|c| c.name.clone()));
    let mut row = |name: &str, digits: usize, get: &dyn Fn(&Run) -> Option<f64>| {
        let cells: Vec<_> = columns.iter().map(|c| of(&c.runs, get)).collect();
        if cells.iter().any(Option::is_some) {
            let text =
                |cell: &Option<f64>| cell.map_or("-".to_owned(), |n| format!("{n:.digits$}"));
            let mut line = vec![name.to_owned()];
            line.extend(cells.iter().map(text));
            lines.push(line);
        }
    };
    row("real, s", 2, &|r| Some(r.real));
    row("user, s", 2, &|r| Some(r.seen.user));
    row("system, s", 2, &|r| Some(r.seen.system));
    row("swapped in, MiB", 0, &|r| mebibytes(r.swapped?.0));
    row("swapped out, MiB", 0, &|r| mebibytes(r.swapped?.1));
    row("instructions per cycle", 2, &|r| r.seen.ipc);
    row("function-call interrupts", 0, &|r| {
        r.seen.function_calls.map(|n| n as f64)
    });
    row("peak of the group, MiB", 0, &|r| {
        r.peak_bytes.map(|b| b as f64 / MIB as f64)
    });
    for size in sizes(columns) {
        for what in ["swpout", "swpout_fallback"] {
            let name = format!("hugepages-{size}kB/{what}");
            row(&name, 0, &|r| counter(r, &name));
        }
    }
    align(&lines)
}

fn mebibytes(pages: u64) -> Option<f64> {
    Some(pages as f64 * 4096.0 / MIB as f64)
}

/// Of folios that were swapped out by anybody, in KiB.
fn sizes(columns: &[Column]) -> Vec<u64> {
    let mut all = BTreeMap::new();
    for run in columns.iter().flat_map(|c| &c.runs) {
        let ours = run.stats.as_ref().and_then(|s| s["counters"].as_object());
        let ours = ours
            .into_iter()
            .flatten()
            .filter(|(_, n)| n.as_u64() > Some(0));
        let names = ours.map(|(name, _)| name).chain(run.seen.sizes.keys());
        for name in names {
            let size = name
                .strip_prefix("hugepages-")
                .and_then(|n| n.split_once("kB/swpout"));
            if let Some(size) = size.and_then(|(size, _)| size.parse::<u64>().ok()) {
                all.insert(size, ());
            }
        }
    }
    all.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_differ_and_are_the_same_each_time() {
        assert_eq!(source(1, 10), source(1, 10));
        assert_ne!(source(1, 10), source(2, 10));
        assert_eq!(source(1, 10).lines().count(), 1 + 100 + 1 + 10 + 1);
    }

    #[test]
    fn a_table() {
        let run = |real, stats: Option<serde_json::Value>, size: &str| Run {
            real,
            seen: Seen {
                sizes: [(format!("hugepages-{size}kB/swpout"), 7)].into(),
                ..Seen::default()
            },
            peak_bytes: None,
            swapped: Some((256, 512)),
            stats,
        };
        let stats = serde_json::json!({"counters": {"hugepages-2048kB/swpout": 3, "hugepages-8kB/swpout": 0}});
        let columns = vec![
            Column {
                name: "hugeswap".into(),
                runs: vec![run(1.0, Some(stats), "64")],
            },
            Column {
                name: "kernel".into(),
                runs: vec![run(3.0, None, "64"), run(4.0, None, "64")],
            },
        ];
        let document = Document {
            test: "build",
            jobs: 1,
            files: 1,
            lines: 1,
            memory_bytes: 0,
            first_bytes: 0,
            swap: String::new(),
            machine: Machine::here(),
            contestants: columns,
        };
        let text = table(&document);
        let line = |name: &str| {
            let line = text.lines().find(|l| l.starts_with(name)).unwrap();
            line[name.len()..]
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(line("real, s"), ["1.00", "3.50"]);
        assert_eq!(line("swapped out, MiB"), ["2", "2"]);
        assert_eq!(line("hugepages-64kB/swpout"), ["-", "7"]);
        assert_eq!(line("hugepages-2048kB/swpout"), ["3", "-"]);
        assert!(!text.contains("hugepages-8kB"));
    }
}
