//! Taking down what was set up: on return, after an error, after Ctrl-C, and
//! by the janitor process also after `kill -9`.
//!
//! Everything the benchmark changes in the system is one [`Undo`], pushed on a
//! [`Guard`] at once after the change. The guard undoes in reverse order when
//! it is dropped. Ctrl-C only sets a flag (see [`Interrupt`]), so that drops run.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{group_end, os};

/// One thing to take back. Each may be done twice: what is gone is no error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Undo {
    SwapOff(PathBuf),
    /// Of a block device that the kernel swaps to no more.
    EraseSwapHeader(PathBuf),
    RemoveFile(PathBuf),
    /// With what is in it.
    RemoveDir(PathBuf),
    RemoveZram(u32),
    UnloadModule(String),
    /// Put a setting back to what it was.
    Restore {
        path: PathBuf,
        value: String,
    },
    /// Kill who is inside, then remove the group.
    RemoveGroup(PathBuf),
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undo::SwapOff(path) => write!(f, "turn swap off at {}", path.display()),
            Undo::EraseSwapHeader(path) => {
                write!(f, "erase the swap header on {}", path.display())
            }
            Undo::RemoveDir(path) => write!(f, "remove {}", path.display()),
            Undo::RemoveFile(path) => write!(f, "remove {}", path.display()),
            Undo::RemoveZram(id) => write!(f, "remove /dev/zram{id}"),
            Undo::UnloadModule(name) => write!(f, "unload the kernel module {name}"),
            Undo::Restore { path, value } => write!(f, "write '{value}' to {}", path.display()),
            Undo::RemoveGroup(path) => write!(f, "remove the group {}", path.display()),
        }
    }
}

impl Undo {
    pub fn perform(&self) -> io::Result<()> {
        match self {
            // EINVAL: no swap there.
            Undo::SwapOff(path) => match os::swap_off(path) {
                Err(err) if err.raw_os_error() == Some(libc::EINVAL) => Ok(()),
                other => gone_is_fine(other),
            },
            Undo::EraseSwapHeader(path) => gone_is_fine(erase_swap_header(path)),
            Undo::RemoveDir(path) => gone_is_fine(fs::remove_dir_all(path)),
            Undo::RemoveFile(path) => gone_is_fine(fs::remove_file(path)),
            Undo::RemoveZram(id) => remove_zram(*id),
            Undo::UnloadModule(name) => {
                // It stays where somebody uses it by now; that is no failure.
                Command::new("modprobe")
                    .args(["-r", name])
                    .stderr(Stdio::null())
                    .status()?;
                Ok(())
            }
            Undo::Restore { path, value } => gone_is_fine(write_existing(path, value)),
            Undo::RemoveGroup(path) => gone_is_fine(group_end::remove(path)),
        }
    }
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// If there still is one, and nobody uses the device.
fn erase_swap_header(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let device = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_EXCL)
        .open(path)?;
    let mut page = [0; 4096];
    device.read_exact_at(&mut page, 0)?;
    if page.ends_with(b"SWAPSPACE2") {
        device.write_all_at(&[0; 4096], 0)?;
        device.sync_data()?;
    }
    Ok(())
}

/// Without O_CREAT: a setting that is gone must not become a file.
fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)?;
    file.write_all(value.as_bytes())
}

/// The device is busy for a moment while udev looks at it.
fn remove_zram(id: u32) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::write("/sys/class/zram-control/hot_remove", id.to_string()) {
            Err(err) if err.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return gone_is_fine(other),
        }
    }
}

/// Undoes its steps in reverse order when dropped.
#[derive(Debug, Default)]
pub struct Guard {
    steps: Vec<(u64, Undo)>,
}

impl Guard {
    pub fn new() -> Guard {
        Guard::default()
    }

    pub fn push(&mut self, undo: Undo) {
        let id = tell_janitor(&undo);
        self.steps.push((id, undo));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        while let Some((id, undo)) = self.steps.pop() {
            match undo.perform() {
                Ok(()) => settle_with_janitor(id),
                Err(err) => errln!("hugeswap: can't {undo}: {err}; do it by hand"),
            }
        }
    }
}

/// What the janitor reads, one JSON object per line.
#[derive(Serialize, Deserialize)]
enum Note {
    Open(u64, Undo),
    Settled(u64),
}

