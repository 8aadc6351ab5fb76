//! The records that perf writes into a ring, taken apart. Nothing that stands in a ring makes this
//! fail: what is not a record as the kernel writes them is left out.

use crate::page::Time;

/// The bytes of a ring, by their number since it was made.
pub trait Bytes {
    /// The ring has as many bytes as `to`, from that place on, and they are not written meanwhile.
    fn copy(&self, from: u64, to: &mut [u8]);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Sample {
        pid: u32,
        time: Time,
        /// What the tracepoint itself has written.
        raw: &'a [u8],
    },
    /// So many records found no room.
    Lost(u64),
}

const HEADER: u64 = 8;
const LOST: u32 = 2;
const SAMPLE: u32 = 9;

/// Hands every record from `tail` to `head` to `each`; gives the new tail. `buffer` is for what
/// wraps round the ring's end.
pub fn walk(
    ring: &impl Bytes,
    mut tail: u64,
    head: u64,
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(Record),
) -> u64 {
    while head.saturating_sub(tail) >= HEADER {
        let mut header = [0u8; HEADER as usize];
        ring.copy(tail, &mut header);
        let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let size = u64::from(u16::from_ne_bytes([header[6], header[7]]));
        if size < HEADER || size > head - tail {
            // Not what the kernel writes: where the next record begins is not known.
            break;
        }
        buffer.resize((size - HEADER) as usize, 0);
        ring.copy(tail + HEADER, buffer);
        if let Some(record) = parse(kind, buffer) {
            each(record);
        }
        tail += size;
    }
    head.max(tail)
}

fn parse(kind: u32, body: &[u8]) -> Option<Record<'_>> {
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?))
    };
    let half = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?))
    };
    match kind {
        // Process, thread, time, and the tracepoint's own data with its size in front.
        SAMPLE => {
            let size = half(16)? as usize;
            Some(Record::Sample {
                pid: half(0)?,
                time: Time(word(8)? / 1000),
                raw: body.get(20..20usize.checked_add(size)?)?,
            })
        }
        // A number, and how many.
        LOST => Some(Record::Lost(word(8)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ring(Vec<u8>);

    impl Bytes for Ring {
        fn copy(&self, from: u64, to: &mut [u8]) {
            for (at, byte) in to.iter_mut().enumerate() {
                *byte = self.0[(from as usize + at) % self.0.len()];
            }
        }
    }

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend((body.len() as u16 + 8).to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn sample_of(pid: u32, ns: u64, raw: &[u8]) -> Vec<u8> {
        let mut body = pid.to_ne_bytes().to_vec();
        body.extend(pid.to_ne_bytes());
        body.extend(ns.to_ne_bytes());
        body.extend((raw.len() as u32).to_ne_bytes());
        body.extend(raw);
        record(SAMPLE, &body)
    }

    fn lost(count: u64) -> Vec<u8> {
        let mut body = 7u64.to_ne_bytes().to_vec();
        body.extend(count.to_ne_bytes());
        record(LOST, &body)
    }

    /// What is found in a ring of 64 bytes that has turned `turns` bytes before.
    fn found(turns: u64, bytes: &[u8], head: u64) -> (Vec<String>, u64) {
        let mut ring = Ring(vec![0xee; 64]);
        for (at, &byte) in bytes.iter().enumerate() {
            ring.0[(turns as usize + at) % 64] = byte;
        }
        let mut found = Vec::new();
        let tail = walk(&ring, turns, turns + head, &mut Vec::new(), |record| {
            found.push(format!("{record:?}"));
        });
        (found, tail - turns)
    }

    #[test]
    fn records_are_found_wherever_they_wrap() {
        let mut bytes = sample_of(5, 9_000_000, &[1, 2, 3, 4]);
        bytes.extend(lost(3));
        let wanted = [
            format!(
                "{:?}",
                Record::Sample {
                    pid: 5,
                    time: Time(9000),
                    raw: &[1, 2, 3, 4]
                }
            ),
            format!("{:?}", Record::Lost(3)),
        ];
        for turns in 0..130 {
            let (found, tail) = found(turns, &bytes, bytes.len() as u64);
            assert_eq!(found, wanted, "{turns}");
            assert_eq!(tail, bytes.len() as u64);
        }
    }

    #[test]
    fn other_kinds_are_passed_over() {
        let mut bytes = record(3, &[0; 8]);
        bytes.extend(lost(1));
        assert_eq!(found(0, &bytes, 40).0, ["Lost(1)"]);
    }

    #[test]
    fn what_is_no_record_is_given_up() {
        // Of no size; larger than what was written; a header that is not whole.
        for (bytes, head) in [
            (vec![9, 0, 0, 0, 0, 0, 0, 0], 64),
            (vec![9, 0, 0, 0, 0, 0, 200, 0], 64),
            (vec![9, 0, 0, 0], 4),
        ] {
            let (found, tail) = found(3, &bytes, head);
            assert!(found.is_empty(), "{found:?}");
            assert_eq!(tail, head, "the ring goes on behind it");
        }
    }

    #[test]
    fn a_record_that_says_more_than_it_has_is_left_out() {
        let mut short = sample_of(1, 1, &[1, 2, 3, 4]);
        short[24..28].copy_from_slice(&u32::MAX.to_ne_bytes());
        short.extend(lost(2));
        assert_eq!(found(0, &short, short.len() as u64).0, ["Lost(2)"]);
        assert!(found(0, &record(SAMPLE, &[1, 2, 3]), 11).0.is_empty());
        assert!(found(0, &record(LOST, &[0; 15]), 23).0.is_empty());
    }

    #[test]
    fn anything_may_stand_in_a_ring() {
        let mut x = 88_172_645_463_325_252u64;
        let mut draw = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        let mut buffer = Vec::new();
        for _ in 0..20_000 {
            let mut ring = Ring((0..256).map(|_| draw() as u8).collect());
            // Some of it like records: of few kinds and small sizes.
            for at in (0..256).step_by(8) {
                if draw() % 2 == 0 {
                    let header = [
                        [9, 2, 1][(draw() % 3) as usize],
                        0,
                        0,
                        0,
                        0,
                        0,
                        draw() as u8 % 64,
                        0,
                    ];
                    ring.0[at..at + 8].copy_from_slice(&header);
                }
            }
            let tail = draw() >> (draw() % 64);
            let head = tail.saturating_add(draw() % 257);
            let mut records = 0;
            let end = walk(&ring, tail, head, &mut buffer, |_| records += 1);
            assert_eq!(end, head);
            assert!(records <= (head - tail) / HEADER);
        }
    }
}
