//! Swap devices with faults, where the run was started with some: a test facility, see
//! docs/testing.md.

use crate::control::Faults;
use crate::device::faulty::{FaultyDevice, Plan, ShortTransfers};
use crate::device::transfer::Inject;
use crate::device::{Device, IoError};
use std::sync::Arc;

/// The device itself where no fault was asked for.
pub(super) fn around<D: Device + 'static>(device: D, f: &Faults) -> Box<dyn Device> {
    let requests = Faults {
        short_every: 0,
        seed: 0,
        ..*f
    };
    if requests == Faults::default() {
        return Box::new(device);
    }
    let nth = |n: u64| {
        if n == 0 {
            vec![]
        } else {
            vec![(n, IoError::Io)]
        }
    };
    let plan = Plan {
        failing_reads: nth(f.read_nth),
        failing_writes: nth(f.write_nth),
        read_every: f.read_every,
        write_every: f.write_every,
        bad_page_every: f.bad_page_every,
        bad_ranges: Vec::new(),
        full_at: f.full_at_plus_1.checked_sub(1),
        hold: f.hold as usize,
        shuffle: (f.reorder != 0).then_some(f.seed),
    };
    Box::new(FaultyDevice::new(device, plan))
}

/// Short transfers, for a device that makes system calls.
pub(super) fn below(f: &Faults) -> Option<Arc<dyn Inject>> {
    (f.short_every != 0)
        .then(|| Arc::new(ShortTransfers::new(f.seed, f.short_every)) as Arc<dyn Inject>)
}
