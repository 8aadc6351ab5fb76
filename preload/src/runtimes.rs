//! What already stands between the program and its memory: it and we do not go together.

use crate::elf::Symbols;
use core::ffi::{c_int, c_void, CStr};
use core::ops::Range;

/// A name that says that a sanitizer is there, and which.
const NAMES: [(&CStr, &str); 7] = [
    (c"__asan_init", "it is built with AddressSanitizer"),
    // At the end it stops every thread, the engine's too, and goes through memory.
    (c"__lsan_init", "it is built with LeakSanitizer"),
    (c"__hwasan_init", "it is built with HWAddressSanitizer"),
    (c"__tsan_init", "it is built with ThreadSanitizer"),
    (c"__msan_init", "it is built with MemorySanitizer"),
    (
        c"__dfsan_unimplemented",
        "it is built with DataFlowSanitizer",
    ),
    // The old one, which maps by system calls of its own. Its successor does not have this name.
    (
        c"__scudo_set_rss_limit",
        "it is built with Scudo, the allocator",
    ),
];
/// What a sanitizer that is linked into the program asks others for. (gcc's do not tell their own names then.)
const ASKED_FOR: &CStr = c"__sanitizer_symbolize_code";
/// What it puts itself in front of, unless it is one that leaves memory alone.
const REPLACED: &CStr = c"pthread_create";

/// Says why the program can't be managed.
pub fn other() -> Option<&'static str> {
    let is_there = |(name, _): &&(&CStr, &str)| !find(name).is_null();
    if let Some((_, what)) = NAMES.iter().find(is_there) {
        return Some(what);
    }
    if has_a_sanitizer_inside() {
        return Some("it is built with a sanitizer");
    }
    // SAFETY: the environment is not changed by anybody yet.
    let preload = unsafe { libc::getenv(c"LD_PRELOAD".as_ptr()) };
    if preload.is_null() {
        return None;
    }
    // SAFETY: a C string of the environment.
    let list = unsafe { CStr::from_ptr(preload) }.to_bytes();
    list.windows(9)
        .any(|w| w == b"vgpreload")
        .then_some("it runs under valgrind")
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a plain look-up.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Whether the program itself has such names.
fn has_a_sanitizer_inside() -> bool {
    let mut program = Program::default();
    // SAFETY: `first` takes what it is given, and ends with the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut program).cast()) };
    program.symbols.asks_for(ASKED_FOR) && program.span.contains(&(find(REPLACED) as usize))
}

/// The file that was started, as it lies in memory.
#[derive(Default)]
struct Program {
    symbols: Symbols,
    /// The addresses that its segments span.
    span: Range<usize>,
}

/// The loader tells of the program first.
unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
    // SAFETY: the loader passes what is loaded, with its headers; `to` is the caller's.
    unsafe {
        let info = &*info;
        let (base, n) = (info.dlpi_addr as usize, info.dlpi_phnum.into());
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, n);
        let of = |kind| headers.iter().filter(move |h| h.p_type == kind);
        let end = of(libc::PT_LOAD).map(|h| base + (h.p_vaddr + h.p_memsz) as usize);
        let span = base..end.max().unwrap_or(base);
        let dynamic = of(libc::PT_DYNAMIC).next();
        let dynamic = dynamic.map_or(0, |h| base + h.p_vaddr as usize);
        let symbols = Symbols::of(base, dynamic);
        *to.cast() = Program { symbols, span };
    }
    1
}
