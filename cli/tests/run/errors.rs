//! What can't work gets one clear line and the right exit status, and nothing is left.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{compile, compile_with, hugeswap, library, machine, Dir, Mount, Run};

/// Runs the command line; returns the one line on standard error.
fn refused(status: i32, line: &[&str]) -> String {
    let _machine = machine();
    let output = Command::new("timeout")
        .args(["-k", "1", "30"])
        .arg(hugeswap())
        .arg("run")
        .args(line)
        .output()
        .unwrap();
    one_line(status, line, &output)
}

fn one_line(status: i32, line: &[&str], output: &Output) -> String {
    assert_eq!(output.status.code(), Some(status), "{line:?}: {output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{line:?}: {text}");
    assert!(text.starts_with("hugeswap: "), "{line:?}: {text}");
    assert!(output.stdout.is_empty(), "{line:?}: {output:?}");
    text.trim_end().to_owned()
}

/// Where the supervisor can have no more the first process would wait for ever. A soft limit is the program's alone.
#[test]
fn descriptors() {
    let _machine = machine();
    let under = |limit: &str| {
        let line = format!(
            "ulimit {limit} && exec {} run --memory 64M --swap ram -- sh -c 'ulimit -n'",
            hugeswap().display()
        );
        let mut command = Command::new("timeout");
        command
            .args(["-k", "1", "30", "sh", "-c", &line])
            .output()
            .unwrap()
    };
    for few in 4..32 {
        let output = under(&format!("-n {few}"));
        if output.status.success() {
            assert_eq!(output.stdout, format!("{few}\n").as_bytes(), "{output:?}");
        } else {
            one_line(125, &[], &output);
        }
    }
    let line = one_line(125, &[], &under("-n 20"));
    assert!(line.contains("ulimit -n"), "{line}");
    let output = under("-Sn 20");
    assert_eq!(output.stdout, b"20\n", "{output:?}");
}

#[test]
fn sizes() {
    for size in ["12Q", "0", "-1", "1.5", ""] {
        let arg = format!("--memory={size}");
        assert!(refused(2, &[&arg, "true"]).contains("--memory"));
    }
    let line = refused(2, &["--memory", "49151K", "--swap", "ram", "true"]);
    assert!(line.contains("--memory 49151K is too little"), "{line}");
    let line = refused(2, &["--memory", "1M", "--swap", "ram", "--", "true"]);
    assert!(
        line.contains("too little") && line.contains("48M"),
        "{line}"
    );
    let line = refused(
        2,
        &[
            "--memory",
            "64M",
            "--swap",
            "ram",
            "--swap-size",
            "1M",
            "true",
        ],
    );
    assert!(line.contains("--swap-size"), "{line}");
}

#[test]
fn swap_places() {
    let line = refused(125, &["--swap", "/nowhere/at/all", "true"]);
    assert!(
        line.contains("/nowhere/at/all") && line.contains("mkdir"),
        "{line}"
    );
    let line = refused(125, &["--swap", "/dev/null", "true"]);
    assert!(line.contains("/dev/null"), "{line}");
    let line = refused(125, &["--swap", "/dev/sdz9", "true"]);
    assert!(
        line.contains("no device '/dev/sdz9'") && !Path::new("/dev/sdz9").exists(),
        "{line}"
    );
    for device in ["/dev/mapper/no-such-one", "/dev/shm/no-such-one"] {
        let line = refused(125, &["--swap", device, "true"]);
        assert!(line.contains("no device"), "{line}");
        assert!(!Path::new(device).exists());
    }
    for (place, says) in [
        ("sw2,szie=10M,priority=1", "'szie=10M' is no option"),
        ("sw,foo=1", "'foo=1' is no option"),
        ("none,size=100M", "'none' takes neither"),
    ] {
        let line = refused(2, &["--swap", place, "true"]);
        assert!(line.contains(says), "{line}");
    }
    for more in ["--swap=ram", "--swap-size=1G", "--compress=off"] {
        let line = refused(2, &["--swap", "none", more, "true"]);
        assert!(line.contains("none"), "{line}");
    }
    // Nobody is told to remove what others may need.
    let line = refused(125, &["--swap", "/etc/passwd", "true"]);
    assert!(
        line.contains("not private") && !line.contains("remove"),
        "{line}"
    );
    let line = refused(
        2,
        &["--swap", "/var/tmp", "--swap", "/var/../var/tmp", "true"],
    );
    assert!(line.contains("twice"), "{line}");
    let line = refused(125, &["--swap", "/proc", "true"]);
    assert!(line.contains("/proc"), "{line}");
    let read_only = Mount::tmpfs("ro");
    let place = read_only.path().to_str().unwrap();
    let line = refused(125, &["--swap", place, "true"]);
    assert!(line.contains(place), "{line}");
}

