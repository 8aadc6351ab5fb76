//! `hugeswap bench programs`: the command. What it measures, and how, is `programs`.

use std::process::ExitCode;

use super::error::Error;
use super::findings::Report;
use super::pages::PageArgs;
use super::programs::{self, Document, ProgramsArgs};
use super::swap_test::with_clean_end;
use hugeswap_host::out;

const AFTER: &str = "Each program runs without a limit first; the most anonymous memory that it had is its need. \
Then it runs in a memory group of a share of that, which holds everything: the program, hugeswap and its \
tables, cached files. Programs that are not installed are left out and named.";

/// Real programs with a share of the memory that they need
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = AFTER)]
pub struct PanelArgs {
    #[command(flatten)]
    programs: ProgramsArgs,

    /// Print every figure as JSON; tables go to standard error then
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pages: PageArgs,
}

pub fn run(args: &PanelArgs) -> ExitCode {
    out::json_only(args.json);
    with_clean_end(|stop| {
        let mut document = Document::begin(&args.programs);
        let end = programs::compare(&args.programs, stop, &mut document);
        if end.is_err() && document.programs.is_empty() {
            return end;
        }
        // After Ctrl-C too: an hour may have gone into what is there.
        out!("{}", programs::text(&document));
        if args.json {
            out::json(&document).map_err(Error::Report)?;
        }
        args.pages.write(&Report {
            programs: Some(document),
            ..Report::begin(false)
        })?;
        end
    })
}
