//! The checks, each of one thing, in the order in which they matter.

use std::io;
use std::path::Path;
use std::time::Duration;

use hugeswap_control::{Control, SEGMENT_BYTES};
use hugeswap_device::file::{FileDevice, Options};
use hugeswap_sys::probe::{self, Faults, Features, Limit};

use super::check::{Check, Verdict};
use hugeswap_host::cgroup::{self, Own};
use hugeswap_host::cpu_latency;
use hugeswap_host::in_use::wait_until_free;
use hugeswap_host::os;
use hugeswap_host::size::{Size, MIB};
use hugeswap_host::sizing::{self, LEAST_ADDRESSES, LEAST_DATA, LEAST_DESCRIPTORS, LEAST_MEMORY};
use hugeswap_host::swap_spec::{self, Place, Target, Where};

/// `swap`: the places that were given.
pub fn all(swap: &[Where]) -> Vec<Check> {
    let by_syscall = probe::userfaultfd_by_syscall(Faults::All).map(drop);
    let by_device = probe::userfaultfd_by_device().map(drop);
    let features = probe::userfaultfd().and_then(|(fd, _)| probe::features(&fd));
    let available = features.as_ref().copied().unwrap_or_default();
    let mut checks = vec![kernel()];
    checks.extend(userfaultfd(
        by_syscall,
        by_device,
        probe::userfaultfd_by_syscall(Faults::UserMode).is_ok(),
        probe::unprivileged_userfaultfd(),
        Device::look(),
    ));
    // Without any userfaultfd the following would only repeat that.
    if features.is_ok() {
        checks.push(whole_moves(available));
        checks.push(write_protection(available));
    }
    checks.push(huge_pages(probe::thp()));
    checks.push(io_uring(probe::io_uring(), probe::io_uring_disabled()));
    match swap {
        [] => checks.push(default_place()),
        given => checks.extend(given.iter().map(swap_place)),
    }
    checks.push(filter(probe::seccomp()));
    checks.push(tasks());
    checks.push(preload_library());
    checks.push(memory_group());
    checks.push(address_space());
    checks.push(data());
    checks.push(descriptors());
    checks.push(file_size(is_file(swap)));
    checks.push(locked_memory());
    checks.push(idle_processors());
    checks
}

fn idle_processors() -> Check {
    let name = "idle processors";
    match cpu_latency::should_poll() {
        Ok(()) => Check::ok(name, "can be kept awake while pages are waited for"),
        Err(not) => Check::new(name, Verdict::Note, format!("left alone: {}", not.why())),
    }
}

fn kernel() -> Check {
    let name = "kernel";
    match probe::kernel() {
        Ok(kernel) => {
            let found = format!("Linux {}", kernel.release);
            if (kernel.major, kernel.minor) < (4, 11) {
                Check::new(name, Verdict::Missing, found)
                    .so("faults of private memory can't be served in user space before 4.11")
                    .mend("install Linux 6.8 or later and reboot")
            } else {
                Check::ok(name, found)
            }
        }
        Err(err) => Check::new(name, Verdict::Note, format!("/proc is not readable: {err}")),
    }
}

/// Until the next boot; for good by a udev rule.
const ALLOW_DEVICE: &str = "sudo chown $USER /dev/userfaultfd";
const ALLOW_SYSCTL: &str = "sudo sysctl -w vm.unprivileged_userfaultfd=1";

const ALLOW_CONTAINER: &str = "docker run --device /dev/userfaultfd (podman alike)";

/// Whether `/dev` shows the devices that the kernel has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Device {
    AsKernelHas,
    /// The kernel has it and `/dev` does not: a container.
    Hidden,
}

impl Device {
    fn look() -> Device {
        let kernel = Path::new("/sys/class/misc/userfaultfd").exists();
        if kernel && !Path::new("/dev/userfaultfd").exists() {
            Device::Hidden
        } else {
            Device::AsKernelHas
        }
    }
}

