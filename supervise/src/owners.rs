//! Whose each cluster of swap is. Nobody but the supervisor knows, so a process that dies has nothing to say.
//!
//! | owner | meaning | becomes |
//! |---|---|---|
//! | Nobody | free, nothing on the disk | Image (a wish is granted) |
//! | Discard | free, its space not given back yet | Image, Discarding |
//! | Discarding | its space is being given back | Nobody |
//! | Image | an image's | Discard (that image gives it back, or is dead and no request of it can come there) |

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hugeswap_control::{Grant, SEGMENT_CLUSTERS};
use hugeswap_mm::PMD_SIZE;

use super::devices::Total;
use super::life::Id;

/// Of what is free a process gets one part in so many at a time, but no more than a segment: so the
/// last of it does not lie with one while others want it.
const SHARE: usize = 4;
/// Clusters whose space is given back at once: 1 GiB at most, and one part in so many of what is free. Nobody
/// can have them meanwhile, and a file system may wait with it for writes in flight anywhere in the file.
const DISCARD_MOST: usize = 512;
const DISCARD_SHARE: usize = 16;
/// A wish waits so long for space that is being given back.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Nobody,
    Discard,
    Discarding,
    Image(Id),
}

impl Owner {
    fn is_free(self) -> bool {
        matches!(self, Owner::Nobody | Owner::Discard)
    }
}

struct Device {
    /// It is under the total of the run.
    shares: bool,
    clusters: Vec<Owner>,
    /// How many of each segment are free.
    free: Vec<u8>,
    all_free: usize,
    taken: usize,
    /// How many are to be discarded, and none of these lies below the other.
    discards: usize,
    first_discard: usize,
    discarding_since: Option<Instant>,
}

pub struct Owners {
    devices: Vec<Device>,
    /// What may be granted yet of those that share the run's total.
    left: usize,
}

impl Device {
    fn new(segments: usize, shares: bool) -> Device {
        Device {
            shares,
            clusters: vec![Owner::Nobody; segments * SEGMENT_CLUSTERS],
            free: vec![SEGMENT_CLUSTERS as u8; segments],
            all_free: segments * SEGMENT_CLUSTERS,
            taken: 0,
            discards: 0,
            first_discard: 0,
            discarding_since: None,
        }
    }

    fn set(&mut self, cluster: usize, to: Owner) {
        let from = std::mem::replace(&mut self.clusters[cluster], to);
        let free = &mut self.free[cluster / SEGMENT_CLUSTERS];
        if from.is_free() {
            *free -= 1;
            self.all_free -= 1;
        }
        if to.is_free() {
            *free += 1;
            self.all_free += 1;
        }
        self.taken -= usize::from(matches!(from, Owner::Image(_)));
        self.taken += usize::from(matches!(to, Owner::Image(_)));
        self.discards -= usize::from(from == Owner::Discard);
        if to == Owner::Discard {
            self.discards += 1;
            self.first_discard = self.first_discard.min(cluster);
        }
    }
}

impl Owners {
    /// For devices of so many segments, and whether they share the run's total.
    pub fn new(devices: impl Iterator<Item = (usize, bool)>) -> Owners {
        let device = |(segments, shares)| Device::new(segments, shares);
        Owners {
            devices: devices.map(device).collect(),
            left: usize::MAX,
        }
    }

    /// What may be granted from here on: of `total`, when so many bytes are in swap. Devices that are being
    /// left don't count: what they hold goes to the others.
    pub fn measure(&mut self, total: Total, swapped: u64, is_on: impl Fn(usize) -> bool) {
        let counts = |(n, d): &(usize, &Device)| d.shares && is_on(*n);
        let devices = self.devices.iter().enumerate().filter(counts);
        let taken = devices.map(|(_, d)| (d.taken * PMD_SIZE) as u64).sum();
        let used = match total {
            Total::Given(_) => taken,
            // Memory that is shared after a fork is in swap once.
            Total::Chosen(_) => swapped.min(taken),
            Total::None => 0,
        };
        let left = total.bytes().saturating_sub(used) / PMD_SIZE as u64;
        self.left = left.try_into().unwrap_or(usize::MAX);
    }

    /// Clusters of a device that processes have.
    pub fn taken(&self, device: usize) -> usize {
        self.devices[device].taken
    }

