//! Sealing: what lies in a slot is readable by its owner only, and is known not to be what was written
//! there.
//!
//! It uses `mm`, and of `sys` what keys need: random numbers, and memory that children don't inherit. It may
//! not read or write a slot, nor decide what is sealed when.
//!
//! Each page is sealed by itself when it goes to a slot, and opened when it comes back, before
//! anything of it can reach the program. What opening needs (tag and nonce) is kept in private memory
//! of the engine, which a forked child inherits copy-on-write, and never beside the data.
//!
//! | what was done to the slot | why it is found |
//! |---|---|
//! | bits were altered, a write was torn | the tag is of all bytes |
//! | another slot's contents were put there | the slot is part of the nonce; and the tag another |
//! | its own earlier contents were put back | each write has a nonce and a tag of its own |
//! | another process wrote there | it has not the key |
//!
//! **Encrypted** ([`Mode::Encrypt`]): AEGIS-128X2, an authenticated cipher made for AES instructions.
//! It has no key schedule, so that a key is 16 bytes and nothing else, and its nonce of 16 bytes has room for
//! the slot. Its tags have 16 bytes. **Checked** ([`Mode::Check`]): the tag is a checksum of the page
//! with the key for a seed. That finds what faults do, and who does not know the seed can't foresee a
//! checksum; but it is no cryptographic proof.
//!
//! The same tag says whether a page that was read and kept its slot is still what the slot holds: it is
//! sealed again with the slot's nonce, and the tags are compared. What comes of that besides the tag
//! is thrown away, for no nonce may be used for two contents that somebody could see.
//!
//! Candidates, 4 KiB pages from memory that is in no cache to such that is, nanoseconds a page, least of
//! 60 rounds (AMD EPYC with VAES, 2 CPUs, November 2026; `cargo test --release -p hugeswap-seal -- --ignored
//! --nocapture cost_of_sealing` measures it again):
//!
//! | | seal | open | |
//! |---|---|---|---|
//! | copying alone | 312 | | |
//! | XXH3, 128 bits, alone | 350 | | |
//! | AEGIS-128X2 | 502 | 379 | chosen |
//! | AEGIS-128L | 477 | 406 | half as fast in the cache, where the CPU has VAES |
//! | AEGIS-128X4 | 728 | 432 | for AVX-512 |
//! | AES-128-GCM, `ring` | 1020 | | in place only, so after a copy; a key schedule for each key of the ring |
//! | AES-128-GCM, `aes-gcm` | 2617 | | |
//!
//! `aws-lc-rs` has an error queue in thread-local storage, which engine threads have not.
#![deny(unsafe_code)]

mod keys;
mod page;
mod parts;

pub use keys::{Keys, Unwrap, Wrapped};
pub use page::{cipher_is_right, init, open, seal, Page, Wrong};
pub use parts::{Key, Mode, Nonce, Tag, GENERATIONS};

use hugeswap_mm::SwapEntry;
use hugeswap_sys::Errno;

/// This process's seals: how, and with which keys.
pub struct Sealer {
    pub mode: Mode,
    pub keys: Keys,
}

impl Sealer {
    /// Not on the fault path: asks the processor what it can do.
    pub fn new(mode: Mode) -> Result<Sealer, Errno> {
        init();
        let keys = Keys::new()?;
        Ok(Sealer { mode, keys })
    }

    /// The tag of `from` in slot `at`, and what to write there in `to`, if that is not `from` itself
    /// (see [`Mode::Check`]).
    pub fn seal(&self, from: &Page, to: &mut Page, at: SwapEntry, nonce: Nonce) -> Tag {
        let key = self.keys.get(nonce.generation());
        seal(self.mode, &key, at, nonce, from, to)
    }

    /// Makes what was read from slot `at` the page that was sealed. If it is not that, nothing can be
    /// said of what is left in `page`.
    pub fn open(
        &self,
        page: &mut Page,
        at: SwapEntry,
        nonce: Nonce,
        tag: &Tag,
    ) -> Result<(), Wrong> {
        let key = self.keys.get(nonce.generation());
        open(self.mode, &key, at, nonce, tag, page)
    }

    /// Whether slot `at` holds what `page` does. `scratch` is overwritten with what must not be seen.
    pub fn is_same(
        &self,
        page: &Page,
        scratch: &mut Page,
        at: SwapEntry,
        nonce: Nonce,
        tag: &Tag,
    ) -> bool {
        self.seal(page, scratch, at, nonce) == *tag
    }
}

#[cfg(test)]
mod tests;
