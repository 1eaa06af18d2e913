//! Plots as pictures.

mod png;
mod svg;

use anyhow::Result;

use self::{png::Png, svg::Svg};
use super::plot::Plot;
use crate::carrier::Carrier;

/// Of the picture, in pixels; each plot has as much height.
const WIDTH: f32 = 900.0;
const HEIGHT: f32 = 460.0;

/// What is around a plot: left, right, above, below.
const MARGINS: [f32; 4] = [110.0, 40.0, 70.0, 60.0];

/// How a picture is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Svg,
    Png,
}

/// Red, green, blue.
type Colour = [u8; 3];

const BLACK: Colour = [0x22, 0x22, 0x22];
const GREY: Colour = [0x77, 0x77, 0x77];
const LIGHT: Colour = [0xdd, 0xdd, 0xdd];

/// Something to draw on. Places are in pixels, from the left and from above.
trait Canvas {
    fn line(&mut self, points: &[(f32, f32)], width: f32, colour: Colour);
    fn dot(&mut self, at: (f32, f32), radius: f32, colour: Colour);
    /// A text whose middle is half its height above `at`.
    fn text(&mut self, at: (f32, f32), align: Align, text: &str, colour: Colour);
}

/// Which end of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Middle,
    Right,
}

/// All plots, one below the other.
pub(super) fn draw(plots: &[Plot], format: Format) -> Result<Vec<u8>> {
    let height = HEIGHT * plots.len().max(1) as f32;
    match format {
        Format::Svg => {
            let mut svg = Svg::new(WIDTH, height);
            draw_all(plots, &mut svg);
            Ok(svg.finish())
        }
        Format::Png => {
            let mut png = Png::new(WIDTH as u32, height as u32)?;
            draw_all(plots, &mut png);
            png.finish()
        }
    }
}

fn draw_all(plots: &[Plot], canvas: &mut impl Canvas) {
    for (number, plot) in plots.iter().enumerate() {
        draw_plot(plot, HEIGHT * number as f32, canvas);
    }
}

fn draw_plot(plot: &Plot, top: f32, canvas: &mut impl Canvas) {
    let [left, right, above, below] = MARGINS;
    let (x0, x1) = (left, WIDTH - right);
    let (y0, y1) = (top + HEIGHT - below, top + above);
    let (across, up) = (plot.across(), plot.up());
    // The first and the last point stand free of the edges.
    let inset = 30.0;
    let x = |value: f64| x0 + inset + across.place(value) as f32 * (x1 - x0 - 2.0 * inset);
    let y = |value: f64| y0 + up.place(value) as f32 * (y1 - y0);
    canvas.text((x0, top + 28.0), Align::Left, &plot.title, BLACK);
    for (value, label) in plot.ticks_up() {
        canvas.line(&[(x0, y(value)), (x1, y(value))], 1.0, LIGHT);
        canvas.text((x0 - 10.0, y(value)), Align::Right, &label, GREY);
    }
    for (value, label) in plot.ticks_across() {
        canvas.line(&[(x(value), y0), (x(value), y1)], 1.0, LIGHT);
        canvas.text((x(value), y0 + 20.0), Align::Middle, &label, GREY);
    }
    canvas.line(&[(x0, y1), (x0, y0), (x1, y0)], 1.5, GREY);
    for (number, series) in plot.series.iter().enumerate() {
        let same = plot.series[..number].iter();
        let shade = same.filter(|other| other.carrier == series.carrier).count();
        let colour = colour(series.carrier, shade);
        let points = series.points.iter().map(|(px, py)| (x(*px), y(*py)));
        let points: Vec<(f32, f32)> = points.collect();
        canvas.line(&points, 2.5, colour);
        for point in points {
            canvas.dot(point, 5.0, colour);
        }
        // The legend, from the right.
        let at = x1 - 110.0 * (plot.series.len() - number) as f32 + 20.0;
        canvas.dot((at, top + 52.0), 5.0, colour);
        canvas.text((at + 14.0, top + 52.0), Align::Left, &series.name, BLACK);
    }
}

/// Lines of the same transport differ in brightness.
fn colour(carrier: Carrier, shade: usize) -> Colour {
    let base: Colour = match carrier {
        Carrier::Rdma | Carrier::Auto => [0x0b, 0x6e, 0x4f],
        Carrier::Tcp => [0xd9, 0x7b, 0x0e],
    };
    let lighter = (shade.min(4) * 35) as u8;
    base.map(|part| part.saturating_add(lighter))
}

#[cfg(test)]
mod tests {
    use super::{super::plot::testing, *};

    #[test]
    fn a_picture_has_what_the_plot_has() {
        let plots = testing::plots();
        let svg = String::from_utf8(draw(&plots, Format::Svg).unwrap()).unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        for text in ["RDMA", "TCP", "16K", "200 MB/s", "bandwidth, one way"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 2 * (3 + 1));
        let png = draw(&plots, Format::Png).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    }
}
