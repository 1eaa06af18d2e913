//! Plots of what was measured at several sizes.

use std::{
    error::Error,
    path::{Path, PathBuf},
};

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::{
    measure::{Measure, bytes},
    part::Part,
    row::{Row, Side},
    samples::Samples,
};

/// In pixels.
const EXTENT: (u32, u32) = (900, 560);

/// A program at several sizes.
#[derive(Debug, PartialEq)]
struct Series {
    name: String,
    /// Bytes, and microseconds or MiB/s.
    points: Vec<(f64, f64)>,
}

/// Draws what there is enough of, and says in which files.
pub(crate) fn draw_all(rows: &[Row], folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for part in [Part::Counted, Part::Clock] {
        for (measure, what) in [
            (Measure::HalfRoundTrip, "half round trip in µs"),
            (Measure::OneWay, "one way in MiB/s"),
        ] {
            for hosts in [1, 2] {
                let of = |row: &&Row| (row.part, row.measure, row.hosts) == (part, measure, hosts);
                let series = series(rows.iter().filter(of));
                if series.is_empty() {
                    continue;
                }
                let name = measure.to_string().replace(' ', "-");
                let file = folder.join(format!("{part}-{name}-{hosts}.svg"));
                let title = format!("{what}, {part}");
                draw(&file, &title, &series)
                    .map_err(|error| anyhow!("cannot draw {}: {error}", file.display()))?;
                files.push(file);
            }
        }
    }
    Ok(files)
}

fn series<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in rows {
        for side in [Some(&row.ours), row.theirs.as_ref()].into_iter().flatten() {
            let Some(point) = point(row, side) else {
                continue;
            };
            let known = all.iter().position(|series| series.name == side.name);
            let place = known.unwrap_or_else(|| {
                all.push(Series {
                    name: side.name.clone(),
                    points: Vec::new(),
                });
                all.len() - 1
            });
            let points = &mut all[place].points;
            if !points.contains(&point) {
                points.push(point);
            }
        }
    }
    all.retain(|series| series.points.len() > 1);
    all
}

fn point(row: &Row, side: &Side) -> Option<(f64, f64)> {
    let figure = Samples::new(side.figures.iter().copied()).median()?;
    let size = row.size as f64;
    let y = if row.measure.is_rate() {
        figure * size / f64::from(1 << 20)
    } else {
        figure
    };
    Some((size, y))
}

/// Both axes are logarithmic.
fn draw(file: &Path, title: &str, series: &[Series]) -> Result<(), Box<dyn Error>> {
    let points = || series.iter().flat_map(|series| &series.points);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let least = points().map(of).fold(f64::INFINITY, f64::min);
        let most = points().map(of).fold(0.0, f64::max);
        (least * 0.8..most * 1.25).log_scale()
    };
    // So that sizes stand where people expect them.
    let sizes = range(|point| point.0).base(4.0);
    let area = SVGBackend::new(file, EXTENT).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes, range(|point| point.1))?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message")
        .x_label_formatter(&|size| bytes(*size as usize))
        .light_line_style(WHITE)
        .draw()?;
    for (place, series) in series.iter().enumerate() {
        let color = Palette99::pick(place).to_rgba();
        let line = LineSeries::new(series.points.iter().copied(), color.stroke_width(2));
        chart
            .draw_series(line.point_size(3))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{row::testing::row, target::Target};

    #[test]
    fn a_series_is_a_program_at_several_sizes_once_each() {
        let small = row(&[9.0], &[10.0], Target::None);
        let mut large = small.clone();
        large.size = 4096;
        large.ours.figures = vec![20.0];
        let rows = [&small, &small, &large];
        let expected = Series {
            name: "rdmsg busy".to_owned(),
            points: vec![(64.0, 9.0), (4096.0, 20.0)],
        };
        assert_eq!(series(rows.into_iter())[0], expected);
        assert_eq!(series([&small].into_iter()), []);
    }

    #[test]
    fn a_plot_names_its_programs() {
        let folder = std::env::temp_dir().join(format!("bench-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let small = row(&[9.0], &[10.0], Target::None);
        let mut large = small.clone();
        large.size = 4096;
        let files = draw_all(&[small, large], &folder).unwrap();
        let drawn = std::fs::read_to_string(&files[0]).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for name in ["rdmsg busy", "ib_send_lat -R", "4 KiB"] {
            assert!(drawn.contains(name), "{name}");
        }
        assert_eq!(files.len(), 1);
    }
}
