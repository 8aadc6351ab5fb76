//! `hugeswap bench programs`: real programs with a share of the memory that they need, under
//! hugeswap and under the kernel's swap, in the same total memory.

mod args;
mod install;
mod list;
mod result;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::arena::{Arena, Encryption, Grant, Options, Side, Uncharged};
use super::error::{io_error, Error};
use super::swap_args::MARGIN;
pub use args::{Kernel, ProgramsArgs};
use hugeswap_host::cgroup::{Own, Version};
use hugeswap_host::columns::align;
use hugeswap_host::kernel_swap::{self, Backing, KernelSwap};
use hugeswap_host::progress::Progress;
use hugeswap_host::size::{Size, GIB, MIB};
use hugeswap_host::sizing::LEAST_MEMORY;
use hugeswap_host::swap_spec::{self, SwapSpec, Target};
use hugeswap_host::undo::{Guard, Interrupt, Undo};
use install::Tools;
use list::Program;
#[cfg(test)]
pub use result::tests::document as sample;
pub use result::{cells, Document, Row, GOAL};
use result::{Column, Device, End, LeftOut, Run};

/// Below this hugeswap refuses to run.
const LEAST_LIMIT: u64 = LEAST_MEMORY + MARGIN;
const LEAST_SIZE: u64 = 128 * MIB;

/// The machine, or all of this, was stopped, where nothing came to pass for so long: it is looked
/// fifty times a second.
const STANDS_STILL: Duration = Duration::from_secs(4);
/// How often a run is begun that this happens to.
const TRIES: u32 = 10;

/// zram's part of the memory. Compressed to a half it holds twice as much.
const POOL: f64 = 0.4;

pub fn compare(
    args: &ProgramsArgs,
    stop: &Interrupt,
    document: &mut Document,
) -> Result<(), Error> {
    if args.size.bytes() < LEAST_SIZE {
        return Err(Error::Usage(format!(
            "--size {} is too little for anything to be swapped: give {} or more",
            args.size,
            Size::from_bytes(LEAST_SIZE)
        )));
    }
    let place = Place::find(&args.swap)?;
    document.swap = place.swap.to_string();
    let chosen: Vec<&Program> = list::ALL
        .iter()
        .filter(|p| args.program.is_empty() || args.program.iter().any(|name| name == p.name))
        .collect();
    if args.install {
        install::install(&chosen, stop)?;
    }
    let tools = Tools::find(&chosen);
    let kernels = kernels(args, &place, document, stop)?;
    let mut guard = Guard::new();
    let dir = place
        .directory
        .join(format!("hugeswap-programs-{}", std::process::id()));
    guard.push(Undo::RemoveDir(dir.clone()));
    fs::create_dir(&dir).map_err(io_error("make a directory for the programs"))?;
    let mut bench = Bench {
        args,
        place,
        dir,
        kernels,
        python: tools.python.clone().unwrap_or_default(),
        progress: Progress::new(),
    };
    for program in chosen {
        let lacks = tools.lacks(program);
        if !lacks.is_empty() {
            document
                .left_out
                .push(LeftOut::lacking(program.name, &lacks));
            continue;
        }
        match bench.program(program, stop)? {
            Ok(row) => {
                bench.progress.clear();
                errln!("hugeswap: {}", row.line());
                document.programs.push(row);
                document.sum_up();
            }
            Err(left_out) => document.left_out.push(left_out),
        }
    }
    match document.programs.is_empty() {
        true => Err(nothing_to_measure(&document.left_out)),
        false => Ok(()),
    }
}

fn nothing_to_measure(left_out: &[LeftOut]) -> Error {
    let reasons: Vec<String> = left_out.iter().map(ToString::to_string).collect();
    let install = match left_out.iter().any(|l| l.installable) {
        true => " (--install installs what is missing)",
        false => "",
    };
    Error::Usage(format!(
        "there is nothing to measure: {}{install}",
        reasons.join("; ")
    ))
}

