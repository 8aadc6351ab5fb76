//! What the kernel offers to watch, and what its records mean.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::format::{self, Field};
use super::tmpfs::{self, Probe};
use super::tracefs::{load, tracefs};
use crate::page::FileId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Pages `first` to `last` were asked for by a read. A `whole` read has one event, another
    /// may have more for what is later in it.
    Read {
        file: FileId,
        first: u64,
        last: u64,
        pid: u32,
        whole: bool,
    },
    /// A page came into the page cache.
    Inserted { file: FileId, page: u64, pfn: u64 },
    /// A page was accessed a second time: it is on the active list now.
    Activated { pfn: u64 },
}

/// Which of the kernel's events there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `filemap:mm_filemap_get_pages`: every read.
    Reads,
    /// `pagemap:mm_lru_activate` and `filemap:mm_filemap_add_to_page_cache`.
    Activations,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Reads => "filemap:mm_filemap_get_pages",
            Kind::Activations => "pagemap:mm_lru_activate",
        }
    }
}

/// A tracepoint and how to read its records.
#[derive(Clone, Copy, Debug)]
pub enum Point {
    Read {
        ino: Field,
        dev: Field,
        first: Field,
        last: Field,
    },
    Insert {
        ino: Field,
        dev: Field,
        index: Field,
        pfn: Field,
    },
    Activate {
        pfn: Field,
    },
    Tmpfs {
        ino: Field,
        dev: Field,
        bytes: Field,
        pos: Field,
        length: Field,
    },
}

/// What the kernel offers, found out once.
#[derive(Clone, Debug)]
pub struct Points {
    pub kind: Kind,
    pub points: Vec<(u64, Point)>,
}

impl Points {
    pub fn find() -> io::Result<Points> {
        Points::find_in(tracefs()?.as_fd())
    }

    fn find_in(dir: BorrowedFd) -> io::Result<Points> {
        match reads(dir) {
            Ok(point) => Ok(Points {
                kind: Kind::Reads,
                points: vec![point],
            }),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Points::activations(dir),
            Err(err) => Err(err),
        }
    }

    fn activations(dir: BorrowedFd) -> io::Result<Points> {
        let missing = |err: io::Error| {
            if err.kind() == io::ErrorKind::NotFound {
                io::Error::new(
                    io::ErrorKind::NotFound,
                    "this kernel has neither filemap:mm_filemap_get_pages (Linux 6.10) nor \
                     pagemap:mm_lru_activate",
                )
            } else {
                err
            }
        };
        Ok(Points {
            kind: Kind::Activations,
            points: vec![
                activate(dir).map_err(missing)?,
                insert(dir).map_err(missing)?,
            ],
        })
    }

    /// For a test of what an older kernel offers.
    pub fn find_activations() -> io::Result<Points> {
        Points::activations(tracefs()?.as_fd())
    }
}

fn field(event: &str, format: &str, name: &str) -> io::Result<Field> {
    format::field(format, name).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel's event {event} has no field {name}"),
        )
    })
}

const READS: &str = "filemap/mm_filemap_get_pages";

fn reads(dir: BorrowedFd) -> io::Result<(u64, Point)> {
    let (id, format) = load(dir, READS)?;
    Ok((id, Point::of_reads(&format)?))
}

fn insert(dir: BorrowedFd) -> io::Result<(u64, Point)> {
    let event = "filemap/mm_filemap_add_to_page_cache";
    let (id, format) = load(dir, event)?;
    let point = Point::Insert {
        ino: field(event, &format, "i_ino")?,
        dev: field(event, &format, "s_dev")?,
        index: field(event, &format, "index")?,
        pfn: field(event, &format, "pfn")?,
    };
    Ok((id, point))
}

fn activate(dir: BorrowedFd) -> io::Result<(u64, Point)> {
    let event = "pagemap/mm_lru_activate";
    let (id, format) = load(dir, event)?;
    let point = Point::Activate {
        pfn: field(event, &format, "pfn")?,
    };
    Ok((id, point))
}

pub fn tmpfs_reads(probe: &Probe) -> io::Result<(u64, Point)> {
    let (id, format) = probe.load()?;
    let event = "of reads of tmpfs";
    let point = Point::Tmpfs {
        ino: field(event, &format, "ino")?,
        dev: field(event, &format, "dev")?,
        bytes: field(event, &format, "bytes")?,
        pos: field(event, &format, "pos")?,
        length: field(event, &format, "length")?,
    };
    Ok((id, point))
}

impl Point {
    /// That of the kernel's event for reads, by its format.
    pub fn of_reads(format: &str) -> io::Result<Point> {
        Ok(Point::Read {
            ino: field(READS, format, "i_ino")?,
            dev: field(READS, format, "s_dev")?,
            first: field(READS, format, "index")?,
            last: field(READS, format, "last_index")?,
        })
    }

