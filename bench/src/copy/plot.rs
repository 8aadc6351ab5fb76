//! Line charts as SVG.

use plotters::prelude::*;
use std::path::Path;

/// One chart.
pub struct Panel {
    pub title: String,
    pub x: &'static str,
    pub lines: Vec<Line>,
}

/// One method's points, by ascending x.
pub struct Line {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: u32 = 640;
const HEIGHT: u32 = 420;

/// Distinct also for readers who don't see all colours (Okabe and Ito).
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(128, 128, 128),
    RGBColor(110, 70, 30),
    RGBColor(150, 200, 60),
];

/// Writes the panels to `file`, two in a row.
pub fn write(file: &Path, panels: &[Panel]) -> Result<(), String> {
    let columns = panels.len().clamp(1, 2);
    let rows = panels.len().div_ceil(columns).max(1);
    let size = (WIDTH * columns as u32, HEIGHT * rows as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        root.fill(&WHITE)?;
        for (panel, area) in panels.iter().zip(root.split_evenly((rows, columns))) {
            draw_panel(panel, &area).map_err(|e| e.to_string())?;
        }
        root.present()?;
        Ok(())
    };
    draw().map_err(|e| format!("{}: {e}", file.display()))
}

fn draw_panel(
    panel: &Panel,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || panel.lines.iter().flat_map(|l| &l.points);
    let left = points().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let right = points().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
    let top = points().map(|p| p.1).fold(0.0, f64::max) * 1.1;
    if !left.is_finite() || top <= 0.0 {
        return Ok(());
    }
    let right = if right > left { right } else { left + 1.0 };
    // Room for the legend beside the lines.
    let edge = right + (right - left) * 0.4;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(58)
        .build_cartesian_2d(left..edge, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(panel.x)
        .x_labels((right - left) as usize + 2)
        .x_label_formatter(&|&x| {
            if x <= right && x.fract() == 0.0 {
                format!("{x}")
            } else {
                String::new()
            }
        })
        .light_line_style(WHITE)
        .draw()?;
    for (line, colour) in panel.lines.iter().zip(COLOURS.iter().cycle()) {
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), colour))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
        let dots = line
            .points
            .iter()
            .map(|&p| Circle::new(p, 3, colour.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_one_point_and_none() {
        let file = std::env::temp_dir().join(format!("hugeswap-plot-{}.svg", std::process::id()));
        let line = |points| Line {
            name: "auto",
            points,
        };
        let panel = |lines| Panel {
            title: "t".into(),
            x: "n",
            lines,
        };
        let panels = [
            panel(vec![line(vec![(1.0, 2.0)])]),
            panel(vec![]),
            panel(vec![line(vec![(0.0, 2.0), (3.0, 1.0)])]),
        ];
        write(&file, &panels).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(svg.contains("<svg") && svg.contains("auto"));
    }
}
