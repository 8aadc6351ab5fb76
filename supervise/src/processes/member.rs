//! An image of a program, as the supervisor knows it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::time::Instant;

use hugeswap_control::{Proc, Unmanaged};

use crate::life::Id;
use crate::object::Object;
use crate::sys::Process;

/// Lines of its log that an image may have printed.
const MOST_LINES: usize = 100;

/// What is believed of an account, in pages.
const MOST_PAGES: i64 = 1 << 40;

/// An image of a program.
pub struct Member {
    pub object: Arc<Object>,
    /// Its process's number here; 0 for a child that has not spoken yet.
    pub pid: u32,
    /// Who has asked for its place.
    pub(super) parent: Option<Id>,
    /// Whose limit holds for it.
    pub group: usize,
    /// What only its parent and it know.
    pub(super) key: u64,
    /// Of the last place for a child that it was given, the key.
    pub last_place: u64,
    pub(super) socket: Option<OwnedFd>,
    /// The userfaultfd of its program's memory.
    pub(super) faults: Option<OwnedFd>,
    pub(super) process: Option<Arc<Process>>,
    /// Its memory is gone, whatever its requests still do.
    pub(super) is_gone: bool,
    /// Its swap is not needed for a core file.
    pub(super) is_examined: bool,
    /// Its process goes on as another image.
    pub(super) is_replaced: bool,
    /// What none of its requests can reach has been given to others.
    pub(super) is_given: bool,
    /// Lines of its log that were seen, and that were printed.
    log_seen: u64,
    printed: usize,
    /// Since when nobody speaks for it.
    pub(super) loose_since: Option<Instant>,
}

impl Member {
    pub(super) fn new(object: Arc<Object>, parent: Option<Id>, group: usize, key: u64) -> Member {
        Member {
            object,
            pid: 0,
            parent,
            group,
            key,
            last_place: 0,
            socket: None,
            faults: None,
            process: None,
            is_gone: false,
            is_examined: false,
            is_replaced: false,
            is_given: false,
            log_seen: 0,
            printed: 0,
            loose_since: None,
        }
    }

    pub fn page(&self) -> &Proc {
        self.object.page()
    }

    /// Pages that it says it keeps.
    pub fn charged(&self) -> i64 {
        self.page().charged_pages.load(Acquire).clamp(0, MOST_PAGES)
    }

    /// Pages that have left and that it had stay, whether the kernel has taken them since or not.
    pub fn lazy(&self) -> i64 {
        let lazy = self.page().lazyfree_pages.load(Acquire);
        lazy.clamp(0, MOST_PAGES)
    }

    pub fn is_examined(&self) -> bool {
        self.is_examined
    }

    /// Clusters that its writes may still reach, if it makes no more requests: none when nobody has a hold
    /// of its page.
    pub fn reached(&self) -> BTreeSet<(usize, usize)> {
        match self.object.is_held() {
            true => self
                .page()
                .writing
                .iter()
                .flat_map(|w| w.reached())
                .collect(),
            false => BTreeSet::new(),
        }
    }

    /// Prints its log, and notes what programs it became.
    pub(super) fn hear_page(&mut self, heard: &mut Heard) {
        let page = self.object.page();
        let (pid, printed) = (self.pid, &mut self.printed);
        self.log_seen = page.read_log(self.log_seen, |line| {
            if !heard.is_new(line) {
                return;
            }
            *printed += 1;
            if *printed < MOST_LINES {
                errln!("hugeswap: {}", harmless(line));
            } else if *printed == MOST_LINES {
                errln!("hugeswap: process {pid} says too much: nothing more of it is shown");
            }
        });
        page.hear_unmanaged(|pid, why, path| {
            let path = harmless(&String::from_utf8_lossy(path));
            heard.execs.push(Exec { pid, why, path });
        });
    }
}

/// A process writes its lines itself: nothing in them is an order for a terminal.
fn harmless(line: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    line.chars().map(shown).collect()
}

/// What processes have said in their pages.
#[derive(Default)]
pub(super) struct Heard {
    pub execs: Vec<Exec>,
    /// What was printed.
    warnings: BTreeSet<String>,
}

impl Heard {
    /// A warning tells of the run: once, and not from each of its processes.
    fn is_new(&mut self, line: &str) -> bool {
        let is_new = !self.warnings.contains(line);
        if is_new && line.starts_with("warning: ") && self.warnings.len() < MOST_LINES {
            self.warnings.insert(line.to_owned());
        }
        is_new
    }
}

/// A process became a program without hugeswap.
pub struct Exec {
    /// As the process sees it.
    pub pid: u32,
    pub why: Unmanaged,
    pub path: String,
}
