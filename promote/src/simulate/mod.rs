//! A model of two tiers, driven by the daemon's own policy.
//!
//! A trace says what is read, and what the machine costs: seconds for so many
//! bytes read from the fast node, from the slow one, for the mechanism's own
//! work on what is read, and for moving. Time is what these add up to.
//! Nothing else is modelled: no bandwidth shared between readers, no caches.
//!
//! Where the trace says what an event costs, the daemon is modelled too: what it samples within its
//! budget, and what it looks at and moves within its credit, beside the reader. Else all accesses
//! are seen, and the reader pays for moving, as with a mechanism in the kernel.

mod machine;
mod watch;

use std::time::Duration;

use crate::page::PAGE;
use crate::policy::Limits;
use machine::Machine;

/// What the trace's lines say.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Bytes come into the page cache on the slow node: a first access.
    Load {
        file: u64,
        bytes: u64,
    },
    /// A file is read from begin to end, so many bytes with each call.
    Read {
        file: u64,
        bytes: u64,
        call: u64,
    },
    /// So many calls at random places.
    Random {
        file: u64,
        bytes: u64,
        call: u64,
        calls: u64,
    },
    Pause(Duration),
    /// A row of the result ends here.
    Round,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing is promoted.
    None,
    /// What is read is promoted, whatever came of it before.
    First,
    /// As the daemon does.
    Second,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demote {
    Lru,
    Cold,
}

/// What the daemon costs, and may cost.
#[derive(Clone, Debug)]
struct Costly {
    /// Nanoseconds: of a hit, of a record, of looking at a page.
    event: f64,
    record: f64,
    look: f64,
    overhead: f64,
    work: f64,
    interval: Duration,
}

