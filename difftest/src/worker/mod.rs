//! The program under test: carries operations out, and looks whether memory is as it must be.

mod arch;
mod bad;
mod io;
mod maps;
mod process;
mod refused;
mod shadow;
mod sys;
mod threads;
mod world;

use crate::args::Args;
use crate::plan::{Kind, Mixture, Rng, KINDS, STEPS};
use shadow::{Shadow, PAGE};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use world::{World, SCRATCH};

/// Files in the directory that the driver gives a worker.
pub const KEEP: &str = "keep";
pub const TRACE: &str = "trace";
pub const FINDINGS: &str = "findings";

pub fn run(args: &Args, dir: &Path) -> i32 {
    let mut w = set_up(args, dir);
    // `--seed` is the batch's own here, and `--sequences` its length.
    for sequence in 0..args.sequences {
        sys::SEQUENCE.store(sequence, Relaxed);
        for k in 0..STEPS {
            step(&mut w, sequence * STEPS + k);
        }
    }
    w.check_all();
    w.wait_for_all();
    0
}

#[allow(unsafe_code)]
fn set_up(args: &Args, dir: &Path) -> World {
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
        has_killed: false,
        disturbed: args.disturb,
        starting: sys::shared_count(dir),
        depth: 0,
    };
    w.shadow().set_up(args.data * (1 << 20) / PAGE);
    w
}

/// Carries out the operation of that number, unless it is left out.
fn step(w: &mut World, id: u64) {
    if w.keep
        .as_ref()
        .is_some_and(|k| k.binary_search(&id).is_err())
    {
        return;
    }
    let mut r = Rng::new(w.seed, id);
    let (kind, name) = w.mixture.pick(&mut r);
    sys::CURRENT.store(id, Relaxed);
    let number = KINDS.iter().position(|k| k.0 == kind);
    sys::KIND.store(number.unwrap_or(0), Relaxed);
    sys::trace(id);
    if std::env::var_os("DIFFTEST_VERBOSE").is_some() {
        eprintln!("{} {id:#x} {name}", std::process::id());
    }
    match kind {
        Kind::Map => maps::map(w, &mut r),
        Kind::MapOver => maps::map_over(w, &mut r),
        Kind::MapFile => maps::map_file(w, &mut r),
        Kind::Unmap => maps::unmap(w, &mut r),
        Kind::Write => w.write_some(&mut r),
        Kind::Read => w.read_some(&mut r),
        Kind::Protect => maps::protect(w, &mut r),
        Kind::Advise => maps::advise(w, &mut r),
        Kind::PageOut => maps::page_out(w, &mut r),
        Kind::Lock => maps::lock(w, &mut r),
        Kind::Remap => maps::remap(w, &mut r),
        Kind::RemapPart => maps::remap_part(w, &mut r),
        Kind::RemapKeep => maps::remap_keep(w, &mut r),
        Kind::Brk => maps::brk(w, &mut r),
        Kind::Name => maps::name(w, &mut r),
        Kind::Refused => refused::refused(w, &mut r),
        Kind::ProcessMadvise => refused::process_madvise(w, &mut r),
        Kind::Fork => process::fork(w, &mut r, id, step),
        Kind::Wait => process::wait_for_one(w),
        Kind::Kill => process::kill(w, &mut r),
        Kind::Stop => process::stop(w, &mut r),
        Kind::Namespace => process::namespace(w, &mut r),
        Kind::Spawn => process::spawn(w, &mut r),
        Kind::Threads => threads::write_together(w, &mut r),
        Kind::ForkUnderThreads => threads::fork_meanwhile(w, &mut r),
        Kind::SignalStack => threads::signal_stack(w, &mut r),
        Kind::BadAddress => bad::touch(w, &mut r),
        Kind::Pipe => io::pipe(w, &mut r),
        Kind::File => io::file(w, &mut r),
        Kind::Vector => io::vector(w, &mut r),
        Kind::Socket => io::socket(w, &mut r),
        Kind::VmReadv => io::vm_readv(w, &mut r),
        Kind::Direct => io::direct(w, &mut r),
        Kind::Uring => io::uring(w, &mut r),
        Kind::Splice => io::splice(w, &mut r),
        Kind::Futex => threads::futex(w, &mut r),
    }
}
