//! Opening swap files, and what can happen to them while they are open.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{symlink, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hugeswap_device::file::{FileDevice, Options, Via};
use hugeswap_device::{Device, DeviceError, IoError, Op, OpenError, Request, Until};
use support::{expect, grown, once, write, Memory, MIB, PAGE};

/// One test at a time: between fork and exec the commands that some of them start hold every
/// descriptor open, and with them locks, exclusive devices and deleted files.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory that goes away with its contents.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!(
            "/var/tmp/device-test-{}-{name}",
            std::process::id()
        ));
        fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn names(&self) -> usize {
        fs::read_dir(&self.0).expect("list").count()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> Result<FileDevice, OpenError> {
    FileDevice::open(path, &Options::new(64 * MIB))
}

fn refused(path: &Path) -> OpenError {
    let Err(error) = open(path) else {
        panic!("{} was accepted", path.display())
    };
    assert!(!error.to_string().is_empty());
    error
}

fn private(path: &Path) -> File {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    file.expect("a file")
}

#[test]
fn nothing_is_left_in_a_directory() {
    let _alone = alone();
    let dir = Dir::new("directory");
    let device = open(&dir.0).expect("open");
    grown(&device, 4 * MIB);
    assert_eq!(dir.names(), 0);
    let stat = File::from(device.as_fd().try_clone_to_owned().expect("dup")).metadata();
    let stat = stat.expect("stat");
    assert_eq!((stat.mode() & 0o7777, stat.nlink()), (0o600, 0));
    assert!(stat.blocks() * 512 >= 4 * MIB, "reserved");
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(device.as_fd().as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
}

#[test]
fn a_new_path_is_created_and_unlinked() {
    let _alone = alone();
    let dir = Dir::new("new");
    let device = open(&dir.path("swap")).expect("open");
    assert!(device.is_direct());
    assert_eq!(dir.names(), 0);
    let stat = File::from(device.as_fd().try_clone_to_owned().expect("dup")).metadata();
    assert_eq!(stat.expect("stat").mode() & 0o7777, 0o600);
    grown(&device, MIB);
    write(&mut *device.queue(1).expect("queue"), 0, 1, 1).expect("write");
}

#[test]
fn existing_files_are_used_only_when_nothing_is_lost() {
    let _alone = alone();
    let dir = Dir::new("existing");
    let path = dir.path("swap");

    fs::write(&path, "somebody's data").expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    assert_eq!(refused(&path), OpenError::NotEmpty { path: path.clone() });
    assert_eq!(fs::read(&path).expect("read"), b"somebody's data");

    // Space reserved and never written, as by fallocate(1).
    let file = private(&path);
    file.set_len(8 * MIB).expect("size");
    let device = open(&path).expect("holds no data");
    assert_eq!(device.capacity(), 8 * MIB);
    assert_eq!(refused(&path), OpenError::InUse { path: path.clone() });
    write(&mut *device.queue(1).expect("queue"), 0, 512, 1).expect("write");
    drop(device);
    assert_eq!(dir.names(), 1, "it was not ours to remove");

    // Now it holds old swap data, and is known to be ours.
    let device = open(&path).expect("used before");
    expect(&mut *device.queue(1).expect("queue"), 0, 512, &[1]);
    drop(device);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
    assert!(matches!(refused(&path), OpenError::Insecure { .. }));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    symlink(&path, dir.path("link")).expect("symlink");
    assert!(matches!(
        refused(&dir.path("link")),
        OpenError::Insecure { .. }
    ));
    fs::hard_link(&path, dir.path("second")).expect("link");
    assert!(matches!(refused(&path), OpenError::Insecure { .. }));
}

#[test]
fn other_things_are_refused_with_a_reason() {
    let _alone = alone();
    assert!(matches!(
        refused(Path::new("/dev/null")),
        OpenError::WrongKind { .. }
    ));
    let error = refused(Path::new("/no/such/directory/swap"));
    assert!(
        error.to_string().contains("create the directory first"),
        "{error}"
    );
    assert!(matches!(refused(Path::new("/proc")), OpenError::Os { .. }));
    let executable = std::env::current_exe().expect("path");
    refused(&executable);
}

#[test]
fn a_full_file_system_is_no_space() {
    let _alone = alone();
    let mount = Mount::tmpfs("full", "8m");
    let mut options = Options::new(64 * MIB);
    for via in [Via::Uring, Via::Sync] {
        options.via = via;
        let device = FileDevice::open(&mount.dir.0, &options).expect("open");
        grown(&device, 4 * MIB);
        assert_eq!(device.grow(32 * MIB), Err(DeviceError::NoSpace));
        let capacity = device.capacity();
        assert!(capacity < 32 * MIB);
        let mut queue = device.queue(1).expect("queue");
        write(&mut *queue, capacity / 4096 - 512, 512, 1).expect("what was reserved is there");
        // A hole given back and taken by somebody else.
        device.discard(0, 2 * MIB).expect("discard");
        let hog = fs::write(mount.dir.path("hog"), vec![1; 8 << 20]);
        assert!(hog.is_err(), "full");
        assert_eq!(write(&mut *queue, 0, 512, 2), Err(IoError::NoSpace));
        expect(&mut *queue, capacity / 4096 - 512, 512, &[1]);
        fs::remove_file(mount.dir.path("hog")).expect("remove");
        write(&mut *queue, 0, 512, 2).expect("room again");
    }
}

#[test]
fn a_truncated_file_is_an_error() {
    let _alone = alone();
    for via in [Via::Uring, Via::Sync] {
        let mut options = Options::new(64 * MIB);
        options.via = via;
        let device = FileDevice::open(Path::new("/var/tmp"), &options).expect("open");
        grown(&device, 4 * MIB);
        let mut queue = device.queue(1).expect("queue");
        let other = File::from(device.as_fd().try_clone_to_owned().expect("dup"));
        other.set_len(MIB).expect("truncate");
        let mut memory = Memory::new(512 * PAGE);
        // Half of it is there: not enough.
        let result = once(&mut *queue, Op::Read, 0, &mut memory, 512 * PAGE, 0);
        assert_eq!(result, Err(IoError::UnexpectedEnd));
        let result = once(&mut *queue, Op::Read, 2 * MIB, &mut memory, PAGE, 0);
        assert_eq!(result, Err(IoError::UnexpectedEnd));
    }
}

/// Makes the descriptor's number stand for another file, as a program does that closes all and
/// opens its own.
fn replace(number: i32, path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path);
    let file = file.expect("a file");
    // SAFETY: both numbers are open descriptors.
    assert_eq!(
        unsafe { libc::dup3(file.as_raw_fd(), number, libc::O_CLOEXEC) },
        number
    );
    file
}

#[test]
fn a_stolen_descriptor_never_sends_data_to_another_file() {
    let _alone = alone();
    let dir = Dir::new("stolen");
    for (via, steal_ring) in [(Via::Uring, false), (Via::Uring, true), (Via::Sync, false)] {
        let mut options = Options::new(64 * MIB);
        options.via = via;
        let device = FileDevice::open(&dir.0, &options).expect("open");
        grown(&device, 8 * MIB);
        let mut queue = device.queue(8).expect("queue");
        write(&mut *queue, 0, 512, 1).expect("write");

        // Some in flight, some not yet handed over.
        let memory = Memory::new(8 * 512 * PAGE);
        for tag in 0..4 {
            let addr = memory.addr().wrapping_add(tag as usize * 512 * PAGE);
            let len = 512 * PAGE;
            let req = Request {
                op: Op::Read,
                offset: 0,
                addr,
                len,
                tag,
                target: 0,
            };
            // SAFETY: the memory outlives the reaping below.
            unsafe { queue.submit(req) }.expect("submit");
            if tag == 1 {
                queue.kick();
            }
        }
        let file = replace(device.as_fd().as_raw_fd(), &dir.path("theirs"));
        if steal_ring {
            replace(queue.poll_fd().expect("a ring"), &dir.path("theirs too"));
        }
        let mut seen = [0; 4];
        while queue.in_flight() > 0 {
            queue.reap(Until::OneEnded, &mut |completion| {
                seen[completion.tag as usize] += 1;
                assert!(matches!(completion.result, Ok(()) | Err(IoError::Gone)));
                assert!(completion.result.is_ok() || steal_ring || via == Via::Sync);
            });
        }
        assert_eq!(seen, [1; 4]);
        match write(&mut *queue, 0, 512, 2) {
            Ok(()) => {
                assert!(via == Via::Uring && !steal_ring);
                expect(&mut *queue, 0, 512, &[2]);
            }
            Err(error) => {
                assert_eq!(error, IoError::Gone);
                assert!(steal_ring || via == Via::Sync);
            }
        }
        assert_eq!(
            device.grow(32 * MIB).err(),
            (device.capacity() < 32 * MIB).then_some(DeviceError::Gone)
        );
        assert_eq!(device.discard(0, 4096), Err(DeviceError::Gone));
        assert_eq!(
            file.metadata().expect("stat").len(),
            0,
            "data in a file of the program"
        );
    }
}

/// A file system mounted for a test. Needs root, as do the tests that use it.
struct Mount {
    dir: Dir,
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {args:?} (these tests need root): {errors}"
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Mount {
    fn tmpfs(name: &str, size: &str) -> Self {
        let mount = Self {
            dir: Dir::new(name),
        };
        let target = mount.dir.0.to_str().expect("text");
        run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size}"),
                "tmpfs",
                target,
            ],
        );
        mount
    }
    fn of(device: &str, name: &str) -> Self {
        let mount = Self {
            dir: Dir::new(name),
        };
        run("mount", &[device, mount.dir.0.to_str().expect("text")]);
        mount
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _status = Command::new("umount").arg("-l").arg(&self.dir.0).status();
    }
}

