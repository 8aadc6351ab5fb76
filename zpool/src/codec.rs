//! One page, compressed and back: LZ4, which is quick, and Zstandard, which makes it smaller. Both in C; neither
//! direction allocates: what they need of memory they get at the start.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::NonNull;
use hugeswap_mm::{Page, PAGE_SIZE};
use hugeswap_sys::{mem, Errno};

/// It is not what was stored there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong;

/// How an object was made. The numbers are in objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Codec {
    Lz4 = 0,
    Zstd = 1,
    /// The page is one word, again and again: the object is that word.
    Word = 2,
}

impl Codec {
    pub fn from_number(n: u8) -> Option<Codec> {
        [Codec::Lz4, Codec::Zstd, Codec::Word]
            .into_iter()
            .find(|&c| c as u8 == n)
    }
}

/// Zstandard's level: literals stay as they are. Level 1 takes twice as long, out and back, and a page of an interpreter becomes
/// 2 to 15 per cent smaller by that.
const LEVEL: c_int = -1;
const WORD: usize = size_of::<u64>();

/// The one word of which the page consists.
fn only_word(page: &Page) -> Option<[u8; WORD]> {
    let first = *page.first_chunk()?;
    // Most pages differ here already.
    let ends_so = page.last_chunk() == Some(&first);
    let all = || page.chunks_exact(WORD).all(|word| word == first);
    (ends_so && all()).then_some(first)
}

/// Memory for a context of Zstandard's.
struct Workspace {
    at: *mut c_void,
    bytes: usize,
    state: Use,
}

/// Whether memory takes room, which it does from its first use on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    None,
    Begun,
    Told,
}

impl Workspace {
    fn new(bytes: usize) -> Result<Workspace, Errno> {
        let bytes = bytes.next_multiple_of(PAGE_SIZE);
        let at = mem::map_anon(bytes)?.cast();
        let state = Use::None;
        Ok(Workspace { at, bytes, state })
    }

    fn is_used(&mut self) {
        if self.state == Use::None {
            self.state = Use::Begun;
        }
    }

    fn newly_used(&mut self) -> usize {
        if self.state != Use::Begun {
            return 0;
        }
        self.state = Use::Told;
        self.bytes
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: the context goes with its owner.
        unsafe { mem::unmap_own(self.at as usize, self.bytes) };
    }
}

/// Compresses; one thread uses it.
pub struct Encoder {
    zstd: NonNull<zstd_sys::ZSTD_CCtx>,
    parameters: zstd_sys::ZSTD_parameters,
    workspace: Workspace,
}

// SAFETY: the context is memory of its own, that only its owner uses.
unsafe impl Send for Encoder {}

impl Encoder {
    pub fn new() -> Result<Encoder, Errno> {
        // SAFETY: plain functions of numbers.
        let (level, bytes) = unsafe {
            let c = zstd_sys::ZSTD_getCParams(LEVEL, PAGE_SIZE as u64, 0);
            (c, zstd_sys::ZSTD_estimateCCtxSize_usingCParams(c))
        };
        let workspace = Workspace::new(bytes)?;
        // SAFETY: the workspace has so many bytes, is aligned to a page, and lives as long as the context.
        let zstd = unsafe { zstd_sys::ZSTD_initStaticCCtx(workspace.at, workspace.bytes) };
        Ok(Encoder {
            zstd: NonNull::new(zstd).ok_or(Errno::ENOMEM)?,
            parameters: zstd_sys::ZSTD_parameters {
                cParams: level,
                // Length and contents are known otherwise.
                fParams: zstd_sys::ZSTD_frameParameters {
                    contentSizeFlag: 0,
                    checksumFlag: 0,
                    noDictIDFlag: 1,
                },
            },
            workspace,
        })
    }

    /// Bytes of memory that it takes since this was asked last.
    pub fn newly_used(&mut self) -> usize {
        self.workspace.newly_used()
    }

    /// Compresses the page; how, and how many bytes it takes. None where they would be more than `to` has.
    /// Takes 16 KiB of stack.
    pub fn compress(&mut self, codec: Codec, from: &Page, to: &mut [u8]) -> Option<(Codec, usize)> {
        match codec {
            Codec::Zstd if only_word(from).is_none() => {
                self.zstd(from, to).map(|n| (Codec::Zstd, n))
            }
            _ => compress_quickly(from, to),
        }
    }

