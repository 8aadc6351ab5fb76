//! Throughput and latency of a swap device for different piece sizes and queue depths.
//!
//!     cargo run --release -p hugeswap-device --example throughput -- [DIRECTORY|ram] [MIB] [SECONDS] [ROUNDS]

use std::alloc::{alloc_zeroed, Layout};
use std::path::Path;
use std::time::{Duration, Instant};

use hugeswap_device::file::{FileDevice, Options, Via};
use hugeswap_device::ram::RamDevice;
use hugeswap_device::{Device, Op, Request, Until};

const PMD: usize = 2 << 20;

/// Huge pages, all touched: what staging memory looks like.
fn memory(folios: usize) -> *mut u8 {
    let layout = Layout::from_size_align(folios * PMD, PMD).expect("a sane size");
    // SAFETY: the size is not zero; the range is ours. Never freed: the program is short.
    unsafe {
        let addr = alloc_zeroed(layout);
        libc::madvise(addr.cast(), folios * PMD, libc::MADV_HUGEPAGE);
        addr.write_bytes(0x5a, folios * PMD);
        addr
    }
}

fn measure(device: &dyn Device, op: Op, len: usize, depth: u32, random: bool, time: Duration) {
    let bytes = device.capacity();
    let units = bytes / len as u64;
    let mut queue = device.queue(depth).expect("queue");
    let memory = memory(depth as usize);
    let mut started = vec![Instant::now(); depth as usize];
    let mut latencies = Vec::with_capacity(1 << 20);
    let mut next = 0_u64;
    let mut free: Vec<usize> = (0..depth as usize).collect();
    let begin = Instant::now();
    while begin.elapsed() < time || queue.in_flight() > 0 {
        while begin.elapsed() < time {
            let Some(tag) = free.pop() else { break };
            next += 1;
            let unit = if random {
                next.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8
            } else {
                next
            };
            started[tag] = Instant::now();
            let req = Request {
                op,
                offset: unit % units * len as u64,
                addr: memory.wrapping_add(tag * PMD),
                len,
                tag: tag as u64,
                target: 0,
            };
            // SAFETY: the memory is never freed and each part has one request.
            unsafe { queue.submit(req) }.expect("room");
        }
        queue.reap(Until::OneEnded, &mut |completion| {
            completion.result.expect("transferred");
            latencies.push(started[completion.tag as usize].elapsed());
            free.push(completion.tag as usize);
        });
    }
    let seconds = begin.elapsed().as_secs_f64();
    let done = latencies.len();
    latencies.sort_unstable();
    let at = |part: f64| latencies[((done - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    println!(
        "{op:>5?} {:>5}K depth {depth:>2} {}: {:>6.2} GB/s  {:>7.0}/s  p50 {:>6.0} us  p99 {:>6.0} us",
        len >> 10,
        if random { "rand" } else { "seq " },
        (done * len) as f64 / seconds / 1e9,
        done as f64 / seconds,
        at(0.5),
        at(0.99),
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let place = args.get(1).map_or("/var/tmp", String::as_str);
    let mib = args.get(2).map_or(1024, |text| text.parse().expect("MiB"));
    let time = args
        .get(3)
        .map_or(1.0, |text| text.parse().expect("seconds"));
    let time = Duration::from_secs_f64(time);
    let rounds = args.get(4).map_or(3, |text| text.parse().expect("rounds"));
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    if place == "ram" {
        devices.push(Box::new(RamDevice::new(mib << 20).expect("memory")));
    } else {
        for (via, piece) in [
            (Via::Uring, 2 << 20),
            (Via::Uring, 1 << 20),
            (Via::Uring, 512 << 10),
            (Via::Sync, 2 << 20),
        ] {
            let mut options = Options::new(mib << 20);
            (options.via, options.piece) = (via, piece);
            let device = FileDevice::open(Path::new(place), &options).expect("open");
            println!(
                "device {}: {}, pieces of {}K",
                devices.len(),
                device.describe(),
                piece >> 10
            );
            devices.push(Box::new(device));
        }
    }
    for device in &devices {
        let begin = Instant::now();
        device.grow(mib << 20).expect("grow");
        println!("grow: {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
        // Fresh space is slower; what matters is what comes after.
        measure(&**device, Op::Write, PMD, 1, false, time);
    }
    // The devices in turn, so that what else the machine does hits all of them alike.
    for round in 0..rounds {
        println!("round {round}");
        for (op, len, depths) in [
            (Op::Write, PMD, &[1, 2, 4, 8][..]),
            (Op::Read, PMD, &[1, 2, 4, 8]),
            (Op::Read, 4 << 10, &[1]),
            (Op::Read, 16 << 10, &[1]),
            (Op::Read, 64 << 10, &[1]),
        ] {
            for depth in depths {
                for (number, device) in devices.iter().enumerate() {
                    let inline = device.queue(1).expect("queue").poll_fd().is_none();
                    if !inline || *depth == 1 {
                        print!("device {number} ");
                        measure(&**device, op, len, *depth, true, time);
                    }
                }
            }
        }
    }
}
