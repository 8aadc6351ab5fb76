//! Where `--record-faults` goes. Processes write there themselves, block by block (`engine/src/fault/record.rs`).

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::failure::Failure;

/// How such a file begins (docs/traces.md).
const HEAD: &[u8] = b"hugeswap-faults 1\n";

const NOT_PLAIN: &str = "not a plain file";

/// A new file. Engines wait for their writes, so nothing else than a plain file will do.
pub fn open(path: &Path) -> Result<File, Failure> {
    let fail = |e: &dyn std::fmt::Display| {
        Failure::ours(format!("--record-faults {}: {e}", path.display()))
    };
    // Elsewhere that is the standard output.
    if path == Path::new("-") {
        return Err(fail(&"give a file; one of that name is ./-"));
    }
    let file = File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|e| match e.raw_os_error() {
            // A pipe that nobody reads.
            Some(libc::ENXIO) => fail(&NOT_PLAIN),
            _ => fail(&e),
        })?;
    if !file.metadata().is_ok_and(|m| m.is_file()) {
        return Err(fail(&NOT_PLAIN));
    }
    file.set_len(0)
        .and_then(|()| (&file).write_all(HEAD))
        .map_err(|e| fail(&e))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_file_will_do() {
        let dir = std::env::temp_dir().join(format!("hugeswap-faults-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (file, pipe) = (dir.join("file"), dir.join("pipe"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for (path, why) in [
            (Path::new("-"), "give a file; one of that name is ./-"),
            (&pipe, NOT_PLAIN),
            (&dir, "Is a directory (os error 21)"),
        ] {
            let said = open(path).map(|_| ()).unwrap_err().message;
            assert_eq!(said, format!("--record-faults {}: {why}", path.display()));
        }
        std::fs::write(&file, "what was there").unwrap();
        open(&file).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), HEAD);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
