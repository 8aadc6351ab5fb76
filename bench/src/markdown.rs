//! The report as a page of Markdown: the form of `docs/benchmarks.md`.

use std::fmt::Write;

use super::findings::Report;
use super::programs::{self, Document};
use super::report;

pub fn page(report: &Report) -> String {
    let mut page = String::from("# Benchmarks\n\n");
    paragraph(&mut page, &report.heading());
    paragraph(&mut page, &format!("    {}", report.command));
    for remark in report.remarks() {
        paragraph(&mut page, &remark);
    }
    if let Some(programs) = &report.programs {
        programs_part(&mut page, programs);
    }
    if !report.verdicts.is_empty() {
        page.push_str("## Orders of access\n\n");
        let text = "*Times* is how many times as fast hugeswap is as the side that it is compared with, the better of the \
                    kernel's settings unless it says otherwise. *At least* is the goal.";
        paragraph(&mut page, text);
        table(&mut page, &report.summary());
    }
    if !report.tests.is_empty() {
        page.push_str("## Every figure\n\n");
    }
    for test in &report.tests {
        // Writing to a String can't fail.
        let _ = write!(page, "### {}\n\n", test.heading);
        table(&mut page, &report::cells(test));
    }
    page
}

fn programs_part(page: &mut String, programs: &Document) {
    let share = programs.share * 100.0;
    let _ = write!(
        page,
        "## Real programs in {share:.0} % of the memory that they need\n\n"
    );
    let text = "Every side has the same memory in all: program, page cache, hugeswap itself, and zram's compressed \
                memory. A cell has seconds, thousands of faults that had to read, and the most memory that was taken, in MiB. \
                *Times* is how many times as fast hugeswap was.";
    paragraph(page, text);
    table(page, &programs::cells(programs));
    for note in programs.notes() {
        paragraph(page, &note);
    }
}

fn paragraph(page: &mut String, text: &str) {
    page.push_str(text);
    page.push_str("\n\n");
}

/// The first line has the heads of the columns.
fn table(page: &mut String, lines: &[Vec<String>]) {
    for (number, line) in lines.iter().enumerate() {
        for cell in line {
            let _ = write!(page, "| {} ", cell.replace('|', "\\|"));
        }
        page.push_str("|\n");
        if number == 0 {
            page.push_str(&"|---".repeat(line.len()));
            page.push_str("|\n");
        }
    }
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::findings::{Medium, Verdict};
    use super::*;

    #[test]
    fn every_line_of_a_table_has_as_many_cells() {
        let report = Report {
            command: "hugeswap bench all --runs 1".into(),
            verdicts: vec![Verdict {
                what: "a | b".into(),
                medium: Medium::Disk,
                threads: 1,
                against: "zram".into(),
                ratio: 3.0,
                target: 2.0,
            }],
            programs: Some(programs::sample()),
            failures: vec!["fio: not there".into()],
            ..Report::begin(true)
        };
        let page = page(&report);
        assert!(page.starts_with("# Benchmarks\n\n"));
        assert!(page.contains("\n    hugeswap bench all --runs 1\n"));
        assert!(page.contains("Not measured: fio: not there"));
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let mut tables = 0;
        for block in page.split("\n\n").filter(|block| block.starts_with('|')) {
            let mut lines = block.lines();
            let head = cells(lines.next().unwrap());
            assert!(lines.all(|line| cells(line) == head), "{block}");
            tables += 1;
        }
        assert_eq!(tables, 2);
    }
}
