//! A ring of perf's with anything in it, and an event's layout that says anything: what is found is
//! found without a failure, and the tail never goes back or beyond the head.
#![no_main]

use hugeswap_promote::records::{walk, Bytes, Record};
use hugeswap_promote::trace::points::Point;
use libfuzzer_sys::fuzz_target;

struct Ring<'a>(&'a [u8]);

impl Bytes for Ring<'_> {
    fn copy(&self, from: u64, to: &mut [u8]) {
        for (at, byte) in to.iter_mut().enumerate() {
            *byte = self.0[(from as usize).wrapping_add(at) % self.0.len()];
        }
    }
}

fuzz_target!(|input: (u64, u16, String, Vec<u8>)| {
    let (tail, length, layout, ring) = input;
    if ring.is_empty() {
        return;
    }
    let head = tail.saturating_add(u64::from(length));
    let point = Point::of_reads(&layout).ok();
    let mut most = u64::from(length) / 8;
    let end = walk(&Ring(&ring), tail, head, &mut Vec::new(), |record| {
        most = most.checked_sub(1).expect("a record has eight bytes at least");
        if let (Some(point), Record::Sample { pid, raw, .. }) = (point, record) {
            let _ = point.event(pid, raw);
        }
    });
    assert_eq!(end, head);
});
