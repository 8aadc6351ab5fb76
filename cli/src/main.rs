use std::process::ExitCode;

fn main() -> ExitCode {
    hugeswap_cli::main()
}