    /// A filter that no hit passes.
    pub fn nothing(&self) -> &'static str {
        match self {
            Point::Read { .. } | Point::Insert { .. } => "index > 0xffffffffff",
            Point::Activate { .. } => "pfn == 0",
            Point::Tmpfs { .. } => "pos > 0xffffffffffff",
        }
    }

    pub fn event(&self, pid: u32, record: &[u8]) -> Option<Event> {
        let file = |dev: &Field, ino: &Field| -> Option<FileId> {
            Some(FileId {
                dev: dev.get(record)? as u32,
                ino: ino.get(record)?,
            })
        };
        Some(match self {
            Point::Read {
                ino,
                dev,
                first,
                last,
            } => Event::Read {
                file: file(dev, ino)?,
                first: first.get(record)?,
                last: last.get(record)?,
                pid,
                whole: false,
            },
            Point::Tmpfs {
                ino,
                dev,
                bytes,
                pos,
                length,
            } => {
                let (pos, length) = (pos.get(record)?, length.get(record)?);
                let (first, last) = tmpfs::pages(pos, length, bytes.get(record)?)?;
                Event::Read {
                    file: file(dev, ino)?,
                    first,
                    last,
                    pid,
                    whole: true,
                }
            }
            Point::Insert {
                ino,
                dev,
                index,
                pfn,
            } => Event::Inserted {
                file: file(dev, ino)?,
                page: index.get(record)?,
                pfn: pfn.get(record)?,
            },
            Point::Activate { pfn } => Event::Activated {
                pfn: pfn.get(record)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A directory that looks like tracefs with these events.
    fn events(name: &str, events: &[(&str, &str)]) -> (std::path::PathBuf, File) {
        let dir = std::env::temp_dir().join(format!("hugeswap-{name}-{}", std::process::id()));
        for (event, format) in events {
            let event = dir.join("events").join(event);
            std::fs::create_dir_all(&event).unwrap();
            std::fs::write(event.join("id"), "7\n").unwrap();
            std::fs::write(event.join("format"), format).unwrap();
        }
        std::fs::create_dir_all(&dir).unwrap();
        let open = File::open(&dir).unwrap();
        (dir, open)
    }

    const PFN: &str = "\tfield:unsigned long pfn;\toffset:16;\tsize:8;\tsigned:0;\n";

    #[test]
    fn a_kernel_with_neither_event_is_told_of() {
        let (path, dir) = events("neither", &[]);
        let err = Points::find_in(dir.as_fd()).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::NotFound);
        let text = err.to_string();
        assert!(
            text.contains("neither filemap:mm_filemap_get_pages"),
            "{text}"
        );
        std::fs::remove_dir_all(path).unwrap();
        // One of the two that activations need is not enough.
        let (path, dir) = events("half", &[("pagemap/mm_lru_activate", PFN)]);
        let err = Points::find_in(dir.as_fd()).unwrap_err();
        assert!(err.to_string().contains("neither"), "{err}");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn an_event_with_other_fields_is_told_of() {
        let (path, dir) = events("fields", &[("filemap/mm_filemap_get_pages", PFN)]);
        let err = Points::find_in(dir.as_fd()).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::Unsupported);
        assert!(err.to_string().contains("no field i_ino"), "{err}");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_read_is_decoded_and_a_short_record_is_not() {
        let format = "\tfield:unsigned long i_ino;\toffset:16;\tsize:8;\tsigned:0;\n\
                      \tfield:unsigned long index;\toffset:24;\tsize:8;\tsigned:0;\n\
                      \tfield:unsigned long last_index;\toffset:32;\tsize:8;\tsigned:0;\n\
                      \tfield:dev_t s_dev;\toffset:8;\tsize:4;\tsigned:0;\n";
        let point = Point::of_reads(format).unwrap();
        let mut raw = [0; 40];
        raw[8..12].copy_from_slice(&7u32.to_ne_bytes());
        for (at, value) in [(16, 99u64), (24, 3), (32, 5)] {
            raw[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        let read = Event::Read {
            file: FileId { dev: 7, ino: 99 },
            first: 3,
            last: 5,
            pid: 1,
            whole: false,
        };
        assert_eq!(point.event(1, &raw), Some(read));
        for end in 0..40 {
            assert_eq!(point.event(1, &raw[..end]), None);
        }
        // A layout that lies beyond anything.
        let far = format.replace("offset:16", "offset:18446744073709551615");
        assert_eq!(Point::of_reads(&far).unwrap().event(1, &raw), None);
    }
}