    fn zstd(&mut self, from: &Page, to: &mut [u8]) -> Option<usize> {
        self.workspace.is_used();
        // SAFETY: both lengths are those of the memory given; the context is ours.
        unsafe {
            let n = zstd_sys::ZSTD_compress_advanced(
                self.zstd.as_ptr(),
                to.as_mut_ptr().cast(),
                to.len(),
                from.as_ptr().cast(),
                PAGE_SIZE,
                core::ptr::null(),
                0,
                self.parameters,
            );
            (zstd_sys::ZSTD_isError(n) == 0).then_some(n)
        }
    }
}

/// As `Encoder::compress`, by LZ4: for that nothing is needed but the stack.
pub fn compress_quickly(from: &Page, to: &mut [u8]) -> Option<(Codec, usize)> {
    if let Some(word) = only_word(from) {
        to.first_chunk_mut::<WORD>()?.copy_from_slice(&word);
        return Some((Codec::Word, WORD));
    }
    lz4(from, to).map(|n| (Codec::Lz4, n))
}

fn lz4(from: &Page, to: &mut [u8]) -> Option<usize> {
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

/// Gets pages back; one thread uses it at a time.
pub struct Decoder {
    zstd: NonNull<zstd_sys::ZSTD_DCtx>,
    workspace: Workspace,
}

// SAFETY: the context is memory of its own, that only its owner uses.
unsafe impl Send for Decoder {}

impl Decoder {
    pub fn new() -> Result<Decoder, Errno> {
        // SAFETY: a plain function.
        let workspace = Workspace::new(unsafe { zstd_sys::ZSTD_estimateDCtxSize() })?;
        // SAFETY: the workspace has so many bytes, is aligned to a page, and lives as long as the context.
        let zstd = unsafe { zstd_sys::ZSTD_initStaticDCtx(workspace.at, workspace.bytes) };
        Ok(Decoder {
            zstd: NonNull::new(zstd).ok_or(Errno::ENOMEM)?,
            workspace,
        })
    }

    /// Bytes of memory that it takes since this was asked last.
    pub fn newly_used(&mut self) -> usize {
        self.workspace.newly_used()
    }

    /// The page again. Whatever the bytes are, nothing is written but `to`.
    pub fn decompress(&mut self, codec: Codec, from: &[u8], to: &mut Page) -> Result<(), Wrong> {
        match codec {
            Codec::Lz4 => open_lz4(from, to),
            Codec::Zstd => self.open_zstd(from, to),
            Codec::Word => {
                let word: [u8; WORD] = from.try_into().map_err(|_| Wrong)?;
                for place in to.chunks_exact_mut(WORD) {
                    place.copy_from_slice(&word);
                }
                Ok(())
            }
        }
    }

    fn open_zstd(&mut self, from: &[u8], to: &mut Page) -> Result<(), Wrong> {
        self.workspace.is_used();
        // SAFETY: both lengths are those of the memory given, against which Zstandard checks what it reads; the
        // context is ours.
        let n = unsafe {
            zstd_sys::ZSTD_decompressDCtx(
                self.zstd.as_ptr(),
                to.as_mut_ptr().cast(),
                PAGE_SIZE,
                from.as_ptr().cast(),
                from.len(),
            )
        };
        // An error is a number beyond all lengths.
        whole(n)
    }
}

fn open_lz4(from: &[u8], to: &mut Page) -> Result<(), Wrong> {
    // SAFETY: both lengths are those of the memory given; LZ4 checks what it reads against them.
    let n = unsafe {
        lz4_sys::LZ4_decompress_safe(
            from.as_ptr().cast::<c_char>(),
            to.as_mut_ptr().cast::<c_char>(),
            from.len() as c_int,
            PAGE_SIZE as c_int,
        )
    };
    whole(n as usize)
}

fn whole(n: usize) -> Result<(), Wrong> {
    match n == PAGE_SIZE {
        true => Ok(()),
        false => Err(Wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Codec; 2] = [Codec::Lz4, Codec::Zstd];

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut x = 1_u64;
        let noise: Page = core::array::from_fn(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) as u8
        });
        let text: Page = core::array::from_fn(|i| b"a page of words, "[i % 17]);
        let (mut encoder, mut decoder) = (Encoder::new().unwrap(), Decoder::new().unwrap());
        for codec in BOTH {
            assert_eq!(encoder.compress(codec, &noise, &mut [0; 3000]), None);
            let mut small = [0; 3000];
            let (made, n) = encoder.compress(codec, &text, &mut small).unwrap();
            assert!(made == codec && n < 100, "{codec:?} {n}");
            let mut back = [0; PAGE_SIZE];
            decoder.decompress(codec, &small[..n], &mut back).unwrap();
            assert!(back == text, "{codec:?}");
            let cut = &small[..n - 1];
            assert_eq!(decoder.decompress(codec, cut, &mut back), Err(Wrong));
        }
    }

    #[test]
    fn memory_is_told_of_once_it_is_used() {
        let (mut encoder, mut decoder) = (Encoder::new().unwrap(), Decoder::new().unwrap());
        let text: Page = core::array::from_fn(|i| b"a page of words, "[i % 17]);
        let (mut small, mut back) = ([0; 3000], [0; PAGE_SIZE]);
        for (codec, used) in [(Codec::Lz4, false), (Codec::Zstd, true)] {
            let (_, n) = encoder.compress(codec, &text, &mut small).unwrap();
            decoder.decompress(codec, &small[..n], &mut back).unwrap();
            assert_eq!(encoder.newly_used() > 0, used, "{codec:?}");
            assert_eq!(decoder.newly_used() > 0, used, "{codec:?}");
        }
        assert_eq!((encoder.newly_used(), decoder.newly_used()), (0, 0));
    }

    #[test]
    fn one_word_is_a_page() {
        let mut page: Page = core::array::from_fn(|i| b"one word"[i % 8]);
        let (mut encoder, mut decoder) = (Encoder::new().unwrap(), Decoder::new().unwrap());
        let mut small = [0; 100];
        let made = encoder.compress(Codec::Zstd, &page, &mut small);
        assert_eq!(made, Some((Codec::Word, 8)));
        let mut back = [0; PAGE_SIZE];
        decoder
            .decompress(Codec::Word, &small[..8], &mut back)
            .unwrap();
        assert!(back == page);
        let longer = decoder.decompress(Codec::Word, &small[..9], &mut back);
        assert_eq!(longer, Err(Wrong));
        for at in [0, 2000, PAGE_SIZE - 1] {
            page[at] ^= 1;
            let made = encoder.compress(Codec::Lz4, &page, &mut small).unwrap().0;
            assert_eq!(made, Codec::Lz4, "{at}");
            page[at] ^= 1;
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_page_or_wrong(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let mut decoder = Decoder::new().unwrap();
            for codec in [Codec::Lz4, Codec::Zstd, Codec::Word] {
                let mut guarded = [[7_u8; PAGE_SIZE]; 3];
                let _ = decoder.decompress(codec, &bytes, &mut guarded[1]);
                prop_assert!(guarded[0] == [7; PAGE_SIZE] && guarded[2] == [7; PAGE_SIZE]);
            }
        }

        #[test]
        fn pages_come_back_and_changed_ones_do_no_harm(
            seed in proptest::collection::vec(any::<u8>(), 1..600),
            change in any::<(u16, u8)>(),
        ) {
            let page: Page = core::array::from_fn(|i| seed[i % seed.len()]);
            let (mut encoder, mut decoder) = (Encoder::new().unwrap(), Decoder::new().unwrap());
            for codec in BOTH {
                let mut small = [0; 3000];
                let Some((made, n)) = encoder.compress(codec, &page, &mut small) else { continue };
                let mut back = [0; PAGE_SIZE];
                decoder.decompress(made, &small[..n], &mut back).unwrap();
                prop_assert!(back == page);
                small[usize::from(change.0) % n] ^= change.1;
                let mut guarded = [[7_u8; PAGE_SIZE]; 3];
                let _ = decoder.decompress(made, &small[..n], &mut guarded[1]);
                prop_assert!(guarded[0] == [7; PAGE_SIZE] && guarded[2] == [7; PAGE_SIZE]);
                // Nothing of that is left for the next.
                small[usize::from(change.0) % n] ^= change.1;
                decoder.decompress(made, &small[..n], &mut back).unwrap();
                prop_assert!(back == page);
            }
        }
    }
}
