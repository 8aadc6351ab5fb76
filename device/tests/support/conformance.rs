//! The conformance suite: the promises every swap device keeps.

use hugeswap_device::{Device, DeviceError, IoError, Op, QueueFull, Request, Until};

use super::{expect, fill, grown, holds, once, write, Memory, Random, MIB, PAGE};

/// What the devices under test may grow to.
pub const MAX: u64 = 96 * MIB;

/// Checks a kind of device; `make` gives a fresh one of at most [`MAX`] bytes.
pub fn conformance(make: &dyn Fn() -> Box<dyn Device>) {
    sizes(&*make());
    at_once(&*make());
    shadow(&*make(), 1, 300);
    shadow(&*make(), 16, 1500);
    full_queue(&*make());
    growing(&*make());
    discarding(&*make());
    edges(&*make());
    threads(&*make());
    polling(&*make());
    dropping(&*make());
}

fn sizes(device: &dyn Device) {
    grown(device, 16 * MIB);
    let mut queue = device.queue(4).expect("queue");
    let mut version = 0;
    for pages in [
        1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 127, 128, 129, 256, 300, 511, 512,
    ] {
        for page in [0, 1, 511, 512, 513] {
            version += 1;
            // Neighbours must stay as they are.
            write(&mut *queue, page + pages as u64, 1, version).expect("write");
            version += 1;
            write(&mut *queue, page, pages, version).expect("write");
            expect(&mut *queue, page, pages, &[version]);
            expect(&mut *queue, page + pages as u64, 1, &[version - 1]);
        }
    }
    let mut memory = Memory::new(512 * PAGE);
    for target in (0..512 * PAGE).step_by(100_000).chain([512 * PAGE - 1]) {
        memory.bytes().fill(0);
        once(
            &mut *queue,
            Op::Read,
            513 * 4096,
            &mut memory,
            512 * PAGE,
            target,
        )
        .expect("read");
        let mut pages = memory.bytes().chunks_exact(PAGE).zip(513..);
        assert!(pages.all(|(bytes, page)| holds(bytes, page, version)));
    }
}

/// Reads that the caller waits for, where a device has them, while others are in flight.
fn at_once(device: &dyn Device) {
    grown(device, MIB);
    let mut queue = device.queue(4).expect("queue");
    for page in 0..16 {
        write(&mut *queue, page, 1, page + 1).expect("write");
    }
    let (mut far, mut memory) = (Memory::new(16 * PAGE), Memory::new(PAGE));
    let request = |op, page: u64, memory: &Memory, pages: usize| Request {
        op,
        offset: page * PAGE as u64,
        addr: memory.addr(),
        len: pages * PAGE,
        tag: 7,
        target: 0,
    };
    let all = request(Op::Read, 0, &far, 16);
    // SAFETY: the memory lives until the request is reaped.
    unsafe { queue.submit(all) }.expect("room for a request");
    for page in 0..16 {
        memory.bytes().fill(0);
        // SAFETY: nobody else uses the memory.
        match unsafe { queue.read_now(&request(Op::Read, page, &memory, 1)) } {
            Some(read) => {
                read.expect("read");
                assert!(holds(memory.bytes(), page, page + 1), "{page}");
            }
            None => break,
        }
    }
    // SAFETY: as above.
    let beyond = unsafe { queue.read_now(&request(Op::Read, 1 << 20, &memory, 1)) };
    assert!(beyond.is_none_or(|read| read.is_err()));
    // SAFETY: as above.
    let written = unsafe { queue.read_now(&request(Op::Write, 0, &memory, 1)) };
    assert_eq!(written, None);
    while queue.in_flight() > 0 {
        queue.reap(Until::OneEnded, &mut |c| assert_eq!(c.result, Ok(())));
    }
    for (bytes, page) in far.bytes().chunks_exact(PAGE).zip(0..) {
        assert!(holds(bytes, page, page + 1));
    }
}

