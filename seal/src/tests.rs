use super::*;
use hugeswap_mm::{DeviceId, PAGE_SIZE};
use proptest::prelude::*;

const MODES: [Mode; 2] = [Mode::Encrypt, Mode::Check];

fn at(device: u8, slot: u64) -> SwapEntry {
    SwapEntry::new(DeviceId::new(device).unwrap(), slot).unwrap()
}

fn page(of: u8) -> Page {
    core::array::from_fn(|i| (i as u8).wrapping_mul(31) ^ of)
}

/// What lies in a slot, and what is known of it.
#[derive(Clone)]
struct Slot {
    at: SwapEntry,
    nonce: Nonce,
    tag: Tag,
    bytes: Page,
}

fn write(s: &Sealer, at: SwapEntry, from: &Page) -> Slot {
    let nonce = s.keys.nonce().unwrap();
    let mut bytes = *from;
    let tag = s.seal(from, &mut bytes, at, nonce);
    Slot {
        at,
        nonce,
        tag,
        bytes,
    }
}

fn read(s: &Sealer, slot: &Slot, bytes: &Page) -> Result<Page, Wrong> {
    let mut page = *bytes;
    s.open(&mut page, slot.at, slot.nonce, &slot.tag)?;
    Ok(page)
}

#[test]
fn what_was_sealed_comes_back() {
    for mode in MODES {
        let s = Sealer::new(mode).unwrap();
        for slot in [0, 1, 511, 1 << 28] {
            let written = write(&s, at(3, slot), &page(7));
            assert_eq!(read(&s, &written, &written.bytes), Ok(page(7)));
            assert_eq!(written.bytes == page(7), mode == Mode::Check);
        }
    }
}

#[test]
fn the_cipher_computes_what_it_must() {
    assert!(cipher_is_right());
}

#[test]
fn every_bit_counts() {
    for mode in MODES {
        let s = Sealer::new(mode).unwrap();
        let slot = write(&s, at(0, 9), &page(1));
        let mut bytes = slot.bytes;
        // Each bit of the ends and of some in between.
        for byte in (0..64)
            .chain((64..PAGE_SIZE - 64).step_by(61))
            .chain(PAGE_SIZE - 64..PAGE_SIZE)
        {
            for bit in 0..8 {
                bytes[byte] ^= 1 << bit;
                assert_eq!(read(&s, &slot, &bytes), Err(Wrong), "{mode:?} {byte}.{bit}");
                bytes[byte] ^= 1 << bit;
            }
        }
        for bit in 0..128 {
            let mut other = slot.clone();
            other.tag.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&s, &other, &bytes), Err(Wrong));
        }
        assert_eq!(read(&s, &slot, &bytes), Ok(page(1)));
    }
}

#[test]
fn slots_cannot_be_exchanged_nor_put_back() {
    for mode in MODES {
        let s = Sealer::new(mode).unwrap();
        let (one, two) = (at(0, 9), at(1, 9));
        let old = write(&s, one, &page(1));
        let other = write(&s, two, &page(2));
        let new = write(&s, one, &page(3));
        assert_eq!(read(&s, &new, &other.bytes), Err(Wrong));
        assert_eq!(read(&s, &new, &old.bytes), Err(Wrong));
        // Torn, at each sector.
        for cut in (512..PAGE_SIZE).step_by(512) {
            let mut torn = old.bytes;
            torn[..cut].copy_from_slice(&new.bytes[..cut]);
            assert_eq!(read(&s, &new, &torn), Err(Wrong), "{cut}");
            assert_eq!(read(&s, &old, &torn), Err(Wrong), "{cut}");
        }
        assert_eq!(read(&s, &new, &[0; PAGE_SIZE]), Err(Wrong));
        assert_eq!(read(&s, &new, &new.bytes), Ok(page(3)));
    }
}

/// With encryption not even the same bytes are accepted from elsewhere, and nobody sees that they are.
#[test]
fn equal_pages_do_not_look_equal() {
    let s = Sealer::new(Mode::Encrypt).unwrap();
    let one = write(&s, at(0, 1), &page(5));
    let again = write(&s, at(0, 1), &page(5));
    let two = write(&s, at(0, 2), &page(5));
    // As pages of one write have one nonce.
    let mut beside = two.clone();
    beside.nonce = one.nonce;
    beside.tag = s.seal(&page(5), &mut beside.bytes, beside.at, beside.nonce);
    let all = [&one, &again, &two, &beside];
    for (i, a) in all.iter().enumerate() {
        for (j, b) in all.iter().enumerate() {
            assert_eq!(a.bytes == b.bytes, i == j);
            assert_eq!(read(&s, a, &b.bytes).is_ok(), i == j);
        }
    }
}

