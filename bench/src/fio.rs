//! What the disk can do: `fio` with 2 MiB reads and writes, half and half.

use std::io;
use std::path::Path;
use std::process::Command;

use super::error::{io_error, Error};
use hugeswap_host::size::Size;
use hugeswap_host::undo::{Guard, Interrupt, Undo};

/// Bytes read per second, while as many are written.
pub fn mixed_read_rate(
    dir: &Path,
    size: Size,
    seconds: u32,
    stop: &Interrupt,
) -> Result<f64, Error> {
    stop.check()?;
    let file = dir.join(format!(".hugeswap-bench-{}.fio", std::process::id()));
    let mut guard = Guard::new();
    guard.push(Undo::RemoveFile(file.clone()));
    let output = Command::new("fio")
        .args(["--name=mixed", "--rw=randrw", "--rwmixread=50", "--bs=2M"])
        .args(["--direct=1", "--ioengine=io_uring", "--iodepth=8"])
        .args(["--time_based", "--output-format=json"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--size={}", size.bytes()))
        .arg(format!("--runtime={seconds}"))
        .output()
        .map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => Error::Missing("fio"),
            _ => io_error("start fio")(err),
        })?;
    stop.check()?;
    rate(&output.stdout).ok_or_else(|| {
        Error::Report(format!(
            "fio ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    })
}

/// fio may print lines of its own before the JSON.
fn rate(output: &[u8]) -> Option<f64> {
    let start = output.iter().position(|byte| *byte == b'{')?;
    let report: serde_json::Value = serde_json::from_slice(&output[start..]).ok()?;
    report["jobs"][0]["read"]["bw_bytes"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found() {
        let text = b"note: something\n{\"jobs\": [{\"read\": {\"bw_bytes\": 12.0}}]}";
        assert_eq!(rate(text), Some(12.0));
        assert_eq!(rate(b"fio: failed"), None);
    }
}