/// The two ways to get one, and what they give together.
fn userfaultfd(
    by_syscall: io::Result<()>,
    by_device: io::Result<()>,
    user_mode: bool,
    sysctl: Option<bool>,
    device: Device,
) -> Vec<Check> {
    let all_faults = by_syscall.is_ok() || by_device.is_ok();
    // One closed way is only worth knowing while the other is open.
    let way = |name, result: &io::Result<()>| match result {
        Ok(()) => Check::ok(name, "allowed"),
        Err(err) => Check::new(name, Verdict::Note, why(err)),
    };
    let mut checks = vec![
        way("userfaultfd, system call", &by_syscall),
        Check::new(
            "userfaultfd, sysctl",
            Verdict::Note,
            match sysctl {
                Some(on) => format!("vm.unprivileged_userfaultfd = {}", u8::from(on)),
                None => "there is no vm.unprivileged_userfaultfd".to_owned(),
            },
        ),
        match (&by_device, device) {
            (Err(err), Device::Hidden) if err.kind() == io::ErrorKind::NotFound => Check::new(
                "userfaultfd, device",
                Verdict::Note,
                "the kernel has it, and /dev does not",
            ),
            _ => way("userfaultfd, device", &by_device),
        },
    ];
    let name = "faults in system calls";
    let mend = match &by_device {
        Err(err) if err.kind() == io::ErrorKind::NotFound => match device {
            Device::Hidden => ALLOW_CONTAINER,
            Device::AsKernelHas => ALLOW_SYSCTL,
        },
        // Where it is the file's mode the kernel says EACCES.
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => ALLOW_CONTAINER,
        _ => ALLOW_DEVICE,
    };
    checks.push(if all_faults {
        Check::ok(name, "served")
    } else if user_mode {
        Check::new(name, Verdict::Missing, "this user may only serve faults of the program itself")
            .so("system calls into swapped memory would fail; 'run' refuses without --user-mode-only")
            .mend(mend)
    } else if by_syscall.is_err_and(|err| err.raw_os_error() == Some(libc::ENOSYS)) {
        Check::new(name, Verdict::Missing, "this kernel has no userfaultfd, or a filter hides it")
            .so("nothing can be swapped in user space")
            .mend("in a container: docker run --device /dev/userfaultfd --security-opt seccomp=unconfined; \
                   else a kernel with CONFIG_USERFAULTFD")
    } else {
        Check::new(name, Verdict::Missing, "userfaultfd is forbidden")
            .so("nothing can be swapped in user space")
            .mend(mend)
    });
    checks
}

fn why(err: &io::Error) -> String {
    match err.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "not permitted for this user".to_owned(),
        Some(libc::ENOENT) => "not there (it came with Linux 6.1)".to_owned(),
        Some(libc::ENOSYS) => "not there, or hidden by a filter".to_owned(),
        _ => err.to_string(),
    }
}

/// Why, is told where eviction is: `swap_cache::swapout`.
const COPIED: &str =
    "pages leave by copying, in base pages, and only as root and until the program asks for direct \
     I/O or the like, for pages in use by it can't be told from others. 'run' refuses with --strict";

fn whole_moves(available: Features) -> Check {
    let name = "UFFDIO_MOVE";
    if !available.has(Features::MOVE) {
        return Check::new(name, Verdict::Missing, "not there (it came with Linux 6.8)")
            .so(COPIED)
            .mend("install Linux 6.8 or later and reboot");
    }
    match probe::userfaultfd().and_then(|(fd, _)| probe::move_huge_page(&fd)) {
        Ok(probe) if probe.whole => Check::ok(
            name,
            format!("moves 2 MiB as a whole in {}", short(probe.time)),
        ),
        // Without a huge page to try it on; the next check says why.
        Ok(probe) if !probe.huge => Check::new(
            name,
            Verdict::Note,
            format!(
                "moves 512 single pages in {}; no huge page was to be had",
                short(probe.time)
            ),
        ),
        Ok(probe) => Check::new(
            name,
            Verdict::Limited,
            format!("splits a huge page and moves it in {}", short(probe.time)),
        )
        .so("pages are swapped one by one: much slower"),
        Err(err) => {
            Check::new(name, Verdict::Missing, format!("a real one failed: {err}")).so(COPIED)
        }
    }
}

