//! Memory that was mapped before us: the program's own zeroed data, and what allocators and other libraries
//! have reserved.
//!
//! Of what was said of it, nobody has told us. What the kernel says in `/proc/self/smaps` is taken for true,
//! and where that is more than a protection the mapping stays as it is, unmanaged.

use crate::manageable::{can_be_managed, is_writable};
use crate::maps::{self, Mapping};
use crate::state::state;
use hugeswap::engine::Engine;
use hugeswap::mm::PMD_SIZE;
use hugeswap::sys::pagemap::Pagemap;

/// A mapping, and what is known of it.
struct Found {
    mapping: Mapping,
    /// Some of its pages are there.
    filled: bool,
    /// It grows, is locked, is another in children, has a key, is read one after the other or at random (`remap` marks
    /// what it moves so), is a thread's stack (for which the kernel has no huge pages), or the kernel has swapped some
    /// of it.
    special: bool,
}

/// See proc_pid_smaps(5).
const SPECIAL: [&str; 8] = ["gd", "lo", "dc", "wf", "nh", "ht", "sr", "rr"];

/// In the constructor, in a program of one thread. Accessible or not, what lies side by side is one stretch: an
/// allocator opens its reservation piece by piece.
pub fn adopt(e: &Engine) {
    let can = |m: &Mapping| {
        m.prot & libc::PROT_EXEC == 0
            && m.private
            && m.anonymous
            && can_be_managed(m.start, m.end - m.start)
            && !e.is_own(m.start, m.end)
    };
    // Most programs have none of that, and the longer list takes longer.
    let all = maps::all_alone().unwrap_or_default();
    if !stretches(&all, |m| m, can).any(|s| length(s, |m| m) >= PMD_SIZE) {
        return;
    }
    let found = parse(&maps::details().unwrap_or_default());
    let pagemap = Pagemap::open();
    let has_guards = |m: &Mapping| match &pagemap {
        Ok(p) => p.has_guards(m.start, m.end).unwrap_or(false),
        Err(_) => true,
    };
    let can = |f: &Found| can(&f.mapping) && !f.special && !has_guards(&f.mapping);
    for stretch in stretches(&found, |f| &f.mapping, can) {
        if length(stretch, |f| &f.mapping) >= PMD_SIZE {
            adopt_stretch(e, stretch);
        }
    }
    if let Ok(p) = pagemap {
        p.close();
    }
}

fn adopt_stretch(e: &Engine, stretch: &[Found]) {
    let start = stretch[0].mapping.start;
    let len = length(stretch, |f| &f.mapping);
    if e.register(0, start, len).is_err() {
        return;
    }
    state().lock().regions.insert(start, start + len);
    for f in stretch {
        let m = &f.mapping;
        let len = m.end - m.start;
        if f.filled {
            let _ = e.adopt_resident(0, m.start, len);
        }
        if is_writable(m.prot) {
            let _ = e.add_writable(m.start, len);
        }
    }
}

/// Those of the list that lie side by side, and can be managed each.
fn stretches<'a, T>(
    all: &'a [T],
    mapping: impl Fn(&T) -> &Mapping + 'a,
    can: impl Fn(&T) -> bool + Copy + 'a,
) -> impl Iterator<Item = &'a [T]> {
    all.chunk_by(move |a, b| mapping(a).end == mapping(b).start && can(a) && can(b))
        .filter(move |stretch| can(&stretch[0]))
}

fn length<T>(stretch: &[T], mapping: impl Fn(&T) -> &Mapping) -> usize {
    match stretch {
        [first, .., last] => mapping(last).end - mapping(first).start,
        [one] => mapping(one).end - mapping(one).start,
        [] => 0,
    }
}

/// `/proc/self/smaps`.
fn parse(text: &str) -> Vec<Found> {
    let mut out: Vec<Found> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = maps::parse(line) {
            out.push(Found {
                mapping,
                filled: false,
                special: false,
            });
            continue;
        }
        let (Some(f), Some((name, value))) = (out.last_mut(), line.split_once(':')) else {
            continue;
        };
        let mut words = value.split_ascii_whitespace();
        match name {
            "Rss" => f.filled |= words.next() != Some("0"),
            "Swap" | "ProtectionKey" => f.special |= words.next() != Some("0"),
            "VmFlags" => f.special |= words.any(|w| SPECIAL.contains(&w)),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_mapping_is_seen() {
        let one = |more: &str| {
            let text =
                format!("7f00-8f00 ---p 00000000 00:00 0 \nSize: 4 kB\n{more}\nTHPeligible: 0\n");
            let f = parse(&text).pop().unwrap();
            assert_eq!((f.mapping.start, f.mapping.end), (0x7f00, 0x8f00));
            (f.filled, f.special)
        };
        assert_eq!(
            one("Rss:   0 kB\nSwap:  0 kB\nVmFlags: mr mw me nr sd"),
            (false, false)
        );
        assert_eq!(one("Rss:   4 kB\nProtectionKey:   0"), (true, false));
        assert_eq!(one("Rss:   0 kB\nVmFlags: rd wr wf ac"), (false, true));
        assert_eq!(one("Swap:  8 kB"), (false, true));
        assert_eq!(one("ProtectionKey:   3"), (false, true));
    }
}
