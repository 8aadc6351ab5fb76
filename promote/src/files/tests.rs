use std::io::Read;
use std::os::unix::fs::{symlink, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::*;
use crate::page::kernel_dev;

fn id_of(path: &Path) -> FileId {
    let meta = fs::metadata(path).unwrap();
    FileId {
        dev: kernel_dev(meta.dev()),
        ino: meta.ino(),
    }
}

fn dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("hugeswap-files-{name}-{}", std::process::id()));
    fs::create_dir_all(dir.join("below")).unwrap();
    dir
}

#[test]
fn paths_select() {
    let dir = dir("paths");
    let (inside, outside) = (dir.join("below/in"), dir.join("out"));
    fs::write(&inside, "1").unwrap();
    fs::write(&outside, "2").unwrap();
    let mut files = Files::new(vec![dir.join("below")]);
    assert!(files.open(id_of(&inside), None, Time(1)).is_ok());
    let err = files.open(id_of(&outside), None, Time(1)).unwrap_err();
    assert_eq!(err, Skip::NotSelected);
    assert_eq!(files.known(Time(1)), [id_of(&inside)]);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_replaced_file_is_not_the_file() {
    let dir = dir("replaced");
    let path = dir.join("below/file");
    fs::write(&path, "1").unwrap();
    let id = id_of(&path);
    let mut files = Files::new(vec![dir.clone()]);
    assert!(files.open(id, None, Time(1)).is_ok());
    fs::write(dir.join("new"), "2").unwrap();
    fs::rename(dir.join("new"), &path).unwrap();
    let err = files.open(id, None, Time(2)).unwrap_err();
    assert!(matches!(err, Skip::NotFound | Skip::NotSelected), "{err:?}");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_readers_descriptor_leads_to_a_file_without_a_name() {
    let dir = dir("unnamed");
    let path = dir.join("file");
    fs::write(&path, "1").unwrap();
    let id = id_of(&path);
    let reader = File::open(&path).unwrap();
    fs::remove_dir_all(dir).unwrap();
    let mut files = Files::default();
    let pid = Some(std::process::id());
    assert!(files.open(id, pid, Time(1)).is_ok());
    drop(reader);
    let err = files.open(id, pid, Time(2)).unwrap_err();
    assert_eq!(err, Skip::NotFound, "our own descriptor is not kept");
}

#[test]
fn a_dead_reader_is_no_error() {
    let mut files = Files::default();
    let id = FileId {
        dev: 0xfff << 20,
        ino: 3,
    };
    let err = files.open(id, Some(u32::MAX >> 2), Time(1)).unwrap_err();
    assert_eq!(err, Skip::NotFound);
}

#[test]
fn a_symbolic_link_leads_nowhere() {
    let dir = dir("links");
    let outside = dir.join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("secret"), "1").unwrap();
    let inside = dir.join("below");
    // The file, and a directory on the way to it.
    symlink(outside.join("secret"), inside.join("link")).unwrap();
    symlink(&outside, inside.join("dir")).unwrap();
    let mut files = Files::new(vec![inside.clone()]);
    let id = id_of(&outside.join("secret"));
    let err = files.open(id, None, Time(1)).unwrap_err();
    assert_eq!(err, Skip::NotSelected);
    assert!(files.known(Time(1)).is_empty());
    // One that takes the place of a directory after the walk.
    fs::remove_file(inside.join("dir")).unwrap();
    fs::create_dir(inside.join("dir")).unwrap();
    fs::write(inside.join("dir/secret"), "2").unwrap();
    let mut files = Files::new(vec![inside.clone()]);
    let id = id_of(&inside.join("dir/secret"));
    assert!(files.open(id, None, Time(1)).is_ok());
    fs::rename(inside.join("dir"), dir.join("moved")).unwrap();
    symlink(dir.join("moved"), inside.join("dir")).unwrap();
    files.ways.clear();
    assert!(
        files.open(id, None, Time(2)).is_err(),
        "the same file, by a link"
    );
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_is_no_file_is_not_opened() {
    let dir = dir("pipe");
    let pipe = dir.join("below/pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let id = id_of(&pipe);
    let mut files = Files::new(vec![dir.clone()]);
    // To open it for reading would let a writer go on.
    assert_eq!(
        files.open(id, None, Time(1)).unwrap_err(),
        Skip::NotSelected
    );
    let way = Way::Below(0, "below/pipe".into());
    files.refresh_mounts(Time(1));
    assert_eq!(files.follow(&way, id).unwrap_err(), Skip::NotRegular);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_file_under_a_lease_is_left_alone() {
    let dir = dir("lease");
    let path = dir.join("file");
    fs::write(&path, "1").unwrap();
    let id = id_of(&path);
    let holder = sys::Lease::take(File::options().write(true).open(&path).unwrap());
    let holder = holder.expect("this test needs a file system with leases for temporary files");
    let mut files = Files::new(vec![dir.clone()]);
    assert_eq!(files.open(id, None, Time(1)).unwrap_err(), Skip::Leased);
    assert!(holder.held(), "it was not asked to give it up");
    drop(holder);
    assert!(files.open(id, None, Time(20_000_000)).is_ok());
    fs::remove_dir_all(dir).unwrap();
}

/// A pipe that a file changes places with: opening it, if only for a moment, lets the writer go on that waits for that.
struct Trap {
    pipe: PathBuf,
    writer: Option<std::thread::JoinHandle<()>>,
    sprung: Arc<AtomicBool>,
}

impl Trap {
    fn set(pipe: PathBuf) -> Trap {
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let sprung = Arc::new(AtomicBool::new(false));
        let (path, was_opened) = (pipe.clone(), Arc::clone(&sprung));
        let writer = std::thread::spawn(move || {
            File::options().write(true).open(path).unwrap();
            was_opened.store(true, Ordering::SeqCst);
        });
        Trap {
            pipe,
            writer: Some(writer),
            sprung,
        }
    }

    fn check(mut self) {
        assert!(!self.sprung.load(Ordering::SeqCst), "the pipe was opened");
        // It works: now the writer goes on.
        drop(File::open(&self.pipe).unwrap());
        self.writer.take().unwrap().join().unwrap();
    }
}

/// Has `change` done again and again, while `each` is done so many times.
fn race(times: u32, mut change: impl FnMut() + Send, mut each: impl FnMut()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                change();
            }
        });
        (0..times).for_each(|_| each());
        over.store(true, Ordering::SeqCst);
    });
}

