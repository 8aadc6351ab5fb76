//! The supervisor of `hugeswap run`.

use std::process::ExitCode;

use crate::run_args::RunArgs;

/// EX_SOFTWARE.
const NOT_BUILT: u8 = 70;

pub fn run(_args: RunArgs) -> ExitCode {
    eprintln!("hugeswap: 'run' is not built yet");
    ExitCode::from(NOT_BUILT)
}