/// The kernel's sides that can be measured here. What was asked for and can't be, is an error.
fn kernels(
    args: &ProgramsArgs,
    place: &Place,
    document: &mut Document,
    stop: &Interrupt,
) -> Result<Vec<Kernel>, Error> {
    if args.no_kernel {
        return Ok(Vec::new());
    }
    let all = args.against.is_empty();
    let mut kernels = Vec::new();
    for kernel in Kernel::value_variants() {
        if !all && !args.against.contains(kernel) {
            continue;
        }
        match refusal(*kernel, place, stop)? {
            None => kernels.push(*kernel),
            Some(why) if all => document.left_out.push(LeftOut::side(*kernel, why)),
            Some(why) => return Err(Error::Usage(format!("--against: {why}"))),
        }
    }
    Ok(kernels)
}

fn refusal(kernel: Kernel, place: &Place, stop: &Interrupt) -> Result<Option<String>, Error> {
    match kernel {
        Kernel::File => Ok(None),
        Kernel::Zram => {
            let zram = Backing::Zram { every_size: false };
            match KernelSwap::set_up(&zram, Size::from_bytes(MIB), stop) {
                Ok(_) => Ok(None),
                Err(err @ (kernel_swap::Error::NoZram | kernel_swap::Error::NoLz4)) => {
                    Ok(Some(err.to_string()))
                }
                Err(err) => Err(err.into()),
            }
        }
        Kernel::Zswap if !kernel_swap::has_zswap() => Ok(Some("this kernel has no zswap".into())),
        Kernel::Zswap if Own::find()?.version == Version::V1 => Ok(Some(
            "the memory that zswap takes is charged to the group only with control groups of version 2".into(),
        )),
        Kernel::Zswap if !matches!(place.disk, Backing::File(_)) => {
            Ok(Some("zswap is compared with a swap file only: give a directory".into()))
        }
        Kernel::Zswap => Ok(None),
    }
}

/// Where all sides swap to.
struct Place {
    swap: SwapSpec,
    disk: Backing,
    /// For the programs' input.
    directory: PathBuf,
}

impl Place {
    fn find(swap: &Option<SwapSpec>) -> Result<Place, Error> {
        let default = || swap_spec::default_directory().map_err(|err| Error::Plan(err.into()));
        let swap = match swap {
            Some(swap) => swap.clone(),
            None => SwapSpec::Path(default()?),
        };
        let (disk, directory) = match swap.resolve().map_err(|err| Error::Plan(err.into()))? {
            Target::Directory(dir) => (Backing::File(dir.clone()), dir),
            Target::BlockDevice(path) => (Backing::BlockDevice(path), default()?),
            Target::Ram | Target::File(_) => {
                return Err(Error::Usage(
                    "--swap: all sides have the same memory in all, and the rest is on a disk: give a \
                     directory or a block device"
                        .into(),
                ));
            }
        };
        Ok(Place {
            swap,
            disk,
            directory,
        })
    }
}

/// One side of the comparison: its name in the table, where it swaps, and what it may have.
struct Contender<'a> {
    name: String,
    device: Device,
    grant: Grant<'a>,
}

/// What the sides with a limit swap to.
struct Backings {
    swap: SwapSpec,
    disk: Backing,
    zram: Backing,
    zswap: Backing,
}

impl Backings {
    fn new(place: &Place) -> Backings {
        let disk = place.disk.clone();
        let zswap = match &disk {
            Backing::File(dir) => Backing::Zswap(dir.clone()),
            other => other.clone(),
        };
        Backings {
            swap: place.swap.clone(),
            zram: Backing::Zram { every_size: false },
            disk,
            zswap,
        }
    }

