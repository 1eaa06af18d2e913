use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use super::plot::{Plot, Series};
use crate::{arguments::Carrier, terminal};

/// The height of the plot area in lines.
const HEIGHT: usize = 14;

/// The number of columns to the left of the plot area, for the labels of the vertical axis.
const MARGIN: usize = 11;

/// Draws a plot with text characters, and prints it to stdout.
pub(super) fn print(plot: &Plot) -> io::Result<()> {
    write(&mut terminal::stdout(), plot, terminal::width())
}

fn write(out: &mut impl Write, plot: &Plot, width: usize) -> io::Result<()> {
    let width = width.saturating_sub(MARGIN + 4).clamp(20, 72);
    let (bold, dim) = (Style::new().bold(), Style::new().dimmed());
    write!(out, "\n{bold}{}{bold:#}  ", plot.title)?;
    for (number, series) in plot.series.iter().enumerate() {
        let (mark, style) = (mark(number), style(series.carrier));
        write!(out, "  {style}{mark} {}{style:#}", series.name)?;
    }
    writeln!(out)?;
    let grid = draw(plot, width);
    let y_range = plot.y_range();
    let mut labels = vec![String::new(); HEIGHT];
    for (y, label) in plot.ticks_up() {
        labels[row(y_range.position(y))] = label;
    }
    for (line, label) in grid.iter().zip(&labels) {
        let edge = if label.is_empty() { '│' } else { '┤' };
        write!(out, "{dim}{label:>MARGIN$} {edge}{dim:#}")?;
        for cell in line {
            match cell {
                Some((c, carrier)) => {
                    let style = style(*carrier);
                    write!(out, "{style}{c}{style:#}")?;
                }
                None => write!(out, " ")?,
            }
        }
        writeln!(out)?;
    }
    let mut axis = vec!['─'; width];
    let mut names = vec![' '; width + 8];
    let x_range = plot.x_range();
    let mut free = 0;
    for (x, label) in plot.ticks_across() {
        let at = column(x_range.position(x), width);
        axis[at] = '┴';
        let start = at.saturating_sub(label.len() / 2);
        // Leave out a label that would touch the previous label.
        if start >= free {
            names.splice(start..start + label.len(), label.chars());
            free = start + label.len() + 1;
        }
    }
    let (axis, names) = (String::from_iter(axis), String::from_iter(names));
    writeln!(out, "{dim}{:MARGIN$} └{axis}{dim:#}", "")?;
    writeln!(out, "{dim}{:MARGIN$}  {}{dim:#}", "", names.trim_end())?;
    let label = format!("{:^width$}", plot.label_across());
    writeln!(out, "{dim}{:MARGIN$}  {}{dim:#}", "", label.trim_end())
}

type Grid = Vec<Vec<Option<(char, Carrier)>>>;

fn draw(plot: &Plot, width: usize) -> Grid {
    let mut grid: Grid = vec![vec![None; width]; HEIGHT];
    let (x_range, y_range) = (plot.x_range(), plot.y_range());
    let positions = |series: &Series| -> Vec<(f64, f64)> {
        let points = series.points.iter();
        points
            .map(|(x, y)| (x_range.position(*x), y_range.position(*y)))
            .collect()
    };
    // Later drawing overwrites earlier drawing. Therefore draw the lines before the points, and
    // draw the first series after all other series.
    for series in plot.series.iter().rev() {
        for pair in positions(series).windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let steps = (width * 2).max(1);
            for step in 0..=steps {
                let part = step as f64 / steps as f64;
                let (x, y) = (x0 + (x1 - x0) * part, y0 + (y1 - y0) * part);
                grid[row(y)][column(x, width)] = Some(('·', series.carrier));
            }
        }
    }
    for (number, series) in plot.series.iter().enumerate().rev() {
        for (x, y) in positions(series) {
            grid[row(y)][column(x, width)] = Some((mark(number), series.carrier));
        }
    }
    grid
}

fn row(position: f64) -> usize {
    let from_below = (position.clamp(0.0, 1.0) * (HEIGHT - 1) as f64).round() as usize;
    HEIGHT - 1 - from_below
}

fn column(position: f64, width: usize) -> usize {
    (position.clamp(0.0, 1.0) * (width - 1) as f64).round() as usize
}

/// Returns the character that marks the points of a series. Eight consecutive series have different
/// characters, so they can be distinguished without colours.
fn mark(number: usize) -> char {
    ['●', '○', '■', '□', '▲', '△', '◆', '◇'][number % 8]
}

fn style(carrier: Carrier) -> Style {
    match carrier {
        Carrier::Rdma | Carrier::Auto => AnsiColor::Green.on_default(),
        Carrier::Tcp => AnsiColor::Yellow.on_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::plot::testing, *};
    use crate::terminal::plain;

    #[test]
    fn a_plot_stands_in_its_axes() {
        let mut out = Vec::new();
        write(&mut out, &testing::plots()[0], 60).unwrap();
        let out = plain(&out);
        let lines: Vec<&str> = out.lines().collect();
        assert!(
            lines[1].contains("● RDMA") && lines[1].contains("○ TCP"),
            "{out}"
        );
        assert_eq!(out.matches('●').count(), 1 + 3, "{out}");
        assert_eq!(out.matches('○').count(), 1 + 3, "{out}");
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{out}");
        let at = |mark: char| lines.iter().skip(2).position(|line| line.contains(mark));
        assert!(
            at('●') < at('○'),
            "a greater value must be drawn higher:\n{out}"
        );
        assert!(lines[lines.len() - 2].contains("16 KiB"), "{out}");
        assert_eq!(lines[lines.len() - 1].trim(), "size of a message");
    }
}
