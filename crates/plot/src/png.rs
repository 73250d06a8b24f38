//! Pixels, and their PNG.
//!
//! Reference: the PNG specification (W3C, third edition): signature, IHDR, IDAT, IEND; colour type 2, filter 0.

use crate::drawing::{Anchor, Colour, Drawing, Shape};
use embedded_graphics::Drawable;
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::iso_8859_1::FONT_7X13;
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::{DrawTarget, OriginDimensions, Pixel, Point, RgbColor, Size};
use embedded_graphics::primitives::{Line, PrimitiveStyle, Rectangle, StyledDrawable};
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use std::convert::Infallible;
use std::io::{self, Write};

/// Pixels, three bytes each, rows from the top.
struct Raster {
    width: u32,
    height: u32,
    bytes: Vec<u8>,
}

impl Raster {
    fn set(&mut self, x: i64, y: i64, colour: [u8; 3]) {
        if (0..i64::from(self.width)).contains(&x) && (0..i64::from(self.height)).contains(&y) {
            let at = (y as usize * self.width as usize + x as usize) * 3;
            self.bytes[at..at + 3].copy_from_slice(&colour);
        }
    }
}

impl OriginDimensions for Raster {
    fn size(&self) -> Size {
        Size::new(self.width, self.height)
    }
}

impl DrawTarget for Raster {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Pixel<Rgb888>>,
    {
        for Pixel(point, colour) in pixels {
            self.set(
                i64::from(point.x),
                i64::from(point.y),
                [colour.r(), colour.g(), colour.b()],
            );
        }
        Ok(())
    }
}

fn rgb(colour: Colour) -> Rgb888 {
    Rgb888::new(colour.0, colour.1, colour.2)
}

fn point(x: f64, y: f64) -> Point {
    Point::new(x.round() as i32, y.round() as i32)
}

impl Raster {
    fn draw(&mut self, shape: &Shape) {
        // This target never fails.
        let Ok(()) = match shape {
            Shape::Rect { x, y, w, h, colour } => {
                let size = Size::new(w.round().max(1.0) as u32, h.round().max(1.0) as u32);
                Rectangle::new(point(*x, *y), size)
                    .draw_styled(&PrimitiveStyle::with_fill(rgb(*colour)), self)
            }
            Shape::Line {
                points,
                colour,
                width,
            } => {
                let style = PrimitiveStyle::with_stroke(rgb(*colour), *width);
                points.windows(2).try_for_each(|pair| {
                    let line = Line::new(point(pair[0].0, pair[0].1), point(pair[1].0, pair[1].1));
                    line.draw_styled(&style, self)
                })
            }
            Shape::Dots { runs, colour, .. } => {
                for (x, y, n) in runs {
                    for x in *x..x + n {
                        let colour = [colour.0, colour.1, colour.2];
                        self.set(i64::from(x), i64::from(*y), colour);
                    }
                }
                Ok(())
            }
            Shape::Text {
                x,
                y,
                text,
                anchor,
                colour,
            } => {
                let style = MonoTextStyle::new(&FONT_7X13, rgb(*colour));
                let alignment = match anchor {
                    Anchor::Start => Alignment::Left,
                    Anchor::Middle => Alignment::Center,
                    Anchor::End => Alignment::Right,
                };
                let layout = TextStyleBuilder::new()
                    .alignment(alignment)
                    .baseline(Baseline::Alphabetic)
                    .build();
                Text::with_text_style(text, point(*x, *y), style, layout)
                    .draw(self)
                    .map(drop)
            }
        };
    }
}

fn chunk(out: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    let start = out.len();
    out.extend_from_slice(kind);
    out.extend_from_slice(data);
    let mut crc = Crc::new();
    crc.update(&out[start..]);
    out.extend_from_slice(&crc.sum().to_be_bytes());
}

impl Drawing {
    /// The picture as PNG.
    ///
    /// # Errors
    /// None that is known: compressing into memory does not fail.
    pub fn png(&self) -> io::Result<Vec<u8>> {
        let white = Colour::WHITE;
        let pixels = self.width as usize * self.height as usize;
        let mut raster = Raster {
            width: self.width,
            height: self.height,
            bytes: [white.0, white.1, white.2].repeat(pixels),
        };
        for shape in &self.shapes {
            raster.draw(shape);
        }
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::default());
        for row in raster.bytes.chunks(self.width.max(1) as usize * 3) {
            packer.write_all(&[0])?;
            packer.write_all(row)?;
        }
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut head = Vec::new();
        head.extend_from_slice(&self.width.to_be_bytes());
        head.extend_from_slice(&self.height.to_be_bytes());
        // Eight bits a channel, red green blue, and the only methods there are.
        head.extend_from_slice(&[8, 2, 0, 0, 0]);
        chunk(&mut out, b"IHDR", &head);
        chunk(&mut out, b"IDAT", &packer.finish()?);
        chunk(&mut out, b"IEND", &[]);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::ZlibDecoder;
    use std::io::Read;

    #[test]
    fn pixels_come_out_as_drawn() {
        let drawing = Drawing {
            width: 40,
            height: 20,
            shapes: vec![
                Shape::Rect {
                    x: 2.0,
                    y: 3.0,
                    w: 4.0,
                    h: 5.0,
                    colour: Colour(1, 2, 3),
                },
                Shape::Dots {
                    runs: vec![(10, 10, 3), (38, 19, 100)],
                    colour: Colour(9, 8, 7),
                    name: String::new(),
                },
                Shape::Text {
                    x: 20.0,
                    y: 15.0,
                    text: "µX".into(),
                    anchor: Anchor::Start,
                    colour: Colour(0, 0, 0),
                },
            ],
        };
        let png = drawing.png().unwrap();
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        assert_eq!(&png[12..24], b"IHDR\0\0\0\x28\0\0\0\x14");
        let length = u32::from_be_bytes(png[33..37].try_into().unwrap()) as usize;
        assert_eq!(&png[37..41], b"IDAT");
        let mut rows = Vec::new();
        ZlibDecoder::new(&png[41..41 + length])
            .read_to_end(&mut rows)
            .unwrap();
        assert_eq!(rows.len(), 20 * (40 * 3 + 1));
        let pixel = |x: usize, y: usize| &rows[y * 121 + 1 + x * 3..][..3];
        assert_eq!(pixel(2, 3), [1, 2, 3]);
        assert_eq!(pixel(5, 7), [1, 2, 3]);
        assert_eq!(pixel(6, 8), [255, 255, 255]);
        assert_eq!(pixel(12, 10), [9, 8, 7]);
        assert_eq!(pixel(39, 19), [9, 8, 7]);
        let ink = (0..20).flat_map(|y| (20..36).map(move |x| (x, y)));
        assert!(ink.filter(|(x, y)| pixel(*x, *y) == [0, 0, 0]).count() > 10);
    }
}