    /// Clusters for an image: of a segment that is all free, or else of one where any are.
    pub fn grant(&mut self, device: usize, to: Id) -> Option<Grant> {
        let d = self.devices.get_mut(device)?;
        let left = if d.shares { self.left } else { usize::MAX };
        if left == 0 {
            return None;
        }
        let whole = |&free: &u8| usize::from(free) == SEGMENT_CLUSTERS;
        let any = |&free: &u8| free > 0;
        let segment = d.free.iter().position(whole);
        let segment = segment.or_else(|| d.free.iter().position(any))?;
        let most = (d.all_free.min(left) / SHARE).clamp(1, SEGMENT_CLUSTERS);
        let first = segment * SEGMENT_CLUSTERS;
        let is_free = |n: &usize| d.clusters[first + n].is_free();
        let given: Vec<usize> = (0..SEGMENT_CLUSTERS).filter(is_free).take(most).collect();
        let mut clusters = 0;
        if d.shares {
            self.left -= given.len();
        }
        for n in given {
            d.set(first + n, Owner::Image(to));
            clusters |= 1 << n;
        }
        Some(Grant { segment, clusters })
    }

    /// Whether something will be free in a moment.
    pub fn is_settling(&self, device: usize) -> bool {
        let since = self.devices.get(device).and_then(|d| d.discarding_since);
        since.is_some_and(|s| s.elapsed() < PATIENCE)
    }

    /// An image gives a cluster back, which it must have.
    pub fn give_back(&mut self, device: usize, cluster: usize, by: Id) {
        let Some(d) = self.devices.get_mut(device) else {
            return;
        };
        if d.clusters.get(cluster) == Some(&Owner::Image(by)) {
            d.set(cluster, Owner::Discard);
        }
    }

    /// Nobody reads what a dead image has in those clusters that `which` names, by device and cluster,
    /// and no request of it can come there.
    pub fn release(&mut self, id: Id, which: impl Fn(usize, usize) -> bool) {
        for (n, d) in self.devices.iter_mut().enumerate() {
            if d.taken == 0 {
                continue;
            }
            for cluster in 0..d.clusters.len() {
                if d.clusters[cluster] == Owner::Image(id) && which(n, cluster) {
                    d.set(cluster, Owner::Discard);
                }
            }
        }
    }

    /// Clusters of a device whose space is to be given back now, neighbours; `discarded` is to follow.
    fn next_discard(&mut self) -> Option<(usize, Range<usize>)> {
        let device = self.devices.iter().position(|d| d.discards > 0)?;
        let d = &mut self.devices[device];
        let wanted = |owner: &Owner| *owner == Owner::Discard;
        let from = d.first_discard;
        let start = from + d.clusters[from..].iter().position(wanted)?;
        let most = (d.all_free / DISCARD_SHARE).clamp(1, DISCARD_MOST);
        let run = d.clusters[start..].iter().take(most);
        let end = start + run.take_while(|o| wanted(o)).count();
        for cluster in start..end {
            d.set(cluster, Owner::Discarding);
        }
        d.first_discard = end;
        d.discarding_since = Some(Instant::now());
        Some((device, start..end))
    }

    fn discarded(&mut self, device: usize, clusters: Range<usize>) {
        let d = &mut self.devices[device];
        d.discarding_since = None;
        for cluster in clusters {
            d.set(cluster, Owner::Nobody);
        }
    }
}

/// The owners, and who gives the space of free clusters back.
pub struct Swap {
    owners: Mutex<Owners>,
    changed: Condvar,
}

impl Swap {
    pub fn new(owners: Owners) -> Arc<Swap> {
        Arc::new(Swap {
            owners: Mutex::new(owners),
            changed: Condvar::new(),
        })
    }

    pub fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// There may be something to discard.
    pub fn settle(&self) {
        self.changed.notify_one();
    }

