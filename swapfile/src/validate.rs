//! The whole state of a shard, checked against itself.

use super::bitmap::Bitmap;
use super::cluster::{ClusterInfo, ClusterState, TOP_EMPTY};
use super::lists::{list_of, Algorithm};
use super::shard::Shard;
use hugeswap_mm::SWAPFILE_CLUSTER;

impl Shard {
    /// `Err` with what is wrong and with which cluster.
    pub fn validate(&self) -> Result<(), (&'static str, Option<u32>)> {
        let mut linked = vec![0u8; self.nr_clusters as usize];
        let mut outside = false;
        self.lists
            .validate(&self.clusters, |idx| match linked.get_mut(idx as usize) {
                Some(times) => *times = times.saturating_add(1),
                None => outside = true,
            })
            .map_err(|what| (what, None))?;
        if outside {
            return Err(("cluster past the end is on a list", None));
        }
        let (mut used, mut bad, mut discarding, mut untouched) = (0, 0, 0, 0);
        for idx in 0..self.nr_clusters {
            let ci = &self.clusters[idx as usize];
            self.validate_cluster(idx, ci)
                .and_then(|()| {
                    let times = u8::from(list_of(self.algorithm, ci) != 0);
                    if linked[idx as usize] == times {
                        Ok(())
                    } else {
                        Err("cluster is on no list, or on more than one")
                    }
                })
                .map_err(|what| (what, Some(idx)))?;
            used += u64::from(ci.count);
            bad += u64::from(ci.bad);
            match ci.state {
                ClusterState::Discarding => discarding += ci.free_slots() as u64,
                ClusterState::Untouched => untouched += 1,
                _ => {}
            }
        }
        if self.nr_offline != 0 && !self.segmented || self.nr_untouched != 0 && self.segmented {
            return Err((
                "clusters are offline on a device that is not in segments",
                None,
            ));
        }
        if (used, bad, discarding) != (self.used, self.bad, self.discarding) {
            return Err(("counts of slots don't add up", None));
        }
        if untouched != self.nr_untouched + self.nr_offline {
            return Err(("count of untouched clusters is wrong", None));
        }
        Ok(())
    }

    fn validate_cluster(&self, idx: u32, ci: &ClusterInfo) -> Result<(), &'static str> {
        if ci.list != list_of(self.algorithm, ci) {
            return Err("list does not follow from state, order and top");
        }
        let taken = ci.held.zip(&ci.cached, |held, cached| held | cached);
        if taken.zip(&ci.used, |taken, used| taken & !used) != Bitmap::EMPTY {
            return Err("slot has users or is cached, but is not in use");
        }
        if taken.count() != u32::from(ci.count) {
            return Err("count of slots in use is wrong");
        }
        if ci.bad_slots().count() != u32::from(ci.bad) {
            return Err("count of bad slots is wrong");
        }
        if ci.state == ClusterState::Untouched {
            return if ci.used == Bitmap::EMPTY && ci.marked == 0 {
                Ok(())
            } else {
                Err("untouched cluster was touched")
            };
        }
        let top = ci.used.largest_block().map_or(0, |order| order + 1);
        if ci.state != ClusterState::Discarding && ci.top != top {
            return Err("largest free block is wrong");
        }
        let words = idx as usize * SWAPFILE_CLUSTER;
        let words = &self.swap_map[words..words + SWAPFILE_CLUSTER];
        let mut marked = 0;
        for (offset, &word) in words.iter().enumerate().filter(|(_, &word)| word != 0) {
            marked += 1;
            if !taken.get(offset) {
                return Err("slot without users has a count");
            }
            if word & !super::refs::BAD_ONCE_FREE != 0 && !ci.held.get(offset) {
                return Err("slot has a second user but no first");
            }
        }
        if marked != ci.marked {
            return Err("count of marked slots is wrong");
        }
        let fits = match ci.state {
            ClusterState::Untouched => true,
            ClusterState::Free | ClusterState::Discard => ci.is_empty() && top == TOP_EMPTY,
            ClusterState::Discarding => ci.count == 0,
            ClusterState::Full => top == 0,
            ClusterState::Nonfull => {
                !ci.is_empty() && (top > ci.order || self.algorithm == Algorithm::Linux612)
            }
            ClusterState::Frag => {
                !ci.is_empty()
                    && (top >= 1)
                    && (top <= ci.order || self.algorithm == Algorithm::Linux612)
            }
        };
        if fits {
            Ok(())
        } else {
            Err("state does not follow from the content")
        }
    }
}
