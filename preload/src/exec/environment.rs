//! The environment of the next program: whether it has what the loader, and the library, need to know; and a copy
//! with what it lacks.

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use hugeswap::control::go;
use hugeswap::control::link::Door;
use hugeswap::sys::mem;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const ADDRESS: &[u8] = b"HUGESWAP_RUN=";
const DEBUG: &[u8] = b"GODEBUG=";
/// The kernel takes no more strings.
const MOST_STRINGS: usize = 1 << 20;
/// Strings of an environment that is copied, at most; and bytes of the run's address, of what Go's runtime is told, and
/// of a list of libraries. They are on the stack, which may be a small one.
const MOST_COPIED: usize = 1000;
const ROOM: usize = 400;
const ROOM_FOR_LIST: usize = 1000;

/// This library's own file, as the loader was told of it.
static LIBRARY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Before the functions of the C library become ours.
pub fn set_up() {
    // SAFETY: the structure outlives the call; the name in it is the loader's, as long as the library is there.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(set_up as *const _, &mut info) != 0 {
            LIBRARY.store(info.dli_fname.cast_mut().cast(), Release);
        }
    }
}

/// That file's name, once it is known.
fn library() -> Option<&'static [u8]> {
    let name = LIBRARY.load(Acquire);
    // SAFETY: a C string of the loader's, which stays as long as the library is there.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name.cast()) }.to_bytes())
}

/// A copy, of which some strings may be others. It stays where it is: it names texts of its own.
pub struct Copied {
    /// One may be added; the last is 0.
    strings: [usize; MOST_COPIED + 2],
    nr: usize,
    /// Which of them these are.
    address: usize,
    preload: Option<usize>,
    debug: Option<usize>,
    door: Text<ROOM>,
    told: Text<ROOM>,
    list: Text<ROOM_FOR_LIST>,
}

impl Copied {
    pub fn empty() -> Copied {
        Copied {
            strings: [0; MOST_COPIED + 2],
            nr: 0,
            address: 0,
            preload: None,
            debug: None,
            door: Text::new(),
            told: Text::new(),
            list: Text::new(),
        }
    }

    /// Copies the list. None if it is too long, can't be read, or has no address of a run.
    pub fn read(&mut self, envp: usize) -> Option<()> {
        let mut address = None;
        for i in 0..=MOST_COPIED {
            let string = string_of(envp, i)?;
            self.strings[i] = string;
            if string == 0 {
                (self.nr, self.address) = (i, address?);
                return Some(());
            }
            if address.is_none() && begins_with(string, ADDRESS) {
                address = Some(i);
            }
            // Go's runtime takes the first, and the loader the last.
            if self.debug.is_none() && begins_with(string, DEBUG) {
                self.debug = Some(i);
            }
            if begins_with(string, PRELOAD) {
                self.preload = Some(i);
            }
        }
        None
    }

    /// This library is at the head of those that are preloaded. None if there is no room for that.
    pub fn add_library(&mut self) -> Option<()> {
        let Some(at) = self.preload else {
            return Some(());
        };
        let theirs = self.string(at).strip_prefix(PRELOAD)?;
        for part in [PRELOAD, library()?, b":", theirs] {
            self.list.add(part).ok()?;
        }
        self.strings[at] = self.list.c_string()?;
        Some(())
    }

    /// Go's runtime is told to write zeros itself, if it is told nothing of that. None if there is no room for that.
    pub fn tell_go(&mut self) -> Option<()> {
        let given = self.debug.map(|at| self.string(at));
        let given = given.and_then(|given| given.strip_prefix(DEBUG));
        let Some(told) = go::told(given.unwrap_or_default()) else {
            return Some(());
        };
        for part in [DEBUG].into_iter().chain(told) {
            self.told.add(part).ok()?;
        }
        let at = self.debug.unwrap_or(self.nr);
        self.strings[at] = self.told.c_string()?;
        self.nr = self.nr.max(at + 1);
        Some(())
    }

