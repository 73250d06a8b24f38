//! Statistics of a mounted volume: one snapshot, collected in one place.
//!
//! [`Vfs::stats`](crate::Vfs::stats) asks every part to add what it counts; front ends add theirs and print.
//! Each value comes with its unit and a sentence, so that a program can print them without knowing them.
//!
//! Names are an interface: a name is added, never renamed or given another meaning. They end with their
//! unit where it is not a plain number (`_bytes`, `_ns`, `_blocks`). docs/STATS.md lists them all.

pub use blockwright_device::metrics::{BUCKETS, Counter, Distribution, Histogram, bucket_max};

use blockwright_device::monitor::{Kind, QueueStats};
use std::borrow::Cow;

crate::named! {
    /// What a number counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Unit {
        /// Things.
        Count => "count",
        /// Bytes.
        Bytes => "bytes",
        /// Blocks of the volume.
        Blocks => "blocks",
        /// Nanoseconds.
        Nanoseconds => "ns",
        /// Milliseconds.
        Milliseconds => "ms",
        /// Seconds.
        Seconds => "s",
        /// 1024 bytes.
        Kibibytes => "KiB",
        /// 1024 × 1024 bytes.
        Mebibytes => "MiB",
        /// 0 or 1.
        Switch => "0|1",
    }
}

/// A value and what it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Grows from the mount on.
    Counter(u64),
    /// Goes up and down.
    Gauge(u64),
    /// How often which magnitude occurred since the mount.
    Histogram(Box<Distribution>),
    /// Words.
    Text(String),
}

/// One line of the statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Which part of the program counts it.
    pub section: Cow<'static, str>,
    /// Its name.
    pub name: Cow<'static, str>,
    /// A label that distinguishes it from others of its name: key and value.
    pub label: Option<(Cow<'static, str>, Cow<'static, str>)>,
    /// The unit of the value; of a histogram, of what is distributed.
    pub unit: Unit,
    /// What it means, in a sentence.
    pub help: Cow<'static, str>,
    /// The value.
    pub value: Value,
}

/// Adds lines to [`Stats`], one a row: the method that adds it ([`Stats::counter`], [`Stats::gauge`] or [`Stats::histogram`]), name, [`Unit`], meaning, value.
///
/// ```
/// let mut out = blockwright_vfs::Stats::new();
/// blockwright_vfs::stat_lines! { &mut out;
///     gauge "dirty_bytes", Bytes, "bytes changed and not yet on their way to the device" => 4096;
/// }
/// assert_eq!(out.get("dirty_bytes"), Some(4096));
/// ```
#[macro_export]
macro_rules! stat_lines {
    ($out:expr; $($kind:ident $name:literal, $unit:ident, $help:literal => $value:expr;)*) => {{
        let out: &mut $crate::Stats = $out;
        $(out.$kind($name, $crate::Unit::$unit, $help, $value);)*
    }};
}

/// A snapshot. Values are read one after another: they are exact once nothing happens any more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    metrics: Vec<Metric>,
    section: Cow<'static, str>,
}

