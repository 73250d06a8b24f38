//! Ranges, round ticks and their labels.

/// What an axis shows, for its labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Numbers: 10, 2k, 3M.
    Plain,
    /// Bytes: 4 KiB, 1 GiB.
    Bytes,
    /// Seconds.
    Seconds,
}

/// A range of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The smallest value.
    pub min: f64,
    /// The largest one; more than `min`.
    pub max: f64,
    /// What it shows.
    pub scale: Scale,
}

impl Axis {
    /// An axis of this range; one without extent gets some.
    #[must_use]
    pub fn new(min: f64, max: f64, scale: Scale) -> Self {
        let min = if min.is_finite() { min } else { 0.0 };
        let max = if max.is_finite() && max > min {
            max
        } else {
            min + 1.0
        };
        Axis { min, max, scale }
    }

    /// Where a value lies: 0 at the minimum, 1 at the maximum. Values outside are moved to the end.
    #[must_use]
    pub fn at(&self, value: f64) -> f64 {
        ((value - self.min) / (self.max - self.min)).clamp(0.0, 1.0)
    }

    /// Round values at about `count` places, with their labels.
    #[must_use]
    pub fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let raw = (self.max - self.min) / count.max(1) as f64;
        let step = match self.scale {
            Scale::Bytes => 2f64.powi(raw.log2().ceil() as i32).max(1.0),
            Scale::Plain | Scale::Seconds => {
                let power = 10f64.powi(raw.log10().floor() as i32);
                let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| power * f >= raw);
                power * factor.unwrap_or(10.0)
            }
        };
        let mut ticks = Vec::new();
        let mut k = (self.min / step).ceil();
        while k * step <= self.max * (1.0 + 1e-12) && ticks.len() < 100 {
            let value = k * step;
            ticks.push((value, self.label(value, step)));
            k += 1.0;
        }
        ticks
    }

    fn label(&self, value: f64, step: f64) -> String {
        match self.scale {
            Scale::Bytes => bytes(value),
            Scale::Plain => plain(value, step),
            Scale::Seconds => format!("{} s", decimals(value, step)),
        }
    }
}

/// With as many decimals as tell neighbours apart.
fn decimals(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{value:.digits$}")
}

fn plain(value: f64, step: f64) -> String {
    let (unit, name) = match value.abs() {
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{}{name}", decimals(value / unit, step / unit))
}

fn bytes(value: f64) -> String {
    let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = value;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < names.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {}", names[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, count: usize) -> Vec<String> {
        axis.ticks(count).into_iter().map(|(_, l)| l).collect()
    }

    #[test]
    fn ticks_are_round() {
        let axis = Axis::new(0.0, 1.0, Scale::Seconds);
        assert_eq!(
            labels(&axis, 5),
            ["0.0 s", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1.0 s"]
        );
        let axis = Axis::new(0.0, 45_000.0, Scale::Plain);
        assert_eq!(labels(&axis, 5), ["0", "10k", "20k", "30k", "40k"]);
        let axis = Axis::new(0.0, 1e9, Scale::Bytes);
        assert_eq!(labels(&axis, 4), ["0 B", "256 MiB", "512 MiB", "768 MiB"]);
    }

    #[test]
    fn nothing_is_plotted_outside() {
        let axis = Axis::new(5.0, 5.0, Scale::Plain);
        assert!(axis.max > axis.min);
        assert_eq!(axis.at(4.0), 0.0);
        assert_eq!(axis.at(100.0), 1.0);
        assert!(
            Axis::new(f64::NAN, f64::INFINITY, Scale::Plain)
                .ticks(3)
                .len()
                > 1
        );
    }
}
