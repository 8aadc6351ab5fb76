//! Programs of the run that hugeswap is not in: their memory is bounded by nobody, so it is said.
//!
//! A managed program that is about to become one that can't be managed says so itself. Descendants of the run's
//! processes that have not registered are looked at in `/proc`, too. The loader maps
//! what is to be preloaded before any other library, the library shows where it does nothing, and the kernel tells of a program
//! how it was started: so whether one will register is known from what it is, not from how long it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use hugeswap_control::link::ENV;
use hugeswap_control::{is_loader, Unmanaged, DOES_WITHOUT};

use super::family::descendants;
use super::left_behind::Mark;
use super::processes::{Exec, Processes};
use super::sys::Process;

/// Looks come no closer together, and take no more than a hundredth of the time.
const BETWEEN: Duration = Duration::from_millis(200);
const SHARE: u32 = 100;
/// What can't be told from what a program is, but only from its silence: that long.
const SILENT: Duration = Duration::from_secs(5);
/// So many are named, the others only counted.
const NAMED: u32 = 8;

/// Why hugeswap is not in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    Static,
    Narrow,
    GainsRights,
    NotLoaded,
    /// The library is in it and has said why it does nothing.
    Declined,
    /// The library is in it and says nothing.
    Silent,
    /// It may not be looked at, and does not register.
    Hidden,
}

impl Why {
    /// As the statistics call it.
    fn name(self) -> &'static str {
        match self {
            Why::Static => "static",
            Why::Narrow => "32_bit",
            Why::GainsRights => "setuid",
            Why::NotLoaded => "not_loaded",
            Why::Declined => "declined",
            Why::Silent => "silent",
            Why::Hidden => "hidden",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Why::Static => "it is statically linked",
            Why::Narrow => "it is a 32-bit program",
            Why::GainsRights => "it is setuid, or runs as another user, so the loader ignores hugeswap",
            Why::NotLoaded => {
                "hugeswap was not loaded: LD_PRELOAD or HUGESWAP_RUN was taken out of its environment, or the \
                 library can't be read there"
            }
            Why::Declined => "it has said why",
            Why::Silent => {
                "it was started 5 s ago, and hugeswap has not begun in it; the library may be damaged: \
                 'hugeswap doctor' tries it"
            }
            Why::Hidden => "it is another user's, or has gained rights",
        }
    }
}

/// What is found of a process that has not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    /// The control page is mapped: a child that speaks later, or one that is about to exec.
    of_the_run: bool,
    has_library: bool,
    /// The library shows that it does nothing; or it can't know of the run.
    does_without: bool,
    is_not_told: bool,
    has_others: bool,
    is_narrow: bool,
    /// It is a loader itself.
    is_loader: bool,
    has_loader: bool,
    gains_rights: bool,
    is_readable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// It may register yet; if it is silent for long, that.
    Starting(Why),
    Unmanaged(Why),
}

impl Found {
    fn judge(self) -> Verdict {
        match self {
            Found {
                of_the_run: true, ..
            } => Verdict::Fine,
            // `ldd` asks every loader of the machine.
            Found {
                is_narrow: true,
                is_loader: true,
                ..
            } => Verdict::Starting(Why::Narrow),
            Found {
                is_narrow: true, ..
            } => Verdict::Unmanaged(Why::Narrow),
            Found {
                has_library: true,
                does_without: true,
                ..
            } => Verdict::Unmanaged(Why::Declined),
            Found {
                has_library: true,
                is_not_told: true,
                ..
            } => Verdict::Unmanaged(Why::NotLoaded),
            Found {
                has_library: true, ..
            } => Verdict::Starting(Why::Silent),
            Found {
                gains_rights: true, ..
            } => Verdict::Unmanaged(Why::GainsRights),
            Found {
                is_readable: false, ..
            } => Verdict::Starting(Why::Hidden),
            Found {
                has_loader: false, ..
            } => Verdict::Unmanaged(Why::Static),
            Found {
                has_others: true, ..
            } => Verdict::Unmanaged(Why::NotLoaded),
            _ => Verdict::Starting(Why::NotLoaded),
        }
    }
}

/// A process that has not registered, running one program.
struct Stranger {
    program: String,
    /// When the process began, as the kernel counts: its number may be another's later.
    began: u64,
    since: Instant,
    verdict: Verdict,
    counted: bool,
    process: Option<Process>,
}

impl Stranger {
    fn is_there(&self, pid: u32) -> bool {
        Identity::of(pid).is_some_and(|i| i.began == self.began)
    }

    /// What was found while it was exchanged for another program is not found twice; silence takes its time, unless
    /// a debugger or a shell has stopped it.
    fn is_certain(&mut self, verdict: Verdict, is_stopped: bool, now: Instant) -> bool {
        if is_stopped {
            self.since = now;
        }
        let before = std::mem::replace(&mut self.verdict, verdict);
        match verdict {
            Verdict::Unmanaged(_) => before == verdict,
            Verdict::Starting(_) => now - self.since > SILENT,
            Verdict::Fine => false,
        }
    }
}

