//! How a run begins: its pages and devices are made, and the program is started.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use hugeswap_control::go;
use hugeswap_control::link::{self, Address, GroupName, Secret, ENV};
use hugeswap_control::{
    CompressCodec, Control, DeviceEntry, NewDevice, Orders, Settings, SwapIn, Writer, CONTROL_FILE,
    ORDERS_FILE,
};
use hugeswap_host::os;
use hugeswap_host::size::Size;
use hugeswap_host::sizing::Chosen;
use hugeswap_sys::{pagemap, Errno};

use super::{Plan, Run};
use crate::devices::{self, Places, Total};
use crate::failure::{Failure, EXIT_CANNOT_RUN};
use crate::idle_latency::IdleLatency;
use crate::left_behind::Mark;
use crate::outside::Outside;
use crate::owners::{Owners, Swap};
use crate::processes::{Door, Pages, Processes};
use crate::run_args::RunArgs;
use crate::stats_file::StatsFile;
use crate::sys::{self, Process};
use crate::{environment, fault_file, inject, program, signals, tasks, unmanaged, zero_copy};

/// Descriptors that a process needs here, and those of the moment in which it comes.
const OF_A_PROCESS: usize = 13;

pub(super) fn start(plan: &Plan<'_>) -> Result<Run, Failure> {
    let args = plan.args;
    let faults = inject::from_environment()?;
    let no_move = env_flag("HUGESWAP_NO_MOVE") != 0 || !kernel_moves_pages();
    if no_move {
        evicts_by_copying(args.strict)?;
    }
    let Places { devices, total } = devices::open_all(args, plan.memory.bytes)?;
    // A huge page keeps a page table in reserve, base pages need one.
    let limit = plan.memory.bytes - plan.memory.bytes / hugeswap_control::OVERHEAD_SHARE;
    let settings = Settings {
        limit_bytes: limit,
        no_move: no_move.into(),
        frees_page_tables: (pagemap::frees_page_tables() == Ok(true)).into(),
        swap_bytes: total.bytes(),
        faults,
        ..settings_of(args)
    };
    let (file, control) = control_page(settings, &devices)?;
    let (orders_file, orders) = orders_page()?;
    if args.verbose {
        say_sizes(&plan.memory, &devices, total);
    }
    let handed = copies([&file].into_iter().chain(devices.iter().map(|d| &d.fd)))?;
    let door = Door::open()?;
    let pages = Pages::default();
    let (address, secret) = (door.address.clone(), door.secret);
    let mark = Mark::new(&address);
    let swap = Swap::new(owners(control, &devices));
    let shared = (control, orders);
    let mut processes = Processes::new(shared, Arc::clone(&swap), door, handed, Arc::clone(&pages))
        .map_err(unreachable)?;
    if let Some(path) = &args.record_faults {
        processes.record_to(fault_file::open(path)?);
    }
    let outside = Outside::new(plan.memory.bytes, files_of_ram(&devices)?);
    let stats = args.stats_json.as_deref().and_then(StatsFile::open);
    let latency = idle_latency(args);
    // The first process would wait for ever for others to give some back.
    if !sys::has_descriptors(OF_A_PROCESS, &file) {
        return Err(Failure::ours(
            "too few file descriptors for a run: raise the hard limit, 'ulimit -Hn 64' or more",
        ));
    }
    let address = address_of_group(plan, address, |name| {
        processes.groups.make(secret, plan.memory.bytes, name)
    })?;
    let program = spawn(plan, &address, control, pages)?;
    Ok(Run {
        control,
        orders,
        swap,
        devices: Arc::new(devices),
        total,
        program,
        handle: Process::of_child(program).ok(),
        processes,
        _files: [file, orders_file],
        limit,
        began: Instant::now(),
        stats,
        unmanaged: unmanaged::Watch::new(&plan.library, mark),
        outside,
        latency,
    })
}

fn ours(what: &str, e: io::Error) -> Failure {
    Failure::ours(format!("{what}: {e}"))
}

