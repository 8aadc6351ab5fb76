//! What a thread may be, and do: its users, groups and capabilities. The kernel keeps them for each thread.

use super::syscall::{syscall, Errno};

/// More groups than these are not told from each other.
const GROUPS: usize = 64;
const CAP_SETGID: u64 = 1 << 6;
const CAP_SETUID: u64 = 1 << 7;
const CAP_VERSION_3: u32 = 0x2008_0522;

/// The calls that `Rights::of_this_thread` makes.
pub const ASKED: [i64; 4] = [
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_capget,
];

#[derive(Clone, Copy, PartialEq)]
pub struct Rights {
    /// Real, effective and saved.
    users: [u32; 3],
    groups: [u32; 3],
    more_groups: [u32; GROUPS],
    /// `usize::MAX`: more than there is room for.
    count: usize,
    caps: Caps,
}

#[derive(Clone, Copy, PartialEq)]
struct Caps {
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

impl Caps {
    const NONE: Caps = Caps {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    };

    fn of_this_thread() -> Caps {
        // The lower halves of the three, then the upper.
        let mut halves = [[0u32; 3]; 2];
        let head = [CAP_VERSION_3, 0];
        // SAFETY: the structures are as large as this version has them, and outlive the call.
        let _ = unsafe {
            let args = [head.as_ptr() as usize, halves.as_mut_ptr() as usize];
            syscall(libc::SYS_capget, args)
        };
        let [effective, permitted, inheritable] =
            [0, 1, 2].map(|i| u64::from(halves[0][i]) | u64::from(halves[1][i]) << 32);
        Caps {
            effective,
            permitted,
            inheritable,
        }
    }

    fn and(self, other: Caps) -> Caps {
        Caps {
            effective: self.effective & other.effective,
            permitted: self.permitted & other.permitted,
            inheritable: self.inheritable & other.inheritable,
        }
    }

    fn halves(self) -> [[u32; 3]; 2] {
        let all = [self.effective, self.permitted, self.inheritable];
        [all.map(|c| c as u32), all.map(|c| (c >> 32) as u32)]
    }
}

/// Whether this thread has the capability of that number now.
pub fn has(cap: u32) -> bool {
    Caps::of_this_thread().effective >> cap & 1 == 1
}

impl Rights {
    pub const NONE: Rights = Rights {
        users: [0; 3],
        groups: [0; 3],
        more_groups: [0; GROUPS],
        count: 0,
        caps: Caps::NONE,
    };

    pub fn of_this_thread() -> Rights {
        let mut r = Rights {
            caps: Caps::of_this_thread(),
            ..Rights::NONE
        };
        let ask = |nr: i64, a: &mut [u32; 3]| {
            let [x, y, z] = a.each_mut().map(|w| &raw mut *w as usize);
            // SAFETY: the words outlive the call.
            let _ = unsafe { syscall(nr, [x, y, z]) };
        };
        ask(libc::SYS_getresuid, &mut r.users);
        ask(libc::SYS_getresgid, &mut r.groups);
        // SAFETY: the array is as large as said, and outlives the call.
        r.count = unsafe {
            let args = [GROUPS, r.more_groups.as_mut_ptr() as usize];
            syscall(libc::SYS_getgroups, args)
        }
        .unwrap_or(usize::MAX);
        r
    }

    /// Who has `now` could not become this again.
    pub fn is_more_than(&self, now: &Rights) -> bool {
        let lost = |mine: &[u32; 3], theirs: &[u32; 3]| mine.iter().any(|u| !theirs.contains(u));
        let groups = (self.count, &self.more_groups) != (now.count, &now.more_groups)
            || lost(&self.groups, &now.groups);
        let left = now.caps.permitted;
        self.caps.permitted & !left != 0
            || left & CAP_SETUID == 0 && lost(&self.users, &now.users)
            || left & CAP_SETGID == 0 && groups
    }

