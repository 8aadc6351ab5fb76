//! A disk that keeps writes back as long as it is told to, as one with a long queue or a network may: a
//! file system with one file, which this process serves (FUSE).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::Dir;

const BYTES: usize = 512 << 20;
const NAME: &[u8] = b"swap";
/// Numbers of the root and of the file.
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// A request with the largest write.
const ROOM: usize = (1 << 20) + 4096;

struct Held {
    unique: u64,
    at: usize,
    data: Vec<u8>,
}

struct State {
    store: Vec<u8>,
    size: u64,
    holds: bool,
    held: Vec<Held>,
    /// Writes that went where another is held.
    over: usize,
    ends: bool,
}

pub struct SlowDisk {
    at: PathBuf,
    state: Arc<Mutex<State>>,
    device: Arc<File>,
    server: Option<JoinHandle<()>>,
    _dir: Dir,
}

impl SlowDisk {
    pub fn new() -> SlowDisk {
        let dir = Dir::new("slow");
        let at = dir.join("mounted");
        fs::create_dir(&at).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = Arc::new(device.expect("this test needs /dev/fuse"));
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let text = |s: &str| CString::new(s).unwrap();
        let (target, options) = (text(at.to_str().unwrap()), text(&options));
        // SAFETY: C strings that outlive the call.
        let r = unsafe {
            libc::mount(
                c"slow".as_ptr(),
                target.as_ptr(),
                c"fuse".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                options.as_ptr().cast(),
            )
        };
        assert_eq!(r, 0, "mount: {}", std::io::Error::last_os_error());
        let state = Arc::new(Mutex::new(State {
            store: vec![0; BYTES],
            size: 0,
            holds: false,
            held: Vec::new(),
            over: 0,
            ends: false,
        }));
        let server = {
            let (state, device) = (Arc::clone(&state), Arc::clone(&device));
            std::thread::spawn(move || serve(&device, &state))
        };
        SlowDisk {
            at,
            state,
            device,
            server: Some(server),
            _dir: dir,
        }
    }

