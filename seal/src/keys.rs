//! The keys of a process.
//!
//! A forked child gets its parent's memory, so it has the key of all that its parent had in swap
//! then, and may read that. It must not be able to read what its parent writes afterwards, nor the other way
//! round. So both get a new key at a fork, and keep the old ones as long as slots were sealed with
//! them: a *ring* of keys, and each nonce names its key's generation.
//!
//! Both new keys are drawn before the fork, by the engine's thread, which no filter of system calls keeps
//! from asking for random numbers. The parent's lies in a page that the child finds wiped
//! (`MADV_WIPEONFORK`); the parent wipes the child's.
//!
//! The ring is in memory that is not part of core files and, as far as the process's limits allow,
//! never goes to the kernel's swap. A core file can be completed all the same: a copy of the ring is
//! kept that is encrypted with a key that only the supervisor knows besides.
#![allow(unsafe_code)]

use super::parts::{Key, Nonce, GENERATIONS};
use aegis::aegis128x2::Aegis128X2;
use core::ptr::{read_volatile, write_volatile};
use core::sync::atomic::{compiler_fence, AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use hugeswap_sys::{mem, syscall, thread, Errno};

const NONE: u32 = u32::MAX;

/// Not in core files.
#[repr(C)]
struct Secret {
    ring: [Key; GENERATIONS],
    /// For the child of the fork that is being prepared.
    child: Drawn,
    /// What the copy is encrypted with.
    dump: Key,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Drawn {
    key: Key,
    dump: Key,
}

/// A key of the ring, encrypted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Wrapped {
    version: u64,
    key: [u8; 16],
    tag: [u8; 16],
}

impl Wrapped {
    pub const BYTES: usize = size_of::<Wrapped>();

    fn nonce(version: u64, generation: usize) -> [u8; 16] {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&version.to_le_bytes());
        nonce[8..].copy_from_slice(&(generation as u64).to_le_bytes());
        nonce
    }

    /// Any bytes are one, if not one that can be unwrapped.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Wrapped {
        let mut wrapped = Wrapped {
            version: 0,
            key: [0; 16],
            tag: [0; 16],
        };
        let (version, rest) = bytes.split_at(8);
        let mut word = [0; 8];
        word.copy_from_slice(version);
        wrapped.version = u64::from_ne_bytes(word);
        wrapped.key.copy_from_slice(&rest[..16]);
        wrapped.tag.copy_from_slice(&rest[16..]);
        wrapped
    }
}

/// What the supervisor has to complete a core file with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwrap(pub [u64; 2]);

impl Unwrap {
    fn key(self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&self.0[0].to_ne_bytes());
        key[8..].copy_from_slice(&self.0[1].to_ne_bytes());
        key
    }

    /// The key of the ring, if this is its copy.
    pub fn unwrap(self, wrapped: &Wrapped, generation: usize) -> Option<Key> {
        let nonce = Wrapped::nonce(wrapped.version, generation);
        let mut key = wrapped.key;
        Aegis128X2::<16>::new(&self.key(), &nonce)
            .decrypt_in_place(&mut key, &wrapped.tag, &[])
            .ok()?;
        Some(Key(key))
    }
}

/// A ring. It changes only while the engine stands still: at start and at forks.
pub struct Keys {
    secret: *mut Secret,
    /// The parent's next key, in a page of its own that a child finds wiped.
    parent: *mut Key,
    wrapped: *mut Wrapped,
    current: AtomicU32,
    /// Something was sealed with the current key.
    used: AtomicBool,
    /// Generations that ever were.
    len: AtomicU32,
    /// Of the fork that is being prepared.
    next: AtomicU32,
    count: AtomicU64,
    version: AtomicU64,
}

// SAFETY: the memory is never unmapped. It is written only while nobody else looks (see the struct).
unsafe impl Sync for Keys {}
// SAFETY: as above.
unsafe impl Send for Keys {}

const RING: usize = size_of::<[Key; GENERATIONS]>();

/// Locks the pages that hold these bytes, where that is allowed.
fn lock(at: usize, bytes: usize) {
    let start = at & !(hugeswap_mm::PAGE_SIZE - 1);
    let flags = libc::MLOCK_ONFAULT as usize;
    // SAFETY: locking changes no contents.
    let _ = unsafe { syscall(libc::SYS_mlock2, [start, at + bytes - start, flags]) };
}

