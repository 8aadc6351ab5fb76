//! Processor time that the policy takes for one record: `cargo run --release -p hugeswap-promote --example access`.

use hugeswap_promote::page::{FileId, Time};
use hugeswap_promote::policy::{Limits, Policy};
use hugeswap_promote::sys::cpu_nanos;

const RECORDS: u64 = 200_000;

fn main() {
    for (name, pages) in [
        ("4 KiB", 1),
        ("128 KiB", 32),
        ("1 MiB", 256),
        ("2 MiB", 512),
    ] {
        // A file of 4 GiB, of which much is hot after the first pass.
        let mut policy = Policy::new(Limits::default());
        let file = FileId { dev: 1, ino: 1 };
        let start = cpu_nanos();
        for record in 0..RECORDS {
            let first = record * 7919 * pages % (1 << 20);
            policy.access(file, first, first + pages - 1, Time(record * 100));
        }
        let each = (cpu_nanos() - start) as f64 / RECORDS as f64;
        println!("reads of {name}: {each:.0} ns a record");
    }
}
