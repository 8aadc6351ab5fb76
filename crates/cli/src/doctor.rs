use std::process::ExitCode;
#[derive(clap::Args, Debug)]
pub struct DoctorArgs {}
pub fn run(_: &DoctorArgs) -> ExitCode {
    ExitCode::FAILURE
}
