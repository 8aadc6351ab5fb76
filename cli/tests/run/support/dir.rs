//! Directories and mounts that go when a test ends.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use hugeswap_host::swap_spec;

/// A directory of its own on a disk, removed with all that is in it.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        static N: AtomicU32 = AtomicU32::new(0);
        let disk = swap_spec::default_directory().expect("this test needs a directory on a disk");
        let n = N.fetch_add(1, Ordering::Relaxed);
        let path = disk.join(format!("hugeswap-{name}-{}-{n}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Dir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    pub fn list(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(&self.0)
            .unwrap()
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file system of a size of its own, unmounted on drop.
pub struct Mount {
    at: PathBuf,
    _dir: Dir,
}

impl Mount {
    pub fn ext4(megabytes: u64) -> Mount {
        let dir = Dir::new("ext4");
        let image = dir.join("image");
        fs::File::create(&image)
            .and_then(|f| f.set_len(megabytes << 20))
            .unwrap();
        let args = ["-q", "-m", "0", "-O", "^has_journal"].map(OsStr::new);
        done(
            Command::new("mkfs.ext4")
                .env("PATH", path_with_sbin())
                .args(args)
                .arg(&image),
        );
        Mount::at(dir, |at| {
            let mut c = Command::new("mount");
            c.args(["-o", "loop"]).arg(&image).arg(at);
            c
        })
    }

    /// Of which so much may be used.
    pub fn with_quota(megabytes: u64, quota: u64) -> Mount {
        let dir = Dir::new("quota");
        let image = dir.join("image");
        fs::File::create(&image)
            .and_then(|f| f.set_len(megabytes << 20))
            .unwrap();
        let command = |name: &str| {
            let mut c = Command::new(name);
            c.env("PATH", path_with_sbin());
            c
        };
        done(command("mkfs.btrfs").arg("-q").arg(&image));
        let mount = Mount::at(dir, |at| {
            let mut c = Command::new("mount");
            c.args(["-o", "loop"]).arg(&image).arg(at);
            c
        });
        let at = mount.path();
        done(command("btrfs").args(["quota", "enable"]).arg(at));
        done(
            command("btrfs")
                .args(["qgroup", "limit", &format!("{quota}M")])
                .arg(at),
        );
        mount
    }

    pub fn tmpfs(options: &str) -> Mount {
        Mount::at(Dir::new("tmpfs"), |at| {
            let mut c = Command::new("mount");
            c.args(["-t", "tmpfs", "-o", options, "none"]).arg(at);
            c
        })
    }

    fn at(dir: Dir, mount: impl FnOnce(&Path) -> Command) -> Mount {
        let at = dir.join("mounted");
        fs::create_dir(&at).unwrap();
        done(&mut mount(&at));
        Mount { at, _dir: dir }
    }

    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily, if a process that a failed test left still uses it.
        for flag in ["--", "-l"] {
            let ok = Command::new("umount").arg(flag).arg(&self.at).output();
            if ok.is_ok_and(|o| o.status.success()) {
                return;
            }
        }
    }
}

fn path_with_sbin() -> String {
    format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    )
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}
