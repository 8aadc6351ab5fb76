//! Objects of compressed memory with anything in them: a page, or wrong, and nothing else is written. What was
//! compressed comes back, whatever the decoder had to do with before.
#![no_main]

use hugeswap_mm::PAGE_SIZE;
use hugeswap_zpool::{open_object, Codec, Decoder, Encoder};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(mut decoder) = Decoder::new() else {
        return;
    };
    let mut guarded = [[7_u8; PAGE_SIZE]; 3];
    let _ = open_object(data, &mut guarded[1], &mut decoder);
    for codec in [Codec::Lz4, Codec::Zstd, Codec::Word] {
        let _ = decoder.decompress(codec, data, &mut guarded[1]);
    }
    assert!(guarded[0] == [7; PAGE_SIZE] && guarded[2] == [7; PAGE_SIZE]);
    let Ok(mut encoder) = Encoder::new() else {
        return;
    };
    let mut page = [0; PAGE_SIZE];
    for (byte, from) in page.iter_mut().zip(data.iter().cycle()) {
        *byte = *from;
    }
    for codec in [Codec::Lz4, Codec::Zstd] {
        let mut small = [0; PAGE_SIZE];
        if let Some((made, n)) = encoder.compress(codec, &page, &mut small) {
            let back = &mut guarded[1];
            assert!(decoder.decompress(made, &small[..n], back).is_ok());
            assert!(*back == page);
        }
    }
});
