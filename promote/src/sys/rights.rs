//! What this process may do, and no more than it needs.
#![allow(unsafe_code)]

use std::io;

use super::check;

/// Which capabilities promotion needs, by the kernel's numbers.
const NEEDED: [u32; 6] = [
    2,  // CAP_DAC_READ_SEARCH: files of others, by handle too
    3,  // CAP_FOWNER: to leave the time of access alone
    19, // CAP_SYS_PTRACE: which files others have open
    21, // CAP_SYS_ADMIN: tracefs, the numbers of frames, the generation of an inode on xfs
    23, // CAP_SYS_NICE: pages that others have mapped
    38, // CAP_PERFMON: the kernel's events
];

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// 32 capabilities each.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

/// Gives up every capability that is not needed, for good, and for programs that might be started.
pub fn drop_capabilities() -> io::Result<()> {
    let needed = NEEDED.iter().fold(0u64, |all, bit| all | 1 << bit);
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut sets = [Sets::default(); 2];
    // SAFETY: prctl takes numbers here; the third version of the structures is a header and two
    // sets, which the calls read and write.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        // Fails where there are none: then there is nothing to clear.
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        );
        for bit in 0..64 {
            if libc::prctl(libc::PR_CAPBSET_READ, bit, 0, 0, 0) == 1 && needed >> bit & 1 == 0 {
                // Without the right to do so the set stays: what counts is below.
                libc::prctl(libc::PR_CAPBSET_DROP, bit, 0, 0, 0);
            }
        }
        check(libc::syscall(
            libc::SYS_capget,
            &mut header,
            sets.as_mut_ptr(),
        ))?;
        for (half, set) in sets.iter_mut().enumerate() {
            set.permitted &= (needed >> (32 * half)) as u32;
            set.effective = set.permitted;
            set.inheritable = 0;
        }
        check(libc::syscall(libc::SYS_capset, &header, sets.as_ptr()))?;
    }
    Ok(())
}
