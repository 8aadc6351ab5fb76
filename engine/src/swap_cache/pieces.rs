//! A range's pages in swap, piece by piece, and the table that names the slots of a range that is
//! not in one cluster.

use super::{Memory, SwapCache};
use crate::mm::{Extents, PageMask, Pmd, SlotWord, SwapEntry, SwapPlace, PMD_NR, SWAPFILE_CLUSTER};
use crate::vma::{Had, RangeGuard, SlotTable};
use core::ops::Range;

/// Neighbouring pages of a range in neighbouring slots of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub pages: Range<usize>,
    pub entry: SwapEntry,
}

/// See [`SwapCache::pieces`].
pub struct Pieces<'t> {
    first: Option<SwapEntry>,
    table: Option<&'t SlotTable>,
    pages: PageMask,
    at: usize,
}

impl<'t> Pieces<'t> {
    /// Of a test's own table.
    #[cfg(test)]
    pub(super) fn of_table(table: &'t SlotTable, pages: PageMask) -> Self {
        Pieces {
            first: None,
            table: Some(table),
            pages,
            at: 0,
        }
    }

    fn slot(&self, page: usize) -> Option<SwapEntry> {
        match self.first {
            Some(first) => first.checked_add(page as u64),
            None => self.table?.get(page).entry(),
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let start = self.pages.next_from(self.at)?;
        let entry = self.slot(start)?;
        let mut end = start + 1;
        while end < PMD_NR && self.pages.has(end) {
            let next = entry.checked_add((end - start) as u64);
            let same_cluster = next.is_some_and(|e| e.slot() % SWAPFILE_CLUSTER as u64 != 0);
            if !same_cluster || self.slot(end) != next {
                break;
            }
            end += 1;
        }
        self.at = end;
        Some(Piece {
            pages: start..end,
            entry,
        })
    }
}

/// Slots, one after the other, of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// From the first page that is there to the last. Others may lie between.
    pub pages: Range<usize>,
    pub entry: SwapEntry,
    /// How many.
    pub nr: usize,
}

impl Joined {
    fn goes_on_with(&self, next: &Piece) -> bool {
        let end = self.entry.checked_add(self.nr as u64);
        end == Some(next.entry) && next.entry.slot() % SWAPFILE_CLUSTER as u64 != 0
    }
}

impl<'t> Pieces<'t> {
    /// What can be transferred by one request each: with `packed`, whichever pages neighbouring slots
    /// are of.
    pub fn joined(self, packed: bool) -> impl Iterator<Item = Joined> + 't {
        let mut pieces = self.peekable();
        core::iter::from_fn(move || {
            let first = pieces.next()?;
            let mut all = Joined {
                nr: first.pages.len(),
                pages: first.pages,
                entry: first.entry,
            };
            while let Some(next) = pieces.next_if(|next| packed && all.goes_on_with(next)) {
                all.nr += next.pages.len();
                all.pages.end = next.pages.end;
            }
            Some(all)
        })
    }
}

impl<M: Memory> SwapCache<M> {
    /// Where `pages` are, which all have slots. The caller has the range's lock, or its transfer:
    /// places do not change meanwhile.
    pub fn pieces(&self, pmd: Pmd, place: SwapPlace, pages: PageMask) -> Pieces<'_> {
        let first = place.first();
        Pieces {
            first,
            table: match first {
                Some(_) => None,
                None => self.ranges.slots(pmd),
            },
            pages,
            at: 0,
        }
    }

    /// Has the range's slots named by its table; false if there is no memory for one.
    pub(super) fn scatter(&self, pmd: Pmd, g: &mut RangeGuard<'_>) -> bool {
        if g.entry == Some(SwapPlace::SCATTERED) {
            return true;
        }
        let Some(table) = self.ranges.slots(pmd) else {
            return false;
        };
        if g.tables.insert(Had::SLOTS) {
            self.charge.charge(1);
        }
        if let Some(first) = g.entry.and_then(SwapPlace::first) {
            for page in g.swapped.runs().flatten() {
                let word = first.checked_add(page as u64).and_then(SlotWord::new);
                let Some(word) = word else { return false };
                table.set(page, word);
            }
        }
        g.entry = Some(SwapPlace::SCATTERED);
        true
    }

    /// Gives `pages` the new slots, in their order. The range is scattered.
    pub(super) fn name_slots(&self, pmd: Pmd, pages: PageMask, slots: &Extents) {
        // `scatter` has seen to it that there is one.
        let Some(table) = self.ranges.slots(pmd) else {
            return;
        };
        let each = slots
            .iter()
            .flat_map(|e| (0..u64::from(e.nr)).map_while(|i| e.entry.checked_add(i)));
        for (page, word) in pages.runs().flatten().zip(each.map_while(SlotWord::new)) {
            table.set(page, word);
        }
    }
}

