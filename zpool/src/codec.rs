//! One page, compressed and back: LZ4, in C. Neither direction allocates.

use core::ffi::{c_char, c_int};
use hugeswap_mm::{Page, PAGE_SIZE};

/// It is not what was stored there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong;

/// Compresses the page; how many bytes it takes, or none where they would be more than `to` has.
/// Takes 16 KiB of stack.
pub fn compress(from: &Page, to: &mut [u8]) -> Option<usize> {
    // SAFETY: both lengths are those of the memory given.
    let n = unsafe {
        lz4_sys::LZ4_compress_fast(
            from.as_ptr().cast::<c_char>(),
            to.as_mut_ptr().cast::<c_char>(),
            PAGE_SIZE as c_int,
            to.len() as c_int,
            1,
        )
    };
    usize::try_from(n).ok().filter(|&n| n > 0)
}

/// The page again. Whatever the bytes are, nothing is written but `to`.
pub fn decompress(from: &[u8], to: &mut Page) -> Result<(), Wrong> {
    // SAFETY: both lengths are those of the memory given; LZ4 checks what it reads against them.
    let n = unsafe {
        lz4_sys::LZ4_decompress_safe(
            from.as_ptr().cast::<c_char>(),
            to.as_mut_ptr().cast::<c_char>(),
            from.len() as c_int,
            PAGE_SIZE as c_int,
        )
    };
    match n == PAGE_SIZE as c_int {
        true => Ok(()),
        false => Err(Wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut x = 1_u64;
        let noise: Page = core::array::from_fn(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) as u8
        });
        assert_eq!(compress(&noise, &mut [0; 3000]), None);
        let text: Page = core::array::from_fn(|i| b"a page of words "[i % 16]);
        let mut small = [0; 3000];
        let n = compress(&text, &mut small).unwrap();
        assert!(n < 100, "{n}");
        let mut back = [0; PAGE_SIZE];
        decompress(&small[..n], &mut back).unwrap();
        assert!(back == text);
        assert_eq!(decompress(&small[..n - 1], &mut back), Err(Wrong));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_page_or_wrong(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let mut guarded = [[7_u8; PAGE_SIZE]; 3];
            let _ = decompress(&bytes, &mut guarded[1]);
            prop_assert!(guarded[0] == [7; PAGE_SIZE] && guarded[2] == [7; PAGE_SIZE]);
        }

        #[test]
        fn pages_come_back(seed in proptest::collection::vec(any::<u8>(), 1..600)) {
            let page: Page = core::array::from_fn(|i| seed[i % seed.len()]);
            let mut small = [0; 3000];
            if let Some(n) = compress(&page, &mut small) {
                let mut back = [0; PAGE_SIZE];
                decompress(&small[..n], &mut back).unwrap();
                prop_assert!(back == page);
            }
        }
    }
}