fn draw() -> Result<Key, Errno> {
    let mut key = [0; 16];
    thread::random_bytes(&mut key).map(|()| Key(key))
}

/// Overwrites a key such that the compiler can't leave it out.
///
/// # Safety
/// `key` is valid for writes and nobody else's.
unsafe fn wipe(key: *mut Key) {
    // SAFETY: the caller's contract.
    unsafe { write_volatile(key, Key([0; 16])) };
    compiler_fence(SeqCst);
}

impl Keys {
    pub fn new() -> Result<Keys, Errno> {
        let bytes = size_of::<Secret>();
        let secret = mem::map_anon(bytes)?;
        let parent = mem::map_anon(hugeswap_mm::PAGE_SIZE)?;
        // SAFETY: advice on mappings just made, which nobody knows of.
        unsafe {
            mem::madvise(secret as usize, bytes, libc::MADV_DONTDUMP)?;
            mem::madvise(parent as usize, hugeswap_mm::PAGE_SIZE, libc::MADV_DONTDUMP)?;
            mem::madvise(
                parent as usize,
                hugeswap_mm::PAGE_SIZE,
                libc::MADV_WIPEONFORK,
            )?;
        }
        let wrapped = mem::map_anon(GENERATIONS * Wrapped::BYTES)?;
        let keys = Keys {
            secret: secret as *mut Secret,
            parent: parent as *mut Key,
            wrapped: wrapped as *mut Wrapped,
            current: AtomicU32::new(0),
            used: AtomicBool::new(false),
            len: AtomicU32::new(1),
            next: AtomicU32::new(NONE),
            count: AtomicU64::new(0),
            version: AtomicU64::new(0),
        };
        keys.lock_pages();
        let (key, dump) = (draw()?, draw()?);
        // SAFETY: nobody else has the ring yet.
        unsafe {
            (*keys.secret).ring[0] = key;
            (*keys.secret).dump = dump;
        }
        keys.wrap(0);
        Ok(keys)
    }

    /// Keeps what is used of the ring out of the kernel's swap, if this process may. A child does not
    /// inherit that.
    pub fn lock_pages(&self) {
        let used = self.len.load(Relaxed) as usize * size_of::<Key>();
        lock(self.secret as usize, used);
        lock(self.secret as usize + RING, size_of::<Secret>() - RING);
        lock(self.parent as usize, size_of::<Key>());
    }

    /// Where the encrypted copy is.
    pub fn wrapped(&self) -> usize {
        self.wrapped as usize
    }

    /// What opens that.
    pub fn unwrap(&self) -> Unwrap {
        // SAFETY: written at start and at forks only.
        let [a, b, c, d, e, f, g, h, rest @ ..] = unsafe { (*self.secret).dump.0 };
        Unwrap([
            u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            u64::from_ne_bytes(rest),
        ])
    }

    pub(super) fn get(&self, generation: usize) -> Key {
        // SAFETY: inside the ring; what was never drawn is zero, and seals nothing.
        unsafe { (*self.secret).ring[generation % GENERATIONS] }
    }

    /// A nonce for one write, of up to one page to each slot. None when there are no more: never, at any
    /// speed that a device has.
    pub fn nonce(&self) -> Option<Nonce> {
        self.used.store(true, Relaxed);
        let count = self.count.fetch_add(1, Relaxed) + 1;
        Nonce::new(self.current.load(Relaxed) as usize, count)
    }

    fn wrap(&self, generation: usize) {
        let version = self.version.fetch_add(1, Relaxed);
        let mut key = self.get(generation).0;
        let nonce = Wrapped::nonce(version, generation);
        let tag =
            Aegis128X2::<16>::new(&self.unwrap().key(), &nonce).encrypt_in_place(&mut key, &[]);
        // SAFETY: inside the table; the engine stands still.
        unsafe { *self.wrapped.add(generation) = Wrapped { version, key, tag } };
    }