impl Default for Costly {
    fn default() -> Costly {
        Costly {
            event: 200.0,
            record: 1700.0,
            look: 300.0,
            overhead: 0.01,
            work: 0.5,
            interval: Duration::from_secs(1),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Trace {
    steps: Vec<Step>,
    /// Nanoseconds for a page.
    fast: f64,
    slow: f64,
    check: f64,
    migrate: f64,
    /// Bytes that the fast node takes.
    room: u64,
    /// Bytes promoted in one second, and in one call.
    rate: Option<u64>,
    per_call: Option<u64>,
    /// The kernel demotes the least recently used to make room, or the daemon what is cold.
    demote: Option<Demote>,
    daemon: Option<Costly>,
    window: Duration,
    choice: Choice,
    /// Seconds of each round, as somebody has measured them.
    pub expect: Vec<f64>,
    /// Bytes of the largest file.
    pub largest: u64,
}

/// One row of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    pub seconds: f64,
    pub promoted: u64,
    pub demoted: u64,
    /// Bytes on the fast node at the end.
    pub fast: u64,
}

impl Trace {
    /// The form is described in docs/promote.md.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let mut trace = Trace {
            steps: Vec::new(),
            fast: f64::NAN,
            slow: f64::NAN,
            check: 0.0,
            migrate: 0.0,
            room: u64::MAX,
            rate: None,
            per_call: None,
            demote: None,
            daemon: None,
            window: Limits::default().window,
            choice: Choice::Second,
            expect: Vec::new(),
            largest: 0,
        };
        let mut loops: Vec<(usize, usize)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let wrong = |what: &str| format!("line {}: {what}: '{}'", number + 1, line.trim());
            match words[..] {
                [] => {}
                ["fast", cost] => trace.fast = per_page(cost).ok_or_else(|| wrong("no cost"))?,
                ["slow", cost] => trace.slow = per_page(cost).ok_or_else(|| wrong("no cost"))?,
                ["check", cost] => trace.check = per_page(cost).ok_or_else(|| wrong("no cost"))?,
                ["migrate", cost] => {
                    trace.migrate = per_page(cost).ok_or_else(|| wrong("no cost"))?;
                }
                ["room", size] => trace.room = bytes(size).ok_or_else(|| wrong("no size"))?,
                ["rate", size] => {
                    trace.rate = Some(bytes(size).ok_or_else(|| wrong("no size"))?);
                }
                ["per-call", size] => {
                    trace.per_call = Some(bytes(size).ok_or_else(|| wrong("no size"))?);
                }
                ["window", time] => {
                    trace.window = span(time).ok_or_else(|| wrong("no time"))?;
                }
                ["demote", "lru"] => trace.demote = Some(Demote::Lru),
                ["demote", "cold"] => trace.demote = Some(Demote::Cold),
                ["event", time] => {
                    trace.costly().event = nanos(time).ok_or_else(|| wrong("no time"))?;
                }
                ["record", time] => {
                    trace.costly().record = nanos(time).ok_or_else(|| wrong("no time"))?;
                }
                ["look", cost] => {
                    trace.costly().look = per_page(cost).ok_or_else(|| wrong("no cost"))?;
                }
                ["interval", time] => {
                    let time = span(time).filter(|time| !time.is_zero());
                    trace.costly().interval = time.ok_or_else(|| wrong("no time"))?;
                }
                ["overhead-budget", share] => {
                    trace.costly().overhead = percent(share).ok_or_else(|| wrong("no share"))?;
                }
                ["work-budget", share] => {
                    trace.costly().work = percent(share).ok_or_else(|| wrong("no share"))?;
                }
                ["policy", "none"] => trace.choice = Choice::None,
                ["policy", "first"] => trace.choice = Choice::First,
                ["policy", "second"] => trace.choice = Choice::Second,
                ["expect", ref rest @ ..] => {
                    for word in rest {
                        trace
                            .expect
                            .push(word.parse().map_err(|_| wrong("no number"))?);
                    }
                }
                ["load", file, size] => trace.steps.push(Step::Load {
                    file: file.parse().map_err(|_| wrong("no file number"))?,
                    bytes: bytes(size).ok_or_else(|| wrong("no size"))?,
                }),
                ["read", file, size, call] => trace.steps.push(Step::Read {
                    file: file.parse().map_err(|_| wrong("no file number"))?,
                    bytes: bytes(size).ok_or_else(|| wrong("no size"))?,
                    call: bytes(call).ok_or_else(|| wrong("no size"))?,
                }),
                ["random", file, size, call, calls] => trace.steps.push(Step::Random {
                    file: file.parse().map_err(|_| wrong("no file number"))?,
                    bytes: bytes(size).ok_or_else(|| wrong("no size"))?,
                    call: bytes(call).ok_or_else(|| wrong("no size"))?,
                    calls: calls.parse().map_err(|_| wrong("no number"))?,
                }),
                ["pause", time] => {
                    let time = span(time).ok_or_else(|| wrong("no time"))?;
                    trace.steps.push(Step::Pause(time));
                }
                ["round"] => trace.steps.push(Step::Round),
                ["loop", times] => {
                    let times = times.parse().map_err(|_| wrong("no number"))?;
                    loops.push((trace.steps.len(), times));
                }
                ["end"] => {
                    let (from, times) = loops.pop().ok_or_else(|| wrong("no loop"))?;
                    let body = trace.steps[from..].to_vec();
                    if body.len().saturating_mul(times) > 1 << 20 {
                        return Err(wrong("too many steps"));
                    }
                    trace.steps.truncate(from);
                    for _ in 0..times {
                        trace.steps.extend(body.iter().cloned());
                    }
                }
                _ => return Err(wrong("not understood")),
            }
        }
        if !loops.is_empty() {
            return Err("a loop has no end".to_owned());
        }
        if trace.fast.is_nan() || trace.slow.is_nan() {
            return Err(
                "say what reading costs: 'fast 7.58s/128G' and 'slow 9.75s/128G'".to_owned(),
            );
        }
        let size = |step: &Step| match *step {
            Step::Load { bytes, .. } | Step::Read { bytes, .. } | Step::Random { bytes, .. } => {
                bytes
            }
            Step::Pause(_) | Step::Round => 0,
        };
        trace.largest = trace.steps.iter().map(size).max().unwrap_or(0);
        if trace.largest == 0 {
            return Err("nothing is read".to_owned());
        }
        Ok(trace)
    }

    fn costly(&mut self) -> &mut Costly {
        self.daemon.get_or_insert_with(Costly::default)
    }

    /// The same with all files so many times as large.
    pub fn scaled(&self, factor: f64) -> Trace {
        let mut scaled = self.clone();
        let scale = |bytes: u64| ((bytes as f64 * factor) as u64).max(PAGE);
        for step in &mut scaled.steps {
            match step {
                Step::Load { bytes, .. }
                | Step::Read { bytes, .. }
                | Step::Random { bytes, .. } => *bytes = scale(*bytes),
                Step::Pause(_) | Step::Round => {}
            }
        }
        scaled.largest = scale(self.largest);
        scaled.expect.clear();
        scaled
    }

    pub fn with(&self, choice: Choice) -> Trace {
        Trace {
            choice,
            ..self.clone()
        }
    }

    pub fn run(&self) -> Vec<Round> {
        Machine::new(self).run(&self.steps)
    }
}

/// "128G" in bytes.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return None,
    };
    let bytes = digits.parse::<f64>().ok()? * unit as f64;
    (bytes >= 1.0 && bytes < (1u64 << 50) as f64).then_some(bytes as u64)
}

