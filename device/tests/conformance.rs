//! Every swap device in the conformance suite, and the faults of the faulty ones.

mod support;

use std::path::Path;
use std::sync::Arc;

use hugeswap_device::faulty::{FaultyDevice, Plan, ShortTransfers};
use hugeswap_device::file::{FileDevice, Options, Via};
use hugeswap_device::ram::{OnDiscard, RamDevice};
use hugeswap_device::{Device, DeviceError, IoError, Op, Queue};
use support::conformance::{conformance, MAX};
use support::{expect, grown, once, write, Memory, MIB, PAGE};

const DISK: &str = "/var/tmp";
const TMPFS: &str = "/dev/shm";

fn file(dir: &str, change: impl Fn(&mut Options)) -> FileDevice {
    let mut options = Options::new(MAX);
    change(&mut options);
    FileDevice::open(Path::new(dir), &options).expect("a swap file")
}

fn said(device: &dyn Device, words: &[&str]) {
    let text = device.describe();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn file_through_io_uring() {
    said(
        &file(DISK, |o| o.via = Via::Uring),
        &[DISK, "O_DIRECT", "io_uring"],
    );
    conformance(&|| Box::new(file(DISK, |o| o.via = Via::Uring)));
}

#[test]
fn file_through_io_uring_in_pieces() {
    conformance(&|| Box::new(file(DISK, |o| (o.via, o.piece) = (Via::Uring, 512 << 10))));
}

#[test]
fn file_through_pread_and_pwrite() {
    said(
        &file(DISK, |o| o.via = Via::Sync),
        &["O_DIRECT", "pread/pwrite"],
    );
    conformance(&|| Box::new(file(DISK, |o| o.via = Via::Sync)));
}

#[test]
fn file_through_the_page_cache() {
    conformance(&|| Box::new(file(DISK, |o| o.buffered = true)));
}

#[test]
fn file_on_tmpfs() {
    said(&file(TMPFS, |_| {}), &["through the page cache"]);
    conformance(&|| Box::new(file(TMPFS, |o| o.via = Via::Uring)));
    conformance(&|| Box::new(file(TMPFS, |o| o.via = Via::Sync)));
}

#[test]
fn ram() {
    conformance(&|| Box::new(RamDevice::new(MAX).expect("memory")));
}

#[test]
fn ram_from_outside() {
    use std::os::fd::AsFd;
    let owner = || RamDevice::new(MAX).expect("memory");
    let reopen = |device: RamDevice, keep| {
        let fd = device.as_fd().try_clone_to_owned().expect("a descriptor");
        RamDevice::from_fd(fd.as_fd().try_clone_to_owned().expect("again"), MAX, keep)
            .expect("reopened")
    };
    conformance(&|| Box::new(reopen(owner(), OnDiscard::Keep)));
    conformance(&|| Box::new(reopen(owner(), OnDiscard::Free)));
}

#[test]
fn short_transfers_of_every_kind() {
    for via in [Via::Uring, Via::Sync] {
        for piece in [512 << 10, 2 << 20] {
            let seed = std::cell::Cell::new(0);
            conformance(&|| {
                seed.set(seed.get() + 1);
                Box::new(file(DISK, |options| {
                    (options.via, options.piece) = (via, piece);
                    options.inject = Some(Arc::new(ShortTransfers::new(seed.get(), 3)));
                }))
            });
        }
    }
}

#[test]
fn late_completions_in_another_order() {
    let plan = Plan {
        hold: 3,
        shuffle: Some(7),
        ..Plan::default()
    };
    conformance(&|| Box::new(FaultyDevice::new(file(DISK, |_| {}), plan.clone())));
    conformance(&|| {
        let ram = RamDevice::new(MAX).expect("memory");
        Box::new(FaultyDevice::new(ram, plan.clone()))
    });
    conformance(&|| {
        let short = file(TMPFS, |options| {
            options.inject = Some(Arc::new(ShortTransfers::new(11, 2)));
        });
        Box::new(FaultyDevice::new(short, plan.clone()))
    });
}

/// A queue is usable after errors; kept out of the suite because its devices don't fail.
#[test]
fn planned_errors_hit_their_requests_only() {
    let plan = Plan {
        failing_reads: vec![(2, IoError::Io)],
        failing_writes: vec![(1, IoError::NoSpace), (3, IoError::Io)],
        bad_ranges: vec![4 * MIB..4 * MIB + 4096, 6 * MIB..7 * MIB],
        full_at: Some(8 * MIB),
        ..Plan::default()
    };
    let device = FaultyDevice::new(file(DISK, |_| {}), plan);
    grown(&device, 8 * MIB);
    assert_eq!(device.grow(9 * MIB), Err(DeviceError::NoSpace));
    let mut queue = device.queue(2).expect("queue");
    let queue: &mut dyn Queue = &mut *queue;
    assert_eq!(write(queue, 0, 512, 1), Err(IoError::NoSpace));
    assert_eq!(write(queue, 0, 512, 2), Ok(()));
    assert_eq!(write(queue, 0, 512, 3), Err(IoError::Io));
    expect(queue, 0, 512, &[2]);
    let mut memory = Memory::new(PAGE);
    assert_eq!(
        once(queue, Op::Read, 0, &mut memory, PAGE, 0),
        Err(IoError::Io)
    );
    expect(queue, 0, 512, &[2]);
    assert_eq!(
        once(queue, Op::Read, 4 * MIB, &mut memory, PAGE, 0),
        Err(IoError::Io)
    );
    expect(queue, 1025, 1, &[0]);
    assert_eq!(device.counters().errors, 4);
}

#[test]
fn errors_of_the_kernel_have_meanings() {
    for via in [Via::Uring, Via::Sync] {
        let faults = ShortTransfers::new(0, u64::MAX)
            .with_errno(2, libc::EIO)
            .with_errno(3, libc::ENOSPC)
            .with_errno(5, libc::ENODEV)
            .with_errno(6, libc::EAGAIN);
        let faults = Arc::new(faults);
        let device = file(DISK, |options| {
            options.via = via;
            options.inject = Some(faults.clone());
        });
        grown(&device, 8 * MIB);
        let mut queue = device.queue(2).expect("queue");
        assert_eq!(write(&mut *queue, 0, 1, 1), Ok(()));
        assert_eq!(write(&mut *queue, 0, 1, 2), Err(IoError::Io));
        assert_eq!(write(&mut *queue, 0, 1, 2), Err(IoError::NoSpace));
        expect(&mut *queue, 0, 1, &[1]);
        assert_eq!(write(&mut *queue, 0, 1, 2), Err(IoError::Gone));
        assert_eq!(write(&mut *queue, 0, 1, 3), Ok(()), "EAGAIN passes");
        assert_eq!(device.counters().errors, 3);
        assert_eq!(device.counters().retries, 1);
    }
}
