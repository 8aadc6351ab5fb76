//! What the daemon's processor time went into. All of it goes somewhere: what was spent since the
//! last entry is entered under what was done.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// What is done in any case: waking, switching events, the machine's state, reports.
    Fixed,
    /// Records: reading them, and finding the files that they name.
    Records,
    /// Finding where pages are.
    Looking,
    Moving,
}

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    spent: [u64; 4],
    at: u64,
}

impl Ledger {
    /// `cpu` is the processor time of the thread until now.
    pub fn new(cpu: u64) -> Ledger {
        Ledger {
            spent: [0; 4],
            at: cpu,
        }
    }

    /// Enters what was spent since the last entry; gives how much that is.
    pub fn enter(&mut self, what: For, cpu: u64) -> u64 {
        let cost = cpu.saturating_sub(self.at);
        self.at = self.at.max(cpu);
        self.spent[what as usize] += cost;
        cost
    }

    pub fn of(&self, what: For) -> u64 {
        self.spent[what as usize]
    }

    pub fn sum(&self) -> u64 {
        self.spent.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_time_is_entered_once() {
        let mut ledger = Ledger::new(100);
        assert_eq!(ledger.enter(For::Looking, 150), 50);
        assert_eq!(ledger.enter(For::Moving, 180), 30);
        assert_eq!(ledger.enter(For::Looking, 181), 1);
        assert_eq!(
            ledger.enter(For::Fixed, 170),
            0,
            "the clock does not go back"
        );
        assert_eq!(ledger.of(For::Looking), 51);
        assert_eq!(ledger.sum(), 81);
    }
}
