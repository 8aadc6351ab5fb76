//! C interface to `hugeswap_page_copy`; `include/hugeswap_copy.h` is its
//! contract.
//!
//! It uses `copy` only, and adds nothing to it but numbers for what C has no words for.

use core::ffi::{c_char, c_int, CStr};
use hugeswap_page_copy::{clear_raw, copy_raw, init, CopyError, Strategy};

const BAD_STRATEGY: c_int = -20;

/// Looks at the processor, so that the first copy need not.
#[no_mangle]
pub extern "C" fn hugeswap_copy_init() {
    init();
}

/// Copies a huge page.
///
/// # Safety
/// As `hugeswap_page_copy::copy_raw`.
#[no_mangle]
pub unsafe extern "C" fn hugeswap_copy(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    target: usize,
    strategy: c_int,
) -> c_int {
    let Some(strategy) = strategy_of(strategy) else {
        return BAD_STRATEGY;
    };
    // SAFETY: the caller's promise, passed on.
    code(unsafe { copy_raw(dst, src, len, target, strategy) })
}

/// Clears a huge page.
///
/// # Safety
/// As `hugeswap_page_copy::clear_raw`.
#[no_mangle]
pub unsafe extern "C" fn hugeswap_clear(
    dst: *mut u8,
    len: usize,
    target: usize,
    strategy: c_int,
) -> c_int {
    let Some(strategy) = strategy_of(strategy) else {
        return BAD_STRATEGY;
    };
    // SAFETY: the caller's promise, passed on.
    code(unsafe { clear_raw(dst, len, target, strategy) })
}

/// The message for what the other functions return.
#[no_mangle]
pub extern "C" fn hugeswap_copy_strerror(code: c_int) -> *const c_char {
    message(code).as_ptr()
}

fn strategy_of(number: c_int) -> Option<Strategy> {
    Some(match number {
        0 => Strategy::Auto,
        1 => Strategy::Ascending,
        2 => Strategy::TargetLast,
        3 => Strategy::Ranges,
        4 => Strategy::Chunks,
        5 => Strategy::Streaming,
        _ => return None,
    })
}

fn code(result: Result<(), CopyError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(CopyError::Empty) => -1,
        Err(CopyError::PartialPage) => -2,
        Err(CopyError::TargetOutside) => -3,
        Err(CopyError::Misaligned) => -4,
        Err(CopyError::BadAddress) => -5,
        Err(CopyError::Overlap) => -6,
        Err(_) => -21,
    }
}

fn message(code: c_int) -> &'static CStr {
    match code {
        0 => c"success",
        -1 => c"the length is zero",
        -2 => c"the length is not a whole number of base pages",
        -3 => c"the target sub-page lies outside the huge page",
        -4 => c"source or destination is not aligned to a base page",
        -5 => c"source or destination is null or wraps around",
        -6 => c"source and destination overlap",
        BAD_STRATEGY => c"no such strategy",
        _ => c"unknown error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_agree_with_the_library() {
        for error in [
            CopyError::Empty,
            CopyError::PartialPage,
            CopyError::TargetOutside,
            CopyError::Misaligned,
            CopyError::BadAddress,
            CopyError::Overlap,
        ] {
            let text = message(code(Err(error))).to_str();
            assert_eq!(text, Ok(error.message()));
        }
    }

    #[test]
    fn every_strategy_has_a_number() {
        let numbered: Vec<_> = (0..).map_while(strategy_of).collect();
        for strategy in Strategy::ALL {
            assert!(numbered.contains(&strategy), "{strategy:?}");
        }
        assert_eq!(strategy_of(-1), None);
    }
}
