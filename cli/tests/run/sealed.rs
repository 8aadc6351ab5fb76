//! What lies in swap is not believed: slots that were altered, exchanged or put back give SIGBUS, and
//! never bytes. With encryption nobody can read them either.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

use hugeswap_host::os;

use crate::core_dumps::Setting;
use crate::support::{compile, hugeswap, Dir, Done, Run, Running};

const PAGE: usize = 4096;
const MEGABYTES: usize = 128;
const LIMIT: usize = 64;
const PAGES: u64 = (MEGABYTES << 20) as u64 / PAGE as u64;
const MARK: &[u8] = b"sealed plaintext";

type Slots = BTreeMap<u64, Vec<u8>>;

/// A program that does what it is told.
struct Told {
    run: Running,
    to: UnixStream,
    steps: usize,
}

impl Told {
    fn new(options: &[&str]) -> Told {
        Told::with(options, |run| run)
    }

    fn with(options: &[&str], also: impl FnOnce(Run) -> Run) -> Told {
        let (from, to) = UnixStream::pair().unwrap();
        let program = compile("sealed");
        let megabytes = MEGABYTES.to_string();
        let mut run = Run::new(LIMIT as u64, [program.to_str().unwrap(), &megabytes]);
        for option in options {
            run = run.option(option);
        }
        let run = also(run.stdin(File::from(OwnedFd::from(from)))).start();
        Told { run, to, steps: 0 }
    }

    /// Has it do these things, and waits until it has.
    fn tell(&mut self, what: &str) {
        for c in what.chars() {
            self.to.write_all(&[c as u8]).unwrap();
            self.steps += 1;
            self.run
                .wait_for_output(&format!("done {} {c} ", self.steps));
        }
    }

    fn end(self) -> Done {
        drop(self.to);
        self.run.finish()
    }

    /// The swap file, which has no name.
    fn swap(&self) -> File {
        let fds = fs::read_dir(format!("/proc/{}/fd", self.run.supervisor())).unwrap();
        let dir = self.run.swap_dir.to_str().unwrap();
        let is_swap = |p: &std::path::Path| {
            let to = fs::read_link(p).unwrap_or_default();
            let to = to.to_string_lossy();
            to.starts_with(dir) || to.starts_with("/memfd:hugeswap-ram")
        };
        let path = fds
            .flatten()
            .map(|e| e.path())
            .find(|p| is_swap(p))
            .unwrap();
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    }
}

/// Every slot that has been written.
fn slots(swap: &File) -> Slots {
    let mut all = Slots::new();
    let len = swap.metadata().unwrap().len();
    let mut at = 0;
    while let Some(data) = os::next_data(swap, at).unwrap().filter(|&at| at < len) {
        let end = os::next_hole(swap, data).unwrap();
        for slot in (data..end).step_by(PAGE) {
            let mut page = vec![0; PAGE];
            swap.read_exact_at(&mut page, slot).unwrap();
            all.insert(slot, page);
        }
        at = end;
    }
    all
}

fn put(swap: &File, slot: u64, page: &[u8]) {
    swap.write_all_at(page, slot).unwrap();
}

fn mark(all: &Slots) -> usize {
    let begins = |page: &&Vec<u8>| page.windows(MARK.len()).any(|w| w == MARK);
    all.values().filter(begins).count()
}

/// What each `lost=` of the program's lines says.
fn lost(done: &Done) -> Vec<u64> {
    let number = |line: &str| line.split_once("lost=")?.1.trim().parse().ok();
    done.stdout.lines().filter_map(number).collect()
}

const BOTH: [&[&str]; 2] = [&[], &["--no-encrypt"]];

#[test]
fn altered_slots_are_lost() {
    for options in BOTH {
        let mut p = Told::new(options);
        p.tell("1");
        let swap = p.swap();
        for (i, (slot, mut page)) in slots(&swap).into_iter().enumerate() {
            page[i * 37 % PAGE] ^= 1 << (i % 8);
            put(&swap, slot, &page);
        }
        p.tell("rrw");
        // What was written anew is right, wherever it is.
        p.tell("r2r");
        let done = p.end();
        assert!(done.status.success(), "{done}");
        let lost = lost(&done);
        // All that was not resident then; it stays lost until it is written again.
        let least = PAGES - ((LIMIT + 16) << 20) as u64 / PAGE as u64;
        assert!(
            (least..PAGES).contains(&lost[1]),
            "{lost:?} {least}: {done}"
        );
        assert!(lost[1] <= lost[2] && lost[2] <= lost[3], "{lost:?}");
        assert_eq!(lost[6], 0, "{lost:?}: {done}");
        assert!(done.counter("swap_corrupt") >= done.counter("pages_poisoned"));
        assert!(done.counter("pages_poisoned") >= lost[1], "{done}");
        assert_eq!(done.stderr.lines().count(), 1, "{done}");
    }
}

