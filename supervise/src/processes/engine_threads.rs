//! Threads of the engines among those of the programs.

use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::life::Id;
use crate::object::Object;

/// Pages by the number of the process, for whoever has to tell an engine's thread from a program's.
pub type Pages = Arc<Mutex<Vec<(Id, u32, Arc<Object>)>>>;

/// Whoever has panicked with it has left it whole.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether the thread of that number, here, is an engine's: what it does, no program does.
pub fn is_engine_thread(pages: &Pages, tid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else {
        return false;
    };
    let last = |name: &str| -> Option<u32> {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_ascii_whitespace().last()?.parse().ok()
    };
    // The second is its number in its own namespace, by which the engine knows it.
    let (Some(process), Some(own)) = (last("Tgid:"), last("NSpid:")) else {
        return false;
    };
    let is = |o: &Object| {
        let mut tids = o.page().engine_tids.iter();
        tids.any(|t| t.load(Acquire) == own)
    };
    let found = lock(pages)
        .iter()
        .any(|(_, pid, object)| *pid == process && is(object));
    found
}
