//! The lists of a device's clusters, by their largest free block; linked through the cluster table by
//! index.

use super::cluster::{ClusterInfo, TOP_EMPTY};

/// On no list: the cluster is not ours.
const NONE: u8 = 0;
/// Clusters of the same `top`, which is this less one.
const NR_LISTS: usize = TOP_EMPTY as usize + 2;

/// The one list a cluster belongs on.
#[inline]
pub fn list_of(ci: &ClusterInfo) -> u8 {
    match ci.online {
        false => NONE,
        true => 1 + ci.top.min(TOP_EMPTY),
    }
}

/// Ends of a list: index + 1, or 0.
#[derive(Clone, Copy, Debug, Default)]
struct ListHead {
    head: u32,
    tail: u32,
    nr: u32,
}

/// Every list of one device.
#[derive(Debug, Default)]
pub struct Lists {
    heads: [ListHead; NR_LISTS],
    /// A bit for each `top` whose list is not empty.
    tops: u16,
}

/// Which end of a list a cluster is put at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Head,
    Tail,
}

impl Lists {
    /// The first cluster of those with this `top`.
    #[inline]
    pub fn head(&self, top: u8) -> Option<u32> {
        self.heads[top as usize + 1].head.checked_sub(1)
    }

    /// Clusters with this `top`.
    #[inline]
    pub fn nr(&self, top: u8) -> u32 {
        self.heads[top as usize + 1].nr
    }

    /// The smallest `top` from `least` on that a cluster has which is not wholly free.
    #[inline]
    pub fn smallest_from(&self, least: u8) -> Option<u8> {
        let tops = self.partial() >> least;
        (tops != 0).then(|| least + tops.trailing_zeros() as u8)
    }

    /// The largest `top` that a cluster has which is not wholly free, nor full.
    #[inline]
    pub fn largest(&self) -> Option<u8> {
        let tops = self.partial() & !1;
        (tops != 0).then(|| (u16::BITS - 1 - tops.leading_zeros()) as u8)
    }

    #[inline]
    fn partial(&self) -> u16 {
        self.tops & !(1 << TOP_EMPTY)
    }

    #[inline]
    fn note_top(&mut self, list: u8) {
        let bit = 1 << (list - 1);
        if self.heads[list as usize].nr == 0 {
            self.tops &= !bit;
        } else {
            self.tops |= bit;
        }
    }

    /// Takes a cluster off its list, if it is on one.
    #[inline]
    pub fn unlink(&mut self, clusters: &mut [ClusterInfo], idx: u32) {
        let ci = &mut clusters[idx as usize];
        let (list, next, prev) = (ci.list, ci.next, ci.prev);
        if list == NONE {
            return;
        }
        (ci.list, ci.next, ci.prev) = (NONE, 0, 0);
        let head = &mut self.heads[list as usize];
        head.nr -= 1;
        match prev {
            0 => head.head = next,
            p => clusters[p as usize - 1].next = next,
        }
        match next {
            0 => head.tail = prev,
            n => clusters[n as usize - 1].prev = prev,
        }
        self.note_top(list);
    }

    /// Puts a cluster that is on no list where its content says.
    #[inline]
    pub fn link(&mut self, clusters: &mut [ClusterInfo], idx: u32, end: End) {
        let list = list_of(&clusters[idx as usize]);
        if list == NONE {
            return;
        }
        let head = &mut self.heads[list as usize];
        head.nr += 1;
        let (next, prev) = match end {
            End::Head => (head.head, 0),
            End::Tail => (0, head.tail),
        };
        match next {
            0 => head.tail = idx + 1,
            n => clusters[n as usize - 1].prev = idx + 1,
        }
        match prev {
            0 => head.head = idx + 1,
            p => clusters[p as usize - 1].next = idx + 1,
        }
        let ci = &mut clusters[idx as usize];
        (ci.list, ci.next, ci.prev) = (list, next, prev);
        self.note_top(list);
    }

    /// Moves a cluster to the list its content says, if that is another.
    #[inline]
    pub fn relink(&mut self, clusters: &mut [ClusterInfo], idx: u32, end: End) {
        let ci = &clusters[idx as usize];
        if ci.list != list_of(ci) {
            self.unlink(clusters, idx);
            self.link(clusters, idx, end);
        }
    }

    /// Walks every list; `seen` learns each cluster. An error says what is broken.
    pub fn validate(
        &self,
        clusters: &[ClusterInfo],
        mut seen: impl FnMut(u32),
    ) -> Result<(), &'static str> {
        for (id, head) in self.heads.iter().enumerate() {
            let (mut at, mut prev, mut nr) = (head.head, 0, 0);
            while at != 0 {
                let ci = clusters
                    .get(at as usize - 1)
                    .ok_or("link leads past the table")?;
                if usize::from(ci.list) != id {
                    return Err("cluster is on a list it does not name");
                }
                if ci.prev != prev {
                    return Err("back link does not match");
                }
                nr += 1;
                if nr > head.nr {
                    return Err("list is longer than its count");
                }
                seen(at - 1);
                prev = at;
                at = ci.next;
            }
            if nr != head.nr || head.tail != prev {
                return Err("list is shorter than its count, or its tail is wrong");
            }
            if id != usize::from(NONE) && (self.tops >> (id - 1) & 1 == 1) != (nr > 0) {
                return Err("bit of the tops does not match its list");
            }
        }
        Ok(())
    }
}
