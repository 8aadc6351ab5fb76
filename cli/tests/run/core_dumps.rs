//! A core file has all of a process's memory, also what was in swap when it died.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::support::{compile, Dir, Done, Run};

const PAGE: usize = 4096;
const MEGABYTES: usize = 256;

/// The kernel's setting, for as long as this lives. It is the machine's: held under its lock.
pub struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    pub fn set(name: &str, value: &str) -> Setting {
        let path = Path::new("/proc/sys/kernel").join(name);
        let before = fs::read_to_string(&path).unwrap();
        fs::write(&path, value).unwrap();
        Setting { path, before }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.before);
    }
}

/// Runs `dump WHO` in a directory of its own; `before` are commands of the shell.
fn dump(dir: &Dir, pattern: &str, before: &str, who: &str) -> Done {
    dump_in(64, |run| run, dir, pattern, before, who)
}

/// As `dump`, in so much memory and with more options.
fn dump_in(
    memory: u64,
    options: impl FnOnce(Run) -> Run,
    dir: &Dir,
    pattern: &str,
    before: &str,
    who: &str,
) -> Done {
    let program = compile("dump");
    let line = format!(
        "ulimit -c unlimited; cd {}; {before} exec {} {who} {MEGABYTES}",
        dir.path().display(),
        program.display()
    );
    let run = options(Run::new(memory, ["sh", "-c", &line])).start_with(|| {
        (
            Setting::set("core_pattern", pattern),
            Setting::set("core_uses_pid", "0"),
        )
    });
    run.finish()
}

/// Number and address of the memory, as the process said.
fn said(done: &Done, who: &str) -> (u32, u64) {
    let line = done.stdout.lines().find(|l| l.starts_with(who));
    let line = line.unwrap_or_else(|| panic!("no {who}: {done}"));
    let words: Vec<&str> = line.split(' ').collect();
    (
        words[1].parse().unwrap(),
        u64::from_str_radix(words[2], 16).unwrap(),
    )
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(word)
}

/// So many bytes of the process's memory at `at`, as the file has them.
pub fn memory(core: &Path, at: u64, len: usize) -> Vec<u8> {
    let file = File::open(core).unwrap_or_else(|e| panic!("{}: {e}", core.display()));
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).unwrap();
    let mut bytes = vec![0; len];
    for i in 0..number::<2>(&head, 56) {
        let mut h = [0; 56];
        let from = number::<8>(&head, 32) + i * 56;
        file.read_exact_at(&mut h, from).unwrap();
        let [offset, start, len] = [8, 16, 32].map(|field| number::<8>(&h, field));
        if number::<4>(&h, 0) == 1 && start <= at && at < start + len {
            file.read_exact_at(&mut bytes, offset + (at - start))
                .unwrap();
            return bytes;
        }
    }
    panic!("{at:x} is not in {}", core.display());
}

