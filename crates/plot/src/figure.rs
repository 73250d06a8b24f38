//! Panels one below the other that share their horizontal axis.

use crate::axis::Axis;
use crate::drawing::{Anchor, Colour, Drawing, Shape};

const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 34.0;
const BETWEEN: f64 = 38.0;
const BOTTOM: f64 = 44.0;

/// Pixels that are set or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    width: u32,
    height: u32,
    bits: Vec<u64>,
}

impl Grid {
    /// An empty one.
    #[must_use]
    pub fn new(width: u32, height: u32) -> Self {
        let bits = (u64::from(width) * u64::from(height)).div_ceil(64);
        Grid {
            width,
            height,
            bits: vec![0; bits as usize],
        }
    }

    /// Sets the pixel at these shares (0 to 1) of width and height, from the bottom left.
    pub fn set(&mut self, x: f64, y: f64) {
        let place = |share: f64, size: u32| {
            let at = (share.clamp(0.0, 1.0) * f64::from(size)) as u32;
            at.min(size.saturating_sub(1))
        };
        if self.width == 0 || self.height == 0 {
            return;
        }
        let row = self.height - 1 - place(y, self.height);
        let at = u64::from(row) * u64::from(self.width) + u64::from(place(x, self.width));
        self.bits[(at / 64) as usize] |= 1 << (at % 64);
    }

    /// Sets a stretch of a column.
    pub fn set_column(&mut self, x: f64, from: f64, to: f64) {
        let step = 1.0 / f64::from(self.height.max(1));
        let mut y = from;
        while y < to {
            self.set(x, y);
            y += step;
        }
        self.set(x, from);
    }

    fn get(&self, x: u32, y: u32) -> bool {
        let at = u64::from(y) * u64::from(self.width) + u64::from(x);
        self.bits[(at / 64) as usize] >> (at % 64) & 1 == 1
    }

    /// How many pixels are set.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.bits.iter().map(|b| u64::from(b.count_ones())).sum()
    }

    /// Rows of set pixels: (x, y, how many).
    fn runs(&self) -> Vec<(u32, u32, u32)> {
        let mut runs = Vec::new();
        for y in 0..self.height {
            let mut x = 0;
            while x < self.width {
                let from = x;
                while x < self.width && self.get(x, y) {
                    x += 1;
                }
                if x > from {
                    runs.push((from, y, x - from));
                }
                x += 1;
            }
        }
        runs
    }
}

/// What a panel shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// A cloud of dots, as large as the panel's inside ([`Figure::inside`]).
    Dots {
        /// What they are.
        name: String,
        /// Their colour.
        colour: Colour,
        /// Where they are.
        grid: Grid,
    },
    /// A line.
    Line {
        /// What it is.
        name: String,
        /// Its colour.
        colour: Colour,
        /// Its points, in the axes' units.
        points: Vec<(f64, f64)>,
    },
}

/// One plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What stands above it.
    pub title: String,
    /// The vertical axis.
    pub y: Axis,
    /// Pixels inside of the axes.
    pub height: u32,
    /// What it shows.
    pub layers: Vec<Layer>,
}

/// Plots one below the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What stands above all.
    pub title: String,
    /// Pixels, margins included; at least 200.
    pub width: u32,
    /// The axis that all share.
    pub x: Axis,
    /// The plots.
    pub panels: Vec<Panel>,
}

impl Figure {
    /// Pixels between the left and the right end of the horizontal axis of a figure so wide.
    #[must_use]
    pub fn inside(width: u32) -> u32 {
        width.max(200) - (LEFT + RIGHT) as u32
    }

    /// The picture.
    #[must_use]
    pub fn draw(&self) -> Drawing {
        let inside = f64::from(Self::inside(self.width));
        let heights: f64 = self.panels.iter().map(|p| f64::from(p.height)).sum();
        let between = BETWEEN * self.panels.len() as f64;
        let mut drawing = Drawing {
            width: self.width.max(200),
            height: (TOP + between + heights + BOTTOM) as u32,
            shapes: Vec::new(),
        };
        drawing.text(LEFT, 20.0, &*self.title, Anchor::Start);
        let mut top = TOP + BETWEEN;
        for (k, panel) in self.panels.iter().enumerate() {
            let last = k + 1 == self.panels.len();
            self.draw_panel(&mut drawing, panel, top, inside, last);
            top += f64::from(panel.height) + BETWEEN;
        }
        drawing
    }

