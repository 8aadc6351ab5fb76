//! The report as one page that needs nothing else.

use std::fmt::Write;

use super::findings::{Medium, Report, Verdict};
use super::plot::{self, Bar, Line};
use super::programs::{Document, Row, GOAL};
use super::report;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;\
color:#222}h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}table{border-collapse:collapse;\
margin:1em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.short{color:#b35900}svg{max-width:100%;height:auto}\
summary{cursor:pointer}";

const KERNEL: &str = "times as fast as the kernel's swap";

pub fn page(report: &Report) -> Result<String, String> {
    let mut body = String::new();
    head(&mut body, report);
    const FIO: &str = "times as fast as fio";
    let kernel = |medium| move |v: &&Verdict| v.medium == medium && !v.is_of_fio();
    let of = |belongs: &dyn Fn(&&Verdict) -> bool| -> Vec<&Verdict> {
        report.verdicts.iter().filter(|v| belongs(v)).collect()
    };
    for (title, axis, verdicts) in [
        ("On disk", KERNEL, of(&kernel(Medium::Disk))),
        ("In memory", KERNEL, of(&kernel(Medium::Memory))),
        (
            "On disk, against what the disk can do",
            FIO,
            of(&|v| v.is_of_fio()),
        ),
    ] {
        let bars: Vec<Bar> = verdicts
            .into_iter()
            .map(|v| Bar {
                label: format!("{} ({}), {}", v.what, v.threads, v.against),
                value: v.ratio,
                target: Some(v.target),
            })
            .collect();
        if !bars.is_empty() {
            element(&mut body, "h2", title);
            body.push_str(&plot::bars(&bars, axis)?);
        }
    }
    if let Some(programs) = &report.programs {
        programs_part(&mut body, programs)?;
    }
    latency_part(&mut body, report)?;
    if !report.tests.is_empty() {
        element(&mut body, "h2", "Every figure");
    }
    for test in &report.tests {
        element(&mut body, "h3", &test.heading);
        table(&mut body, &report::cells(test), |_| false);
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <title>hugeswap: benchmarks</title><style>{STYLE}</style></head>\n\
         <body>\n{body}</body></html>\n"
    ))
}

fn head(body: &mut String, report: &Report) {
    element(body, "h1", "hugeswap and the kernel's swap");
    element(body, "p", &report.heading());
    if !report.verdicts.is_empty() {
        explain(body);
    }
    for remark in report.remarks() {
        element(body, "p", &remark);
    }
}

fn explain(body: &mut String) {
    let text = "Each bar shows how many times as fast a test ran under hugeswap as under the kernel's \
                swap, with the same memory limit and the same disk, or memory in place of a disk; the \
                two took turns. To the left of 1 hugeswap is slower. The black mark is the goal; orange \
                bars miss it. The number of threads is in brackets.";
    element(body, "p", text);
}

fn programs_part(body: &mut String, programs: &Document) -> Result<(), String> {
    let share = programs.share * 100.0;
    element(
        body,
        "h2",
        &format!("Real programs in {share:.0} % of the memory that they need"),
    );
    let text = "Every side has the same memory in all: program, page cache, hugeswap itself, and zram's \
                compressed memory. A cell has seconds, thousands of faults that had to read, and the most memory \
                that was taken; 'times' is how many times as fast hugeswap was. Orange lines are slower than the \
                kernel.";
    element(body, "p", text);
    let bars: Vec<Bar> = programs
        .programs
        .iter()
        .flat_map(|row| {
            row.sides.iter().filter_map(|side| {
                Some(Bar {
                    label: format!("{}, {}", row.program, side.name),
                    value: side.times?,
                    target: Some(GOAL),
                })
            })
        })
        .collect();
    if !bars.is_empty() {
        body.push_str(&plot::bars(&bars, KERNEL)?);
    }
    let lost: Vec<bool> = programs.programs.iter().map(Row::is_lost).collect();
    table(body, &super::programs::cells(programs), |row| lost[row]);
    for note in programs.notes() {
        element(body, "p", &note);
    }
    Ok(())
}

fn latency_part(body: &mut String, report: &Report) -> Result<(), String> {
    for test in &report.tests {
        let lines: Vec<Line> = test
            .contestants
            .iter()
            .filter_map(|column| {
                let run = column.runs.last()?;
                (!run.latency_curve.is_empty()).then(|| Line {
                    label: column.name.clone(),
                    points: run.latency_curve.clone(),
                })
            })
            .collect();
        if !lines.is_empty() {
            let title = format!(
                "{}, swap {}, {} threads",
                test.test, test.swap, test.threads
            );
            element(body, "h2", &title);
            body.push_str(&plot::distribution(&lines)?);
        }
    }
    Ok(())
}

/// The first line has the heads of the columns.
fn table(body: &mut String, lines: &[Vec<String>], is_short: impl Fn(usize) -> bool) {
    body.push_str("<table>\n");
    for (number, line) in lines.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        let short = number > 0 && is_short(number - 1);
        body.push_str(if short {
            "<tr class=\"short\">"
        } else {
            "<tr>"
        });
        for cell in line {
            // Writing to a String can't fail.
            let _ = write!(body, "<{tag}>{}</{tag}>", escape(cell));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table>\n");
}

fn element(body: &mut String, tag: &str, text: &str) {
    let _ = writeln!(body, "<{tag}>{}</{tag}>", escape(text));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Checks that each element is closed in order, and that nothing is loaded from elsewhere.
#[cfg(test)]
pub fn check(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in page.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("a tag ends");
        if tag.starts_with('!') || tag.starts_with('?') || tag.ends_with('/') {
            continue;
        }
        let name = tag.split_whitespace().next().unwrap_or("");
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for elsewhere in [" src=", " href=", "url(", "@import", "<script", "<link"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::FIO;
    use super::super::machine::Machine;
    use super::*;

    #[test]
    fn a_page_without_tests_is_whole() {
        let verdict = |medium, ratio| Verdict {
            what: "a < b & c".into(),
            medium,
            threads: 1,
            against: "zram".into(),
            ratio,
            target: 2.0,
        };
        let report = Report {
            machine: Machine::here(),
            commit: "x",
            seconds_since_1970: 0,
            command: "hugeswap bench all".into(),
            quick: true,
            verdicts: vec![
                verdict(Medium::Disk, 3.0),
                verdict(Medium::Memory, 0.3),
                Verdict {
                    against: FIO.into(),
                    ..verdict(Medium::Disk, 0.9)
                },
            ],
            tests: Vec::new(),
            programs: Some(super::super::programs::sample()),
            fio_mixed_read_rate: Some(1e9),
            failures: vec!["<nothing>".into()],
        };
        let page = page(&report).unwrap();
        check(&page);
        assert_eq!(page.matches("<svg").count(), 4);
        // Four lines that hugeswap loses.
        assert_eq!(page.matches("<tr class=\"short\">").count(), 4);
        assert_eq!(page.matches("times as fast as fio").count(), 1);
        assert!(page.contains("a &lt; b &amp; c") && page.contains("&lt;nothing&gt;"));
    }
}
