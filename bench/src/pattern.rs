//! In which order a workload touches its pages. Pure: the workers and the simulation of reclaim
//! policies go through memory the same way.

/// One kind of movement over the pages `0..pages`.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// From the first to the last, and again.
    Sequential,
    /// Every page of `first..first + len` with the same chance.
    Uniform { first: u64, len: u64 },
    /// The page of rank r with a chance as 1 / r^theta; ranks are scattered over the pages.
    Zipf { theta: f64 },
    /// Every so many pages, downwards if negative; at the end it starts again one page further.
    Stride(i64),
}

/// A step, and how often it touches a page.
pub type Leg = (Step, u64);

/// A workload's movement. `accesses` is what was asked for with `--operations`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    Sequential,
    Uniform,
    Zipf { theta: f64 },
    Stride,
    Phases,
}

/// In pages. As through the columns of tables with rows of 8 to 132 KiB.
const STRIDES: [i64; 5] = [2, -3, 8, -16, 33];
/// Of all pages, the part that is hot at a time.
const HOT_PART: u64 = 4;

impl Pattern {
    /// Accesses in a round where nothing else was asked for.
    pub fn default_accesses(self, pages: u64) -> u64 {
        match self {
            Pattern::Sequential => pages,
            Pattern::Phases => 2 * pages,
            _ => pages / 2,
        }
        .max(1)
    }

    /// The legs of a round: their lengths sum up to `accesses`.
    pub fn legs(self, pages: u64, accesses: u64, round: u64) -> Vec<Leg> {
        let whole = |step| vec![(step, accesses)];
        match self {
            Pattern::Sequential => whole(Step::Sequential),
            Pattern::Uniform => whole(Step::Uniform {
                first: 0,
                len: pages,
            }),
            Pattern::Zipf { theta } => whole(Step::Zipf { theta }),
            Pattern::Stride => {
                let each = accesses / STRIDES.len() as u64;
                let mut legs: Vec<Leg> = STRIDES.map(|s| (Step::Stride(s), each)).into();
                legs[0].1 += accesses - each * STRIDES.len() as u64;
                legs
            }
            Pattern::Phases => {
                let len = (pages / HOT_PART).max(1);
                // Another one each round; never the one that the walk has just left in memory.
                let hot = Step::Uniform {
                    first: (round % (HOT_PART - 1)) * len,
                    len,
                };
                let (walk, random) = (accesses / 2, accesses / 8);
                vec![
                    (Step::Sequential, walk),
                    (
                        Step::Uniform {
                            first: 0,
                            len: pages,
                        },
                        random,
                    ),
                    (hot, accesses - walk - random),
                ]
            }
        }
    }
}

/// Page numbers, leg after leg.
pub struct Pages {
    legs: std::vec::IntoIter<Leg>,
    pages: u64,
    now: Option<Moving>,
    left: u64,
    random: Random,
}

/// A step under way.
enum Moving {
    Sequential { next: u64 },
    Uniform { first: u64, len: u64 },
    Zipf(Zipf),
    Stride { step: i64, start: u64, next: u64 },
}

impl Pages {
    /// `pages` is at least 1. Equal seeds make equal numbers.
    pub fn new(legs: Vec<Leg>, pages: u64, seed: u64) -> Pages {
        let mut new = Pages {
            legs: legs.into_iter(),
            pages,
            now: None,
            left: 0,
            random: Random::new(seed),
        };
        // Here, because making a step can take time that is not to be measured.
        new.begin_leg();
        new
    }

    fn begin_leg(&mut self) -> Option<()> {
        while self.left == 0 {
            let (step, count) = self.legs.next()?;
            self.left = count;
            self.now = Some(Moving::begin(step, self.pages));
        }
        Some(())
    }
}

impl Iterator for Pages {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.begin_leg()?;
        self.left -= 1;
        let pages = self.pages;
        self.now.as_mut().map(|m| m.next(pages, &mut self.random))
    }
}

impl Moving {
    fn begin(step: Step, pages: u64) -> Moving {
        match step {
            Step::Sequential => Moving::Sequential { next: 0 },
            Step::Uniform { first, len } => Moving::Uniform {
                first: first.min(pages - 1),
                len: len.clamp(1, pages - first.min(pages - 1)),
            },
            Step::Zipf { theta } => Moving::Zipf(Zipf::new(pages, theta)),
            Step::Stride(step) => {
                let start = if step < 0 { pages - 1 } else { 0 };
                Moving::Stride {
                    step,
                    start,
                    next: start,
                }
            }
        }
    }

    fn next(&mut self, pages: u64, random: &mut Random) -> u64 {
        match self {
            Moving::Sequential { next } => {
                let page = *next;
                *next = (page + 1) % pages;
                page
            }
            Moving::Uniform { first, len } => *first + random.below(*len),
            Moving::Zipf(zipf) => zipf.next(random),
            Moving::Stride { step, start, next } => {
                let page = *next;
                match page.checked_add_signed(*step) {
                    Some(after) if after < pages => *next = after,
                    _ => {
                        let further = step.signum().rem_euclid(pages as i64) as u64;
                        *start = (*start + further) % pages;
                        *next = *start;
                    }
                }
                page
            }
        }
    }
}

/// Ranks by Gray et al., "Quickly generating billion-record synthetic databases" (1994): exact for
/// the first two, near for the others.
pub struct Zipf {
    pages: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
    scatter: Scatter,
}