fn unreachable(e: io::Error) -> Failure {
    match tasks::is_refusal(&e) {
        true => tasks::refused(e),
        false => ours("programs could not reach the supervisor", e),
    }
}

/// Nobody has anything of the devices yet.
fn owners(control: Writer, devices: &[devices::Opened]) -> Owners {
    let sizes = control.devices().iter().map(DeviceEntry::segments);
    let shares = devices.iter().map(|d| d.shares);
    Owners::new(sizes.zip(shares))
}

/// Of the devices that are memory.
fn files_of_ram(devices: &[devices::Opened]) -> Result<Vec<File>, Failure> {
    let ram = devices.iter().filter(|d| d.kind != devices::Kind::File);
    let files = copies(ram.map(|d| &d.fd))?;
    Ok(files.into_iter().map(File::from).collect())
}

/// What the command line says of them.
fn settings_of(args: &RunArgs) -> Settings {
    Settings {
        strict: args.strict.into(),
        user_mode_only: args.user_mode_only.into(),
        no_io_uring: env_flag("HUGESWAP_NO_IO_URING"),
        swapin: SwapIn::from(args.swapin) as u32,
        encrypt: encrypts(args).into(),
        compress: args.compress().to_word(),
        codec: CompressCodec::from(args.compress_codec) as u32,
        ..Settings::default()
    }
}

fn copies<'a>(of: impl Iterator<Item = &'a OwnedFd>) -> Result<Vec<OwnedFd>, Failure> {
    let copies: io::Result<_> = of.map(OwnedFd::try_clone).collect();
    copies.map_err(|e| ours("no descriptors", e))
}

/// What the program's environment says: the address of the run, or of its group if it has one.
fn address_of_group(
    plan: &Plan<'_>,
    address: String,
    make: impl FnOnce(&GroupName) -> Result<Secret, Errno>,
) -> Result<String, Failure> {
    let Some(name) = &plan.args.group else {
        return Ok(address);
    };
    let group = link::group_name(name.as_str()).and_then(|name| make(&name).ok());
    group
        .and_then(|group| Address::with_secret(&address, group))
        .ok_or_else(|| Failure::ours(format!("no group {name}")))
}

/// Where a latency is asked for and can't be had, that is said.
fn idle_latency(args: &RunArgs) -> IdleLatency {
    let (latency, why) = IdleLatency::new(args.cpu_latency);
    if let (true, Err(not)) = (args.verbose, why) {
        errln!("hugeswap: idle processors are left alone: {}", not.why());
    }
    latency
}

fn say_sizes(memory: &Chosen, devices: &[devices::Opened], total: Total) {
    errln!(
        "hugeswap: memory {} ({}), swap {}",
        Size::from_bytes(memory.bytes),
        memory.why,
        devices::describe(devices, total)
    );
    if devices.iter().filter(|d| d.shares).count() > 1 {
        errln!(
            "hugeswap: swap in all up to {}",
            Size::from_bytes(total.bytes())
        );
    }
}

/// Whether what goes to swap is encrypted; the processor must have instructions for it, and right ones.
fn encrypts(args: &RunArgs) -> bool {
    if args.no_encrypt {
        return false;
    }
    let able = is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx");
    // The variable is for tests.
    if !able || env_flag("HUGESWAP_NO_AES") != 0 {
        if args.verbose {
            errln!(
                "hugeswap: this processor has no AES instructions: swap is checked, but not encrypted"
            );
        }
        return false;
    }
    let right = hugeswap_seal::cipher_is_right();
    if !right {
        errln!(
            "hugeswap: warning: this processor's AES instructions give wrong results, as some emulators' do: \
             swap is checked, but not encrypted"
        );
    }
    right
}

/// UFFDIO_MOVE, since Linux 6.8.
fn kernel_moves_pages() -> bool {
    use hugeswap_sys::uffd::{Needs, Uffd, FEATURE_MOVE};
    Uffd::open(FEATURE_MOVE, Needs::UserFaults)
        .map(|(u, _)| u.close())
        .is_ok()
}

