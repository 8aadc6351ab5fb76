//! What already stands between the program and its memory: it and we do not go together.

use core::ffi::{c_int, c_void, CStr};
use libc::{Elf64_Addr, Elf64_Sym};

/// A name that says that a sanitizer is there, and which.
const NAMES: [(&CStr, &str); 5] = [
    (c"__asan_init", "it is built with AddressSanitizer"),
    // At the end it stops every thread, the engine's too, and goes through memory.
    (c"__lsan_init", "it is built with LeakSanitizer"),
    (c"__hwasan_init", "it is built with HWAddressSanitizer"),
    (c"__tsan_init", "it is built with ThreadSanitizer"),
    (c"__msan_init", "it is built with MemorySanitizer"),
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
    program.asks_for(ASKED_FOR) && program.has(find(REPLACED) as usize)
}

/// The file that was started, as it lies in memory.
#[derive(Default)]
struct Program {
    /// Its addresses are relative to this.
    base: usize,
    /// The addresses that its segments span.
    end: usize,
    symbols: usize,
    names: usize,
    name_bytes: usize,
    /// Names from this one on are its own.
    own_from: usize,
}

/// The loader tells of the program first.
unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
    // SAFETY: the loader passes what is loaded, with its headers; `to` is the caller's.
    unsafe {
        let info = &*info;
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        *to.cast() = Program::read(info.dlpi_addr as usize, headers);
    }
    1
}

impl Program {
    /// # Safety
    /// A file that is loaded there, with its headers.
    unsafe fn read(base: usize, headers: &[libc::Elf64_Phdr]) -> Program {
        const STRTAB: u64 = 5;
        const SYMTAB: u64 = 6;
        const STRSZ: u64 = 10;
        const GNU_HASH: u64 = 0x6fff_fef5;
        let mut p = Program {
            base,
            ..Program::default()
        };
        for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD) {
            p.end = p.end.max(base + (h.p_vaddr + h.p_memsz) as usize);
        }
        let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else {
            return p;
        };
        // The loader has made addresses of them, where it may write.
        let place = |at: Elf64_Addr| match (at as usize) < base {
            true => base + at as usize,
            false => at as usize,
        };
        let mut at = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
        let mut hash = 0;
        loop {
            // SAFETY: the section ends with a tag of zero.
            let [tag, value] = unsafe { *at };
            match tag {
                0 => break,
                STRTAB => p.names = place(value),
                SYMTAB => p.symbols = place(value),
                STRSZ => p.name_bytes = value as usize,
                GNU_HASH => hash = place(value),
                _ => {}
            }
            at = at.wrapping_add(1);
        }
        if hash != 0 {
            // SAFETY: the table's second word is the first symbol that it finds; the others are asked of other files.
            p.own_from = unsafe { *(hash as *const u32).add(1) } as usize;
        }
        p
    }

    fn has(&self, at: usize) -> bool {
        (self.base..self.end).contains(&at)
    }

    /// Whether it leaves a name to others.
    fn asks_for(&self, name: &CStr) -> bool {
        if self.symbols == 0 || self.names == 0 {
            return false;
        }
        // SAFETY: the tables of a file that is loaded, as its dynamic section says.
        let (symbols, names) = unsafe {
            (
                core::slice::from_raw_parts(self.symbols as *const Elf64_Sym, self.own_from),
                core::slice::from_raw_parts(self.names as *const u8, self.name_bytes),
            )
        };
        symbols.iter().any(|symbol| {
            let at = names.get(symbol.st_name as usize..);
            symbol.st_shndx == 0 && at.is_some_and(|at| at.starts_with(name.to_bytes_with_nul()))
        })
    }
}