    /// A fork comes: draws keys for both. `in_use` says with which nonces slots are sealed. For the
    /// engine's thread, while the engine stands still. An error: there must be no fork.
    pub fn fork_prepare(&self, in_use: impl FnOnce(&mut dyn FnMut(Nonce))) -> Result<(), Errno> {
        let next = if self.used.load(Relaxed) {
            self.unused(in_use).ok_or(Errno(libc::EAGAIN))?
        } else {
            self.current.load(Relaxed)
        };
        let (parent, key, dump) = (draw()?, draw()?, draw()?);
        // SAFETY: the engine stands still.
        unsafe {
            self.parent.write(parent);
            (*self.secret).child = Drawn { key, dump };
        }
        self.next.store(next, Relaxed);
        Ok(())
    }

    /// A generation that seals nothing.
    fn unused(&self, in_use: impl FnOnce(&mut dyn FnMut(Nonce))) -> Option<u32> {
        let len = self.len.load(Relaxed);
        if (len as usize) < GENERATIONS {
            self.len.store(len + 1, Relaxed);
            return Some(len);
        }
        let mut used = [0u64; GENERATIONS / 64];
        in_use(&mut |nonce| used[nonce.generation() / 64] |= 1 << (nonce.generation() % 64));
        let free = (0..GENERATIONS).find(|g| used[g / 64] >> (g % 64) & 1 == 0);
        free.map(|g| g as u32)
    }

    /// After the fork, or in place of it, in the parent, which stands still.
    pub fn fork_parent(&self) {
        let next = self.next.swap(NONE, Relaxed);
        if next == NONE {
            return;
        }
        let new = self.secret as usize + next as usize * size_of::<Key>();
        if new % hugeswap_mm::PAGE_SIZE == 0 {
            lock(new, size_of::<Key>());
        }
        // SAFETY: the engine stands still.
        unsafe {
            (*self.secret).ring[next as usize] = read_volatile(self.parent);
            self.forget_drawn();
        }
        self.begin(next);
        self.wrap(next as usize);
    }

    /// In the child, before its engine runs.
    pub fn fork_child(&self) {
        let next = self.next.swap(NONE, Relaxed);
        if next == NONE {
            return;
        }
        self.lock_pages();
        // SAFETY: nobody else is here yet.
        unsafe {
            let drawn = (*self.secret).child;
            (*self.secret).ring[next as usize] = drawn.key;
            (*self.secret).dump = drawn.dump;
            self.forget_drawn();
        }
        self.begin(next);
        // The supervisor's key for the parent's copy is not the one for ours.
        for generation in 0..self.len.load(Relaxed) as usize {
            self.wrap(generation);
        }
    }

    /// # Safety
    /// The engine stands still.
    unsafe fn forget_drawn(&self) {
        // SAFETY: the caller's contract; both are ours.
        unsafe {
            wipe(self.parent);
            wipe(&raw mut (*self.secret).child.key);
            wipe(&raw mut (*self.secret).child.dump);
        }
    }

    fn begin(&self, generation: u32) {
        self.current.store(generation, Relaxed);
        self.used.store(false, Relaxed);
    }
}

#[cfg(test)]
impl Keys {
    /// What a forked child finds in its memory.
    pub(super) fn copied(&self) -> Keys {
        let child = Keys::new().unwrap();
        // SAFETY: both are mapped with this size, and nobody else uses them.
        unsafe { core::ptr::copy_nonoverlapping(self.secret, child.secret, 1) };
        let all = [
            (&self.current, &child.current),
            (&self.len, &child.len),
            (&self.next, &child.next),
        ];
        for (from, to) in all {
            to.store(from.load(Relaxed), Relaxed);
        }
        child.used.store(self.used.load(Relaxed), Relaxed);
        child.count.store(self.count.load(Relaxed), Relaxed);
        child
    }

    pub(super) fn wrapped_of(&self, generation: usize) -> Wrapped {
        // SAFETY: inside the table.
        let bytes = unsafe { *(self.wrapped.add(generation) as *const [u8; Wrapped::BYTES]) };
        Wrapped::decode(&bytes)
    }

    pub(super) fn hidden(&self) -> [usize; 2] {
        [self.secret as usize, self.parent as usize]
    }
}