#[test]
fn nothing_opens_what_was_never_sealed() {
    for mode in MODES {
        let s = Sealer::new(mode).unwrap();
        let key = s.keys.get(0);
        let mut bytes = page(1);
        let tag = seal(mode, &key, at(0, 0), Nonce::NONE, &page(1), &mut bytes);
        let r = open(mode, &key, at(0, 0), Nonce::NONE, &tag, &mut bytes);
        assert_eq!(r, Err(Wrong));
    }
}

#[test]
fn unchanged_pages_are_known() {
    for mode in MODES {
        let s = Sealer::new(mode).unwrap();
        let slot = write(&s, at(0, 4), &page(1));
        let mut scratch = [0; PAGE_SIZE];
        let same =
            |p: &Page, scratch: &mut Page| s.is_same(p, scratch, slot.at, slot.nonce, &slot.tag);
        assert!(same(&page(1), &mut scratch));
        let mut changed = page(1);
        changed[4095] ^= 0x80;
        assert!(!same(&changed, &mut scratch));
    }
}

/// As a fork does it, with the second ring for the child's copy of the memory.
fn fork(parent: &Sealer) -> Sealer {
    parent.keys.fork_prepare(|_| ()).unwrap();
    let child = Sealer {
        mode: parent.mode,
        keys: parent.keys.copied(),
    };
    parent.keys.fork_parent();
    child.keys.fork_child();
    child
}

#[test]
fn a_fork_parts_the_keys() {
    for mode in MODES {
        let parent = Sealer::new(mode).unwrap();
        let before = write(&parent, at(0, 1), &page(1));
        let child = fork(&parent);
        let (ours, theirs) = (
            write(&parent, at(0, 2), &page(2)),
            write(&child, at(0, 3), &page(3)),
        );
        // What was there at the fork both have.
        for s in [&parent, &child] {
            assert_eq!(read(s, &before, &before.bytes), Ok(page(1)));
        }
        assert_eq!(read(&parent, &ours, &ours.bytes), Ok(page(2)));
        assert_eq!(read(&child, &theirs, &theirs.bytes), Ok(page(3)));
        assert_eq!(read(&child, &ours, &ours.bytes), Err(Wrong));
        assert_eq!(read(&parent, &theirs, &theirs.bytes), Err(Wrong));
        let grandchild = fork(&child);
        assert_eq!(read(&grandchild, &theirs, &theirs.bytes), Ok(page(3)));
        assert_eq!(read(&grandchild, &before, &before.bytes), Ok(page(1)));
        assert_eq!(read(&grandchild, &ours, &ours.bytes), Err(Wrong));
        let later = write(&grandchild, at(0, 4), &page(4));
        for s in [&parent, &child] {
            assert_eq!(read(s, &later, &later.bytes), Err(Wrong));
        }
    }
}

/// Forks without writes between them need no place in the ring; and of those that do, what nothing is
/// sealed with any more is used again.
#[test]
fn the_ring_does_not_fill_up() {
    let s = Sealer::new(Mode::Check).unwrap();
    for _ in 0..3 {
        s.keys.fork_prepare(|_| panic!("there is room")).unwrap();
        s.keys.fork_parent();
    }
    let kept = write(&s, at(0, 0), &page(9));
    assert_eq!(kept.nonce.generation(), 0);
    let mut swept = 0;
    for i in 0..GENERATIONS + 10 {
        let used = |mark: &mut dyn FnMut(Nonce)| {
            swept += 1;
            mark(kept.nonce);
        };
        s.keys.fork_prepare(used).unwrap();
        s.keys.fork_parent();
        assert_ne!(s.keys.nonce().unwrap().generation(), 0, "{i}");
    }
    assert!(swept > 0);
    assert_eq!(read(&s, &kept, &kept.bytes), Ok(page(9)));
    // When all are in use there is no fork.
    let all = |mark: &mut dyn FnMut(Nonce)| {
        (0..GENERATIONS).for_each(|g| mark(Nonce::new(g, 1).unwrap()));
    };
    assert_eq!(s.keys.fork_prepare(all).err(), Some(Errno(libc::EAGAIN)));
}

