//! The program under test: carries operations out, and looks whether memory is as it must be.

mod bad;
mod io;
mod maps;
mod process;
mod refused;
mod shadow;
mod sys;
mod threads;

use crate::plan::{mix, Kind, Mixture, Rng, KINDS};
use crate::{Args, STEPS};
use shadow::{render, Part, Shadow, CELL, CELLS, FREED, PAGE, RW};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// Files in the directory that the driver gives a worker.
pub const KEEP: &str = "keep";
pub const TRACE: &str = "trace";
pub const FINDINGS: &str = "findings";

/// Scratch memory: a shared file, so never managed.
const SCRATCH: usize = 4 << 20;

pub struct World {
    seed: u64,
    mixture: Mixture,
    /// Operations to carry out, sorted; all of them where there is no list.
    keep: Option<Vec<u64>>,
    dir: PathBuf,
    shadow: *mut Shadow,
    shadow_fd: i32,
    scratch: usize,
    /// A file for reads and writes, opened also with O_DIRECT.
    file: i32,
    direct: i32,
    children: Vec<process::Child>,
    /// The driver kills children, too.
    disturbed: bool,
    /// How many forks this process is away from the first.
    depth: usize,
}

pub fn run(args: &Args, dir: &Path) -> i32 {
    let mut w = World::new(args, dir);
    // `--seed` is the batch's own here, and `--sequences` its length.
    for sequence in 0..args.sequences {
        sys::SEQUENCE.store(sequence, Relaxed);
        for k in 0..STEPS {
            w.step(sequence * STEPS + k);
        }
    }
    w.check_all();
    w.wait_for_all();
    0
}