fn write_protection(available: Features) -> Check {
    let name = "write protection";
    if available.has(Features::WRITE_PROTECT) {
        let how = if available.has(Features::WP_ASYNC) {
            ", also asynchronous"
        } else {
            ""
        };
        Check::ok(name, format!("allowed{how}"))
    } else {
        Check::new(name, Verdict::Note, "not there (it came with Linux 5.7)")
            .so("pages that were not changed are written again when they leave")
    }
}

fn huge_pages(thp: Option<probe::Thp>) -> Check {
    let name = "huge pages";
    let consequence = "no huge pages: everything is swapped in pages of 4 KiB, much slower";
    match thp {
        None => Check::new(
            name,
            Verdict::Limited,
            "this kernel has no transparent huge pages",
        )
        .so(consequence)
        .mend("use a kernel with CONFIG_TRANSPARENT_HUGEPAGE"),
        Some(thp) => {
            let found = format!("enabled = {}, defrag = {}", thp.enabled, thp.defrag);
            if thp.enabled == "never" {
                Check::new(name, Verdict::Limited, found)
                    .so(consequence)
                    .mend("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")
            } else if matches!(thp.defrag.as_str(), "never" | "defer") {
                Check::new(name, Verdict::Limited, found)
                    .so("on fragmented memory huge pages are not made when they are needed")
                    .mend("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/defrag")
            } else {
                Check::ok(name, found)
            }
        }
    }
}

fn io_uring(result: io::Result<()>, sysctl: Option<u32>) -> Check {
    let name = "io_uring";
    let Err(err) = result else {
        return Check::ok(name, "allowed");
    };
    let found = match sysctl {
        Some(value) if value > 0 => format!("forbidden by kernel.io_uring_disabled = {value}"),
        _ => why(&err),
    };
    let check = Check::new(name, Verdict::Limited, found)
        .so("swap is read and written with pread and pwrite: fewer requests in flight");
    match sysctl {
        Some(value) if value > 0 => check.mend("sudo sysctl -w kernel.io_uring_disabled=0"),
        _ => check.mend("in a container: docker run --security-opt seccomp=unconfined"),
    }
}

const SWAP: &str = "swap";

/// Nothing can be swapped there.
fn no_place(found: String) -> Check {
    Check::new(SWAP, Verdict::Missing, found)
        .so("there is nowhere to swap to")
        .mend("hugeswap run --swap DIRECTORY, with a directory on a disk")
}

fn default_place() -> Check {
    match swap_spec::default_directory() {
        Ok(dir) => directory(&dir, None),
        Err(err) => no_place(err.to_string()),
    }
}

fn swap_place(swap: &Where) -> Check {
    let Place { spec, size, .. } = match swap {
        Where::Nowhere => return Check::ok(SWAP, "none: what leaves stays in compressed memory"),
        Where::Place(place) => place,
    };
    match spec.find() {
        Err(err) => no_place(err.to_string()),
        Ok(Target::Ram) => Check::ok(SWAP, "memory stands in for a device"),
        Ok(Target::Directory(dir)) => directory(&dir, *size),
        // The file's contents are not ours to overwrite for a test.
        Ok(Target::File(file)) => {
            let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
            directory(parent.unwrap_or(Path::new(".")), *size)
        }
        Ok(Target::BlockDevice(device)) => block_device(&device),
    }
}

fn block_device(device: &Path) -> Check {
    let name = SWAP;
    let shown = device.display();
    // As 'run' looks at it.
    let options = Options::new(u64::MAX);
    if let Err(err) = wait_until_free(|| FileDevice::examine(device, &options)) {
        return Check::new(name, Verdict::Missing, err.to_string()).so("'run' refuses");
    }
    match probe::direct_io_device(device) {
        Ok(time) => Check::ok(
            name,
            format!("{shown} allows O_DIRECT: 4 KiB read in {}", short(time)),
        ),
        Err(err) => no_place(format!("{shown}: {err}")),
    }
}

