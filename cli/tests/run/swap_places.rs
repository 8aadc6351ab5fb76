//! What `--swap` and `--swap-size` name, and how much goes where.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{compile, hugeswap, lock, machine, Dir, Done, Mount, Run};

fn hog(megabytes: &str) -> [String; 2] {
    [compile("hog").display().to_string(), megabytes.into()]
}

/// What the places got, as `--verbose` tells it.
fn sizes(done: &Done) -> Vec<&str> {
    let line = done.stderr.lines().next().unwrap();
    let parts = line.split(" up to ").skip(1);
    parts.map(|p| p.split([',', ' ']).next().unwrap()).collect()
}

/// The total is for both, and neither is refused for want of it.
#[test]
fn a_total_is_shared() {
    let (first, second) = (Mount::ext4(200), Mount::ext4(56));
    let done = Run::new(64, hog("160"))
        .swap(first.path())
        .option(format!("--swap={}", second.path().display()))
        .option("--swap-size=160M")
        .option("--verbose")
        .ok();
    // The second has no more room, and what the first does not use is the second's.
    assert_eq!(sizes(&done), ["160M", "32M"], "{done}");
    assert!(done.stderr.contains("in all up to 160M"), "{done}");
    done.has_swapped();
    assert_eq!(done.counter("swap_full"), 0, "{done}");
}

#[test]
fn sizes_and_priorities() {
    let (first, second) = (Dir::new("first"), Dir::new("second"));
    let done = Run::new(64, hog("128"))
        .swap(format!("{},size=64M", first.path().display()))
        .option(format!(
            "--swap={},priority=1,size=96M",
            second.path().display()
        ))
        .option("--verbose")
        .ok();
    // The highest priority is the first.
    let at = |dir: &Dir| done.stderr.find(dir.path().to_str().unwrap());
    assert!(at(&second) < at(&first), "{done}");
    assert_eq!(sizes(&done), ["96M", "64M"], "{done}");
    done.has_swapped();
}

#[test]
fn more_than_there_is_room_for() {
    let disk = Mount::ext4(80);
    let done = Run::new(64, ["true"])
        .swap(format!("{},size=1G", disk.path().display()))
        .go();
    assert_eq!(done.code(), Some(125), "{done}");
    assert!(done.stderr.contains("no room for 1G"), "{done}");
}

/// Places that have more room than the total let go no more than that: then swap is full.
#[test]
fn a_total_is_kept() {
    let (first, second) = (Dir::new("first"), Dir::new("second"));
    let done = Run::new(64, hog("240"))
        .above(240)
        .swap(first.path())
        .option(format!("--swap={}", second.path().display()))
        .option("--swap-size=96M")
        .ok();
    assert!(done.stderr.contains("swap is full"), "{done}");
    assert!(done.counter("peak_swapped_bytes") <= 96 << 20, "{done}");
}

/// Without a size: four times the memory, less where the disk is short of room.
#[test]
fn by_default() {
    let dir = Dir::new("default");
    let done = Run::new(64, ["true"])
        .swap(format!(
            "./{}",
            dir.path().file_name().unwrap().to_str().unwrap()
        ))
        .inside(dir.path().parent().unwrap())
        .option("--verbose")
        .ok();
    let short_of_room = done.stderr.contains("when the disk keeps");
    assert!(sizes(&done) == ["256M"] || short_of_room, "{done}");
}

/// A file that was there before is as long afterwards.
#[test]
fn a_file_keeps_its_length() {
    let dir = Dir::new("file");
    for len in [0, 5 << 20, 128 << 20] {
        let _ = fs::remove_file(dir.join("swap"));
        let (path, file) = private_file(&dir);
        file.set_len(len).unwrap();
        let done = Run::new(64, hog("128")).swap(&path).ok();
        done.has_swapped();
        let after = fs::metadata(&path).unwrap();
        assert_eq!(after.len(), len, "{done}");
        // Used again, as ours.
        Run::new(64, hog("96")).swap(&path).ok();
        assert!(len >= 32 << 20 || after.blocks() * 512 <= len, "{after:?}");
    }
}

/// What is there by its whole name is that, and has no options.
#[test]
fn a_file_with_a_comma() {
    let dir = Dir::new("comma");
    let (plain, _) = private_file(&dir);
    let path = dir.join("swap,size=40M");
    fs::rename(plain, &path).unwrap();
    let done = Run::new(64, hog("160")).swap(&path).ok();
    done.has_swapped();
    assert!(!dir.join("swap").exists());
}

/// Data that nobody knows is not thrown away without being asked for, and `doctor` says the same.
#[test]
fn a_block_device_with_data() {
    let dir = Dir::new("block");
    let image = dir.join("image");
    fs::write(&image, [b"a diary".as_slice(), &[0; 4096]].concat()).unwrap();
    File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(200 << 20)
        .unwrap();
    let losetup = |args: &[&str]| {
        let output = Command::new("losetup").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let device = losetup(&["--find", "--show", image.to_str().unwrap()]);
    let run = || Run::new(64, hog("128")).swap(&device);
    let doctor = || {
        let mut doctor = Command::new(hugeswap());
        let output = doctor.args(["doctor", "--swap", &device]).output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("--overwrite")
    };
    let (refused, is_said) = (run().go(), doctor());
    let done = run().option("--overwrite").go();
    // From then on it is known as ours.
    let (again, is_still_said) = (run().go(), doctor());
    losetup(&["--detach", &device]);
    assert_eq!(refused.code(), Some(125), "{refused}");
    assert!(
        refused.stderr.contains("--overwrite") && is_said,
        "{refused}"
    );
    for done in [done, again] {
        assert!(done.status.success(), "{done}");
        done.has_swapped();
    }
    assert!(!is_still_said);
}

fn private_file(dir: &Dir) -> (PathBuf, File) {
    let path = dir.join("swap");
    let mut options = File::options();
    options.create_new(true).write(true).mode(0o600);
    let file = options.open(&path).unwrap();
    (path, file)
}

/// Who still holds a file may be a run that has just ended: it is waited for, and said; but not for ever.
#[test]
fn a_file_that_is_in_use() {
    let dir = Dir::new("in-use");
    let (path, file) = private_file(&dir);
    lock(&file);
    let mut run = Run::new(64, hog("96")).swap(&path).start();
    run.wait_for_stderr("is in use: waiting");
    drop(file);
    let done = run.finish();
    assert!(done.status.success(), "{done}");
    done.has_swapped();
    let file = File::open(&path).unwrap();
    lock(&file);
    let done = Run::new(64, hog("96")).swap(&path).go();
    assert_eq!(done.code(), Some(125), "{done}");
    assert!(done.stderr.contains("choose another"), "{done}");
}

/// The next run begins in the moment in which the one before ends, or is killed.
#[test]
fn a_file_again_and_again() {
    let dir = Dir::new("again");
    let (path, _) = private_file(&dir);
    let _machine = machine();
    let run = |program: &[String]| {
        let mut command = Command::new(hugeswap());
        command.args(["run", "--memory=64M", "--swap-size=1G", "--swap"]);
        command.arg(&path).arg("--").args(program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let [program, size] = hog("128");
    for _ in 0..6 {
        let output = run(&[program.clone(), size.clone()]).wait_with_output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut killed = run(&[program.clone(), size.clone(), "wait".to_owned()]);
        let mut ready = [0; 5];
        let read = killed.stdout.as_mut().unwrap().read_exact(&mut ready);
        killed.kill().unwrap();
        killed.wait().unwrap();
        assert!(read.is_ok() && &ready == b"ready", "{killed:?}");
    }
}
