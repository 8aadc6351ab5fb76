//! Time of the allocator's common cases: slots are taken and given back, by the engine's calls.

use criterion::{criterion_group, criterion_main, Criterion};
use hugeswap_mm::{DeviceId, Extents};
use hugeswap_swapfile::{Segment, SwapSpace};
use std::hint::black_box;
use std::time::Duration;

fn bench(c: &mut Criterion) {
    let space = match SwapSpace::new(&[2048]) {
        Ok(space) => space,
        Err(err) => panic!("{err}"),
    };
    let device = DeviceId::FIRST;
    space.online(Segment {
        device,
        start: 0,
        end: 2048 * 512,
    });
    let (mut keep, mut out) = (Extents::new(), Extents::new());
    // A neighbour that stays, so that the cluster is neither empty nor full.
    assert!(space.alloc_on(device, 1, &mut keep));
    let mut group = c.benchmark_group("alloc+free");
    for nr in [1, 16, 100, 511, 512] {
        group.bench_function(format!("{nr} slots"), |b| {
            b.iter(|| {
                space.alloc_on(device, nr, &mut out);
                for extent in black_box(&*out).iter() {
                    let _ = space.free(extent.entry, extent.nr.into());
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = bench
}
criterion_main!(benches);
