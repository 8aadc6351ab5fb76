//! Swap goes to members, and comes back from them.

use std::sync::Arc;

use hugeswap_control::{Answer, DeviceEntry, MAX_DEVICES};

use super::loans;
use super::{Member, Processes};
use crate::devices::Total;
use crate::life::{Id, Stage};

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
