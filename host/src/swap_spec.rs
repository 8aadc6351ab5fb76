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
    /// The same, below /dev.
    NoDevice(PathBuf),
    /// A link to what is not there.
    LeadsNowhere(PathBuf),
    /// Neither directory, file nor block device.
    WrongKind(PathBuf),
    Unreadable(PathBuf, io::Error),
    NoDefault,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::NoDevice(path) => write!(
                f,
                "there is no device '{}': 'lsblk' shows those that are there",
                path.display()
            ),
            SpecError::LeadsNowhere(path) => write!(
                f,
                "swap '{}' is a link to what is not there: make that, or give another place",
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
                "no writable directory on a disk was found: say where to swap with --swap DIRECTORY, or give \
                 '--swap none' for compressed memory alone"
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

/// What `run` takes, and the tests of swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where<P = Place> {
    Nowhere,
    Place(P),
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

    /// `DIR,size=10G,priority=5`. What is there by its whole name is that. `is_there`: of a name.
    fn parse(text: OsString, is_there: impl Fn(&Path) -> bool) -> Result<Place, String> {
        let bytes = text.as_bytes();
        let name = |end| Path::new(OsStr::from_bytes(&bytes[..end]));
        let (mut end, mut options) = (bytes.len(), Options::default());
        while !is_there(name(end)) {
            let Some(comma) = bytes[..end].iter().rposition(|&b| b == b',') else {
                break;
            };
            let word = String::from_utf8_lossy(&bytes[comma + 1..end]);
            // A directory's name has the comma.
            if word.contains('/') {
                break;
            }
            options.take(&word)?;
            end = comma;
        }
        let spec = SwapSpec::parse(name(end).into())?;
        Ok(Place {
            spec,
            size: options.size,
            priority: options.priority,
        })
    }

    fn has_options(&self) -> bool {
        self.size.is_some() || self.priority.is_some()
    }
}

/// What stands behind a place.
#[derive(Default)]
struct Options {
    size: Option<Size>,
    priority: Option<i16>,
}

impl Options {
    fn take(&mut self, word: &str) -> Result<(), String> {
        let is_new = match word.split_once('=') {
            Some(("size", value)) => {
                let size = value.parse().map_err(|e: SizeError| e.to_string())?;
                self.size.replace(size).is_none()
            }
            Some(("priority", value)) => {
                let priority = value.parse().map_err(|_| {
                    format!("priority={value} is not a whole number from -32768 to 32767")
                })?;
                self.priority.replace(priority).is_none()
            }
            _ => {
                return Err(format!(
                    "'{word}' is no option of a place: size=SIZE and priority=NUMBER are. A file with a comma \
                     in its name must be there already"
                ))
            }
        };
        match is_new {
            true => Ok(()),
            false => Err(format!(
                "{}= is given twice",
                word.split('=').next().unwrap_or(word)
            )),
        }
    }
}

/// For clap, as [`parser`]. A directory called `none` is reached as `./none`.
pub fn spec_parser() -> impl TypedValueParser<Value = Where<SwapSpec>> {
    OsStringValueParser::new().try_map(|text| match text == NOWHERE {
        true => Ok(Where::Nowhere),
        false => SwapSpec::parse(text).map(Where::Place),
    })
}

/// The same, with a place's size and priority.
pub fn place_parser() -> impl TypedValueParser<Value = Where> {
    OsStringValueParser::new().try_map(|text| {
        if text == NOWHERE {
            return Ok(Where::Nowhere);
        }
        let place = Place::parse(text, |name| fs::symlink_metadata(name).is_ok())?;
        match &place.spec {
            SwapSpec::Path(path) if path.as_os_str() == NOWHERE && place.has_options() => {
                Err("'none' takes neither a size nor a priority: nothing goes there".to_owned())
            }
            _ => Ok(Where::Place(place)),
        }
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

    /// As `run` takes it: a file that is not there yet will be made.
    pub fn find(&self) -> Result<Target, SpecError> {
        let SwapSpec::Path(path) = self else {
            return self.resolve();
        };
        if path.exists() {
            return self.resolve();
        }
        if path.is_symlink() {
            return Err(SpecError::LeadsNowhere(path.clone()));
        }
        match directory_of(path) {
            // That would be a mistyped device, and a file in memory.
            Some(dir) if dir.starts_with("/dev") => Err(SpecError::NoDevice(path.clone())),
            Some(_) => Ok(Target::File(path.clone())),
            None => self.resolve(),
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
                return Err(match path.starts_with("/dev") {
                    true => SpecError::NoDevice(path.clone()),
                    false => SpecError::Missing(path.clone()),
                })
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

/// Where a file of this name would be made. None also where only a directory can have it.
fn directory_of(path: &Path) -> Option<PathBuf> {
    let name = path.as_os_str().as_bytes();
    if name.ends_with(b"/") || name.ends_with(b"/.") {
        return None;
    }
    let dir = path.parent()?;
    let dir = match dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => dir,
    };
    dir.canonicalize().ok().filter(|dir| dir.is_dir())
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
        for device in [
            "/dev/no-such-one",
            "/dev/shm/../no-such-one",
            "/dev/shm/nothing",
        ] {
            let err = path(device).find().unwrap_err().to_string();
            assert!(err.contains("no device"), "{err}");
        }
        assert!(matches!(path("./not-there").find(), Ok(Target::File(_))));
        for missing in ["/nowhere/at/all", "/not-there/", "./not-there/."] {
            let err = path(missing).find().unwrap_err().to_string();
            assert!(err.contains(&format!("mkdir -p {missing}'")), "{err}");
        }
    }

    #[test]
    fn places_have_sizes_and_priorities() {
        let there = ["/a,b", "/x,size=1G"];
        let parse = |text: &str| {
            Place::parse(text.into(), |name| {
                there.iter().any(|t| name == Path::new(t))
            })
        };
        let path = |p: &str| SwapSpec::Path(p.into());
        assert_eq!(parse("/a").unwrap(), Place::plain(path("/a")));
        let place = parse("/a,b,priority=-2,size=1.5G").unwrap();
        assert_eq!(place.spec, path("/a,b"));
        assert_eq!(place.size.map(Size::bytes), Some(3 << 29));
        assert_eq!(place.priority, Some(-2));
        let ram = parse("ram,size=1G").unwrap();
        assert_eq!((ram.spec, ram.priority), (SwapSpec::Ram, None));
        // What is there has its whole name, and a directory may have any.
        assert_eq!(
            parse("/x,size=1G").unwrap(),
            Place::plain(path("/x,size=1G"))
        );
        assert_eq!(parse("/a,b=c/d").unwrap().spec, path("/a,b=c/d"));
        for wrong in [
            "/a,sizes=1G",
            "/a,szie=10M,priority=1",
            "/a,foo",
            "ram,foo=1",
            "/a,",
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
