//! Groups of a run's processes: each has a limit of its own within that of the group that it was made in, and counters
//! of its own, as memory groups of the kernel have.
//!
//! A process belongs to the group whose secret its program was started with, and so do its children, as the secret
//! is inherited with the environment. The run itself is the first group.

use hugeswap_control::link::{GroupName, Secret};
use hugeswap_control::stats::Stats;
use hugeswap_mm::PAGE_SIZE;
use hugeswap_sys::thread::random;
use hugeswap_sys::Errno;

use hugeswap_host::sizing::LEAST_MEMORY;

/// The group that all processes of a run belong to.
pub const RUN: usize = 0;

/// Of a group that has no limit of its own.
pub const UNLIMITED: u64 = u64::MAX;

/// So many, with the run: counters of all are kept until it ends.
const MOST: usize = 256;
/// Groups that one may be within, with the run.
const DEEPEST: usize = 8;
/// Looks at what a group takes beside managed memory that count: the largest of them does.
const KEPT: usize = 8;

pub struct Groups {
    /// Each stands behind the one that it is within.
    all: Vec<Group>,
}

struct Group {
    name: String,
    within: usize,
    secret: Secret,
    /// For all of it.
    bytes: u64,
    /// Pages for what is managed.
    pages: i64,
    outside: [u64; KEPT],
    looks: usize,
    /// Counters of its own images that are gone.
    past: Box<Stats>,
}

impl Group {
    fn new(name: String, within: usize, secret: Secret, bytes: u64) -> Group {
        Group {
            name,
            within,
            secret,
            bytes,
            pages: (bytes / PAGE_SIZE as u64) as i64,
            outside: [0; KEPT],
            looks: 0,
            past: Box::default(),
        }
    }

    fn outside(&self) -> u64 {
        self.outside.iter().copied().max().unwrap_or(0)
    }
}

/// What is said of a group.
pub struct Figures {
    /// As a path has it: the names of the groups that it is within come first.
    pub path: String,
    pub bytes: u64,
    pub outside: u64,
    /// That speak.
    pub processes: usize,
}

impl Groups {
    pub fn new(secret: Secret) -> Groups {
        Groups {
            all: vec![Group::new(String::new(), RUN, secret, UNLIMITED)],
        }
    }

    /// Those within the run.
    pub fn numbers(&self) -> std::ops::Range<usize> {
        RUN + 1..self.all.len()
    }

    pub fn of_secret(&self, secret: Secret) -> Option<usize> {
        self.all.iter().position(|g| g.secret == secret)
    }

    /// A group within the one of that secret, or the one of this name that is there, which has this limit from now on.
    pub fn make(&mut self, within: Secret, bytes: u64, name: &GroupName) -> Result<Secret, Errno> {
        let within = self.of_secret(within).ok_or(Errno(libc::EPERM))?;
        let name = core::str::from_utf8(name).map(|n| n.trim_end_matches('\0'));
        let name = name.ok().filter(|n| is_name(n)).ok_or(Errno::EINVAL)?;
        if bytes < LEAST_MEMORY {
            return Err(Errno::EINVAL);
        }
        let same = |g: &&mut Group| g.within == within && g.name == name;
        if let Some(group) = self.all.iter_mut().skip(1).find(same) {
            group.bytes = bytes;
            return Ok(group.secret);
        }
        if self.all.len() == MOST {
            return Err(Errno(libc::EUSERS));
        }
        if self.ancestors(within).count() == DEEPEST {
            return Err(Errno(libc::ELOOP));
        }
        let secret = [random(), random()];
        let group = Group::new(name.to_owned(), within, secret, bytes);
        self.all.push(group);
        Ok(secret)
    }

    /// The group and those that it is within; the run is the last.
    pub fn ancestors(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let above = |&g: &usize| (g != RUN).then(|| self.all[g].within);
        core::iter::successors(Some(group), above)
    }

    pub fn is_within(&self, group: usize, outer: usize) -> bool {
        self.ancestors(group).any(|g| g == outer)
    }

    /// Of each group the sum over all that is within it.
    pub fn sums(&self, each: impl Iterator<Item = (usize, i64)>) -> Vec<i64> {
        let mut sums = vec![0; self.all.len()];
        for (group, value) in each {
            self.ancestors(group).for_each(|g| sums[g] += value);
        }
        sums
    }

    /// Those within the run that one of these is in, the inner ones first.
    pub fn in_use(&self, each: impl Iterator<Item = usize>) -> Vec<usize> {
        let nr = self.sums(each.map(|group| (group, 1)));
        self.numbers().rev().filter(|&g| nr[g] > 0).collect()
    }

    pub fn pages(&self, group: usize) -> i64 {
        self.all[group].pages
    }

    /// By how many pages its limit is less than the run's.
    pub fn less_than_run(&self, group: usize) -> i64 {
        (self.pages(RUN) - self.pages(group)).max(0)
    }

    /// Pages for what is managed, of all processes.
    pub fn set_run(&mut self, pages: i64) {
        self.all[RUN].pages = pages;
    }

