//! Whether a block device holds something that may be wanted.
//!
//! What is known by its mark (`signature`) is refused whatever the user says. Data that nobody knows may
//! be swap of an earlier run: the device's last page tells, which is ours and never swap.

use std::os::fd::BorrowedFd;

use super::super::os;
use super::{signature, OpenError};
use hugeswap_mm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// What the last page begins with.
const MARK: &[u8] = b"hugeswap: what is on this device is swap of a run, and nothing to keep\n";
/// Read at the begin and at the end, where nearly everything has something.
const EDGE: u64 = 1 << 20;
/// Pages read between.
const SAMPLES: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// Zeros, or what erased flash reads as, wherever it was looked.
    Nothing,
    /// Swap of an earlier run.
    Ours,
    Known(&'static str),
    Unknown,
}

/// Where the mark is on a device of `size` bytes; nowhere on one that is too small for swap.
fn mark_at(size: u64) -> Option<u64> {
    (size / PAGE).checked_sub(1).map(|page| page * PAGE)
}

/// What of a device of `size` bytes is for swap.
pub(super) fn usable(size: u64) -> u64 {
    mark_at(size).unwrap_or(0)
}

/// `read` fills the buffer from an offset and says whether it could.
pub(super) fn look(
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> bool,
) -> Result<Contents, signature::Unreadable> {
    if let Some(what) = signature::find(size, &mut read)? {
        return Ok(Contents::Known(what));
    }
    let mut page = [0; PAGE_SIZE];
    if let Some(at) = mark_at(size) {
        if !read(at, &mut page) {
            return Err(signature::Unreadable);
        }
        if page.starts_with(MARK) {
            return Ok(Contents::Ours);
        }
    }
    let pages = size / PAGE;
    let edge = (EDGE / PAGE).min(pages);
    let step = (pages / SAMPLES).max(1) as usize;
    let all = (0..edge)
        .chain((0..pages).step_by(step))
        .chain(pages - edge..pages);
    for number in all {
        if !read(number * PAGE, &mut page) {
            return Err(signature::Unreadable);
        }
        if page[0] != 0 && page[0] != 0xff || page.iter().any(|&b| b != page[0]) {
            return Ok(Contents::Unknown);
        }
    }
    Ok(Contents::Nothing)
}

/// Says on the device that it is ours from now on.
pub(super) fn mark(device: BorrowedFd<'_>, size: u64) -> Result<(), os::Errno> {
    let Some(at) = mark_at(size) else {
        return Ok(());
    };
    let mut page = [0; PAGE_SIZE];
    page[..MARK.len()].copy_from_slice(MARK);
    os::pwrite_slice(device, &page, at)?;
    os::sync_data(device)
}

/// The same as an error, unless `overwrite` allows it.
pub(super) fn refuse(
    contents: Contents,
    overwrite: bool,
    path: &std::path::Path,
) -> Result<(), OpenError> {
    match contents {
        Contents::Nothing | Contents::Ours => Ok(()),
        Contents::Unknown if overwrite => Ok(()),
        Contents::Unknown => Err(OpenError::UnknownData { path: path.into() }),
        Contents::Known(what) => Err(OpenError::Signature {
            path: path.into(),
            what,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(disk: &[u8]) -> Contents {
        let read = |offset: u64, buffer: &mut [u8]| {
            let from = offset as usize;
            buffer.copy_from_slice(&disk[from..from + buffer.len()]);
            true
        };
        look(disk.len() as u64, read).unwrap()
    }

    #[test]
    fn data_that_nobody_knows_is_told_from_none() {
        let mut disk = vec![0; 8 << 20];
        assert_eq!(of(&disk), Contents::Nothing);
        assert_eq!(of(&vec![0xff; 1 << 20]), Contents::Nothing);
        assert_eq!(of(&[]), Contents::Nothing);
        for at in [700, 3 << 20, (8 << 20) - 1] {
            disk[at] = 1;
            assert_eq!(of(&disk), Contents::Unknown, "{at}");
            disk[at] = 0;
        }
        disk[5000] = 1;
        let mark = mark_at(disk.len() as u64).unwrap() as usize;
        disk[mark..][..MARK.len()].copy_from_slice(MARK);
        assert_eq!(of(&disk), Contents::Ours);
        disk[..4].copy_from_slice(b"XFSB");
        assert_eq!(of(&disk), Contents::Known("an XFS file system"));
    }
}