impl World {
    #[allow(unsafe_code)]
    fn new(args: &Args, dir: &Path) -> World {
        let shadow_fd = sys::temporary(dir, size_of::<Shadow>());
        let scratch_fd = sys::temporary(dir, SCRATCH);
        // SAFETY: new mappings of files of these sizes; nothing is replaced.
        let (shadow, scratch) = unsafe {
            (
                sys::map_shared(shadow_fd, size_of::<Shadow>(), 0) as *mut Shadow,
                sys::map_shared(scratch_fd, SCRATCH, 0),
            )
        };
        let mixture = Mixture::new(&args.without, &args.only);
        let (file, direct) = io::open_files(dir, mixture.has(Kind::Direct));
        process::collect_orphans();
        bad::catch_signals();
        let open = |name: &str| {
            use std::os::fd::IntoRawFd;
            std::fs::File::options()
                .append(true)
                .create(true)
                .open(dir.join(name))
                .map_or(-1, |f| f.into_raw_fd())
        };
        sys::TRACE.store(open(TRACE), Relaxed);
        sys::FINDINGS.store(open(FINDINGS), Relaxed);
        let keep = std::fs::read(dir.join(KEEP)).ok().map(|bytes| {
            let mut ids: Vec<u64> = bytes
                .chunks_exact(8)
                .map(|b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
                .collect();
            ids.sort_unstable();
            ids
        });
        let mut w = World {
            seed: args.seed,
            mixture,
            keep,
            dir: dir.to_path_buf(),
            shadow,
            shadow_fd,
            scratch,
            file,
            direct,
            children: Vec::new(),
            disturbed: args.disturb,
            depth: 0,
        };
        w.shadow().set_up(args.data * (1 << 20) / PAGE);
        w
    }

    #[allow(unsafe_code)]
    fn shadow(&mut self) -> &mut Shadow {
        // SAFETY: the mapping lives as long as the process, and only this thread of it uses it;
        // all-zero bytes and what `Shadow` wrote are valid.
        unsafe { &mut *self.shadow }
    }

    /// Carries out the operation of that number, unless it is left out.
    fn step(&mut self, id: u64) {
        if self
            .keep
            .as_ref()
            .is_some_and(|k| k.binary_search(&id).is_err())
        {
            return;
        }
        let mut r = Rng::new(self.seed, id);
        let (kind, name) = self.mixture.pick(&mut r);
        sys::CURRENT.store(id, Relaxed);
        let number = KINDS.iter().position(|k| k.0 == kind);
        sys::KIND.store(number.unwrap_or(0), Relaxed);
        sys::trace(id);
        if std::env::var_os("DIFFTEST_VERBOSE").is_some() {
            eprintln!("{} {id:#x} {name}", std::process::id());
        }
        match kind {
            Kind::Map => maps::map(self, &mut r),
            Kind::MapOver => maps::map_over(self, &mut r),
            Kind::MapFile => maps::map_file(self, &mut r),
            Kind::Unmap => maps::unmap(self, &mut r),
            Kind::Write => self.write_some(&mut r),
            Kind::Read => self.read_some(&mut r),
            Kind::Protect => maps::protect(self, &mut r),
            Kind::Advise => maps::advise(self, &mut r),
            Kind::PageOut => maps::page_out(self, &mut r),
            Kind::Lock => maps::lock(self, &mut r),
            Kind::Remap => maps::remap(self, &mut r),
            Kind::RemapPart => maps::remap_part(self, &mut r),
            Kind::RemapKeep => maps::remap_keep(self, &mut r),
            Kind::Brk => maps::brk(self, &mut r),
            Kind::Name => maps::name(self, &mut r),
            Kind::Refused => refused::refused(self, &mut r),
            Kind::ProcessMadvise => refused::process_madvise(self, &mut r),
            Kind::Fork => process::fork(self, &mut r, id),
            Kind::Wait => process::wait_for_one(self),
            Kind::Kill => process::kill(self, &mut r),
            Kind::Stop => process::stop(self, &mut r),
            Kind::NameSpace => process::name_space(self, &mut r),
            Kind::Spawn => process::spawn(self, &mut r),
            Kind::Threads => threads::write_together(self, &mut r),
            Kind::ForkUnderThreads => threads::fork_meanwhile(self, &mut r),
            Kind::SignalStack => threads::signal_stack(self, &mut r),
            Kind::BadAddress => bad::touch(self, &mut r),
            Kind::Pipe => io::pipe(self, &mut r),
            Kind::File => io::file(self, &mut r),
            Kind::Vector => io::vector(self, &mut r),
            Kind::Socket => io::socket(self, &mut r),
            Kind::VmReadv => io::vm_readv(self, &mut r),
            Kind::Direct => io::direct(self, &mut r),
            Kind::Uring => io::uring(self, &mut r),
            Kind::Splice => io::splice(self, &mut r),
            Kind::Futex => threads::futex(self, &mut r),
        }
    }

    /// A part of some region, at its begin, its end or between.
    fn part(&mut self, r: &mut Rng) -> Option<Part> {
        let n = self.shadow().count();
        if n == 0 {
            return None;
        }
        let region = r.below(n);
        let pages = self.shadow().pages(region);
        let count = r.some_pages(pages);
        let from = match r.below(3) {
            0 => 0,
            1 => pages - count,
            _ => r.below(pages - count + 1),
        };
        Some(Part {
            region,
            from,
            count,
        })
    }

    /// As `part`, readable and writable, and at most so long.
    fn open_part(&mut self, r: &mut Rng, most: usize) -> Option<Part> {
        for _ in 0..4 {
            let mut p = self.part(r)?;
            p.count = p.count.min(most);
            if self.shadow().all(p, |g| g.prot == RW) {
                return Some(p);
            }
        }
        None
    }

    #[allow(unsafe_code)]
    fn page_mut(&mut self, region: usize, i: usize) -> &'static mut [u64; PAGE / 8] {
        let at = self.shadow().at(region) + i * PAGE;
        // SAFETY: the model says that the page is mapped and may be read (and written, where the
        // caller does so); nobody else uses it now.
        unsafe { &mut *(at as *mut [u64; PAGE / 8]) }
    }

