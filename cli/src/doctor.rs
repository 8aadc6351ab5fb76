//! `hugeswap doctor`: what is allowed here, what is missing, what follows, and
//! the one command that mends it.

mod check;
mod checks;
mod promote;
pub mod trial;

pub use check::{Check, Verdict};

use std::process::ExitCode;

use serde::Serialize;

use hugeswap_host::columns::align;
use hugeswap_host::os;
use hugeswap_host::swap_spec::{self, Where};

#[derive(clap::Args, Debug)]
#[command(after_help = "The exit status is 0 only where 'hugeswap run' works fully.")]
pub struct DoctorArgs {
    /// Where you want to swap, as for 'run'; may be repeated [default: as 'run' chooses]
    #[arg(long, value_name = "SPEC", value_parser = swap_spec::place_parser())]
    pub swap: Vec<Where>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    /// `run` works fully.
    works: bool,
    checks: &'a [Check],
    promote: Part<'a>,
}

#[derive(Debug, Serialize)]
struct Part<'a> {
    /// `promote` works fully.
    works: bool,
    checks: &'a [Check],
}

fn works(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.verdict <= Verdict::Note)
}

pub fn run(args: &DoctorArgs) -> ExitCode {
    // What is tried with files may meet a limit of their size.
    os::ignore_file_size_signal();
    let mut checks = checks::all(&args.swap);
    // What is missing has been said.
    if checks.iter().all(|c| c.verdict < Verdict::Missing) {
        checks.push(trial::check());
    }
    let promote = promote::all();
    let works = works(&checks);
    if args.json {
        match serde_json::to_string_pretty(&Document {
            works,
            checks: &checks,
            promote: Part {
                works: self::works(&promote),
                checks: &promote,
            },
        }) {
            Ok(text) => outln!("{text}"),
            Err(err) => {
                errln!("hugeswap: can't write JSON: {err}");
                return ExitCode::FAILURE;
            }
        }
    } else {
        out!("{}", text("run", &checks));
        outln!();
        out!("{}", text("promote", &promote));
    }
    if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The checks of a command, and what they come to.
fn text(command: &str, checks: &[Check]) -> String {
    let lines: Vec<Vec<String>> = checks
        .iter()
        .map(|check| vec![format!("{:<7}  {}", check.verdict.word(), check.name)])
        .collect();
    let names = align(&lines);
    let width = names
        .lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    for (name, check) in names.lines().zip(checks) {
        out += &format!("{name:<width$}  {}\n", check.found);
        if let Some(consequence) = &check.consequence {
            out += &format!("         -> {consequence}\n");
        }
        if let Some(mend) = &check.mend {
            out += &format!("         mend it: {mend}\n");
        }
    }
    let worst = checks
        .iter()
        .map(|check| check.verdict)
        .max()
        .unwrap_or(Verdict::Ok);
    out += &match worst {
        Verdict::Ok | Verdict::Note => format!("\n'hugeswap {command}' works fully here.\n"),
        Verdict::Limited => {
            format!("\n'hugeswap {command}' works here, but not fully: see LIMITED.\n")
        }
        Verdict::Missing => format!("\n'hugeswap {command}' does not work here: see MISSING.\n"),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_what_follows_and_mends() {
        let checks = vec![
            Check::ok("kernel", "Linux 6.18"),
            Check::new("io_uring", Verdict::Limited, "forbidden")
                .so("slower")
                .mend("sysctl -w x=0"),
        ];
        assert!(!works(&checks));
        let expected = "\
ok       kernel    Linux 6.18
LIMITED  io_uring  forbidden
         -> slower
         mend it: sysctl -w x=0

'hugeswap run' works here, but not fully: see LIMITED.
";
        assert_eq!(text("run", &checks), expected);
        assert!(works(&checks[..1]));
    }
}
