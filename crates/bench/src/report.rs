//! One self-contained HTML page of stored results: tables, what was to be reached, and bars.
//!
//! It takes what any of the commands stores as JSON: `peers` (a document with rows), `write-path` (a list of rows), `mkfs`
//! and `mount` (a list of tables of seconds).

use crate::stats::median;
use blockwright_plot::{Bar, BarChart, BarGroup};
use clap::Args;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Page to write
    #[arg(short = 'o', long, default_value = "report.html")]
    output: PathBuf,
    /// What stands above it
    #[arg(long, default_value = "blockwright: measurements")]
    title: String,
    /// Stored results
    #[arg(required = true)]
    results: Vec<PathBuf>,
}

/// One thing that was compared.
struct Variant {
    name: String,
    values: Vec<f64>,
    counts: Vec<(String, f64)>,
}

struct Target {
    of: String,
    against: String,
    must: f64,
    aim: Option<f64>,
    got: Option<f64>,
}

/// One workload.
struct Row {
    name: String,
    unit: String,
    reported: String,
    variants: Vec<Variant>,
    targets: Vec<Target>,
}

/// One file.
struct Document {
    title: String,
    machine: String,
    quick: bool,
    rows: Vec<Row>,
}

/// Writes the page.
pub fn run(args: &ReportArgs) -> Result<(), String> {
    let mut documents = Vec::new();
    for path in &args.results {
        documents.push(read(path).map_err(|e| format!("{}: {e}", path.display()))?);
    }
    let page = page(&args.title, &documents);
    std::fs::write(&args.output, page).map_err(|e| format!("{}: {e}", args.output.display()))?;
    println!("{}", args.output.display());
    Ok(())
}

fn read(path: &Path) -> Result<Document, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let value: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned());
    parse(&value, name.unwrap_or_default())
}

fn words(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(Value::as_f64).collect()
}

fn parse(value: &Value, title: String) -> Result<Document, String> {
    let rows = match value {
        Value::Array(rows) => rows,
        other => other["rows"].as_array().ok_or("no rows in it")?,
    };
    let rows = rows
        .iter()
        .map(|row| {
            let read = if row.get("seconds").is_some() {
                of_seconds(row)
            } else {
                of_variants(row)
            };
            read.ok_or_else(|| "a row makes no sense".to_owned())
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Document {
        title,
        machine: words(&value["machine"]),
        quick: value["quick"].as_bool().unwrap_or(false),
        rows,
    })
}

fn of_variants(row: &Value) -> Option<Row> {
    let variants = row["variants"].as_array()?.iter().map(|v| {
        let counts = v["extra"].as_object().into_iter().flatten();
        Some(Variant {
            name: v["name"].as_str()?.to_owned(),
            values: numbers(&v["values"])?,
            counts: counts
                .filter_map(|(name, n)| Some((name.clone(), n.as_f64()?)))
                .collect(),
        })
    });
    let targets = row["targets"].as_array().into_iter().flatten().map(|t| {
        Some(Target {
            of: t["variant"].as_str()?.to_owned(),
            against: t["against"].as_str()?.to_owned(),
            must: t["must"].as_f64()?,
            aim: t["aim"].as_f64(),
            got: t["got"].as_f64(),
        })
    });
    Some(Row {
        name: format!("{}: {}", words(&row["group"]), row["workload"].as_str()?),
        unit: words(&row["unit"]),
        reported: words(&row["reported"]),
        variants: variants.collect::<Option<_>>()?,
        targets: targets.collect::<Option<_>>()?,
    })
}

/// Seconds become rates where it is known of what.
fn of_seconds(row: &Value) -> Option<Row> {
    let (amount, unit) = match row["amount"].as_array().map(Vec::as_slice) {
        Some([amount, unit]) => (amount.as_f64()?, format!("{}/s", unit.as_str()?)),
        _ => (1.0, "times/s".to_owned()),
    };
    let variants = row["seconds"].as_array()?.iter().map(|pair| {
        let seconds = numbers(&pair[1])?;
        Some(Variant {
            name: pair[0].as_str()?.to_owned(),
            values: seconds.into_iter().map(|s| amount / s).collect(),
            counts: Vec::new(),
        })
    });
    Some(Row {
        name: row["name"].as_str()?.to_owned(),
        unit,
        reported: String::new(),
        variants: variants.collect::<Option<_>>()?,
        targets: Vec::new(),
    })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn range(values: &[f64]) -> (f64, f64) {
    let start = (f64::INFINITY, 0.0f64);
    let (low, high) = values
        .iter()
        .fold(start, |(l, h), v| (l.min(*v), h.max(*v)));
    (if low.is_finite() { low } else { 0.0 }, high)
}

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.6em 0 1.2em}th,td{border-bottom:1px solid #ddd;padding:.25em .7em;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}.no{color:#b00;font-weight:600}.yes{color:#070}h3{margin:1.6em 0 .3em}\
.quick{background:#fff3cd;padding:.5em 1em}svg{max-width:100%;height:auto}";

fn page(title: &str, documents: &[Document]) -> String {
    let title = escaped(title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
    );
    for document in documents {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "<h2>{}</h2>", escaped(&document.title));
        let _ = writeln!(out, "<p>{}</p>", escaped(&document.machine));
        if document.quick {
            out.push_str("<p class=\"quick\">Small inputs (--quick): shows that everything runs, measures nothing worth quoting.</p>\n");
        }
        verdicts(&mut out, &document.rows);
        for row in &document.rows {
            one(&mut out, row);
        }
    }
    out.push_str("</body></html>\n");
    out
}

fn verdicts(out: &mut String, rows: &[Row]) {
    if rows.iter().all(|row| row.targets.is_empty()) {
        return;
    }
    out.push_str("<table><tr><th>workload</th><th>of</th><th>against</th><th>must</th><th>aim</th><th>got</th></tr>\n");
    for row in rows {
        for t in &row.targets {
            let class = match t.got {
                Some(got) if got >= t.must => "yes",
                _ => "no",
            };
            let or_dash = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| format!("{v:.2}"));
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{:.2}</td><td class=\"n\">{}</td><td class=\"n {class}\">{}</td></tr>",
                escaped(&row.name),
                escaped(&t.of),
                escaped(&t.against),
                t.must,
                or_dash(t.aim),
                or_dash(t.got)
            );
        }
    }
    out.push_str("</table>\n");
}

