//! What the workers do to their memory. Pure: timing is the worker's.

/// A workload: its name is that of the subcommand.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    /// One pass over the words; rounds count from 0. The words are zero before
    /// round 0.
    pub round: fn(words: &mut [u64], round: u64) -> Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub bytes: u64,
    /// Words that did not hold what the round before had left there.
    pub errors: u64,
}

/// vm-scalability's case-swap-w-seq: `usemem` writes the index into each word
/// and verifies the former value from the second round on. Here the round is
/// added, so that a page that is one round old shows.
pub const SWAP_W_SEQ: Workload = Workload {
    name: "swap-w-seq",
    round: write_sequentially,
};

pub const ALL: &[&Workload] = &[&SWAP_W_SEQ];

pub fn by_name(name: &str) -> Option<&'static Workload> {
    ALL.iter().copied().find(|workload| workload.name == name)
}

fn write_sequentially(words: &mut [u64], round: u64) -> Done {
    let mut errors = 0;
    // Two loops, so that the first round does not read.
    if round == 0 {
        for (index, word) in (0u64..).zip(words.iter_mut()) {
            *word = index;
        }
    } else {
        for (value, word) in (round..).zip(words.iter_mut()) {
            errors += u64::from(*word != value - 1);
            *word = value;
        }
    }
    Done {
        bytes: size_of_val(words) as u64,
        errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_verifies_itself() {
        for workload in ALL {
            let mut words = vec![0; 5000];
            for round in 0..4 {
                let done = (workload.round)(&mut words, round);
                assert_eq!(done.errors, 0, "{} round {round}", workload.name);
                assert_eq!(done.bytes, 40000);
            }
            words[17] = 0;
            assert!(
                (workload.round)(&mut words, 4).errors > 0,
                "{}",
                workload.name
            );
        }
    }

    #[test]
    fn an_old_page_shows() {
        let mut words = vec![0; 1024];
        write_sequentially(&mut words, 0);
        let old = words[..512].to_vec();
        write_sequentially(&mut words, 1);
        words[..512].copy_from_slice(&old);
        assert_eq!(write_sequentially(&mut words, 2).errors, 512);
    }

    #[test]
    fn names_are_unique() {
        for workload in ALL {
            let same = ALL.iter().filter(|other| other.name == workload.name);
            assert_eq!(same.count(), 1, "{}", workload.name);
            assert!(by_name(workload.name).is_some());
        }
        assert!(by_name("swap-none").is_none());
    }
}
