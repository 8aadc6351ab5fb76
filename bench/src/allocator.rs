//! `hugeswap bench thp-swap-allocator`: the kernel tree's test of that name
//! against our allocator, and beside it against the kernel that runs.

mod kernel;
mod linux612;
mod mixed_test;
mod slots;
mod thp_test;

use mixed_test::MixedConfig;
use slots::Algorithm;
use std::io::{self, Write};
use std::process::ExitCode;
use thp_test::{published, Iteration, ThpTest, ThpTestConfig};

/// Swap 64 KiB folios in and out at random and count how many fall back to 4 KiB
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Swap in whole 64 KiB, at multiples of 64 KiB
    #[arg(short = 'a', long)]
    aligned_swapin: bool,
    /// Swap base pages beside the large folios: one more than there is room for
    #[arg(short = 's', long)]
    small_folios: bool,
    /// Iterations to run
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    /// Which allocator to run
    #[arg(long, value_enum, value_name = "NAME", default_value_t = AlgorithmArg::Hugeswap)]
    algorithm: AlgorithmArg,
    /// Run the same test on the kernel's swap too (as root; uses a 64 MiB zram)
    #[arg(long, value_enum, value_name = "WHAT")]
    against: Option<Against>,
    /// Have the kernel bring in base pages only, as the reference's did
    #[arg(long, requires = "against")]
    base_swapin: bool,
    /// Run the mixed test instead: all orders, at 60, 90 and 99 % full
    #[arg(long, conflicts_with_all = ["aligned_swapin", "small_folios", "against", "iterations"])]
    mixed: bool,
    /// Operations of the mixed test at each level
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000_000,
        requires = "mixed"
    )]
    operations: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum AlgorithmArg {
    /// As `hugeswap run` asks: best fit, several extents instead of a fallback
    Hugeswap,
    /// The plain allocator of Linux 6.12
    #[value(name = "linux-6.12")]
    Linux612,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Against {
    /// The kernel that runs
    Kernel,
}

/// Runs it; the exit status is 1 if our allocator fell back.
pub fn run(args: Args) -> Result<ExitCode, String> {
    let kernel = match args.against {
        Some(Against::Kernel) => Some(kernel::run(
            &args.test_config(),
            args.iterations,
            args.base_swapin,
        )?),
        None => None,
    };
    let mut out = io::stdout().lock();
    let done = if args.mixed {
        mixed(&mut out, args.algorithm(), args.operations)
    } else {
        match kernel {
            None => alone(&mut out, &args.test_config(), args.iterations),
            // As many as the kernel did: fewer when it was interrupted.
            Some(kernel) => beside(&mut out, &args.test_config(), &kernel),
        }
    };
    match done {
        Ok(clean) if clean || args.algorithm() == Algorithm::Linux612 => Ok(ExitCode::SUCCESS),
        Ok(_) => Ok(ExitCode::FAILURE),
        // The reader has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(e) => Err(e.to_string()),
    }
}

impl Args {
    fn algorithm(&self) -> Algorithm {
        match self.algorithm {
            AlgorithmArg::Hugeswap => Algorithm::HugeSwap,
            AlgorithmArg::Linux612 => Algorithm::Linux612,
        }
    }

    fn test_config(&self) -> ThpTestConfig {
        ThpTestConfig {
            aligned_swapin: self.aligned_swapin,
            small_folios: self.small_folios,
            algorithm: self.algorithm(),
        }
    }
}

/// The kernel tool's line.
fn line(out: &mut impl Write, number: usize, done: &Iteration) -> io::Result<()> {
    writeln!(
        out,
        "Iteration {number}: swpout inc: {}, swpout fallback inc: {}, Fallback percentage: {:.2}%",
        done.swpout,
        done.fallback,
        done.fallback_percent()
    )
}

/// What an allocator did over all iterations.
#[derive(Default)]
struct Totals {
    swpout: u64,
    fallback: u64,
    contiguous: u64,
    extents: u64,
    refused_of_folios: u64,
    refused: u64,
}

impl Totals {
    fn add(&mut self, done: &Iteration) {
        self.swpout += done.swpout;
        self.fallback += done.fallback;
        self.contiguous += done.contiguous;
        self.extents += done.extents;
        self.refused += done.refused;
        self.refused_of_folios += done.refused_of_folios;
    }

    fn clean(&self) -> bool {
        self.fallback == 0 && self.refused_of_folios == 0
    }

    fn extents_per_folio(&self) -> f64 {
        self.extents as f64 / self.swpout.max(1) as f64
    }
}

fn alone(out: &mut impl Write, config: &ThpTestConfig, iterations: u32) -> io::Result<bool> {
    let mut test = ThpTest::new(*config).map_err(io::Error::other)?;
    let mut totals = Totals::default();
    for i in 1..=iterations as usize {
        let done = test.iterate();
        totals.add(&done);
        line(out, i, &done)?;
    }
    summary(out, config, &totals)
}

/// Whether all folios went out whole.
fn summary(out: &mut impl Write, config: &ThpTestConfig, totals: &Totals) -> io::Result<bool> {
    let who = match config.algorithm {
        Algorithm::HugeSwap => "by the engine's calls: ",
        Algorithm::Linux612 => "",
    };
    writeln!(
        out,
        "{who}folios: {} contiguous, {} spread, {} fell back; extents per folio: {:.3}; \
         base pages without a slot: {}",
        totals.contiguous,
        totals.swpout - totals.contiguous,
        totals.fallback,
        totals.extents_per_folio(),
        totals.refused,
    )?;
    Ok(totals.clean())
}

/// Ours, the live kernel, and the reference's two columns.
fn beside(out: &mut impl Write, config: &ThpTestConfig, kernel: &[Iteration]) -> io::Result<bool> {
    let reference = published::mode(config.aligned_swapin, config.small_folios);
    let percent = |(swpout, fallback): (u64, u64)| {
        Iteration {
            swpout,
            fallback,
            ..Iteration::default()
        }
        .fallback_percent()
    };
    writeln!(out, "Fallback percentage, mode \"{}\":", reference.name)?;
    writeln!(
        out,
        "{:>9}  {:>9}  {:>16}  {:>16}  {:>14}",
        "Iteration", "hugeswap", "this kernel", "reference before", "reference with"
    )?;
    let mut test = ThpTest::new(*config).map_err(io::Error::other)?;
    let (mut totals, mut kernel_totals) = (Totals::default(), Totals::default());
    for (i, theirs) in kernel.iter().enumerate() {
        let ours = test.iterate();
        totals.add(&ours);
        kernel_totals.add(theirs);
        let before = match i {
            0..=2 => reference.before.get(i),
            97..=99 => reference.before.get(i - 94),
            _ => None,
        };
        let cell = |value: Option<f64>| value.map_or("-".to_string(), |p| format!("{p:.2}%"));
        writeln!(
            out,
            "{:>9}  {:>8.2}%  {:>16}  {:>16}  {:>14}",
            i + 1,
            ours.fallback_percent(),
            format!(
                "{:.2}% of {}",
                theirs.fallback_percent(),
                theirs.swpout + theirs.fallback
            ),
            cell(before.copied().map(percent)),
            cell(reference.with(i).map(percent)),
        )?;
    }
    let share = |t: &Totals| t.fallback as f64 / (t.swpout + t.fallback).max(1) as f64 * 100.0;
    writeln!(
        out,
        "{:>9}  {:>8.2}%  {:>16}",
        "all",
        share(&totals),
        format!("{:.2}%", share(&kernel_totals))
    )?;
    summary(out, config, &totals)
}

/// At each level; whether every folio found room.
fn mixed(out: &mut impl Write, algorithm: Algorithm, operations: u64) -> io::Result<bool> {
    let mut clean = true;
    for full_percent in [60, 90, 99] {
        let config = MixedConfig {
            algorithm,
            operations,
            ..MixedConfig::new(full_percent)
        };
        let report = mixed_test::run(&config).map_err(io::Error::other)?;
        writeln!(
            out,
            "{full_percent} % full, {} operations; alloc p50 {} p99 {} max {} ns; \
             free p50 {} p99 {} max {} ns",
            report.operations,
            report.alloc.p50,
            report.alloc.p99,
            report.alloc.max,
            report.free.p50,
            report.free.p99,
            report.free.max,
        )?;
        writeln!(
            out,
            "{:>5}  {:>9}  {:>8}  {:>10}  {:>13}",
            "order", "folios", "success", "one extent", "extents/folio"
        )?;
        for (order, count) in report.orders.iter().enumerate() {
            clean &= count.failed == 0;
            writeln!(
                out,
                "{order:>5}  {:>9}  {:>7.2}%  {:>9.2}%  {:>13.3}",
                count.placed + count.failed,
                count.success_percent(),
                count.whole as f64 / count.placed.max(1) as f64 * 100.0,
                count.extents_per_folio()
            )?;
        }
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.args)
    }

    fn output(line: &str) -> (bool, String) {
        let args = parse(line).unwrap();
        let mut out = Vec::new();
        let clean = alone(&mut out, &args.test_config(), args.iterations).unwrap();
        (clean, String::from_utf8(out).unwrap())
    }

    #[test]
    fn lines_are_those_of_the_kernel_tool() {
        let (clean, text) = output("--iterations 2");
        assert!(clean);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "Iteration 1: swpout inc: 233, swpout fallback inc: 0, Fallback percentage: 0.00%",
                "Iteration 2: swpout inc: 232, swpout fallback inc: 0, Fallback percentage: 0.00%",
            ]
        );
        // Without -a base pages leave small holes: contiguous and spread folios are told apart.
        assert!(lines[2].starts_with("by the engine's calls: folios: "));
        assert!(lines[2].contains(" contiguous, ") && lines[2].contains(" spread, "));
        assert_eq!(lines.len(), 3);
        let (clean, text) = output("--iterations 2 --algorithm linux-6.12");
        assert!(!clean);
        assert!(!text.contains("engine"));
        assert!(text.contains("inc: 139, swpout fallback inc: 93, Fallback percentage: 40.09%"));
    }

    #[test]
    fn beside_shows_the_reference() {
        let kernel = [Iteration {
            swpout: 1,
            fallback: 3,
            ..Iteration::default()
        }; 2];
        let mut out = Vec::new();
        let args = parse("-s").unwrap();
        beside(&mut out, &args.test_config(), &kernel).unwrap();
        let text = String::from_utf8(out).unwrap();
        let second: Vec<_> = text.lines().nth(3).unwrap().split_whitespace().collect();
        assert_eq!(
            second,
            ["2", "0.00%", "75.00%", "of", "4", "100.00%", "58.19%"]
        );
    }

    #[test]
    fn what_does_not_go_together() {
        for line in [
            "--mixed -a",
            "--near",
            "--operations 5",
            "--base-swapin",
            "--iterations 0",
            "--against windows",
            "--algorithm best",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        let args = parse("-a -s --iterations 7 --against kernel --base-swapin").unwrap();
        assert!(args.aligned_swapin && args.small_folios && args.base_swapin);
        assert_eq!(args.iterations, 7);
    }
}