/// Whoever looks at a lost page, in whatever way and wherever it is by then, gets no bytes.
#[test]
fn lost_pages_stay_lost() {
    for options in BOTH {
        let mut p = Told::new(options);
        p.tell("1");
        let swap = p.swap();
        for (slot, mut page) in slots(&swap).into_iter().step_by(3) {
            page[9] ^= 2;
            put(&swap, slot, &page);
        }
        // Altered before they move, and others that are found only then.
        p.tell("smrusmsr");
        let done = p.end();
        assert!(done.status.success(), "{done}");
        let lost: Vec<_> = lost(&done).into_iter().filter(|&n| n > 0).collect();
        assert!(lost.len() >= 6 && lost.is_sorted(), "{lost:?}: {done}");
    }
}

/// The same while the program reads and writes on.
#[test]
fn slots_that_are_altered_all_the_time() {
    for options in BOTH {
        let mut p = Told::new(options);
        p.tell("1");
        let swap = p.swap();
        let mut altered = 0u64;
        for round in 0..4 {
            // What was lost is written anew; a wrong page ends the program.
            p.to.write_all(b"wrw").unwrap();
            for (i, (slot, mut page)) in slots(&swap).into_iter().enumerate() {
                if i % 64 == round {
                    page[i * 37 % PAGE] ^= 1 << (i % 8);
                    put(&swap, slot, &page);
                    altered += 1;
                }
            }
            p.steps += 3;
            let done = format!("done {} w ", p.steps);
            p.run.wait_for_output(&done);
        }
        let done = p.end();
        assert!(done.status.success(), "{done}");
        let corrupt = done.counter("swap_corrupt");
        assert!(0 < corrupt && altered > 0, "{corrupt} of {altered}: {done}");
    }
}

/// Everything that can be done to slots, beside others that are left alone.
#[test]
fn exchanged_and_old_slots_are_lost_alone() {
    for options in BOTH {
        let env = if options.is_empty() { "0" } else { "1" };
        let mut p = Told::with(options, |run| run.env("HUGESWAP_NO_IO_URING", env));
        p.tell("1");
        let old = slots(&p.swap());
        p.tell("2");
        let swap = p.swap();
        let now = slots(&swap);
        let all: Vec<u64> = now.keys().copied().collect();
        let mut done = 0;
        for (i, &slot) in all.iter().enumerate() {
            let other = all[(i * 769 + 512) % all.len()];
            match i % 64 {
                1 => put(&swap, slot, &now[&other]),
                2 => match old.get(&slot) {
                    Some(page) if *page != now[&slot] => put(&swap, slot, page),
                    _ => continue,
                },
                3 => put(&swap, slot, &[0; PAGE]),
                // A write that was torn.
                4 => match old.get(&slot) {
                    Some(page) if *page != now[&slot] => put(&swap, slot, &page[..512]),
                    _ => continue,
                },
                _ => continue,
            }
            done += 1;
        }
        p.tell("r");
        let end = p.end();
        assert!(end.status.success(), "{end}");
        let lost = lost(&end)[2];
        assert!(0 < lost && lost <= done, "{lost} of {done}: {end}");
        assert_eq!(end.counter("pages_poisoned"), lost, "{end}");
    }
}

#[test]
fn the_disk_shows_nothing() {
    let seen = |options: &[&str], env: &str| {
        let mut p = Told::with(options, |run| run.env("HUGESWAP_NO_AES", env));
        p.tell("1r2");
        let all = slots(&p.swap());
        let marked = mark(&all);
        p.tell("r");
        let done = p.end();
        assert!(done.status.success(), "{done}");
        assert_eq!(lost(&done), [0; 4]);
        done.has_swapped();
        assert!(all.len() as u64 > PAGES / 8);
        (marked, done)
    };
    assert_eq!(seen(&[], "0").0, 0);
    let (marked, _) = seen(&["--no-encrypt"], "0");
    assert!(marked as u64 > PAGES / 8);
    let (marked, done) = seen(&["--verbose"], "1");
    assert!(marked > 0);
    assert!(done.stderr.contains("no AES instructions"), "{done}");
}

/// Another process of the run can reach this memory, so it is sealed as well.
#[test]
fn memory_in_place_of_a_disk_is_sealed_too() {
    let mut p = Told::with(&["--swap-size", "256M"], |run| run.swap("ram").above(300));
    p.tell("1");
    let swap = p.swap();
    let all = slots(&swap);
    assert_eq!(mark(&all), 0);
    for (slot, mut page) in all {
        page[7] ^= 1;
        put(&swap, slot, &page);
    }
    p.tell("r");
    let done = p.end();
    assert!(done.status.success() && lost(&done)[1] > 0, "{done}");
}