/// What a process has said that it becomes.
struct Announced {
    exec: Exec,
    why: Why,
    /// There was time to take it back.
    is_old: bool,
}

fn why(said: Unmanaged) -> Option<Why> {
    Some(match said {
        Unmanaged::Static => Why::Static,
        Unmanaged::Narrow => Why::Narrow,
        Unmanaged::GainsRights => Why::GainsRights,
        Unmanaged::NotLoaded => Why::NotLoaded,
        Unmanaged::NotAtAll => return None,
    })
}

pub struct Watch {
    library: String,
    mark: Mark,
    next: Instant,
    announced: Vec<Announced>,
    /// Numbers, as they see them, of those of whom it is not known yet what they become.
    undecided: BTreeSet<u32>,
    strangers: BTreeMap<u32, Stranger>,
    /// Those that have declined, by number, and when they began.
    declined: Vec<(u32, u64)>,
    counts: BTreeMap<Why, u32>,
}

impl Watch {
    pub fn new(library: &Path, mark: Mark) -> Watch {
        // Maps show what a link leads to.
        let library = library.canonicalize().unwrap_or_else(|_| library.into());
        let name = library.file_name().unwrap_or_default();
        Watch {
            library: name.to_string_lossy().into_owned(),
            mark,
            next: Instant::now(),
            announced: Vec::new(),
            undecided: BTreeSet::new(),
            strangers: BTreeMap::new(),
            declined: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// What processes have said of programs that they become.
    pub fn hear(&mut self, execs: Vec<Exec>) {
        for exec in execs {
            match why(exec.why) {
                Some(why) => self.announced.push(Announced {
                    exec,
                    why,
                    is_old: false,
                }),
                None => self.announced.retain(|a| a.exec.pid != exec.pid),
            }
        }
    }

    /// Processes that have said themselves that they do without hugeswap, and why. True if there are any.
    pub fn hear_declined(&mut self, pids: Vec<u32>) -> bool {
        for &pid in &pids {
            let who = Identity::of(pid);
            self.declined.extend(who.map(|who| (pid, who.began)));
            self.count(Why::Declined, "");
        }
        !pids.is_empty()
    }

    /// Looks around, if it is time; says what is new. True if there is something new.
    pub fn look(&mut self, program: u32, processes: &Processes) -> bool {
        Instant::now() >= self.next && self.look_now(program, processes)
    }

    /// The same, for the last time.
    pub fn look_now(&mut self, program: u32, processes: &Processes) -> bool {
        let now = Instant::now();
        let mut is_new = false;
        self.undecided.clear();
        if processes.sees_proc() {
            let members = processes.numbers();
            let mut around = descendants(members.iter().copied().chain([program]));
            around.extend(self.strangers.keys());
            for pid in around {
                is_new |= self.meet(pid, members.contains(&pid), now);
            }
        }
        is_new |= self.count_announced();
        self.next = now + BETWEEN.max(now.elapsed() * SHARE);
        is_new
    }

    /// Whether a program whose parent has ended may register yet. Asked where nobody else is left.
    pub fn is_anyone_starting(&mut self, processes: &Processes) -> bool {
        if processes.sees_proc() {
            let members = processes.numbers();
            for pid in self.mark.find() {
                if !self.strangers.contains_key(&pid) {
                    self.meet(pid, members.contains(&pid), Instant::now());
                }
            }
        }
        let mut uncounted = self.strangers.iter().filter(|(_, s)| !s.counted);
        uncounted.any(|(&pid, s)| s.is_there(pid))
    }

    /// Who has said what it becomes, and is not there any more, was that.
    fn count_announced(&mut self) -> bool {
        let mut is_new = false;
        for mut a in std::mem::take(&mut self.announced) {
            if a.is_old && !self.undecided.contains(&a.exec.pid) {
                self.count(
                    a.why,
                    &format!("'{}' (process {})", a.exec.path, a.exec.pid),
                );
                is_new = true;
            } else {
                a.is_old = true;
                self.announced.push(a);
            }
        }
        is_new
    }

    /// Takes what the process, by the number that it has itself, has said of what it becomes.
    fn take_announced(&mut self, own: u32) -> bool {
        let before = self.announced.len();
        self.announced.retain(|a| a.exec.pid != own);
        self.announced.len() < before
    }

    fn meet(&mut self, pid: u32, is_member: bool, now: Instant) -> bool {
        // Of those who have said what they become.
        let own = match self.announced.is_empty() {
            true => 0,
            false => own_number(pid),
        };
        let who = match is_member {
            true => None,
            false => Identity::of(pid),
        };
        let Some(who) = who else {
            self.strangers.remove(&pid);
            if is_member {
                self.undecided.insert(own);
            }
            return false;
        };
        let old = self.strangers.remove(&pid);
        let old = old.filter(|s| s.began == who.began && s.program == who.program);
        if old.as_ref().is_some_and(|s| s.counted) {
            self.strangers.extend(old.map(|s| (pid, s)));
            return false;
        }
        let look = who.look(pid, &self.library);
        let has_said = look.has_library && self.declined.contains(&(pid, who.began));
        let verdict = look.judge();
        if !matches!(verdict, Verdict::Unmanaged(_)) {
            self.undecided.insert(own);
        }
        if verdict == Verdict::Fine {
            return false;
        }
        let mut s = old.unwrap_or_else(|| Stranger {
            program: who.program,
            began: who.began,
            since: now,
            verdict: Verdict::Fine,
            counted: false,
            process: None,
        });
        let certain = s.is_certain(verdict, who.is_stopped, now);
        let why = match verdict {
            Verdict::Unmanaged(why) if certain || self.take_announced(own) => Some(why),
            Verdict::Starting(why) if certain => Some(why),
            _ => None,
        };
        let why = why.filter(|_| !has_said);
        if why.is_some() || has_said {
            self.take_announced(own);
            s.counted = true;
            s.process = Process::of_child(pid as i32).ok();
        }
        if let Some(why) = why {
            self.count(why, &format!("'{}' (process {pid})", s.program));
        }
        self.strangers.insert(pid, s);
        why.is_some()
    }

    fn count(&mut self, why: Why, who: &str) {
        let n = self.counts.entry(why).or_default();
        *n += 1;
        if *n <= NAMED && why != Why::Declined {
            errln!(
                "hugeswap: warning: {who} runs unmanaged, so its memory is not bounded: {}",
                why.words()
            );
        }
    }

    /// The program itself ended by itself, and never registered.
    pub fn never_came(&mut self, program: &str) {
        if self.counts.is_empty() {
            self.count(Why::NotLoaded, &format!("'{program}'"));
        }
    }

    pub fn count_all(&self) -> u32 {
        self.counts.values().sum()
    }

    /// The processes that were found to be unmanaged, and are there.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let known = self.strangers.iter().filter(|(_, s)| s.counted);
        known.map(|(&pid, _)| pid)
    }

    /// For the statistics.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u32)> + '_ {
        self.counts.iter().map(|(why, &n)| (why.name(), n))
    }