/// A block device over a file.
struct Loop {
    path: PathBuf,
    _dir: Dir,
}

impl Loop {
    fn new(name: &str, bytes: u64) -> Self {
        Self::with(name, bytes, &[])
    }
    fn with(name: &str, bytes: u64, options: &[&str]) -> Self {
        let dir = Dir::new(name);
        let image = dir.path("image");
        private(&image).set_len(bytes).expect("size");
        let more = ["--find", "--show", image.to_str().expect("text")];
        let path = run("losetup", &[options, &more].concat());
        Self {
            path: path.into(),
            _dir: dir,
        }
    }
    fn text(&self) -> &str {
        self.path.to_str().expect("text")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _status = Command::new("losetup")
            .arg("--detach")
            .arg(&self.path)
            .status();
    }
}

#[test]
fn a_block_device_is_used_whole() {
    let _alone = alone();
    let disk = Loop::new("block", 16 * MIB + 512);
    for via in [Via::Uring, Via::Sync] {
        let mut options = Options::new(1 << 40);
        (options.via, options.discard_blocks) = (via, true);
        let device = FileDevice::open(&disk.path, &options).expect("open");
        assert!(device.describe().starts_with("block device /dev/loop"));
        assert!(device.is_direct());
        assert_eq!(
            (device.capacity(), device.max_bytes()),
            (16 * MIB - 4096, 16 * MIB - 4096),
            "the last page is the mark's"
        );
        assert_eq!(
            device.grow(17 * MIB),
            Err(DeviceError::LimitReached {
                limit: 16 * MIB - 4096
            })
        );
        let mut queue = device.queue(4).expect("queue");
        for block in 0..7 {
            write(&mut *queue, block * 512, 512, block + 1).expect("write");
        }
        device.discard(2 * MIB, 2 * MIB).expect("discard");
        for block in 0..7 {
            let versions: &[u64] = if block == 1 { &[0, 2] } else { &[block + 1] };
            expect(&mut *queue, block * 512, 512, versions);
        }
        assert_eq!(
            refused(&disk.path),
            OpenError::InUse {
                path: disk.path.clone()
            }
        );
    }
    let small = open(&disk.path).map(|device| device.capacity());
    assert_eq!(
        small,
        Ok(16 * MIB - 4096),
        "at most the limit and at most the device"
    );
}