fn one(out: &mut String, row: &Row) {
    let _ = writeln!(out, "<h3>{}</h3>", escaped(&row.name));
    if !row.reported.is_empty() {
        let _ = writeln!(out, "<p>Reported: {}</p>", escaped(&row.reported));
    }
    let bars = row.variants.iter().map(|v| Bar {
        series: v.name.clone(),
        value: median(&v.values),
        range: range(&v.values),
    });
    let chart = BarChart {
        title: String::new(),
        width: 1000,
        groups: vec![BarGroup {
            label: format!("{}, median and range of rounds", row.unit),
            bars: bars.filter(|bar| bar.value.is_finite()).collect(),
            mark: None,
        }],
        unit: row.unit.clone(),
    };
    out.push_str(&chart.draw().svg());
    let _ = writeln!(
        out,
        "<table><tr><th>variant</th><th>median {}</th><th>min–max</th><th>first ÷ this, pairs</th><th>counts</th></tr>",
        escaped(&row.unit)
    );
    for v in &row.variants {
        let (low, high) = range(&v.values);
        let first = row.variants.first().map(|f| f.values.as_slice());
        let pairs = first.unwrap_or_default().iter().zip(&v.values);
        let pairs: Vec<f64> = pairs.map(|(a, b)| a / b).collect();
        let counts: Vec<String> = v
            .counts
            .iter()
            .map(|(name, n)| format!("{name} {n:.0}"))
            .collect();
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"n\">{:.1}</td><td class=\"n\">{low:.1}–{high:.1}</td><td class=\"n\">{:.2}</td><td>{}</td></tr>",
            escaped(&v.name),
            median(&v.values),
            median(&pairs),
            escaped(&counts.join(", "))
        );
    }
    out.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_that_is_stored_can_be_shown() {
        let peers = json!({"what": "peers", "machine": "m <1>", "quick": true, "rows": [{
            "group": "peers", "workload": "1 a & b", "unit": "MB/s", "reported": "",
            "variants": [
                {"name": "mount", "values": [50.0, 60.0], "extra": {"resident MB": 90.5}},
                {"name": "kernel", "values": [100.0, 100.0], "extra": {}}],
            "targets": [{"variant": "mount", "against": "kernel", "must": 0.7, "got": 0.55}]}]});
        let rows = json!([{"group": "5", "workload": "w", "unit": "ops/s", "reported": "330",
            "variants": [{"name": "on", "values": [1.0], "extra": {}}]}]);
        let tables = json!([{"name": "cp -a", "amount": [10.0, "files"], "seconds": [["ours", [2.0]], ["theirs", [4.0]]]}]);
        let read: Vec<Document> = [peers, rows, tables]
            .iter()
            .map(|v| parse(v, "t".into()).expect("readable"))
            .collect();
        let html = page("x", &read);
        for part in [
            "m &lt;1&gt;",
            "1 a &amp; b",
            "class=\"quick\"",
            "class=\"n no\">0.55",
            "resident MB 90",
            "Reported: 330",
            "5.00 files/s",
            "<td class=\"n\">2.00</td>",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
        assert_eq!(html.matches("<svg").count(), 3);
        // Nothing is fetched from anywhere.
        assert!(!html.contains("src=") && !html.contains("href="));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&json!({}), String::new()).is_err());
        assert!(parse(&json!([{"workload": 1}]), String::new()).is_err());
        assert!(
            parse(
                &json!([{"name": "x", "seconds": [["a", ["b"]]]}]),
                String::new()
            )
            .is_err()
        );
    }
}
