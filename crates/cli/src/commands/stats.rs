//! `stats`: what a mounted volume has done and holds.

use crate::args::{StatsArgs, StatsFormat};
use crate::failure::{Failure, Result};
use crate::output::{Out, Table, human};
use blockwright_fuse::{Control, ControlError};
use blockwright_vfs::stats::{Distribution, Metric, Stats, Unit, Value, bucket_max};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Opens a line to the server of a mount.
pub fn connect(mountpoint: &Path) -> Result<Control> {
    Control::open(mountpoint).map_err(|e| said(&e).at(mountpoint.display()))
}

/// What the server said, as this program's failure.
pub fn said(e: &ControlError) -> Failure {
    match e {
        ControlError::Os(e) => Failure::from(std::io::Error::from_raw_os_error(
            e.raw_os_error().unwrap_or_default(),
        )),
        e => Failure::new(e),
    }
}

/// Runs `stats`.
///
/// # Errors
/// When nothing of ours is mounted there, or the server goes away.
pub fn stats(args: &StatsArgs) -> Result<()> {
    let format = match args.format {
        Some(format) => format,
        None if args.json => StatsFormat::Json,
        None => StatsFormat::Table,
    };
    let fetch = || {
        let control = connect(&args.mountpoint)?;
        let stats = control.stats();
        stats.map_err(|e| said(&e).at(args.mountpoint.display()))
    };
    let mut before: Option<(Instant, Stats)> = None;
    let mut left = args.count;
    loop {
        let now = (Instant::now(), fetch()?);
        let mut out = Out::new();
        match format {
            StatsFormat::Json if args.watch.is_some() => out.json_line(&to_json(&now.1))?,
            StatsFormat::Json => out.json(&to_json(&now.1))?,
            StatsFormat::Prometheus => {
                let place = std::path::absolute(&args.mountpoint)?;
                prometheus(&mut out, &now.1, &place)?;
            }
            StatsFormat::Table => {
                let seconds = before.as_ref().map(|b| (now.0 - b.0).as_secs_f64());
                let old = before.as_ref().map(|(_, stats)| stats);
                table(&mut out, &now.1, old.zip(seconds), args.all)?;
                if args.watch.is_some() {
                    writeln!(out)?;
                }
            }
        }
        out.finish()?;
        before = Some(now);
        left = left.map(|n| n.saturating_sub(1));
        match args.watch {
            Some(seconds) if left != Some(0) => {
                std::thread::sleep(Duration::from_secs_f64(seconds));
            }
            _ => return Ok(()),
        }
    }
}

#[derive(Serialize)]
struct StatsJson<'a> {
    metrics: Vec<MetricJson<'a>>,
}

#[derive(Serialize)]
struct MetricJson<'a> {
    section: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'a str, &'a str>,
    /// `counter`, `gauge`, `histogram` or `text`.
    kind: &'static str,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    histogram: Option<HistogramJson>,
    help: &'a str,
}

#[derive(Serialize)]
struct HistogramJson {
    count: u64,
    sum: u64,
    /// Those that are not empty.
    buckets: Vec<BucketJson>,
}

#[derive(Serialize)]
struct BucketJson {
    /// The largest value the bucket has; absent for the last one, which has everything above.
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<u64>,
    count: u64,
}

fn to_json(stats: &Stats) -> StatsJson<'_> {
    let metrics = stats.metrics().iter().map(|m| {
        let mut json = MetricJson {
            section: &m.section,
            name: &m.name,
            labels: m.label.iter().map(|(k, v)| (&**k, &**v)).collect(),
            kind: "",
            unit: m.unit.name(),
            value: None,
            text: None,
            histogram: None,
            help: &m.help,
        };
        match &m.value {
            Value::Counter(n) => (json.kind, json.value) = ("counter", Some(*n)),
            Value::Gauge(n) => (json.kind, json.value) = ("gauge", Some(*n)),
            Value::Text(text) => (json.kind, json.text) = ("text", Some(text.as_str())),
            Value::Histogram(d) => {
                json.kind = "histogram";
                let filled = d.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
                json.histogram = Some(HistogramJson {
                    count: d.count(),
                    sum: d.sum,
                    buckets: filled
                        .map(|(bucket, n)| BucketJson {
                            max: bucket_max(bucket),
                            count: *n,
                        })
                        .collect(),
                });
            }
        }
        json
    });
    StatsJson {
        metrics: metrics.collect(),
    }
}

// ---- the table ----

fn number(value: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => human(value),
        Unit::Nanoseconds => duration(value as f64),
        Unit::Milliseconds => duration(value as f64 * 1e6),
        Unit::Seconds => duration(value as f64 * 1e9),
        Unit::Count | Unit::Blocks | Unit::Kibibytes | Unit::Mebibytes | Unit::Switch => {
            value.to_string()
        }
    }
}

fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

