//! Hooks that change the same addresses keep out of each other's way, as the kernel's lock keeps
//! system calls. From before the kernel is asked until the tables say what it answered, nobody else
//! changes, or makes use of, what a hook has reserved.

use core::sync::atomic::{AtomicU32, Ordering::*};
use hugeswap::engine::Stretch;
use hugeswap::sync::Mutex;
use hugeswap::sys::futex::{self, Scope};

static RESERVED: Mutex<Vec<Stretch>> = Mutex::new(Vec::new());
/// Counts what was let go.
static ENDED: AtomicU32 = AtomicU32::new(0);
static WAITING: AtomicU32 = AtomicU32::new(0);

pub struct Reserved([Stretch; 2]);

fn overlap(a: Stretch, b: Stretch) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// Waits until no other hook has any of it. A hook reserves once, so none waits for another that waits.
pub fn reserve(start: usize, end: usize) -> Reserved {
    reserve_two((start, end), (end, end))
}

pub fn reserve_two(one: Stretch, two: Stretch) -> Reserved {
    loop {
        let ended = ENDED.load(Acquire);
        {
            let mut all = RESERVED.lock();
            if !all.iter().any(|r| overlap(*r, one) || overlap(*r, two)) {
                all.push(one);
                all.push(two);
                return Reserved([one, two]);
            }
            WAITING.fetch_add(1, SeqCst);
        }
        futex::wait(&ENDED, ended, None, Scope::Process);
        WAITING.fetch_sub(1, SeqCst);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut all = RESERVED.lock();
        for mine in self.0 {
            if let Some(i) = all.iter().position(|r| *r == mine) {
                all.swap_remove(i);
            }
        }
        drop(all);
        ENDED.fetch_add(1, SeqCst);
        if WAITING.load(SeqCst) > 0 {
            futex::wake(&ENDED, u32::MAX, Scope::Process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    #[test]
    fn one_at_a_time() {
        static INSIDE: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
        std::thread::scope(|s| {
            for t in 0..4 {
                s.spawn(move || {
                    for i in 0..2000 {
                        let (a, b) = ((t + i) % 4, (t * i + 1) % 4);
                        let two = if a == b { (9, 9) } else { (b, b + 1) };
                        let reserved = reserve_two((a, a + 1), two);
                        assert_eq!(INSIDE[a].fetch_add(1, SeqCst), 0);
                        assert_eq!(INSIDE[a].fetch_sub(1, SeqCst), 1);
                        drop(reserved);
                    }
                });
            }
        });
        assert!(RESERVED.lock().is_empty());
    }
}
