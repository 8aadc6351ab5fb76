//! What a run takes beside its managed memory is in the limit too: the group has 16 MiB more, no swap of the
//! kernel's, and nobody is killed.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use hugeswap_host::cgroup::{Group, Limits, Swap};
use hugeswap_host::os;

use crate::support::{compile, compile_with, hugeswap, machine, wait_for, Dir, Done, Run};

/// Runs what fills stacks of 46 MiB each, and lets their heaps grow when so much was found outside.
fn with_stacks(memory: u64, line: &str, found: u64) -> Done {
    let program = compile_with("stacks", "stacks", &["-pthread"]);
    let dir = Dir::new("stacks");
    let go = dir.join("go");
    let line = line.replace("GO", go.to_str().unwrap());
    let line = line.replace("STACKS", program.to_str().unwrap());
    let run = Run::new(memory, ["sh", "-c", &line]).above(16).start();
    wait_for("what is outside", || {
        let stats = run.read_stats();
        stats.is_some_and(|s| s["outside_bytes"].as_u64() >= Some(found << 20))
    });
    fs::write(&go, "").unwrap();
    let done = run.finish();
    assert!(
        done.status.success() && done.stdout.ends_with("ok\n"),
        "{done}"
    );
    assert_eq!(done.oom_kills, 0, "{done}");
    done
}

#[test]
fn stacks() {
    with_stacks(128, "exec STACKS 192 GO", 44).has_swapped();
}

/// Before the kernel kills, where a group has no room for what can't be swapped.
#[test]
fn no_room_in_the_group_is_said() {
    let done = with_stacks(64, "exec STACKS 4 GO", 44);
    let said = done.stderr.matches("the kernel may kill");
    assert_eq!(said.count(), 1, "{done}");
}

/// Of several processes all that is outside counts, and what is not managed at all.
#[test]
fn several_processes() {
    let alone = compile_with("hog", "hog-static", &["-static", "-pthread"]);
    let line = format!(
        "{} 24 wait & hog=$!; STACKS 96 GO & STACKS 96 GO; wait $!; s=$?; kill $hog; exit $s",
        alone.display()
    );
    with_stacks(224, &line, 2 * 44 + 20).has_swapped();
}

/// Where there are so many processes that none of them can have more than a few megabytes.
#[test]
fn many_small_shares() {
    let hog = compile("hog");
    let line = format!(
        "for i in $(seq 32); do {} 24 & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit 1; done",
        hog.display()
    );
    let done = Run::new(128, ["sh", "-c", &line])
        .above(16)
        .start()
        .finish();
    assert!(done.status.success(), "{done}");
    assert_eq!(done.oom_kills, 0, "{done}");
    done.has_swapped();
}

/// Without `--memory` the run takes what its group leaves, and nothing is killed there; `doctor` says the same.
#[test]
fn what_a_group_leaves() {
    let _machine = machine();
    let hog = compile("hog");
    let inside = |name: &str, megabytes: u64, line: &[&OsStr]| {
        let limits = Limits {
            memory: megabytes << 20,
            swap: Swap::None,
            swappiness: None,
        };
        let group = Group::create(&format!("hugeswap-test-{name}"), &limits).unwrap();
        let mut command = Command::new(hugeswap());
        command.args(line);
        os::spawn_inside(&mut command, group.procs().unwrap());
        let output = command.output().unwrap();
        assert_eq!(group.usage().oom_kills, 0, "{output:?}");
        (output.status.code(), format!("{output:?}"))
    };
    let run = ["run", "--verbose", "--swap=ram", "--"].map(OsStr::new);
    let run = [&run[..], &[hog.as_os_str(), OsStr::new("128")]].concat();
    // What is swapped to memory is in the group too.
    let (code, said) = inside("room", 330, &run);
    assert!(
        code == Some(0) && said.contains("memory group's limit of 330M"),
        "{said}"
    );
    // Neither is what was asked for more than the group can hold.
    let disk = Dir::new("group");
    let words = "run --memory=1G --swap-size=1G --swap".split(' ');
    let more = words.map(OsStr::new).chain([disk.path().as_os_str()]);
    let more = more.chain([OsStr::new("--"), hog.as_os_str(), OsStr::new("300")]);
    let (code, said) = inside("more", 128, &more.collect::<Vec<_>>());
    assert!(
        code == Some(0) && said.contains("--memory 1G does not fit here"),
        "{said}"
    );
    let (code, said) = inside("none", 70, &run);
    assert!(
        code == Some(2) && said.contains("memory group's limit of 70M"),
        "{said}"
    );
    let (code, said) = inside("doctor", 70, &[OsStr::new("doctor")]);
    assert!(code == Some(1) && said.contains("too little"), "{said}");
}
