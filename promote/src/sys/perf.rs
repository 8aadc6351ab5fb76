//! Perf events: tracepoints that are sampled into rings.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{check, owned};

/// `struct perf_event_attr`, as far as its fifth version.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_SAMPLE_RAW: u64 = 1 << 10;
/// Not with PERF_SAMPLE_PERIOD: with it every hit would become a record,
/// whatever the period.
const SAMPLE: u64 = PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_RAW;
const PERF_ATTR_USE_CLOCKID: u64 = 1 << 25;
const PERF_ATTR_WATERMARK: u64 = 1 << 14;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
const PERF_EVENT_IOC_SET_FILTER: libc::c_ulong = 0x4008_2406;

pub enum Perf {
    /// Counts nothing; carries the ring, which is woken when a quarter of its
    /// `bytes` is full.
    Ring { bytes: u32 },
    /// Counts a tracepoint.
    Count { id: u64 },
    /// One of `period` hits of a tracepoint becomes a record.
    Sample { id: u64, period: u64 },
}

/// One event on one CPU, for all processes.
pub fn perf_event(what: Perf, cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = PerfEventAttr {
        size: size_of::<PerfEventAttr>() as u32,
        clockid: libc::CLOCK_MONOTONIC,
        ..PerfEventAttr::default()
    };
    match what {
        Perf::Ring { bytes } => {
            attr.kind = PERF_TYPE_SOFTWARE;
            attr.config = PERF_COUNT_SW_DUMMY;
            attr.sample_type = SAMPLE;
            attr.flags = PERF_ATTR_WATERMARK | PERF_ATTR_USE_CLOCKID;
            attr.wakeup_watermark = bytes / 4;
        }
        Perf::Count { id } => {
            attr.kind = PERF_TYPE_TRACEPOINT;
            attr.config = id;
        }
        Perf::Sample { id, period } => {
            attr.kind = PERF_TYPE_TRACEPOINT;
            attr.config = id;
            attr.sample_period = period;
            attr.sample_type = SAMPLE;
            attr.flags = PERF_ATTR_WATERMARK | PERF_ATTR_USE_CLOCKID;
            attr.wakeup_watermark = u32::MAX;
        }
    }
    // SAFETY: the attributes are a whole structure of the size that they say.
    unsafe {
        owned(libc::syscall(
            libc::SYS_perf_event_open,
            &attr,
            -1,
            cpu as libc::c_int,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        ))
    }
}

/// Records of `event` go to the ring of `to`.
pub fn perf_redirect(event: BorrowedFd, to: BorrowedFd) -> io::Result<()> {
    // SAFETY: the request takes a descriptor.
    let ret = unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_OUTPUT, to.as_raw_fd()) };
    check(ret.into()).map(drop)
}

pub fn perf_filter(event: BorrowedFd, filter: &str) -> io::Result<()> {
    let filter = CString::new(filter)?;
    // SAFETY: the request takes a string that ends in 0.
    let ret = unsafe {
        libc::ioctl(
            event.as_raw_fd(),
            PERF_EVENT_IOC_SET_FILTER,
            filter.as_ptr(),
        )
    };
    check(ret.into()).map(drop)
}