/// Random requests, many in flight, against a model of the device: the version of each page.
fn shadow(device: &dyn Device, depth: u32, requests: u64) {
    const PAGES: u64 = 4096;
    struct Flight {
        memory: Memory,
        op: Op,
        page: u64,
        pages: u64,
        version: u64,
        busy: bool,
    }
    grown(device, PAGES * PAGE as u64);
    let mut queue = device.queue(depth).expect("queue");
    // Versions a page may hold, and whether a request is on it.
    let mut model: Vec<(Vec<u64>, bool)> = vec![(vec![0], false); PAGES as usize];
    let mut flights: Vec<Flight> = (0..depth)
        .map(|_| Flight {
            memory: Memory::new(512 * PAGE),
            op: Op::Read,
            page: 0,
            pages: 0,
            version: 0,
            busy: false,
        })
        .collect();
    let mut random = Random(u64::from(depth));
    let mut left = requests;
    while left > 0 || queue.in_flight() > 0 {
        let free = flights.iter().position(|flight| !flight.busy);
        let mut submitted = false;
        if let (Some(tag), true) = (free, left > 0) {
            let pages = match random.below(4) {
                0 => 512,
                1 => 1,
                _ => 1 + random.below(64),
            };
            let page = random.below(PAGES - pages + 1);
            let range = page as usize..(page + pages) as usize;
            if !model[range.clone()].iter().any(|(_, busy)| *busy) {
                left -= 1;
                submitted = true;
                if random.below(8) == 0 {
                    device.discard(page * 4096, pages * 4096).expect("discard");
                    for (versions, _) in &mut model[range] {
                        versions.push(0);
                    }
                    continue;
                }
                model[range].iter_mut().for_each(|(_, busy)| *busy = true);
                let flight = &mut flights[tag];
                flight.op = if random.below(2) == 0 {
                    Op::Read
                } else {
                    Op::Write
                };
                (flight.page, flight.pages, flight.version) = (page, pages, requests - left);
                flight.busy = true;
                let len = pages as usize * PAGE;
                match flight.op {
                    Op::Write => fill(&mut flight.memory.bytes()[..len], page, flight.version),
                    Op::Read => flight.memory.bytes()[..len].fill(0xee),
                }
                let req = Request {
                    op: flight.op,
                    offset: page * 4096,
                    addr: flight.memory.addr(),
                    len,
                    tag: tag as u64,
                    target: random.below(len as u64) as usize,
                };
                // SAFETY: the flight's memory is untouched until it is reaped.
                unsafe { queue.submit(req) }.expect("room for every flight");
                if random.below(2) == 0 {
                    queue.kick();
                }
            }
        }
        if submitted && random.below(3) != 0 {
            continue;
        }
        let until = match free.is_none() || !submitted {
            true => Until::OneEnded,
            false => Until::Now,
        };
        queue.reap(until, &mut |completion| {
            let flight = &mut flights[completion.tag as usize];
            assert!(flight.busy, "completed twice");
            assert_eq!(completion.result, Ok(()));
            flight.busy = false;
            let bytes = flight.memory.bytes().chunks_exact(PAGE);
            for (page, bytes) in (flight.page..flight.page + flight.pages).zip(bytes) {
                let (versions, busy) = &mut model[page as usize];
                *busy = false;
                match flight.op {
                    Op::Write => *versions = vec![flight.version],
                    Op::Read => assert!(
                        versions.iter().any(|v| holds(bytes, page, *v)),
                        "page {page} is none of {versions:?}"
                    ),
                }
            }
        });
    }
}

