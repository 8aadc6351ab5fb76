//! Requests from the program's threads to the engine's.
#![allow(unsafe_code)]

use super::rights::Change;
use super::Engine;
use crate::fault::Handler;
use crate::mm::{split_by_pmd, PageMask, PAGE_SIZE};
use crate::sys::maps::MapsFile;
use crate::sys::pagemap::Filled;
use crate::sys::request::Request;
use crate::sys::uffd::{PageFault, Uffd};
use crate::sys::{mem, Errno};
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// As many as hooks can run at once.
pub const DOORBELLS: usize = 64;

const PAGES: usize = 2 * DOORBELLS;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
enum Op {
    Register = 1,
    Unregister,
    Settle,
    Wake,
    WillNeed,
    ReadMaps,
    Look,
    /// A child's place.
    Place,
    /// A socket for the program that the process becomes.
    Door,
    Freeze,
    Leave,
    Rights,
}

impl Op {
    const ALL: [Op; 12] = [
        Op::Register,
        Op::Unregister,
        Op::Settle,
        Op::Wake,
        Op::WillNeed,
        Op::ReadMaps,
        Op::Look,
        Op::Place,
        Op::Door,
        Op::Freeze,
        Op::Leave,
        Op::Rights,
    ];

    fn of(number: usize) -> Option<Op> {
        Op::ALL.into_iter().find(|op| *op as usize == number)
    }
}

/// Two pages and one request for each hook; see `sys::request`. No hook has to drop a page, which a filter of
/// system calls may forbid.
pub struct Doorbells {
    base: usize,
    requests: &'static mut [Request<AtomicUsize>],
}

impl Doorbells {
    pub fn new() -> Result<Doorbells, Errno> {
        Ok(Doorbells {
            base: mem::map_anon(PAGES * PAGE_SIZE)? as usize,
            // SAFETY: all-zero is a valid Request.
            requests: unsafe { mem::map_table(DOORBELLS) }?,
        })
    }

    pub fn register(&self, uffd: Uffd) -> Result<(), Errno> {
        uffd.register_missing(self.base, PAGES * PAGE_SIZE)
    }

    /// The doorbell that an address belongs to, and which of its pages that is.
    fn index(&self, addr: usize) -> Option<(usize, usize)> {
        let page = addr.checked_sub(self.base)? / PAGE_SIZE;
        (page < PAGES).then_some((page / 2, page % 2))
    }

    fn page(&self, bell: usize, which: usize) -> usize {
        self.base + (2 * bell + which % 2) * PAGE_SIZE
    }

    /// Asks the engine and waits for the answer. `bell` must be the caller's alone.
    fn ring(&self, bell: usize, op: Op, args: [usize; 3]) -> Result<(), Errno> {
        let result = self.requests[bell].ask((op as usize, args), |which| {
            let page = self.page(bell, which) as *const u8;
            // SAFETY: the page is ours; reading it faults, which is the point.
            unsafe { page.read_volatile() };
        });
        match result {
            0 => Ok(()),
            e => Err(Errno(e as i32)),
        }
    }
}

impl Engine {
    /// Brings a stretch of the program's addresses under management.
    pub fn register(&self, bell: usize, addr: usize, len: usize) -> Result<(), Errno> {
        self.register_all(bell, &[(addr, addr + len)])
    }

    /// As `register`, several stretches (start, end) with one request.
    pub fn register_all(&self, bell: usize, all: &[(usize, usize)]) -> Result<(), Errno> {
        self.doorbells
            .ring(bell, Op::Register, [all.as_ptr() as usize, all.len(), 0])
    }

    /// The end of `register`. Nothing of ours is there any more.
    pub fn unregister(&self, bell: usize, addr: usize, len: usize) -> Result<(), Errno> {
        self.doorbells.ring(bell, Op::Unregister, [addr, len, 0])
    }

    /// Brings back what frames hold of a held stretch.
    pub(super) fn settle_held(&self, bell: usize, addr: usize, len: usize) {
        let _ = self.doorbells.ring(bell, Op::Settle, [addr, len, 0]);
    }