fn spread(d: &Distribution, unit: Unit) -> String {
    let count = d.count();
    if count == 0 {
        return "-".to_owned();
    }
    let at = |share: f64| number(d.quantile(share), unit);
    format!(
        "{count} × mean {}, half ≤ {}, 99 % ≤ {}, all ≤ {}",
        number(d.mean() as u64, unit),
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

fn label(m: &Metric) -> String {
    match &m.label {
        Some((_, value)) => format!("{} {value}", m.name),
        None => m.name.to_string(),
    }
}

/// What was counted per second since an earlier snapshot.
fn rate(m: &Metric, before: Option<(&Stats, f64)>) -> String {
    let (Value::Counter(now), Some((old, seconds))) = (&m.value, before) else {
        return String::new();
    };
    let then = old.metrics().iter().find_map(|o| match o.value {
        Value::Counter(n) if o.name == m.name && o.label == m.label => Some(n),
        _ => None,
    });
    let per_second = now.saturating_sub(then.unwrap_or(0)) as f64 / seconds.max(1e-9);
    match m.unit {
        _ if per_second == 0.0 => String::new(),
        Unit::Bytes => format!("{}/s", human(per_second as u64)),
        Unit::Nanoseconds => format!("{:.1} %", per_second / 1e7),
        _ => format!("{per_second:.1}/s"),
    }
}

/// Lines of the same name and no events say nothing; `all` shows them anyway.
fn is_dull(m: &Metric) -> bool {
    m.label.is_some()
        && match &m.value {
            Value::Counter(n) => *n == 0,
            Value::Histogram(d) => d.count() == 0,
            _ => false,
        }
}

/// A longer text stands behind its description: it would push all numbers to the right.
const TEXT_MAX: usize = 16;

fn table(out: &mut Out, stats: &Stats, before: Option<(&Stats, f64)>, all: bool) -> Result<()> {
    let mut section = "";
    let mut rows = Table::new(&["", ">", ">", ""]);
    for m in stats.metrics() {
        if is_dull(m) && !all {
            continue;
        }
        if m.section != section {
            section = &m.section;
            rows.row(vec![section.to_uppercase(), String::new()]);
        }
        let value = match &m.value {
            Value::Counter(n) | Value::Gauge(n) => number(*n, m.unit),
            Value::Text(text) if text.len() > TEXT_MAX => {
                let text = format!("{}: {text}", m.help);
                rows.row(vec![
                    format!("  {}", label(m)),
                    String::new(),
                    String::new(),
                    text,
                ]);
                continue;
            }
            Value::Text(text) => text.clone(),
            Value::Histogram(d) => {
                // Wider than a column of numbers should be.
                let text = format!("{}: {}", m.help, spread(d, m.unit));
                rows.row(vec![
                    format!("  {}", label(m)),
                    d.count().to_string(),
                    String::new(),
                    text,
                ]);
                continue;
            }
        };
        rows.row(vec![
            format!("  {}", label(m)),
            value,
            rate(m, before),
            m.help.to_string(),
        ]);
    }
    rows.print_body(out)
}

// ---- Prometheus's text ----

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Prometheus wants base units: seconds.
fn base(name: &str, unit: Unit) -> (String, f64) {
    let (stem, factor) = match unit {
        Unit::Nanoseconds => (name.strip_suffix("_ns"), 1e-9),
        Unit::Milliseconds => (name.strip_suffix("_ms"), 1e-3),
        _ => (None, 1.0),
    };
    match stem {
        Some(stem) => (format!("blockwright_{stem}_seconds"), factor),
        None => (format!("blockwright_{name}"), 1.0),
    }
}

fn scaled(value: u64, factor: f64) -> String {
    if factor == 1.0 {
        value.to_string()
    } else {
        format!("{:.9}", value as f64 * factor)
    }
}

fn prometheus(out: &mut Out, stats: &Stats, mountpoint: &Path) -> Result<()> {
    let mount = escaped(&mountpoint.display().to_string());
    let mut told = String::new();
    for m in stats.metrics() {
        let (mut name, factor) = base(&m.name, m.unit);
        let kind = match &m.value {
            Value::Counter(_) => {
                name.push_str("_total");
                "counter"
            }
            Value::Gauge(_) => "gauge",
            Value::Histogram(_) => "histogram",
            Value::Text(_) => {
                name.push_str("_info");
                "gauge"
            }
        };
        if told != name {
            writeln!(out, "# HELP {name} {}", m.help.replace('\n', " "))?;
            writeln!(out, "# TYPE {name} {kind}")?;
            told.clone_from(&name);
        }
        let mut labels = format!("mountpoint=\"{mount}\"");
        if let Some((key, value)) = &m.label {
            labels.push_str(&format!(",{key}=\"{}\"", escaped(value)));
        }
        match &m.value {
            Value::Counter(n) | Value::Gauge(n) => {
                writeln!(out, "{name}{{{labels}}} {}", scaled(*n, factor))?;
            }
            Value::Text(text) => {
                writeln!(out, "{name}{{{labels},value=\"{}\"}} 1", escaped(text))?;
            }
            Value::Histogram(d) => {
                let mut sum = 0;
                // Always the same buckets, or series would come and go.
                for (bucket, n) in d.buckets.iter().enumerate() {
                    sum += n;
                    let max = bucket_max(bucket)
                        .map_or_else(|| "+Inf".to_owned(), |max| scaled(max, factor));
                    writeln!(out, "{name}_bucket{{{labels},le=\"{max}\"}} {sum}")?;
                }
                writeln!(out, "{name}_sum{{{labels}}} {}", scaled(d.sum, factor))?;
                writeln!(out, "{name}_count{{{labels}}} {}", d.count())?;
            }
        }
    }
    Ok(())
}