fn full_queue(device: &dyn Device) {
    grown(device, 4 * MIB);
    for depth in [1, 3, 32] {
        let mut queue = device.queue(depth).expect("queue");
        let memory = Memory::new(depth as usize * PAGE);
        for round in 0..3 {
            let mut seen = vec![0; depth as usize];
            for i in 0..=depth as usize {
                let req = Request {
                    op: Op::Write,
                    offset: (i * PAGE) as u64,
                    addr: memory.addr().wrapping_add(i % depth as usize * PAGE),
                    len: PAGE,
                    tag: i as u64,
                    target: 0,
                };
                // SAFETY: the memory outlives the reaping below.
                let taken = unsafe { queue.submit(req) };
                let full = i == depth as usize;
                assert_eq!(
                    taken,
                    if full { Err(QueueFull) } else { Ok(()) },
                    "round {round}"
                );
            }
            assert_eq!(queue.in_flight(), depth);
            while queue.in_flight() > 0 {
                let before = queue.in_flight();
                let mut count = 0;
                queue.reap(Until::OneEnded, &mut |completion| {
                    seen[completion.tag as usize] += 1;
                    count += 1;
                });
                assert!(count > 0, "waited for nothing");
                assert_eq!(queue.in_flight(), before - count);
            }
            assert!(seen.iter().all(|n| *n == 1));
            // With nothing in flight a wait returns.
            queue.reap(Until::OneEnded, &mut |_| panic!("nothing was in flight"));
        }
    }
}

fn growing(device: &dyn Device) {
    let max = device.max_bytes();
    assert_eq!(max, MAX);
    grown(device, 1);
    let mut queue = device.queue(4).expect("queue");
    write(&mut *queue, 0, 1, 5).expect("write");
    grown(device, 3 * MIB + 4096);
    let have = device.capacity();
    device.grow(MIB).expect("growing to less is nothing");
    assert_eq!(device.capacity(), have);
    assert_eq!(
        device.grow(max + 1),
        Err(DeviceError::LimitReached { limit: max })
    );
    assert_eq!(
        device.grow(u64::MAX),
        Err(DeviceError::LimitReached { limit: max })
    );
    grown(device, max);
    assert_eq!(device.capacity(), max);
    // Queues made before see the growth; what was written is still there.
    write(&mut *queue, max / 4096 - 512, 512, 6).expect("write");
    expect(&mut *queue, max / 4096 - 512, 512, &[6]);
    expect(&mut *queue, 0, 1, &[5]);
}

fn discarding(device: &dyn Device) {
    grown(device, 16 * MIB);
    let mut queue = device.queue(4).expect("queue");
    for block in 0..4 {
        write(&mut *queue, block * 512, 512, 7).expect("write");
    }
    device.discard(512 * 4096, 512 * 4096).expect("a block");
    device.discard(3 * 4096, 4096).expect("a page");
    device.discard(0, 0).expect("nothing");
    expect(&mut *queue, 512, 512, &[0, 7]);
    expect(&mut *queue, 3, 1, &[0, 7]);
    expect(&mut *queue, 0, 3, &[7]);
    expect(&mut *queue, 4, 508, &[7]);
    expect(&mut *queue, 1024, 512, &[7]);
    write(&mut *queue, 600, 100, 8).expect("write into the hole");
    expect(&mut *queue, 600, 100, &[8]);
    expect(&mut *queue, 700, 100, &[0, 7]);
    assert_eq!(device.discard(100, 4096), Err(DeviceError::OutOfRange));
    assert_eq!(device.discard(0, 100), Err(DeviceError::OutOfRange));
    assert_eq!(
        device.discard(device.capacity(), 4096),
        Err(DeviceError::OutOfRange)
    );
    assert_eq!(
        device.discard(u64::MAX - 4095, 4096),
        Err(DeviceError::OutOfRange)
    );
}