    /// Wakes whoever waits for pages of the stretch.
    pub(super) fn wake(&self, bell: usize, addr: usize, len: usize) {
        let _ = self.doorbells.ring(bell, Op::Wake, [addr, len, 0]);
    }

    /// Begins to bring a stretch of managed memory in, and does not wait for it: MADV_WILLNEED.
    pub fn will_need(&self, bell: usize, addr: usize, len: usize) {
        let _ = self.doorbells.ring(bell, Op::WillNeed, [addr, len, 0]);
    }

    /// Reads `/proc/self/maps`, as far as there is room; returns how much that is. For hooks of a
    /// program that has no descriptor left to open it with.
    pub fn read_maps(&self, bell: usize, room: &mut [u8]) -> Result<usize, Errno> {
        let mut n = 0usize;
        let args = [
            room.as_mut_ptr() as usize,
            room.len(),
            &mut n as *mut usize as usize,
        ];
        self.doorbells.ring(bell, Op::ReadMaps, args)?;
        Ok(n)
    }

    /// Looks for pages of the stretch that have contents.
    pub(super) fn look(
        &self,
        bell: usize,
        start: usize,
        end: usize,
        found: &mut Filled,
    ) -> Result<(), Errno> {
        self.doorbells
            .ring(bell, Op::Look, [start, end, found as *mut Filled as usize])
    }

    /// Asks the supervisor for a child's place; `Link::granted` says what came of it.
    /// `door`: an end of the caller's for the supervisor, or -1.
    pub(super) fn ask_for_place(&self, bell: usize, door: i32) {
        let tid = crate::sys::thread::gettid() as usize;
        let _ = self
            .doorbells
            .ring(bell, Op::Place, [door as usize, tid, 0]);
    }

    /// Hands the supervisor a socket: of two the one with this number in the caller's table, and this one
    /// in the kernel. The program that the process becomes has the other.
    pub fn hand_door(&self, bell: usize, socket: i32, inode: u64) -> Result<(), Errno> {
        let tid = crate::sys::thread::gettid() as usize;
        let args = [socket as usize, tid, inode as usize];
        self.doorbells.ring(bell, Op::Door, args)
    }

    /// Lets all transfers end and the engine stand still, for fork.
    /// An error: there must be no fork; `thaw` is called for all that.
    pub(super) fn freeze(&self, bell: usize) -> Result<(), Errno> {
        self.doorbells.ring(bell, Op::Freeze, [0; 3])
    }

    /// Has the engine's threads end; see `aside`.
    pub(super) fn ask_to_leave(&self, bell: usize, socket: i32, tid: u32) -> Result<(), Errno> {
        self.doorbells
            .ring(bell, Op::Leave, [socket as usize, tid as usize, 0])
    }

    /// Has the handler's thread give up rights; see `rights`.
    pub(super) fn ask_to_give_up(&self, bell: usize, change: &Change) -> Result<(), Errno> {
        self.doorbells
            .ring(bell, Op::Rights, [&raw const *change as usize, 0, 0])
    }

    /// In the handler thread: if the fault is a doorbell, answers it.
    pub(super) fn answer(&self, handler: &mut Handler<'_>, f: &PageFault) -> bool {
        let Some((bell, which)) = self.doorbells.index(f.addr) else {
            return false;
        };
        let request = &self.doorbells.requests[bell];
        let fill = |which| self.fill_doorbell(bell, which);
        let Some((op, args)) = request.take(which, fill) else {
            return true;
        };
        let mut fork = None;
        let result = match Op::of(op) {
            // Answered when the supervisor has.
            Some(Op::Place) => match self.link.ask(bell, args[0] as i32, args[1] as u32) {
                Ok(()) => return true,
                refused => refused,
            },
            // Answered when everybody stands still.
            Some(Op::Leave) => {
                self.note_leave(bell, args[0] as i32, args[1] as u32);
                return true;
            }
            Some(Op::Freeze) => {
                fork = Some(self.stand_still(handler));
                self.draw_keys()
            }
            Some(op) => self.do_as_asked(handler, op, args),
            None => Err(Errno(libc::ENOSYS)),
        };
        self.end_ring(bell, result);
        if let Some(fork) = fork {
            self.stay_parked(fork);
            self.link.let_go();
            handler.has_forked();
        }
        true
    }

