//! On which processor this thread runs.
#![allow(unsafe_code)]

use std::io;

use super::check;

/// While it lives this thread stays on its processor.
pub struct Pinned {
    pub cpu: u32,
    before: libc::cpu_set_t,
}

impl Pinned {
    pub fn here() -> io::Result<Pinned> {
        // SAFETY: sets are plain bits; the kernel fills `before`, and CPU_SET checks its bound.
        unsafe {
            let mut before: libc::cpu_set_t = std::mem::zeroed();
            let mut only: libc::cpu_set_t = std::mem::zeroed();
            let size = size_of::<libc::cpu_set_t>();
            check(libc::sched_getaffinity(0, size, &mut before).into())?;
            let cpu = check(libc::sched_getcpu().into())? as u32;
            libc::CPU_SET(cpu as usize, &mut only);
            check(libc::sched_setaffinity(0, size, &only).into())?;
            Ok(Pinned { cpu, before })
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the set that the kernel gave.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.before) };
    }
}
