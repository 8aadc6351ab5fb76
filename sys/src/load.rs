//! How many threads want a processor now.

use super::fd;
use super::syscall::{syscall, Errno};

/// `/proc/loadavg`, kept open.
pub struct Load {
    fd: i32,
    cpus: i32,
}

impl Load {
    pub fn open() -> Result<Load, Errno> {
        let list = fd::open(c"/sys/devices/system/cpu/online")?;
        let mut text = [0u8; 256];
        let cpus = online(read(list, &mut text));
        fd::close(list);
        let cpus = cpus.and_then(|n| i32::try_from(n).ok());
        let cpus = cpus.ok_or(Errno::EINVAL)?;
        let fd = fd::open(c"/proc/loadavg")?;
        Ok(Load { fd, cpus })
    }

    /// How many threads want a processor, beyond the processors that there are; below zero are those without work.
    pub fn excess(&self) -> Option<i32> {
        let mut text = [0u8; 64];
        let running = i32::try_from(running(read(self.fd, &mut text))?).ok()?;
        Some(running - self.cpus)
    }

    pub fn close(self) {
        fd::close(self.fd);
    }
}

/// The start of a file; nothing where that fails.
fn read(fd: i32, room: &mut [u8]) -> &[u8] {
    // SAFETY: the buffer outlives the call.
    let n = unsafe {
        let (at, len) = (room.as_mut_ptr() as usize, room.len());
        syscall(libc::SYS_pread64, [fd as usize, at, len, 0])
    };
    room.get(..n.unwrap_or(0)).unwrap_or_default()
}

/// How many a list of CPUs has, as `0-3,8`. One that is too long to be read whole has that many at least.
fn online(list: &[u8]) -> Option<u32> {
    let list = core::str::from_utf8(list).ok()?.trim_end();
    let ranges = list.split(',').map_while(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    Some(ranges.sum()).filter(|&n| n > 0)
}

/// The fourth field is threads that want a processor, a slash, and all there are.
fn running(loadavg: &[u8]) -> Option<u32> {
    let field = loadavg.split(|&b| b == b' ').nth(3)?;
    let digits = field.split(|&b| b == b'/').next()?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_are_found() {
        assert_eq!(running(b"0.34 1.08 1.58 3/212 7719\n"), Some(3));
        for odd in ["", "0.34 1.08", "a b c d/e f", "1 2 3 -1/4 5"] {
            assert_eq!(running(odd.as_bytes()), None, "{odd:?}");
        }
    }

    #[test]
    fn processors_are_counted() {
        for (list, n) in [
            ("0\n", 1),
            ("0-1\n", 2),
            ("0-3,8,10-11\n", 7),
            ("0-3,8-", 4),
        ] {
            assert_eq!(online(list.as_bytes()), Some(n), "{list:?}");
        }
        for odd in ["", "\n", "x", "3-1"] {
            assert_eq!(online(odd.as_bytes()), None, "{odd:?}");
        }
    }

    #[test]
    fn the_file_is_read() {
        let load = Load::open().unwrap();
        let none = Load {
            fd: load.fd,
            cpus: 0,
        };
        // At least this thread.
        assert!(none.excess().is_some_and(|n| n > 0));
        let many = Load {
            fd: load.fd,
            cpus: i32::MAX,
        };
        assert!(many.excess().is_some_and(|n| n < 0));
        load.close();
        assert_eq!(Load { fd: -1, cpus: 0 }.excess(), None);
    }
}
