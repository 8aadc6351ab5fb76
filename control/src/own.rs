//! The page that one image of a program shares with the supervisor: its limit down, its counters up.
//!
//! Each image has one of its own, in a memory file that the supervisor makes. An image that has it
//! mapped, or has its file registered with an io_uring, is not gone yet: the supervisor holds a lock on
//! the open
//! file that it hands out, which ends when the last of these lets go of it.

use super::{MAX_DEVICES, MAX_SEGMENTS, SEGMENT_CLUSTERS, WRITES};
use crate::stats::Stats;
use core::ops::Deref;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use hugeswap_mm::{PAGE_SIZE, PMD_NR};
use hugeswap_seal::Unwrap;
use hugeswap_sys::thread::{self, Whose};
use hugeswap_sys::{mem, Errno};

#[repr(C, align(64))]
pub struct Proc {
    /// Pages that the process may keep resident. The supervisor writes it.
    pub limit_pages: AtomicI64,
    /// Pages that the run's other processes keep, as the supervisor last saw it.
    pub others_pages: AtomicI64,
    /// Nonzero while somebody may read slots of this process. The supervisor writes it.
    pub lends: AtomicU32,
    /// The sweep for which the process is to say in `marks` which slots it may read. The supervisor
    /// writes it.
    pub mark_wanted: AtomicU32,
    /// Pages that may stay in memory beyond the limit, as long as the kernel has no other use for it (`MADV_FREE`). At 0
    /// no more come to stay; below it those that do have to go. The supervisor writes it.
    pub lazyfree_limit: AtomicI64,
    /// The last sweep that ended for this process: but for `lent` nobody reads what it has freed. The
    /// supervisor writes these.
    pub swept: AtomicU32,
    pub lent: Clusters,
    /// Of the last place for a child that was given before that sweep's end, the key.
    pub swept_after: AtomicU64,
    /// The supervisor's answer to `more_asked`: its number, times two; and one if more is to come.
    more_answered: AtomicU32,
    /// For each device the last answer to a wish for swap. The supervisor writes it.
    grants: [AtomicU64; MAX_DEVICES],
    /// Nonzero while others lack swap: it gives back what it has to spare. The supervisor writes it.
    pub swap_is_scarce: AtomicU32,
    /// Nonzero while its faults wait: others have their turn. The supervisor writes it.
    pub awaits_turn: AtomicU32,
    /// Wakes the process's reclaim thread when something here has changed.
    pub limit_seq: AtomicU32,
    /// Pages that it keeps. The process writes it, and all that follows.
    pub charged_pages: AtomicI64,
    /// Clusters of each device that it would give back then.
    pub spare_clusters: [AtomicU32; MAX_DEVICES],
    /// Faults that wait for its turn.
    pub held_faults: AtomicU32,
    /// Faults for which pages came back, and nanoseconds that they took.
    pub returns: AtomicU64,
    pub returns_ns: AtomicU64,
    /// Processor time outside of the kernel: of all threads, and of the engine's alone.
    user_ns: AtomicU64,
    engine_user_ns: AtomicU64,
    /// Pages that have left and stay, with those that the kernel has taken since.
    pub lazyfree_pages: AtomicI64,
    /// While a fork is prepared: the process keeps at most this; 0 for no such cap.
    pub fork_cap: AtomicI64,
    /// Nonzero from the process's call until the supervisor has heard it.
    pub called: AtomicU32,
    /// Its `Pressed`.
    pressed: AtomicU32,
    /// Its last question whether it can have more than its limit now; 0 when it has none.
    more_asked: AtomicU32,
    /// Numbers of the engine's threads, as the process sees them.
    pub engine_tids: [AtomicU32; 3],
    /// For each device the epoch of the last swapoff of which this process has nothing left there.
    pub left: [AtomicU32; MAX_DEVICES],
    /// Where the process has its `dump::Signpost`, and the key in it; 0 for none yet.
    pub signpost: AtomicU64,
    pub dump_key: AtomicU64,
    /// What opens the copy of its keys; see `Proc::hand_keys`.
    unwrap: [AtomicU64; 2],
    /// Nonzero when it wants to know which of its slots are still lent.
    pub sweep_wanted: AtomicU32,
    /// Of the last place for a child that it was given, the key.
    pub last_place: AtomicU64,
    /// The sweep for which `marks` are complete.
    pub marked: AtomicU32,
    pub marks: Clusters,
    /// Clusters that its writes in flight may reach; see `Writing`. Set before the first request of a
    /// write, taken back after the last has ended.
    pub writing: [Writing; WRITES],
    /// For each device how often it has asked for swap.
    asked: [AtomicU32; MAX_DEVICES],
    /// Clusters that it has no more use for, until the supervisor has taken note; and whether there are any.
    freed: Clusters,
    any_freed: AtomicU32,
    /// Programs without hugeswap that this one's processes became.
    unmanaged: [Notice; NOTICES],
    /// Lines of the log ever written, and the last of them.
    log_at: AtomicU64,
    log: [[AtomicU32; LINE / 4]; LINES],
    pub stats: Stats,
}

