//! Go's runtime gives memory back by a system call of its own, which nobody sees, and takes it for zeros when it comes
//! again; of what is in swap it would get the old contents. With cgo it maps its memory by the C library, where it
//! would be managed. So what Go code maps is left alone, unless the runtime was told to write the zeros itself
//! (`GODEBUG=madvdontneed=0`; `hugeswap run` tells it).

use core::ffi::{c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The C library's `_dl_find_object` (2.35), which takes no lock.
static FIND: AtomicUsize = AtomicUsize::new(0);
/// No memory is taken for zeros.
static ZEROS_ITSELF: AtomicBool = AtomicBool::new(false);
/// The program itself is Go's: for calls of which the caller is not known.
static PROGRAM: AtomicBool = AtomicBool::new(false);

/// In the constructor.
pub fn set_up() {
    // SAFETY: plain look-ups; nobody changes the environment yet.
    unsafe {
        let find = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr());
        FIND.store(find as usize, Relaxed);
        let debug = libc::getenv(c"GODEBUG".as_ptr());
        if !debug.is_null() {
            let zeros = writes_zeros(CStr::from_ptr(debug).to_bytes());
            ZEROS_ITSELF.store(zeros, Relaxed);
        }
        PROGRAM.store(is_of_go(libc::getauxval(libc::AT_ENTRY) as usize), Relaxed);
    }
}

/// Whether memory that the code at this address maps can't be managed. 0: it is not known which code.
pub fn must_be_left_alone(caller: usize) -> bool {
    if ZEROS_ITSELF.load(Relaxed) {
        return false;
    }
    match caller {
        0 => PROGRAM.load(Relaxed),
        at => is_of_go(at),
    }
}

/// What `GODEBUG` says: the last word counts.
fn writes_zeros(debug: &[u8]) -> bool {
    let words = debug.split(|&b| b == b',');
    let mut said = words.filter_map(|word| word.strip_prefix(b"madvdontneed="));
    said.next_back() == Some(b"0")
}

#[repr(C)]
struct Found {
    flags: u64,
    start: *const u8,
    end: *const u8,
    link_map: *const c_void,
    frames: *const c_void,
    reserved: [u64; 7],
}

/// Whether the loaded file that has this code has Go's note.
fn is_of_go(at: usize) -> bool {
    let find = FIND.load(Relaxed);
    if find == 0 {
        return false;
    }
    let mut found = Found {
        flags: 0,
        start: core::ptr::null(),
        end: core::ptr::null(),
        link_map: core::ptr::null(),
        frames: core::ptr::null(),
        reserved: [0; 7],
    };
    // SAFETY: the function of that name, as the C library declares it.
    let look: extern "C" fn(*const c_void, *mut Found) -> i32 =
        unsafe { core::mem::transmute(find) };
    if look(at as *const c_void, &mut found) != 0 || found.start.is_null() {
        return false;
    }
    // SAFETY: a loaded file begins with its headers, and stays as long as its code calls.
    unsafe { has_note(found.start as usize, found.end as usize) }
}

/// # Safety
/// A loaded file lies there.
unsafe fn has_note(start: usize, end: usize) -> bool {
    let read = |at: usize| -> Option<u64> {
        let inside = at >= start && at.checked_add(8)? <= end;
        // SAFETY: the caller's contract: its first pages and its notes can be read.
        inside.then(|| unsafe { (at as *const u64).read_unaligned() })
    };
    let headers = || -> Option<(usize, usize, usize)> {
        const ELF64: u64 = 0x0001_0102_464c_457f;
        if read(start)? & 0x0000_ffff_ffff_ffff != ELF64 & 0x0000_ffff_ffff_ffff {
            return None;
        }
        let at = start + read(start + 32)? as usize;
        let sizes = read(start + 54)?;
        Some((
            at,
            (sizes & 0xffff) as usize,
            (sizes >> 16 & 0xffff) as usize,
        ))
    };
    let Some((at, size, count)) = headers() else {
        return false;
    };
    let each = || (0..count).map(|i| at + i * size);
    let kind = |at: usize| read(at).map(|word| word as u32);
    const LOAD: u32 = 1;
    const NOTE: u32 = 4;
    let first = each().find(|&at| kind(at) == Some(LOAD));
    let Some(first) = first.and_then(|at| read(at + 16)) else {
        return false;
    };
    let by = start.wrapping_sub(first as usize & !0xfff);
    each().filter(|&at| kind(at) == Some(NOTE)).any(|at| {
        let (Some(note), Some(len)) = (read(at + 16), read(at + 32)) else {
            return false;
        };
        let note = by.wrapping_add(note as usize);
        is_note(note, note.saturating_add(len as usize), read)
    })
}

/// Whether one of the notes is of the name `Go`, with a build id.
fn is_note(mut at: usize, end: usize, read: impl Fn(usize) -> Option<u64>) -> bool {
    while at + 16 <= end {
        let (Some(sizes), Some(rest)) = (read(at), read(at + 8)) else {
            return false;
        };
        let (name, contents) = (sizes as u32 as usize, (sizes >> 32) as usize);
        const GO: u32 = u32::from_le_bytes(*b"Go\0\0");
        if name == 4 && rest as u32 == 4 && (rest >> 32) as u32 == GO {
            return true;
        }
        at += 12 + name.next_multiple_of(4) + contents.next_multiple_of(4);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        for zeros in ["madvdontneed=0", "gctrace=1,madvdontneed=1,madvdontneed=0"] {
            assert!(writes_zeros(zeros.as_bytes()), "{zeros}");
        }
        for not in [
            "",
            "madvdontneed=1",
            "madvdontneed=0,madvdontneed=1",
            "xmadvdontneed=0",
        ] {
            assert!(!writes_zeros(not.as_bytes()), "{not}");
        }
    }

    #[test]
    fn notes_are_told_apart() {
        let note = |name: &[u8], kind: u32, contents: &[u8]| {
            let mut out = Vec::new();
            for n in [name.len() as u32, contents.len() as u32, kind] {
                out.extend(n.to_le_bytes());
            }
            for part in [name, contents] {
                out.extend(part);
                out.resize(out.len().next_multiple_of(4), 0);
            }
            out
        };
        let found = |notes: &[Vec<u8>]| {
            let mut all: Vec<u8> = notes.concat();
            let end = all.len();
            all.extend([0; 16]);
            let read = |at: usize| Some(u64::from_le_bytes(all.get(at..at + 8)?.try_into().ok()?));
            is_note(0, end, read)
        };
        let (gnu, go) = (note(b"GNU\0", 3, &[7; 20]), note(b"Go\0\0", 4, b"an id"));
        assert!(found(&[gnu.clone(), go.clone()]) && found(&[go]));
        assert!(!found(&[gnu.clone(), gnu]) && !found(&[note(b"Go\0\0", 5, b"")]));
        assert!(!found(&[]) && !found(&[vec![0xff; 40]]));
    }

    #[test]
    fn this_is_not_go() {
        set_up();
        assert!(
            !must_be_left_alone(0) && !must_be_left_alone(this_is_not_go as *const () as usize)
        );
        assert!(!must_be_left_alone(1));
    }
}
