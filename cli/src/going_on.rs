//! A run that is going on, found from outside: by its supervisor's descriptors.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hugeswap_control::link::{Address, ENV};
use hugeswap_control::{Control, Orders, CONTROL_FILE, ORDERS_FILE};

pub struct Run {
    pub supervisor: u32,
    pub control: &'static Control,
    pub orders: &'static Orders,
}

impl Run {
    pub fn is_going_on(&self) -> bool {
        Path::new(&format!("/proc/{}", self.supervisor)).exists()
    }
}

/// The exit status of who asked something of it.
pub fn finish(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            errln!("hugeswap: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The run of a process, or the only one there is.
pub fn find_run(pid: Option<u32>) -> Result<Run, String> {
    let mut found: Vec<Files> = match pid {
        Some(pid) => of_program(pid)
            .into_iter()
            .chain(of_hugeswap(pid))
            .collect(),
        None => processes().into_iter().filter_map(of_supervisor).collect(),
    };
    found.dedup();
    let [found] = &found[..] else {
        return Err(match (pid, found.len()) {
            (Some(pid), _) => {
                format!("process {pid} belongs to no run of hugeswap that you may change")
            }
            (None, 0) => "there is no run of hugeswap that you may change".to_owned(),
            (None, _) => several(&found),
        });
    };
    open(found)
}

fn several(found: &[Files]) -> String {
    let pids: Vec<_> = found.iter().map(|f| f.supervisor.to_string()).collect();
    format!(
        "there are several runs of hugeswap: name a process of the one you mean with --pid ({})",
        pids.join(", ")
    )
}

fn processes() -> Vec<u32> {
    let Ok(dir) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    dir.flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

/// What a supervisor has open.
#[derive(PartialEq, Eq)]
struct Files {
    supervisor: u32,
    control: PathBuf,
    orders: PathBuf,
}

fn is_hugeswap(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "hugeswap")
}

/// Its files, where the process is a supervisor.
fn of_supervisor(pid: u32) -> Option<Files> {
    if !is_hugeswap(pid) {
        return None;
    }
    let named = |name: &str| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let begins = format!("/memfd:{name}");
        fds.flatten()
            .map(|e| e.path())
            .find(|p| fs::read_link(p).is_ok_and(|to| to.to_string_lossy().starts_with(&begins)))
    };
    Some(Files {
        supervisor: pid,
        control: named(CONTROL_FILE)?,
        orders: named(ORDERS_FILE)?,
    })
}

/// The same, where the process is a supervisor or its parent, which the shell knows. A supervisor whose parent has
/// ended is process 1's child.
fn of_hugeswap(pid: u32) -> Option<Files> {
    of_supervisor(pid).or_else(|| {
        if !is_hugeswap(pid) {
            return None;
        }
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children
            .split_whitespace()
            .filter_map(|c| c.parse().ok())
            .find_map(of_supervisor)
    })
}

/// The same, where the process is a program of a run.
fn of_program(pid: u32) -> Option<Files> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let name = format!("{ENV}=");
    let address = environment
        .split(|&b| b == 0)
        .find_map(|e| e.strip_prefix(name.as_bytes()))
        .and_then(Address::parse)?;
    let path = PathBuf::from(std::str::from_utf8(address.path()).ok()?);
    of_supervisor(supervisor_of(&path)?)
}

/// "/proc/123/fd/4" -> 123
fn supervisor_of(file: &Path) -> Option<u32> {
    file.components().nth(2)?.as_os_str().to_str()?.parse().ok()
}

fn open(files: &Files) -> Result<Run, String> {
    let failed = |what: &dyn std::fmt::Display| format!("can't reach the run: {what}");
    let checked = |file: io::Result<File>, bytes: usize| {
        let file = file.map_err(|e| failed(&e))?;
        let len = file.metadata().map_err(|e| failed(&e))?.len();
        Ok::<_, String>((len == bytes as u64).then_some(file))
    };
    let control = checked(File::open(&files.control), Control::BYTES)?;
    let orders = File::options().read(true).write(true).open(&files.orders);
    let orders = checked(orders, Orders::BYTES)?;
    let mapped = control.zip(orders).and_then(|(c, o)| map(&c, &o));
    match mapped.filter(|(c, o)| c.is_valid() && o.is_valid()) {
        Some((control, orders)) => Ok(Run {
            supervisor: files.supervisor,
            control,
            orders,
        }),
        _ => Err("the run was started by another version of hugeswap: use that one".to_owned()),
    }
}

#[allow(unsafe_code)]
fn map(control: &File, orders: &File) -> Option<(&'static Control, &'static Orders)> {
    // SAFETY: they have these sizes, and only hugeswap's processes have them, and write to them as we do.
    unsafe {
        Some((
            Control::map(control.as_raw_fd()).ok()?,
            Orders::map(orders.as_raw_fd()).ok()?,
        ))
    }
}
