//! What is set up in the kernel is there, and is gone afterwards. Root only:
//! elsewhere these tests fail with a message instead of passing unseen.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hugeswap_host::cgroup::{Group, Limits, Swap};
use hugeswap_host::kernel_swap::{active, chosen, Backing, KernelSwap};
use hugeswap_host::os;
use hugeswap_host::size::{Size, MIB};
use hugeswap_host::swap_spec;
use hugeswap_host::undo::Interrupt;

/// Swap is one for the whole machine: one test at a time.
fn root() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    assert!(
        os::is_root(),
        "this test needs root: run the tests with sudo"
    );
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size() -> Size {
    Size::new(32 * MIB).unwrap()
}

fn limits(swap: Swap) -> Limits {
    Limits {
        memory: 64 * MIB,
        swap,
        swappiness: None,
    }
}

#[test]
fn group_limits_and_goes() {
    let _one = root();
    let group = Group::create("hugeswap-test", &limits(Swap::Unlimited)).unwrap();
    let path = group.path().to_owned();
    // Writes 96 MiB into a shell variable.
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "x=$(head -c 100663296 /dev/zero | tr '\\0' a); echo ${#x}",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    os::spawn_inside(&mut command, group.procs().unwrap());
    let mut child = command.spawn().unwrap();
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    child.wait().unwrap();
    let usage = group.usage();
    assert!(!out.contains("100663296"), "not held by the limit");
    assert!(usage.oom_kills >= 1, "{usage:?}");
    assert!(usage.limit_hits >= 1, "{usage:?}");
    if let Some(peak) = usage.peak {
        assert!((32 * MIB..=64 * MIB).contains(&peak), "{usage:?}");
    }
    drop(group);
    assert!(!path.exists());
}

#[test]
fn group_goes_with_whoever_is_inside() {
    let _one = root();
    let group = Group::create("hugeswap-test-in", &limits(Swap::None)).unwrap();
    let path = group.path().to_owned();
    for file in ["memory.memsw.limit_in_bytes", "memory.swap.max"] {
        if let Ok(limit) = fs::read_to_string(path.join(file)) {
            let none = if file.contains("memsw") {
                "67108864"
            } else {
                "0"
            };
            assert_eq!(limit.trim(), none, "{file}");
        }
    }
    let mut command = Command::new("sleep");
    command.arg("1000");
    os::spawn_inside(&mut command, group.procs().unwrap());
    let mut child = command.spawn().unwrap();
    drop(group);
    assert!(!path.exists());
    assert!(!child.wait().unwrap().success(), "killed");
}

/// One test: signals are caught for the whole process.
#[test]
fn swap_comes_and_goes() {
    let _one = root();
    let stop = Interrupt::catch().unwrap();
    let dir = swap_spec::default_directory().expect("this test needs a directory on a disk");
    let dir = dir.join(format!("hugeswap-swap-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let before = (active().unwrap(), thp_settings(), zram_devices());
    for backing in [
        Backing::File(dir.clone()),
        Backing::Zram { every_size: false },
        Backing::Zram { every_size: true },
        Backing::Loop,
    ] {
        let swap = KernelSwap::set_up(&backing, size(), &stop)
            .unwrap_or_else(|err| panic!("{backing}: {err}"));
        let on = active().unwrap();
        let ours = on.iter().find(|a| Path::new(&a.path) == swap.path());
        let ours = ours.unwrap_or_else(|| panic!("{backing}: {on:?}"));
        assert!(
            on.iter().all(|a| a.priority <= ours.priority),
            "{backing}: {on:?}"
        );
        if backing == (Backing::Zram { every_size: true }) {
            assert!(thp_settings()
                .iter()
                .all(|(path, value)| { path.contains("2048kB") || value == "always" }));
        }
        drop(swap);
        assert_eq!(
            (active().unwrap(), thp_settings(), zram_devices()),
            before,
            "{backing}"
        );
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "{backing}");
    }
    let swap = KernelSwap::set_up(&Backing::File("/proc".into()), size(), &stop);
    assert!(swap.is_err());
    // Interrupted in the middle: nothing is left either.
    signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
    let err = KernelSwap::set_up(&Backing::File(dir.clone()), size(), &stop).unwrap_err();
    assert_eq!(err.to_string(), "interrupted");
    fs::remove_dir(&dir).unwrap();
    assert_eq!((active().unwrap(), thp_settings(), zram_devices()), before);
}

/// A device is used again and again, and one with somebody's data is not.
#[test]
fn swap_comes_and_goes_on_a_device() {
    let _one = root();
    let stop = Interrupt::catch().unwrap();
    let dir = swap_spec::default_directory().expect("this test needs a directory on a disk");
    let image = dir.join(format!("hugeswap-device-{}", std::process::id()));
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let losetup = |args: &[&str]| {
        let output = std::process::Command::new("losetup").args(args).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let device = losetup(&["--find", "--show", image.to_str().unwrap()]);
    let backing = Backing::BlockDevice(device.clone().into());
    let twice = [(); 2].map(|()| {
        let swap = KernelSwap::set_up(&backing, size(), &stop);
        swap.map(|s| {
            active()
                .unwrap()
                .iter()
                .any(|a| Path::new(&a.path) == s.path())
        })
    });
    let begin = fs::read(&device).unwrap()[..4096].to_vec();
    // Somebody else's: nothing of ours on the last page.
    fs::write(&image, [b"a diary".as_slice(), &vec![0; 64 << 20]].concat()).unwrap();
    losetup(&["--detach", &device]);
    let device = losetup(&["--find", "--show", image.to_str().unwrap()]);
    let other = KernelSwap::set_up(&Backing::BlockDevice(device.clone().into()), size(), &stop);
    let refused = other.err().map(|e| e.to_string());
    losetup(&["--detach", &device]);
    fs::remove_file(&image).unwrap();
    assert!(twice.iter().all(|t| matches!(t, Ok(true))), "{twice:?}");
    assert!(begin.iter().all(|&b| b == 0), "the header is there");
    assert!(refused.is_some_and(|r| r.contains("--overwrite") || r.contains("data")));
}

fn thp_settings() -> Vec<(String, String)> {
    let dir = fs::read_dir("/sys/kernel/mm/transparent_hugepage").unwrap();
    let mut settings: Vec<_> = dir
        .flatten()
        .filter_map(|entry| {
            let path = entry.path().join("enabled");
            let text = fs::read_to_string(&path).ok()?;
            Some((path.display().to_string(), chosen(&text)?.to_owned()))
        })
        .collect();
    settings.sort();
    settings
}

fn zram_devices() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir("/sys/block")
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("zram"))
        .collect();
    names.sort();
    names
}
