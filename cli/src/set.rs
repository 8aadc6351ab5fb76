//! `hugeswap set`: settings of a run that change while it goes on.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use hugeswap_control::SwapIn;

use crate::going_on::{find_run, finish, Run};
use hugeswap_supervise::run_args::SwapInArg;

/// How often is looked whether it was taken.
const LOOK: Duration = Duration::from_millis(5);
/// Not taken for so long it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The settings are those of 'hugeswap run': swapin=auto, always, madvise or never.
What has changed holds for the next fault of every process of the run.

  hugeswap set 4711 swapin=never
  hugeswap set 4711                 show them")]
pub struct SetArgs {
    /// A process of the run that is meant
    #[arg(value_name = "PID")]
    pid: u32,
    /// What is to be changed; without it, all settings are shown
    #[arg(value_name = "NAME=VALUE")]
    settings: Vec<Setting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    SwapIn(SwapInArg),
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        match text.split_once('=') {
            Some(("swapin", value)) => SwapInArg::from_str(value, false)
                .map(Setting::SwapIn)
                .map_err(|_| format!("'{value}' is none of auto, always, madvise and never")),
            Some((name, _)) => Err(format!(
                "'{name}' can't be changed while a run goes on: swapin can"
            )),
            None => Err("say to what, as in swapin=never".to_owned()),
        }
    }
}

/// Exit 0: it is so now. 1: a message says why not.
pub fn set(args: &SetArgs) -> ExitCode {
    finish(find_run(Some(args.pid)).and_then(|run| {
        if args.settings.is_empty() {
            show(&run);
            return Ok(());
        }
        args.settings.iter().try_for_each(|s| change(&run, *s))
    }))
}

fn show(run: &Run) {
    let mode = SwapInArg::from(run.control.swap_in()).to_possible_value();
    let name = mode.as_ref().map_or("", |value| value.get_name());
    outln!("swapin={name}");
}

/// Until the run's processes see it.
fn change(run: &Run, Setting::SwapIn(to): Setting) -> Result<(), String> {
    let mode = SwapIn::from(to);
    run.orders.order_swap_in(mode);
    run.orders.call();
    let began = Instant::now();
    while run.control.swap_in() != mode {
        if !run.is_going_on() {
            return Err("the run has ended".to_owned());
        }
        if began.elapsed() > PATIENCE {
            return Err(format!(
                "the run did not take it within {} s: is process {} stopped? ('kill -CONT {}' lets it go on)",
                PATIENCE.as_secs(),
                run.supervisor,
                run.supervisor
            ));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_understood() {
        let never = Ok(Setting::SwapIn(SwapInArg::Never));
        assert_eq!("swapin=never".parse(), never);
        for (text, why) in [
            ("swapin", "say to what"),
            ("swapin=", "'' is none of"),
            ("swapin=NEVER", "'NEVER' is none of"),
            ("memory=1G", "'memory' can't be changed"),
        ] {
            let err = text.parse::<Setting>().unwrap_err();
            assert!(err.starts_with(why), "{text}: {err}");
        }
    }
}