    /// The run's address gets another door, or what is written of one is left out.
    pub fn change_door<T>(&mut self, door: impl FnOnce(&mut Text<ROOM>) -> Option<T>) -> Option<T> {
        let (address, _) = Door::split(self.string(self.address));
        self.door.add(address).ok()?;
        let made = door(&mut self.door)?;
        self.strings[self.address] = self.door.c_string()?;
        Some(made)
    }

    /// What the kernel is to read.
    pub fn list(&self) -> usize {
        self.strings.as_ptr() as usize
    }

    fn string(&self, i: usize) -> &'static [u8] {
        // SAFETY: a C string of the environment, of which the kernel will read all.
        unsafe { CStr::from_ptr(self.strings[i] as *const _) }.to_bytes()
    }
}

/// A C string that is being written.
pub struct Text<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Text<ROOM> {
    fn new() -> Self {
        Text {
            bytes: [0; ROOM],
            len: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) -> core::fmt::Result {
        let to = self.bytes.get_mut(self.len..self.len + bytes.len());
        to.ok_or(core::fmt::Error)?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// There is room for the zero.
    pub fn ends(&self) -> bool {
        self.len < ROOM
    }

    /// Where it is, if it is whole.
    fn c_string(&self) -> Option<usize> {
        self.ends().then_some(self.bytes.as_ptr() as usize)
    }
}

impl<const ROOM: usize> Write for Text<ROOM> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        self.add(s.as_bytes())
    }
}

/// What an environment has of what the loader, and the library, need to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carries {
    Everything,
    /// The run's address, and other libraries to preload in place of this one.
    Address,
    TooLittle,
}

/// One that can't be read is for the kernel to refuse.
pub fn carries(envp: usize) -> Carries {
    let (mut library, mut others, mut address) = (false, false, false);
    if envp == 0 {
        return Carries::TooLittle;
    }
    for i in 0..MOST_STRINGS {
        let Some(string) = string_of(envp, i) else {
            return Carries::Everything;
        };
        if string == 0 {
            break;
        }
        address |= begins_with(string, ADDRESS);
        if begins_with(string, PRELOAD) {
            let list = string + PRELOAD.len();
            library |= names_library(list);
            others |= !begins_with(list, b"\0");
        }
        if library && address {
            return Carries::Everything;
        }
    }
    match address && others {
        true => Carries::Address,
        false => Carries::TooLittle,
    }
}

/// A string of an environment; the last is 0. None if the list can't be read.
fn string_of(envp: usize, i: usize) -> Option<usize> {
    let mut string = [0u8; 8];
    // SAFETY: memory of ours, of that length.
    unsafe { mem::copy_from_program(envp + 8 * i, string.as_mut_ptr(), 8) }.ok()?;
    Some(usize::from_ne_bytes(string))
}

fn begins_with(string: usize, word: &[u8]) -> bool {
    let mut begin = [0u8; 16];
    let begin = &mut begin[..word.len()];
    // SAFETY: memory of ours, of that length.
    unsafe { mem::copy_from_program(string, begin.as_mut_ptr(), begin.len()) }.is_ok()
        && begin == word
}

