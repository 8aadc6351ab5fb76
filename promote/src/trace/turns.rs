//! Which processors are watched. To watch one costs something whether it reads or not, so only
//! some are watched at a time: those that were seen to read, those that are busy, and of the rest
//! a few; within each kind those come first that have waited longest.

use std::collections::HashMap;

/// Processors that are watched at once.
pub const AT_ONCE: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The turn in which it was watched last; 0 is never.
    turn: u64,
    /// It has read then.
    reads: bool,
}

#[derive(Debug, Default)]
pub struct Turns {
    turn: u64,
    known: HashMap<u32, Known>,
}

impl Turns {
    /// Processors for the turn that begins, in ascending order.
    pub fn choose(&mut self, online: &[u32], busy: &[u32]) -> Vec<u32> {
        self.turn += 1;
        let known = |cpu: u32| self.known.get(&cpu).copied().unwrap_or_default();
        let (mut reading, mut working, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for &cpu in online {
            match (known(cpu).reads, busy.contains(&cpu)) {
                (true, _) => &mut reading,
                (false, true) => &mut working,
                (false, false) => &mut rest,
            }
            .push(cpu);
        }
        let kinds = [reading, working, rest].map(|mut cpus: Vec<u32>| {
            cpus.sort_by_key(|&cpu| known(cpu).turn);
            cpus.into_iter()
        });
        let mut chosen: Vec<u32> = Vec::new();
        let [mut reading, mut working, mut rest] = kinds;
        chosen.extend(reading.by_ref().take(AT_ONCE / 2));
        chosen.extend(working.by_ref().take(AT_ONCE / 4));
        chosen.extend(rest.by_ref().take(AT_ONCE / 4));
        let more = AT_ONCE.saturating_sub(chosen.len());
        chosen.extend(reading.chain(working).chain(rest).take(more));
        chosen.sort_unstable();
        for &cpu in &chosen {
            self.known.entry(cpu).or_default().turn = self.turn;
        }
        chosen
    }

    /// What a processor's turn has brought.
    pub fn learn(&mut self, cpu: u32, reads: bool) {
        self.known.entry(cpu).or_default().reads = reads;
    }
}

/// Time that each processor has worked so far, from `/proc/stat`: all but idle and waiting.
pub fn worked(stat: &str) -> Vec<(u32, u64)> {
    let of = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        let cpu = words.next()?.parse().ok()?;
        let times: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        // User, nice, system, idle, waiting for a disk, interrupts; guests are in user.
        let idle = times.get(3)? + times.get(4).unwrap_or(&0);
        Some((cpu, times.iter().take(8).sum::<u64>() - idle))
    };
    // The first line is the sum of all.
    let lines = stat.lines().filter(|line| !line.starts_with("cpu "));
    lines
        .take_while(|line| line.starts_with("cpu"))
        .filter_map(of)
        .collect()
}

/// Those that have worked for a tenth of a second at least since `before`; ascending.
pub fn busy(before: &[(u32, u64)], now: &[(u32, u64)]) -> Vec<u32> {
    /// Hundredths of a second.
    const ENOUGH: u64 = 10;
    let before: HashMap<u32, u64> = before.iter().copied().collect();
    let worked = |&&(cpu, time): &&(u32, u64)| {
        let before = before.get(&cpu).copied().unwrap_or(time);
        time.saturating_sub(before) >= ENOUGH
    };
    now.iter().filter(worked).map(|&(cpu, _)| cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns until a reader on `cpu` was met, with so many processors.
    fn meets(cpus: u32, cpu: u32, busy: &[u32]) -> usize {
        let online: Vec<u32> = (0..cpus).collect();
        let mut turns = Turns::default();
        for turn in 1.. {
            let chosen = turns.choose(&online, busy);
            assert!(chosen.len() <= AT_ONCE);
            assert!(turn < 1000, "never");
            if chosen.contains(&cpu) {
                return turn;
            }
        }
        unreachable!()
    }

    #[test]
    fn few_are_all_watched() {
        for cpus in 1..=AT_ONCE as u32 {
            let online: Vec<u32> = (0..cpus).collect();
            let mut turns = Turns::default();
            for _ in 0..5 {
                assert_eq!(turns.choose(&online, &[0]), online);
                turns.learn(0, true);
            }
        }
    }

    #[test]
    fn of_many_a_busy_one_is_met_at_once_and_each_in_turn() {
        for cpus in [16, 32, 64, 128, 512] {
            assert_eq!(meets(cpus, cpus - 1, &[cpus - 1]), 1);
            assert!(meets(cpus, cpus - 1, &[]) <= cpus as usize / AT_ONCE);
            // All others are busy: it takes longer, but it comes.
            let others: Vec<u32> = (0..cpus - 1).collect();
            assert!(meets(cpus, cpus - 1, &others) <= cpus as usize);
        }
    }

    #[test]
    fn readers_are_kept_and_take_turns() {
        let online: Vec<u32> = (0..128).collect();
        let mut turns = Turns::default();
        for cpu in 40..50 {
            turns.learn(cpu, true);
        }
        let mut seen = HashMap::new();
        for _ in 0..100 {
            let chosen = turns.choose(&online, &[]);
            assert_eq!(chosen.len(), AT_ONCE);
            for cpu in chosen {
                *seen.entry(cpu).or_insert(0) += 1;
                turns.learn(cpu, (40..50).contains(&cpu));
            }
        }
        for cpu in 40..50 {
            assert!(seen[&cpu] >= 39, "{cpu}: {}", seen[&cpu]);
        }
        assert_eq!(seen.len(), 128, "the others have their turns too");
    }

    #[test]
    fn busy_is_who_has_worked() {
        let before = worked("cpu  9 9 9 9\ncpu0 1 0 1 90 5 0 0 0 0 0\ncpu12 5 0 5 10\nintr 4 5\n");
        assert_eq!(before, [(0, 2), (12, 10)]);
        let now =
            worked("cpu  9 9 9 9\ncpu0 3 0 4 190 50 0 0 0 0 0\ncpu12 5 0 15 10\ncpu13 90 0 0 0\n");
        assert_eq!(
            busy(&before, &now),
            [12],
            "one that is new has nothing to compare with"
        );
        assert!(worked("cpu\ncpux 1\ncpu1 1 2\n").is_empty());
    }
}