    /// What is done at once.
    fn do_as_asked(
        &self,
        handler: &mut Handler<'_>,
        op: Op,
        [a, b, c]: [usize; 3],
    ) -> Result<(), Errno> {
        match op {
            Op::Register => {
                // SAFETY: the list that `register_all` was given: it waits for us, and it lies in
                // memory of ours.
                let all = unsafe { core::slice::from_raw_parts(a as *const (usize, usize), b) };
                all.iter()
                    .try_for_each(|&(start, end)| self.do_register(start, end - start))
            }
            Op::Settle => {
                self.settle_all(a, b);
                Ok(())
            }
            Op::Wake => {
                self.cache.program().wake(a, b);
                Ok(())
            }
            Op::Unregister => self.cache.program().unregister(a, b),
            Op::WillNeed => {
                handler.will_need(split_by_pmd(a, b).map(|(pmd, _)| pmd));
                Ok(())
            }
            Op::ReadMaps => {
                // SAFETY: what `read_maps` was given: it waits for us, and it lies in memory of ours.
                let (room, n) = unsafe {
                    (
                        core::slice::from_raw_parts_mut(a as *mut u8, b),
                        &mut *(c as *mut usize),
                    )
                };
                MapsFile::from_fd(self.maps.load(Relaxed))
                    .read(room)
                    .map(|read| *n = read)
            }
            Op::Look => {
                // SAFETY: what `look` was given: it waits for us, and nobody else uses it meanwhile.
                let found = unsafe { &mut *(c as *mut Filled) };
                self.cache.pagemap().look(a, b, found)
            }
            Op::Door => self.link.hand_door(a as i32, b as u32, c as u64),
            // SAFETY: what `ask_to_give_up` was given: it waits for us, and it lies in memory of ours.
            Op::Rights => Self::handler_gives_up(handler, unsafe { &*(a as *const Change) }),
            // `answer` does these.
            Op::Place | Op::Leave | Op::Freeze => Ok(()),
        }
    }

    /// What frames hold of held ranges goes back to the program, and what stays where it left, goes.
    fn settle_all(&self, addr: usize, len: usize) {
        let ranges = split_by_pmd(addr, len);
        for (pmd, r) in ranges.filter_map(|(pmd, _)| Some((pmd, self.cache.ranges.get(pmd)?))) {
            let mut g = r.lock();
            if g.let_go() {
                self.cache.settle(pmd, &mut g);
                self.cache.drop_lazy(pmd, &mut g, PageMask::FULL);
                g.hold();
            }
        }
    }

    /// In the handler thread: the hook that rang goes on.
    pub(super) fn end_ring(&self, bell: usize, result: Result<(), Errno>) {
        let result = result.err().map_or(0, |e| e.0 as usize);
        self.doorbells.requests[bell].answer(result, |which| self.fill_doorbell(bell, which));
    }

    /// In the handler thread: the thread that reads the page goes on, and the next one that reads the
    /// other is heard.
    fn fill_doorbell(&self, bell: usize, which: usize) {
        let (page, other) = (
            self.doorbells.page(bell, which),
            self.doorbells.page(bell, which + 1),
        );
        // SAFETY: a page of ours, whose contents are never looked at.
        let _ = unsafe { mem::madvise(other, PAGE_SIZE, libc::MADV_DONTNEED) };
        if self.cache.answer_doorbell(page).is_err() {
            self.cache.program().wake(page, PAGE_SIZE);
        }
    }

    fn do_register(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.cache.program().register_missing(addr, len)?;
        self.advise(addr, len);
        Ok(())
    }

    /// Where the kernel frees page tables on request, faults should not make the kernel zero a
    /// huge page that it then throws away; where it does not, that is the price of finding the
    /// range without a page table when the huge page is moved in.
    pub(super) fn advise(&self, addr: usize, len: usize) {
        let advice = if self.cache.abilities.pt_reclaim || !self.cache.abilities.mv {
            libc::MADV_NOHUGEPAGE
        } else {
            libc::MADV_HUGEPAGE
        };
        // SAFETY: only a hint to the kernel's page fault path.
        let _ = unsafe { mem::madvise(addr, len, advice) };
    }
}