    pub fn file(&self) -> PathBuf {
        self.at.join("swap")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Whether writes are kept back from now on; those that are stay.
    pub fn hold(&self, on: bool) {
        self.state().holds = on;
    }

    /// How many are.
    pub fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Carries out what was kept back.
    pub fn release(&self) {
        let mut state = self.state();
        state.holds = false;
        for write in std::mem::take(&mut state.held) {
            state.carry_out(&self.device, &write);
        }
    }

    /// Writes that went where another was held.
    pub fn over(&self) -> usize {
        self.state().over
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        if let Ok(mut state) = self.state.lock() {
            state.ends = true;
        }
        let at = CString::new(self.at.to_str().unwrap_or("")).unwrap_or_default();
        // SAFETY: a C string that outlives the call.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn reply(device: &File, unique: u64, answer: Result<&[u8], i32>) {
    let data = answer.unwrap_or_default();
    let mut packet = Vec::with_capacity(16 + data.len());
    packet.extend((16 + data.len() as u32).to_ne_bytes());
    packet.extend((-answer.err().unwrap_or(0)).to_ne_bytes());
    packet.extend(unique.to_ne_bytes());
    packet.extend(data);
    // Who asked may be gone.
    let _ = (&mut &*device).write_all(&packet);
}

impl State {
    fn carry_out(&mut self, device: &File, write: &Held) {
        let end = write.at + write.data.len();
        self.store[write.at..end].copy_from_slice(&write.data);
        self.size = self.size.max(end as u64);
        let done = u64::from(write.data.len() as u32).to_ne_bytes();
        reply(device, write.unique, Ok(&done));
    }

    /// `struct fuse_attr`.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, size) = match node {
            ROOT => (libc::S_IFDIR | 0o700, 0),
            _ => (libc::S_IFREG | 0o600, self.size),
        };
        let long = [node, size, size / 512, 0, 0, 0];
        let short = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
        let mut all: Vec<u8> = long.iter().flat_map(|w| w.to_ne_bytes()).collect();
        all.extend(short.iter().flat_map(|w: &u32| w.to_ne_bytes()));
        all
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn serve(device: &File, state: &Mutex<State>) {
    let mut room = vec![0; ROOM];
    loop {
        let mut fd = libc::pollfd {
            fd: device.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which outlives the call.
        unsafe { libc::poll(&raw mut fd, 1, 20) };
        if state.lock().unwrap().ends {
            return;
        }
        if fd.revents == 0 {
            continue;
        }
        match (&mut &*device).read(&mut room) {
            Ok(n) => answer(device, &mut state.lock().unwrap(), &room[..n]),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return,
            Err(_) => {}
        }
    }
}

/// One request of the kernel's; see linux/fuse.h.
fn answer(device: &File, state: &mut State, request: &[u8]) {
    const SIZE_CHANGES: u32 = 1 << 3;
    const PUNCH: u32 = 2;
    let (head, body) = request.split_at(40);
    let (unique, node) = (word(head, 8), word(head, 16));
    let say = |answer: Result<&[u8], i32>| reply(device, unique, answer);
    let attributes = |state: &State| [vec![0; 16], state.attributes(node)].concat();
    match half(head, 4) {
        // LOOKUP
        1 if body.strip_suffix(&[0]) == Some(NAME) => {
            let entry = [
                FILE.to_ne_bytes().to_vec(),
                vec![0; 32],
                state.attributes(FILE),
            ];
            say(Ok(&entry.concat()));
        }
        1 => say(Err(libc::ENOENT)),
        // GETATTR
        3 => say(Ok(&attributes(state))),
        // SETATTR
        4 => {
            if half(body, 0) & SIZE_CHANGES != 0 {
                state.size = word(body, 16);
            }
            say(Ok(&attributes(state)));
        }
        // OPEN, OPENDIR
        14 | 27 => say(Ok(&[0; 16])),
        // READ
        15 => {
            let (at, n) = (word(body, 8), u64::from(half(body, 16)));
            let end = (at + n).min(state.size).max(at);
            say(Ok(&state.store[at as usize..end as usize]));
        }
        // WRITE
        16 => {
            let (at, n) = (word(body, 8) as usize, half(body, 16) as usize);
            let write = Held {
                unique,
                at,
                data: body[40..40 + n].to_vec(),
            };
            let meets = |w: &Held| at < w.at + w.data.len() && w.at < at + n;
            state.over += usize::from(state.held.iter().any(meets));
            match state.holds {
                true => state.held.push(write),
                false => state.carry_out(device, &write),
            }
        }
        // STATFS
        17 => {
            let blocks = (BYTES / 4096) as u64;
            let mut all = [blocks, blocks, blocks, 0, 0]
                .map(u64::to_ne_bytes)
                .concat();
            all.extend([4096u32, 255, 4096].map(u32::to_ne_bytes).concat());
            all.resize(80, 0);
            say(Ok(&all));
        }
        // RELEASE, FSYNC, RELEASEDIR
        18 | 20 | 29 => say(Ok(&[])),
        // INIT: reads and direct I/O at the same time, up to 256 pages.
        26 => {
            let able = half(body, 12) & (1 | 1 << 5 | 1 << 15 | 1 << 18 | 1 << 22);
            let mut all = [7, 31, half(body, 8), able].map(u32::to_ne_bytes).concat();
            all.extend([512u16, 512].map(u16::to_ne_bytes).concat());
            all.extend([1u32 << 20, 1].map(u32::to_ne_bytes).concat());
            all.extend(256u16.to_ne_bytes());
            all.resize(64, 0);
            say(Ok(&all));
        }
        // FALLOCATE
        43 => {
            let (at, n) = (word(body, 8) as usize, word(body, 16) as usize);
            if half(body, 24) & PUNCH != 0 {
                let end = (at + n).min(BYTES);
                state.store[at.min(end)..end].fill(0);
            } else {
                state.size = state.size.max((at + n) as u64);
            }
            say(Ok(&[]));
        }
        // FORGET, INTERRUPT, BATCH_FORGET have no answer.
        2 | 36 | 42 => {}
        _ => say(Err(libc::ENOSYS)),
    }
}
