//! Some calls are for processes of one thread only: those that enter a user or a time namespace. Where
//! the program has one thread the engine's threads end for the time of such a call.
//!
//! | step | who | what |
//! |---|---|---|
//! | | hook | makes two sockets in the program's table, in which nobody else looks meanwhile |
//! | | handler, reclaim | no transfer in flight, tables at rest, as for a fork |
//! | | handler | sends its descriptors to the hook's socket; both threads end, and their table |
//! | the call | hook | |
//! | | a new handler | takes the descriptors, opens the devices anew, starts reclaim |
//!
//! The userfaultfds never end: what is registered stays, and who faults meanwhile waits.
#![allow(unsafe_code)]

use super::failure::{StartError, EXIT_START};
use super::run::Joined;
use super::start::{self, Start};
use super::{Device, Engine};
use crate::control::link;
use crate::control::MAX_DEVICES;
use crate::fault::Handler;
use crate::sys::limits::Raised;
use crate::sys::maps::MapsFile;
use crate::sys::uffd::{self, Uffd};
use crate::sys::{fd, mem, task, thread, Errno};
use core::sync::atomic::Ordering::*;

/// What `Engine::aside` says: nothing is asked for, both threads are to end, or one more than the doorbell
/// of the hook that asks.
const STAY: u32 = 0;
const LEAVE: u32 = u32::MAX;

/// What the engine's table holds: link, own page, userfaultfds of the program and of staging, the device of
/// these, maps and pagemap, where faults are recorded; then the swap devices.
const FIXED: usize = 8;
type Table = [i32; FIXED + MAX_DEVICES];

/// How often it is looked whether the kernel's threads for our rings have ended.
const KERNELS_LOOKS: usize = 100;

extern "C" fn nothing(_: *mut u8) {}

impl Engine {
    /// Makes a call in a process without threads of the engine's. The hook is alone, and has no lock;
    /// `call` touches no memory of the program's. An error: it was not made.
    pub fn step_aside<R>(&'static self, bell: usize, call: impl FnOnce() -> R) -> Result<R, Errno> {
        let ours = [0, 1].map(|i| self.cache.charge.proc().engine_tids[i].load(Acquire));
        // A child of vfork has its parent's engine.
        if !ours.into_iter().all(task::is_alive) {
            return Err(Errno::EINVAL);
        }
        // Who has entered a pid namespace for its children can't make threads any more.
        // SAFETY: the entry does nothing.
        let probe = unsafe { thread::spawn(nothing, core::ptr::null_mut(), thread::Files::Own) }?;
        let limits = Raised::raise();
        let [kept, handed] = link::pair()?;
        let ended = self.ask_to_leave(bell, handed, thread::gettid());
        fd::close(handed);
        if let Err(err) = ended {
            fd::close(kept);
            return Err(err);
        }
        while [ours[0], ours[1], probe].into_iter().any(task::is_alive) {
            thread::pause();
        }
        // Threads of the kernel's that have worked for our rings end a moment after them. The program may have such too,
        // and they stay: without us the call would be refused as well.
        for _ in 0..KERNELS_LOOKS {
            if task::count(&[]).of_engine == 0 {
                break;
            }
            thread::pause();
        }
        // Nobody uses their stacks and buffers any more.
        mem::forget_threads_own();
        let result = call();
        let started = Start::with_socket(self.link.address, kept).run(again_main);
        fd::close(kept);
        drop(limits);
        if let Err(err) = started {
            self.cache.charge.log(&format!(
                "the engine could not start again in process {}, which has entered a namespace: {err}: ending it",
                thread::getpid()
            ));
            thread::exit_group(EXIT_START);
        }
        Ok(result)
    }

    /// In the handler thread, when a hook has asked for it; `socket` is a number of that thread's table.
    pub(super) fn note_leave(&self, bell: usize, socket: i32, tid: u32) {
        self.aside_socket.store(socket, Relaxed);
        self.aside_tid.store(tid, Relaxed);
        self.aside.store(bell as u32 + 1, Release);
    }

