//! `run --group`: parts of a run with limits and counters of their own.

use serde_json::Value;

use crate::support::{compile, hugeswap, Dir, Done, Run};

const MIB: u64 = 1 << 20;

/// A run of a script, which knows the command as H and the program that fills so many MiB as hog.
fn script(memory: u64, text: &str) -> Run {
    let text = format!(
        "H={}; hog={}; {text}",
        hugeswap().display(),
        compile("hog").display()
    );
    Run::new(memory, ["sh", "-c", &text])
}

fn group<'a>(done: &'a Done, name: &str) -> &'a Value {
    let groups = done.stats.as_ref().unwrap()["groups"].as_array().unwrap();
    let named = groups.iter().filter(|g| g["name"] == name);
    let named: Vec<_> = named.collect();
    assert_eq!(named.len(), 1, "{name}: {done}");
    named[0]
}

fn counter(group: &Value, name: &str) -> u64 {
    group["counters"][name].as_u64().unwrap()
}

#[test]
fn each_has_a_limit_and_counters() {
    let done = script(
        512,
        "$H run --group small --memory 64M -- $hog 160 & \
         $H run --group middle --memory 96M -- $hog 160 & \
         $hog 120 & wait",
    )
    .ok();
    assert_eq!(done.stdout, "ok\n".repeat(3), "{done}");
    let (small, middle) = (group(&done, "small"), group(&done, "middle"));
    for (group, limit) in [(small, 64), (middle, 96)] {
        assert_eq!(group["memory_limit_bytes"].as_u64(), Some(limit * MIB));
        let peak = counter(group, "peak_resident_bytes");
        assert!(peak <= (limit + 2) * MIB, "{peak}: {done}");
        // Nearly all of the limit is used, however much the run has.
        assert!(peak >= (limit - 16) * MIB, "{peak}: {done}");
        let left = counter(group, "pswpout") * 4096;
        assert!(left >= (160 - limit) * MIB, "{left}: {done}");
        assert!(group["fault_latency_ns"]["count"].as_u64() > Some(0));
    }
    // What is in no group has had room for all it has.
    let of_groups = counter(small, "pswpout") + counter(middle, "pswpout");
    assert_eq!(done.counter("pswpout"), of_groups, "{done}");
    assert!(done.counter("peak_resident_bytes") >= 118 * MIB, "{done}");
}

/// The processes of a group share its limit, whatever they become, and so do the groups within it.
#[test]
fn groups_within_groups() {
    let dir = Dir::new("groups");
    // One that goes on holds what it has while the next comes.
    let holds = "holds() { $hog $1 wait >$2 & until grep -q ready $2; do sleep 0.01; done; }";
    let inner = format!("{holds}; holds 100 two; $hog 100; kill $!");
    let outer = format!(
        "{holds}; holds 120 one; $H run --group inner --memory 64M -- sh -c \"$inner\"; kill $!"
    );
    let done = script(
        512,
        "export H hog; cd \"$dir\"; $H run --group outer --memory 128M -- sh -c \"$outer\"",
    )
    .env("dir", dir.path().display().to_string())
    .env("inner", inner)
    .env("outer", outer)
    .ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    let (outer, inner) = (group(&done, "outer"), group(&done, "outer/inner"));
    for name in ["pswpout", "pswpin", "pgmajfault"] {
        assert!(counter(inner, name) > 0, "{name}: {done}");
        assert!(
            counter(outer, name) > counter(inner, name),
            "{name}: {done}"
        );
        assert_eq!(counter(outer, name), done.counter(name), "{name}: {done}");
    }
    // 200 MiB in 64, and 320 in 128.
    assert!(counter(inner, "pswpout") * 4096 >= 136 * MIB, "{done}");
    assert!(counter(outer, "pswpout") * 4096 >= 192 * MIB, "{done}");
}

/// The same name is the same group; one without `--memory` has counters only.
#[test]
fn names_and_groups_without_limits() {
    let done = script(
        256,
        "for memory in 64M 80M; do $H run --group job --memory $memory -- $hog 100; done; \
         $H run --group free -- $hog 150",
    )
    .ok();
    let (job, free) = (group(&done, "job"), group(&done, "free"));
    assert_eq!(job["memory_limit_bytes"].as_u64(), Some(80 * MIB));
    assert!(counter(job, "pswpout") * 4096 >= (36 + 20) * MIB, "{done}");
    assert_eq!(free["memory_limit_bytes"], Value::Null);
    assert_eq!(counter(free, "pswpout"), 0, "{done}");
    assert!(counter(free, "peak_managed_bytes") >= 150 * MIB, "{done}");
}

/// Without a run around it, the whole run is the group.
#[test]
fn a_run_of_its_own() {
    let hog = compile("hog");
    let run = Run::new(64, [hog.to_str().unwrap(), "100"]);
    let done = run.option("--group=alone").option("--verbose").ok();
    let alone = group(&done, "alone");
    assert_eq!(alone["memory_limit_bytes"].as_u64(), Some(64 * MIB));
    for name in ["pswpout", "pswpin", "pgmajfault", "peak_resident_bytes"] {
        assert_eq!(counter(alone, name), done.counter(name), "{name}: {done}");
    }
    assert!(done.stderr.contains("hugeswap: group alone: "), "{done}");
    assert!(counter(alone, "peak_resident_bytes") <= 66 * MIB, "{done}");
}

#[test]
fn what_is_refused() {
    let done = script(
        64,
        "try() { \"$@\" 2>&1; echo \"status $?\"; }; \
         try $H run --group g --swap ram -- true; \
         try $H run --group g --memory 1M -- true; \
         try $H run --group a/b -- true; \
         try $H run --group g -- /no/such/program; \
         try $H run --group g -- false",
    )
    .ok();
    let lines: Vec<_> = done.stdout.lines().collect();
    let expected = [
        "hugeswap: --swap is for a whole run: give it to the 'hugeswap run' that this group is within",
        "status 2",
        "hugeswap: --memory 1M is too little for a group: give 48M or more",
        "status 2",
        "hugeswap: --group: a name has 1 to 64 bytes and no slash (see 'hugeswap run --help')",
        "status 2",
        "hugeswap: program '/no/such/program' was not found",
        "status 127",
        "status 1",
    ];
    assert_eq!(lines, expected, "{done}");
}