    /// The sides with a limit, in the table's order. `limit`: bytes of memory; `room`: bytes of swap.
    fn sides<'a>(
        &'a self,
        args: &'a ProgramsArgs,
        kernels: &[Kernel],
        limit: u64,
        room: u64,
    ) -> Vec<Contender<'a>> {
        let hugeswap = |name: String, compress| Contender {
            name,
            device: Device::Disk,
            grant: Grant {
                group: limit,
                or_none: false,
                uncharged: Uncharged::OnTop,
                side: Side::Hugeswap(Options {
                    memory: Size::from_bytes(limit - MARGIN),
                    swap: std::slice::from_ref(&self.swap),
                    room,
                    first: None,
                    compress,
                    encryption: Encryption::On,
                }),
            },
        };
        let mut sides = vec![hugeswap("hugeswap".to_owned(), None)];
        if let Some(share) = &args.compress {
            sides.push(hugeswap(
                format!("hugeswap --compress {share}"),
                Some(share),
            ));
        }
        sides.extend(
            kernels
                .iter()
                .map(|&kernel| self.of_kernel(kernel, limit, room)),
        );
        sides
    }

    fn of_kernel(&self, kernel: Kernel, limit: u64, room: u64) -> Contender<'_> {
        let pool = (limit as f64 * POOL) as u64;
        let (backing, group, swaps) = match kernel {
            Kernel::File => (&self.disk, limit, vec![(&self.disk, room)]),
            Kernel::Zram => (
                &self.zram,
                limit - pool,
                vec![(&self.disk, room), (&self.zram, 2 * pool)],
            ),
            Kernel::Zswap => (&self.zswap, limit, vec![(&self.zswap, room)]),
        };
        Contender {
            name: backing.to_string(),
            device: Device::of(kernel),
            grant: Grant {
                group,
                or_none: false,
                uncharged: Uncharged::OnTop,
                side: Side::Kernel(swaps),
            },
        }
    }
}

struct Bench<'a> {
    args: &'a ProgramsArgs,
    place: Place,
    dir: PathBuf,
    kernels: Vec<Kernel>,
    python: PathBuf,
    progress: Progress,
}