#[test]
fn full_swap_directory() {
    let disk = Mount::ext4(48);
    let place = disk.path().to_str().unwrap();
    // Leaves less than the smallest piece of swap.
    fs::write(disk.path().join("filler"), vec![1u8; 24 << 20]).unwrap();
    let line = refused(125, &["--swap", place, "true"]);
    assert!(line.contains("room") && line.contains(place), "{line}");
    // No size would help.
    assert!(
        !line.contains("--swap-size") && line.contains("--swap none"),
        "{line}"
    );
}

#[test]
fn programs_that_are_not_there() {
    let line = refused(127, &["--", "no-such-program"]);
    assert!(line.contains("no-such-program"), "{line}");
    refused(127, &["--", "/no/such/program"]);
    refused(126, &["--", "/etc/passwd"]);
    refused(126, &["--", "/"]);
}

/// As the shell does it.
#[test]
fn scripts_without_an_interpreter() {
    let dir = Dir::new("script");
    let script = dir.join("script");
    fs::write(&script, "echo hi $1\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let done = Run::new(64, [script.to_str().unwrap(), "there"]).ok();
    assert_eq!(done.stdout, "hi there\n", "{done}");
}

fn static_program() -> std::path::PathBuf {
    compile_with("hog", "hog-static", &["-static", "-pthread"])
}

#[test]
fn static_programs() {
    let program = static_program();
    let line = refused(126, &["--", program.to_str().unwrap(), "1"]);
    assert!(line.contains("static"), "{line}");
}

#[test]
fn scripts_with_a_static_interpreter() {
    let dir = Dir::new("script");
    let script = dir.join("script");
    fs::write(&script, format!("#!{} 1\n", static_program().display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let line = refused(126, &["--", script.to_str().unwrap()]);
    assert!(line.contains("static"), "{line}");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    refused(126, &["--", script.to_str().unwrap()]);
}

/// A static program that the managed one starts can't be refused, but it works.
#[test]
fn static_programs_started_by_others_work() {
    let line = format!("{} 8; echo $?", static_program().display());
    let done = Run::new(64, ["sh", "-c", &line]).ok();
    assert_eq!(done.stdout, "ok\n0\n", "{done}");
}

#[test]
fn setuid_programs() {
    const NOBODY: u32 = 65534;
    let _machine = machine();
    let dir = Dir::new("setuid");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path, name: &str, mode: u32| {
        let to = dir.join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
        to
    };
    // Where nobody can reach it.
    let command = copy(hugeswap(), "hugeswap", 0o755);
    copy(&library(), "libhugeswap_preload.so", 0o755);
    let program = copy(&compile("hog"), "hog", 0o4755);
    let program = program.to_str().unwrap();
    let line = ["run", "--swap", "ram", "--", program, "1"];
    let output = Command::new(&command)
        .args(line)
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = one_line(126, &line, &output);
    assert!(text.contains("setuid"), "{text}");
    // For its owner it is a program like any other.
    let output = Command::new(&command).args(line).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_library_that_is_not_there() {
    let _machine = machine();
    let output = Command::new(hugeswap())
        .args(["run", "--swap", "ram", "--", "true"])
        .env("HUGESWAP_PRELOAD", "/no/such/library.so")
        .output()
        .unwrap();
    let text = one_line(125, &[], &output);
    assert!(text.contains("/no/such/library.so"), "{text}");
}

#[test]
fn statistics_that_can_not_be_written() {
    let _machine = machine();
    let output = Command::new(hugeswap())
        .args(["run", "--memory", "64M", "--swap", "ram"])
        .args([
            "--stats-json",
            "/nowhere/at/all",
            "--",
            "sh",
            "-c",
            "exit 5",
        ])
        .output()
        .unwrap();
    // The program's status counts; the user is told.
    let text = one_line(5, &[], &output);
    assert!(text.contains("/nowhere/at/all"), "{text}");
}

/// What the shell prints of a run, with the command as `$HUGESWAP`.
fn shell(line: &str) -> Output {
    let _machine = machine();
    Command::new("timeout")
        .args(["-k", "1", "30", "sh", "-c", line])
        .env("HUGESWAP", hugeswap())
        .output()
        .unwrap()
}

/// Where nothing can be said, the program runs all the same.
#[test]
fn full_standard_error() {
    for (line, status) in [
        (
            "run --memory 64M --swap ram --verbose -- sh -c 'exit 5'",
            "5",
        ),
        ("run --memory 1M -- true", "2"),
        ("run --nothing", "2"),
        ("run -- /no/such/program", "127"),
    ] {
        let output = shell(&format!("$HUGESWAP {line} 2>/dev/full; echo $?"));
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.trim_end(), status, "{line}");
    }
}

/// Programs find the supervisor by a name that needs no directory.
#[test]
fn no_directory_for_a_socket() {
    let line = "for d in /tmp /dev/shm /run; do \
                mount --bind $d $d && mount -o remount,ro,bind $d || exit; done; \
                $HUGESWAP run --memory 64M --swap ram -- sh -c \"echo hi; true\"";
    let output = shell(&format!("unshare -m sh -c '{line}'"));
    assert_eq!(output.stdout, b"hi\n", "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn without_proc() {
    // The command's own file can't be found there.
    let library = library();
    let line = format!(
        "unshare -m sh -c 'umount -l /proc; HUGESWAP_PRELOAD={} exec $HUGESWAP run --memory 64M --swap ram true'",
        library.display()
    );
    let output = shell(&line);
    let text = one_line(125, &[&line], &output);
    assert!(text.contains("mount -t proc"), "{text}");
}

fn limited(limit: &str, options: &str) -> String {
    let _machine = machine();
    let line = format!(
        "ulimit {limit}; exec timeout -k 1 30 {} run --memory 64M {options}",
        hugeswap().display()
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    one_line(125, &[limit, options], &output)
}

#[test]
fn limits_of_files() {
    for swap in ["ram", "/var/tmp"] {
        let line = limited("-f 100", &format!("--swap {swap} true"));
        assert!(line.contains("ulimit -f unlimited"), "{line}");
    }
    // Larger than what is hugeswap's own, and smaller than a piece of swap.
    let line = limited("-f 20000", "--swap /var/tmp true");
    assert!(line.contains("ulimit -f unlimited"), "{line}");
}

/// A soft limit that leaves room for some swap: that much is used, and the program has its limit.
#[test]
fn swap_fits_the_limit_of_files() {
    let hog = compile("hog");
    let line = format!("ulimit -S -f; exec {} 96", hog.display());
    let _machine = machine();
    let dir = Dir::new("fsize");
    let run = format!(
        "ulimit -S -f 131072; exec {} run --verbose --memory 64M --swap {} --swap-size 1G -- sh -c '{line}'",
        hugeswap().display(),
        dir.path().display()
    );
    let output = Command::new("sh").args(["-c", &run]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"131072\nok\n", "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("up to 64M"), "{said}");
}

#[test]
fn limits_of_addresses() {
    let line = limited("-v 10000000", "--swap ram true");
    assert!(line.contains("ulimit -v unlimited"), "{line}");
}

/// `doctor` knows every limit that `run` refuses.
#[test]
fn limits_that_doctor_knows() {
    for (limit, mend) in [
        ("-f 100", "ulimit -f unlimited"),
        ("-v 8000000", "ulimit -v unlimited"),
        ("-d 100000", "ulimit -d unlimited"),
        ("-n 40", "ulimit -n 1024"),
    ] {
        let line = format!("ulimit {limit} && exec {} doctor", hugeswap().display());
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{limit}: {text}");
        let advice: Vec<&str> = text
            .split("'hugeswap run' does not work here")
            .next()
            .unwrap()
            .lines()
            .filter_map(|l| l.trim_start().strip_prefix("mend it: "))
            .collect();
        assert_eq!(advice, [mend], "{limit}: {text}");
        assert!(limited(limit, "--swap /var/tmp true").contains(mend));
    }
}

/// The command and its library where any user can reach them.
fn for_anybody(dir: &Dir) -> std::path::PathBuf {
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = library();
    for from in [hugeswap(), library.as_path()] {
        let to = dir.join(from.file_name().unwrap().to_str().unwrap());
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
    }
    dir.join("hugeswap")
}

/// Where the user may have too few processes and threads it is said before the program is started, and `doctor` says it.
#[test]
fn few_tasks() {
    const NOBODY: u32 = 65534;
    let _machine = machine();
    let dir = Dir::new("tasks");
    let command = for_anybody(&dir);
    let under = |most: u32, line: &str| {
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nproc={most}:{most}")).arg(&command);
        limited.args(line.split(' ')).current_dir("/");
        limited.uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    let run = "run --user-mode-only --memory 64M --swap ram -- echo started";
    for most in [1, 2, 3, 6, 8] {
        let text = one_line(125, &[run], &under(most, run));
        let whole = text.contains(&format!("'ulimit -u' allows this user {most} in all"));
        assert!(whole, "{most}: {text}");
    }
    let output = under(3, "doctor");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("MISSING  tasks"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    let output = under(64, run);
    assert_eq!(output.stdout, b"started\n", "{output:?}");
}

/// More than the machine has is no limit: a unit that was mistyped is said.
#[test]
fn more_memory_than_there_is() {
    let done = Run::new(99999 << 20, ["true"]).above(0).go();
    assert!(done.stderr.contains("of this machine"), "{done}");
    assert!(done.status.success(), "{done}");
}

#[test]
fn limits_of_descriptors_and_data() {
    let line = limited("-n 12", "--swap ram true");
    assert!(line.contains("ulimit -n 1024"), "{line}");
    let line = limited("-d 10000", "--swap ram true");
    assert!(line.contains("ulimit -d unlimited"), "{line}");
}

/// A soft limit is raised for what is ours, and is the program's as it was.
#[test]
fn few_descriptors_at_first() {
    let line =
        "ulimit -S -n 12; exec $HUGESWAP run --memory 64M --swap ram -- sh -c 'true; ulimit -n'";
    let output = shell(line);
    assert_eq!(output.stdout, b"12\n", "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_link_to_nothing() {
    let dir = Dir::new("link");
    let link = dir.join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let line = refused(125, &["--swap", link.to_str().unwrap(), "true"]);
    assert!(line.contains("is a link"), "{line}");
}

/// The loader can load it, but what is in it is wrong: `doctor` finds that by a run, and a run says what it found.
#[test]
fn a_library_that_is_damaged_inside() {
    let _machine = machine();
    let dir = Dir::new("damaged");
    let mut bytes = fs::read(library()).unwrap();
    // The name of a function that is looked for.
    let name = b"\0mlockall\0";
    let places: Vec<usize> = (0..bytes.len() - name.len())
        .filter(|&at| bytes[at..].starts_with(name))
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + 1] = b'X';
    }
    let damaged = dir.join("damaged.so");
    fs::write(&damaged, &bytes).unwrap();
    let command = |line: &[&str]| {
        let mut command = Command::new(hugeswap());
        command.args(line).env("HUGESWAP_PRELOAD", &damaged);
        command.output().unwrap()
    };
    let output = command(&["doctor", "--swap", "/var/tmp"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("ok       preload library"), "{text}");
    let line = text.lines().find(|l| l.contains("MISSING  trial run"));
    assert!(line.is_some_and(|l| l.contains("Xlockall")), "{text}");
    let run = [
        "run", "--memory", "64M", "--swap", "ram", "--", "echo", "went on",
    ];
    let output = command(&run);
    assert_eq!(output.status.code(), Some(71), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

/// It would be passed over by the loader, and the program run unmanaged.
#[test]
fn a_damaged_library() {
    let _machine = machine();
    let dir = Dir::new("damaged");
    let bytes = fs::read(library()).unwrap();
    let wrong = dir.join("wrong.so");
    fs::write(&wrong, b"no library").unwrap();
    let half = dir.join("half.so");
    fs::write(&half, &bytes[..50_000]).unwrap();
    for damaged in [wrong, half] {
        let output = Command::new(hugeswap())
            .args(["run", "--swap", "ram", "--", "true"])
            .env("HUGESWAP_PRELOAD", &damaged)
            .output()
            .unwrap();
        let text = one_line(125, &[], &output);
        assert!(text.contains(damaged.to_str().unwrap()), "{text}");
    }
}
