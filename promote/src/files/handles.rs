//! File handles that are made from the number of an inode: so a file is found whose reader is gone.
//!
//! A handle has the inode's generation too, so that a number that is used again is not taken for the
//! file before. Most file systems take a generation of 0 for any; of xfs it has to be asked for.

use std::os::fd::BorrowedFd;

use crate::sys::{self, Handle};

/// `FILEID_INO32_GEN`: a number and a generation, of 32 bits each.
const INO32_GEN: i32 = 1;
/// xfs: the number has 64 bits.
const XFS_64: i32 = INO32_GEN | 0x80;
/// `FILEID_BTRFS_WITHOUT_PARENT`: a number, its tree's number, a generation.
const BTRFS: i32 = 0x4d;

pub fn from_number(kind: &str) -> bool {
    matches!(kind, "ext2" | "ext3" | "ext4" | "f2fs" | "xfs" | "btrfs")
}

/// `dir` is the root of a mount.
pub fn of(kind: &str, dir: BorrowedFd, ino: u64) -> Option<Handle> {
    match kind {
        "ext2" | "ext3" | "ext4" | "f2fs" => ino32(ino, 0),
        "xfs" => xfs(ino, sys::xfs_generation(dir, ino).ok()?),
        // Each subvolume numbers its own: that of this mount is tried.
        "btrfs" => btrfs(ino, &Handle::of(dir).ok()?),
        _ => None,
    }
}

fn ino32(ino: u64, generation: u32) -> Option<Handle> {
    let mut bytes = u32::try_from(ino).ok()?.to_ne_bytes().to_vec();
    bytes.extend(generation.to_ne_bytes());
    Some(Handle::new(INO32_GEN, bytes))
}

fn xfs(ino: u64, generation: u32) -> Option<Handle> {
    let mut bytes = ino.to_ne_bytes().to_vec();
    bytes.extend(generation.to_ne_bytes());
    Some(Handle::new(XFS_64, bytes))
}

fn btrfs(ino: u64, root: &Handle) -> Option<Handle> {
    let tree = root.bytes().get(8..16)?;
    let mut bytes = ino.to_ne_bytes().to_vec();
    bytes.extend(tree);
    bytes.extend(0u32.to_ne_bytes());
    Some(Handle::new(BTRFS, bytes))
}