static JANITOR: Mutex<Option<std::process::ChildStdin>> = Mutex::new(None);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Starts the process that undoes what this one could not. Without it
/// everything works except `kill -9`.
pub fn start_janitor() -> io::Result<()> {
    let mut janitor = JANITOR.lock().unwrap_or_else(PoisonError::into_inner);
    if janitor.is_some() {
        return Ok(());
    }
    let mut child = Command::new(std::env::current_exe()?)
        .arg("janitor")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // It answers once it no longer listens to the terminal's signals.
    if let Some(mut out) = child.stdout.take() {
        out.read_exact(&mut [0])?;
    }
    *janitor = child.stdin.take();
    Ok(())
}

fn tell_janitor(undo: &Undo) -> u64 {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    send(&Note::Open(id, undo.clone()));
    id
}

fn settle_with_janitor(id: u64) {
    send(&Note::Settled(id));
}

fn send(note: &Note) {
    let mut janitor = JANITOR.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(pipe), Ok(mut line)) = (janitor.as_mut(), serde_json::to_string(note)) {
        line.push('\n');
        if pipe.write_all(line.as_bytes()).is_err() {
            // The janitor was killed: the guards still do their part.
            *janitor = None;
        }
    }
}

/// The hidden subcommand: reads notes until the other side ends, however it
/// ended, and undoes what was not settled.
pub fn janitor() -> ExitCode {
    // Its own session: neither Ctrl-C nor the terminal's end concerns it.
    if os::new_session().is_err() {
        return ExitCode::FAILURE;
    }
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if signal_hook::flag::register(signal, Arc::clone(&ignored)).is_err() {
            return ExitCode::FAILURE;
        }
    }
    let mut out = io::stdout();
    if out.write_all(b".").and_then(|()| out.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    let mut open: Vec<(u64, Undo)> = Vec::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Note::Open(id, undo)) => open.push((id, undo)),
            Ok(Note::Settled(id)) => open.retain(|(other, _)| *other != id),
            // Cut off in the middle of a line by a kill.
            Err(_) => break,
        }
    }
    let mut status = ExitCode::SUCCESS;
    for (_, undo) in open.iter().rev() {
        if let Err(err) = undo.perform() {
            errln!("hugeswap: can't {undo}: {err}; do it by hand");
            status = ExitCode::FAILURE;
        }
    }
    status
}

/// Turns SIGINT, SIGTERM and SIGHUP into a flag and a readable descriptor.
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    pipe: UnixStream,
}

/// What tells each `Interrupt`.
static WATCHED: Mutex<Vec<(Arc<AtomicBool>, UnixStream)>> = Mutex::new(Vec::new());

/// The user wants to stop.
#[derive(Debug)]
pub struct Interrupted;

impl Interrupt {
    /// From here on these signals no longer end the process.
    pub fn catch() -> io::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        let (pipe, write) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        WATCHED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((Arc::clone(&flag), write));
        Ok(Interrupt { flag, pipe })
    }

    /// As if a signal had come, for everybody who watches for one; false if nobody does.
    pub fn stop_all() -> bool {
        let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        for (flag, pipe) in watched.iter() {
            flag.store(true, Ordering::SeqCst);
            // Full of other calls to stop, if this fails.
            let _ = (&*pipe).write(b"x");
        }
        !watched.is_empty()
    }

    pub fn check(&self) -> Result<(), Interrupted> {
        if self.flag.load(Ordering::SeqCst) {
            Err(Interrupted)
        } else {
            Ok(())
        }
    }
}

impl AsFd for Interrupt {
    /// Readable once a signal has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_undone_in_reverse() {
        let dir = std::env::temp_dir().join(format!("hugeswap-undo-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("setting");
        fs::write(&file, "changed").unwrap();
        let mut guard = Guard::new();
        guard.push(Undo::RemoveFile(file.clone()));
        guard.push(Undo::Restore {
            path: file.clone(),
            value: "as it was".into(),
        });
        drop(guard);
        assert!(!file.exists(), "restored first, removed last");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_is_gone_is_no_error() {
        let nowhere = PathBuf::from("/nowhere/at/all");
        Undo::RemoveFile(nowhere.clone()).perform().unwrap();
        Undo::RemoveGroup(nowhere.clone()).perform().unwrap();
        Undo::Restore {
            path: nowhere,
            value: String::new(),
        }
        .perform()
        .unwrap();
    }

    #[test]
    fn notes_survive_the_pipe() {
        let note = Note::Open(
            7,
            Undo::Restore {
                path: "/a b".into(),
                value: "x\ny".into(),
            },
        );
        let line = serde_json::to_string(&note).unwrap();
        assert!(!line.contains('\n'));
        match serde_json::from_str(&line).unwrap() {
            Note::Open(7, Undo::Restore { value, .. }) => assert_eq!(value, "x\ny"),
            _ => panic!("{line}"),
        }
    }
}