/// A line of the log is cut at this length.
const LINE: usize = 256;
const LINES: usize = 32;

/// Whether a process would use more than it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Pressed {
    No = 0,
    /// It has less free than it would like.
    Short = 1,
    /// A fault waits until there is more.
    Waits = 2,
}

/// The number of a process's question whether it can have more than its limit; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoreAsked(u32);

impl MoreAsked {
    const MOST: u32 = u32::MAX >> 1;
    pub const FIRST: MoreAsked = MoreAsked(1);

    #[must_use]
    pub fn next(self) -> MoreAsked {
        MoreAsked(self.0 % Self::MOST + 1)
    }
}

/// What the supervisor says to that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// Its limit is what it can have.
    HasAll,
    /// It is to have more when others have given that up.
    ToCome,
}

/// Whether that file is glibc's loader, by its name. It names no loader itself, and loads what is to be preloaded all the same.
pub fn is_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    let begins = |with: &[u8]| name.starts_with(with);
    (begins(b"ld-") || begins(b"ld.so")) && !begins(b"ld-musl")
}

/// Why hugeswap is not in a program that a process becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Unmanaged {
    Static = 1,
    /// Of 32 bits.
    Narrow = 2,
    /// Setuid and the like.
    GainsRights = 3,
    /// Its environment does not name the library, or the run.
    NotLoaded = 4,
    /// It has not become that: the call failed.
    NotAtAll = 5,
}

impl Unmanaged {
    fn of_word(w: u32) -> Option<Unmanaged> {
        use Unmanaged::*;
        let all = [Static, Narrow, GainsRights, NotLoaded, NotAtAll];
        all.into_iter().find(|&u| u as u32 == w)
    }
}

/// A place for what is said of one such program.
///
/// | state | meaning | becomes |
/// |---|---|---|
/// | EMPTY | | WRITTEN (a process has something to say) |
/// | WRITTEN | it is being written; for ever, if the process is killed just then | READY |
/// | READY | it can be read | EMPTY (the supervisor has read it, or the process takes it back) |
#[repr(C)]
struct Notice {
    state: AtomicU32,
    pid: AtomicU32,
    why: AtomicU32,
    path: [AtomicU32; LINE / 4],
}

const NOTICES: usize = 128;
const EMPTY: u32 = 0;
const WRITTEN: u32 = 1;
const READY: u32 = 2;
/// For so many turns of a tenth of a millisecond is waited for a free place: the supervisor looks several times in it.
const TURNS: usize = 3000;

/// What was said, to be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    pid: u32,
    notice: usize,
}

fn store_text(to: &[AtomicU32; LINE / 4], bytes: &[u8]) {
    for (w, word) in to.iter().enumerate() {
        let byte = |i: usize| bytes.get(w * 4 + i).copied().unwrap_or(0);
        word.store(u32::from_ne_bytes([0, 1, 2, 3].map(byte)), Relaxed);
    }
}

fn with_text<R>(from: &[AtomicU32; LINE / 4], f: impl FnOnce(&[u8]) -> R) -> R {
    let mut bytes = [0u8; LINE];
    for (part, word) in bytes.chunks_exact_mut(4).zip(from) {
        part.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    let len = bytes.iter().position(|&b| b == 0).unwrap_or(LINE);
    f(&bytes[..len])
}

/// Swap that a process is given: clusters of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    pub segment: usize,
    /// Which of its clusters.
    pub clusters: u16,
}