impl Bench<'_> {
    fn program(
        &mut self,
        program: &Program,
        stop: &Interrupt,
    ) -> Result<Result<Row, LeftOut>, Error> {
        let dir = self.dir.join(program.name);
        let mut guard = Guard::new();
        guard.push(Undo::RemoveDir(dir.clone()));
        fs::create_dir(&dir).map_err(io_error("make a directory for a program"))?;
        for (name, text) in program.files {
            fs::write(dir.join(name), text).map_err(io_error("write a program"))?;
        }
        let plain = Grant {
            or_none: false,
            ..Grant::unlimited()
        };
        if program.has_input {
            let heading = format!("{}: making its input", program.name);
            let run = self.once(program, &dir, &plain, &["make"], None, &heading, stop)?;
            if run.end != End::Done {
                return Ok(Err(LeftOut::failed(program.name, &run)));
            }
        }
        let heading = format!("{}, run 1 of {}: no limit", program.name, self.args.runs);
        let first = self.once(program, &dir, &plain, &[], None, &heading, stop)?;
        if first.end != End::Done {
            return Ok(Err(LeftOut::failed(program.name, &first)));
        }
        let need = first.anonymous;
        let limit = ((need as f64 * self.args.share) as u64).max(LEAST_LIMIT) / MIB * MIB;
        let backings = Backings::new(&self.place);
        let mut sides = vec![Contender {
            name: "no limit".to_owned(),
            device: Device::None,
            grant: plain,
        }];
        sides.extend(backings.sides(self.args, &self.kernels, limit, 3 * need + GIB));
        let runs = self.measure(program, &dir, first, &sides, stop)?;
        let columns = sides
            .into_iter()
            .zip(runs)
            .map(|(side, runs)| Column::of(side.name, side.device, runs));
        Ok(Ok(Row::of(program, need, limit, columns.collect())))
    }

    /// Runs the program on all sides in turn. `first`, without a limit, is the first side's first run;
    /// all others must print what it printed.
    fn measure(
        &mut self,
        program: &Program,
        dir: &Path,
        first: Run,
        sides: &[Contender<'_>],
        stop: &Interrupt,
    ) -> Result<Vec<Vec<Run>>, Error> {
        let timeout = match self.args.timeout {
            Some(seconds) => Duration::from_secs(seconds),
            None => Duration::from_secs_f64((12.0 * first.seconds).max(120.0)),
        };
        let want = first.output.clone();
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); sides.len()];
        runs[0].push(first);
        for run in 1..=self.args.runs {
            for (Contender { name, grant, .. }, runs) in sides.iter().zip(&mut runs) {
                if runs.len() == run as usize {
                    continue;
                }
                let heading = format!("{}, run {run} of {}: {name}", program.name, self.args.runs);
                let run = self.once(program, dir, grant, &[], Some(timeout), &heading, stop)?;
                if let Some(message) = &run.message {
                    self.progress.clear();
                    errln!("hugeswap: {heading}: {message}");
                }
                if run.end == End::Done && run.output != want {
                    return Err(Error::Wrong {
                        who: name.clone(),
                        what: format!("{} printed {:?}, not {want:?}", program.name, run.output),
                    });
                }
                runs.push(run);
            }
        }
        Ok(runs)
    }

    #[allow(clippy::too_many_arguments)]
    fn once(
        &mut self,
        program: &Program,
        dir: &Path,
        grant: &Grant<'_>,
        words: &[&str],
        timeout: Option<Duration>,
        heading: &str,
        stop: &Interrupt,
    ) -> Result<Run, Error> {
        for _ in 1..TRIES {
            match self.attempt(program, dir, grant, words, timeout, heading, stop) {
                Err(Error::StoodStill) => {
                    self.progress.clear();
                    errln!("hugeswap: {heading}: {}: once more", Error::StoodStill);
                }
                end => return end,
            }
        }
        self.attempt(program, dir, grant, words, timeout, heading, stop)
    }

    #[allow(clippy::too_many_arguments)]
    fn attempt(
        &mut self,
        program: &Program,
        dir: &Path,
        grant: &Grant<'_>,
        words: &[&str],
        timeout: Option<Duration>,
        heading: &str,
        stop: &Interrupt,
    ) -> Result<Run, Error> {
        self.progress.show(heading);
        let arena = Arena::open(grant, stop)?;
        let errors = dir.join("errors");
        let mut command = self.command(&arena, program, dir)?;
        command
            .arg(self.args.size.bytes().to_string())
            .arg(dir)
            .args(words)
            .env("PYTHON", &self.python)
            .stderr(File::create(&errors).map_err(io_error("make a file for a program"))?);
        let mut anonymous = 0;
        let start = Instant::now();
        let mut last = start;
        let progress = &mut self.progress;
        let result = arena.run(command, stop, &mut |_| {
            let before = std::mem::replace(&mut last, Instant::now());
            if last - before > STANDS_STILL {
                return Err(Error::StoodStill);
            }
            anonymous = anonymous.max(arena.anonymous());
            progress.show(heading);
            match timeout {
                Some(timeout) if start.elapsed() > timeout => Err(Error::TooLong),
                _ => Ok(()),
            }
        });
        let mut seconds = start.elapsed().as_secs_f64();
        let usage = arena.usage();
        let (output, end, message) = match result {
            Err(Error::TooLong) => (String::new(), End::TooLong, None),
            Err(err) => return Err(err),
            Ok((output, _)) if usage.oom_kills > 0 => (output, End::Killed, None),
            Ok((output, status)) if !status.success() => (
                output,
                End::Failed,
                Some(format!("ended with {status}: {}", last_line(&errors))),
            ),
            Ok((output, _)) => (output, End::Done, None),
        };
        if let (End::TooLong, Some(timeout)) = (end, timeout) {
            // A program that swaps takes a while to die.
            seconds = timeout.as_secs_f64();
        }
        Ok(Run {
            seconds,
            end,
            message,
            major_faults: arena.major_faults(),
            peak_bytes: usage.peak,
            zram_bytes: arena.zram_peak(),
            stats: arena.stats(),
            output,
            anonymous,
        })
    }

    fn command(&self, arena: &Arena, program: &Program, dir: &Path) -> Result<Command, Error> {
        let script = program.files.first().map_or("", |(name, _)| name);
        let mut command = if script.ends_with(".py") {
            arena.command(&self.python)?
        } else {
            arena.command("bash")?
        };
        command.arg(dir.join(script));
        Ok(command)
    }
}

fn last_line(file: &Path) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.trim_end().lines().last().unwrap_or("").to_owned()
}

/// The table, and what is to be known beside it.
pub fn text(document: &Document) -> String {
    let mut text = format!(
        "real programs in {:.0} % of the memory that they need, swap {}, {}: seconds, faults that read, peak of the \
         group (with zram's memory)\n\n{}",
        document.share * 100.0,
        document.swap,
        match document.runs {
            1 => "one run".to_owned(),
            runs => format!("medians of {runs} runs"),
        },
        align(&cells(document))
    );
    let notes = document.notes();
    if !notes.is_empty() {
        text += "\n";
    }
    for note in notes {
        text += &format!("{note}\n");
    }
    text
}
