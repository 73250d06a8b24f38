//! One shape for all results: rows of workloads, variants that are compared, samples of rounds.
//!
//! The first variant of a row is the one that is judged; ratios are of pairs in one round, larger is better
//! for it whatever the unit.

use crate::stats::median;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// 10⁶ bytes a second.
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// Operations a second.
    #[serde(rename = "ops/s")]
    OpsPerSecond,
}

impl Unit {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Unit::MegabytesPerSecond => "MB/s",
            Unit::OpsPerSecond => "ops/s",
        }
    }
}

/// What one timed run gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// In the row's unit.
    pub value: f64,
    /// Counts that go with it: extents, commits, resident memory.
    pub extra: BTreeMap<&'static str, f64>,
}

impl Sample {
    /// Work of `amount` done in `seconds`.
    pub fn rate(amount: f64, seconds: f64) -> Self {
        Sample {
            value: amount / seconds.max(1e-9),
            extra: BTreeMap::new(),
        }
    }

    /// With a count.
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.extra.insert(name, value);
        self
    }
}

/// One thing that is compared.
#[derive(Clone, Debug, Serialize)]
pub struct Variant {
    /// Its name in tables.
    pub name: String,
    /// One value per round.
    pub values: Vec<f64>,
    /// Medians of the counts.
    pub extra: BTreeMap<String, f64>,
}

/// One workload.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Group in tables: "system 5", "mount".
    pub group: String,
    /// What is done.
    pub workload: String,
    /// On which device.
    pub device: String,
    /// What the values count.
    pub unit: Unit,
    /// What is compared; the first is judged.
    pub variants: Vec<Variant>,
    /// What the report that describes the system measured, in words.
    pub reported: &'static str,
}

impl Row {
    /// Ratio of the first variant to the one called `name`, pair by pair: `(median, min, max)`.
    pub fn ratio(&self, name: &str) -> Option<(f64, f64, f64)> {
        let first = &self.variants.first()?.values;
        let other = &self.variants.iter().find(|v| v.name == name)?.values;
        let pairs: Vec<f64> = first.iter().zip(other).map(|(a, b)| a / b).collect();
        if pairs.is_empty() {
            return None;
        }
        let (low, high) = pairs
            .iter()
            .fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        Some((median(&pairs), low, high))
    }
}

/// All rows as Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "| system | workload | device | variant | median | min–max | unit | first ÷ this (pairs: median, min–max) | counts (medians) | reported |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        for (k, variant) in row.variants.iter().enumerate() {
            let (low, high) = variant
                .values
                .iter()
                .fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
            let first = |text: &str| {
                if k == 0 {
                    text.to_owned()
                } else {
                    String::new()
                }
            };
            let ratio = match row.ratio(&variant.name) {
                Some((m, low, high)) if k > 0 => format!("{m:.2} ({low:.2}–{high:.2})"),
                _ => String::new(),
            };
            let counts: Vec<String> = variant
                .extra
                .iter()
                .map(|(name, value)| format!("{name} {value:.0}"))
                .collect();
            out.push_str(&format!(
                "| {} | {} | {} | {} | {:.1} | {low:.1}–{high:.1} | {} | {ratio} | {} | {} |\n",
                first(&row.group),
                first(&row.workload),
                first(&row.device),
                variant.name,
                median(&variant.values),
                row.unit.name(),
                counts.join(", "),
                first(row.reported),
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let variant = |name: &str, values: &[f64]| Variant {
            name: name.to_owned(),
            values: values.to_vec(),
            extra: BTreeMap::from([("extents".to_owned(), 3.0)]),
        };
        Row {
            group: "system 5".to_owned(),
            workload: "stream".to_owned(),
            device: "memory".to_owned(),
            unit: Unit::MegabytesPerSecond,
            variants: vec![variant("on", &[4.0, 40.0]), variant("off", &[2.0, 10.0])],
            reported: "330 / 81.7",
        }
    }

    #[test]
    fn ratios_are_of_pairs() {
        assert_eq!(row().ratio("off"), Some((3.0, 2.0, 4.0)));
        assert_eq!(row().ratio("missing"), None);
    }

    #[test]
    fn tables_show_each_variant_once() {
        let text = markdown(&[row()]);
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("| off | 6.0 | 2.0–10.0 | MB/s | 3.00 (2.00–4.00) | extents 3 |"));
        assert!(text.contains("| system 5 | stream | memory | on | 22.0 |"));
    }
}
