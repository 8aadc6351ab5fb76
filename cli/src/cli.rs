//! The command line's grammar.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::doctor::DoctorArgs;
use crate::promote::PromoteArgs;
use crate::set::SetArgs;
use crate::swapoff::{SwapoffArgs, SwaponArgs};
use hugeswap_bench::worker::WorkerArgs;
use hugeswap_bench::BenchArgs;
use hugeswap_supervise::run_args::RunArgs;

/// Exit status of a command line that can't be understood.
pub const USAGE: u8 = 2;

#[derive(Parser, Debug)]
#[command(
    name = "hugeswap",
    version,
    about = "Run programs on less memory than they need: huge pages swapped as a whole, in user space",
    subcommand_required = true,
    arg_required_else_help = false
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program with a limit on its memory; the rest goes to swap
    Run(RunArgs),
    /// Empty a swap device of a run that is going on, and use it no more
    Swapoff(SwapoffArgs),
    /// Show the swap devices of a run that is going on, or use one again
    Swapon(SwaponArgs),
    /// Change a setting of a run that is going on, or show them
    Set(SetArgs),
    /// Say what this kernel, user and container allow, what follows, and what mends it
    Doctor(DoctorArgs),
    /// Bring hot file pages that are only read back from slow memory nodes
    Promote(PromoteArgs),
    /// Measure, also against the kernel's own swap
    Bench(BenchArgs),
    /// One run of a benchmark's workload; prints one JSON object per round
    #[command(hide = true)]
    BenchWorker(WorkerArgs),
    /// The program of the run that 'doctor' tries
    #[command(hide = true, name = crate::doctor::trial::NAME)]
    TrialProgram {
        #[arg(value_parser = ["child"])]
        what: Option<String>,
    },
    /// Takes down what a killed benchmark left behind
    #[command(hide = true)]
    Janitor,
    /// Print a shell's completion script
    #[command(hide = true)]
    Completions { shell: clap_complete::Shell },
    /// Print the manual page, or that of a subcommand, as in 'man bench swap-w-seq'
    #[command(hide = true)]
    Man { subcommand: Vec<String> },
}

/// A usage error in one line: what is wrong, clap's hint if it has one, and
/// where to read on.
pub fn one_line(err: &clap::Error, args: &[OsString]) -> String {
    let text = err.render().to_string();
    let mut parts = Vec::new();
    let command = command_of(args);
    let mut help = format!("{command} --help");
    for paragraph in text.split("\n\n") {
        let words = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(message) = words.strip_prefix("error: ") {
            parts.push(message.trim_end_matches('.').to_owned());
        } else if let Some(usage) = words.strip_prefix("Usage: ") {
            help = help_of(usage);
        } else if let Some(tips) = words.strip_prefix("tip: ") {
            // The second tip, to pass it as a value, is never what is meant.
            parts.push(tips.split(" tip: ").next().unwrap_or(tips).to_owned());
        }
    }
    let what = match own_words(err, &command) {
        Some(what) => what,
        None => parts.join("; "),
    };
    format!("hugeswap: {what} (see '{help}')")
}

/// Where clap's words are longer or vaguer than they need be.
fn own_words(err: &clap::Error, command: &str) -> Option<String> {
    match err.kind() {
        ErrorKind::MissingSubcommand if command == "hugeswap" => {
            Some("say what to do: run, swapoff, swapon, set, doctor, promote or bench".to_owned())
        }
        ErrorKind::MissingSubcommand => {
            Some("say which test, as in 'hugeswap bench swap-w-seq'".to_owned())
        }
        ErrorKind::MissingRequiredArgument => match err.get(ContextKind::InvalidArg) {
            Some(ContextValue::Strings(missing))
                if missing.iter().any(|arg| arg.starts_with("<PROGRAM>")) =>
            {
                Some("no program given: write it after '--', as in '-- python3 sort.py'".to_owned())
            }
            _ => None,
        },
        ErrorKind::ValueValidation => {
            let option = err.get(ContextKind::InvalidArg)?.to_string();
            let name = option.split(' ').next()?;
            Some(format!("{name}: {}", std::error::Error::source(err)?))
        }
        _ => None,
    }
}

/// The command with its subcommands, as far as `args` name them: not all of
/// clap's errors do.
fn command_of(args: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut name = String::from("hugeswap");
    for arg in args {
        let Some(next) = command.find_subcommand(arg) else {
            break;
        };
        name = format!("{name} {}", next.get_name());
        command = next.clone();
    }
    name
}

/// "hugeswap run [OPTIONS] <PROGRAM>" -> "hugeswap run --help"
fn help_of(usage: &str) -> String {
    let command: Vec<&str> = usage
        .split(' ')
        .take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        .collect();
    format!("{} --help", command.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_names_the_subcommand() {
        assert_eq!(
            help_of("hugeswap run [OPTIONS] <A>..."),
            "hugeswap run --help"
        );
        assert_eq!(help_of("hugeswap <COMMAND>"), "hugeswap --help");
    }
}
