//! Reads of tmpfs. They pass none of the kernel's events, so an event is made: a probe at the
//! beginning of the function that reads, which takes the file and the place out of its arguments.
//! Where in the kernel's structures these are, the kernel's own types say.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::btf::Btf;
use super::tracefs;
use crate::sys;

const GROUP: &str = "hugeswap";
const FUNCTION: &str = "shmem_file_read_iter";
const DEFINITIONS: &str = "kprobe_events";

/// The probe in the kernel. It costs nothing as long as nobody has its event open, and goes with us.
#[derive(Debug)]
pub struct Probe {
    tracefs: OwnedFd,
    name: String,
}

impl Probe {
    pub fn make() -> io::Result<Probe> {
        let arguments = arguments(&Btf::kernel()?)?;
        let tracefs = tracefs::tracefs()?;
        let known = sys::read_at(tracefs.as_fd(), DEFINITIONS).map_err(|err| {
            let text = match err.kind() {
                io::ErrorKind::NotFound => "this kernel has no kprobes".to_owned(),
                _ => format!("{DEFINITIONS}: {err}"),
            };
            io::Error::new(err.kind(), text)
        })?;
        for name in left_behind(&known, |pid| {
            std::path::Path::new(&format!("/proc/{pid}")).exists()
        }) {
            // If it is in use after all, it stays.
            let _ = sys::append_at(tracefs.as_fd(), DEFINITIONS, &format!("-:{GROUP}/{name}"));
        }
        let name = format!("tmpfs_read_{}", std::process::id());
        let definition = format!("p:{GROUP}/{name} {FUNCTION} {arguments}");
        sys::append_at(tracefs.as_fd(), DEFINITIONS, &definition)
            .map_err(|err| io::Error::new(err.kind(), format!("a probe at {FUNCTION}: {err}")))?;
        Ok(Probe { tracefs, name })
    }

    /// Its number and the layout of its records.
    pub fn load(&self) -> io::Result<(u64, String)> {
        tracefs::load(self.tracefs.as_fd(), &format!("{GROUP}/{}", self.name))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let remove = format!("-:{GROUP}/{}", self.name);
        let _ = sys::append_at(self.tracefs.as_fd(), DEFINITIONS, &remove);
    }
}

/// What the probe takes down: `ssize_t shmem_file_read_iter(struct kiocb *, struct iov_iter *)`.
fn arguments(btf: &Btf) -> io::Result<String> {
    let at = |structure: &str, member: &str, size: u32| {
        btf.member(structure, member, size).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel's types have no {structure}.{member} of {size} bytes"),
            )
        })
    };
    let file = format!("+{}(%di)", at("kiocb", "ki_filp", 8)?);
    let inode = format!("+{}({file})", at("file", "f_inode", 8)?);
    let superblock = format!("+{}({inode})", at("inode", "i_sb", 8)?);
    Ok(format!(
        "ino=+{}({inode}):u64 dev=+{}({superblock}):u32 bytes=+{}({inode}):u64 \
         pos=+{}(%di):u64 length=+{}(%si):u64",
        at("inode", "i_ino", 8)?,
        at("super_block", "s_dev", 4)?,
        at("inode", "i_size", 8)?,
        at("kiocb", "ki_pos", 8)?,
        at("iov_iter", "count", 8)?,
    ))
}

/// Probes of such as were killed.
fn left_behind(definitions: &str, lives: impl Fn(u32) -> bool) -> Vec<&str> {
    let of = |line| {
        let (_, name) = str::split_once(line, ':')?;
        let name = name.split_whitespace().next()?;
        let name = name.strip_prefix(GROUP)?.strip_prefix('/')?;
        let pid = name.strip_prefix("tmpfs_read_")?.parse().ok()?;
        (pid == std::process::id() || !lives(pid)).then_some(name)
    };
    definitions.lines().filter_map(of).collect()
}

/// Which pages a read of so many bytes at `pos` asks for, of a file of `size` bytes.
pub fn pages(pos: u64, length: u64, size: u64) -> Option<(u64, u64)> {
    // No read transfers more.
    const MOST: u64 = 1 << 31;
    let end = pos.checked_add(length.min(MOST))?.min(size);
    (pos < end).then(|| (pos / crate::page::PAGE, (end - 1) / crate::page::PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_read() {
        assert_eq!(pages(0, 4096, 1 << 20), Some((0, 0)));
        assert_eq!(pages(4095, 2, 1 << 20), Some((0, 1)));
        assert_eq!(pages(8192, 1 << 40, 12_289), Some((2, 3)));
        assert_eq!(pages(0, 1 << 62, u64::MAX), Some((0, (1 << 19) - 1)));
        assert_eq!(pages(4096, 4096, 4096), None, "at the end");
        assert_eq!(pages(0, 0, 4096), None);
        assert_eq!(pages(u64::MAX, 4096, u64::MAX), None);
    }

    #[test]
    fn those_of_the_killed_are_found() {
        let text = "p:hugeswap/tmpfs_read_7 shmem_file_read_iter ino=+64(+32(%di)):u64\n\
                    p:hugeswap/tmpfs_read_8 shmem_file_read_iter\n\
                    r16:hugeswap/tmpfs_read_9 shmem_file_read_iter\n\
                    p:hugeswap/other shmem_file_read_iter\n\
                    p:kprobes/tmpfs_read_7 shmem_file_read_iter\n\
                    p\n\n";
        let lives = |pid| pid == 8;
        assert_eq!(left_behind(text, lives), ["tmpfs_read_7", "tmpfs_read_9"]);
    }

    #[test]
    fn the_running_kernel_has_the_members() {
        match Btf::kernel() {
            Ok(btf) => {
                let arguments = arguments(&btf).unwrap();
                assert!(arguments.starts_with("ino=+"), "{arguments}");
            }
            Err(err) => assert_eq!(err.kind(), io::ErrorKind::NotFound, "{err}"),
        }
    }
}