impl Zipf {
    /// `theta` between 0 and 1, both excluded.
    pub fn new(pages: u64, theta: f64) -> Zipf {
        let sum = |n: u64| (1..=n).map(|rank| (rank as f64).powf(-theta)).sum::<f64>();
        let zeta = sum(pages);
        Zipf {
            pages,
            theta,
            zeta,
            eta: (1.0 - (2.0 / pages as f64).powf(1.0 - theta)) / (1.0 - sum(2) / zeta),
            scatter: Scatter::new(pages),
        }
    }

    fn rank(&self, chance: f64) -> u64 {
        let at = chance * self.zeta;
        if at < 1.0 {
            return 0;
        }
        if at < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.pages - 1);
        }
        let spread = (self.eta * chance - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
        ((self.pages as f64 * spread) as u64).min(self.pages - 1)
    }

    fn next(&self, random: &mut Random) -> u64 {
        self.scatter.of(self.rank(random.unit()))
    }
}

/// A permutation of `0..n` without a table: a Feistel network over the next power of four, walked
/// on until it lands inside.
pub struct Scatter {
    n: u64,
    half_bits: u32,
}

impl Scatter {
    pub fn new(n: u64) -> Scatter {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Scatter {
            n,
            half_bits: bits.div_ceil(2).max(1),
        }
    }

    pub fn of(&self, index: u64) -> u64 {
        let mut at = index;
        loop {
            at = self.once(at);
            if at < self.n {
                return at;
            }
        }
    }

    fn once(&self, at: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (at >> self.half_bits, at & mask);
        for key in 1..=4u64 {
            (left, right) = (right, left ^ (mix(right + (key << 32)) & mask));
        }
        left << self.half_bits | right
    }
}

/// SplitMix64: Steele, Lea and Flood (2014).
pub struct Random(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    pub fn new(seed: u64) -> Random {
        // Near seeds must not give sequences that are one step apart.
        Random(mix(seed.wrapping_add(1)))
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(n)) >> 64) as u64
    }

    /// From 0 up to, but not, 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pattern: Pattern, pages: u64, accesses: u64, seed: u64) -> Vec<u64> {
        Pages::new(pattern.legs(pages, accesses, 0), pages, seed).collect()
    }

    const ALL: [Pattern; 5] = [
        Pattern::Sequential,
        Pattern::Uniform,
        Pattern::Zipf { theta: 0.99 },
        Pattern::Stride,
        Pattern::Phases,
    ];

    #[test]
    fn as_many_as_asked_for_and_inside() {
        for pattern in ALL {
            for n in [1, 2, 3, 7, 100, 4096, 5000] {
                for round in 0..5 {
                    let legs = pattern.legs(n, 999, round);
                    let got: Vec<u64> = Pages::new(legs, n, 1).collect();
                    assert_eq!(got.len(), 999, "{pattern:?}");
                    assert!(got.iter().all(|p| *p < n), "{pattern:?} over {n}");
                }
            }
        }
    }

    #[test]
    fn a_seed_says_all() {
        for pattern in ALL {
            assert_eq!(pages(pattern, 100, 500, 7), pages(pattern, 100, 500, 7));
        }
        let uniform = |seed| pages(Pattern::Uniform, 1000, 100, seed);
        assert_ne!(uniform(1), uniform(2));
        // Not the same one step later either.
        assert_ne!(uniform(1)[1..], uniform(2)[..99]);
    }

    #[test]
    fn strides_go_both_ways_and_reach_every_page() {
        let walk =
            |step| -> Vec<u64> { Pages::new(vec![(Step::Stride(step), 10)], 10, 1).collect() };
        assert_eq!(walk(3), [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]);
        assert_eq!(walk(-4), [9, 5, 1, 8, 4, 0, 7, 3, 6, 2]);
    }

    #[test]
    fn phases_move_their_hot_set() {
        let hot = |round| Pattern::Phases.legs(100, 1000, round).pop();
        assert_ne!(hot(0), hot(1));
        assert_ne!(hot(1), hot(2));
    }

    #[test]
    fn scatter_is_a_permutation() {
        for n in [1, 2, 3, 100, 1024, 5000] {
            let scatter = Scatter::new(n);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                assert!(!std::mem::replace(&mut seen[scatter.of(i) as usize], true));
            }
        }
        // Neighbours do not stay neighbours.
        let scatter = Scatter::new(5000);
        let near = (0..4999).filter(|i| scatter.of(*i).abs_diff(scatter.of(i + 1)) < 50);
        assert!(near.count() < 500);
    }

    #[test]
    fn zipf_has_its_shape() {
        let (n, theta, draws) = (1000, 0.99, 200_000);
        let zipf = Zipf::new(n, theta);
        let mut random = Random::new(3);
        let mut count = vec![0u32; n as usize];
        for _ in 0..draws {
            count[zipf.rank(random.unit()) as usize] += 1;
        }
        for rank in [0, 1, 9, 99] {
            let expected = draws as f64 / ((rank + 1) as f64).powf(theta) / zipf.zeta;
            let got = f64::from(count[rank]);
            assert!(
                (got / expected - 1.0).abs() < 0.35,
                "{rank}: {got}, {expected}"
            );
        }
        // The hottest tenth takes most.
        let top: u32 = count[..100].iter().sum();
        assert!(f64::from(top) > 0.6 * draws as f64);
    }
}