    /// A line for the end, where not all have been named.
    pub fn summary(&self) -> Option<String> {
        let all = self.count_all();
        (self.counts.values().any(|&n| n > NAMED)).then(|| {
            let each: Vec<String> = self
                .counts()
                .map(|(name, n)| format!("{n} {name}"))
                .collect();
            format!("{all} programs ran unmanaged ({})", each.join(", "))
        })
    }

    pub fn kill_all(&self) {
        for (&pid, s) in &self.strangers {
            if let Some(process) = s.process.as_ref().filter(|_| s.is_there(pid)) {
                process.kill();
            }
        }
    }
}

/// Of a process that has memory: when it began, and what it runs.
struct Identity {
    began: u64,
    program: String,
    is_stopped: bool,
}

impl Identity {
    fn of(pid: u32) -> Option<Identity> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let size: u64 = words.get(20)?.parse().ok()?;
        if size == 0 || matches!(*words.first()?, "Z" | "X") {
            return None;
        }
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        Some(Identity {
            began: words.get(19)?.parse().ok()?,
            program: program.map_or_else(|_| name.to_owned(), |p| p.display().to_string()),
            is_stopped: matches!(*words.first()?, "T" | "t"),
        })
    }

    fn look(&self, pid: u32, library: &str) -> Found {
        let path = |name: &str| format!("/proc/{pid}/{name}");
        let mut head = [0u8; 5];
        let read = File::open(path("exe")).and_then(|mut f| f.read_exact(&mut head));
        let auxv = fs::read(path("auxv")).unwrap_or_default();
        let is_loader = |p: &str| is_loader(p.as_bytes());
        let mut found = Found {
            of_the_run: false,
            has_library: false,
            does_without: false,
            is_not_told: false,
            has_others: false,
            is_narrow: read.is_ok() && head == *b"\x7fELF\x01",
            is_loader: is_loader(&self.program),
            has_loader: auxiliary(&auxv, libc::AT_BASE) != Some(0) || is_loader(&self.program),
            gains_rights: auxiliary(&auxv, libc::AT_SECURE).is_some_and(|v| v != 0),
            is_readable: !auxv.is_empty(),
        };
        if !found.is_readable {
            let status = fs::read_to_string(path("status")).unwrap_or_default();
            found.gains_rights = effective_user(&status).is_some_and(|u| u != super::sys::ids().0);
        }
        let Ok(maps) = File::open(path("maps")) else {
            return found;
        };
        for line in BufReader::new(maps).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let Some(at) = line.find('/') else {
                found.does_without |= line.split(' ').nth(1) == Some(DOES_WITHOUT);
                continue;
            };
            let file = &line[at..];
            let file = file.strip_suffix(" (deleted)").unwrap_or(file);
            let name = file.rsplit('/').next().unwrap_or(file);
            found.of_the_run |= file == "/memfd:hugeswap-control";
            if name == library {
                found.has_library = true;
            } else if name.contains(".so") && !is_loader(file) && file != self.program {
                found.has_others = true;
            }
        }
        if found.has_library && !found.of_the_run {
            let environment = fs::read(path("environ")).unwrap_or_default();
            found.is_not_told = lacks_address(&environment);
        }
        found
    }
}

