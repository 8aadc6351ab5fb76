//! Where processes find the supervisor.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use hugeswap_control::link::{self, Address, Secret};
use hugeswap_sys::thread::random;

use crate::failure::Failure;
use crate::sys::own;

/// Where processes find the supervisor, and what they get.
pub struct Door {
    /// By its name, and by a path for those in another network namespace.
    pub(super) listening: Vec<OwnedFd>,
    /// The second one's file, by which it has a path.
    _path: Option<File>,
    pub secret: Secret,
    /// For the environment.
    pub address: String,
}

impl Door {
    pub fn open() -> Result<Door, Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            Failure::ours(format!("programs could not reach the supervisor: {e}"))
        };
        let secret = [random(), random()];
        let key = format!("{:016x}", random());
        // Where no directory can be written to, the name alone has to do.
        let (by_path, file) = listen_by_path(&key).ok().unzip();
        // By the number that /proc knows us by.
        let me = std::fs::read_link("/proc/self").unwrap_or_default();
        let path = file.as_ref().map_or_else(String::new, |file: &File| {
            format!("/proc/{}/fd/{}", me.display(), file.as_raw_fd())
        });
        let text = Address::text(&key, secret, &path);
        let address = Address::parse(text.as_bytes()).ok_or_else(|| failed(&"its name"))?;
        let by_name = address.listen().map(own).map_err(|e| failed(&e))?;
        Ok(Door {
            listening: [by_name].into_iter().chain(by_path).collect(),
            _path: file,
            secret,
            address: text,
        })
    }
}

/// A socket in a directory that anybody may write to, whose name is gone again: it is reached by the
/// descriptor of its file.
fn listen_by_path(key: &str) -> io::Result<(OwnedFd, File)> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in [std::env::temp_dir(), "/dev/shm".into(), "/run".into()] {
        let path = directory.join(format!("hugeswap-{key}"));
        let mut bytes = path.as_os_str().as_encoded_bytes().to_vec();
        bytes.push(0);
        let socket = match link::listen(&bytes) {
            Ok(fd) => own(fd),
            Err(e) => {
                last = io::Error::from_raw_os_error(e.0);
                continue;
            }
        };
        // Whoever comes has to know the secret.
        let all = std::fs::Permissions::from_mode(0o666);
        let file = std::fs::set_permissions(&path, all).and_then(|()| {
            File::options()
                .read(true)
                .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
                .open(&path)
        });
        let removed = std::fs::remove_file(&path);
        return removed.and(file).map(|file| (socket, file));
    }
    Err(last)
}
