//! What `--swap` names, and where swap goes when nothing is named.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::os;
use crate::size::{Size, SizeError};

/// As written: nothing has been looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapSpec {
    Ram,
    Path(PathBuf),
}

/// The word for no place at all: what leaves the program stays in compressed memory.
pub const NOWHERE: &str = "none";

/// What was found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Ram,
    Directory(PathBuf),
    File(PathBuf),
    BlockDevice(PathBuf),
}

#[derive(Debug)]
pub enum SpecError {
    Missing(PathBuf),
    /// Neither directory, file nor block device.
    WrongKind(PathBuf),
    Unreadable(PathBuf, io::Error),
    NoDefault,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::Missing(path) if path.starts_with("/dev") => write!(
                f,
                "there is no device '{}': 'lsblk' shows those that are there",
                path.display()
            ),
            SpecError::Missing(path) => {
                let path = path.display();
                write!(
                    f,
                    "swap '{path}' does not exist: create the directory with 'mkdir -p {path}', \
                     or give another directory, a file, a block device or 'ram'"
                )
            }
            SpecError::WrongKind(path) => write!(
                f,
                "swap '{}' is neither a directory, a file nor a block device: give one of these, or 'ram'",
                path.display()
            ),
            SpecError::Unreadable(path, err) => {
                write!(f, "can't look at swap '{}': {err}", path.display())
            }
            SpecError::NoDefault => write!(
                f,
                "no writable directory on a disk was found: say where to swap with --swap DIRECTORY"
            ),
        }
    }
}

impl std::error::Error for SpecError {}

/// For clap: paths need not be UTF-8. A directory called `ram` is reached as
/// `./ram`.
pub fn parser() -> impl TypedValueParser<Value = SwapSpec> {
    OsStringValueParser::new().try_map(SwapSpec::parse)
}

/// What `run` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    Nowhere,
    Place(Place),
}

/// A place as `run` takes it: with a size and a priority of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub spec: SwapSpec,
    /// The most that goes there.
    pub size: Option<Size>,
    /// The highest is used first, 0 where none is given; those that were given the same in turn.
    pub priority: Option<i16>,
}

impl Place {
    pub fn plain(spec: SwapSpec) -> Place {
        Place {
            spec,
            size: None,
            priority: None,
        }
    }

    /// `DIR,size=10G,priority=5`; what does not look like that belongs to the name.
    fn parse(text: OsString) -> Result<Place, String> {
        let bytes = text.as_bytes();
        let (mut end, mut size, mut priority) = (bytes.len(), None, None);
        while let Some(comma) = bytes[..end].iter().rposition(|&b| b == b',') {
            let word = std::str::from_utf8(&bytes[comma + 1..end]).unwrap_or("");
            if let Some(value) = word.strip_prefix("size=") {
                let value: Size = value.parse().map_err(|e: SizeError| e.to_string())?;
                if size.replace(value).is_some() {
                    return Err("size= is given twice".to_owned());
                }
            } else if let Some(value) = word.strip_prefix("priority=") {
                let value = value.parse::<i16>().map_err(|_| {
                    format!("priority={value} is not a whole number from -32768 to 32767")
                })?;
                if priority.replace(value).is_some() {
                    return Err("priority= is given twice".to_owned());
                }
            } else {
                break;
            }
            end = comma;
        }
        let spec = SwapSpec::parse(OsStr::from_bytes(&bytes[..end]).to_owned())?;
        Ok(Place {
            spec,
            size,
            priority,
        })
    }
}

/// For clap, as [`parser`]. A directory called `none` is reached as `./none`.
pub fn place_parser() -> impl TypedValueParser<Value = Where> {
    OsStringValueParser::new().try_map(|text| match text == NOWHERE {
        true => Ok(Where::Nowhere),
        false => Place::parse(text).map(Where::Place),
    })
}

impl fmt::Display for SwapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapSpec::Ram => f.write_str("ram"),
            SwapSpec::Path(path) => path.display().fmt(f),
        }
    }
}

impl SwapSpec {
    fn parse(text: OsString) -> Result<SwapSpec, &'static str> {
        if text.is_empty() {
            Err("empty: give a directory, a file, a block device or 'ram'")
        } else if text == "ram" {
            Ok(SwapSpec::Ram)
        } else {
            Ok(SwapSpec::Path(text.into()))
        }
    }

    pub fn resolve(&self) -> Result<Target, SpecError> {
        let path = match self {
            SwapSpec::Ram => return Ok(Target::Ram),
            SwapSpec::Path(path) => path,
        };
        let kind = match fs::metadata(path) {
            Ok(meta) => meta.file_type(),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(SpecError::Missing(path.clone()))
            }
            Err(err) => return Err(SpecError::Unreadable(path.clone(), err)),
        };
        if kind.is_dir() {
            Ok(Target::Directory(path.clone()))
        } else if kind.is_file() {
            Ok(Target::File(path.clone()))
        } else if kind.is_block_device() {
            Ok(Target::BlockDevice(path.clone()))
        } else {
            Err(SpecError::WrongKind(path.clone()))
        }
    }
}

/// The first of the usual directories that is writable and not memory itself:
/// /var/tmp is meant for large files that outlive a boot, /tmp often is tmpfs.
pub fn default_directory() -> Result<PathBuf, SpecError> {
    let fixed = ["/var/tmp", "/var/cache", "/var/lib", "/tmp"];
    let home = std::env::var_os("HOME").map(PathBuf::from);
    fixed
        .iter()
        .map(PathBuf::from)
        .chain(home)
        .find(|dir| os::is_writable(dir) && on_a_disk(dir))
        .ok_or(SpecError::NoDefault)
}

fn on_a_disk(dir: &Path) -> bool {
    matches!(os::is_memory_backed(dir), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let path = |p: &str| SwapSpec::Path(p.into());
        assert_eq!(SwapSpec::Ram.resolve().unwrap(), Target::Ram);
        assert!(matches!(path("/").resolve(), Ok(Target::Directory(_))));
        assert!(matches!(
            path("/proc/self/exe").resolve(),
            Ok(Target::File(_))
        ));
        assert!(matches!(
            path("/dev/null").resolve(),
            Err(SpecError::WrongKind(_))
        ));
        let err = path("/nowhere/at/all").resolve().unwrap_err();
        assert!(
            err.to_string().contains("mkdir -p /nowhere/at/all"),
            "{err}"
        );
    }

    #[test]
    fn places_have_sizes_and_priorities() {
        let parse = |text: &str| Place::parse(text.into());
        let path = |p: &str| SwapSpec::Path(p.into());
        assert_eq!(parse("/a").unwrap(), Place::plain(path("/a")));
        let place = parse("/a,b,priority=-2,size=1.5G").unwrap();
        assert_eq!(place.spec, path("/a,b"));
        assert_eq!(place.size.map(Size::bytes), Some(3 << 29));
        assert_eq!(place.priority, Some(-2));
        let ram = parse("ram,size=1G").unwrap();
        assert_eq!((ram.spec, ram.priority), (SwapSpec::Ram, None));
        assert_eq!(parse("/a,sizes=1G").unwrap().spec, path("/a,sizes=1G"));
        for wrong in [
            ",size=1G",
            "/a,size=x",
            "/a,priority=1.5",
            "/a,size=1G,size=2G",
            "",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_is_no_default() {
        assert!(!on_a_disk(Path::new("/proc/nowhere")));
        if os::is_memory_backed(Path::new("/dev/shm")).unwrap() {
            assert!(!on_a_disk(Path::new("/dev/shm")));
        }
    }
}
