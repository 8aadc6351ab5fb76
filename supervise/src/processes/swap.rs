//! Swap goes to members, and comes back from them.

use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugeswap_control::{Answer, DeviceEntry, MAX_DEVICES};

use super::loans;
use super::{Member, Processes};
use crate::devices::Total;
use crate::life::{Id, Stage};

/// Who lacks swap waits so long for what others have to spare.
const PATIENCE: Duration = Duration::from_secs(1);
/// So long they keep nothing to spare.
const SCARCE: Duration = Duration::from_secs(2);

/// Some process lacks swap that others have to spare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scarce {
    since: Instant,
    until: Instant,
}

impl Scarce {
    /// After a round in which somebody lacked some, or got some. Patience begins anew when somebody has got some.
    fn after(before: Option<Scarce>, now: Instant, lacking: bool, granted: bool) -> Option<Scarce> {
        match before {
            Some(s) if lacking || now < s.until => Some(Scarce {
                since: if granted { now } else { s.since },
                until: if lacking { now + SCARCE } else { s.until },
            }),
            _ => lacking.then(|| Scarce {
                since: now,
                until: now + SCARCE,
            }),
        }
    }
}

impl Processes {
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
        let can_spare = |by: Id, d: usize| {
            let mut others = self.members.iter().filter(|(&id, _)| id != by && live(&id));
            others.any(|(_, m)| m.page().spare_clusters[d].load(Acquire) > 0)
        };
        let now = Instant::now();
        let patient = self.scarce.is_none_or(|s| now - s.since < PATIENCE);
        let (mut lacking, mut granted) = (false, false);
        for (&id, m) in self.members.iter().filter(|(id, _)| live(id)) {
            for d in 0..MAX_DEVICES {
                let Some(wish) = m.page().wish(d) else {
                    continue;
                };
                let answer = match owners.grant(d, id) {
                    Some(grant) => Answer::Granted(grant),
                    None if owners.is_settling(d) => continue,
                    // Others give it back, now that they hear of it.
                    None if patient && can_spare(id, d) => {
                        lacking = true;
                        continue;
                    }
                    None => {
                        self.sweeps.hurry();
                        Answer::Nothing
                    }
                };
                granted |= matches!(answer, Answer::Granted(_));
                m.page().answer(d, wish, answer);
                loans::wake(m);
            }
        }
        drop(owners);
        swap.settle();
        self.tell_scarce(now, lacking, granted);
    }

    /// Has processes give back what they have to spare, as long as others lack it, and a while longer.
    fn tell_scarce(&mut self, now: Instant, lacking: bool, granted: bool) {
        if self.scarce.is_none() && !lacking {
            return;
        }
        self.scarce = Scarce::after(self.scarce, now, lacking, granted);
        for m in self.members.values() {
            let scarce = u32::from(self.scarce.is_some());
            if m.page().swap_is_scarce.swap(scarce, AcqRel) < scarce {
                loans::wake(m);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_where_nothing_comes_of_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(Scarce::after(None, at(0), false, true), None);
        let s = Scarce::after(None, at(0), true, false);
        let s = Scarce::after(s, at(900), true, false);
        assert_eq!(s.map(|s| (s.since, s.until)), Some((at(0), at(2900))));
        // A round in which nobody asks is no success.
        let s = Scarce::after(s, at(1000), false, false);
        assert_eq!(s.map(|s| s.since), Some(at(0)));
        let s = Scarce::after(s, at(1100), false, true);
        assert_eq!(s.map(|s| (s.since, s.until)), Some((at(1100), at(2900))));
        assert_eq!(Scarce::after(s, at(2900), false, false), None);
    }
}