/// A test's own table.
#[cfg(test)]
pub(super) fn table_of(slot_of: impl Fn(usize) -> SwapEntry) -> SlotTable {
    let table = SlotTable::default();
    (0..PMD_NR).for_each(|page| table.set(page, SlotWord::new(slot_of(page)).unwrap()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::DeviceId;

    fn at(device: u8, slot: u64) -> SwapEntry {
        SwapEntry::new(DeviceId::new(device).unwrap(), slot).unwrap()
    }

    fn list(first: Option<SwapEntry>, table: Option<&SlotTable>, pages: PageMask) -> Vec<Piece> {
        let pieces = Pieces {
            first,
            table,
            pages,
            at: 0,
        };
        pieces.collect()
    }

    #[test]
    fn pieces_of_a_cluster_are_the_runs() {
        let pages = PageMask::of(0..3).or(PageMask::of(509..512));
        let got = list(Some(at(1, 1024)), None, pages);
        assert_eq!(
            got,
            [
                Piece {
                    pages: 0..3,
                    entry: at(1, 1024)
                },
                Piece {
                    pages: 509..512,
                    entry: at(1, 1024 + 509)
                }
            ]
        );
        let whole = list(Some(at(0, 0)), None, PageMask::FULL);
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].pages, 0..512);
    }

    #[test]
    fn what_lies_together_in_slots_is_joined() {
        let slots = table_of(|page| {
            match page {
                3 => at(0, 100),
                7..=8 => at(0, 94 + page as u64),
                // The next cluster.
                20..=21 => at(0, 490 + page as u64),
                22 => at(0, 512),
                _ => at(1, 700),
            }
        });
        let pages = [3..4, 7..9, 20..23].map(PageMask::of);
        let pages = pages.into_iter().fold(PageMask::EMPTY, PageMask::or);
        let list = |packed| -> Vec<_> {
            let joined = Pieces::of_table(&slots, pages).joined(packed);
            joined.map(|j| (j.pages, j.nr, j.entry)).collect()
        };
        let tail = [(20..22, 2, at(0, 510)), (22..23, 1, at(0, 512))];
        let apart = [(3..4, 1, at(0, 100)), (7..9, 2, at(0, 101))];
        assert_eq!(list(false), [apart, tail.clone()].concat());
        let [first, second] = tail;
        assert_eq!(list(true), [(3..9, 3, at(0, 100)), first, second]);
    }

    #[test]
    fn pieces_of_a_table_end_with_device_order_and_cluster() {
        let slots = table_of(|page| {
            match page {
                0..=9 => at(0, 100 + page as u64),
                10..=19 => at(1, 100 + page as u64),
                20..=29 => at(1, 700 - page as u64),
                // The cluster ends after page 34.
                _ => at(1, 2048 - 35 + page as u64),
            }
        });
        let got = list(
            None,
            Some(&slots),
            PageMask::of(0..22).or(PageMask::of(30..40)),
        );
        let runs: Vec<_> = got.iter().map(|p| p.pages.clone()).collect();
        assert_eq!(runs, [0..10, 10..20, 20..21, 21..22, 30..35, 35..40]);
        assert_eq!(got[5].entry, at(1, 2048));
    }
}
