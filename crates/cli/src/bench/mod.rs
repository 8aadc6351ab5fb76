use std::process::ExitCode;
pub mod worker;
#[derive(clap::Args, Debug)]
pub struct BenchArgs {}
pub fn run(_: BenchArgs) -> ExitCode {
    ExitCode::FAILURE
}
