//! What a trace says: what is read, and what the machine costs.

use std::time::Duration;

use crate::page::PAGE;
use crate::policy::Limits;

/// What the trace's lines say.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
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
pub enum Demote {
    Lru,
    Cold,
}

/// What the daemon costs, and may cost.
#[derive(Clone, Debug)]
pub struct Costly {
    /// Nanoseconds: of a hit, of a record, of looking at a page.
    pub event: f64,
    pub record: f64,
    pub look: f64,
    pub overhead: f64,
    pub work: f64,
    pub interval: Duration,
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
    pub steps: Vec<Step>,
    /// Nanoseconds for a page.
    pub fast: f64,
    pub slow: f64,
    pub check: f64,
    pub migrate: f64,
    /// Bytes that the fast node takes.
    pub room: u64,
    /// Bytes promoted in one second, and in one call.
    pub rate: Option<u64>,
    pub per_call: Option<u64>,
    /// The kernel demotes the least recently used to make room, or the daemon what is cold.
    pub demote: Option<Demote>,
    pub daemon: Option<Costly>,
    pub window: Duration,
    pub choice: Choice,
    /// Seconds of each round, as somebody has measured them.
    pub expect: Vec<f64>,
    /// Bytes of the largest file.
    pub largest: u64,
}

impl Trace {
    /// The form is described in docs/promote.md.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let mut trace = Trace::new();
        let mut loops = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let said = trace.line(&words, &mut loops);
            said.map_err(|what| format!("line {}: {what}: '{}'", number + 1, line.trim()))?;
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

    /// No step yet, and nothing known of the machine.
    fn new() -> Trace {
        Trace {
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
        }
    }

    /// Takes a line, or says what is wrong with it. `loops`: those that are open, with where they begin.
    fn line(&mut self, words: &[&str], loops: &mut Vec<(usize, usize)>) -> Result<(), Wrong> {
        match *words {
            [] => {}
            ["loop", times] => loops.push((self.steps.len(), number(times)?)),
            ["end"] => {
                let (from, times) = loops.pop().ok_or("no loop")?;
                self.repeat(from, times)?;
            }
            ["expect", ref seconds @ ..] => {
                for word in seconds {
                    self.expect.push(number(word)?);
                }
            }
            _ => match step(words)? {
                Some(step) => self.steps.push(step),
                None if self.of_machine(words)? || self.of_daemon(words)? => {}
                None => return Err("not understood"),
            },
        }
        Ok(())
    }

    fn repeat(&mut self, from: usize, times: usize) -> Result<(), Wrong> {
        let body = self.steps[from..].to_vec();
        if body.len().saturating_mul(times) > 1 << 20 {
            return Err("too many steps");
        }
        self.steps.truncate(from);
        for _ in 0..times {
            self.steps.extend(body.iter().cloned());
        }
        Ok(())
    }

    /// Whether the line is of what the machine costs and has.
    fn of_machine(&mut self, words: &[&str]) -> Result<bool, Wrong> {
        match *words {
            ["fast", costs] => self.fast = cost(costs)?,
            ["slow", costs] => self.slow = cost(costs)?,
            ["check", costs] => self.check = cost(costs)?,
            ["migrate", costs] => self.migrate = cost(costs)?,
            ["room", bytes] => self.room = size(bytes)?,
            ["demote", "lru"] => self.demote = Some(Demote::Lru),
            ["demote", "cold"] => self.demote = Some(Demote::Cold),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the line is of what the daemon does, costs, and may cost.
    fn of_daemon(&mut self, words: &[&str]) -> Result<bool, Wrong> {
        match *words {
            ["rate", bytes] => self.rate = Some(size(bytes)?),
            ["per-call", bytes] => self.per_call = Some(size(bytes)?),
            ["window", lasts] => self.window = time(lasts)?,
            ["policy", "none"] => self.choice = Choice::None,
            ["policy", "first"] => self.choice = Choice::First,
            ["policy", "second"] => self.choice = Choice::Second,
            ["event", takes] => self.costly().event = nanos(takes).ok_or("no time")?,
            ["record", takes] => self.costly().record = nanos(takes).ok_or("no time")?,
            ["look", costs] => self.costly().look = cost(costs)?,
            ["interval", lasts] => {
                let lasts = span(lasts).filter(|time| !time.is_zero());
                self.costly().interval = lasts.ok_or("no time")?;
            }
            ["overhead-budget", share] => {
                self.costly().overhead = percent(share).ok_or("no share")?
            }
            ["work-budget", share] => self.costly().work = percent(share).ok_or("no share")?,
            _ => return Ok(false),
        }
        Ok(true)
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
}

/// What is wrong with a line.
type Wrong = &'static str;

/// What is done, if the line says that.
fn step(words: &[&str]) -> Result<Option<Step>, Wrong> {
    let of_file = |text: &str| text.parse().map_err(|_| "no file number");
    Ok(Some(match *words {
        ["load", file, bytes] => Step::Load {
            file: of_file(file)?,
            bytes: size(bytes)?,
        },
        ["read", file, bytes, call] => Step::Read {
            file: of_file(file)?,
            bytes: size(bytes)?,
            call: size(call)?,
        },
        ["random", file, bytes, call, calls] => Step::Random {
            file: of_file(file)?,
            bytes: size(bytes)?,
            call: size(call)?,
            calls: number(calls)?,
        },
        ["pause", lasts] => Step::Pause(time(lasts)?),
        ["round"] => Step::Round,
        _ => return Ok(None),
    }))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Wrong> {
    text.parse().map_err(|_| "no number")
}

fn size(text: &str) -> Result<u64, Wrong> {
    bytes(text).ok_or("no size")
}

fn time(text: &str) -> Result<Duration, Wrong> {
    span(text).ok_or("no time")
}

fn cost(text: &str) -> Result<f64, Wrong> {
    per_page(text).ok_or("no cost")
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