    fn draw_panel(&self, drawing: &mut Drawing, panel: &Panel, top: f64, inside: f64, last: bool) {
        let height = f64::from(panel.height);
        let bottom = top + height;
        drawing.text(LEFT, top - 10.0, &*panel.title, Anchor::Start);
        for (value, label) in panel.y.ticks((panel.height / 40).max(2) as usize) {
            let y = bottom - panel.y.at(value) * height;
            drawing.line((LEFT, y), (LEFT + inside, y), Colour::FAINT);
            drawing.text(LEFT - 6.0, y + 4.0, label, Anchor::End);
        }
        for (value, label) in self.x.ticks((inside / 110.0) as usize) {
            let x = LEFT + self.x.at(value) * inside;
            drawing.line((x, top), (x, bottom), Colour::FAINT);
            if last {
                drawing.text(x, bottom + 16.0, label, Anchor::Middle);
            }
        }
        // The legend, from the right.
        let mut right = LEFT + inside;
        for layer in panel.layers.iter().rev() {
            let (Layer::Dots { name, colour, .. } | Layer::Line { name, colour, .. }) = layer;
            if name.is_empty() {
                continue;
            }
            drawing.text(right, top - 10.0, &**name, Anchor::End);
            right -= name.chars().count() as f64 * 7.3 + 8.0;
            drawing.shapes.push(Shape::Rect {
                x: right - 4.0,
                y: top - 18.0,
                w: 8.0,
                h: 8.0,
                colour: *colour,
            });
            right -= 16.0;
        }
        for layer in &panel.layers {
            match layer {
                Layer::Dots { name, colour, grid } => {
                    let moved = grid.runs().into_iter();
                    let moved = moved.map(|(x, y, n)| (x + LEFT as u32, y + top as u32, n));
                    drawing.shapes.push(Shape::Dots {
                        runs: moved.collect(),
                        colour: *colour,
                        name: name.clone(),
                    });
                }
                Layer::Line { colour, points, .. } => {
                    let place = |(x, y): &(f64, f64)| {
                        (
                            LEFT + self.x.at(*x) * inside,
                            bottom - panel.y.at(*y) * height,
                        )
                    };
                    drawing.shapes.push(Shape::Line {
                        points: points.iter().map(place).collect(),
                        colour: *colour,
                        width: 1,
                    });
                }
            }
        }
        drawing.line((LEFT, top), (LEFT, bottom), Colour::INK);
        drawing.line((LEFT, bottom), (LEFT + inside, bottom), Colour::INK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::Scale;
    use crate::drawing::PALETTE;

    #[test]
    fn dots_are_where_they_belong() {
        let mut grid = Grid::new(Figure::inside(300), 50);
        for k in 0..1_000_000 {
            grid.set(f64::from(k) / 1e6, 0.0);
        }
        grid.set(1.0, 1.0);
        grid.set_column(0.5, 0.2, 0.4);
        assert_eq!(grid.count(), 190 + 1 + 10);
        let figure = Figure {
            title: "t".into(),
            width: 300,
            x: Axis::new(0.0, 1.0, Scale::Seconds),
            panels: vec![Panel {
                title: "p".into(),
                y: Axis::new(0.0, 1.0, Scale::Plain),
                height: 50,
                layers: vec![Layer::Dots {
                    name: "writes".into(),
                    colour: PALETTE[0],
                    grid,
                }],
            }],
        };
        let drawing = figure.draw();
        let Some(Shape::Dots { runs, .. }) = drawing
            .shapes
            .iter()
            .find(|s| matches!(s, Shape::Dots { .. }))
        else {
            panic!("no dots");
        };
        // The top right corner, ten single pixels, and the whole bottom row as one.
        assert_eq!(runs.len(), 12);
        assert_eq!(runs[0], (90 + 189, 72, 1));
        assert_eq!(runs[11], (90, 72 + 49, 190));
        assert!(figure.draw().svg().len() < 10_000);
    }
}