/// "7.58s" or "200ms".
fn span(text: &str) -> Option<Duration> {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1e-3),
        None => (text.strip_suffix('s')?, 1.0),
    };
    let seconds = digits.parse::<f64>().ok()? * unit;
    (0.0..1e9)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

/// "200ns" or "1.7us".
fn nanos(text: &str) -> Option<f64> {
    let (digits, unit) = match text.strip_suffix("us") {
        Some(digits) => (digits, 1e3),
        None => (text.strip_suffix("ns")?, 1.0),
    };
    let nanos = digits.parse::<f64>().ok()? * unit;
    (0.0..1e9).contains(&nanos).then_some(nanos)
}

/// "1%" as a share.
fn percent(text: &str) -> Option<f64> {
    let share = text.strip_suffix('%')?.parse::<f64>().ok()? / 100.0;
    (share > 0.0 && share <= 1.0).then_some(share)
}

/// "7.58s/128G" in nanoseconds for a page.
fn per_page(text: &str) -> Option<f64> {
    let (time, size) = text.split_once('/')?;
    Some(span(time)?.as_nanos() as f64 * PAGE as f64 / bytes(size)? as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = include_str!("../../traces/unmapped-page-cache.trace");

    /// The figures that were measured on a machine with CXL memory.
    #[test]
    fn the_measured_rounds_come_out() {
        let trace = Trace::parse(REFERENCE).unwrap();
        let rounds = trace.run();
        assert_eq!(trace.expect.len(), 10);
        for (round, &measured) in rounds.iter().zip(&trace.expect) {
            let off = round.seconds / measured - 1.0;
            assert!(off.abs() < 0.05, "{} for {measured}", round.seconds);
        }
        let after = rounds[9].seconds;
        assert!((after / 7.8941 - 1.0).abs() < 0.05, "{after}");
    }

    #[test]
    fn without_promotion_it_stays_slow() {
        let trace = Trace::parse(REFERENCE).unwrap().with(Choice::None);
        for round in trace.run() {
            assert_eq!(round.promoted, 0);
            // 9.75 and the check's 0.39.
            assert!((round.seconds - 10.142).abs() < 0.01, "{}", round.seconds);
        }
    }

    #[test]
    fn the_first_access_promotes_only_where_asked() {
        let text = "fast 1s/1G\nslow 2s/1G\nround\nread 1 1G 1M\nround\nread 1 1G 1M\nround\n\
                    pause 1s\nread 1 1G 1M\nround\n";
        let trace = Trace::parse(text).unwrap();
        let promoted = |choice| -> Vec<u64> {
            let rounds = trace.with(choice).run();
            rounds.iter().map(|round| round.promoted >> 20).collect()
        };
        assert_eq!(promoted(Choice::First), [0, 1024, 0, 0]);
        assert_eq!(promoted(Choice::Second), [0, 0, 1024, 0]);
        assert_eq!(promoted(Choice::None), [0, 0, 0, 0]);
    }

    /// A walk over twice the fast node, with the kernel demoting the least
    /// recently used: whoever promotes all of it moves all of it each time.
    #[test]
    fn a_hot_set_too_large_backs_off() {
        let text = "fast 1s/1G\nslow 1.3s/1G\nmigrate 0.2s/1G\nroom 4G\ndemote lru\n\
                    load 1 8G\nloop 20\nread 1 8G 1M\nround\nend\n";
        let trace = Trace::parse(text).unwrap();
        let sums = |choice| -> (f64, u64) {
            let rounds = trace.with(choice).run();
            let seconds = rounds.iter().map(|round| round.seconds).sum();
            let moved = rounds.iter().map(|round| round.promoted + round.demoted);
            (seconds, moved.sum::<u64>() >> 30)
        };
        let (none, _) = sums(Choice::None);
        let (first, first_moved) = sums(Choice::First);
        let (second, second_moved) = sums(Choice::Second);
        assert!(first > none * 1.2, "{first} against {none}: it thrashes");
        assert!(first_moved > 250, "{first_moved} GiB");
        assert!(second < none * 1.03, "{second} against {none}");
        assert!(second_moved < 40, "{second_moved} GiB");
    }

    #[test]
    fn wrong_traces_are_refused() {
        for (text, what) in [
            ("", "what reading costs"),
            ("fast 1s/1G\nslow 1s/1G\n", "nothing is read"),
            ("fast 1s\n", "no cost"),
            ("walk 1\n", "line 1: not understood"),
            ("loop 3\n", "no end"),
            ("end\n", "no loop"),
            ("loop 99999999\nread 1 1G 1M\nend\n", "too many steps"),
            ("read 1 0 1M\n", "no size"),
        ] {
            let err = Trace::parse(text).unwrap_err();
            assert!(err.contains(what), "{text}: {err}");
        }
    }

    fn seconds(rounds: &[Round]) -> f64 {
        rounds.iter().map(|round| round.seconds).sum()
    }

    #[test]
    fn the_same_work_takes_the_same_time_on_any_file() {
        // 16,384 reads of 1 MiB, and as many of 4 KiB: less than a block of the largest file.
        for (call, wanted) in [("1M", 16.0), ("4K", 0.0625)] {
            for size in ["64M", "1G", "64G", "4T"] {
                let text = format!(
                    "fast 1s/1G\nslow 1s/1G\npolicy none\nrandom 1 {size} {call} 16384\nround\n"
                );
                let seconds = seconds(&Trace::parse(&text).unwrap().run());
                assert!(
                    (seconds / wanted - 1.0).abs() < 1e-6,
                    "{seconds} at {size} {call}"
                );
            }
        }
    }

    #[test]
    fn small_files_stay_small_beside_large_ones() {
        let text = "fast 1s/1G\nslow 2s/1G\nload 1 4K\nload 2 100K\nload 3 512G\nround\n\
                    loop 1000\nread 1 4K 4K\nread 2 100K 1M\nend\nround\n";
        let rounds = Trace::parse(text).unwrap().with(Choice::None).run();
        let wanted = 1000.0 * 104.0 / (1 << 20) as f64 * 2.0;
        assert!(
            (rounds[1].seconds / wanted - 1.0).abs() < 1e-6,
            "{}",
            rounds[1].seconds
        );
        // What is promoted of them takes no more room than they have.
        let text = format!("{text}pause 1s\nread 1 4K 4K\nread 2 100K 1M\nround\n");
        let rounds = Trace::parse(&text).unwrap().run();
        assert_eq!(rounds[2].fast, 104 << 10);
    }

    const DAEMON: &str = "fast 0.8s/4G\nslow 1s/4G\nmigrate 0.1656s/1G\n\
                          event 200ns\nrecord 1.7us\nlook 0.08s/1G\n";

    #[test]
    fn four_gibibytes_are_on_the_fast_node_within_ten_rounds() {
        let text = format!("{DAEMON}load 1 4G\nloop 10\nread 1 4G 1M\nround\nend\n");
        let rounds = Trace::parse(&text).unwrap().run();
        let fast: Vec<u64> = rounds.iter().map(|round| round.fast >> 20).collect();
        assert_eq!(
            fast.last(),
            Some(&4096),
            "MiB on the fast node after each round: {fast:?}"
        );
    }

    #[test]
    fn without_budget_it_takes_longer_and_costs_less() {
        let reads = "load 1 1G\nloop 40\nread 1 1G 1M\nround\nend\n";
        let run = |more: &str| {
            let text = format!("{DAEMON}{more}{reads}");
            let rounds = Trace::parse(&text).unwrap().run();
            rounds.iter().position(|round| round.fast > 1000 << 20)
        };
        let (usual, little) = (run(""), run("work-budget 5%\n"));
        assert!(usual.is_some());
        assert!(
            little.is_none_or(|little| little > usual.unwrap() * 2),
            "{usual:?} {little:?}"
        );
    }

    #[test]
    fn cold_pages_make_room_for_hot_ones() {
        // The first file fills the fast node; then the second is read, and the first no more.
        let text = format!(
            "{DAEMON}room 256M\ndemote cold\nwindow 10s\nload 1 256M\nload 2 256M\n\
             loop 400\nread 1 256M 1M\nend\nround\npause 20s\n\
             loop 400\nread 2 256M 1M\nend\nround\n"
        );
        let rounds = Trace::parse(&text).unwrap().run();
        assert!(rounds[0].fast > 230 << 20, "{:?}", rounds[0]);
        assert!(rounds[1].demoted > 200 << 20, "{:?}", rounds[1]);
        assert!(rounds[1].promoted > 200 << 20, "{:?}", rounds[1]);
    }

    /// Not used to fit anything: before the work of a call was limited, the same machine went "from
    /// 7 seconds to 40 seconds over ~2 rounds".
    #[test]
    fn the_other_published_figure_comes_out() {
        let text = include_str!("../../traces/unlimited-promotion.trace");
        let trace = Trace::parse(text).unwrap();
        let rounds = trace.run();
        let both = rounds[0].seconds + rounds[1].seconds;
        assert!((both / 40.0 - 1.0).abs() < 0.05, "{both}");
    }
}