/// What the supervisor says to a wish for swap of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Granted(Grant),
    /// There is none.
    Nothing,
}

impl Answer {
    fn word(self, wish: u32) -> u64 {
        let (segment, clusters) = match self {
            Answer::Granted(g) => (g.segment as u64 & 0xffff, g.clusters),
            Answer::Nothing => (0, 0),
        };
        u64::from(wish) << 32 | segment << 16 | u64::from(clusters)
    }

    fn of_word(word: u64) -> Answer {
        match word as u16 {
            0 => Answer::Nothing,
            clusters => Answer::Granted(Grant {
                segment: (word >> 16) as usize & 0xffff,
                clusters,
            }),
        }
    }
}

const WORDS: usize = MAX_SEGMENTS * SEGMENT_CLUSTERS / 64;

/// A set of clusters of all devices.
#[repr(C)]
pub struct Clusters([[AtomicU64; WORDS]; MAX_DEVICES]);

impl Clusters {
    pub fn add(&self, device: usize, cluster: usize) {
        self.0[device][cluster / 64].fetch_or(1 << (cluster % 64), Relaxed);
    }

    pub fn has(&self, device: usize, cluster: usize) -> bool {
        self.0[device][cluster / 64].load(Relaxed) >> (cluster % 64) & 1 != 0
    }

