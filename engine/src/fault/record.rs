//! Writes down the faults that come, for `bench policies` (docs/traces.md): `run --record-faults`.
//!
//! In blocks, each complete in itself, because all processes of a run write to the same file. A process that is
//! killed leaves out the faults of its last moment.

use crate::mm::PAGE_SIZE;
use crate::sys::fd;

/// Bytes of a block at most.
const BLOCK: usize = 32 << 10;
/// A block is written when it has room for less than that: two records, of numbers of ten bytes at most.
const RESERVE: usize = 32;
/// And when nothing was written for so long: what a program loses that ends.
const EVERY_NS: u64 = 10_000_000;

/// Of a handler thread.
pub struct Record {
    file: i32,
    /// The process's in the run: it has a number of its own in each pid namespace.
    id: u32,
    records: Block,
    /// Of the last page and thread in the block.
    page: u64,
    thread: u32,
    written_ns: u64,
}

/// Numbers one behind the other; nothing is allocated when one comes.
struct Block {
    bytes: Box<[u8]>,
    len: usize,
}

impl Block {
    fn new(size: usize) -> Block {
        Block {
            bytes: vec![0; size].into_boxed_slice(),
            len: 0,
        }
    }

    /// As unsigned LEB128.
    fn push(&mut self, mut number: u64) {
        loop {
            let more = number > 0x7f;
            let Some(byte) = self.bytes.get_mut(self.len) else {
                return;
            };
            *byte = number as u8 & 0x7f | u8::from(more) << 7;
            self.len += 1;
            number >>= 7;
            if !more {
                return;
            }
        }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Record {
    /// Below 0 there is no such file. `id`: the process's in the run.
    pub fn to(file: i32, id: u32) -> Option<Record> {
        (file >= 0).then(|| Record {
            file,
            id,
            records: Block::new(BLOCK),
            page: 0,
            thread: 0,
            written_ns: 0,
        })
    }

    /// A fault has come.
    pub fn note(&mut self, addr: usize, write: bool, tid: u32, now_ns: u64) {
        if self.thread != tid {
            self.thread = tid;
            self.records.push(u64::from(tid) << 2 | 2);
        }
        let page = (addr / PAGE_SIZE) as u64;
        let moved = page.wrapping_sub(self.page) as i64;
        self.page = page;
        let zigzag = (moved << 1 ^ moved >> 63) as u64;
        self.records.push(zigzag << 2 | u64::from(write));
        if self.records.len + RESERVE > BLOCK || now_ns - self.written_ns > EVERY_NS {
            self.flush(now_ns);
        }
    }

    /// Writes the block; the next one knows nothing of it.
    pub fn flush(&mut self, now_ns: u64) {
        self.written_ns = now_ns;
        if self.records.len == 0 {
            return;
        }
        let mut head = Block::new(RESERVE);
        head.push(u64::from(self.id));
        head.push(self.records.len as u64);
        // One call, so that no other process's block comes between. What can't be written is left out.
        let _ = fd::write_both(self.file, [head.as_slice(), self.records.as_slice()]);
        self.records.len = 0;
        (self.page, self.thread) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_leb128() {
        let mut block = Block::new(64);
        for n in [0, 1, 127, 128, 8001, u64::MAX] {
            block.push(n);
        }
        let most = [0xff; 9];
        assert_eq!(block.as_slice()[..7], [0, 1, 127, 0x80, 1, 0xc1, 0x3e]);
        assert_eq!(block.as_slice()[7..], [&most[..], &[1]].concat());
        // What does not fit is left out, and nobody dies of it.
        let mut small = Block::new(1);
        small.push(1000);
        assert_eq!(small.len, 1);
    }

    #[test]
    fn a_fault_says_how_far_it_is_from_the_last() {
        let mut record = Record::to(0, 5).unwrap();
        record.written_ns = 1;
        record.note(1000 * PAGE_SIZE + 8, true, 7, 1);
        record.note(999 * PAGE_SIZE, false, 7, 1);
        record.note(999 * PAGE_SIZE, false, 8, 1);
        let mut wanted = Block::new(64);
        for n in [7 << 2 | 2, 2000 << 2 | 1, 1 << 2, 8 << 2 | 2, 0] {
            wanted.push(n);
        }
        assert_eq!(record.records.as_slice(), wanted.as_slice());
        assert!(Record::to(-1, 5).is_none());
    }
}
