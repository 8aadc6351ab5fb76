use std::process::ExitCode;
#[derive(clap::Args, Debug)]
pub struct WorkerArgs {}
pub fn run(_: &WorkerArgs) -> ExitCode {
    ExitCode::FAILURE
}