    /// The calling thread, and no other, has these users and groups from now on, and of its capabilities those
    /// that are among these. What is not `allowed` is not tried; the error is the first of several.
    pub fn take(&self, allowed: impl Fn(i64, [usize; 6]) -> bool) -> Result<(), Errno> {
        let dumpable = [libc::PR_GET_DUMPABLE as usize, 0, 0, 0, 0];
        // SAFETY: no pointers.
        let before = unsafe { syscall(libc::SYS_prctl, dumpable) };
        let mut made = Ok(());
        self.each_call(&Rights::of_this_thread(), |nr, args| {
            let r = match allowed(nr, args) {
                // SAFETY: numbers, and structures of `each_call`'s, as large as the call takes them.
                true => unsafe { syscall(nr, args) }.map(|_| ()),
                false => Err(Errno(libc::EPERM)),
            };
            made = made.and(r);
        });
        // The kernel takes this from the process, which may have asked for it since it changed itself.
        // SAFETY: no pointers.
        unsafe {
            if before != syscall(libc::SYS_prctl, dumpable) {
                if let Ok(before) = before {
                    let args = [libc::PR_SET_DUMPABLE as usize, before, 0, 0, 0];
                    let _ = syscall(libc::SYS_prctl, args);
                }
            }
        }
        made
    }

    /// What a thread that has `mine` calls. The last depends on what the one before it has left.
    fn each_call(&self, mine: &Rights, mut call: impl FnMut(i64, [usize; 6])) {
        let three = |ids: [u32; 3]| {
            let [a, b, c] = ids.map(|id| id as usize);
            [a, b, c, 0, 0, 0]
        };
        if (mine.count, &mine.more_groups) != (self.count, &self.more_groups) {
            // Of very many none.
            let count = if self.count > GROUPS { 0 } else { self.count };
            let args = [count, self.more_groups.as_ptr() as usize, 0, 0, 0, 0];
            call(libc::SYS_setgroups, args);
        }
        if mine.groups != self.groups {
            call(libc::SYS_setresgid, three(self.groups));
        }
        if mine.users != self.users {
            call(libc::SYS_setresuid, three(self.users));
        }
        let had = Caps::of_this_thread();
        let left = had.and(self.caps);
        if left != had {
            let head = [CAP_VERSION_3, 0];
            let halves = left.halves();
            let args = [head.as_ptr() as usize, halves.as_ptr() as usize, 0, 0, 0, 0];
            call(libc::SYS_capset, args);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(users: [u32; 3], permitted: u64) -> Rights {
        Rights {
            users,
            caps: Caps {
                permitted,
                ..Caps::NONE
            },
            ..Rights::NONE
        }
    }

    #[test]
    fn only_what_can_not_be_had_back_is_given_up() {
        let root = rights([0; 3], !0);
        assert!(!root.is_more_than(&root));
        // By seteuid.
        assert!(!root.is_more_than(&rights([0, 1000, 0], !0)));
        assert!(root.is_more_than(&rights([1000; 3], 0)));
        assert!(root.is_more_than(&rights([0; 3], !1)));
        let user = rights([1000, 1000, 0], 0);
        assert!(user.is_more_than(&rights([1000; 3], 0)));
        assert!(
            !user.is_more_than(&rights([1000, 0, 0], 0))
                && !rights([1000; 3], 0).is_more_than(&user)
        );
    }

    #[test]
    fn what_is_there_is_not_asked_for() {
        let mine = Rights::of_this_thread();
        mine.each_call(&mine, |nr, _| panic!("call {nr}"));
        assert_eq!(mine.take(|_, _| false), Ok(()));
        let other = Rights {
            users: [65534; 3],
            groups: [65534; 3],
            count: GROUPS,
            caps: Caps::NONE,
            ..mine
        };
        let mut made = Vec::new();
        other.each_call(&mine, |nr, _| made.push(nr));
        let three = [
            libc::SYS_setgroups,
            libc::SYS_setresgid,
            libc::SYS_setresuid,
        ];
        assert_eq!(made[..3], three);
        assert_eq!(other.take(|_, _| false), Err(Errno(libc::EPERM)));
        assert!(Rights::of_this_thread() == mine);
    }
}
