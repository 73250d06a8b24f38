//! Bars to the right, in groups, with their spread.

use crate::axis::{Axis, Scale};
use crate::drawing::{Anchor, Colour, Drawing, PALETTE, Shape};

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Whose it is: bars of one name have one colour.
    pub series: String,
    /// Its length.
    pub value: f64,
    /// The smallest and the largest of the values that it stands for.
    pub range: (f64, f64),
}

/// Bars that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct BarGroup {
    /// What stands above them.
    pub label: String,
    /// The bars.
    pub bars: Vec<Bar>,
    /// A value that is marked.
    pub mark: Option<f64>,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// What stands above all.
    pub title: String,
    /// Pixels.
    pub width: u32,
    /// The groups. Each has a scale of its own: what they measure differs.
    pub groups: Vec<BarGroup>,
    /// The unit of the values, shown behind them.
    pub unit: String,
}

const BAR: f64 = 16.0;
const NAMES: f64 = 200.0;
const VALUES: f64 = 120.0;

impl BarChart {
    /// The picture.
    #[must_use]
    pub fn draw(&self) -> Drawing {
        let bars: usize = self.groups.iter().map(|g| g.bars.len()).sum();
        let height = 40.0 + self.groups.len() as f64 * 34.0 + bars as f64 * (BAR + 4.0);
        let mut drawing = Drawing {
            width: self.width.max(500),
            height: height as u32,
            shapes: Vec::new(),
        };
        drawing.text(10.0, 20.0, &*self.title, Anchor::Start);
        let mut series: Vec<&str> = Vec::new();
        for bar in self.groups.iter().flat_map(|g| &g.bars) {
            if !series.contains(&bar.series.as_str()) {
                series.push(&bar.series);
            }
        }
        let inside = f64::from(drawing.width) - NAMES - VALUES;
        let mut y = 40.0;
        for group in &self.groups {
            y += 18.0;
            drawing.text(10.0, y, &*group.label, Anchor::Start);
            y += 6.0;
            let all = group.bars.iter().flat_map(|b| [b.value, b.range.1]);
            let max = all.chain(group.mark).fold(0.0, f64::max);
            let axis = Axis::new(0.0, max, Scale::Plain);
            let top = y;
            for bar in &group.bars {
                let colour = series.iter().position(|s| *s == bar.series).unwrap_or(0);
                let colour = PALETTE[colour % PALETTE.len()];
                drawing.text(NAMES - 8.0, y + 12.0, &*bar.series, Anchor::End);
                drawing.shapes.push(Shape::Rect {
                    x: NAMES,
                    y,
                    w: (axis.at(bar.value) * inside).max(1.0),
                    h: BAR,
                    colour,
                });
                let (lo, hi) = (axis.at(bar.range.0) * inside, axis.at(bar.range.1) * inside);
                let middle = y + BAR / 2.0;
                drawing.line((NAMES + lo, middle), (NAMES + hi, middle), Colour::INK);
                for end in [lo, hi] {
                    drawing.line(
                        (NAMES + end, middle - 4.0),
                        (NAMES + end, middle + 4.0),
                        Colour::INK,
                    );
                }
                let text = format!("{} {}", short(bar.value), self.unit);
                let after = NAMES + axis.at(bar.value.max(bar.range.1)) * inside + 6.0;
                drawing.text(after, y + 12.0, text.trim(), Anchor::Start);
                y += BAR + 4.0;
            }
            if let Some(mark) = group.mark {
                let x = NAMES + axis.at(mark) * inside;
                drawing.line((x, top - 2.0), (x, y), Colour(0xcc, 0, 0));
            }
            y += 10.0;
        }
        drawing
    }
}

/// A number with about three digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_proportional() {
        let bar = |series: &str, value: f64| Bar {
            series: series.into(),
            value,
            range: (value, value),
        };
        let chart = BarChart {
            title: "t".into(),
            width: 520,
            groups: vec![BarGroup {
                label: "g".into(),
                bars: vec![bar("a", 100.0), bar("b", 25.0)],
                mark: Some(50.0),
            }],
            unit: "MB/s".into(),
        };
        let shapes = chart.draw().shapes;
        let widths: Vec<f64> = shapes
            .iter()
            .filter_map(|s| match s {
                Shape::Rect { w, .. } => Some(*w),
                _ => None,
            })
            .collect();
        assert_eq!(widths, [200.0, 50.0]);
        assert!(chart.draw().svg().contains("25.0 MB/s"));
    }
}
