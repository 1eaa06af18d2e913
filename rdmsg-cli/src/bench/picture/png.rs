use anyhow::{Context, Result};
use font8x8::UnicodeFonts;
use tiny_skia::{Color, FillRule, LineJoin, Paint, PathBuilder, Pixmap, Rect, Stroke, Transform};

use super::{Align, Canvas, Colour};

/// Pixels of the file for one of the picture.
const SCALE: f32 = 2.0;

/// How wide a letter is in pixels of the picture, and how high: it has 8 by 8 points.
const LETTER: [f32; 2] = [8.0, 12.0];

/// A picture of pixels, which every program shows.
pub(super) struct Png(Pixmap);

impl Png {
    pub(super) fn new(width: u32, height: u32) -> Result<Self> {
        let scale = SCALE as u32;
        let pixels = Pixmap::new(width * scale, height * scale);
        let mut pixels = pixels.context("the picture is too large")?;
        pixels.fill(Color::WHITE);
        Ok(Self(pixels))
    }

    pub(super) fn finish(self) -> Result<Vec<u8>> {
        Ok(self.0.encode_png()?)
    }
}

impl Canvas for Png {
    fn line(&mut self, points: &[(f32, f32)], width: f32, colour: Colour) {
        let mut path = PathBuilder::new();
        for (number, (x, y)) in points.iter().enumerate() {
            if number == 0 {
                path.move_to(*x, *y);
            } else {
                path.line_to(*x, *y);
            }
        }
        // One point is no line.
        let Some(path) = path.finish() else {
            return;
        };
        let stroke = Stroke {
            width,
            line_join: LineJoin::Round,
            ..Stroke::default()
        };
        self.0
            .stroke_path(&path, &paint(colour), &stroke, scaled(), None);
    }

    fn dot(&mut self, (x, y): (f32, f32), radius: f32, colour: Colour) {
        if let Some(path) = PathBuilder::from_circle(x, y, radius) {
            let rule = FillRule::Winding;
            self.0
                .fill_path(&path, &paint(colour), rule, scaled(), None);
        }
    }

    fn text(&mut self, (x, y): (f32, f32), align: Align, text: &str, colour: Colour) {
        let [wide, high] = LETTER;
        let width = wide * text.chars().count() as f32;
        let left = match align {
            Align::Left => x,
            Align::Middle => x - width / 2.0,
            Align::Right => x - width,
        };
        let mut paint = paint(colour);
        paint.anti_alias = false;
        for (number, letter) in text.chars().enumerate() {
            // A letter that the font lacks is left out.
            let Some(rows) = glyph(letter) else {
                continue;
            };
            let at = left.round() + wide * number as f32;
            for (row, bits) in rows.into_iter().enumerate() {
                for column in (0..8).filter(|column| bits & (1 << column) != 0) {
                    let dot = Rect::from_xywh(
                        at + column as f32,
                        y.round() - high / 2.0 + row as f32 * high / 8.0,
                        wide / 8.0,
                        high / 8.0,
                    );
                    if let Some(dot) = dot {
                        self.0.fill_rect(dot, &paint, scaled(), None);
                    }
                }
            }
        }
    }
}

fn glyph(letter: char) -> Option<[u8; 8]> {
    let basic = font8x8::BASIC_FONTS.get(letter);
    basic.or_else(|| font8x8::LATIN_FONTS.get(letter))
}

fn paint(colour: Colour) -> Paint<'static> {
    let [red, green, blue] = colour;
    let mut paint = Paint::default();
    paint.set_color_rgba8(red, green, blue, 255);
    paint.anti_alias = true;
    paint
}

fn scaled() -> Transform {
    Transform::from_scale(SCALE, SCALE)
}