/// `size`: what the place was given.
fn directory(dir: &Path, size: Option<Size>) -> Check {
    let name = SWAP;
    let shown = dir.display();
    // First: whether tmpfs allows O_DIRECT depends on the kernel.
    if matches!(os::is_memory_backed(dir), Ok(true)) {
        return Check::new(name, Verdict::Limited, format!("{shown} is memory"))
            .so("swapping out frees nothing")
            .mend("hugeswap run --swap DIRECTORY, with a directory on a disk");
    }
    match probe::direct_io(dir) {
        Ok(time) => {
            let space = os::space(dir).unwrap_or(os::Space { total: 0, free: 0 });
            let room = Size::from_bytes(space.free);
            let time = short(time);
            let check = Check::ok(
                name,
                format!("{shown} allows O_DIRECT: 2 MiB out and back in {time}, {room} free"),
            );
            match size {
                Some(size) => fits(check, size, space),
                None => by_default(check, space),
            }
        }
        Err(err) if err.kind() == io::ErrorKind::InvalidInput => Check::new(
            name,
            Verdict::Limited,
            format!("{shown} does not allow O_DIRECT"),
        )
        .so("swap goes through the page cache, which takes memory and time")
        .mend("hugeswap run --swap DIRECTORY, with a directory on ext4 or xfs"),
        // What mends that stands beside the limit of file sizes.
        Err(err) if err.raw_os_error() == Some(libc::EFBIG) => {
            Check::new(name, Verdict::Missing, format!("{shown}: {err}"))
                .so("'ulimit -f' is too low for any swap file")
        }
        Err(err) => no_place(format!("{shown}: {err}")),
    }
}

/// A place that was given a size.
fn fits(check: Check, size: Size, space: os::Space) -> Check {
    match size.bytes() <= space.free {
        true => check,
        false => Check {
            verdict: Verdict::Missing,
            ..check
        }
        .so(format!("'run' refuses: there is no room for {size}"))
        .mend("hugeswap run --swap DIRECTORY,size=SIZE, with a smaller one"),
    }
}

/// A place without a size.
fn by_default(check: Check, space: os::Space) -> Check {
    let chosen = sizing::swap_file(sizing::memory().bytes, space.total, space.free);
    if chosen.bytes < SEGMENT_BYTES {
        return Check {
            verdict: Verdict::Limited,
            ..check
        }
        .so("a disk keeps a fifth and 10G free, so 'run' refuses without --swap-size")
        .mend("hugeswap run --swap-size SIZE");
    }
    check.so(format!(
        "without --swap-size 'run' takes up to {}: {}",
        Size::from_bytes(chosen.bytes),
        chosen.why
    ))
}

fn filter(mode: Option<u32>) -> Check {
    let name = "seccomp";
    match mode {
        None => Check::new(name, Verdict::Note, "unknown"),
        Some(0) => Check::ok(name, "no filter"),
        Some(_) => Check::new(
            name,
            Verdict::Note,
            "a filter is on; what it forbids shows above",
        ),
    }
}

/// Without it `run` can start nothing.
fn preload_library() -> Check {
    let name = "preload library";
    let usable = hugeswap_supervise::preload_library();
    match usable.and_then(|path| hugeswap_supervise::check_library(&path).map(|()| path)) {
        Ok(path) => Check::ok(name, path.display().to_string()),
        Err(failure) => Check::new(name, Verdict::Missing, failure.message)
            .so("'run' can't reach into programs"),
    }
}

fn tasks() -> Check {
    let name = "tasks";
    match hugeswap_supervise::check_tasks() {
        Ok(()) => Check::ok(name, "as many as a run needs can be had"),
        Err(scarce) => Check::new(name, Verdict::Missing, scarce.found)
            .so("'run' refuses: it needs processes and threads of its own")
            .mend(scarce.mend),
    }
}