#[test]
fn a_block_device_with_contents_is_refused() {
    let _alone = alone();
    let disk = Loop::new("contents", 64 * MIB);
    run("mkswap", &[disk.text()]);
    let swap = refused(&disk.path);
    assert!(
        matches!(
            swap,
            OpenError::Signature {
                what: "a swap header (4 KiB pages)",
                ..
            }
        ),
        "{swap}"
    );
    run("mkfs.ext4", &["-q", "-F", disk.text()]);
    let ext4 = refused(&disk.path);
    assert!(matches!(ext4, OpenError::Signature { .. }), "{ext4}");
    assert!(ext4.to_string().contains("wipefs"));
    {
        let _mount = Mount::of(disk.text(), "contents-mount");
        let mut options = Options::new(MIB);
        options.force = true;
        let Err(error) = FileDevice::open(&disk.path, &options) else {
            panic!("mounted")
        };
        assert_eq!(
            error,
            OpenError::InUse {
                path: disk.path.clone()
            }
        );
    }
    // The lazy unmount may take a moment.
    let mut options = Options::new(64 * MIB);
    options.force = true;
    let forced = (0..50).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        FileDevice::open(&disk.path, &options).ok()
    });
    drop(forced.expect("forced"));
    let raw = OpenOptions::new()
        .write(true)
        .open(&disk.path)
        .expect("open");
    raw.write_all_at(&[0; 1 << 20], 0).expect("wipe");
    raw.sync_all().expect("sync");
    drop(raw);
    open(&disk.path).expect("nothing known on it any more, and it is marked as ours");
}

#[test]
fn a_block_device_with_unknown_data_is_refused() {
    let _alone = alone();
    let disk = Loop::new("unknown", 64 * MIB);
    let raw = |at: u64| {
        let raw = OpenOptions::new().write(true).open(&disk.path);
        let raw = raw.expect("open");
        raw.write_all_at(b"a diary", at).expect("write");
        raw.sync_all().expect("sync");
    };
    raw(12345);
    let unknown = refused(&disk.path);
    assert!(
        matches!(unknown, OpenError::UnknownData { .. }),
        "{unknown}"
    );
    assert!(unknown.to_string().contains("--overwrite"));
    let mut options = Options::new(64 * MIB);
    options.overwrite = true;
    drop(FileDevice::open(&disk.path, &options).expect("overwritten"));
    raw(54321);
    open(&disk.path).expect("swap of an earlier run");
}

#[test]
fn a_read_only_block_device_is_refused() {
    let _alone = alone();
    let disk = Loop::with("read-only", 64 * MIB, &["--read-only"]);
    let error = refused(&disk.path);
    let is_read_only = matches!(error, OpenError::Os { errno, .. } if errno == libc::EROFS || errno == libc::EACCES);
    assert!(is_read_only, "{error}");
}