    /// In the handler thread, between faults: true if it is to end.
    pub(super) fn leaves(&self, handler: &mut Handler<'_>) -> bool {
        let Some(bell) = self.aside.load(Acquire).checked_sub(1) else {
            return false;
        };
        self.stand_still(handler);
        let socket = self.aside_socket.load(Relaxed);
        let handed = fd::of_thread(self.aside_tid.load(Relaxed), socket).and_then(|s| {
            let sent = link::pass(s, &self.table());
            fd::close(s);
            sent
        });
        let leaves = handed.is_ok();
        self.aside.store(if leaves { LEAVE } else { STAY }, Release);
        self.thaw();
        self.end_ring(bell as usize, handed);
        leaves
    }

    /// In the reclaim thread, after it stood still.
    pub(super) fn is_left(&self) -> bool {
        self.aside.load(Acquire) == LEAVE
    }

    /// In the handler thread, at its end.
    pub(super) fn leave(&self, handler: Handler<'_>) {
        handler.end();
        while task::is_alive(self.cache.charge.proc().engine_tids[1].load(Acquire)) {
            thread::pause();
        }
        let none: Vec<Box<dyn Device>> = Vec::new();
        let devices = self.devices.swap(Box::leak(Box::new(none)), AcqRel);
        // SAFETY: made by `Box::leak`, and both threads that used them have ended or are done.
        drop(unsafe { Box::from_raw(devices) });
    }

    fn table(&self) -> Table {
        let mut table = [-1; FIXED + MAX_DEVICES];
        let (own, devices) = self.link.files();
        table[..FIXED].copy_from_slice(&[
            self.link.fd(),
            own,
            self.cache.program().fd(),
            self.cache.staging().fd(),
            uffd::opened_device().unwrap_or(-1),
            self.maps.load(Relaxed),
            self.cache.pagemap_fd(),
            self.link.record().0,
        ]);
        table[FIXED..].copy_from_slice(&devices);
        table
    }
}

extern "C" fn again_main(arg: *mut u8) {
    // SAFETY: `Start::run` waits for us and keeps it alive.
    let s = unsafe { &*(arg as *const Start<'_>) };
    let Some(e) = super::get() else {
        return s.finish(Err(StartError::Resources(Errno::EINVAL)));
    };
    fd::close_all_but(&[s.socket]);
    let mut table: Table = [-1; FIXED + MAX_DEVICES];
    let taken = link::take(s.socket, &mut table);
    fd::close(s.socket);
    match taken
        .map_err(StartError::Resources)
        .and_then(|()| e.settle_in(&table))
    {
        Ok(()) => start::run(e, s),
        Err(err) => s.finish(Err(err)),
    }
}

impl Engine {
    /// In the new handler thread.
    fn settle_in(&self, table: &Table) -> Result<(), StartError> {
        let [link, own, program, staging, device, maps, pagemap, record, ..] = *table;
        let mut devices = [-1; MAX_DEVICES];
        devices.copy_from_slice(&table[FIXED..]);
        let joined = Joined {
            link,
            id: 0,
            control: fd::duplicate(link).unwrap_or(-1),
            own,
            devices,
            maps: Ok(MapsFile::from_fd(maps)),
            pagemap,
            record,
        };
        let proc = self.cache.charge.proc();
        proc.engine_tids[0].store(thread::gettid(), Release);
        self.aside.store(STAY, Release);
        self.reclaim_ready.store(0, Release);
        self.kick().set_colocated(0);
        self.link.join_again(&joined);
        self.cache.charge.set_link(link);
        uffd::set_device(device);
        self.maps.store(maps, Release);
        self.cache
            .set_descriptors(Uffd::from_fd(program), Uffd::from_fd(staging), pagemap);
        let opened = start::open_devices(self.cache.charge.control, &joined)?;
        self.devices.store(Box::leak(Box::new(opened)), Release);
        Ok(())
    }
}