/// What stands at a path below `--path`, and on the way to it, changes all the time.
#[test]
fn paths_that_change_meanwhile_open_nothing_else() {
    let dir = dir("path-race");
    let (kept, path) = (dir.join("kept"), dir.join("below/file"));
    fs::write(&kept, "1").unwrap();
    fs::hard_link(&kept, &path).unwrap();
    let id = id_of(&kept);
    let trap = Trap::set(dir.join("pipe"));
    let next = dir.join("next");
    let mut turn = 0;
    let change = || {
        turn += 1;
        match turn % 3 {
            0 => fs::hard_link(&kept, &next),
            1 => fs::hard_link(&trap.pipe, &next),
            _ => symlink(&trap.pipe, &next),
        }
        .unwrap();
        fs::rename(&next, &path).unwrap();
        // Two names of one file: the rename did nothing.
        let _ = fs::remove_file(&next);
    };
    let mut files = Files::new(vec![dir.join("below")]);
    files.refresh_mounts(Time(1));
    let way = Way::Below(0, "file".into());
    let opened = |file: Result<File, Skip>| {
        file.is_ok_and(|file| {
            let meta = file.metadata().unwrap();
            assert!(meta.is_file() && meta.ino() == id.ino);
            true
        })
    };
    assert!(opened(files.follow(&way, id)));
    race(3000, change, || {
        opened(files.follow(&way, id));
    });
    trap.check();
    fs::remove_dir_all(dir).unwrap();
}

/// So does what a process has behind a descriptor's number.
#[test]
fn descriptors_that_change_meanwhile_open_nothing_else() {
    // Always the lowest number that is free. O_PATH: it has not opened the pipe.
    const CHANGES: &str = "use POSIX; $| = 1; print 'x'; \
                           while (1) { POSIX::close(POSIX::open($ARGV[0], O_RDONLY)); \
                                       POSIX::close(POSIX::open($ARGV[1], 010000000)); }";
    let dir = dir("descriptor-race");
    let path = dir.join("file");
    fs::write(&path, "1").unwrap();
    let id = id_of(&path);
    let trap = Trap::set(dir.join("pipe"));
    struct Ends(std::process::Child);
    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let reader = std::process::Command::new("perl")
        .args(["-e", CHANGES])
        .args([&path, &trap.pipe])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut reader = Ends(reader.unwrap());
    let mut byte = [0];
    reader
        .0
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut byte)
        .unwrap();
    let mut files = Files::default();
    files.refresh_mounts(Time(1));
    for _ in 0..10_000 {
        if let Ok(file) = files.find_open(id, reader.0.id()) {
            let meta = file.metadata().unwrap();
            assert!(meta.is_file() && meta.ino() == id.ino);
        }
    }
    drop(reader);
    trap.check();
    fs::remove_dir_all(dir).unwrap();
}
