//! What is to be done for a fault.

use super::{Bytes, Frame};
use crate::mm::{PageMask, SwapPlace};

/// What has to be done for a fault.
#[derive(Clone, Debug)]
pub enum Plan {
    /// The page is there now and whoever waited was woken.
    Served,
    /// As `Served`, so many pages out of compressed memory.
    Loaded { pages: usize },
    /// A transfer is in flight for the range; its end wakes everybody.
    Wait,
    /// Ask again with a ready frame.
    NeedFrame { bytes: Bytes },
    /// Ask again when the limit has room for so many pages.
    NeedRoom,
    /// Ask again when a fill buffer is free.
    NeedBuffer,
    /// Read the pages into their places in the frame, then call `swapin_done`.
    ReadWhole {
        frame: Frame,
        pages: PageMask,
        entry: SwapPlace,
    },
    /// Read the pages into the buffer, one behind the other, then call `fill_done`.
    Fill {
        buffer: u32,
        pages: PageMask,
        entry: SwapPlace,
    },
    /// Nothing of ours is at that address; the thread was woken to find out for itself.
    Unknown,
}
