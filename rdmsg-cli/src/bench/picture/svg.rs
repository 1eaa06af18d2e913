use std::fmt::Write;

use super::{Align, Canvas, Colour};

/// A picture of lines and texts, which stay sharp.
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new(width: f32, height: f32) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"15\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ))
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0 += "</svg>\n";
        self.0.into_bytes()
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // A string takes what is written to it.
        let _ = writeln!(self.0, "{element}");
    }
}

impl Canvas for Svg {
    fn line(&mut self, points: &[(f32, f32)], width: f32, colour: Colour) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"/>",
            points.join(" "),
            hex(colour)
        ));
    }

    fn dot(&mut self, (x, y): (f32, f32), radius: f32, colour: Colour) {
        let colour = hex(colour);
        self.add(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>"
        ));
    }

    fn text(&mut self, (x, y): (f32, f32), align: Align, text: &str, colour: Colour) {
        let anchor = match align {
            Align::Left => "start",
            Align::Middle => "middle",
            Align::Right => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{}\">{text}</text>",
            y + 5.0,
            hex(colour)
        ));
    }
}

fn hex([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}
