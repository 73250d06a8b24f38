//! Shapes, and their SVG.

use std::fmt::Write;

/// A colour: red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

impl Colour {
    pub(crate) const INK: Colour = Colour(0x33, 0x33, 0x33);
    pub(crate) const FAINT: Colour = Colour(0xdd, 0xdd, 0xdd);
    pub(crate) const WHITE: Colour = Colour(0xff, 0xff, 0xff);

    fn hex(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

/// Colours that most colour-blind readers can tell apart, too.
pub const PALETTE: [Colour; 6] = [
    Colour(0x00, 0x72, 0xb2),
    Colour(0xd5, 0x5e, 0x00),
    Colour(0x00, 0x9e, 0x73),
    Colour(0xcc, 0x79, 0xa7),
    Colour(0x56, 0xb4, 0xe9),
    Colour(0xe6, 0x9f, 0x00),
];

/// Which point of a text is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its left end.
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

/// Something to draw. Coordinates are pixels from the top left.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A filled rectangle.
    Rect {
        /// Left.
        x: f64,
        /// Top.
        y: f64,
        /// Width.
        w: f64,
        /// Height.
        h: f64,
        /// Colour.
        colour: Colour,
    },
    /// A line through points.
    Line {
        /// The points.
        points: Vec<(f64, f64)>,
        /// Colour.
        colour: Colour,
        /// Width.
        width: u32,
    },
    /// Single pixels: rows of (x, y, how many to the right).
    Dots {
        /// The rows.
        runs: Vec<(u32, u32, u32)>,
        /// Colour.
        colour: Colour,
        /// What the dots mean, for readers of the SVG.
        name: String,
    },
    /// Text of one size; `y` is its base line.
    Text {
        /// Where it is anchored.
        x: f64,
        /// The base line.
        y: f64,
        /// The text.
        text: String,
        /// Which point `x` is.
        anchor: Anchor,
        /// Colour.
        colour: Colour,
    },
}

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// What is on it, from back to front.
    pub shapes: Vec<Shape>,
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no way to write these.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

impl Drawing {
    pub(crate) fn text(&mut self, x: f64, y: f64, text: impl Into<String>, anchor: Anchor) {
        self.shapes.push(Shape::Text {
            x,
            y,
            text: text.into(),
            anchor,
            colour: Colour::INK,
        });
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: Colour) {
        self.shapes.push(Shape::Line {
            points: vec![from, to],
            colour,
            width: 1,
        });
    }

    /// The picture as SVG, which can stand alone or inside of HTML.
    #[must_use]
    pub fn svg(&self) -> String {
        let (w, h) = (self.width, self.height);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" font-family=\"monospace\" font-size=\"12\">\n\
             <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n"
        );
        for shape in &self.shapes {
            // Writing to a string cannot fail.
            let _ = match shape {
                Shape::Rect { x, y, w, h, colour } => writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" fill=\"{}\"/>",
                    colour.hex()
                ),
                Shape::Line {
                    points,
                    colour,
                    width,
                } => {
                    let list: Vec<String> = points
                        .iter()
                        .map(|(x, y)| format!("{x:.1},{y:.1}"))
                        .collect();
                    writeln!(
                        out,
                        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"/>",
                        list.join(" "),
                        colour.hex()
                    )
                }
                Shape::Dots { runs, colour, name } => {
                    let mut path = String::with_capacity(runs.len() * 10);
                    for (x, y, n) in runs {
                        let _ = write!(path, "M{x} {y}.5h{n}");
                    }
                    writeln!(
                        out,
                        "<path class=\"{}\" d=\"{path}\" stroke=\"{}\" shape-rendering=\"crispEdges\"/>",
                        escaped(name),
                        colour.hex()
                    )
                }
                Shape::Text {
                    x,
                    y,
                    text,
                    anchor,
                    colour,
                } => {
                    let anchor = match anchor {
                        Anchor::Start => "start",
                        Anchor::Middle => "middle",
                        Anchor::End => "end",
                    };
                    writeln!(
                        out,
                        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{}\">{}</text>",
                        colour.hex(),
                        escaped(text)
                    )
                }
            };
        }
        out.push_str("</svg>\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out() {
        let mut drawing = Drawing {
            width: 10,
            height: 10,
            shapes: Vec::new(),
        };
        drawing.text(0.0, 0.0, "<script>&\"\u{1}", Anchor::Start);
        let svg = drawing.svg();
        assert!(svg.contains("&lt;script&gt;&amp;&quot;\u{fffd}<"), "{svg}");
    }
}