    /// Looks at every byte of the page.
    fn check_page(&mut self, region: usize, i: usize) {
        let g = self.shadow().page_at(region, i);
        if g.prot & libc::PROT_READ as u8 == 0 {
            return;
        }
        let here = self.page_mut(region, i);
        let mut want = [0; PAGE / 8];
        render(&g.cell, &mut want);
        if *here == want {
            return;
        }
        let is_zero = here.iter().all(|w| *w == 0);
        if g.flags & FREED != 0 && is_zero {
            let p = self.shadow().page(region, i);
            p.cell = [0; CELLS];
            p.flags &= !FREED;
            return;
        }
        let k = (0..PAGE / 8).find(|&k| here[k] != want[k]).unwrap_or(0);
        let wrong = (0..PAGE / 8).filter(|&k| here[k] != want[k]).count();
        let (pages, found) = (self.shadow().pages(region), here[k]);
        sys::fail_with(format_args!(
            "page {i} of {pages} at {:p}: {wrong} of 512 words differ, word {k} is {found:#x}, not {:#x}{}",
            here.as_ptr(),
            want[k],
            if is_zero { "; the page is zeros" } else { "" }
        ));
    }

    fn check(&mut self, p: Part) {
        for i in p.from..p.from + p.count {
            self.check_page(p.region, i);
        }
    }

    fn whole(&mut self, region: usize) -> Part {
        Part {
            region,
            from: 0,
            count: self.shadow().pages(region),
        }
    }

    fn check_all(&mut self) {
        for region in 0..self.shadow().count() {
            let p = self.whole(region);
            self.check(p);
        }
    }

    /// One page in so many, of every region.
    fn check_some(&mut self, r: &mut Rng, one_in: usize) {
        for region in 0..self.shadow().count() {
            for i in 0..self.shadow().pages(region) {
                if r.one_in(one_in) {
                    self.check_page(region, i);
                }
            }
        }
    }

    /// New contents for so many cells of the page, in the model.
    fn draw(&mut self, r: &mut Rng, region: usize, i: usize, cells: usize) {
        let (first, v) = (r.below(CELLS), r.next());
        let g = self.shadow().page(region, i);
        let cells = if g.flags & FREED != 0 { CELLS } else { cells };
        g.flags &= !FREED;
        for n in 0..cells {
            g.cell[(first + n) % CELLS] = mix(v + n as u64) as u32;
        }
    }

    /// Writes new contents to so many cells of the page.
    fn write_page(&mut self, r: &mut Rng, region: usize, i: usize, cells: usize) {
        let before = self.shadow().page_at(region, i);
        if before.prot != RW {
            return;
        }
        self.draw(r, region, i, cells);
        let after = self.shadow().page_at(region, i);
        let all = before.flags & FREED != 0;
        let here = self.page_mut(region, i);
        for c in 0..CELLS {
            if all || before.cell[c] != after.cell[c] {
                for k in 0..CELL / 8 {
                    here[c * CELL / 8 + k] = shadow::word(after.cell[c], k);
                }
            }
        }
    }

    fn write(&mut self, r: &mut Rng, p: Part) {
        for i in p.from..p.from + p.count {
            self.write_page(r, p.region, i, CELLS);
        }
    }

    fn write_some(&mut self, r: &mut Rng) {
        let Some(p) = self.part(r) else { return };
        if r.one_in(2) {
            return self.write(r, p);
        }
        for _ in 0..(p.count / 8).clamp(1, 64) {
            let (i, cells) = (p.from + r.below(p.count), 1 + r.below(4));
            self.write_page(r, p.region, i, cells);
        }
    }

    fn read_some(&mut self, r: &mut Rng) {
        let Some(p) = self.part(r) else { return };
        if r.one_in(2) {
            return self.check(p);
        }
        for _ in 0..(p.count / 8).clamp(1, 64) {
            let i = p.from + r.below(p.count);
            self.check_page(p.region, i);
        }
    }
}