    /// In a thread of its own, for a device may take its time: has `give_back` return the space of what is
    /// free, and calls `done` each time. Does not end.
    pub fn discard(&self, mut give_back: impl FnMut(usize, Range<usize>), done: impl Fn()) {
        let mut owners = self.owners();
        loop {
            let Some((device, clusters)) = owners.next_discard() else {
                owners = self.changed.wait(owners).unwrap_or_else(|e| e.into_inner());
                continue;
            };
            drop(owners);
            give_back(device, clusters.clone());
            owners = self.owners();
            owners.discarded(device, clusters);
            done();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(g: Grant) -> usize {
        assert_eq!(g.clusters, u16::MAX);
        g.segment
    }

    #[test]
    fn a_cluster_has_one_owner_and_is_discarded_once() {
        let mut o = Owners::new([(40, true), (1, true)].into_iter());
        for seg in 0..36 {
            assert_eq!(all(o.grant(0, seg as Id % 2).unwrap()), seg);
        }
        assert_eq!(o.taken(0), 36 * SEGMENT_CLUSTERS);
        let cluster = |seg: usize| seg * SEGMENT_CLUSTERS;
        let whole = |seg: usize| cluster(seg)..cluster(seg + 1);
        for c in whole(5).chain(whole(6)).chain(whole(9)) {
            o.give_back(0, c, (c / SEGMENT_CLUSTERS) as Id % 2);
        }
        // Not its own.
        o.give_back(0, cluster(7), 0);
        // What waits for its discard can be had.
        assert_eq!(all(o.grant(0, 7).unwrap()), 5);
        let mut seen = Vec::new();
        while let Some((device, clusters)) = o.next_discard() {
            assert_eq!((device, o.is_settling(0)), (0, true));
            assert!(clusters.len() <= 8, "{clusters:?}");
            o.discarded(0, clusters.clone());
            seen.extend(clusters);
        }
        assert!(whole(6).chain(whole(9)).eq(seen));
        assert!(!o.is_settling(0));
        assert_eq!(all(o.grant(0, 7).unwrap()), 6);
        for id in [0, 1, 7] {
            o.release(id, |_, _| true);
        }
        assert_eq!(o.taken(0), 0);
        let mut n = 0;
        while let Some((_, clusters)) = o.next_discard() {
            n += clusters.len();
            o.discarded(0, clusters);
        }
        // One was discarded before, and not used since.
        assert_eq!(n, cluster(35));
    }

    /// One cluster that may still be written to keeps its fifteen neighbours from nobody.
    #[test]
    fn what_a_dead_image_may_reach_is_withheld_alone() {
        let mut o = Owners::new([(1, true)].into_iter());
        let mut have = 0u16;
        while let Some(g) = o.grant(0, 3) {
            assert_eq!(have & g.clusters, 0);
            have |= g.clusters;
        }
        assert_eq!(have, u16::MAX);
        o.release(3, |_, cluster| cluster != 9);
        assert_eq!(o.taken(0), 1);
        let mut got = 0;
        while let Some(g) = o.grant(0, 4) {
            got |= g.clusters;
        }
        assert_eq!(got, !(1 << 9));
        o.release(3, |_, _| true);
        assert_eq!(o.grant(0, 5).unwrap().clusters, 1 << 9);
    }

    #[test]
    fn the_last_of_it_is_shared() {
        let mut o = Owners::new([(4, true)].into_iter());
        let mut each = Vec::new();
        for turn in 0.. {
            let Some(g) = o.grant(0, turn % 2) else {
                break;
            };
            each.push(g.clusters.count_ones());
        }
        assert_eq!(each[0], 16);
        assert!(
            each.is_sorted_by(|a, b| a >= b) && each.len() > 8,
            "{each:?}"
        );
        assert_eq!(each.iter().sum::<u32>(), 64);
    }

    /// The total is for all that share it, wherever there is room; a device that is being left does not count.
    #[test]
    fn a_total_is_for_all_that_share_it() {
        let megabytes = |n: u64| n << 20;
        let total = Total::Given(megabytes(64));
        let mut o = Owners::new([(1, true), (4, true), (1, false)].into_iter());
        let take = |o: &mut Owners, device, leaves: usize| -> u32 {
            let mut n = 0;
            loop {
                o.measure(total, 0, |d| d != leaves);
                match o.grant(device, 1) {
                    Some(g) => n += g.clusters.count_ones(),
                    None => return n,
                }
            }
        };
        assert_eq!(take(&mut o, 0, 9), 16);
        // 32 MiB are left, of four times as much.
        assert_eq!(take(&mut o, 1, 9), 16);
        assert_eq!(take(&mut o, 2, 9), 16);
        assert_eq!(take(&mut o, 1, 9), 0);
        // What the first holds can go to the second.
        assert_eq!(take(&mut o, 1, 0), 16);
        // What was chosen bounds what is swapped out, whatever of the devices that takes.
        o.measure(Total::Chosen(megabytes(64)), megabytes(60), |_| true);
        assert!(o.grant(1, 2).is_some());
        o.measure(Total::Chosen(megabytes(64)), megabytes(64), |_| true);
        assert_eq!(o.grant(1, 2), None);
    }
}
