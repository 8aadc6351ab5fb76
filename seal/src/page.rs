//! One page, one key, one slot. Pure.

use super::parts::{Key, Mode, Nonce, Tag};
use aegis::aegis128x2::Aegis128X2;
use hugeswap_mm::SwapEntry;
use xxhash_rust::xxh3::xxh3_128_with_seed;

pub use hugeswap_mm::Page;

/// It is not what was written there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong;

/// Chooses the code for this processor. To be called before anything else here is, by a thread that may
/// wait for others.
pub fn init() {
    let _ = Aegis128X2::<16>::new(&[0; 16], &[0; 16]);
}

/// As [`super::Sealer::seal`].
pub fn seal(mode: Mode, key: &Key, at: SwapEntry, nonce: Nonce, from: &Page, to: &mut Page) -> Tag {
    match mode {
        Mode::Check => sum(key, from),
        Mode::Encrypt => {
            let cipher = Aegis128X2::<16>::new(&key.0, &nonce.bytes(at));
            // Without associated data: all that the page is bound to is in the nonce.
            let mut encryptor = cipher.encryptor(&[]);
            encryptor.update(from, to);
            Tag(encryptor.finalize())
        }
    }
}

/// As [`super::Sealer::open`].
pub fn open(
    mode: Mode,
    key: &Key,
    at: SwapEntry,
    nonce: Nonce,
    tag: &Tag,
    page: &mut Page,
) -> Result<(), Wrong> {
    let right = match mode {
        Mode::Check => sum(key, page) == *tag,
        Mode::Encrypt => Aegis128X2::<16>::new(&key.0, &nonce.bytes(at))
            .decrypt_in_place(page, &tag.0, &[])
            .is_ok(),
    };
    match right && nonce != Nonce::NONE {
        true => Ok(()),
        false => Err(Wrong),
    }
}

fn sum(key: &Key, page: &Page) -> Tag {
    let [a, b, c, d, e, f, g, h, ..] = key.0;
    let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    Tag(xxh3_128_with_seed(page, seed).to_le_bytes())
}
