//! Sizes that fit where one is, when the user gives none: how much memory a run takes, and how much
//! of a disk it may use for swap. The rules are pure; what they ask of the machine is beside them.

use crate::cgroup::{GroupRoom, Own};
use crate::os;
use crate::size::{Size, GIB, MIB};

/// Less than this cannot hold the engine's own buffers and a few huge pages.
pub const LEAST_MEMORY: u64 = 48 * MIB;
/// Addresses that each process of a run must be allowed to have: the window in which its memory is
/// placed, and the program itself.
pub const LEAST_ADDRESSES: u64 = 5 << 40;
/// Writable addresses of an engine, as `ulimit -d` counts them, and a little for the program.
pub const LEAST_DATA: u64 = 256 * MIB;
/// Descriptors of the supervisor, with as many devices as there can be.
pub const LEAST_DESCRIPTORS: u64 = 48;
/// What a run needs beside its managed memory: the supervisor, the engine's tables and buffers,
/// page tables, stacks and the program's libraries.
const OUTSIDE: u64 = 24 * MIB;
/// What a memory group has to have beside `--memory`: 16 MiB, but for what is lost in rounding.
const BESIDE: u64 = 15 * MIB;
/// The smallest memory group that a run fits into.
pub const LEAST_GROUP: u64 = LEAST_MEMORY + 16 * MIB;
/// Where nothing at all is known of the machine.
const UNKNOWN: u64 = 2 * GIB;
/// What a disk keeps for others: a fifth of it, and this much at least.
const DISK_KEEPS: u64 = 10 * GIB;

/// A size, and what it follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub bytes: u64,
    pub why: String,
}

/// `--memory` where none is given: what the memory group leaves, or half of what is available.
pub fn memory() -> Chosen {
    let group = Own::find().ok().and_then(|own| own.room());
    memory_of(os::available_memory(), group)
}

fn memory_of(available: Option<u64>, group: Option<GroupRoom>) -> Chosen {
    let half = available.unwrap_or(UNKNOWN) / 2;
    let of_half = Chosen {
        bytes: half,
        why: "half of what is available".to_owned(),
    };
    let Some(room) = group else {
        return of_half;
    };
    let of_group = left_by(room);
    match of_group.bytes >= half {
        true => of_half,
        false => of_group,
    }
}

fn left_by(room: GroupRoom) -> Chosen {
    Chosen {
        bytes: room.left.saturating_sub(OUTSIDE.max(room.left / 32)),
        why: format!(
            "what the memory group's limit of {} leaves",
            Size::from_bytes(room.limit)
        ),
    }
}

/// What is used in place of so much memory where the memory group's limit is below it: the kernel would kill.
pub fn in_place_of(given: u64) -> Option<Chosen> {
    let group = Own::find().ok()?.room()?;
    let is_one = os::total_memory().is_none_or(|total| group.limit <= total);
    is_one.then(|| in_group(given, group)).flatten()
}

fn in_group(given: u64, room: GroupRoom) -> Option<Chosen> {
    let is_too_small = room.limit < given.saturating_add(BESIDE);
    let left = left_by(room);
    let chosen = match left.bytes < LEAST_MEMORY && room.limit >= LEAST_MEMORY {
        true => Chosen {
            bytes: LEAST_MEMORY,
            why: format!(
                "it is the least that a run needs, and the memory group's limit of {} has little room beside it",
                Size::from_bytes(room.limit)
            ),
        },
        // Where the group is smaller than that there can be no run.
        false => left,
    };
    (is_too_small && chosen.bytes < given).then_some(chosen)
}

/// Swap for a run of so much memory, where there is room for it.
pub fn swap_for(memory: u64) -> u64 {
    memory.saturating_mul(4)
}

/// What may go to swap files where no size is given, on a disk of `total` bytes with `free` of them: the
/// disk keeps a fifth and 10 GiB.
pub fn disk_room(total: u64, free: u64) -> u64 {
    free.saturating_sub(disk_keeps(total))
}

fn disk_keeps(total: u64) -> u64 {
    (total / 5).max(DISK_KEEPS)
}

/// The most that is swapped out to a disk where no size is given.
pub fn swap_file(memory: u64, total: u64, free: u64) -> Chosen {
    let keeps = disk_keeps(total);
    let room = disk_room(total, free);
    let wanted = swap_for(memory);
    if wanted <= room {
        Chosen {
            bytes: wanted,
            why: "four times the memory".to_owned(),
        }
    } else {
        Chosen {
            bytes: room,
            why: format!(
                "what is left when the disk keeps {} free",
                Size::from_bytes(keeps)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_available_without_a_group() {
        assert_eq!(memory_of(Some(8 * GIB), None).bytes, 4 * GIB);
        assert_eq!(memory_of(None, None).bytes, GIB);
    }

    #[test]
    fn a_group_leaves_room_for_the_run_itself() {
        let group = |limit, left| Some(GroupRoom { limit, left });
        let small = memory_of(Some(8 * GIB), group(512 * MIB, 400 * MIB));
        assert_eq!(small.bytes, 376 * MIB);
        assert!(small.why.contains("512M"), "{}", small.why);
        // A thirty-second of a large one: page tables and tables grow with it.
        let large = memory_of(Some(200 * GIB), group(64 * GIB, 64 * GIB));
        assert_eq!(large.bytes, 62 * GIB);
        // A group that leaves more than the machine has.
        assert_eq!(
            memory_of(Some(8 * GIB), group(64 * GIB, 64 * GIB)).bytes,
            4 * GIB
        );
        assert_eq!(memory_of(Some(8 * GIB), group(32 * MIB, 10 * MIB)).bytes, 0);
    }

    #[test]
    fn no_more_than_the_group_has() {
        let of = |given, limit, left| {
            let room = GroupRoom { limit, left };
            in_group(given * MIB, room).map(|c| c.bytes / MIB)
        };
        assert_eq!(of(128, 144 * MIB - 4096, 140 * MIB), None);
        assert_eq!(of(128, 140 * MIB, 138 * MIB), Some(114));
        assert_eq!(of(1024, 100 * MIB, 98 * MIB), Some(74));
        // Others in it may go: what they use now is no reason.
        assert_eq!(of(128, 512 * MIB, 100 * MIB), None);
        assert_eq!(of(128, 70 * MIB, 60 * MIB), Some(48));
        assert_eq!(of(64, 70 * MIB, 60 * MIB), Some(48));
        assert_eq!(of(48, 60 * MIB, 58 * MIB), None);
        assert_eq!(of(64, 40 * MIB, 38 * MIB), Some(14));
        assert_eq!(of(48, 48 * MIB, 48 * MIB), None);
    }

    #[test]
    fn a_disk_is_not_filled() {
        let bytes = |memory, total, free| swap_file(memory, total, free).bytes;
        assert_eq!(bytes(64 * MIB, 200 * GIB, 100 * GIB), 256 * MIB);
        assert_eq!(bytes(2 * GIB, 200 * GIB, 100 * GIB), 8 * GIB);
        assert_eq!(bytes(64 * GIB, 200 * GIB, 100 * GIB), 60 * GIB);
        assert_eq!(bytes(64 * GIB, 20 * GIB, 15 * GIB), 5 * GIB);
        assert_eq!(bytes(GIB, 20 * GIB, 9 * GIB), 0);
        assert_eq!(bytes(u64::MAX, 200 * GIB, 100 * GIB), 60 * GIB);
    }
}
