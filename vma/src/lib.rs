//! What the engine knows of the program's managed addresses.
//!
//! It uses `mm`, `policy`, `sys` (memory and locks), `seal` and `zpool` (what a tag, a nonce and a handle are). It may not
//! move a page or do I/O: it is what `swap_cache` writes down. `dump` reads the same tables in a core file,
//! for `supervise`.
//!
//! # The state of a page
//!
//! | present | swapped | meaning | the page's bytes |
//! |---|---|---|---|
//! | 0 | 0 | never touched, or discarded | zeros |
//! | 1 | 0 | resident | in the program's page table |
//! | 0 | 1 | swapped out | in its slot |
//! | 1 | 1 | resident, and its slot still has what was read from it | in the program's page table; equal to the slot's if its tag, made anew, is the slot's |
//!
//! A page in `lazy` is swapped out, and still mapped: protected against being written to, the same as in its slot, and freed lazily, so
//! that the kernel may take it at any time. It is in `swapped`, and neither present, compressed nor in a frame.
//!
//! A page in `compressed` is in compressed memory (`zpool`), and neither present nor in a frame. If it is in
//! `swapped` as well its slot holds the same.
//!
//! A page in `lost` could not be read back. The program's page table has a poison marker in its
//! place, which MADV_DONTNEED and UFFDIO_COPY would both wipe out: nothing of ours may touch it.
//!
//! `writable` says of each page whether the program's mapping allows reading and writing: only
//! such pages are moved out, because UFFDIO_MOVE needs equal protections on both sides.
//!
//! # The state of a range
//!
//! At most one transfer is in flight for a 2 MiB range; `io` names it, and `phase` is how it changes.
//!
//! | io | the pages in `moving` are | who ends it |
//! |---|---|---|
//! | Idle | none | |
//! | Reading | being read into the frame; still swapped | fault: `swap_cache::swapin_done`; reclaim, when a device is swapped off: `swap_cache::leave_done` |
//! | Filling | being read into a fill buffer; still swapped. `in_frame` are in a frame, if the range was Inactive, and is again afterwards | fault: `swap_cache::fill_done` |
//! | Ahead | in the frame as well as in their slots; no transfer | fault, a hook, or fork: `swap_cache::drop_ahead` |
//! | Inactive | in the frame only, unless `swapped` too; no transfer. Those that are `present` have come back: the program has a copy | reclaim: `swap_cache::start_write`; a fault or hook: `swap_cache::settle` |
//! | Leaving | none; `in_frame` are in the program or in the frame | reclaim, in `swap_cache::deactivate`, or in `copy_shared`, for which the handler has set it |
//! | Writing | in the frame, and nobody changes them there; not swapped, unless they are clean. Those that are `present` have come back: the program has a copy | reclaim: `swap_cache::writeback_done` |
//! | Held | as it was when it was held: Idle, Ahead or Inactive | the hook that holds it: `engine::Hold` |
//!
//! What is being written is the same as what a page that came back had in it: when the write is done
//! its slot and its tag are as true as those of a page that was read.
//!
//! `in_frame` names pages that may be in the frame `frame` and nowhere else. While Filling it says for good
//! which are. Where pages leave and come under the lock, it says what is on its way, and is empty
//! again when the lock is released: nobody needs it but the reader of a core file, for a process may be
//! killed in between (`dump`).
//!
//! Each page in `swapped` has a tag and a nonce (`seal`): without them its slot is worth nothing. They are
//! in the range's tables, or the nonce is `nonce` where one write sealed them all.
//!
//! Everything changes under the range's lock. The lock is never held across I/O: it is released
//! after `io` was set, and whoever needs the range idle waits for `io` to change.
#![deny(unsafe_code)]

pub mod dump;
mod lru;
mod phase;
mod queue;
mod snapshot;
mod table;
mod transitions;
mod words;

pub use lru::Lru;
pub use phase::IoState;
pub use queue::Queue;
pub use snapshot::{Snapshot, Where};
pub use table::{Had, Range, RangeGuard, Ranges, HANDLES_AT, LEAF, NONCES_AT, ROOT, SLOTS_AT};
pub use words::{HandleTable, Nonces, SlotTable, Tags};
