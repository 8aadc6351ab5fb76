//! `hugeswap bench all`: every test on disk and in memory, and one page of HTML about it.

use std::path::PathBuf;
use std::process::ExitCode;

use super::error::Error;
use super::findings::{Medium, Report, Verdict, FIO};
use super::fio;
use super::pages::PageArgs;
use super::programs::{self, ProgramsArgs};
use super::swap_args::{Against, SwapArgs};
use super::swap_test::{self, with_clean_end};
use super::workload::{self, Workload};
use super::{pattern::Pattern, report};
use hugeswap_host::columns::align;
use hugeswap_host::kernel_swap::mthp_switches;
use hugeswap_host::out;
use hugeswap_host::size::{Size, MIB};
use hugeswap_host::swap_spec::{self, SwapSpec, Target};
use hugeswap_host::undo::Interrupt;

/// Every test on disk and in memory, against the kernel's swap (as root)
#[derive(clap::Args, Debug, Clone)]
pub struct AllArgs {
    #[command(flatten)]
    pages: PageArgs,

    /// Print every figure as JSON; tables go to standard error then
    #[arg(long)]
    json: bool,

    /// Small sizes, one run of each, one thread
    #[arg(long)]
    quick: bool,

    /// A directory on the disk to swap to [default: as for run]
    #[arg(long, value_name = "DIR", value_parser = swap_spec::parser())]
    swap: Option<SwapSpec>,

    /// Memory of the swap tests; data are twice as large [default: 512M, quick 96M]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,

    /// About what each of the real programs needs [default: 512M, quick 224M]
    #[arg(long, value_name = "SIZE")]
    program_size: Option<Size>,

    /// Runs of each side [default: 3, quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,

    /// Only these tests; 'programs' and 'fio' are names too
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
}

pub fn run(args: &AllArgs) -> ExitCode {
    out::json_only(args.json);
    with_clean_end(|stop| {
        let mut report = Report::begin(args.quick);
        let end = measure(args, stop, &mut report);
        if let Err(err) = &end {
            if report.is_empty() {
                return end;
            }
            // Hours may have gone into what is there.
            report.failures.push(format!("not all was measured: {err}"));
        }
        out!("\n{}", align(&report.summary()));
        if args.json {
            out::json(&report).map_err(Error::Report)?;
        }
        args.pages.write(&report)?;
        end
    })
}

fn measure(args: &AllArgs, stop: &Interrupt, report: &mut Report) -> Result<(), Error> {
    let names = || {
        let tests = workload::ALL.iter().map(|w| w.name);
        tests.chain(["programs", "fio"]).collect::<Vec<_>>()
    };
    if let Some(unknown) = args
        .only
        .iter()
        .find(|only| !names().contains(&only.as_str()))
    {
        return Err(Error::Usage(format!(
            "--only: there is no test '{unknown}': give one of {}",
            names().join(", ")
        )));
    }
    let dir = args.directory()?;
    let disk = SwapSpec::Path(dir.clone());
    // What none of the tests can do with is said before the first.
    SwapArgs::plain(args.memory(), SwapSpec::Ram, Against::Kernel)
        .plan(&workload::ALL[0])
        .map_err(Error::Plan)?;
    if args.wants("fio") {
        errln!("hugeswap: fio on {}", dir.display());
        let data = Size::from_bytes(2 * args.memory().bytes());
        match fio::mixed_read_rate(&dir, data, if args.quick { 3 } else { 10 }, stop) {
            Ok(rate) => report.fio_mixed_read_rate = Some(rate),
            Err(err) => keep_on(report, "fio", err)?,
        }
    }
    for workload in workload::ALL.iter().filter(|w| args.wants(w.name)) {
        for (medium, swap) in [(Medium::Disk, &disk), (Medium::Memory, &SwapSpec::Ram)] {
            let threads: &[u32] = match workload.threads {
                1 if !args.quick => &[1, 2],
                1 => &[1],
                _ => &[2],
            };
            for threads in threads {
                args.test(workload, medium, swap, *threads, stop, report)?;
            }
        }
    }
    if args.wants("programs") {
        args.programs(disk, stop, report)?;
    }
    Ok(())
}

impl AllArgs {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    fn size(&self, given: Option<Size>, quick_mib: u64, full_mib: u64) -> Size {
        let mib = if self.quick { quick_mib } else { full_mib };
        given.unwrap_or(Size::from_bytes(mib * MIB))
    }

    fn memory(&self) -> Size {
        self.size(self.memory, 96, 512)
    }

