//! Where `--stats-json` goes: a file that is replaced at once, or a stream that takes a line each time.
//!
//! A thread writes, because readers of pipes may be slow, or never come: neither the program nor its end
//! waits for them.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hugeswap_sys::thread::random;
use serde_json::Value;

use super::{sys, tasks};

/// How long the end of a run waits for the last figures to be written.
const LAST: Duration = Duration::from_secs(5);

enum Destination {
    /// The file itself, whatever link led there.
    File(PathBuf),
    /// A pipe, a terminal, a socket, or a descriptor of whoever started us.
    Stream(File),
    /// A pipe with a name, that nobody reads yet.
    Unread(PathBuf),
}

impl Destination {
    fn find(path: &Path) -> io::Result<Destination> {
        if let Some(fd) = descriptor(path) {
            return duplicate(fd).map(Destination::Stream);
        }
        let is_new = fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        if is_new {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new(".")).canonicalize()?;
            return Ok(Destination::File(parent.join(name)));
        }
        // The kernel follows links as its rules allow; neither does this wait for a reader.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path);
        match file {
            Ok(file) => {
                let meta = file.metadata()?;
                if meta.is_file() {
                    let path = fs::read_link(of_own(file.as_raw_fd()))?;
                    return Ok(Destination::File(path));
                }
                // From here on its reader is waited for; that this thread does not mind.
                sys::set_blocking(&file)?;
                Ok(Destination::Stream(file))
            }
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(Destination::Unread(path.into())),
            Err(e) => Err(e),
        }
    }

    /// The reader of a pipe is waited for.
    fn write(&mut self, figures: &Value) -> io::Result<()> {
        if let Destination::Unread(path) = self {
            *self = Destination::Stream(OpenOptions::new().write(true).open(path)?);
        }
        match self {
            Destination::File(path) => replace(path, format!("{figures:#}\n").as_bytes()),
            Destination::Stream(file) => file.write_all(format!("{figures}\n").as_bytes()),
            Destination::Unread(_) => Ok(()),
        }
    }
}

/// The number in `/dev/stdout`, `/dev/fd/N` and the like.
fn descriptor(path: &Path) -> Option<RawFd> {
    let text = path.to_str()?;
    let number = match text {
        "/dev/stdin" => return Some(0),
        "/dev/stdout" | "-" => return Some(1),
        "/dev/stderr" => return Some(2),
        _ => text
            .strip_prefix("/dev/fd/")
            .or(text.strip_prefix("/proc/self/fd/"))?,
    };
    number.parse().ok().filter(|&n| n >= 0)
}

#[allow(unsafe_code)]
fn duplicate(fd: RawFd) -> io::Result<File> {
    // SAFETY: it is only asked about, and copied; if it is not open that is an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map(File::from)
}

fn of_own(fd: RawFd) -> String {
    format!("/proc/self/fd/{fd}")
}

/// A reader sees all of it or what was there before. Where the file can't be replaced without a loss
/// (another name, its owner) it is written over.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let old = fs::metadata(path).ok();
    let over = || {
        File::options()
            .write(true)
            .truncate(true)
            .open(path)
            .and_then(|mut f| f.write_all(text))
    };
    if old.as_ref().is_some_and(|old| old.nlink() > 1) {
        return over();
    }
    let new = path.with_file_name(format!(".hugeswap-{:016x}{:016x}", random(), random()));
    let made = make(&new, old.as_ref(), text).and_then(|()| fs::rename(&new, path));
    made.or_else(|e| {
        let _ = fs::remove_file(&new);
        match old {
            Some(_) if !has_no_room(&e) => over(),
            _ => Err(e),
        }
    })
}