#[test]
fn the_supervisor_can_open_the_copy_and_nobody_else() {
    let parent = Sealer::new(Mode::Encrypt).unwrap();
    let before = write(&parent, at(0, 1), &page(1));
    let child = fork(&parent);
    let theirs = write(&child, at(0, 2), &page(2));
    let copy = child.keys.wrapped_of(before.nonce.generation());
    let key = child.keys.unwrap().unwrap(&copy, 0).unwrap();
    let mut bytes = before.bytes;
    let opened = open(
        Mode::Encrypt,
        &key,
        before.at,
        before.nonce,
        &before.tag,
        &mut bytes,
    );
    assert_eq!((opened, bytes), (Ok(()), page(1)));
    let generation = theirs.nonce.generation();
    let copy = child.keys.wrapped_of(generation);
    assert!(child.keys.unwrap().unwrap(&copy, generation).is_some());
    assert!(child.keys.unwrap().unwrap(&copy, 0).is_none());
    assert!(parent.keys.unwrap().unwrap(&copy, generation).is_none());
    assert!(Unwrap([0; 2]).unwrap(&copy, generation).is_none());
}

#[test]
fn the_ring_is_in_no_core_file() {
    let keys = Keys::new().unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let flags_of = |at: usize| {
        let mut inside = false;
        smaps.lines().find_map(|line| {
            let first = line.split_whitespace().next().unwrap_or("");
            if let Some((start, end)) = first.split_once('-') {
                let hex = |s| usize::from_str_radix(s, 16);
                if let (Ok(start), Ok(end)) = (hex(start), hex(end)) {
                    inside = (start..end).contains(&at);
                }
            }
            (inside && first == "VmFlags:").then(|| line.to_owned())
        })
    };
    let [secret, parent] = keys.hidden();
    for at in [secret, parent] {
        assert!(flags_of(at).unwrap().contains(" dd"), "{:?}", flags_of(at));
    }
    assert!(flags_of(parent).unwrap().contains(" wf"));
    assert!(!flags_of(keys.wrapped()).unwrap().contains(" dd"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is done to the disk: what is read is what was written last, or nothing.
    #[test]
    fn a_disk_can_only_lose(ops in proptest::collection::vec((0u8..6, 0usize..8, 0usize..8, any::<u16>()), 1..60)) {
        for mode in MODES {
            let s = Sealer::new(mode).unwrap();
            let mut disk: Vec<Page> = vec![[0; PAGE_SIZE]; 8];
            let mut known: Vec<Option<(Slot, Page)>> = vec![None; 8];
            let mut old = Vec::new();
            for &(op, i, j, n) in &ops {
                match op {
                    0 | 1 => {
                        let content = page(n as u8);
                        let slot = write(&s, at(0, i as u64), &content);
                        old.push(disk[i]);
                        disk[i] = slot.bytes;
                        known[i] = Some((slot, content));
                    }
                    2 => disk.swap(i, j),
                    3 => disk[i][usize::from(n) % PAGE_SIZE] ^= 1 << (n % 8),
                    4 => {
                        if let Some(was) = old.get(usize::from(n) % old.len().max(1)) {
                            disk[i] = *was;
                        }
                    }
                    _ => {
                        let cut = usize::from(n) % PAGE_SIZE;
                        let from = disk[j];
                        disk[i][..cut].copy_from_slice(&from[..cut]);
                    }
                }
                for (slot, disk) in known.iter().zip(&disk) {
                    let Some((slot, content)) = slot else { continue };
                    match read(&s, slot, disk) {
                        Ok(got) => prop_assert!(got == *content),
                        Err(Wrong) => prop_assert!(*disk != slot.bytes),
                    }
                }
            }
        }
    }
}

/// `cargo test --release -p hugeswap-seal -- --ignored --nocapture cost_of_sealing`
#[test]
#[ignore = "measures"]
fn cost_of_sealing() {
    // As large as no cache.
    let mut memory = vec![page(3); 8192];
    let mut scratch = vec![[0; PAGE_SIZE]; 512];
    for mode in MODES {
        let s = Sealer::new(mode).unwrap();
        let nonce = s.keys.nonce().unwrap();
        let mut tags = vec![Tag::default(); memory.len()];
        let (mut down, mut up) = (u128::MAX, u128::MAX);
        for _ in 0..30 {
            memory.fill(page(3));
            let start = std::time::Instant::now();
            for (i, p) in memory.iter().enumerate() {
                tags[i] = s.seal(p, &mut scratch[i % 512], at(0, i as u64), nonce);
            }
            down = down.min(start.elapsed().as_nanos());
            if mode == Mode::Encrypt {
                for (i, p) in memory.iter_mut().enumerate() {
                    let plain = *p;
                    s.seal(&plain, p, at(0, i as u64), nonce);
                }
            }
            let start = std::time::Instant::now();
            for (i, p) in memory.iter_mut().enumerate() {
                s.open(p, at(0, i as u64), nonce, &tags[i]).unwrap();
            }
            up = up.min(start.elapsed().as_nanos());
        }
        let n = memory.len() as u128;
        println!("{mode:?}: seal {} ns, open {} ns a page", down / n, up / n);
    }
}
