//! The processes of a run: their connections, their pages, their ends.
//!
//! What follows from what happens is decided in `life`; here is what happens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hugeswap::control::link::{
    self, Address, Also, Descriptors, Place, Received, Reply, Request, Secret,
};
use hugeswap::control::{
    Answer, DeviceEntry, Orders, Proc, Unmanaged, Writer, LAYOUT, MAX_DEVICES,
};
use hugeswap::stats::Stats;
use hugeswap::sys::futex::{self, Scope};
use hugeswap::sys::thread::random;
use hugeswap::sys::Errno;

use super::devices::Total;
use super::life::{Id, Life, Stage};
use super::loans::{self, Sweeps};
use super::object::Object;
use super::orphans;
use super::owners::Swap;
use super::sys::{self, Poller, Process};
use super::Failure;

/// What is ready: the upper half of a token. The lower half is a number.
const LISTENING: u32 = 0;
const BELL: u32 = 1;
const GUEST: u32 = 2;
const SOCKET: u32 = 3;
const PROCESS: u32 = 4;
const ORPHAN: u32 = 5;
const DOOR: u32 = 6;

fn token(kind: u32, number: u32) -> u64 {
    u64::from(kind) << 32 | u64::from(number)
}

/// How often is looked whether an image that nobody speaks for is gone; after a second less often.
const LOOSE: Duration = Duration::from_millis(10);
/// Where nothing can be found out about a process, it is not waited longer for its core file.
const LATE: Duration = Duration::from_secs(1);
/// Connections that have not said what they are.
const MOST_GUESTS: usize = 256;
/// Connections, or packets of one, that are taken before others have their turn.
const AT_A_TIME: usize = 64;
/// Doors of an image by which nobody has come yet.
const MOST_DOORS: usize = 64;
/// Children of an image that have a place, and have not spoken yet: more than these can't be on their way.
const MOST_UNBORN: usize = 512;
/// Lines of its log that an image may have printed.
const MOST_LINES: usize = 100;
/// What is believed of an account, in pages.
const MOST_PAGES: i64 = 1 << 40;
/// Without descriptors, or memory, it is tried again after so long.
const AGAIN: Duration = Duration::from_millis(50);

/// An image of a program.
pub struct Member {
    pub object: Arc<Object>,
    /// Its process's number here; 0 for a child that has not spoken yet.
    pub pid: u32,
    /// Who has asked for its place.
    parent: Option<Id>,
    /// What only its parent and it know.
    key: u64,
    /// Of the last place for a child that it was given, the key.
    pub last_place: u64,
    socket: Option<OwnedFd>,
    /// The userfaultfd of its program's memory.
    faults: Option<OwnedFd>,
    process: Option<Arc<Process>>,
    /// Its memory is gone, whatever its requests still do.
    is_gone: bool,
    /// Its swap is not needed for a core file.
    is_examined: bool,
    /// Its process goes on as another image.
    is_replaced: bool,
    /// What none of its requests can reach has been given to others.
    is_given: bool,
    /// Lines of its log that were seen, and that were printed.
    log_seen: u64,
    printed: usize,
    /// Since when nobody speaks for it.
    loose_since: Option<Instant>,
}

impl Member {
    pub fn page(&self) -> &Proc {
        self.object.page()
    }

