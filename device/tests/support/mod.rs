//! What the device tests share: page-aligned memory, patterns, one request at a time.
#![allow(dead_code)]

pub mod conformance;

use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::sync::OnceLock;

use hugeswap_device::{Completion, Device, IoError, Op, Queue, Request, Until};

pub const PAGE: usize = 4096;
pub const MIB: u64 = 1 << 20;

/// Page-aligned memory.
pub struct Memory {
    addr: *mut u8,
    len: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Memory {}

impl Memory {
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len, PAGE).expect("a sane size");
        // SAFETY: the size is not zero.
        let addr = unsafe { alloc_zeroed(layout) };
        assert!(!addr.is_null());
        Self { addr, len }
    }

    pub fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// The contents; not to be called while a request on the memory is in flight.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: ours alone, initialised, and `len` long.
        unsafe { std::slice::from_raw_parts_mut(self.addr, self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let layout = Layout::from_size_align(self.len, PAGE).expect("a sane size");
        // SAFETY: allocated with the same layout.
        unsafe { dealloc(self.addr, layout) };
    }
}

/// Numbers without visible pattern.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }
}

/// Noise that pages are cut from: copying and comparing are fast also without optimisation.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut random = Random(1);
        (0..8192)
            .flat_map(|_| random.below(u64::MAX).to_ne_bytes())
            .collect()
    })
}

/// What a page holds in a version: which page it is, which version, and noise that differs too.
fn parts(page: u64, version: u64) -> ([u8; 16], &'static [u8]) {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&page.to_ne_bytes());
    head[8..].copy_from_slice(&version.to_ne_bytes());
    let from = Random(page << 32 ^ version).below(8192 * 8 - PAGE as u64) as usize;
    (head, &noise()[from..from + PAGE - head.len()])
}

/// Fills whole pages with what the pages from `first_page` hold in `version`.
pub fn fill(bytes: &mut [u8], first_page: u64, version: u64) {
    for (page, bytes) in (first_page..).zip(bytes.chunks_exact_mut(PAGE)) {
        let (head, tail) = parts(page, version);
        bytes[..head.len()].copy_from_slice(&head);
        bytes[head.len()..].copy_from_slice(tail);
    }
}

/// Whether one page holds `version` of page number `page`; version 0 is zeros.
pub fn holds(bytes: &[u8], page: u64, version: u64) -> bool {
    if version == 0 {
        return bytes == [0; PAGE];
    }
    let (head, tail) = parts(page, version);
    bytes[..head.len()] == head && &bytes[head.len()..] == tail
}

/// Carries out one request and returns how it ended.
pub fn once(
    queue: &mut dyn Queue,
    op: Op,
    offset: u64,
    memory: &mut Memory,
    len: usize,
    target: usize,
) -> Result<(), IoError> {
    assert_eq!(queue.in_flight(), 0);
    let tag = offset ^ 0x5555;
    let req = Request {
        op,
        offset,
        addr: memory.addr(),
        len,
        tag,
        target,
    };
    // SAFETY: the memory outlives the wait below.
    unsafe { queue.submit(req) }.expect("an empty queue takes a request");
    assert_eq!(queue.in_flight(), 1);
    let mut end = None;
    while queue.in_flight() > 0 {
        queue.reap(Until::OneEnded, &mut |Completion { tag: got, result }| {
            assert_eq!(got, tag);
            assert!(end.replace(result).is_none(), "completed twice");
        });
    }
    end.expect("completed")
}

pub fn write(queue: &mut dyn Queue, page: u64, pages: usize, version: u64) -> Result<(), IoError> {
    let mut memory = Memory::new(pages * PAGE);
    fill(memory.bytes(), page, version);
    once(
        queue,
        Op::Write,
        page * PAGE as u64,
        &mut memory,
        pages * PAGE,
        0,
    )
}

/// Reads pages and asserts that each holds one of `versions`.
pub fn expect(queue: &mut dyn Queue, page: u64, pages: usize, versions: &[u64]) {
    let mut memory = Memory::new(pages * PAGE);
    memory.bytes().fill(0xee);
    let target = pages * PAGE / 2;
    once(
        queue,
        Op::Read,
        page * PAGE as u64,
        &mut memory,
        pages * PAGE,
        target,
    )
    .expect("read");
    for (i, bytes) in memory.bytes().chunks_exact(PAGE).enumerate() {
        let page = page + i as u64;
        assert!(
            versions.iter().any(|v| holds(bytes, page, *v)),
            "page {page} holds other data"
        );
    }
}

pub fn grown(device: &dyn Device, bytes: u64) {
    device.grow(bytes).expect("grow");
    assert!(device.capacity() >= bytes);
}
