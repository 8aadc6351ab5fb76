//! Plots for the report, as SVG.

use plotters::prelude::*;

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

/// One bar: a ratio, and what it should be at least.
pub struct Bar {
    pub label: String,
    pub value: f64,
    pub target: Option<f64>,
}

/// A line of points by ascending x.
pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: u32 = 900;
/// The room for what stands before a bar.
const LABELS: i32 = 270;
const REACHED: RGBColor = RGBColor(0, 114, 178);
const SHORT: RGBColor = RGBColor(230, 159, 0);
const TARGET: RGBColor = RGBColor(0, 0, 0);
/// Distinct also for readers who don't see all colours (Okabe and Ito).
const LINES: [RGBColor; 4] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];

/// The room that a figure takes beside its bar.
const FIGURE: i32 = 48;

/// Bars from 1 (as fast as what it is compared with) to the ratio, on a logarithmic scale.
pub fn bars(bars: &[Bar], axis: &str) -> std::result::Result<String, String> {
    let mut svg = String::new();
    draw_bars(&mut svg, bars, axis).map_err(|err| err.to_string())?;
    Ok(svg)
}

fn draw_bars(svg: &mut String, bars: &[Bar], axis: &str) -> Result {
    let values = || {
        bars.iter()
            .flat_map(|b| [Some(b.value), b.target])
            .flatten()
    };
    let low = values().fold(0.5, f64::min) * 0.8;
    let high = values().fold(2.0, f64::max) * 1.6;
    let height = 70 + 26 * bars.len() as u32;
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let rows = bars.len() as f64;
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .margin_left(LABELS)
        .x_label_area_size(40)
        .build_cartesian_2d((low..high).log_scale(), 0.0..rows)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|x| format!("{x}"))
        .x_desc(axis)
        // Else they are a share of the height, and few bars have none that can be read.
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 12))
        .light_line_style(WHITE)
        .draw()?;
    for (row, bar) in bars.iter().enumerate() {
        // From the top.
        let y = rows - row as f64 - 1.0;
        let reached = bar.target.is_none_or(|target| bar.value >= target);
        let colour = if reached { REACHED } else { SHORT };
        // A rectangle has its left side first: below 1 that is the value.
        let value = bar.value.clamp(low, high);
        let ends = [(value.min(1.0), y + 0.2), (value.max(1.0), y + 0.8)];
        chart.draw_series([Rectangle::new(ends, colour.filled())])?;
        if let Some(target) = bar.target {
            let mark = vec![(target, y + 0.08), (target, y + 0.92)];
            chart.draw_series([PathElement::new(mark, TARGET.stroke_width(3))])?;
        }
        let at = chart.backend_coord(&(bar.value.max(1.0), y + 0.5));
        let figure = format!("{:.2}", bar.value);
        // Not where the mark would go through it.
        let mark = bar.target.map(|t| chart.backend_coord(&(t, y + 0.5)).0);
        let left = match mark {
            Some(x) if (at.0..at.0 + FIGURE).contains(&x) => x,
            _ => at.0,
        };
        root.draw(&Text::new(figure, (left + 8, at.1 - 6), ("sans-serif", 13)))?;
        root.draw(&Text::new(
            bar.label.clone(),
            (8, at.1 - 6),
            ("sans-serif", 13),
        ))?;
    }
    root.present()?;
    Ok(())
}

/// Shares of all accesses by the time that they took.
pub fn distribution(lines: &[Line]) -> std::result::Result<String, String> {
    let mut svg = String::new();
    draw_lines(&mut svg, lines).map_err(|err| err.to_string())?;
    Ok(svg)
}

fn draw_lines(svg: &mut String, lines: &[Line]) -> Result {
    let times = || lines.iter().flat_map(|l| &l.points).map(|p| p.0);
    let low = times().fold(f64::INFINITY, f64::min).clamp(0.1, 1e6);
    let high = times().fold(10.0 * low, f64::max);
    let root = SVGBackend::with_string(svg, (WIDTH, 360)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(50)
        .build_cartesian_2d((low..high).log_scale(), 0.0..1.02)?;
    chart
        .configure_mesh()
        .x_desc("microseconds")
        .y_desc("share of accesses done by then")
        .x_label_formatter(&|x| format!("{x}"))
        .light_line_style(WHITE)
        .draw()?;
    for (line, colour) in lines.iter().zip(LINES.iter().cycle()) {
        let colour = *colour;
        let points = line.points.iter().map(|(x, y)| (x.max(low), *y));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(line.label.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of an attribute of those elements that have this colour, or that hold text.
    fn numbers(svg: &str, of: &str, attribute: &str) -> Vec<f64> {
        let parts = svg.split('<').filter(|part| part.starts_with(of));
        let value = |part: &str| {
            let (_, rest) = part.split_once(&format!(" {attribute}=\""))?;
            rest.split_once('"')?.0.parse().ok()
        };
        parts.filter_map(value).collect()
    }

    #[test]
    fn a_bar_below_one_is_seen_and_no_mark_goes_through_a_figure() {
        let bar = |value, target| Bar {
            label: String::new(),
            value,
            target: Some(target),
        };
        let svg = bars(&[bar(0.3, 2.0), bar(1.9, 2.0), bar(0.9, 1.0)], "times").unwrap();
        // The first rectangle is the ground.
        let widths = &numbers(&svg, "rect", "width")[1..];
        assert!(
            widths.len() >= 3 && widths.iter().all(|&w| w >= 1.0),
            "{widths:?}"
        );
        let figures = ["0.30", "1.90", "0.90"].map(|figure| {
            let text = svg.split("<text").find(|t| t.contains(figure)).unwrap();
            numbers(&format!("<text{text}"), "text", "x")[0]
        });
        let marks: Vec<f64> = svg
            .split("<polyline")
            .filter(|p| p.contains("stroke-width=\"3\""))
            .map(|p| p.split_once("points=\"").unwrap().1)
            .map(|p| p.split([',', ' ']).next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(marks.len(), 3);
        for (figure, mark) in figures.iter().zip(marks) {
            let through = *figure..*figure + 30.0;
            assert!(!through.contains(&mark), "{figure} {mark}");
        }
    }

    #[test]
    fn a_single_bar_has_words_that_can_be_read() {
        let bar = Bar {
            label: "swap-stride (2), zram lz4, all mTHP".into(),
            value: 3.0,
            target: None,
        };
        let svg = bars(&[bar], "times as fast").unwrap();
        let sizes = numbers(&svg, "text", "font-size");
        assert!(
            !sizes.is_empty() && sizes.iter().all(|&s| s >= 9.0),
            "{sizes:?}"
        );
    }

    #[test]
    fn draws_what_it_is_given() {
        let bar = |value, target| Bar {
            label: "swap & more".into(),
            value,
            target,
        };
        let some = [bar(0.2, Some(1.0)), bar(30.0, None), bar(1.0, Some(1.0))];
        let svg = bars(&some, "times").unwrap();
        assert!(svg.contains("swap &amp; more") && svg.contains("30.00"));
        assert!(bars(&[], "times").unwrap().contains("</svg>"));
        let line = |points| Line {
            label: "zram".into(),
            points,
        };
        let svg = distribution(&[line(vec![(1.0, 0.5), (900.0, 1.0)]), line(vec![])]).unwrap();
        assert!(svg.contains("zram"));
        assert!(distribution(&[]).unwrap().contains("</svg>"));
    }
}