/// What is there would only be lost.
fn has_no_room(e: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(e.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn make(path: &Path, old: Option<&Metadata>, text: &[u8]) -> io::Result<()> {
    let mode = old.map_or(0o666, |old| old.mode() & 0o777);
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    if let Some(old) = old {
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    file.write_all(text)
}

#[derive(Default)]
struct State {
    next: Option<Value>,
    /// The thread has something in hand.
    is_writing: bool,
    waits_for_reader: bool,
    ends: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

pub struct StatsFile {
    path: PathBuf,
    found: Option<Destination>,
    is_stream: bool,
    /// False if its thread could not be started.
    has_writer: bool,
    shared: Arc<Shared>,
}

impl StatsFile {
    /// Finds out where it goes. If nowhere, that is said, and nothing is written.
    pub fn open(path: &Path) -> Option<StatsFile> {
        let found = Destination::find(path)
            .inspect_err(|e| complain(path, e))
            .ok()?;
        Some(StatsFile {
            path: path.into(),
            is_stream: !matches!(found, Destination::File(_)),
            found: Some(found),
            has_writer: true,
            shared: Arc::default(),
        })
    }

    pub fn write(&mut self, figures: Value) {
        if let Some(to) = self.found.take() {
            let (shared, path) = (Arc::clone(&self.shared), self.path.clone());
            if let Err(e) = tasks::start(move || write_each(to, &shared, &path)) {
                complain(&self.path, &e);
                self.has_writer = false;
            }
        }
        if !self.has_writer {
            return;
        }
        self.shared.lock().next = Some(figures);
        self.shared.changed.notify_all();
    }

    /// The last of the program. A stream gets no more after that; false if so.
    pub fn write_last(&mut self, figures: Value) -> bool {
        self.write(figures);
        let mut state = self.shared.lock();
        state.ends = self.is_stream;
        let wait = |s: &mut State| (s.next.is_some() || s.is_writing) && !s.waits_for_reader;
        let (state, late) = match self.shared.changed.wait_timeout_while(state, LAST, wait) {
            Ok((state, late)) => (state, late.timed_out()),
            Err(e) => (e.into_inner().0, false),
        };
        if late || state.waits_for_reader {
            complain(&self.path, &"nobody reads it");
        }
        !self.is_stream
    }
}

fn complain(path: &Path, why: &dyn std::fmt::Display) {
    errln!(
        "hugeswap: warning: can't write the statistics to '{}': {why}",
        path.display()
    );
}

fn write_each(mut to: Destination, shared: &Shared, path: &Path) {
    let mut has_failed = false;
    loop {
        let mut state = shared.lock();
        (state.is_writing, state.waits_for_reader) = (false, false);
        shared.changed.notify_all();
        while state.next.is_none() && !state.ends {
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(|e| e.into_inner());
        }
        let Some(figures) = state.next.take() else {
            return;
        };
        state.is_writing = true;
        state.waits_for_reader = matches!(to, Destination::Unread(_));
        shared.changed.notify_all();
        drop(state);
        match to.write(&figures) {
            Ok(()) => has_failed = false,
            Err(e) if !has_failed => {
                has_failed = true;
                complain(path, &e);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_no_reason_to_write_over_what_is_there() {
        let is_full = |errno| has_no_room(&io::Error::from_raw_os_error(errno));
        assert!([libc::ENOSPC, libc::EDQUOT, libc::EFBIG]
            .into_iter()
            .all(is_full));
        assert!(!is_full(libc::EACCES));
    }

    #[test]
    fn descriptors_by_name() {
        let of = |p: &str| descriptor(Path::new(p));
        assert_eq!(of("/dev/stdout"), Some(1));
        assert_eq!(of("-"), Some(1));
        assert_eq!(of("./-"), None);
        assert_eq!(of("/dev/fd/7"), Some(7));
        assert_eq!(of("/proc/self/fd/0"), Some(0));
        for other in ["stdout", "/dev/fd", "/dev/fd/x", "/dev/fd/-1", "/dev/null"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_file_is_replaced_and_keeps_what_it_is() {
        let dir = std::env::temp_dir().join(format!("hugeswap-stats-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("real");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, dir.join("link")).unwrap();
        let Ok(Destination::File(found)) = Destination::find(&dir.join("link")) else {
            panic!("not a file");
        };
        let reader = File::open(&path).unwrap();
        replace(&found, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(io::read_to_string(reader).unwrap(), "old");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(dir.join("link").is_symlink());
        // Another name of it is not cut off.
        fs::hard_link(&path, dir.join("other")).unwrap();
        replace(&found, b"newer").unwrap();
        assert_eq!(fs::read(dir.join("other")).unwrap(), b"newer");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
        fs::remove_dir_all(&dir).unwrap();
    }
}
