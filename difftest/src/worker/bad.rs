//! Addresses that must not be touched, and signals that nobody expects.
#![allow(unsafe_code)]

use super::arch::{
    difftest_probe_failed, difftest_probe_read, difftest_probe_write, go_on_at, instruction,
};
use super::shadow::PAGE;
use super::sys::{self, errno, fail, fail_with};
use super::world::World;
use crate::plan::Rng;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

/// What the last signal said.
static CODE: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's own structures.
    let (at, code, came) = unsafe {
        (
            (*info).si_addr() as usize,
            (*info).si_code,
            instruction(context),
        )
    };
    let probes: [unsafe extern "C" fn(usize) -> i32; 2] =
        [difftest_probe_read, difftest_probe_write];
    if signal == libc::SIGSEGV && probes.iter().any(|&p| p as *const () as usize == came) {
        CODE.store(code, Relaxed);
        ADDRESS.store(at, Relaxed);
        // SAFETY: it returns to the probe's caller, as the probe would have: nothing was done yet.
        unsafe { go_on_at(context, difftest_probe_failed as *const () as usize) };
        return;
    }
    fail_with(format_args!(
        "signal {signal}, code {code}, at {at:#x}, instruction {came:#x}"
    ));
}

pub fn catch_signals() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: all-zero is a valid structure to begin with; the handler is as it must be.
        unsafe {
            let mut a: libc::sigaction = core::mem::zeroed();
            a.sa_sigaction = on_signal as *const () as usize;
            a.sa_flags = libc::SA_SIGINFO;
            sys::must(
                libc::sigaction(signal, &a, core::ptr::null_mut()),
                "sigaction",
            );
        }
    }
}

/// None if the access works.
fn probe(at: usize, write: bool) -> Option<(i32, usize)> {
    // SAFETY: where the access is refused, the handler above goes on behind it.
    let failed = unsafe {
        if write {
            difftest_probe_write(at)
        } else {
            difftest_probe_read(at)
        }
    };
    (failed != 0).then(|| (CODE.load(Relaxed), ADDRESS.load(Relaxed)))
}

const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;

/// Pages that were just unmapped are not there, for whoever asks.
pub fn is_a_hole(at: usize, pages: usize) {
    for at in [at, at + (pages - 1) * PAGE, at + pages * PAGE - 1] {
        let found = probe(at, at % 2 == 0);
        if found != Some((SEGV_MAPERR, at)) {
            fail_with(format_args!("touching unmapped {at:#x} gives {found:?}"));
        }
    }
    let mut there = [0u8];
    // SAFETY: room for one page's answer.
    let r = unsafe { libc::mincore(at as *mut _, PAGE, there.as_mut_ptr()) };
    if r == 0 || errno() != libc::ENOMEM {
        fail("mincore knows of unmapped memory");
    }
    // SAFETY: the kernel is asked to read what is not there.
    let r = unsafe { libc::write(sys::FINDINGS.load(Relaxed), at as *const _, 1) };
    if r != -1 || errno() != libc::EFAULT {
        fail("write(2) can read unmapped memory");
    }
}

/// Pages without the right for it.
pub fn touch(w: &mut World, r: &mut Rng) {
    let Some(p) = w.part(r) else { return };
    for i in p.from..p.from + p.count.min(8) {
        let prot = i32::from(w.shadow().page_at(p.region, i).prot);
        let at = w.shadow().at(p.region) + i * PAGE + r.below(PAGE);
        for (write, bit) in [(false, libc::PROT_READ), (true, libc::PROT_WRITE)] {
            if prot & bit != 0 {
                continue;
            }
            let found = probe(at, write);
            if found != Some((SEGV_ACCERR, at)) {
                fail_with(format_args!(
                    "touching {at:#x} of protection {prot} gives {found:?}"
                ));
            }
        }
        w.check_page(p.region, i);
    }
}
