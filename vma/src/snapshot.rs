//! A range's descriptor as bytes, read out of the core file of a dead process.
#![allow(unsafe_code)]

use super::phase::IoState;
use super::table::{Range, State};
use core::mem::offset_of;
use hugeswap_mm::{PageMask, SwapPlace};
use hugeswap_seal::Nonce;

/// What of a range's state says where its pages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    pub io: IoState,
    pub present: PageMask,
    pub swapped: PageMask,
    pub moving: PageMask,
    pub in_frame: PageMask,
    pub frame: u32,
    pub buffer: u32,
    pub entry: Option<SwapPlace>,
    pub nonce: Nonce,
    pub compressed: PageMask,
}

/// Where pages of a dead process are that were not in its own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Where {
    /// In this frame: these pages.
    pub in_frame: (u32, PageMask),
    /// In this one: these.
    pub moving: (u32, PageMask),
    /// In compressed memory.
    pub compressed: PageMask,
    /// In their slots.
    pub swapped: PageMask,
}

/// Offsets of the fields, in the order of `Snapshot`.
const OFFSETS: [usize; 10] = {
    let state = offset_of!(Range, state);
    [
        offset_of!(Range, io),
        state + offset_of!(State, present),
        state + offset_of!(State, swapped),
        state + offset_of!(State, under_way.pages),
        state + offset_of!(State, under_way.in_frame),
        state + offset_of!(State, under_way.frame),
        state + offset_of!(State, under_way.buffer),
        state + offset_of!(State, entry),
        state + offset_of!(State, nonce),
        state + offset_of!(State, compressed),
    ]
};

impl Snapshot {
    /// Bytes of a descriptor.
    pub const BYTES: usize = size_of::<Range>();

    /// Another build's descriptors may look otherwise.
    pub const LAYOUT: u64 = {
        let mut sum = Self::BYTES as u64;
        let mut i = 0;
        while i < OFFSETS.len() {
            sum = sum.wrapping_mul(1009).wrapping_add(OFFSETS[i] as u64);
            i += 1;
        }
        sum
    };

    /// Any bytes are a descriptor, if not a sensible one.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Snapshot {
        let at = |field: usize, i: usize| {
            let mut word = [0; 8];
            let from = OFFSETS[field] + 8 * i;
            word.copy_from_slice(&bytes[from..from + 8]);
            u64::from_ne_bytes(word)
        };
        let half = |field: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[OFFSETS[field]..OFFSETS[field] + 4]);
            u32::from_ne_bytes(word)
        };
        let mask = |field| PageMask::from_words(core::array::from_fn(|i| at(field, i)));
        Snapshot {
            io: IoState::below(half(0)),
            present: mask(1),
            swapped: mask(2),
            moving: mask(3),
            in_frame: mask(4),
            frame: half(5),
            buffer: half(6),
            entry: SwapPlace::from_word(at(7, 0)),
            nonce: Nonce::from_word(at(8, 0)),
            compressed: mask(9),
        }
    }

    /// By the table of states. A page that was in the program's own memory all the same, since the
    /// process was killed while it came or went, is still there: that comes first.
    pub fn pages(&self) -> Where {
        let moving = match self.io {
            // What has come back while it was being written may have been changed since.
            IoState::Inactive | IoState::Writing => {
                self.moving.minus(self.in_frame.or(self.present))
            }
            _ => PageMask::EMPTY,
        };
        // What is in a frame is newer than its slot; what was resident, too.
        let newer = self.present.or(self.in_frame).or(moving);
        let compressed = self.compressed.minus(newer);
        Where {
            in_frame: (self.frame, self.in_frame),
            moving: (self.buffer, moving),
            compressed,
            swapped: match self.entry {
                Some(_) => self.swapped.minus(newer).minus(compressed),
                None => PageMask::EMPTY,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ranges;
    use hugeswap_mm::{DeviceId, Pmd, SwapEntry};

    #[test]
    fn a_descriptor_and_its_bytes_agree() {
        let ranges = Ranges::new().unwrap();
        let r = ranges.get_or_map(Pmd(77)).unwrap();
        let entry = SwapEntry::new(DeviceId::new(1).unwrap(), 512).unwrap();
        let mut g = r.lock();
        g.present = PageMask::of(0..70);
        g.swapped = PageMask::of(60..300);
        g.become_inactive(8, PageMask::of(100..120));
        g.track(7, PageMask::of(110..111));
        g.entry = Some(SwapPlace::cluster(entry));
        drop(g);
        // SAFETY: a descriptor is this many bytes, all of them written, by zeroing it if not since.
        let bytes = unsafe { &*(r as *const Range as *const [u8; Snapshot::BYTES]) };
        let s = Snapshot::decode(bytes);
        assert_eq!(s.io, IoState::Inactive);
        assert_eq!((s.frame, s.buffer), (7, 8));
        assert_eq!(s.entry, Some(SwapPlace::cluster(entry)));
        let w = s.pages();
        assert_eq!(w.in_frame, (7, PageMask::of(110..111)));
        assert_eq!(
            w.moving,
            (8, PageMask::of(100..110).or(PageMask::of(111..120)))
        );
        let swapped = PageMask::of(70..100).or(PageMask::of(120..300));
        assert_eq!(w.swapped, swapped);
        let back = Snapshot {
            io: IoState::Writing,
            present: PageMask::of(0..105),
            ..s
        };
        assert_eq!(
            back.pages().moving.1,
            PageMask::of(105..110).or(PageMask::of(111..120))
        );
        // What is being read is still in its slots.
        for io in [
            IoState::Reading,
            IoState::Filling,
            IoState::Ahead,
            IoState::Leaving,
            IoState::Idle,
        ] {
            let s = Snapshot { io, ..s };
            assert!(s.pages().moving.1.is_empty());
            assert_eq!(s.pages().swapped.count(), 230 - 1);
        }
        let lost = Snapshot { entry: None, ..s };
        assert!(lost.pages().swapped.is_empty());
        assert_eq!(
            Snapshot::decode(&[0; Snapshot::BYTES])
                .pages()
                .swapped
                .count(),
            0
        );
        assert_eq!(
            Snapshot::decode(&[255; Snapshot::BYTES]).io,
            IoState::Inactive
        );
    }
}