    /// What the group's processes take beside managed memory, as it was found now, and how much they may have of that.
    pub fn set_outside(&mut self, group: usize, bytes: u64, managed: impl Fn(u64, u64) -> u64) {
        let g = &mut self.all[group];
        g.outside[g.looks % KEPT] = bytes;
        g.looks += 1;
        g.pages = (managed(g.bytes, g.outside()) / PAGE_SIZE as u64) as i64;
    }

    pub fn keep_counters(&self, group: usize, of: &Stats) {
        self.all[group].past.merge_ended(of);
    }

    /// Of images of the group that are gone, and of groups within it.
    pub fn merge_past(&self, group: usize, into: &Stats) {
        for (n, g) in self.all.iter().enumerate() {
            if self.is_within(n, group) {
                into.merge(&g.past);
            }
        }
    }

    /// `processes`: the groups of those that speak.
    pub fn figures(&self, group: usize, processes: impl Iterator<Item = usize>) -> Figures {
        let mut names: Vec<&str> = self
            .ancestors(group)
            .filter(|&g| g != RUN)
            .map(|g| self.all[g].name.as_str())
            .collect();
        names.reverse();
        let g = &self.all[group];
        Figures {
            path: names.join("/"),
            bytes: g.bytes,
            outside: g.outside(),
            processes: processes.filter(|&p| self.is_within(p, group)).count(),
        }
    }
}

/// One that can stand in a path and in a line.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c != '/' && !c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeswap_control::link::group_name;

    const LARGE: u64 = 1 << 30;

    #[test]
    fn groups_are_within_one_another() {
        let mut groups = Groups::new([1, 2]);
        let named = |n: &str| group_name(n).unwrap();
        let a = groups.make([1, 2], LARGE, &named("a")).unwrap();
        let b = groups.make(a, LARGE, &named("b")).unwrap();
        let other = groups.make([1, 2], LARGE, &named("b")).unwrap();
        assert!(a != b && b != other);
        let number = |s| groups.of_secret(s).unwrap();
        let (a_nr, b_nr) = (number(a), number(b));
        assert!(groups.ancestors(b_nr).eq([b_nr, a_nr, RUN]));
        assert_eq!(groups.figures(b_nr, [b_nr, RUN].into_iter()).path, "a/b");
        assert_eq!(groups.figures(a_nr, [b_nr, RUN].into_iter()).processes, 1);
        assert!(groups.is_within(b_nr, a_nr) && !groups.is_within(a_nr, b_nr));
        let sums = groups.sums([(RUN, 1), (a_nr, 10), (b_nr, 100)].into_iter());
        assert_eq!([sums[RUN], sums[a_nr], sums[b_nr]], [111, 110, 100]);
        // The same again is the same group, with another limit.
        assert_eq!(groups.make(a, 2 * LARGE, &named("b")), Ok(b));
        assert_eq!(
            groups.figures(b_nr, [b_nr, RUN].into_iter()).bytes,
            2 * LARGE
        );
        assert_eq!(groups.numbers().len(), 3);
    }

    #[test]
    fn what_makes_no_group() {
        let mut groups = Groups::new([1, 2]);
        let named = |n: &str| group_name(n).unwrap();
        let mut refused =
            |secret, bytes, name: GroupName| groups.make(secret, bytes, &name).unwrap_err().0;
        assert_eq!(refused([1, 3], LARGE, named("a")), libc::EPERM);
        assert_eq!(refused([1, 2], 1, named("a")), libc::EINVAL);
        for odd in ["", "a/b", "a\nb", "a\0b"] {
            assert_eq!(refused([1, 2], LARGE, named(odd)), libc::EINVAL, "{odd:?}");
        }
        assert_eq!(refused([1, 2], LARGE, [0xff; 64]), libc::EINVAL);
        for n in 1..MOST {
            groups.make([1, 2], LARGE, &named(&n.to_string())).unwrap();
        }
        let too_many = groups.make([1, 2], LARGE, &named("more"));
        assert_eq!(too_many.unwrap_err().0, libc::EUSERS);
        assert!(groups.make([1, 2], LARGE, &named("7")).is_ok());
        let mut groups = Groups::new([1, 2]);
        let mut within = [1, 2];
        for _ in 1..DEEPEST {
            within = groups.make(within, LARGE, &named("in")).unwrap();
        }
        let too_deep = groups.make(within, LARGE, &named("in"));
        assert_eq!(too_deep.unwrap_err().0, libc::ELOOP);
        let last = groups.of_secret(within).unwrap();
        assert!(groups.in_use([RUN].into_iter()).is_empty());
        assert!(groups
            .in_use([RUN, last].into_iter())
            .into_iter()
            .eq((1..=last).rev()));
    }

    #[test]
    fn what_is_outside_takes_of_the_limit() {
        let mut groups = Groups::new([1, 2]);
        groups
            .make([1, 2], LARGE, &group_name("a").unwrap())
            .unwrap();
        let left = |limit: u64, outside: u64| limit - outside;
        let page = PAGE_SIZE as u64;
        groups.set_outside(1, 10 * page, left);
        groups.set_outside(1, 2 * page, left);
        let all = (LARGE / page) as i64;
        assert_eq!(groups.pages(1), all - 10);
        (0..KEPT).for_each(|_| groups.set_outside(1, 2 * page, left));
        assert_eq!(groups.pages(1), all - 2);
        groups.set_run(all);
        assert_eq!(groups.less_than_run(1), 2);
    }
}
