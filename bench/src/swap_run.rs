//! One contestant, measured once: set up, run, read the figures, take down.

use std::ops::Range;
use std::process::ExitStatus;

use serde::Serialize;

use super::arena::Arena;
use super::error::{io_error, Error};
use super::latency::Latency;
use super::swap_args::{Contestant, Plan};
use super::watch::{Seen, Watch};
use super::worker::Round;
use hugeswap_host::cgroup::Usage;
use hugeswap_host::undo::Interrupt;

const PAGE: u64 = 4096;

/// The figures of one run. Rates are in bytes per second.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Of all processes in the round that fills the range.
    pub first_rate: f64,
    /// The same over all rounds after it.
    pub later_rate: Option<f64>,
    /// Accesses to pages per second, in the same rounds.
    pub access_rate: Option<f64>,
    /// Over the whole run.
    pub swap_in_rate: Option<f64>,
    pub swap_out_rate: Option<f64>,
    /// Of what is resident at the end, the part in huge pages.
    pub huge_share: f64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Of the group: program, engine, page cache.
    pub peak_bytes: Option<u64>,
    /// Of accesses that were timed by themselves.
    pub latency: Option<Percentiles>,
    /// Microseconds, and the share of the accesses that was done by then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency_curve: Vec<(f64, f64)>,
    /// Of all rounds.
    pub seconds: f64,
    pub rounds: Vec<Round>,
    /// What hugeswap counted itself.
    pub stats: Option<serde_json::Value>,
    /// What the machine did meanwhile.
    pub seen: Seen,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Percentiles {
    fn of(latency: &Latency) -> Option<Percentiles> {
        let micros = |q| latency.quantile(q) as f64 / 1e3;
        (latency.count() > 0).then(|| Percentiles {
            p50: micros(0.5),
            p90: micros(0.9),
            p99: micros(0.99),
            p999: micros(0.999),
            max: micros(1.0),
        })
    }
}

/// `tick` is called several times a second with the rounds done so far.
pub fn measure(
    plan: &Plan,
    contestant: &Contestant,
    stop: &Interrupt,
    mut tick: impl FnMut(usize),
) -> Result<Figures, Error> {
    let arena = Arena::set_up(
        contestant,
        plan.memory,
        (plan.data(), plan.processes),
        (&plan.swap, &plan.compress),
        plan.total,
        stop,
    )?;
    let program = std::env::current_exe().map_err(io_error("find this program"))?;
    let mut command = arena.command(program)?;
    command.args(plan.worker().words());
    let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
    let watch = Watch::begin();
    let (output, status) = arena.run(command, stop, &mut |text| {
        tick(lines(text));
        Ok(())
    })?;
    let seen = watch.seen();
    let usage = arena.usage();
    let rounds = parse(&output)?;
    let who = contestant.to_string();
    let expected = expected_rounds(plan);
    ended_well(&rounds, expected, &usage, arena.limit(), status, who)?;
    let figures = figures(rounds, arena.swapped(), usage.peak, arena.stats());
    Ok(Figures { seen, ..figures })
}

fn expected_rounds(plan: &Plan) -> u64 {
    u64::from(plan.processes) * plan.rounds
}

/// The worst first: lost data, then what explains a bad exit status, then that.
fn ended_well(
    rounds: &[Round],
    expected: u64,
    usage: &Usage,
    limit: u64,
    status: ExitStatus,
    who: String,
) -> Result<(), Error> {
    let errors: u64 = rounds.iter().map(|round| round.errors).sum();
    if errors > 0 {
        return Err(Error::Corrupt { who, errors });
    }
    if usage.oom_kills > 0 {
        return Err(Error::OutOfMemory { who, limit });
    }
    if !status.success() {
        return Err(Error::Failed { who, status });
    }
    if rounds.len() as u64 != expected {
        return Err(Error::Report(format!(
            "{} rounds instead of {expected}",
            rounds.len()
        )));
    }
    Ok(())
}

fn parse(output: &str) -> Result<Vec<Round>, Error> {
    output
        .lines()
        .map(|line| {
            serde_json::from_str(line).map_err(|err| Error::Report(format!("{err}: {line}")))
        })
        .collect()
}