/// Whether an environment that could be read says nothing of a run.
fn lacks_address(environment: &[u8]) -> bool {
    let mut strings = environment.split(|&b| b == 0);
    let is_address = |s: &[u8]| {
        s.strip_prefix(ENV.as_bytes())
            .is_some_and(|s| s.starts_with(b"="))
    };
    !environment.is_empty() && !strings.any(is_address)
}

/// The number that a process has in its own namespace.
fn own_number(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
    let last = line.and_then(|l| l.split_ascii_whitespace().last());
    last.and_then(|w| w.parse().ok()).unwrap_or(pid)
}

/// A value of what the kernel tells a program at its start.
fn auxiliary(auxv: &[u8], which: u64) -> Option<u64> {
    auxv.chunks_exact(16).find_map(|pair| {
        let word = |at: usize| Some(u64::from_ne_bytes(pair.get(at..at + 8)?.try_into().ok()?));
        (word(0)? == which).then(|| word(8)).flatten()
    })
}

fn effective_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Found = Found {
        of_the_run: false,
        has_library: false,
        does_without: false,
        is_not_told: false,
        has_others: false,
        is_narrow: false,
        is_loader: false,
        has_loader: true,
        gains_rights: false,
        is_readable: true,
    };

    #[test]
    fn what_a_program_is_tells_whether_it_will_register() {
        assert_eq!(PLAIN.judge(), Verdict::Starting(Why::NotLoaded));
        let cases = [
            (
                Found {
                    of_the_run: true,
                    ..PLAIN
                },
                Verdict::Fine,
            ),
            (
                Found {
                    has_library: true,
                    has_others: true,
                    ..PLAIN
                },
                Verdict::Starting(Why::Silent),
            ),
            (
                Found {
                    has_library: true,
                    does_without: true,
                    ..PLAIN
                },
                Verdict::Unmanaged(Why::Declined),
            ),
            (
                Found {
                    has_library: true,
                    is_not_told: true,
                    ..PLAIN
                },
                Verdict::Unmanaged(Why::NotLoaded),
            ),
            (
                Found {
                    has_others: true,
                    ..PLAIN
                },
                Verdict::Unmanaged(Why::NotLoaded),
            ),
            (
                Found {
                    has_loader: false,
                    ..PLAIN
                },
                Verdict::Unmanaged(Why::Static),
            ),
            (
                Found {
                    is_narrow: true,
                    has_loader: false,
                    ..PLAIN
                },
                Verdict::Unmanaged(Why::Narrow),
            ),
            (
                Found {
                    is_narrow: true,
                    is_loader: true,
                    ..PLAIN
                },
                Verdict::Starting(Why::Narrow),
            ),
            (
                Found {
                    gains_rights: true,
                    ..PLAIN
                },
                Verdict::Unmanaged(Why::GainsRights),
            ),
            (
                Found {
                    is_readable: false,
                    ..PLAIN
                },
                Verdict::Starting(Why::Hidden),
            ),
        ];
        for (found, verdict) in cases {
            assert_eq!(found.judge(), verdict, "{found:?}");
        }
    }

    #[test]
    fn this_process_is_found_as_it_is() {
        let pid = std::process::id();
        let me = Identity::of(pid).unwrap();
        assert!(me.began > 0 && me.program.contains('/'), "{}", me.program);
        let found = me.look(pid, "libhugeswap_preload.so");
        assert_eq!(
            found.judge(),
            Verdict::Unmanaged(Why::NotLoaded),
            "{found:?}"
        );
        assert!(lacks_address(b"A=1\0HUGESWAP_RUNS=2\0") && !lacks_address(b""));
        assert!(!lacks_address(b"A=1\0HUGESWAP_RUN=2\0"));
        assert_eq!(effective_user("Name:\tx\nUid:\t1\t2\t3\t4\n"), Some(2));
    }
}
