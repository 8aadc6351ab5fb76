use std::os::unix::fs::{symlink, MetadataExt};
use std::path::Path;

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
    let Ok(holder) = holder else {
        // This file system has none.
        return fs::remove_dir_all(dir).unwrap();
    };
    let mut files = Files::new(vec![dir.clone()]);
    assert_eq!(files.open(id, None, Time(1)).unwrap_err(), Skip::Leased);
    assert!(holder.held(), "it was not asked to give it up");
    drop(holder);
    assert!(files.open(id, None, Time(20_000_000)).is_ok());
    fs::remove_dir_all(dir).unwrap();
}