/// Without moves pages leave by copying, as long as the program can have none of them in use for
/// I/O; `swap_cache::swapout` says why.
fn evicts_by_copying(strict: bool) -> Result<(), Failure> {
    const WHY: &str =
        "this kernel can't move pages (UFFDIO_MOVE came with Linux 6.8), so they are \
                       copied, and once the program asks for direct I/O or the like";
    if strict {
        return Err(Failure::ours(format!(
            "{WHY} the memory limit can't be kept, as --strict wants; use Linux 6.8 or later"
        )));
    }
    errln!("hugeswap: warning: {WHY} it may go above its memory limit. Use Linux 6.8 or later");
    Ok(())
}

fn env_flag(name: &str) -> u32 {
    std::env::var_os(name).is_some_and(|v| v == "1").into()
}

#[allow(unsafe_code)]
fn control_page(
    settings: Settings,
    devices: &[devices::Opened],
) -> Result<(OwnedFd, Writer), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::ours(format!("no control page: {e}"));
    let devices: Vec<_> = devices
        .iter()
        .map(|d| NewDevice {
            name: &d.name,
            max_bytes: d.max_bytes,
            shares: d.shares,
            kind: d.kind as u32,
            rank: d.rank,
        })
        .collect();
    let file = os::sized_memory_file(CONTROL_FILE, Control::BYTES as u64);
    let file = file.map_err(|e| failed(&e))?;
    // SAFETY: just made, of this size, and sealed before anybody gets it.
    let control = unsafe { Writer::new(file.as_fd().as_raw_fd(), settings, &devices) };
    let control = control.map_err(|e| failed(&e))?;
    // From here on nobody can write but by the mapping that was just made.
    os::seal(&file, os::Seal::SizeAndContent).map_err(|e| failed(&e))?;
    Ok((file.into(), control))
}

#[allow(unsafe_code)]
fn orders_page() -> Result<(OwnedFd, &'static Orders), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::ours(format!("no page for orders: {e}"));
    let file = os::sealed_memory_file(ORDERS_FILE, Orders::BYTES as u64);
    let file = file.map_err(|e| failed(&e))?;
    // SAFETY: of this size for ever, and no process of the run gets it.
    let orders = unsafe { Orders::map(file.as_fd().as_raw_fd()) }.map_err(|e| failed(&e))?;
    orders.begin();
    Ok((file.into(), orders))
}

fn spawn(plan: &Plan<'_>, address: &str, control: Writer, pages: Pages) -> Result<i32, Failure> {
    let mut preload = plan.library.clone().into_os_string();
    if let Some(theirs) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        preload.push(":");
        preload.push(theirs);
    }
    let mut command = Command::new(&plan.path);
    use std::os::unix::process::CommandExt;
    command
        .arg0(&plan.args.program[0])
        .args(&plan.args.program[1..]);
    let go_debug = program::go_debug(&plan.path, std::env::var_os(go::DEBUG));
    let mut ours: Vec<(&str, &OsStr)> = vec![("LD_PRELOAD", &preload), (ENV, address.as_ref())];
    ours.extend(go_debug.as_deref().map(|debug| (go::DEBUG, debug)));
    environment::give(&mut command, &ours);
    os::kill_with_me(&mut command);
    let watch = if control.settings.no_move != 0 {
        zero_copy::Watch::Pins
    } else {
        zero_copy::Watch::ZeroCopy
    };
    match zero_copy::install(&mut command, watch) {
        Ok(guard) => {
            zero_copy::take_over(guard, control, pages, watch).map_err(tasks::refused)?;
        }
        Err(e) => errln!("hugeswap: warning: staging folios are not used again: {e}"),
    }
    signals::give_back(&mut command);
    signals::forget_early();
    let child = command.spawn().map_err(|e| match tasks::is_refusal(&e) {
        true => tasks::refused(e),
        false => Failure {
            code: EXIT_CANNOT_RUN,
            message: format!("'{}' can't be run: {e}", plan.path.display()),
        },
    })?;
    Ok(child.id() as i32)
}