fn memory_group() -> Check {
    let name = "memory group";
    let chosen = sizing::memory();
    let size = Size::from_bytes(chosen.bytes);
    let check = match Own::find() {
        Err(cgroup::Error::NotMounted) => Check::new(name, Verdict::Note, "none is mounted")
            .so("'bench --against kernel' can't set the same limit"),
        Err(err) => Check::new(name, Verdict::Note, err.to_string()),
        Ok(own) => match own.room() {
            None => Check::ok(name, format!("{}, no limit", own.version)),
            Some(room) => Check::new(
                name,
                Verdict::Note,
                format!(
                    "{}, {}, of which {} are left",
                    own.version,
                    Size::from_bytes(room.limit),
                    Size::from_bytes(room.left)
                ),
            ),
        },
    };
    if chosen.bytes < LEAST_MEMORY {
        let least = Size::from_bytes(LEAST_MEMORY);
        Check {
            verdict: Verdict::Missing,
            ..check
        }
        .so(format!(
            "too little: 'run' needs at least {least}, and room beside it for itself"
        ))
    } else {
        check.so(format!(
            "without --memory 'run' takes {size}: {}",
            chosen.why
        ))
    }
}

fn address_space() -> Check {
    let name = "address space";
    match probe::limit(Limit::AddressSpace) {
        Ok(None) => Check::ok(name, "no limit"),
        Ok(Some(limit)) if limit >= LEAST_ADDRESSES => {
            Check::new(name, Verdict::Note, Size::from_bytes(limit).to_string())
        }
        Ok(Some(limit)) => Check::new(
            name,
            Verdict::Missing,
            format!("{} ('ulimit -v')", Size::from_bytes(limit)),
        )
        .so(format!(
            "'run' refuses: each process needs {} of addresses, not of memory",
            Size::from_bytes(LEAST_ADDRESSES)
        ))
        .mend("ulimit -v unlimited"),
        Err(err) => Check::new(name, Verdict::Note, err.to_string()),
    }
}

fn data() -> Check {
    let name = "data size";
    match probe::limit(Limit::Data) {
        Ok(None) => Check::ok(name, "no limit"),
        Ok(Some(limit)) => {
            let found = format!("{} ('ulimit -d')", Size::from_bytes(limit));
            if limit >= LEAST_DATA {
                return Check::new(name, Verdict::Note, found);
            }
            Check::new(name, Verdict::Missing, found)
                .so(format!(
                    "'run' refuses: each process needs {} of writable addresses, hardly any of them used",
                    Size::from_bytes(LEAST_DATA)
                ))
                .mend("ulimit -d unlimited")
        }
        Err(err) => Check::new(name, Verdict::Note, err.to_string()),
    }
}

/// Swap goes to a file, at one of the places at least.
fn is_file(swap: &[Where]) -> bool {
    let is_other = |w: &Where| match w {
        Where::Nowhere => true,
        Where::Place(place) => matches!(place.spec.find(), Ok(Target::BlockDevice(_))),
    };
    swap.is_empty() || !swap.iter().all(is_other)
}

fn descriptors() -> Check {
    let name = "descriptors";
    match probe::limit(Limit::Descriptors) {
        Ok(None) => Check::ok(name, "no limit"),
        Ok(Some(limit)) if limit >= LEAST_DESCRIPTORS => {
            Check::ok(name, format!("{limit} at most"))
        }
        Ok(Some(limit)) => Check::new(name, Verdict::Missing, format!("{limit} ('ulimit -n')"))
            .so(format!("'run' refuses: it needs {LEAST_DESCRIPTORS}"))
            .mend("ulimit -n 1024"),
        Err(err) => Check::new(name, Verdict::Note, err.to_string()),
    }
}

/// `in_file`: swap goes to a file.
fn file_size(in_file: bool) -> Check {
    let name = "file size";
    match probe::limit(Limit::FileSize) {
        Ok(None) => Check::ok(name, "no limit"),
        Ok(Some(limit)) => {
            let found = format!("{} ('ulimit -f')", Size::from_bytes(limit));
            if !in_file && limit >= Control::BYTES as u64 {
                Check::new(name, Verdict::Note, found)
            } else if limit < SEGMENT_BYTES {
                Check::new(name, Verdict::Missing, found)
                    .so("'run' refuses: nothing for swap fits")
                    .mend("ulimit -f unlimited")
            } else {
                Check::new(name, Verdict::Limited, found)
                    .so("no swap file becomes larger")
                    .mend("ulimit -f unlimited")
            }
        }
        Err(err) => Check::new(name, Verdict::Note, err.to_string()),
    }
}

