//! Time of the allocator's common case, and how it scales over two threads.

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use hugeswap_mm::{Extents, Order};
use hugeswap_swapfile::{DeviceConfig, SwapConfig, SwapSpace};
use std::hint::black_box;
use std::time::{Duration, Instant};

fn space() -> SwapSpace {
    let space = SwapSpace::new(SwapConfig::default());
    space.add_device(&DeviceConfig::new(1 << 20)).unwrap();
    space
}

fn pair(space: &SwapSpace, order: Order, out: &mut Extents) {
    space.alloc(order, out).unwrap();
    for extent in black_box(&*out).iter() {
        space.free(extent.entry, extent.nr.into()).unwrap();
    }
}

fn pin(cpu: usize) {
    // SAFETY: the set lives on the stack for the call; 0 is the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set);
    }
}

/// Wall time of `rounds` pairs on each of `threads` threads, side by side.
fn together(space: &SwapSpace, order: Order, threads: usize, rounds: u64) -> Duration {
    let barrier = std::sync::Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|cpu| {
                let barrier = &barrier;
                scope.spawn(move || {
                    pin(cpu);
                    let mut out = Extents::new();
                    pair(space, order, &mut out);
                    barrier.wait();
                    let start = Instant::now();
                    for _ in 0..rounds {
                        pair(space, order, &mut out);
                    }
                    start.elapsed()
                })
            })
            .collect();
        barrier.wait();
        workers
            .into_iter()
            .map(|w| w.join().unwrap())
            .max()
            .unwrap()
    })
}

fn bench(c: &mut Criterion) {
    let space = space();
    let mut out = Extents::new();
    let mut group = c.benchmark_group("alloc+free");
    for order in [0, 4, 9].map(|o| Order::new(o).unwrap()) {
        // Neighbours that stay, so that the cluster is neither empty nor full.
        let mut keep = Extents::new();
        if order < Order::PMD {
            space.alloc(order, &mut keep).unwrap();
        }
        group.bench_function(format!("order {}", order.get()), |b| {
            b.iter(|| pair(&space, order, &mut out));
        });
    }
    group.finish();
    let mut group = c.benchmark_group("threads");
    for order in [0, 9].map(|o| Order::new(o).unwrap()) {
        for threads in [1, 2] {
            group.throughput(Throughput::Elements(threads as u64));
            group.bench_function(format!("order {} by {threads}", order.get()), |b| {
                b.iter_custom(|rounds| together(&space, order, threads, rounds));
            });
        }
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
