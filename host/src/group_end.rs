//! The end of a memory group and of those in it.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::os;

/// Kills who is inside.
pub fn kill_all(path: &Path) -> io::Result<()> {
    // v2 since 5.14: all at once, nobody can fork away.
    if fs::OpenOptions::new()
        .write(true)
        .open(path.join("cgroup.kill"))
        .and_then(|mut file| io::Write::write_all(&mut file, b"1"))
        .is_ok()
    {
        return Ok(());
    }
    for pid in fs::read_to_string(path.join("cgroup.procs"))?.lines() {
        // 0: a process outside our PID namespace; killing it would be killing
        // our own process group.
        if let Some(pid) = pid.parse().ok().filter(|pid| *pid > 0) {
            os::kill(pid)?;
        }
    }
    Ok(())
}

/// Kills who is inside and removes the group; waits until the dead are gone.
pub fn remove(path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match fs::remove_dir(path) {
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {}
            other => return other,
        }
        kill_all(path)?;
        std::thread::sleep(Duration::from_millis(10));
    }
}