fn figures(
    rounds: Vec<Round>,
    swapped: Option<(u64, u64)>,
    peak: Option<u64>,
    stats: Option<serde_json::Value>,
) -> Figures {
    let of = |number: u64| rounds.iter().filter(move |round| round.round == number);
    // From the begin of the first process to the end of the last.
    let span = |number: u64| {
        let begin = of(number).map(|r| r.begin).fold(f64::INFINITY, f64::min);
        let end = of(number)
            .map(|r| r.begin + r.seconds)
            .fold(begin, f64::max);
        end - begin
    };
    let last = rounds.iter().map(|round| round.round).max();
    let numbers = 0..last.map_or(0, |last| last + 1);
    let later = 1..numbers.end;
    let time = |which: Range<u64>| which.map(span).sum::<f64>();
    let rate = |which: Range<u64>, get: fn(&Round) -> u64| {
        let all: u64 = which.clone().flat_map(of).map(get).sum();
        (all > 0).then(|| all as f64 / time(which))
    };
    let seconds = time(numbers);
    let at_end = rounds.iter().filter(|round| Some(round.round) == last);
    let (resident, huge) = at_end.fold((0, 0), |(resident, huge), round| {
        (resident + round.resident, huge + round.huge)
    });
    let mut latency = Latency::default();
    for round in &rounds {
        latency.merge(&round.latency);
    }
    let swap_rate = |pages: u64| (pages * PAGE) as f64 / seconds;
    Figures {
        first_rate: rate(0..1, |round| round.bytes).unwrap_or(0.0),
        later_rate: rate(later.clone(), |round| round.bytes),
        access_rate: rate(later, |round| round.accesses),
        swap_in_rate: swapped.map(|(pages, _)| swap_rate(pages)),
        swap_out_rate: swapped.map(|(_, pages)| swap_rate(pages)),
        huge_share: if resident > 0 {
            huge as f64 / resident as f64
        } else {
            0.0
        },
        minor_faults: rounds.iter().map(|round| round.minor_faults).sum(),
        major_faults: rounds.iter().map(|round| round.major_faults).sum(),
        peak_bytes: peak,
        latency: Percentiles::of(&latency),
        latency_curve: latency.curve(),
        seconds,
        rounds,
        stats,
        seen: Seen::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(worker: u32, round: u64, seconds: f64) -> Round {
        Round {
            worker,
            round,
            accesses: 10,
            bytes: 1000,
            begin: round as f64 * 10.0 + f64::from(worker),
            seconds,
            errors: 0,
            minor_faults: 2,
            major_faults: 1,
            resident: 400,
            huge: 100 * round,
            latency: Latency::default(),
        }
    }

    /// What counts is the time from the first one's begin to the last one's end.
    #[test]
    fn rates_are_those_of_all_processes() {
        let rounds = vec![
            round(0, 0, 1.0),
            round(1, 0, 1.0),
            round(0, 1, 4.0),
            round(1, 1, 3.0),
            round(0, 2, 6.0),
            round(1, 2, 1.0),
        ];
        let figures = figures(rounds, Some((12, 24)), None, None);
        assert_eq!(figures.first_rate, 2000.0 / 2.0);
        assert_eq!(figures.later_rate, Some(4000.0 / 10.0));
        assert_eq!(figures.access_rate, Some(40.0 / 10.0));
        assert_eq!(figures.latency, None);
        assert_eq!(figures.seconds, 12.0);
        assert_eq!(figures.swap_in_rate, Some(4096.0));
        assert_eq!(figures.swap_out_rate, Some(8192.0));
        assert_eq!(figures.huge_share, 0.5);
        assert_eq!((figures.minor_faults, figures.major_faults), (12, 6));
    }

    #[test]
    fn one_round_has_no_later_ones() {
        assert_eq!(
            figures(vec![round(0, 0, 1.0)], None, None, None).later_rate,
            None
        );
    }

    #[test]
    fn bad_ends_are_told_apart() {
        use std::os::unix::process::ExitStatusExt;
        let well = ExitStatus::from_raw(0);
        let killed = ExitStatus::from_raw(9);
        let check = |rounds: &[Round], oom_kills, status| {
            let usage = Usage {
                oom_kills,
                ..Usage::default()
            };
            let end = ended_well(rounds, 1, &usage, 64 << 20, status, "zram".into());
            end.map_err(|err| err.to_string())
        };
        let good = round(0, 0, 1.0);
        let bad = Round {
            errors: 3,
            ..good.clone()
        };
        assert_eq!(check(std::slice::from_ref(&good), 0, well), Ok(()));
        assert!(check(&[bad], 1, killed)
            .unwrap_err()
            .contains("DATA LOST under zram: 3 words"));
        assert!(check(std::slice::from_ref(&good), 1, killed)
            .unwrap_err()
            .contains("limit of 64 MiB"));
        assert!(check(std::slice::from_ref(&good), 0, killed)
            .unwrap_err()
            .contains("signal: 9"));
        assert!(check(&[], 0, well)
            .unwrap_err()
            .contains("0 rounds instead of 1"));
        assert!(matches!(parse("{}"), Err(Error::Report(_))));
    }
}