/// What is on a device that is swapped off goes to another, but for what was altered.
#[test]
fn swapoff_does_not_pass_on_what_was_altered() {
    for options in BOTH {
        let second = Dir::new("second");
        let spec = format!("--swap={}", second.path().display());
        let mut p = Told::with(options, |run| run.option(spec));
        p.tell("1");
        let swap = p.swap();
        let before = slots(&swap);
        let altered = before.iter().step_by(100);
        for (slot, page) in altered.clone() {
            let mut page = page.clone();
            page[1] ^= 1;
            put(&swap, *slot, &page);
        }
        let front = p.run.front().to_string();
        let mut off = Command::new(hugeswap());
        off.args(["swapoff", "--pid", &front]).arg(&p.run.swap_dir);
        let off = off.output().unwrap();
        assert!(off.status.success(), "{off:?}");
        p.tell("rr");
        let done = p.end();
        assert!(done.status.success(), "{done}");
        let lost = lost(&done);
        assert!(0 < lost[1] && lost[1] <= altered.count() as u64, "{done}");
        assert_eq!(done.counter("pages_poisoned"), lost[1], "{done}");
    }
}

/// A child reads what its parent had in swap, both go their own ways, and what is put into
/// the slots of one for the other's is found.
#[test]
fn forks_have_keys_of_their_own() {
    for options in BOTH {
        let mut p = Told::new(options);
        p.tell("1k2ukr");
        let all = slots(&p.swap());
        assert_eq!(mark(&all) > 0, options.contains(&"--no-encrypt"));
        let done = p.end();
        assert!(done.status.success(), "{done}");
        assert!(lost(&done).iter().all(|&n| n == 0), "{done}");
        done.has_swapped();
        assert!(done.counter("forks") == 3, "{done}");
    }
}

#[test]
fn what_a_child_finds_altered_it_loses() {
    for options in BOTH {
        let mut p = Told::new(options);
        p.tell("1");
        let swap = p.swap();
        for (slot, mut page) in slots(&swap) {
            page[4000] ^= 0x10;
            put(&swap, slot, &page);
        }
        p.tell("u");
        let done = p.end();
        assert!(done.status.success(), "{done}");
        let lost = lost(&done);
        assert!(lost.len() == 3 && lost[1] > 0 && lost[2] > 0, "{done}");
    }
}

/// Keys, as the program's memory has them: in what is not for core files.
fn keys(pid: i32) -> Vec<[u8; 16]> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut at = (0, 0);
    let mut keys = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or("");
        let hex = |s| u64::from_str_radix(s, 16).ok();
        if let Some((start, end)) = first.split_once('-').and_then(|(s, e)| hex(s).zip(hex(e))) {
            at = (start, end);
        }
        // The ring is locked, stacks and buffers are not.
        if first == "VmFlags:" && words.clone().any(|w| w == "dd") && words.any(|w| w == "lo") {
            for page in (at.0..at.1).step_by(PAGE) {
                let mut bytes = [0; PAGE];
                memory.read_exact_at(&mut bytes, page).unwrap();
                let words = bytes.chunks_exact(16).map(|w| w.try_into().unwrap());
                keys.extend(words.filter(|w: &[u8; 16]| *w != [0; 16]));
            }
        }
    }
    keys
}

/// A core file has every page, and no key.
#[test]
fn keys_are_in_no_core_file() {
    for options in BOTH {
        let dir = Dir::new("core");
        let (from, to) = UnixStream::pair().unwrap();
        let line = format!(
            "ulimit -c unlimited; cd {}; exec {} {MEGABYTES}",
            dir.path().display(),
            compile("sealed").display()
        );
        let mut run = Run::new(LIMIT as u64, ["sh", "-c", &line]);
        for option in options {
            run = run.option(option);
        }
        let run = run.stdin(File::from(OwnedFd::from(from))).start_with(|| {
            [("core_pattern", "core"), ("core_uses_pid", "0")].map(|(n, v)| Setting::set(n, v))
        });
        let mut p = Told { run, to, steps: 0 };
        p.tell("1k2");
        let keys = keys(p.run.program());
        // One from before the fork and one from after it; and what they are wrapped with.
        assert!((3..9).contains(&keys.len()), "{} keys", keys.len());
        p.to.write_all(b"a").unwrap();
        let done = p.run.finish();
        assert_eq!(done.signal(), Some(libc::SIGABRT), "{done}");
        assert_eq!(done.stderr, "", "{done}");
        let core = slots(&File::open(dir.join("core")).unwrap());
        let begin = |page: &&Vec<u8>| page.starts_with(MARK);
        assert!(
            core.values().filter(begin).count() as u64 >= PAGES,
            "{done}"
        );
        for (slot, page) in &core {
            let found = page
                .windows(16)
                .position(|at| keys.iter().any(|key| key == at));
            if let Some(at) = found {
                let i = keys.iter().position(|k| *k == page[at..at + 16]);
                let end = (at + 64).min(PAGE);
                panic!(
                    "key {i:?} at {slot:x} and {at:x}: {:x?}",
                    &page[at.saturating_sub(32)..end]
                );
            }
        }
    }
}
