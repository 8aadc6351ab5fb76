//! What a block device carries: file systems, partition tables, volumes, swap headers.

/// One known mark: `magic` at `offset`.
struct Mark {
    offset: u64,
    magic: &'static [u8],
    what: &'static str,
}

const fn mark(offset: u64, magic: &'static [u8], what: &'static str) -> Mark {
    Mark {
        offset,
        magic,
        what,
    }
}

const MARKS: &[Mark] = &[
    mark(510, &[0x55, 0xaa], "a partition table or boot sector"),
    mark(512, b"EFI PART", "a GPT partition table"),
    mark(4096, b"EFI PART", "a GPT partition table"),
    mark(0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    mark(0, b"XFSB", "an XFS file system"),
    mark(0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    mark(0x400, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    mark(0x400, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS file system"),
    mark(0x400, b"H+", "an HFS+ file system"),
    mark(0x406, &[0x34, 0x34], "a NILFS2 file system"),
    mark(0x8000, b"JFS1", "a JFS file system"),
    mark(0x1_0034, b"ReIsEr", "a ReiserFS file system"),
    mark(0x1_0000, &[0x01, 0x16, 0x19, 0x70], "a GFS2 file system"),
    mark(0x8001, b"CD001", "an ISO 9660 file system"),
    mark(0, b"hsqs", "a squashfs file system"),
    mark(3, b"NTFS    ", "an NTFS file system"),
    mark(3, b"EXFAT   ", "an exFAT file system"),
    mark(
        0x1018,
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca],
        "a bcache or bcachefs device",
    ),
    mark(
        0x1018,
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9],
        "a bcachefs file system",
    ),
    mark(0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    mark(0, b"LABELONE", "an LVM physical volume"),
    mark(512, b"LABELONE", "an LVM physical volume"),
    mark(1024, b"LABELONE", "an LVM physical volume"),
    mark(1536, b"LABELONE", "an LVM physical volume"),
    mark(0, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an MD array"),
    mark(4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an MD array"),
    mark(0, b"bluestore block device", "a Ceph BlueStore device"),
    mark(32, b"ORCLDISK", "an Oracle ASM disk"),
    mark(
        0x2_0000,
        &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0],
        "a ZFS pool member",
    ),
    mark(
        0x2_1000,
        &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0],
        "a ZFS pool member",
    ),
    mark(4086, b"SWAPSPACE2", "a swap header (4 KiB pages)"),
    mark(4086, b"SWAP-SPACE", "a swap header"),
    mark(8182, b"SWAPSPACE2", "a swap header (8 KiB pages)"),
    mark(16374, b"SWAPSPACE2", "a swap header (16 KiB pages)"),
    mark(65526, b"SWAPSPACE2", "a swap header (64 KiB pages)"),
    mark(4086, b"S1SUSPEND", "a hibernation image"),
];

/// The same, counted from the device's end.
const END_MARKS: &[Mark] = &[
    mark(512, b"EFI PART", "a backup GPT partition table"),
    mark(4096, b"EFI PART", "a backup GPT partition table"),
];

const LONGEST: usize = 32;

/// A place of the device could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// The first known mark on a device of `size` bytes. `read` fills the buffer from an offset and
/// says whether it could.
pub(super) fn find(
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> bool,
) -> Result<Option<&'static str>, Unreadable> {
    let mut holds = |offset: u64, magic: &[u8]| {
        let mut buffer = [0; LONGEST];
        let Some(buffer) = buffer.get_mut(..magic.len()) else {
            return Err(Unreadable);
        };
        if offset + magic.len() as u64 > size {
            return Ok(false);
        }
        if !read(offset, buffer) {
            return Err(Unreadable);
        }
        Ok(buffer == magic)
    };
    for mark in MARKS {
        if holds(mark.offset, mark.magic)? {
            return Ok(Some(mark.what));
        }
    }
    for mark in END_MARKS.iter().filter(|mark| mark.offset <= size) {
        if holds(size - mark.offset, mark.magic)? {
            return Ok(Some(mark.what));
        }
    }
    // MD superblocks of version 0.90 and 1.0 lie near the end, on their own alignments.
    let md = [0xfc, 0x4e, 0x2b, 0xa9];
    let old = (size / 65536).checked_sub(1).map(|blocks| blocks * 65536);
    let new = (size / 512)
        .checked_sub(16)
        .map(|sectors| (sectors & !7) * 512);
    for offset in [old, new].into_iter().flatten() {
        if holds(offset, &md)? {
            return Ok(Some("a member of an MD array"));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(disk: &[u8]) -> Result<Option<&'static str>, Unreadable> {
        find(disk.len() as u64, |offset, buffer| {
            let from = offset as usize;
            buffer.copy_from_slice(&disk[from..from + buffer.len()]);
            true
        })
    }

    #[test]
    fn empty_and_tiny_devices_carry_nothing() {
        assert_eq!(look(&[0; 1 << 20]), Ok(None));
        assert_eq!(look(&[0; 4096]), Ok(None));
        assert_eq!(look(&[]), Ok(None));
    }

    #[test]
    fn every_mark_is_found() {
        for mark in MARKS {
            let mut disk = vec![0; 1 << 20];
            disk[mark.offset as usize..][..mark.magic.len()].copy_from_slice(mark.magic);
            assert!(matches!(look(&disk), Ok(Some(_))), "{}", mark.what);
            assert!(mark.magic.len() <= LONGEST);
        }
        for mark in END_MARKS {
            let mut disk = vec![0; 1 << 20];
            let at = disk.len() - mark.offset as usize;
            disk[at..][..mark.magic.len()].copy_from_slice(mark.magic);
            assert_eq!(look(&disk), Ok(Some(mark.what)));
        }
    }

    #[test]
    fn an_unreadable_device_is_not_taken_for_an_empty_one() {
        assert_eq!(find(1 << 20, |_, _| false), Err(Unreadable));
    }
}
