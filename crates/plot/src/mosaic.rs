//! Squares in rows: each stands for an equal part of something long, and its colour says what is there.

use crate::drawing::{Anchor, Colour, Drawing, Shape};

/// An entry of the legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The colour.
    pub colour: Colour,
    /// What it means.
    pub label: String,
}

/// Squares, from left to right and from top to bottom.
#[derive(Clone, Debug, PartialEq)]
pub struct Mosaic {
    /// What stands above it.
    pub title: String,
    /// The colour of each square.
    pub squares: Vec<Colour>,
    /// What the colours mean.
    pub legend: Vec<Key>,
}

/// Mosaics one below the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Mosaics {
    /// What stands above all.
    pub title: String,
    /// Pixels; at least 300.
    pub width: u32,
    /// Pixels of a square's side; at least 1.
    pub side: u32,
    /// What is drawn.
    pub parts: Vec<Mosaic>,
}

const MARGIN: f64 = 12.0;
const LINE: f64 = 18.0;
/// The font is as wide as this.
const LETTER: f64 = 7.2;

impl Mosaics {
    /// Squares of a row in a picture so wide; at least one.
    #[must_use]
    pub fn columns(width: u32, side: u32) -> usize {
        let inside = width.max(300) - 2 * MARGIN as u32;
        ((inside / side.max(1)) as usize).max(1)
    }

    /// The picture.
    #[must_use]
    pub fn draw(&self) -> Drawing {
        let side = f64::from(self.side.max(1));
        let columns = Self::columns(self.width, self.side);
        let mut drawing = Drawing {
            width: self.width.max(300),
            height: 0,
            shapes: Vec::new(),
        };
        let mut y = MARGIN + 12.0;
        drawing.text(MARGIN, y, &*self.title, Anchor::Start);
        for part in &self.parts {
            y += LINE + 6.0;
            drawing.text(MARGIN, y, &*part.title, Anchor::Start);
            y += 8.0;
            for row in part.squares.chunks(columns) {
                let mut x = 0;
                while x < row.len() {
                    let same = row[x..].iter().take_while(|c| **c == row[x]).count();
                    drawing.shapes.push(Shape::Rect {
                        x: MARGIN + x as f64 * side,
                        y,
                        w: same as f64 * side,
                        h: side,
                        colour: row[x],
                    });
                    x += same;
                }
                y += side;
            }
            y += 4.0;
            y = legend(&mut drawing, &part.legend, y);
        }
        drawing.height = (y + MARGIN) as u32;
        drawing
    }
}

/// Draws the keys in as many lines as they need. Where the lines end.
fn legend(drawing: &mut Drawing, keys: &[Key], mut y: f64) -> f64 {
    let right = f64::from(drawing.width) - MARGIN;
    let mut x = MARGIN;
    y += LINE;
    for key in keys {
        let wide = 18.0 + key.label.chars().count() as f64 * LETTER + 14.0;
        if x + wide > right && x > MARGIN {
            x = MARGIN;
            y += LINE;
        }
        // A frame, because some colours are near white.
        for (inset, colour) in [(0.0, Colour::INK), (1.0, key.colour)] {
            drawing.shapes.push(Shape::Rect {
                x: x + inset,
                y: y - 10.0 + inset,
                w: 12.0 - 2.0 * inset,
                h: 12.0 - 2.0 * inset,
                colour,
            });
        }
        drawing.text(x + 18.0, y, &*key.label, Anchor::Start);
        x += wide;
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_square_wider_than_the_picture_has_a_row_of_its_own() {
        for side in [276, 277, 5000, u32::MAX] {
            let picture = Mosaics {
                title: "t".into(),
                width: 0,
                side,
                parts: vec![Mosaic {
                    title: "p".into(),
                    squares: vec![Colour::INK; 3],
                    legend: Vec::new(),
                }],
            };
            assert_eq!(Mosaics::columns(0, side), 1);
            assert_eq!(picture.draw().shapes.len(), 2 + 3, "{side}");
        }
    }

    #[test]
    fn every_square_is_drawn_once_in_its_row() {
        let (a, b) = (Colour(1, 2, 3), Colour(4, 5, 6));
        let columns = Mosaics::columns(300, 4);
        let mut squares = vec![a; columns + 3];
        squares[columns - 1] = b;
        let picture = Mosaics {
            title: "t".into(),
            width: 300,
            side: 4,
            parts: vec![Mosaic {
                title: "p".into(),
                squares,
                legend: vec![Key {
                    colour: b,
                    label: "x<y".into(),
                }],
            }],
        };
        let drawing = picture.draw();
        let area = |colour: Colour| -> f64 {
            let rects = drawing.shapes.iter().filter_map(|s| match s {
                Shape::Rect {
                    w, h, colour: c, ..
                } if *c == colour => Some(w * h),
                _ => None,
            });
            rects.sum()
        };
        assert_eq!(area(a), (columns + 2) as f64 * 16.0);
        assert_eq!(area(b), 16.0 + 100.0);
        let svg = drawing.svg();
        assert!(svg.contains("x&lt;y"), "{svg}");
        assert!(drawing.png().unwrap().len() > 100);
    }
}
