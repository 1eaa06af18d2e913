//! Plots of what was measured at several sizes, beside perftest: absolute figures differ by a
//! factor of a thousand from size to size, and what is to be seen is a tenth.

use std::{
    collections::BTreeMap,
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

/// What the names of perftest's programs for messages begin with.
const PERFTEST: &str = "ib_send_";

/// What is more than so many times perftest's figure is left out.
const MOST: f64 = 2.0;

/// A program at several sizes.
#[derive(Debug, PartialEq)]
struct Series {
    name: String,
    /// Bytes, and the ratio to perftest's figure.
    points: Vec<(f64, f64)>,
}

/// Draws what there is enough of, and says in which files.
pub(crate) fn draw_all(rows: &[Row], folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for part in [Part::Counted, Part::Clock] {
        for (measure, what) in [
            (Measure::HalfRoundTrip, "half a round trip: less is better"),
            (Measure::OneWay, "messages one way: more is better"),
        ] {
            for hosts in [1, 2] {
                let of = |row: &&Row| (row.part, row.measure, row.hosts) == (part, measure, hosts);
                let rows: Vec<&Row> = rows.iter().filter(of).collect();
                let series = series(&rows);
                if series.is_empty() {
                    continue;
                }
                let name = measure.to_string().replace(' ', "-");
                let file = folder.join(format!("{part}-{name}-{hosts}.svg"));
                let title = format!("{what}, beside {PERFTEST}*, {part}");
                draw(&file, &title, &series)
                    .map_err(|error| anyhow!("cannot draw {}: {error}", file.display()))?;
                files.push(file);
            }
        }
    }
    Ok(files)
}

fn series(rows: &[&Row]) -> Vec<Series> {
    let sides = || {
        let both =
            |row: &&Row| [Some(row.ours.clone()), row.theirs.clone()].map(|side| (row.size, side));
        let sides = rows.iter().flat_map(both);
        sides.filter_map(|(size, side)| Some((size, figure(side.as_ref()?)?, side?.name)))
    };
    let perftest = sides().filter(|(_, _, name)| name.starts_with(PERFTEST));
    let perftest: BTreeMap<usize, f64> = perftest.map(|(size, figure, _)| (size, figure)).collect();
    let mut all: Vec<Series> = Vec::new();
    for (size, figure, name) in sides() {
        let Some(perftest) = perftest.get(&size) else {
            continue;
        };
        let point = (size as f64, figure / perftest);
        if point.1 > MOST {
            continue;
        }
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) if series.points.contains(&point) => {}
            Some(series) => series.points.push(point),
            None => all.push(Series {
                name,
                points: vec![point],
            }),
        }
    }
    all.retain(|series| series.points.len() > 1);
    all
}

fn figure(side: &Side) -> Option<f64> {
    Samples::new(side.figures.iter().copied()).median()
}

/// Sizes are on a logarithmic axis.
fn draw(file: &Path, title: &str, series: &[Series]) -> Result<(), Box<dyn Error>> {
    let points = || series.iter().flat_map(|series| &series.points);
    let least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.0).fold(0.0, f64::max);
    let area = SVGBackend::new(file, EXTENT).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        // So that sizes stand where people expect them.
        .build_cartesian_2d((least * 0.8..most * 1.25).log_scale().base(4.0), 0.0..MOST)?;
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
        .position(SeriesLabelPosition::UpperRight)
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

    /// Beside perftest at two sizes, and without at a third.
    fn rows() -> Vec<Row> {
        let small = row(&[9.0], &[10.0], Target::None);
        let mut large = small.clone();
        large.size = 4096;
        large.ours.figures = vec![20.0];
        let mut alone = small.clone();
        alone.size = 1;
        alone.theirs = None;
        vec![small.clone(), small, large, alone]
    }

    #[test]
    fn a_series_is_a_program_at_several_sizes_once_each() {
        let rows = rows();
        let rows: Vec<&Row> = rows.iter().collect();
        let expected = [
            ("rdmsg busy", vec![(64.0, 0.9), (4096.0, 2.0)]),
            ("ib_send_lat -R", vec![(64.0, 1.0), (4096.0, 1.0)]),
        ];
        let expected = expected.map(|(name, points)| Series {
            name: name.to_owned(),
            points,
        });
        assert_eq!(series(&rows), expected);
        assert_eq!(series(&rows[..1]), []);
    }

    #[test]
    fn a_plot_names_its_programs() {
        let folder = std::env::temp_dir().join(format!("bench-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let files = draw_all(&rows(), &folder).unwrap();
        let drawn = std::fs::read_to_string(&files[0]).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for name in ["rdmsg busy", "ib_send_lat -R", "4 KiB"] {
            assert!(drawn.contains(name), "{name}");
        }
        assert_eq!(files.len(), 1);
    }
}
