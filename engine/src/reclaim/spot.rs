//! On which CPU reclaim runs.
//!
//! While the handler is colocated with a thread (`fault::colocation`) reclaim moves pages on that CPU too: from another
//! one each move would interrupt it, which costs several times the move itself. But what takes long beside that,
//! compressing, would take the CPU from both. So that is done elsewhere.

use crate::pressure::Kick;
use crate::sys::sched::Cpus;

/// Fewer pages take no longer to compress than it takes to go elsewhere and back.
const MANY: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Anywhere,
    /// On the CPU of this number.
    Beside(u32),
    /// On any other.
    Apart(u32),
}

impl At {
    /// For moves. `place`: see [`Kick::place`].
    fn moves(place: Option<u32>) -> At {
        place.map_or(At::Anywhere, At::Beside)
    }

    /// To compress about so many pages.
    fn work(place: Option<u32>, pages: u64) -> At {
        match place {
            Some(cpu) if pages >= MANY => At::Apart(cpu),
            place => At::moves(place),
        }
    }
}

/// Of the reclaim thread, which alone changes where it runs.
pub struct Spot {
    /// Where it may be; none where that can't be known.
    anywhere: Option<Cpus>,
    at: At,
    /// Pages that were compressed of what left last.
    compressed: u64,
}

impl Spot {
    /// In the reclaim thread.
    pub fn new() -> Spot {
        Spot {
            anywhere: Cpus::allowed().ok(),
            at: At::Anywhere,
            compressed: 0,
        }
    }

    /// Before pages are moved.
    pub fn for_moves(&mut self, kick: Kick<'_>) {
        self.go(At::moves(kick.place()));
    }

    /// Before what was moved is looked at, and written or compressed.
    pub fn for_work(&mut self, kick: Kick<'_>) {
        self.go(At::work(kick.place(), self.compressed));
    }

    /// So many pages of it were compressed. Of what leaves next it will be about as many.
    pub fn has_compressed(&mut self, pages: u64) {
        self.compressed = pages;
    }

    fn go(&mut self, to: At) {
        let Some(anywhere) = self.anywhere.as_ref().filter(|_| to != self.at) else {
            return;
        };
        let gone = match to {
            At::Anywhere => anywhere.confine(0),
            At::Beside(cpu) => Cpus::one(cpu).confine(0),
            At::Apart(cpu) => anywhere.without(cpu).confine(0),
        };
        if gone.is_ok() {
            self.at = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_long_is_done_elsewhere() {
        assert_eq!(At::work(Some(3), MANY), At::Apart(3));
        assert_eq!(At::work(Some(3), MANY - 1), At::Beside(3));
        assert_eq!(At::moves(Some(3)), At::Beside(3));
        for at in [At::moves(None), At::work(None, 96)] {
            assert_eq!(at, At::Anywhere);
        }
    }

    #[test]
    fn goes_and_comes_back() {
        // In a thread of its own, for where it may run is changed.
        let went = std::thread::spawn(|| {
            let mut spot = Spot::new();
            let allowed = || Cpus::allowed().unwrap();
            let all = allowed();
            let cpu = (0..).find(|&cpu| all.has(cpu)).unwrap();
            let mut counts = Vec::new();
            for at in [At::Beside(cpu), At::Apart(cpu), At::Anywhere] {
                spot.go(at);
                counts.push((allowed().count(), allowed().has(cpu)));
            }
            (all.count(), counts)
        });
        let (all, counts) = went.join().unwrap();
        // Where there is one CPU it stays there.
        let apart = if all > 1 { (all - 1, false) } else { (1, true) };
        assert_eq!(counts, [(1, true), apart, (all, true)]);
    }
}