/// Whether the library is in a list of files that can be read: it has been found to begin there.
fn names_library(list: usize) -> bool {
    let Some(own) = library() else {
        return true;
    };
    // SAFETY: a C string of the environment, of which the kernel will read all.
    let list = unsafe { CStr::from_ptr(list as *const _) }.to_bytes();
    list.split(|&b| b == b':' || b == b' ')
        .any(|file| file == own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::string::{String, ToString};
    use std::{format, vec};

    fn environment(list: &[&str]) -> (vec::Vec<CString>, vec::Vec<usize>) {
        let own: vec::Vec<CString> = list.iter().map(|s| CString::new(*s).unwrap()).collect();
        let mut all: vec::Vec<usize> = own.iter().map(|s| s.as_ptr() as usize).collect();
        all.push(0);
        (own, all)
    }

    #[test]
    fn environments() {
        let of = |list: &[&str]| {
            let (_own, all) = environment(list);
            carries(all.as_ptr() as usize)
        };
        let address = "HUGESWAP_RUN=key";
        for too_little in [
            &[][..],
            &[address],
            &["LD_PRELOAD=/x.so"],
            &["LD_PRELOAD=", address],
        ] {
            set_up();
            assert_eq!(of(too_little), Carries::TooLittle, "{too_little:?}");
        }
        assert_eq!(of(&["A=b", "LD_PRELOAD=/x.so", address]), Carries::Address);
        let own = core::str::from_utf8(library().unwrap()).unwrap();
        let with = format!("LD_PRELOAD=/x.so:{}", own);
        assert_eq!(of(&["A=b", &with, address]), Carries::Everything);
        assert_eq!(carries(0), Carries::TooLittle);
        assert_eq!(carries(8), Carries::Everything);
    }

    /// The strings of an environment after this was done with a copy of it; as it is, where there is no room.
    fn after(list: &[&str], change: impl Fn(&mut Copied) -> Option<()>) -> vec::Vec<String> {
        let (_own, all) = environment(list);
        let mut copied = Copied::empty();
        copied.read(all.as_ptr() as usize).unwrap();
        let _ = change(&mut copied);
        assert_eq!(copied.strings[copied.nr], 0);
        let text = |i: usize| core::str::from_utf8(copied.string(i)).unwrap().to_string();
        (0..copied.nr).map(text).collect()
    }

    const KEY: &str = "HUGESWAP_RUN=key";

    /// The environment that is left is as it was but for these.
    #[test]
    fn a_library_of_the_programs_own_is_preloaded_beside() {
        set_up();
        let own = core::str::from_utf8(library().unwrap()).unwrap();
        let list = format!("LD_PRELOAD={own}:/x.so:/y.so");
        let has = after(&["A=b", "LD_PRELOAD=/x.so:/y.so", KEY], Copied::add_library);
        assert_eq!(has, ["A=b", &list, KEY]);
    }

    /// What does not fit is passed on as it is.
    #[test]
    fn a_list_that_is_too_long_stays() {
        set_up();
        let long = format!("LD_PRELOAD=/{}", "x".repeat(ROOM_FOR_LIST));
        let has = after(&[&long, KEY], |copied| {
            assert!(copied.add_library().is_none());
            None
        });
        assert_eq!(has, [&long, KEY]);
    }

    #[test]
    fn go_is_told_once_and_nothing_else_than_it_was() {
        let long = format!("GODEBUG={}", "x".repeat(ROOM - 10));
        for (given, has) in [
            (&[KEY][..], &[KEY, "GODEBUG=madvdontneed=0"][..]),
            (&["GODEBUG=", KEY], &["GODEBUG=madvdontneed=0", KEY]),
            (&["GODEBUG=a=1", KEY], &["GODEBUG=a=1,madvdontneed=0", KEY]),
            (
                &["GODEBUG=madvdontneed=1", KEY],
                &["GODEBUG=madvdontneed=1", KEY],
            ),
            (
                &["GODEBUG=a=1", KEY, "GODEBUG=b=1"],
                &["GODEBUG=a=1,madvdontneed=0", KEY, "GODEBUG=b=1"],
            ),
            (&[&long, KEY], &[&long, KEY]),
        ] {
            assert_eq!(after(given, Copied::tell_go), has);
        }
    }

    #[test]
    fn as_many_strings_as_there_is_room_for() {
        let mut most = vec!["A=b"; MOST_COPIED - 1];
        most.push(KEY);
        assert_eq!(after(&most, Copied::tell_go).len(), MOST_COPIED + 1);
        most.push("B=c");
        let (_own, all) = environment(&most);
        assert!(Copied::empty().read(all.as_ptr() as usize).is_none());
    }
}