    /// Pages that it says it keeps.
    pub fn charged(&self) -> i64 {
        self.page().charged_pages.load(Acquire).clamp(0, MOST_PAGES)
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
    fn hear_page(&mut self, unmanaged: &mut Vec<Exec>) {
        let page = self.object.page();
        let (pid, printed) = (self.pid, &mut self.printed);
        self.log_seen = page.read_log(self.log_seen, |line| {
            *printed += 1;
            if *printed < MOST_LINES {
                errln!("hugeswap: {}", harmless(line));
            } else if *printed == MOST_LINES {
                errln!("hugeswap: process {pid} says too much: nothing more of it is shown");
            }
        });
        page.hear_unmanaged(|pid, why, path| {
            let path = harmless(&String::from_utf8_lossy(path));
            unmanaged.push(Exec { pid, why, path });
        });
    }
}

/// A process writes its lines itself: nothing in them is an order for a terminal.
fn harmless(line: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    line.chars().map(shown).collect()
}

/// A process became a program without hugeswap.
pub struct Exec {
    /// As the process sees it.
    pub pid: u32,
    pub why: Unmanaged,
    pub path: String,
}

/// A connection that has not said what it is.
struct Guest {
    socket: OwnedFd,
    pid: u32,
    process: Option<Process>,
    said: Option<Request>,
    /// It came by a door: what it says must be from the process that has made the connection.
    by_door: bool,
}

/// Where processes find the supervisor, and what they get.
pub struct Door {
    /// By its name, and by a path for those in another network name space.
    listening: Vec<OwnedFd>,
    /// The second one's file, by which it has a path.
    _path: Option<File>,
    secret: Secret,
    /// For the environment.
    pub address: String,
}

/// Pages by the number of the process, for whoever has to tell an engine's thread from a program's.
pub type Pages = Arc<Mutex<Vec<(Id, u32, Arc<Object>)>>>;

pub struct Processes {
    control: Writer,
    swap: Arc<Swap>,
    poller: Poller,
    door: Door,
    bell: Arc<OwnedFd>,
    /// The control page and the devices.
    handed: Vec<OwnedFd>,
    /// `/dev/userfaultfd`, where it can be had.
    userfaultfd: Option<OwnedFd>,
    /// `/proc` knows processes by the numbers that we know them by.
    proc_is_ours: bool,
    guests: BTreeMap<u32, Guest>,
    next_guest: u32,
    /// Sockets from which connections of children come that can't find us.
    doors: BTreeMap<u32, (Id, OwnedFd)>,
    /// Nobody is let in before then.
    closed_until: Option<Instant>,
    life: Life,
    members: BTreeMap<Id, Member>,
    pages: Pages,
    sweeps: Sweeps,
    /// Counters of images that are gone.
    past: Box<Stats>,
    /// The run ends: whoever comes is killed.
    ends: bool,
    /// Some program of the run has registered.
    has_come: bool,
    execs: Vec<Exec>,
}

impl Door {
    pub fn open() -> Result<Door, Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            Failure::ours(format!("programs could not reach the supervisor: {e}"))
        };
        let secret = [random(), random()];
        let key = format!("{:016x}", random());
        // Where no directory can be written to, the name alone has to do.
        let (by_path, file) = listen_by_path(&key).ok().unzip();
        // By the number that /proc knows us by.
        let me = std::fs::read_link("/proc/self").unwrap_or_default();
        let path = file.as_ref().map_or_else(String::new, |file: &File| {
            format!("/proc/{}/fd/{}", me.display(), file.as_raw_fd())
        });
        let text = Address::text(&key, secret, &path);
        let address = Address::parse(text.as_bytes()).ok_or_else(|| failed(&"its name"))?;
        let by_name = address.listen().map(own).map_err(|e| failed(&e))?;
        Ok(Door {
            listening: [by_name].into_iter().chain(by_path).collect(),
            _path: file,
            secret,
            address: text,
        })
    }
}

#[allow(unsafe_code)]
fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: just made for us, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A socket in a directory that anybody may write to, whose name is gone again: it is reached by the
/// descriptor of its file.
fn listen_by_path(key: &str) -> io::Result<(OwnedFd, File)> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in [std::env::temp_dir(), "/dev/shm".into(), "/run".into()] {
        let path = directory.join(format!("hugeswap-{key}"));
        let mut bytes = path.as_os_str().as_encoded_bytes().to_vec();
        bytes.push(0);
        let socket = match link::listen(&bytes) {
            Ok(fd) => own(fd),
            Err(e) => {
                last = io::Error::from_raw_os_error(e.0);
                continue;
            }
        };
        // Whoever comes has to know the secret.
        let all = std::fs::Permissions::from_mode(0o666);
        let file = std::fs::set_permissions(&path, all).and_then(|()| {
            File::options()
                .read(true)
                .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
                .open(&path)
        });
        let removed = std::fs::remove_file(&path);
        return removed.and(file).map(|file| (socket, file));
    }
    Err(last)
}

fn errno(e: &io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
}

