//! Where `--record-faults` goes. Processes write there themselves, block by block (`engine/src/fault/record.rs`).

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::failure::Failure;

/// How such a file begins (docs/traces.md).
const HEAD: &[u8] = b"hugeswap-faults 1\n";

/// A new file. Engines wait for their writes, so nothing else than a plain file will do.
pub fn open(path: &Path) -> Result<File, Failure> {
    let fail = |e: &dyn std::fmt::Display| {
        Failure::ours(format!("--record-faults {}: {e}", path.display()))
    };
    let file = File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|e| fail(&e))?;
    if !file.metadata().is_ok_and(|m| m.is_file()) {
        return Err(fail(&"not a plain file"));
    }
    file.set_len(0)
        .and_then(|()| (&file).write_all(HEAD))
        .map_err(|e| fail(&e))?;
    Ok(file)
}
