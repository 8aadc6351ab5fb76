//! Where threads run, and how urgently.

use super::syscall::{syscall, Errno};
use super::thread::{usage, Whose};

/// A set of CPUs, as many as the kernel can have.
#[derive(Clone)]
pub struct Cpus([u64; 128]);

impl Cpus {
    pub const ALL: Cpus = Cpus([u64::MAX; 128]);

    pub fn one(cpu: u32) -> Cpus {
        let mut mask = [0; 128];
        if let Some(word) = mask.get_mut(cpu as usize / 64) {
            *word = 1 << (cpu % 64);
        }
        Cpus(mask)
    }

    pub fn has(&self, cpu: u32) -> bool {
        let word = self.0.get(cpu as usize / 64);
        word.is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }

    /// Those of them that are not this one.
    pub fn without(&self, cpu: u32) -> Cpus {
        let one = Cpus::one(cpu);
        Cpus(core::array::from_fn(|i| self.0[i] & !one.0[i]))
    }

    /// The CPUs that the calling thread may run on.
    pub fn allowed() -> Result<Cpus, Errno> {
        let mut mask = [0u64; 128];
        // SAFETY: the mask outlives the call.
        unsafe {
            syscall(
                libc::SYS_sched_getaffinity,
                [0, size_of_val(&mask), mask.as_mut_ptr() as usize],
            )
        }
        .map(|_| Cpus(mask))
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    /// Lets a thread of this process run on these only.
    pub fn confine(&self, tid: u32) -> Result<(), Errno> {
        // SAFETY: the mask outlives the call.
        unsafe {
            syscall(
                libc::SYS_sched_setaffinity,
                [tid as usize, size_of_val(&self.0), self.0.as_ptr() as usize],
            )
        }
        .map(|_| ())
    }
}

/// How urgently a thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// SCHED_OTHER.
    Other,
    /// SCHED_IDLE: gives way to everybody at once. A CPU on which only such threads run counts as
    /// idle when the scheduler looks for one.
    Idle,
}

pub fn set_policy(tid: u32, policy: Policy) -> Result<(), Errno> {
    let policy = match policy {
        Policy::Other => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter outlives the call.
    unsafe {
        syscall(
            libc::SYS_sched_setscheduler,
            [tid as usize, policy as usize, &param as *const _ as usize],
        )
    }
    .map(|_| ())
}

/// The shortest slice that the kernel gives, in nanoseconds.
const SHORTEST_SLICE_NS: u64 = 100_000;

/// `struct sched_attr` as it was at first (SCHED_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// For SCHED_OTHER the slice, since Linux 6.12; 0 is the kernel's own.
    runtime: u64,
    deadline: u64,
    period: u64,
}

fn attr() -> Result<Attr, Errno> {
    let mut attr = Attr::default();
    // SAFETY: the structure has the size that is given, and outlives the call.
    unsafe {
        syscall(
            libc::SYS_sched_getattr,
            [0, &mut attr as *mut _ as usize, size_of::<Attr>(), 0],
        )
    }
    .map(|_| attr)
}

/// Has `start` start a thread. The kernel refuses that to a thread with deadlines, if the new one would have them, too.
pub fn start_ordinary<T>(start: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let started = start();
    let before = attr().ok();
    let deadlines = before.filter(|a| a.policy == libc::SCHED_DEADLINE as u32);
    let (Err(Errno::EAGAIN), Some(before)) = (&started, deadlines) else {
        return started;
    };
    let flags = before.flags | libc::SCHED_FLAG_RESET_ON_FORK as u64;
    if set_attr(&Attr { flags, ..before }).is_err() {
        return started;
    }
    let started = start();
    let _ = set_attr(&before);
    started
}

fn set_attr(attr: &Attr) -> Result<(), Errno> {
    let args = [0, attr as *const Attr as usize, 0];
    // SAFETY: the structure outlives the call.
    unsafe { syscall(libc::SYS_sched_setattr, args) }.map(|_| ())
}

/// Gives the calling thread, if it is an ordinary one, and those that it starts, the shortest slice there is: when
/// they wake they need not wait until the slice of whoever runs there is over (PREEMPT_SHORT, Linux 6.12; an
/// older kernel takes the call and changes nothing). Their share of processor time stays what it was.
pub fn shortest_slice() -> Result<(), Errno> {
    let mut attr = attr()?;
    if attr.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attr.runtime = SHORTEST_SLICE_NS;
    set_attr(&attr)
}

/// The calling thread's nice value.
pub fn nice() -> Result<i32, Errno> {
    attr().map(|a| a.nice)
}

/// Changes it. An error where it is lower than before and the right to that is missing.
pub fn set_nice(nice: i32) -> Result<(), Errno> {
    let nice = nice.clamp(-20, 19);
    // SAFETY: no pointers.
    unsafe {
        syscall(
            libc::SYS_setpriority,
            [libc::PRIO_PROCESS as usize, 0, nice as usize],
        )
    }
    .map(|_| ())
}

/// How often the calling thread had to leave its CPU to another thread while it would have run on. (Where the
/// host takes a virtual CPU away the kernel does not know of it.)
#[derive(Default)]
pub struct Switches(i64);

impl Switches {
    /// Whether it has since this was asked last.
    pub fn has_grown(&mut self) -> bool {
        let Ok(usage) = usage(Whose::Thread) else {
            return false;
        };
        let before = core::mem::replace(&mut self.0, usage.ru_nivcsw);
        usage.ru_nivcsw > before
    }
}