impl Stats {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Stats::default()
    }

    /// What is added from here on belongs to this part.
    pub fn section(&mut self, name: &'static str) {
        self.section = Cow::Borrowed(name);
    }

    /// Adds a line as it is.
    pub fn push(&mut self, metric: Metric) {
        self.metrics.push(metric);
    }

    fn add(&mut self, name: &'static str, unit: Unit, help: &'static str, value: Value) {
        self.metrics.push(Metric {
            section: self.section.clone(),
            name: name.into(),
            label: None,
            unit,
            help: help.into(),
            value,
        });
    }

    /// Adds a number that only grows.
    pub fn counter(&mut self, name: &'static str, unit: Unit, help: &'static str, value: u64) {
        self.add(name, unit, help, Value::Counter(value));
    }

    /// Adds a number that goes up and down.
    pub fn gauge(&mut self, name: &'static str, unit: Unit, help: &'static str, value: u64) {
        self.add(name, unit, help, Value::Gauge(value));
    }

    /// Adds a histogram.
    pub fn histogram(
        &mut self,
        name: &'static str,
        unit: Unit,
        help: &'static str,
        value: Distribution,
    ) {
        self.add(name, unit, help, Value::Histogram(Box::new(value)));
    }

    /// Adds words.
    pub fn text(&mut self, name: &'static str, help: &'static str, value: impl Into<String>) {
        self.add(name, Unit::Count, help, Value::Text(value.into()));
    }

    /// Gives the line added last a label.
    pub fn labelled(&mut self, key: &'static str, value: impl Into<Cow<'static, str>>) {
        if let Some(last) = self.metrics.last_mut() {
            last.label = Some((key.into(), value.into()));
        }
    }

    /// All lines, in order.
    #[must_use]
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// The number of this name, without a label; of a histogram, how many values it has.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        let found = self
            .metrics
            .iter()
            .find(|m| m.name == name && m.label.is_none());
        match &found?.value {
            Value::Counter(n) | Value::Gauge(n) => Some(*n),
            Value::Histogram(d) => Some(d.count()),
            Value::Text(_) => None,
        }
    }

    /// Names and numbers without labels.
    #[must_use]
    pub fn numbers(&self) -> Vec<(String, u64)> {
        let plain = self.metrics.iter().filter(|m| m.label.is_none());
        plain
            .filter_map(|m| match m.value {
                Value::Counter(n) | Value::Gauge(n) => Some((m.name.to_string(), n)),
                _ => None,
            })
            .collect()
    }

    /// Adds what a device was asked.
    pub fn device(&mut self, queue: &QueueStats) {
        self.section("device");
        crate::stat_lines! { self;
            gauge "device_in_flight", Count, "requests submitted and not completed" => queue.in_flight;
            gauge "device_queue_peak", Count, "the most submitted requests that the device's queue held at once" => queue.queued_max;
            counter "device_errors", Count, "requests that failed" => queue.errors;
            counter "device_fua_writes", Count, "writes that were durable on completion" => queue.fua;
        }
        for kind in Kind::ALL {
            crate::stat_lines! { self;
                counter "device_requests", Count, "requests submitted" => queue.kind(kind).sizes.count();
            }
            self.labelled("kind", kind.name());
        }
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Flush) {
            crate::stat_lines! { self;
                counter "device_bytes", Bytes, "bytes that requests covered" => queue.kind(kind).sizes.sum;
            }
            self.labelled("kind", kind.name());
        }
        for kind in [Kind::Read, Kind::Write, Kind::MetaWrite] {
            crate::stat_lines! { self;
                histogram "device_request_bytes", Bytes, "sizes of requests" => queue.kind(kind).sizes.clone();
            }
            self.labelled("kind", kind.name());
        }
        for kind in Kind::ALL {
            crate::stat_lines! { self;
                histogram "device_latency_ns", Nanoseconds, "times between submission and completion; about one request in 32 is timed"
                    => queue.kind(kind).latency.clone();
            }
            self.labelled("kind", kind.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_name() {
        let mut stats = Stats::new();
        stats.section("a");
        crate::stat_lines! { &mut stats;
            counter "one", Count, "first" => 1;
            gauge "many", Bytes, "labelled" => 2;
        }
        stats.labelled("kind", "x");
        stats.text("words", "said", "hello");
        stats.section("b");
        stats.histogram("sizes", Unit::Bytes, "some", Distribution::default());
        assert_eq!(stats.get("one"), Some(1));
        assert_eq!(stats.get("many"), None);
        assert_eq!(stats.get("words"), None);
        assert_eq!(stats.get("sizes"), Some(0));
        assert_eq!(stats.numbers(), [("one".to_owned(), 1)]);
        assert_eq!(stats.metrics()[3].section, "b");
        assert_eq!(stats.metrics()[1].label, Some(("kind".into(), "x".into())));
    }

    #[test]
    fn units_have_names() {
        for unit in Unit::ALL {
            assert_eq!(Unit::from_name(unit.name()), Some(unit));
        }
        assert_eq!(Unit::from_name("furlongs"), None);
    }
}