/// It may be had in a while.
fn passes(e: Errno) -> bool {
    matches!(
        e.0,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS
    )
}

impl Processes {
    /// `handed` is what each process gets beside its own page: the control page and the devices.
    pub fn new(
        (control, orders): (Writer, &'static Orders),
        swap: Arc<Swap>,
        door: Door,
        handed: Vec<OwnedFd>,
        pages: Pages,
    ) -> io::Result<Processes> {
        let userfaultfd = File::options()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd");
        let me = std::fs::read_link("/proc/self").ok();
        let proc_is_ours = me.is_some_and(|me| me.as_os_str() == &*std::process::id().to_string());
        let poller = Poller::new()?;
        for (l, n) in door.listening.iter().zip(0..) {
            sys::set_nonblocking(l)?;
            poller.add(l, token(LISTENING, n))?;
        }
        let bell = Arc::new(sys::event()?);
        poller.add(&bell, token(BELL, 0))?;
        ring_on_call(orders, Arc::clone(&bell));
        Ok(Processes {
            control,
            swap,
            poller,
            door,
            bell,
            handed,
            userfaultfd: userfaultfd.ok().map(OwnedFd::from),
            proc_is_ours,
            guests: BTreeMap::new(),
            next_guest: 0,
            doors: BTreeMap::new(),
            closed_until: None,
            life: Life::default(),
            members: BTreeMap::new(),
            pages,
            sweeps: Sweeps::new(),
            past: Box::default(),
            ends: false,
            has_come: false,
            execs: Vec::new(),
        })
    }

    /// Those whose memory is there, or may be.
    pub fn present(&self) -> impl Iterator<Item = (Id, &Member)> {
        let present = |id: Id, m: &Member| !m.is_gone && self.life.stage(id) != Some(Stage::Ended);
        self.members
            .iter()
            .map(|(&id, m)| (id, m))
            .filter(move |(id, m)| present(*id, m))
    }

    /// Whether an image of that process has not been found gone yet.
    pub fn is_ending(&self, pid: u32) -> bool {
        self.members.iter().any(|(&id, m)| {
            m.pid == pid
                && !m.is_replaced
                && !matches!(self.life.stage(id), None | Some(Stage::Ended))
        })
    }

    /// The processes of images that speak.
    pub fn numbers(&self) -> BTreeSet<u32> {
        let live =
            |(&id, m): (&Id, &Member)| (self.life.stage(id) == Some(Stage::Live)).then_some(m.pid);
        self.members.iter().filter_map(live).collect()
    }

    /// Whether `/proc` tells of processes by the numbers that we know them by.
    pub fn sees_proc(&self) -> bool {
        self.proc_is_ours
    }

    /// Whether any program of the run has registered, ever.
    pub fn have_come(&self) -> bool {
        self.has_come
    }

    /// All images together, those that are gone included.
    pub fn total(&self) -> Box<Stats> {
        let sum = Box::<Stats>::default();
        sum.merge(&self.past, true);
        for m in self.members.values() {
            sum.merge(&m.page().stats, true);
        }
        sum
    }

    /// Whether every process has left device `d`, as of the swapoff `epoch`.
    pub fn all_left(&self, d: usize, epoch: u32) -> bool {
        self.members.iter().all(|(&id, m)| {
            self.life.stage(id) == Some(Stage::Ended) || m.page().left[d].load(Acquire) == epoch
        })
    }

    /// Wakes the reclaim threads of all processes.
    pub fn call_all(&self) {
        self.members.values().for_each(loans::wake);
    }

    /// The run ends: kills every process that is known, and those that come.
    pub fn kill_all(&mut self) {
        self.ends = true;
        for m in self.members.values() {
            if let Some(p) = &m.process {
                p.kill();
            }
        }
    }

    /// Waits until something happens, so long at most, and takes note of it.
    pub fn wait(&mut self, most: Duration) {
        let now = Instant::now();
        let mut most = most;
        for (&id, m) in &mut self.members {
            if !matches!(self.life.stage(id), Some(Stage::Loose | Stage::Dead)) {
                m.loose_since = None;
                continue;
            }
            let since = *m.loose_since.get_or_insert(now);
            most = most.min(match now - since < Duration::from_secs(1) {
                true => LOOSE,
                false => 20 * LOOSE,
            });
        }
        let most = match self.closed_until {
            Some(_) => most.min(AGAIN),
            None => most,
        };
        for t in self.poller.wait(most.as_millis() as i32) {
            let number = t as u32;
            match (t >> 32) as u32 {
                LISTENING => self.let_in(number),
                BELL => sys::set_event(&self.bell, false),
                GUEST => self.hear_guest(number),
                DOOR => self.hear_door(number),
                SOCKET => {
                    self.hear(number);
                }
                PROCESS => self.died(number),
                ORPHAN => {
                    let answered = self.members.get(&number).is_some_and(|m| {
                        let faults = m.faults.as_ref();
                        faults.is_some_and(|f| orphans::answer(f, &m.object))
                    });
                    if !answered {
                        self.let_go_of_faults(number);
                    }
                }
                _ => {}
            }
        }
        self.try_again();
    }

    fn let_in(&mut self, listening: u32) {
        let door = self.door.listening.get(listening as usize);
        let Some(door) = door.map(AsRawFd::as_raw_fd) else {
            return;
        };
        for _ in 0..AT_A_TIME {
            match link::accept(door) {
                Ok(fd) => self.meet(own(fd), false),
                Err(e) if passes(e) => {
                    // They wait outside: nobody is refused for our want.
                    self.door
                        .listening
                        .iter()
                        .for_each(|l| self.poller.remove(l));
                    self.closed_until = Some(Instant::now() + AGAIN);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    fn meet(&mut self, socket: OwnedFd, by_door: bool) {
        let (pid, process) = Process::of_peer(&socket);
        let n = self.next_guest;
        if self.poller.add(&socket, token(GUEST, n)).is_err() {
            return;
        }
        self.next_guest = n.wrapping_add(1);
        self.send_one_away();
        self.guests.insert(
            n,
            Guest {
                socket,
                pid,
                process,
                said: None,
                by_door,
            },
        );
    }

    /// A child of that image may come by this socket, once.
    fn open_door(&mut self, by: Id, socket: OwnedFd) {
        let n = self.next_guest;
        if self.poller.add(&socket, token(DOOR, n)).is_err() {
            return;
        }
        self.next_guest = n.wrapping_add(1);
        let its: Vec<u32> = self
            .doors
            .iter()
            .filter(|(_, (id, _))| *id == by)
            .map(|(&n, _)| n)
            .collect();
        if its.len() >= MOST_DOORS {
            self.doors.remove(&its[0]);
        }
        self.doors.insert(n, (by, socket));
    }

    fn hear_door(&mut self, n: u32) {
        let Some((_, door)) = self.doors.remove(&n) else {
            return;
        };
        self.poller.remove(&door);
        let mut fds = [-1];
        if link::take(door.as_raw_fd(), &mut fds).is_err() || fds[0] < 0 {
            return;
        }
        let socket = own(fds[0]);
        if link::names_sender(socket.as_raw_fd(), true).is_ok() {
            self.meet(socket, true);
        }
    }

    /// Anybody on the machine may connect and say nothing: not too many of them.
    fn send_one_away(&mut self) {
        if self.guests.len() < MOST_GUESTS {
            return;
        }
        let silent = self.guests.iter().find(|(_, g)| g.said.is_none());
        if let Some(n) = silent.map(|(&n, _)| n) {
            self.guests.remove(&n);
        }
    }

    /// What could not be done for want of descriptors or memory.
    fn try_again(&mut self) {
        if self.closed_until.is_none_or(|t| Instant::now() < t) {
            return;
        }
        self.closed_until = None;
        for (l, n) in self.door.listening.iter().zip(0..) {
            if self.poller.add(l, token(LISTENING, n)).is_err() {
                self.closed_until = Some(Instant::now() + AGAIN);
            }
        }
        let waiting: Vec<u32> = self
            .guests
            .iter()
            .filter_map(|(&n, g)| g.said.map(|_| n))
            .collect();
        waiting.into_iter().for_each(|n| self.welcome(n));
    }

    fn hear_guest(&mut self, n: u32) {
        let Some(guest) = self.guests.get_mut(&n) else {
            return;
        };
        let mut fds = Descriptors::default();
        let socket = guest.socket.as_raw_fd();
        let said = Request::receive_from(socket, &mut fds);
        // Guests have none to send.
        fds.close();
        let is_it = |sender| !guest.by_door || sender == Some(guest.pid);
        match said {
            Err(Errno::EAGAIN) => {}
            Ok((Received::Packet(Some(said)), sender)) if guest.said.is_none() && is_it(sender) => {
                let _ = link::names_sender(socket, false);
                guest.said = Some(said);
                self.welcome(n);
            }
            // Gone, or nobody of ours.
            _ => {
                self.guests.remove(&n);
            }
        }
    }

    fn welcome(&mut self, n: u32) {
        let Some(mut guest) = self.guests.remove(&n) else {
            return;
        };
        match self.admit(&mut guest) {
            Ok(()) => {}
            Err(e) if passes(e) => {
                self.closed_until.get_or_insert(Instant::now() + AGAIN);
                self.guests.insert(n, guest);
            }
            Err(e) => {
                let _ = Reply::Refused(e).send(guest.socket.as_raw_fd(), &[]);
            }
        }
    }

    /// Makes the guest a member, if it is one. On an error nothing has changed.
    fn admit(&mut self, guest: &mut Guest) -> Result<(), Errno> {
        let said = guest.said.ok_or(Errno::EINVAL)?;
        let place = match said {
            Request::Image { layout, secret } if layout == LAYOUT && secret == self.door.secret => {
                None
            }
            Request::Child { layout, place } if layout == LAYOUT => Some(place),
            _ => return Err(Errno(libc::EPERM)),
        };
        let (object, id) = match place {
            None => (Arc::new(Object::new().map_err(|e| errno(&e))?), None),
            Some(Place { id, key }) => {
                let member = self.members.get(&id).filter(|m| m.key == key);
                let member = member.ok_or(Errno::ESRCH)?;
                (Arc::clone(&member.object), Some(id))
            }
        };
        let handle = object.handle().map_err(|e| errno(&e))?;
        let socket = guest.socket.try_clone().map_err(|e| errno(&e))?;
        let process = guest.process.take().map(Arc::new);
        let id = match id {
            None => {
                if let Some(process) = &process {
                    self.replace(guest.pid, process);
                }
                let id = self.life.begin();
                self.members.insert(id, Member::new(object, None, 0));
                id
            }
            Some(id) if self.life.speak(id) => id,
            Some(_) => return Err(Errno::ESRCH),
        };
        self.has_come = true;
        self.poller.remove(&guest.socket);
        if let Some(p) = process.as_ref().filter(|_| self.ends) {
            p.kill();
        }
        let watched = self.poller.add(&socket, token(SOCKET, id)).is_ok();
        if let Some(p) = &process {
            // Without it the connection's end tells as much, a little later.
            let _ = self.poller.add(p.as_fd(), token(PROCESS, id));
        }
        if let Some(m) = self.members.get_mut(&id) {
            (m.pid, m.process) = (guest.pid, process);
            lock(&self.pages).push((id, m.pid, Arc::clone(&m.object)));
            m.socket = Some(socket);
        }
        let [control, devices @ ..] = &self.handed[..] else {
            return Err(Errno::EINVAL);
        };
        let [maps, pagemap] = self.files_of(guest).map(|f| f.map(OwnedFd::from));
        let also = Also {
            userfaultfd: self.userfaultfd.is_some(),
            maps: maps.is_some(),
            pagemap: pagemap.is_some(),
        };
        let each = [control, &handle].into_iter().chain(devices);
        let each = each.chain(&self.userfaultfd).chain(&maps).chain(&pagemap);
        let fds: Vec<RawFd> = each.map(AsRawFd::as_raw_fd).collect();
        let welcome = Reply::Welcome {
            id,
            devices: devices.len() as u32,
            also,
        };
        let sent = welcome.send(guest.socket.as_raw_fd(), &fds);
        if sent.is_err() || !watched {
            self.hang_up(id);
        }
        Ok(())
    }

    /// A process speaks for a new image: those that it was are gone, with all their threads.
    fn replace(&mut self, pid: u32, process: &Process) {
        let was = |m: &Member| {
            let theirs = m.process.as_deref();
            // Nobody else can have its number as long as it is not dead.
            pid != 0 && m.pid == pid && theirs.is_some_and(|p| !p.is_dead()) && !process.is_dead()
        };
        let old: Vec<Id> = self
            .members
            .iter()
            .filter(|(&id, m)| was(m) && !self.life.is_dead(id))
            .map(|(&id, _)| id)
            .collect();
        for id in old {
            self.died(id);
            if let Some(m) = self.members.get_mut(&id) {
                // It leaves no core file.
                (m.is_replaced, m.is_examined) = (true, true);
                m.page().forget_keys();
            }
        }
    }

    /// What a process may be unable to open itself: without /proc, or after it gave up rights.
    fn files_of(&self, guest: &Guest) -> [Option<File>; 2] {
        if !self.proc_is_ours || guest.pid == 0 {
            return [None, None];
        }
        let open = |name: &str| File::open(format!("/proc/{}/{name}", guest.pid)).ok();
        let files = [open("maps"), open("pagemap")];
        // As long as it waits for us the number is its own.
        match sys::is_hung_up(&guest.socket) {
            true => [None, None],
            false => files,
        }
    }

    /// The image says nothing any more.
    fn hang_up(&mut self, id: Id) {
        self.life.fall_silent(id);
        if let Some(socket) = self.members.get_mut(&id).and_then(|m| m.socket.take()) {
            self.poller.remove(&socket);
        }
    }

    fn let_go_of_faults(&mut self, id: Id) {
        if let Some(faults) = self.members.get_mut(&id).and_then(|m| m.faults.take()) {
            self.poller.remove(&faults);
        }
    }

    /// Its engine is gone; its memory perhaps not.
    fn orphan(&mut self, id: Id) {
        if let Some(faults) = self.members.get(&id).and_then(|m| m.faults.as_ref()) {
            // A second time it is there already.
            let _ = self.poller.add(faults, token(ORPHAN, id));
            orphans::begin(faults);
        }
    }

    /// The process of an image is dead.
    fn died(&mut self, id: Id) {
        // What it said last.
        for _ in 0..AT_A_TIME {
            if !self.hear(id) {
                break;
            }
        }
        self.orphan(id);
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        if let Some(p) = &member.process {
            self.poller.remove(p.as_fd());
        }
        member.is_gone = true;
        self.life.die(id);
        self.hang_up(id);
    }

    /// Takes a packet of the image's, if there is one; says whether there was.
    fn hear(&mut self, id: Id) -> bool {
        let Some(socket) = self.members.get(&id).and_then(|m| m.socket.as_ref()) else {
            return false;
        };
        let mut fds = Descriptors::default();
        let said = Request::receive(socket.as_raw_fd(), &mut fds);
        let mut fds: Vec<OwnedFd> = fds.as_slice().iter().map(|&fd| own(fd)).collect();
        match said {
            Err(Errno::EAGAIN) => return false,
            Ok(Received::Packet(Some(Request::Fork))) => {
                if let Some(door) = fds.pop() {
                    self.open_door(id, door);
                }
                self.promise(id);
            }
            Ok(Received::Packet(Some(Request::Call))) => {
                if let Some(m) = self.members.get(&id) {
                    m.page().called.store(0, Release);
                }
            }
            Ok(Received::Packet(Some(Request::Forked { place }))) => {
                let child = self.members.get(&place.id);
                if child.is_some_and(|c| c.key == place.key) {
                    self.life.let_go(id, place.id);
                }
            }
            Ok(Received::Packet(Some(Request::Faults))) => {
                let faults = fds.pop().filter(orphans::is_one);
                self.let_go_of_faults(id);
                if let Some(m) = self.members.get_mut(&id) {
                    m.faults = faults;
                }
            }
            Ok(Received::End) => {
                self.orphan(id);
                self.hang_up(id);
            }
            // Anything else no engine of ours says.
            _ => self.hang_up(id),
        }
        true
    }

    /// An image forks: its child gets a place.
    fn promise(&mut self, by: Id) {
        let unborn = |m: &&Member| m.parent == Some(by) && m.pid == 0;
        let made = match self.members.values().filter(unborn).count() < MOST_UNBORN {
            true => Object::new().and_then(|o| o.handle().map(|h| (o, h))),
            false => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        };
        let reply = made.map_err(|e| errno(&e)).and_then(|(object, handle)| {
            let id = self.life.promise(by).ok_or(Errno::EAGAIN)?;
            let key = random();
            let child = Member::new(Arc::new(object), Some(by), key);
            self.members.insert(id, child);
            if let Some(parent) = self.members.get_mut(&by) {
                parent.last_place = key;
            }
            Ok((Place { id, key }, handle))
        });
        // Those of whose slots the child may read know it before it is there.
        self.tell();
        let Some(socket) = self.members.get(&by).and_then(|m| m.socket.as_ref()) else {
            return;
        };
        let socket = socket.as_raw_fd();
        let sent = match &reply {
            Ok((place, handle)) => Reply::Place(*place).send(socket, &[handle.as_raw_fd()]),
            Err(e) => Reply::Refused(*e).send(socket, &[]),
        };
        if let (Err(_), Ok((place, _))) = (sent, reply) {
            self.life.let_go(by, place.id);
        }
    }

    /// Tells each process what it has to know of the others.
    pub fn tell(&self) {
        let all: i64 = self.present().map(|(_, m)| m.charged()).sum();
        for (id, m) in self.present() {
            let page = m.page();
            page.others_pages.store((all - m.charged()).max(0), Release);
            page.lends.store(self.life.lends(id).into(), Release);
        }
        let sum = |f: fn(&Stats) -> u64| {
            let each = self.present().map(|(_, m)| f(&m.page().stats));
            each.fold(0, u64::saturating_add)
        };
        self.control.set_totals(
            all as u64,
            sum(|s| s.swapped_bytes.get()),
            sum(|s| s.swapoff_pages.get()),
        );
    }

    /// Prints what processes have to say.
    pub fn print_logs(&mut self) {
        for m in self.members.values_mut() {
            m.hear_page(&mut self.execs);
        }
    }

    /// What processes have said since the last time of programs without hugeswap that they become.
    pub fn take_execs(&mut self) -> Vec<Exec> {
        std::mem::take(&mut self.execs)
    }

    /// Takes swap back that processes have no use for, and gives it to those who want some.
    pub fn grant(&mut self, total: Total, is_on: impl Fn(usize) -> bool) {
        let swap = Arc::clone(&self.swap);
        let mut owners = swap.owners();
        let devices = self.control.devices();
        for (&id, m) in &self.members {
            let sizes = devices.iter().map(DeviceEntry::segments);
            let page = m.page();
            page.take_freed(sizes, |d, cluster| owners.give_back(d, cluster, id));
        }
        let swapped = |m: &Member| m.page().stats.swapped_bytes.get();
        let all = self.present().map(|(_, m)| swapped(m));
        owners.measure(total, all.fold(0, u64::saturating_add), is_on);
        let live = |id: &Id| self.life.stage(*id) == Some(Stage::Live);
        for (&id, m) in self.members.iter().filter(|(id, _)| live(id)) {
            for d in 0..MAX_DEVICES {
                let Some(wish) = m.page().wish(d) else {
                    continue;
                };
                let answer = match owners.grant(d, id) {
                    Some(grant) => Answer::Granted(grant),
                    None if owners.is_settling(d) => continue,
                    None => {
                        self.sweeps.hurry();
                        Answer::Nothing
                    }
                };
                m.page().answer(d, wish, answer);
                loans::wake(m);
            }
        }
        drop(owners);
        swap.settle();
    }

    /// Looks whether images that nobody speaks for are gone, and forgets those whose swap nobody needs:
    /// others get what they had. `needed`: their swap is needed for something else.
    pub fn bury(&mut self, mut needed: impl FnMut(Id, &Member, bool) -> bool) {
        let ids: Vec<Id> = self.members.keys().copied().collect();
        for &id in &ids {
            let Some(stage @ (Stage::Loose | Stage::Dead)) = self.life.stage(id) else {
                continue;
            };
            let next = self.next_image(id);
            let borrows = self.life.borrows(id);
            let Some(m) = self.members.get_mut(&id) else {
                continue;
            };
            let is_held = m.object.is_held();
            m.is_gone |= !is_held;
            // An image that made room for another leaves no core file; one whose process has not been
            // found dead yet may.
            if !m.is_examined && (stage == Stage::Dead || m.process.is_none() || next) {
                if is_held && stage != Stage::Dead {
                    continue;
                }
                m.is_examined = next || !needed(id, m, borrows);
                if m.is_examined {
                    m.page().forget_keys();
                }
            }
            if m.is_examined && is_held && !m.is_given && self.life.is_idle(id) {
                m.is_given = true;
                let reached = m.reached();
                let not_reached = |d, cluster| !reached.contains(&(d, cluster));
                self.swap.owners().release(id, not_reached);
            }
            if m.is_examined && !is_held {
                self.life.end(id);
                self.let_go_of_faults(id);
            }
        }
        for id in ids {
            if !self.life.can_be_forgotten(id) {
                continue;
            }
            self.swap.owners().release(id, |_, _| true);
            self.life.forget(id);
            lock(&self.pages).retain(|(i, _, _)| *i != id);
            if let Some(mut m) = self.members.remove(&id) {
                if let Some(p) = &m.process {
                    self.poller.remove(p.as_fd());
                }
                m.hear_page(&mut self.execs);
                self.past.merge(&m.page().stats, false);
            }
        }
    }

    /// Ends loans where it can.
    pub fn settle_loans(&mut self) {
        let (devices, swap) = (self.control.page().devices(), &self.swap);
        self.sweeps
            .turn(&self.life, &self.members, devices, |id, which| {
                swap.owners().release(id, which);
            });
    }

    /// Whether it is to be looked again soon.
    pub fn are_settling(&self) -> bool {
        self.sweeps.is_going_on()
    }

    /// Whether the image's process goes on as another.
    fn next_image(&self, id: Id) -> bool {
        let Some(m) = self.members.get(&id) else {
            return false;
        };
        if m.process.is_none() || self.life.stage(id) == Some(Stage::Dead) {
            return false;
        }
        let is_next = |(&i, n): (&Id, &Member)| {
            i != id && n.pid == m.pid && self.life.stage(i) == Some(Stage::Live)
        };
        // One that is not managed has memory, and one that is dying has none.
        let has_memory = || {
            let statm = std::fs::read(format!("/proc/{}/statm", m.pid));
            statm.is_ok_and(|s| !s.starts_with(b"0 "))
        };
        let late = || m.loose_since.is_some_and(|s| s.elapsed() > LATE);
        !m.object.is_held() && (self.members.iter().any(is_next) || has_memory() || late())
    }

    /// For threads of the supervisor that have something to say.
    pub fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.bell)
    }
}

impl Member {
    fn new(object: Arc<Object>, parent: Option<Id>, key: u64) -> Member {
        Member {
            object,
            pid: 0,
            parent,
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
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// Who orders something calls by a word beside the order.
fn ring_on_call(orders: &'static Orders, bell: Arc<OwnedFd>) {
    std::thread::spawn(move || loop {
        let seen = orders.need.load(Acquire);
        sys::set_event(&bell, true);
        futex::wait(&orders.need, seen, None, Scope::Shared);
    });
}

/// Whether the thread of that number, here, is an engine's: what it does, no program does.
pub fn is_engine_thread(pages: &Pages, tid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else {
        return false;
    };
    let last = |name: &str| -> Option<u32> {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_ascii_whitespace().last()?.parse().ok()
    };
    // The second is its number in its own name space, by which the engine knows it.
    let (Some(process), Some(own)) = (last("Tgid:"), last("NSpid:")) else {
        return false;
    };
    let is = |o: &Object| {
        let mut tids = o.page().engine_tids.iter();
        tids.any(|t| t.load(Acquire) == own)
    };
    let found = lock(pages)
        .iter()
        .any(|(_, pid, object)| *pid == process && is(object));
    found
}