fn edges(device: &dyn Device) {
    grown(device, 4 * MIB);
    let mut queue = device.queue(4).expect("queue");
    let end = device.capacity();
    let mut memory = Memory::new(1024 * PAGE);
    write(&mut *queue, end / 4096 - 1, 1, 9).expect("the last page");
    expect(&mut *queue, end / 4096 - 1, 1, &[9]);
    for op in [Op::Read, Op::Write] {
        for (offset, len, error) in [
            (end, PAGE, IoError::OutOfRange),
            (end - 4096, 2 * PAGE, IoError::OutOfRange),
            (1 << 50, PAGE, IoError::OutOfRange),
            (u64::MAX - 4095, PAGE, IoError::OutOfRange),
            (100, PAGE, IoError::Invalid),
            (512, PAGE, IoError::Invalid),
            (0, 512, IoError::Invalid),
            (0, 0, IoError::Invalid),
            (0, 513 * PAGE, IoError::Invalid),
        ] {
            assert_eq!(
                once(&mut *queue, op, offset, &mut memory, len, 0),
                Err(error)
            );
        }
    }
    let crooked = memory.addr().wrapping_add(8);
    let req = Request {
        op: Op::Read,
        offset: 0,
        addr: crooked,
        len: PAGE,
        tag: 1,
        target: 0,
    };
    // SAFETY: the memory is longer than the request and outlives it.
    unsafe { queue.submit(req) }.expect("submit");
    queue.reap(Until::OneEnded, &mut |completion| {
        assert_eq!(completion.result, Err(IoError::Invalid))
    });
    expect(&mut *queue, end / 4096 - 1, 1, &[9]);
    // A target outside the request is a bad hint, not an error.
    once(&mut *queue, Op::Read, 0, &mut memory, PAGE, usize::MAX).expect("read");
}

fn threads(device: &dyn Device) {
    grown(device, 32 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            // Made here, used there.
            let mut queue = device.queue(8).expect("queue");
            scope.spawn(move || {
                let first = thread * 2048;
                let mut random = Random(thread);
                let mut versions = [0; 4];
                for version in 1..40 {
                    let block = random.below(4);
                    versions[block as usize] = version;
                    write(&mut *queue, first + block * 512, 512, version).expect("write");
                    let block = random.below(4);
                    let page = first + block * 512;
                    expect(&mut *queue, page, 512, &[versions[block as usize]]);
                }
            });
        }
        for step in 1..16 {
            device
                .grow(32 * MIB + step * 4 * MIB)
                .expect("grow meanwhile");
        }
    });
}

fn readable(fd: i32, timeout: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure, and it outlives the call.
    unsafe { libc::poll(&mut poll, 1, timeout) == 1 }
}

fn polling(device: &dyn Device) {
    grown(device, 16 * MIB);
    let mut queue = device.queue(8).expect("queue");
    for round in 0..20 {
        let memory = Memory::new(8 * 64 * PAGE);
        for i in 0..8 {
            let addr = memory.addr().wrapping_add(i as usize * 64 * PAGE);
            let offset = i * 64 * 4096;
            let op = if round % 2 == 0 { Op::Write } else { Op::Read };
            let req = Request {
                op,
                offset,
                addr,
                len: 64 * PAGE,
                tag: i,
                target: 0,
            };
            // SAFETY: the memory outlives the loop below.
            unsafe { queue.submit(req) }.expect("submit");
        }
        queue.kick();
        let mut wakes = 0;
        loop {
            queue.reap(Until::Now, &mut |completion| {
                assert_eq!(completion.result, Ok(()))
            });
            if queue.in_flight() == 0 {
                break;
            }
            let fd = queue
                .poll_fd()
                .expect("what completes inline is reaped at once");
            assert!(
                readable(fd, 10_000),
                "asleep with {} in flight",
                queue.in_flight()
            );
            wakes += 1;
            assert!(wakes < 100_000);
        }
    }
}

fn dropping(device: &dyn Device) {
    grown(device, 16 * MIB);
    let mut memory = Memory::new(512 * PAGE);
    for _ in 0..20 {
        let mut queue = device.queue(4).expect("queue");
        for tag in 0..4 {
            let addr = memory.addr().wrapping_add(tag as usize * 128 * PAGE);
            let req = Request {
                op: Op::Read,
                offset: tag << 21,
                addr,
                len: 128 * PAGE,
                tag,
                target: 0,
            };
            // SAFETY: dropping the queue waits for its requests.
            unsafe { queue.submit(req) }.expect("submit");
        }
        queue.kick();
        drop(queue);
        memory.bytes().fill(0x77);
        assert!(
            memory.bytes().iter().all(|byte| *byte == 0x77),
            "written after the drop"
        );
    }
}