/// By so much below the program's is the nice value of threads for which many wait.
pub const NICER: i32 = 10;

/// Gives the calling thread's transfers the priority of an ordinary thread's, whatever its policy
/// becomes: the kernel puts those of SCHED_IDLE behind everybody's.
pub fn ordinary_io() -> Result<(), Errno> {
    const IOPRIO_WHO_PROCESS: usize = 1;
    const BEST_EFFORT: usize = 2 << 13;
    const NORMAL: usize = 4;
    // SAFETY: no pointers.
    unsafe {
        syscall(
            libc::SYS_ioprio_set,
            [IOPRIO_WHO_PROCESS, 0, BEST_EFFORT | NORMAL],
        )
    }
    .map(|_| ())
}

/// Whether a thread runs as ordinary ones do.
pub fn is_ordinary(tid: u32) -> bool {
    // SAFETY: no pointers.
    let policy = unsafe { syscall(libc::SYS_sched_getscheduler, [tid as usize]) };
    policy == Ok(libc::SCHED_OTHER as usize)
}

/// Whether this thread may give SCHED_IDLE up again: with CAP_SYS_NICE, or where the limit of
/// nice values allows the one it has.
pub fn may_leave_idle() -> bool {
    const CAP_SYS_NICE: u32 = 23;
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let mut data = [0u32; 6];
    // SAFETY: header and data have the sizes of this version and outlive the call.
    let r = unsafe {
        syscall(
            libc::SYS_capget,
            [header.as_ptr() as usize, data.as_mut_ptr() as usize],
        )
    };
    if r.is_ok() && data[0] & 1 << CAP_SYS_NICE != 0 {
        return true;
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure outlives the call.
    let got = unsafe {
        syscall(
            libc::SYS_prlimit64,
            [
                0,
                libc::RLIMIT_NICE as usize,
                0,
                &mut limit as *mut _ as usize,
            ],
        )
    };
    // The kernel counts nice values from 40 down to 1; 20 stands for nice 0.
    got.is_ok() && limit.rlim_cur >= 20
}

/// The CPU that a thread of this process last ran on. Opens a file of /proc: for now and then.
pub fn cpu_of(tid: u32) -> Option<u32> {
    let mut path = [0u8; 48];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        path[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(b"/proc/self/task/");
    let mut digits = [0u8; 10];
    let mut first = digits.len();
    let mut rest = tid;
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    put(&digits[first..]);
    put(b"/stat\0");
    let mut text = [0u8; 1024];
    // SAFETY: the path ends with a zero byte, the buffer outlives the call, and the descriptor is
    // ours and closed again.
    let n = unsafe {
        let fd = syscall(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                (libc::O_RDONLY | libc::O_CLOEXEC) as usize,
            ],
        )
        .ok()?;
        let n = syscall(libc::SYS_read, [fd, text.as_mut_ptr() as usize, text.len()]);
        let _ = syscall(libc::SYS_close, [fd]);
        n.ok()?
    };
    processor(text.get(..n)?)
}

/// Field 39 of a stat line; the name, field 2, may hold anything and ends at the last bracket.
fn processor(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|&b| b == b')')?;
    let field = stat.get(name_end + 2..)?.split(|&b| b == b' ').nth(36)?;
    field.iter().try_fold(0u32, |n, &b| {
        let digit = b.checked_sub(b'0').filter(|&d| d < 10)?;
        n.checked_mul(10)?.checked_add(u32::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_found_where_it_was_put() {
        let saved = Cpus::allowed().unwrap();
        assert!(saved.count() >= 1);
        let tid = crate::thread::gettid();
        let cpu = (0..8192)
            .find(|&c| Cpus::one(c).confine(tid).is_ok())
            .unwrap();
        assert_eq!(Cpus::allowed().unwrap().count(), 1);
        assert_eq!(cpu_of(tid), Some(cpu));
        saved.confine(tid).unwrap();
        assert_eq!(cpu_of(u32::MAX), None);
    }

    #[test]
    fn names_with_brackets_do_not_confuse_the_stat_line() {
        let rest: String = (3..=52).map(|i| format!(" {i}")).collect();
        let line = format!("17 (a) b (c)){rest}\n");
        assert_eq!(processor(line.as_bytes()), Some(39));
        assert_eq!(processor(b"17 (x) S 1 2"), None);
    }

    #[test]
    fn what_a_thread_runs_with_outlasts_other_policies() {
        std::thread::spawn(|| {
            let before = nice().unwrap();
            shortest_slice().unwrap();
            let may = set_nice(before - 3).is_ok();
            let now = nice().unwrap();
            assert_eq!(now, if may { before - 3 } else { before });
            // Before Linux 6.12 slices are the kernel's.
            if attr().unwrap().runtime == SHORTEST_SLICE_NS && may_leave_idle() {
                let tid = crate::thread::gettid();
                set_policy(tid, Policy::Idle).unwrap();
                set_policy(tid, Policy::Other).unwrap();
                assert_eq!(attr().unwrap().runtime, SHORTEST_SLICE_NS);
                assert_eq!(nice().unwrap(), now);
            }
            set_nice(before).unwrap();
            assert_eq!(nice().unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn policies_are_set_and_seen() {
        let tid = crate::thread::gettid();
        assert!(is_ordinary(tid));
        if may_leave_idle() {
            set_policy(tid, Policy::Idle).unwrap();
            assert!(!is_ordinary(tid));
            set_policy(tid, Policy::Other).unwrap();
            assert!(is_ordinary(tid));
        }
    }
}