    fn runs(&self) -> u32 {
        self.runs.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// Where the tests on disk swap to.
    fn directory(&self) -> Result<PathBuf, Error> {
        let dir = match &self.swap {
            Some(SwapSpec::Path(path)) => path.clone(),
            Some(SwapSpec::Ram) => {
                return Err(Error::Usage(
                    "--swap: the tests in memory are run anyway: give a directory".into(),
                ));
            }
            None => swap_spec::default_directory().map_err(|err| Error::Plan(err.into()))?,
        };
        let target = SwapSpec::Path(dir.clone()).resolve();
        match target.map_err(|err| Error::Plan(err.into()))? {
            Target::Directory(_) => Ok(dir),
            _ => Err(Error::Usage(format!(
                "--swap: {} is not a directory",
                dir.display()
            ))),
        }
    }

    /// One test on one medium, against all that it can be compared with.
    fn test(
        &self,
        workload: &'static Workload,
        medium: Medium,
        swap: &SwapSpec,
        threads: u32,
        stop: &Interrupt,
        report: &mut Report,
    ) -> Result<(), Error> {
        let name = format!("{}, {medium:?}, {threads} threads", workload.name).to_lowercase();
        errln!("hugeswap: {name}");
        let swap_args = SwapArgs {
            threads: Some(threads),
            runs: self.runs(),
            ..SwapArgs::plain(self.memory(), swap.clone(), Against::Kernel)
        };
        let result = swap_args
            .plan(workload)
            .map_err(Error::Plan)
            .and_then(|plan| swap_test::compare(&plan, stop));
        match result {
            Ok(document) => {
                outln!("{}\n\n{}", document.heading, report::table(&document));
                judge(report, workload, medium, &document);
                report.tests.push(document);
                Ok(())
            }
            Err(err) => keep_on(report, &name, err),
        }
    }

    fn programs(&self, disk: SwapSpec, stop: &Interrupt, report: &mut Report) -> Result<(), Error> {
        let args = ProgramsArgs {
            program: Vec::new(),
            size: self.size(self.program_size, 224, 512),
            share: 0.5,
            swap: Some(disk),
            against: Vec::new(),
            compress: None,
            runs: self.runs(),
            timeout: None,
            no_kernel: false,
            install: false,
        };
        let mut document = programs::Document::begin(&args);
        let end = programs::compare(&args, stop, &mut document);
        if !document.programs.is_empty() {
            out!("{}", programs::text(&document));
            report.programs = Some(document);
        }
        end.or_else(|err| keep_on(report, "programs", err))
    }
}

/// One test that can't be run is no reason to throw the others away, but lost data are.
fn keep_on(report: &mut Report, name: &str, err: Error) -> Result<(), Error> {
    match err {
        Error::Interrupted | Error::Corrupt { .. } | Error::Wrong { .. } => Err(err),
        err => {
            let line = format!("{name}: {err}");
            errln!("hugeswap: {line}");
            report.failures.push(line);
            Ok(())
        }
    }
}

/// What is asked for: of the kernel's best setting, and in memory of its default one.
fn targets(workload: &Workload, medium: Medium) -> Option<(f64, Option<f64>)> {
    let on = |disk, memory| Some((if medium == Medium::Disk { disk } else { memory }, None));
    if workload.timed {
        return None;
    }
    match workload.pattern {
        Pattern::Sequential if medium == Medium::Memory => Some((5.0, Some(12.0))),
        Pattern::Sequential => Some((7.0, None)),
        Pattern::Uniform => on(1.2, 1.0),
        Pattern::Zipf { .. } => on(2.0, 1.2),
        Pattern::Stride | Pattern::Phases => on(3.0, 2.0),
    }
}

fn judge(report: &mut Report, workload: &Workload, medium: Medium, test: &report::Document) {
    let mut add = |against: &str, ratio, target| {
        report.verdicts.push(Verdict {
            what: workload.name.to_owned(),
            medium,
            threads: test.threads,
            against: against.to_owned(),
            ratio,
            target,
        });
    };
    let ratios = || {
        test.contestants.iter().filter_map(|column| {
            let ratio = column.ratio?.later?;
            Some((column.name.as_str(), ratio))
        })
    };
    if let Some((best, default)) = targets(workload, medium) {
        if let Some((name, ratio)) = ratios().min_by(|a, b| a.1.total_cmp(&b.1)) {
            add(name, ratio, best);
        }
        if let (Some(target), false) = (default, mthp_switches().is_empty()) {
            // The default setting is the first of the kernel's.
            if let Some((name, ratio)) = ratios().next() {
                add(&format!("{name}, default"), ratio, target);
            }
        }
    }
    let ours = test
        .contestants
        .first()
        .and_then(|column| column.median.later_rate);
    if let (Some(fio), Some(ours), Medium::Disk, true) = (
        report.fio_mixed_read_rate,
        ours,
        medium,
        workload.is_sequential(),
    ) {
        report.verdicts.push(Verdict {
            what: workload.name.to_owned(),
            medium,
            threads: test.threads,
            against: FIO.into(),
            ratio: ours / fio,
            target: 0.85,
        });
    }
}
