//! Programs of a run that hugeswap is not in: it is said, counted, and with `--strict` the end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::support::{compile, compile_with, kill, wait_for, Dir, Done, Run};

/// Until the run has said that something is unmanaged, or for a minute.
const WAIT: &str =
    "i=0; while ! grep -q unmanaged $OUT && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done";

fn counted(done: &Done, reason: &str) {
    let stats = done.stats.as_ref().unwrap();
    assert_eq!(stats["unmanaged_programs"].as_u64(), Some(1), "{done}");
    assert_eq!(
        stats["unmanaged_reasons"][reason].as_u64(),
        Some(1),
        "{done}"
    );
    let lines = done.stderr.lines().filter(|l| l.contains("runs unmanaged"));
    assert_eq!(lines.count(), 1, "{done}");
}

/// Runs a program in the background, by the shell, until it was found.
fn beside(program: &str, options: &[&str]) -> Done {
    let line = format!("OUT=/proc/self/fd/2; {program} & {WAIT}; kill $!; echo went on");
    let run = Run::new(64, ["sh", "-c", &line]);
    options.iter().fold(run, |run, o| run.option(o)).go()
}

fn waits_static() -> String {
    let program = compile_with("waits", "waits-static", &["-static"]);
    program.display().to_string()
}

#[test]
fn static_ones() {
    let done = beside(&waits_static(), &[]);
    assert!(
        done.status.success() && done.stdout == "went on\n",
        "{done}"
    );
    assert!(done.stderr.contains("statically linked"), "{done}");
    counted(&done, "static");
}

#[test]
fn static_ones_end_a_strict_run() {
    let done = beside(&waits_static(), &["--strict"]);
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
    assert!(!done.stdout.contains("went on"), "{done}");
    assert!(done.stderr.contains("--strict"), "{done}");
    counted(&done, "static");
}

/// The loader names no loader, and loads our library all the same, or nothing at all (`ldd`).
#[test]
fn the_loader_is_none_of_them() {
    const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
    let line = format!(
        "ldd /bin/ls >/dev/null && {LOADER} /bin/grep -c libhugeswap /proc/self/maps && sleep 0.3"
    );
    let done = Run::new(64, ["sh", "-c", &line]).option("--strict").ok();
    assert_ne!(done.stdout, "0\n", "{done}");
    assert!(!done.stderr.contains("unmanaged"), "{done}");
    let done = Run::new(64, [LOADER, "/bin/echo", "hi"]).ok();
    assert_eq!(done.stdout, "hi\n", "{done}");
}

#[test]
fn without_the_environment() {
    let done = beside("env -i sleep 60", &[]);
    assert!(done.status.success(), "{done}");
    counted(&done, "not_loaded");
}

#[test]
fn of_32_bits() {
    let dir = Dir::new("narrow");
    // pause, again and again.
    let pauses = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7, 0x90, 0x90, 0x90];
    let program = narrow(&dir, "narrow", pauses);
    let done = beside(program.to_str().unwrap(), &[]);
    counted(&done, "32_bit");
    // A loader, of which `ldd` asks something. exit(0).
    let ends = [0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80, 0x90, 0x90, 0x90];
    let loader = narrow(&dir, "ld-linux.so.2", ends);
    let line = format!("{} --verify x && sleep 0.3", loader.display());
    let done = Run::new(64, ["sh", "-c", &line]).option("--strict").ok();
    assert!(!done.stderr.contains("unmanaged"), "{done}");
}

