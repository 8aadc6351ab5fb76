//! What comes in for a fault, whose turn it is to leave, how much is kept free, what is compressed: decisions only.
//!
//! It uses `mm`, and nothing else: no system call, no lock, no clock, no memory but its own. The engine says what
//! it sees and carries out what is decided here; `bench policies` asks the same code about traces. docs/policies.md
//! compares rules, docs/swap-in.md describes those for what comes in.
//!
//! | question | answered by |
//! |---|---|
//! | how does a thread go through memory: does it walk, stride or jump? | [`intake`] |
//! | how many pages come in for this fault, and what is read ahead of the next ones? | [`intake`], [`Unit`] |
//! | which range has its turn to leave? | [`Turns`] |
//! | which of its pages are spared? | [`Credit`] |
//! | how much is taken out ahead of being written, for a second chance? | [`staging`] |
//! | who copies a folio that is shared since a fork: the kernel page by page, or we as a whole? | [`shared`] |
//! | is a range used here and there, so that folios of zeros are not for it? | [`Sparse`] |
//! | how much is kept free? | [`Walking`] |
//! | does what leaves go to compressed memory, and how much of the limit may that take? | [`Admission`] |
//! | would a page that comes back still be there, with more memory? | `ages` |
#![forbid(unsafe_code)]

mod admission;
mod ages;
mod credit;
mod hints;
pub mod intake;
pub mod shared;
mod sparse;
pub mod staging;
pub mod turns;
mod unit;
mod watermark;

pub use admission::{Admission, Admits, Effort, Fill, Use};
pub use credit::{Credit, AT_A_TIME};
pub use hints::{Hints, Huge, Pattern, SwapIn};
pub use intake::Intake;
pub use sparse::Sparse;
pub use turns::{InVain, List, Shadow, Turns};
pub use unit::{Unit, FILL_MAX, ZERO_FILL, ZERO_FILL_MAX};
pub use watermark::Walking;