fn locked_memory() -> Check {
    let name = "locked memory";
    match probe::limit(Limit::LockedMemory) {
        Ok(None) => Check::ok(name, "no limit"),
        Ok(Some(limit)) => Check::new(name, Verdict::Note, format!("{} MiB", limit / MIB)),
        Err(err) => Check::new(name, Verdict::Note, err.to_string()),
    }
}

fn short(time: Duration) -> String {
    let micros = time.as_nanos() as f64 / 1000.0;
    if micros < 1000.0 {
        format!("{micros:.1} µs")
    } else {
        format!("{:.1} ms", micros / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Device::{AsKernelHas, Hidden};
    use super::*;
    use hugeswap_host::swap_spec::SwapSpec;

    fn errno(code: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(code))
    }

    fn verdict(checks: &[Check]) -> Verdict {
        checks.iter().map(|check| check.verdict).max().unwrap()
    }

    fn mend(checks: &[Check]) -> &str {
        checks
            .iter()
            .find_map(|check| check.mend.as_deref())
            .unwrap()
    }

    #[test]
    fn one_way_to_userfaultfd_is_enough() {
        let eperm = || errno(libc::EPERM);
        assert!(
            verdict(&userfaultfd(
                Ok(()),
                errno(libc::ENOENT),
                true,
                Some(false),
                AsKernelHas
            )) < Verdict::Limited
        );
        assert!(
            verdict(&userfaultfd(
                eperm(),
                Ok(()),
                true,
                Some(false),
                AsKernelHas
            )) < Verdict::Limited
        );
    }

    #[test]
    fn the_command_that_mends_fits() {
        let (eperm, eacces) = (|| errno(libc::EPERM), || errno(libc::EACCES));
        let checks = userfaultfd(eperm(), eacces(), true, Some(false), AsKernelHas);
        assert_eq!(
            (verdict(&checks), mend(&checks)),
            (Verdict::Missing, ALLOW_DEVICE)
        );
        let checks = userfaultfd(eperm(), errno(libc::ENOENT), true, Some(false), AsKernelHas);
        assert_eq!(mend(&checks), ALLOW_SYSCTL);
        let checks = userfaultfd(eperm(), errno(libc::ENOENT), true, Some(false), Hidden);
        assert!(mend(&checks).contains("--device"));
        assert!(checks[2].found.contains("/dev does not"));
        let checks = userfaultfd(eperm(), eperm(), true, Some(false), AsKernelHas);
        assert!(mend(&checks).contains("--device"));
        let checks = userfaultfd(errno(libc::ENOSYS), eacces(), false, None, AsKernelHas);
        assert!(mend(&checks).contains("CONFIG_USERFAULTFD"));
    }

    #[test]
    fn io_uring_forbidden() {
        assert_eq!(io_uring(Ok(()), None).verdict, Verdict::Ok);
        let check = io_uring(errno(libc::EPERM), Some(2));
        assert!(check.mend.unwrap().contains("kernel.io_uring_disabled=0"));
        assert!(io_uring(errno(libc::EPERM), Some(0))
            .mend
            .unwrap()
            .contains("seccomp"));
    }

    #[test]
    fn settings_of_huge_pages() {
        let thp = |enabled: &str, defrag: &str| {
            let thp = probe::Thp {
                enabled: enabled.into(),
                defrag: defrag.into(),
            };
            huge_pages(Some(thp)).verdict
        };
        assert_eq!(thp("madvise", "madvise"), Verdict::Ok);
        assert_eq!(thp("always", "never"), Verdict::Limited);
        assert_eq!(thp("never", "madvise"), Verdict::Limited);
        assert_eq!(huge_pages(None).verdict, Verdict::Limited);
    }

    #[test]
    fn swap_on_memory() {
        let place = |path: &str| Where::Place(Place::plain(SwapSpec::Path(path.into())));
        if os::is_memory_backed(Path::new("/dev/shm")).unwrap() {
            assert_eq!(swap_place(&place("/dev/shm")).verdict, Verdict::Limited);
        }
        let verdict = |w: &Where| swap_place(w).verdict;
        assert_eq!(verdict(&place("/nowhere/at/all")), Verdict::Missing);
        assert_eq!(verdict(&Where::Nowhere), Verdict::Ok);
    }
}