/// The least that is an ELF file of 32 bits, with this code.
fn narrow(dir: &Dir, name: &str, code: [u8; 12]) -> PathBuf {
    let mut elf = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    // An executable for i386; entry, headers at 52, no sections.
    elf.extend(words(&[
        0x0003_0002,
        1,
        0x0804_8054,
        52,
        0,
        0,
        0x0020_0034,
        0x0028_0001,
        0,
    ]));
    // One segment to load: all of the file.
    elf.extend(words(&[1, 0, 0x0804_8000, 0x0804_8000, 96, 96, 5, 4096]));
    elf.extend(code);
    let program = dir.join(name);
    fs::write(&program, elf).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Programs that are over before anybody can look at them.
#[test]
fn however_short() {
    let done = Run::new(64, [compile("becomes").to_str().unwrap(), "short"]).ok();
    let stats = done.stats.as_ref().unwrap();
    assert_eq!(stats["unmanaged_reasons"]["not_loaded"], 3, "{done}");
    let hog = compile_with("hog", "hog-static", &["-static", "-pthread"]);
    let line = format!("{0} 1 && exec {0} 1", hog.display());
    let run = || Run::new(64, ["sh", "-c", &line]);
    let done = run().ok();
    let stats = done.stats.as_ref().unwrap();
    assert_eq!(stats["unmanaged_reasons"]["static"], 2, "{done}");
    assert_eq!(stats["unmanaged_programs"], 2, "{done}");
    let done = run().option("--strict").go();
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
}

/// Programs that the library does nothing in, and says why: once each, whether they are the run's own or not.
#[test]
fn those_that_decline() {
    for (name, what) in [
        ("__asan_init", "AddressSanitizer"),
        ("__dfsan_unimplemented", "DataFlowSanitizer"),
        ("__scudo_set_rss_limit", "Scudo"),
    ] {
        declines(name, what);
    }
}

fn declines(name: &str, what: &str) {
    let flags = ["-rdynamic", &format!("-DNAME={name}")];
    let program = compile_with("declines", &format!("declines{name}"), &flags);
    let program = program.to_str().unwrap();
    let twice = format!("{program}; {program}; echo went on");
    for (line, n, strict_says) in [
        (vec![program], 1, false),
        (vec!["sh", "-c", &twice], 2, true),
    ] {
        let done = Run::new(64, &line).ok();
        let stats = done.stats.as_ref().unwrap();
        assert_eq!(stats["unmanaged_reasons"]["declined"], n, "{done}");
        assert_eq!(stats["unmanaged_programs"], n, "{done}");
        assert_eq!(done.stderr.lines().count(), n, "{done}");
        assert!(done.stderr.contains(what), "{done}");
        let done = Run::new(64, &line).option("--strict").go();
        assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
        assert!(!strict_says || done.stderr.contains("--strict"), "{done}");
    }
}

/// What qemu emulates has no engine of its own: to qemu, which has one, its memory is the same as other memory.
#[test]
fn what_is_emulated() {
    let qemu = ["qemu-x86_64", "/bin/echo", "went on"];
    let done = Run::new(64, qemu).option("--strict").ok();
    assert_eq!(done.stdout, "went on\n", "{done}");
    assert!(done.stderr.is_empty(), "{done}");
}

/// Sanitizers that are linked into the program do not tell their names; one that leaves memory alone does no harm.
#[test]
fn those_with_a_sanitizer_inside() {
    for (sanitizer, library, declines) in [
        ("address", "-static-libasan", true),
        ("thread", "-static-libtsan", true),
        ("undefined", "-static-libubsan", false),
    ] {
        let flags = [&format!("-fsanitize={sanitizer}"), library];
        let program = compile_with("sanitized", &format!("sanitized-{sanitizer}"), &flags);
        let done = Run::new(64, [program]).ok();
        let stats = done.stats.as_ref().unwrap();
        let declined = stats["unmanaged_reasons"]["declined"].as_u64();
        assert_eq!(declined.unwrap_or(0), u64::from(declines), "{done}");
        assert_eq!(done.stderr.contains("a sanitizer"), declines, "{done}");
    }
}

/// Programs that start where the supervisor can't be spoken to show it in their maps, and count at once.
#[test]
fn those_that_cannot_reach_the_supervisor() {
    // So many strings leave no room for the socket that is handed on.
    let many = "for i in $(seq 1100); do export V$i=1; done; exec unshare -Urn";
    let run = || Run::new(64, ["sh", "-c", &format!("{many} sleep 600")]);
    let done = run().option("--strict").go();
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
    assert!(done.stderr.contains("can't be reached"), "{done}");
    assert!(done.stderr.contains("--strict"), "{done}");
    counted(&done, "declined");
}

/// Programs that don't know of the run, though the library is in them.
#[test]
fn without_the_address() {
    let done = beside("env -u HUGESWAP_RUN sleep 60", &[]);
    assert!(done.status.success(), "{done}");
    assert!(done.stderr.contains("HUGESWAP_RUN"), "{done}");
    counted(&done, "not_loaded");
}

/// A library that a script preloads does not take hugeswap's place, whoever starts the program; an empty list does.
#[test]
fn not_those_that_preload_a_library_of_their_own() {
    let library = compile_with("beside", "beside.so", &["-shared", "-fPIC"]);
    let (hog, library) = (compile("hog"), library.display().to_string());
    let hog = hog.display();
    let spawns = format!(
        "import os, sys; e = dict(os.environ, LD_PRELOAD='{library}'); \
         p = os.posix_spawn('{hog}', ['{hog}', '100'], e); sys.exit(os.waitpid(p, 0)[1])"
    );
    let shell = format!("LD_PRELOAD={library} {hog} 100");
    let env = format!("exec env LD_PRELOAD={library} {hog} 100");
    for line in [
        ["sh", "-c", &shell],
        ["sh", "-c", &env],
        ["/usr/bin/python3", "-c", &spawns],
    ] {
        let done = Run::new(64, line).ok();
        assert!(done.stdout.contains("beside"), "{done}");
        let stats = done.stats.as_ref().unwrap();
        assert_eq!(stats["unmanaged_programs"], 0, "{done}");
        assert!(stats["counters"]["pswpout"].as_u64().unwrap() > 0, "{done}");
    }
    let done = beside("env LD_PRELOAD= sleep 60", &[]);
    counted(&done, "not_loaded");
}

/// A start that does not end is met with a message, and with the end of a strict run.
#[test]
fn one_whose_start_hangs() {
    let library = compile_with("hangs", "hangs.so", &["-shared", "-fPIC"]);
    let line = format!("env LD_PRELOAD=$LD_PRELOAD:{} sleep 600", library.display());
    let done = beside(&line, &[]);
    assert!(done.status.success(), "{done}");
    assert!(done.stderr.contains("'hugeswap doctor' tries it"), "{done}");
    counted(&done, "silent");
    let line = format!("exec {line}");
    let done = Run::new(64, ["sh", "-c", &line]).option("--strict").go();
    assert_eq!(done.signal(), Some(libc::SIGKILL), "{done}");
    counted(&done, "silent");
}

/// Of the program that its process was before, nothing counts any more, and its swap is free.
#[test]
fn one_that_comes_after_much_memory() {
    let hog = compile_with("hog", "hog-static", &["-static", "-pthread"]);
    let (becomes, hog) = (compile("becomes"), hog.to_str().unwrap().to_owned());
    let line = [becomes.to_str().unwrap(), "grown", &hog, "24", "wait"];
    let mut run = Run::new(64, line).start();
    run.wait_for_output("ready");
    wait_for("swap to be empty", || {
        let stats = run.read_stats();
        stats.is_some_and(|s| s["counters"]["swapped_bytes"].as_u64() == Some(0))
    });
    kill(run.program(), libc::SIGTERM);
    let done = run.finish();
    assert_eq!(done.signal(), Some(libc::SIGTERM), "{done}");
    assert!(done.counter("pswpout") > 0, "{done}");
}

/// A program that could not be started is none.
#[test]
fn not_what_failed_to_start() {
    let done = Run::new(64, [compile("becomes")]).option("--strict").ok();
    assert_eq!(done.stdout, "ok\n", "{done}");
    assert_eq!(done.stderr, "", "{done}");
}

/// What is managed, or is about to be, is never taken for a stranger.
#[test]
fn nobody_else() {
    let line =
        "for i in 1 2 3 4 5 6 7 8; do (sleep 0.3 | cat; true) & done; wait; sh -c 'sleep 1 & wait'";
    let done = Run::new(64, ["sh", "-c", line]).option("--strict").ok();
    assert_eq!(done.stderr, "", "{done}");
    assert_eq!(
        done.stats.as_ref().unwrap()["unmanaged_programs"],
        0,
        "{done}"
    );
}