/// As `mix` of check.h.
/// As in cli/tests/run/c/check.h.
pub fn mix(mut x: u64) -> u64 {
    x ^= x >> 31;
    x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

/// Every byte is what the process wrote; pages that are a multiple of `changed` were changed.
fn verify(core: &Path, at: u64, changed: Option<usize>, done: &Done) {
    verify_masked(core, at, changed, u64::MAX, done);
}

/// As `verify`, of each word these bits.
fn verify_masked(core: &Path, at: u64, changed: Option<usize>, mask: u64, done: &Done) {
    let memory = memory(core, at, MEGABYTES << 20);
    let wrong = memory.chunks_exact(PAGE).enumerate().filter(|(page, got)| {
        let change = changed.is_some_and(|c| page % c == 0);
        let first = page * PAGE / 8;
        let word = |w: usize| mix((w * 8 + 1) as u64).wrapping_add(change.into()) & mask;
        let mut words = got.chunks_exact(8).enumerate();
        !words.all(|(i, b)| number::<8>(b, 0) == if page % 7 == 0 { 0 } else { word(first + i) })
    });
    let wrong: Vec<usize> = wrong.map(|(page, _)| page).collect();
    assert!(
        wrong.is_empty(),
        "{} pages are wrong, first {:?}: {done}",
        wrong.len(),
        &wrong[..wrong.len().min(10)]
    );
}

fn aborted(done: &Done) {
    assert_eq!(done.signal(), Some(libc::SIGABRT), "{done}");
    assert_eq!(done.oom_kills, 0, "{done}");
    done.has_swapped();
}

#[test]
fn of_a_program() {
    let dir = Dir::new("core");
    let done = dump(&dir, "core", "", "program");
    aborted(&done);
    assert_eq!(dir.list(), ["core"], "{done}");
    verify(&dir.join("core"), said(&done, "program").1, None, &done);
    assert_eq!(done.stderr, "", "{done}");
}

#[test]
fn of_compressed_memory() {
    let dir = Dir::new("core");
    let compress = |run: Run| run.option("--compress=60%");
    let done = dump_in(64, compress, &dir, "core", "", "small");
    assert_eq!(done.signal(), Some(libc::SIGABRT), "{done}");
    assert!(
        done.counter("zswap_stored_bytes") > 0 || done.counter("zswpout") > 0,
        "{done}"
    );
    verify_masked(
        &dir.join("core"),
        said(&done, "program").1,
        None,
        0xff,
        &done,
    );
    assert_eq!(done.stderr, "", "{done}");
}

/// Without a device, of memory that compresses and of such that is stored as it is, beyond what there is room for.
#[test]
fn of_compressed_memory_alone() {
    for (who, memory, mask, said_at_most) in
        [("small", 192, 0xff, 0), ("program", 128, u64::MAX, 1)]
    {
        let dir = Dir::new("core");
        let alone = |run: Run| run.swap("none").above(320);
        let done = dump_in(memory, alone, &dir, "core", "", who);
        assert_eq!(done.signal(), Some(libc::SIGABRT), "{done}");
        assert!(done.counter("zswpout") > 0, "{done}");
        assert_eq!(done.counter("pswpout"), 0, "{done}");
        let at = said(&done, "program").1;
        verify_masked(&dir.join("core"), at, None, mask, &done);
        assert!(done.stderr.lines().count() <= said_at_most, "{done}");
    }
}

#[test]
fn of_a_thread_that_crashes() {
    let dir = Dir::new("core");
    let done = dump(&dir, "%e-%s-%t.core", "", "thread");
    assert_eq!(done.signal(), Some(libc::SIGSEGV), "{done}");
    let files = dir.list();
    assert!(files.len() == 1 && files[0].contains("-11-"), "{files:?}");
    verify(&dir.join(&files[0]), said(&done, "program").1, None, &done);
    assert_eq!(done.stderr, "", "{done}");
}

/// What the child has in swap is its own and its parent's, and its parent is not its supervisor.
#[test]
fn of_a_child_and_its_parent() {
    let dir = Dir::new("core");
    let done = dump(&dir, "core.%p", "", "child");
    aborted(&done);
    for (who, changed) in [("program", None), ("child", Some(2))] {
        let (pid, at) = said(&done, who);
        verify(&dir.join(format!("core.{pid}")), at, changed, &done);
    }
    assert_eq!(done.stderr, "", "{done}");
}

/// What became inaccessible is in the file, and no more of the window than that.
#[test]
fn of_inaccessible_memory() {
    let dir = Dir::new("core");
    let done = dump(&dir, "core", "", "hidden");
    aborted(&done);
    let core = dir.join("core");
    verify(&core, said(&done, "program").1, None, &done);
    assert!(core.metadata().unwrap().len() < 4 << 30, "{done}");
}

/// The file is somewhere else, and there are others.
#[test]
fn of_an_absolute_name() {
    let (dir, other) = (Dir::new("core"), Dir::new("core"));
    fs::write(other.join("core.old"), "no core").unwrap();
    fs::create_dir(other.join("core.directory")).unwrap();
    let pattern = format!("{}/core.%h", other.path().display());
    let done = dump(&dir, &pattern, "", "program");
    aborted(&done);
    assert_eq!(dir.list(), [""; 0]);
    let name = other.list().into_iter();
    let name = name
        .last()
        .filter(|n| n != "core.old" && n != "core.directory");
    let core = other.join(name.unwrap_or_else(|| panic!("{:?}", other.list())));
    verify(&core, said(&done, "program").1, None, &done);
}

/// Where it cannot be completed, that is said.
#[test]
fn that_cannot_be_completed() {
    let dir = Dir::new("core");
    // In blocks of 512 or 1024 bytes; holes do not count.
    let done = dump(&dir, "core", "ulimit -c 20000;", "program");
    aborted(&done);
    let blocks = dir.join("core").metadata().unwrap().blocks();
    assert!(blocks * 512 < 30 << 20, "{blocks}");
    assert!(done.stderr.contains("no core file was found"), "{done}");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    // A program takes it, and leaves nothing.
    let done = dump(&Dir::new("core"), "|/bin/true", "", "program");
    aborted(&done);
    assert!(done.stderr.contains("kernel.core_pattern"), "{done}");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    // No core at all is not worth a word.
    let done = dump(&Dir::new("core"), "core", "ulimit -c 0;", "program");
    aborted(&done);
    assert_eq!(done.stderr, "", "{done}");
}
