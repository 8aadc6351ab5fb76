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

/// Whether the cipher computes here what it computes elsewhere: one page, with its known ciphertext and tag. An emulator
/// may have instructions of AES that are wrong (QEMU 7.2 has, those for two blocks at once): what they seal
/// comes back all the same, but different pages may have one tag, and so be taken for unchanged.
pub fn cipher_is_right() -> bool {
    init();
    let plain: Page = core::array::from_fn(|i| (i * 7 + i / 256) as u8);
    let cipher = |last: u8| {
        let mut nonce = [0x5a; 16];
        nonce[15] = last;
        let mut text = plain;
        let mut encryptor = Aegis128X2::<16>::new(&[0xc3; 16], &nonce).encryptor(&[]);
        encryptor.update(&plain, &mut text);
        (encryptor.finalize(), xxh3_128_with_seed(&text, 0))
    };
    KNOWN
        .iter()
        .zip(0..)
        .all(|(known, last)| cipher(last) == *known)
}

/// Tags and sums of ciphertext for [`cipher_is_right`]; those with VAES and without it are alike.
const KNOWN: [([u8; 16], u128); 2] = [
    (
        0xbe0d_2ffb_14cd_4def_e578_77aa_7e4c_bdae_u128.to_be_bytes(),
        0x3625_5694_e291_c75d_22ac_38a8_1520_f53d,
    ),
    (
        0x8199_9bac_b1b0_e2aa_f5aa_0597_0caa_c431_u128.to_be_bytes(),
        0xccf8_6dbc_eb33_1ab5_ba74_aff1_1749_f4e3,
    ),
];

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