    /// Takes all that is there, of a device's first segments.
    pub fn take(&self, device: usize, segments: usize, mut f: impl FnMut(usize)) {
        let words = (segments * SEGMENT_CLUSTERS).div_ceil(64);
        for (i, word) in self.0[device][..words.min(WORDS)].iter().enumerate() {
            if word.load(Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, AcqRel);
            while bits != 0 {
                f(i * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// Becomes all that is in any of the others, of a device's first segments.
    pub fn unite<'c>(
        &self,
        device: usize,
        segments: usize,
        others: impl Iterator<Item = &'c Clusters> + Clone,
    ) {
        let words = (segments * SEGMENT_CLUSTERS).div_ceil(64);
        for i in 0..words.min(WORDS) {
            let all = others.clone().map(|o| o.0[device][i].load(Relaxed));
            self.0[device][i].store(all.fold(0, |a, b| a | b), Relaxed);
        }
    }
}

/// Clusters that one write may reach: for each piece of it a word, which names device and cluster.
#[repr(C)]
pub struct Writing {
    len: AtomicU32,
    /// A range has no more pieces than pages.
    pieces: [AtomicU32; PMD_NR],
}

impl Writing {
    fn word(device: usize, cluster: usize) -> u32 {
        const { assert!(MAX_SEGMENTS * SEGMENT_CLUSTERS * MAX_DEVICES <= 1 << 24) };
        (device << 20 | cluster) as u32
    }

    /// For the process that writes.
    pub fn add(&self, device: usize, cluster: usize) {
        let (n, word) = (self.len.load(Relaxed) as usize, Self::word(device, cluster));
        if n > 0 && self.pieces[n - 1].load(Relaxed) == word {
            return;
        }
        self.pieces[n].store(word, Relaxed);
        self.len.store(n as u32 + 1, Release);
    }

    pub fn clear(&self) {
        self.len.store(0, Release);
    }

    /// For the supervisor, when the process makes no more requests: what the write may reach, device
    /// and cluster.
    pub fn reached(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let n = (self.len.load(Acquire) as usize).min(PMD_NR);
        self.pieces[..n].iter().map(|p| {
            let word = p.load(Relaxed) as usize;
            (word >> 20, word & 0xf_ffff)
        })
    }
}

impl Proc {
    pub const BYTES: usize = size_of::<Proc>().next_multiple_of(PAGE_SIZE);

    /// A process lets the supervisor read its swap once it is dead, for its core file.
    pub fn hand_keys(&self, unwrap: Unwrap) {
        for (to, word) in self.unwrap.iter().zip(unwrap.0) {
            to.store(word, Release);
        }
    }

    /// For the supervisor: what `hand_keys` said.
    pub fn handed_keys(&self) -> Unwrap {
        Unwrap([0, 1].map(|i| self.unwrap[i].load(Acquire)))
    }

    /// The process is gone, and its core file is complete.
    pub fn forget_keys(&self) {
        self.hand_keys(Unwrap([0; 2]));
    }

    /// The process says how pressed it is. True where it was not before, and the supervisor may not look soon.
    pub fn set_pressed(&self, now: Pressed) -> bool {
        let before = self.pressed.swap(now as u32, AcqRel);
        before == Pressed::No as u32 && now != Pressed::No
    }

    /// A fault took so long for which pages came back.
    pub fn count_return(&self, ns: u64) {
        self.returns.fetch_add(1, Relaxed);
        self.returns_ns.fetch_add(ns, Relaxed);
    }

    /// Counts the processor time that this thread of the engine's has had. `told`: what it had when it said so last.
    pub fn count_engine_time(&self, told: &mut u64) {
        let now = thread::user_ns(Whose::Thread);
        let more = now.saturating_sub(*told);
        self.engine_user_ns.fetch_add(more, Relaxed);
        *told = now;
    }

    /// Has the supervisor know how much processor time the process has had.
    pub fn tell_time(&self) {
        self.user_ns.store(thread::user_ns(Whose::Process), Release);
    }

    /// For the supervisor: nanoseconds that the program's own threads have run outside of the kernel.
    pub fn program_ns(&self) -> u64 {
        let all = self.user_ns.load(Acquire);
        all.saturating_sub(self.engine_user_ns.load(Acquire))
    }

    /// For the supervisor.
    pub fn pressed(&self) -> Pressed {
        match self.pressed.load(Acquire) {
            0 => Pressed::No,
            1 => Pressed::Short,
            _ => Pressed::Waits,
        }
    }

    /// A process asks for swap; this is its wish of that number, from 1 on.
    pub fn ask(&self, device: usize, wish: u32) {
        self.asked[device].store(wish, Release);
    }

    /// For the supervisor: the wish that is to be answered, if there is one.
    pub fn wish(&self, device: usize) -> Option<u32> {
        let asked = self.asked[device].load(Acquire);
        let answered = (self.grants[device].load(Relaxed) >> 32) as u32;
        (asked != answered).then_some(asked)
    }

    pub fn answer(&self, device: usize, wish: u32, answer: Answer) {
        self.grants[device].store(answer.word(wish), Release);
    }

    /// For the process: what was said to the wish of that number, if anything was.
    pub fn answered(&self, device: usize, wish: u32) -> Option<Answer> {
        let word = self.grants[device].load(Acquire);
        ((word >> 32) as u32 == wish).then(|| Answer::of_word(word))
    }

    /// A process asks whether it can have more than its limit; this is its question of that number. It has the
    /// supervisor called after that.
    pub fn ask_for_more(&self, question: MoreAsked) {
        self.more_asked.store(question.0, Release);
    }

    /// It has no question any more, whatever the answer.
    pub fn ask_for_no_more(&self) {
        self.more_asked.store(0, Release);
    }

    /// For the process: what was said to this question, if anything was.
    pub fn more(&self, question: MoreAsked) -> Option<More> {
        let word = self.more_answered.load(Acquire);
        (word >> 1 == question.0).then_some(match word & 1 {
            0 => More::HasAll,
            _ => More::ToCome,
        })
    }

    /// For the supervisor: the question to which nothing was said yet, or that more is to come.
    pub fn question(&self) -> Option<MoreAsked> {
        let asked = self.more_asked.load(Acquire) & MoreAsked::MOST;
        let ended = asked == 0 || self.more_answered.load(Relaxed) == asked << 1;
        (!ended).then_some(MoreAsked(asked))
    }

    /// For the supervisor. Says whether this is news to the process.
    pub fn answer_question(&self, question: MoreAsked, more: More) -> bool {
        let word = question.0 << 1 | u32::from(more == More::ToCome);
        self.more_answered.swap(word, AcqRel) != word
    }

    /// A process needs nothing that is in these clusters any more, and does not use them.
    pub fn give_back(&self, device: usize, grant: Grant) {
        for cluster in (0..SEGMENT_CLUSTERS).filter(|c| grant.clusters >> c & 1 != 0) {
            self.freed
                .add(device, grant.segment * SEGMENT_CLUSTERS + cluster);
        }
        self.any_freed.store(1, Release);
    }

    /// For the supervisor: takes what was given back. `segments` of each device.
    pub fn take_freed(
        &self,
        segments: impl Iterator<Item = usize>,
        mut f: impl FnMut(usize, usize),
    ) {
        if self.any_freed.load(Relaxed) == 0 || self.any_freed.swap(0, AcqRel) == 0 {
            return;
        }
        for (device, n) in segments.enumerate().take(MAX_DEVICES) {
            self.freed.take(device, n, |cluster| f(device, cluster));
        }
    }

    /// Tells the supervisor that this process, by the number that it has here, becomes a program without
    /// hugeswap. May wait for a free place, but not for long.
    pub fn say_unmanaged(&self, pid: u32, why: Unmanaged, path: &[u8]) -> Option<Said> {
        for _ in 0..TURNS {
            let free = |n: &Notice| {
                let taken = n.state.compare_exchange(EMPTY, WRITTEN, AcqRel, Relaxed);
                taken.is_ok()
            };
            let Some(i) = self.unmanaged.iter().position(free) else {
                thread::pause();
                continue;
            };
            let notice = &self.unmanaged[i];
            notice.pid.store(pid, Relaxed);
            notice.why.store(why as u32, Relaxed);
            store_text(&notice.path, path);
            notice.state.store(READY, Release);
            return Some(Said { pid, notice: i });
        }
        None
    }

    /// It has not become that program.
    pub fn take_back(&self, said: Said) {
        let n = &self.unmanaged[said.notice];
        let is_it = n.pid.load(Relaxed) == said.pid;
        // Somebody else may have the place by now, but then the supervisor has read ours.
        if !is_it
            || n.state
                .compare_exchange(READY, EMPTY, AcqRel, Relaxed)
                .is_err()
        {
            self.say_unmanaged(said.pid, Unmanaged::NotAtAll, b"");
        }
    }

    /// For the supervisor: what was said since it last asked, with the number and the path of each.
    pub fn hear_unmanaged(&self, mut f: impl FnMut(u32, Unmanaged, &[u8])) {
        for n in &self.unmanaged {
            if n.state.load(Acquire) != READY {
                continue;
            }
            let (pid, why) = (n.pid.load(Relaxed), n.why.load(Relaxed));
            let mut path = [0u8; LINE];
            let len = with_text(&n.path, |text| {
                path[..text.len()].copy_from_slice(text);
                text.len()
            });
            // Unless it is taken back just now.
            let is_read = n.state.compare_exchange(READY, EMPTY, AcqRel, Relaxed);
            if let (Ok(_), Some(why)) = (is_read, Unmanaged::of_word(why)) {
                f(pid, why, &path[..len]);
            }
        }
    }

    /// Leaves a line for the supervisor to print.
    pub fn log(&self, line: &str) {
        let n = self.log_at.fetch_add(1, AcqRel) as usize % LINES;
        store_text(&self.log[n], line.as_bytes());
    }

    /// Lines logged since `from` lines were; returns how many there are now.
    pub fn read_log(&self, from: u64, mut f: impl FnMut(&str)) -> u64 {
        let to = self.log_at.load(Acquire);
        for n in from.max(to.saturating_sub(LINES as u64))..to {
            let line = &self.log[n as usize % LINES];
            with_text(line, |text| f(&String::from_utf8_lossy(text)));
        }
        to
    }
}

static CURRENT: AtomicPtr<Proc> = AtomicPtr::new(core::ptr::null_mut());

/// The page of this image from now on.
pub fn set_current(page: &'static Proc) {
    CURRENT.store(core::ptr::from_ref(page).cast_mut(), Release);
}

/// Leaves a line for the supervisor of this process's run. Whether it is in one.
pub fn log(line: &str) -> bool {
    // SAFETY: null, or made from such a reference.
    let page = unsafe { CURRENT.load(Acquire).as_ref() };
    if let Some(page) = page {
        page.log(line);
    }
    page.is_some()
}

/// See [`Proc::say_unmanaged`].
pub fn say_unmanaged(pid: u32, why: Unmanaged, path: &[u8]) -> Option<Said> {
    // SAFETY: null, or made from such a reference.
    unsafe { CURRENT.load(Acquire).as_ref() }?.say_unmanaged(pid, why, path)
}

/// See [`Proc::take_back`].
pub fn take_back(said: Said) {
    // SAFETY: null, or made from such a reference.
    if let Some(page) = unsafe { CURRENT.load(Acquire).as_ref() } {
        page.take_back(said);
    }
}

/// A mapping of an image's page.
pub struct Mapped(core::ptr::NonNull<Proc>);

// SAFETY: every field is atomic.
unsafe impl Send for Mapped {}
// SAFETY: every field is atomic.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// # Safety
    /// The file must have `Proc::BYTES` bytes, for as long as this lives.
    pub unsafe fn new(fd: i32) -> Result<Mapped, Errno> {
        let a = mem::map_shared(fd, Proc::BYTES, mem::Access::Write)?;
        let mapped = core::ptr::NonNull::new(a as *mut Proc)
            .map(Mapped)
            .ok_or(Errno::ENOMEM)?;
        // There is a key in it, which is not for core files.
        // SAFETY: the mapping just made; contents do not change.
        unsafe { mem::madvise(a, Proc::BYTES, libc::MADV_DONTDUMP) }?;
        Ok(mapped)
    }

    /// Keeps the mapping as long as the process lives.
    pub fn leak(self) -> &'static Proc {
        let p = self.0;
        core::mem::forget(self);
        // SAFETY: mapped with this size, never unmapped; every bit pattern is valid.
        unsafe { p.as_ref() }
    }
}

impl Deref for Mapped {
    type Target = Proc;
    fn deref(&self) -> &Proc {
        // SAFETY: mapped with this size as long as this lives; every bit pattern is valid, and every
        // field is atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our mapping, which nobody has a reference into any more.
        unsafe { mem::unmap_own(self.0.as_ptr() as usize, Proc::BYTES) };
    }
}

/// Children do not inherit the mapping.
pub fn keep_from_children(p: &'static Proc) {
    let at = p as *const Proc as usize;
    // SAFETY: contents do not change.
    let _ = unsafe { mem::madvise(at, Proc::BYTES, libc::MADV_DONTFORK) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_clusters() {
        let new = || {
            let bytes = size_of::<Clusters>();
            // SAFETY: mapped with this size and never unmapped; every bit pattern is valid.
            unsafe { &*(mem::map_anon(bytes).unwrap() as *const Clusters) }
        };
        let (a, b, both) = (new(), new(), new());
        a.add(0, 17);
        b.add(0, 16 * 40);
        b.add(7, 16 * MAX_SEGMENTS - 1);
        both.add(0, 3);
        for d in [0, 7] {
            both.unite(d, MAX_SEGMENTS, [a, b].into_iter());
        }
        assert!(both.has(0, 17) && both.has(0, 640) && !both.has(0, 3));
        assert!(both.has(7, 16 * MAX_SEGMENTS - 1));
        let mut taken = Vec::new();
        both.take(0, MAX_SEGMENTS, |cluster| taken.push(cluster));
        assert_eq!(taken, [17, 640]);
        both.take(0, MAX_SEGMENTS, |_| panic!("nothing is left"));
    }

    fn page() -> &'static Proc {
        // SAFETY: mapped with this size and never unmapped; every bit pattern is valid.
        unsafe { &*(mem::map_anon(Proc::BYTES).unwrap() as *const Proc) }
    }

    #[test]
    fn a_question_for_more_is_open_until_all_is_given() {
        let p = page();
        let one = MoreAsked::FIRST;
        assert_eq!((p.question(), p.more(one)), (None, None));
        p.ask_for_more(one);
        assert_eq!((p.question(), p.more(one)), (Some(one), None));
        assert!(p.answer_question(one, More::ToCome));
        assert!(!p.answer_question(one, More::ToCome));
        assert_eq!((p.question(), p.more(one)), (Some(one), Some(More::ToCome)));
        assert!(p.answer_question(one, More::HasAll));
        assert_eq!((p.question(), p.more(one)), (None, Some(More::HasAll)));
        let two = one.next();
        assert_eq!(p.more(two), None);
        p.ask_for_more(two);
        assert_eq!(p.question(), Some(two));
        p.ask_for_no_more();
        assert_eq!(p.question(), None);
        assert_eq!(MoreAsked(MoreAsked::MOST).next(), one);
    }

    #[test]
    fn who_becomes_pressed_says_so_once() {
        let p = page();
        let steps = [
            (Pressed::No, false),
            (Pressed::Short, true),
            (Pressed::Waits, false),
            (Pressed::Short, false),
            (Pressed::No, false),
            (Pressed::Waits, true),
        ];
        for (now, is_new) in steps {
            assert_eq!((p.set_pressed(now), p.pressed()), (is_new, now));
        }
    }

    #[test]
    fn writes_say_what_they_may_reach() {
        let w = &page().writing[0];
        let last = (MAX_DEVICES - 1, MAX_SEGMENTS * SEGMENT_CLUSTERS - 1);
        let places = [(1, 7), (1, 7), (0, 0), last, (1, 7)];
        for (device, cluster) in places {
            w.add(device, cluster);
        }
        assert_eq!(w.reached().collect::<Vec<_>>(), places[1..]);
        w.clear();
        assert_eq!(w.reached().count(), 0);
        for cluster in 0..PMD_NR {
            w.add(0, cluster);
        }
        assert_eq!(w.reached().count(), PMD_NR);
    }

    #[test]
    fn a_wish_has_one_answer() {
        let p = page();
        assert_eq!(p.wish(3), None);
        p.ask(3, 1);
        assert_eq!((p.wish(3), p.answered(3, 1)), (Some(1), None));
        let all = Grant {
            segment: MAX_SEGMENTS - 1,
            clusters: u16::MAX,
        };
        p.answer(3, 1, Answer::Granted(all));
        assert_eq!(
            (p.wish(3), p.answered(3, 1)),
            (None, Some(Answer::Granted(all)))
        );
        p.ask(3, 2);
        assert_eq!((p.wish(3), p.answered(3, 2)), (Some(2), None));
        p.answer(3, 2, Answer::Nothing);
        assert_eq!(p.answered(3, 2), Some(Answer::Nothing));
        let mut freed = Vec::new();
        p.give_back(
            3,
            Grant {
                segment: 2,
                clusters: 0x8001,
            },
        );
        let sizes = || [4; 4].into_iter();
        p.take_freed(sizes(), |d, c| freed.push((d, c)));
        assert_eq!(freed, [(3, 32), (3, 47)]);
        p.take_freed(sizes(), |_, _| panic!("nothing is left"));
    }

    #[test]
    fn programs_without_hugeswap_are_said_once() {
        let p = page();
        let heard = || {
            let mut all = Vec::new();
            p.hear_unmanaged(|pid, why, path| all.push((pid, why, path.to_vec())));
            all
        };
        p.say_unmanaged(7, Unmanaged::Static, b"/a").unwrap();
        let failed = p.say_unmanaged(8, Unmanaged::NotLoaded, b"/b").unwrap();
        p.take_back(failed);
        assert_eq!(heard(), [(7, Unmanaged::Static, b"/a".to_vec())]);
        assert!(heard().is_empty());
        // It was heard of before it failed.
        let failed = p.say_unmanaged(9, Unmanaged::Narrow, &[b'x'; 300]).unwrap();
        assert_eq!(heard(), [(9, Unmanaged::Narrow, vec![b'x'; LINE])]);
        p.take_back(failed);
        assert_eq!(heard(), [(9, Unmanaged::NotAtAll, Vec::new())]);
        for pid in 0..NOTICES as u32 {
            p.say_unmanaged(pid, Unmanaged::Static, b"/c").unwrap();
        }
        assert_eq!(heard().len(), NOTICES);
    }

    #[test]
    fn lines_of_the_log() {
        let p = page();
        let mut lines = Vec::new();
        p.log("one");
        let seen = p.read_log(0, |l| lines.push(l.to_owned()));
        p.log(&"2".repeat(LINE + 1));
        assert_eq!(p.read_log(seen, |l| lines.push(l.to_owned())), 2);
        assert_eq!(lines, ["one".to_owned(), "2".repeat(LINE)]);
    }
}
