//! Before another program takes the place of this one: whether hugeswap will be in it. Where it will not, the
//! supervisor is told, for such a program says nothing itself, and may be gone before anybody looks.
//!
//! As in `calls`, nothing is held here, and a signal may leave any of it. The process may be a child of
//! `vfork` that has its parent's memory, and a small stack.

mod environment;
mod file;

use core::ffi::CStr;

use hugeswap::control::link::{self, Door};
use hugeswap::control::{self, Unmanaged};
use hugeswap::sys::syscall::{raw, syscall};
use hugeswap::sys::{fd, thread, Errno};

use crate::frame::to_c;
use crate::{alone, arch, sandbox};
use environment::{carries, Carries, Copied, Text};
use file::{File, Program};

pub use environment::set_up;

const EMPTY: &CStr = c"";

extern "C-unwind" fn execve(path: *const u8, argv: usize, envp: usize) -> i64 {
    let next = look(libc::AT_FDCWD, path, 0, envp);
    // SAFETY: the call that the program asked for, with its arguments. It returns only if it fails.
    let call = |envp: usize| unsafe { raw(libc::SYS_execve, [path as usize, argv, envp, 0, 0, 0]) };
    let result = with_way(&next, envp, call);
    take_back(next.said);
    to_c(result)
}

extern "C-unwind" fn execveat(
    dir: i32,
    path: *const u8,
    argv: usize,
    envp: usize,
    flags: i32,
) -> i64 {
    let args = |envp: usize| [dir as usize, path as usize, argv, envp, flags as usize, 0];
    let next = look(dir, path, flags, envp);
    // SAFETY: as above.
    let call = |envp: usize| unsafe { raw(libc::SYS_execveat, args(envp)) };
    let result = with_way(&next, envp, call);
    take_back(next.said);
    to_c(result)
}

extern "C-unwind" fn fexecve(file: i32, argv: usize, envp: usize) -> i64 {
    if file < 0 || argv == 0 || envp == 0 {
        return to_c(-i64::from(libc::EINVAL));
    }
    execveat(file, EMPTY.as_ptr().cast(), argv, envp, libc::AT_EMPTY_PATH)
}

/// Makes the call, and sees to it that hugeswap will be in the next program: a program that may be unable to find the
/// supervisor is started with a socket whose other end the supervisor has, and a library of the program's own is
/// preloaded beside this one, not in its place. A program of Go's is told what `hugeswap run` tells one.
fn with_way(next: &Next, envp: usize, call: impl Fn(usize) -> i64) -> i64 {
    let is_ours = next.said.is_none() && hugeswap::engine::get().is_some() && !sandbox::is_there();
    let needs = Needs {
        library: is_ours && next.carries == Carries::Address,
        zeros: is_ours && next.is_go,
        door: is_ours && alone::may_be_apart() && knows_itself(),
    };
    match needs.library || needs.zeros || needs.door {
        true => with_copy(needs, envp, call),
        false => call(envp),
    }
}

/// What the next program's environment is to have that it has not.
#[derive(Clone, Copy)]
struct Needs {
    library: bool,
    /// See `crate::go`.
    zeros: bool,
    door: bool,
}

/// Whether `/proc` has this process by the number that it has for itself. Where it has not, a sandbox is being built
/// (Chromium's), which is not to have threads of ours in it.
fn knows_itself() -> bool {
    let mut number = [0u8; 16];
    let args = [
        c"/proc/self".as_ptr() as usize,
        number.as_mut_ptr() as usize,
        number.len(),
    ];
    // SAFETY: a C string, and memory of ours of that length.
    let read = unsafe { syscall(libc::SYS_readlink, args) };
    let text = read
        .ok()
        .and_then(|n| core::str::from_utf8(&number[..n]).ok());
    text.and_then(|t| t.parse().ok()) == Some(thread::getpid())
}

#[inline(never)]
fn with_copy(needs: Needs, envp: usize, call: impl Fn(usize) -> i64) -> i64 {
    let mut copied = Copied::empty();
    if copied.read(envp).is_none() || needs.library && copied.add_library().is_none() {
        return call(envp);
    }
    if needs.zeros {
        // What has no room is not told, and the program runs with less of its memory managed.
        let _ = copied.tell_go();
    }
    let socket = match needs.door {
        true => copied.change_door(make_door),
        false => None,
    };
    let result = call(copied.list());
    if let Some(socket) = socket {
        fd::close(socket);
    }
    result
}

/// Two sockets, of which the supervisor gets one, and the next program the other, which is returned.
fn make_door<const ROOM: usize>(text: &mut Text<ROOM>) -> Option<i32> {
    let [kept, handed] = link::pair().ok()?;
    let given = Door::of(handed).and_then(|door| {
        // SAFETY: the thread's errno; the entry of a hook.
        let r = unsafe {
            let errno = *libc::__errno_location();
            let r = arch::hugeswap_entry_door(handed, door.inode);
            *libc::__errno_location() = errno;
            r
        };
        if r == 0 {
            Door::of(kept)
        } else {
            Err(Errno::EINVAL)
        }
    });
    fd::close(handed);
    let stays = |door: Door| {
        // SAFETY: no pointers.
        let open = unsafe { syscall(libc::SYS_fcntl, [kept as usize, libc::F_SETFD as usize, 0]) };
        open.is_ok() && door.write(text).is_ok() && text.ends()
    };
    if given.is_ok_and(stays) {
        return Some(kept);
    }
    fd::close(kept);
    None
}

/// The program goes on as it was.
fn take_back(said: Option<control::Said>) {
    if let Some(said) = said {
        control::take_back(said);
    }
}

/// The functions of the C library, and what stands for them.
pub fn functions() -> [(&'static CStr, usize); 3] {
    [
        (c"execve", execve as *const () as usize),
        (c"execveat", execveat as *const () as usize),
        (c"fexecve", fexecve as *const () as usize),
    ]
}

/// What is known of the next program.
struct Next {
    /// Hugeswap will not be in it, as the supervisor was told.
    said: Option<control::Said>,
    carries: Carries,
    is_go: bool,
}

/// Tells the supervisor if hugeswap will not be in that program, and says what is known of it. Under a filter of
/// the program's nothing is looked at: it may not know the calls that this takes.
fn look(dir: i32, path: *const u8, flags: i32, envp: usize) -> Next {
    let nothing = Next {
        said: None,
        carries: Carries::Everything,
        is_go: false,
    };
    if hugeswap::engine::get().is_none() || sandbox::is_there() {
        return nothing;
    }
    let Some(file) = File::open(dir, path, flags) else {
        return nothing;
    };
    let (program, carries) = (file.judge(), carries(envp));
    let why = match program {
        Program::Unmanaged(why) => Some(why),
        Program::Go | Program::Other => {
            (carries == Carries::TooLittle).then_some(Unmanaged::NotLoaded)
        }
    };
    let said = why.and_then(|why| {
        // SAFETY: a C string, which the kernel has just read.
        let path = unsafe { CStr::from_ptr(path.cast()) };
        control::say_unmanaged(thread::getpid(), why, path.to_bytes())
    });
    Next {
        said,
        carries,
        is_go: program == Program::Go,
    }
}
