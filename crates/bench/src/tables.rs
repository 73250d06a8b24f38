//! The tables of a Markdown document, made from stored results.
//!
//! A table stands between two comments:
//!
//! ```text
//! <!-- table: mount.json; columns: blockwright / kernel / fuse2fs -->
//! …
//! <!-- end of table -->
//! ```
//!
//! The first column is judged. Cells are medians with the range of all rounds. A ratio is a speed: how often the first variant does
//! its work while another one does it once, pair by pair. Options after the columns, also separated by `;`:
//! `rows: TEXT` selects workloads whose name contains the text, and `reported` adds what a public report measured.

use crate::stats::median;
use clap::Args;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub struct TablesArgs {
    /// Document whose tables are made again
    document: PathBuf,
    /// Where the results are
    #[arg(long)]
    results: PathBuf,
}

const BEGIN: &str = "<!-- table: ";
const END: &str = "<!-- end of table -->";

/// Rewrites the document.
pub fn run(args: &TablesArgs) -> Result<(), String> {
    let path = &args.document;
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let new = rewritten(&text, &args.results)?;
    std::fs::write(path, new).map_err(|e| format!("{}: {e}", path.display()))
}

/// The document with all tables made from the results in a directory.
fn rewritten(text: &str, results: &Path) -> Result<String, String> {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        let Some(wanted) = line.strip_prefix(BEGIN) else {
            continue;
        };
        let wanted = wanted
            .strip_suffix(" -->")
            .ok_or_else(|| format!("the comment does not end: {line}"))?;
        out.push_str(&table(&Wanted::parse(wanted)?, results)?);
        if !lines.by_ref().any(|line| line == END) {
            return Err(format!("no end of the table: {line}"));
        }
        out.push_str(END);
        out.push('\n');
    }
    Ok(out)
}

/// What a comment asks for.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    file: String,
    columns: Vec<String>,
    rows: String,
    reported: bool,
}

impl Wanted {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(';').map(str::trim);
        let mut wanted = Wanted {
            file: parts.next().unwrap_or_default().to_owned(),
            ..Wanted::default()
        };
        for part in parts {
            match part.split_once(':').map(|(k, v)| (k.trim(), v.trim())) {
                Some(("columns", list)) => {
                    wanted.columns = list.split(" / ").map(|c| c.trim().to_owned()).collect();
                }
                Some(("rows", text)) => wanted.rows = text.to_owned(),
                None if part == "reported" => wanted.reported = true,
                _ => return Err(format!("a table cannot have `{part}`")),
            }
        }
        if wanted.columns.is_empty() {
            return Err(format!("no columns for {}", wanted.file));
        }
        Ok(wanted)
    }
}

/// One workload.
struct Line {
    name: String,
    unit: String,
    /// Values are seconds.
    lower_is_better: bool,
    values: BTreeMap<String, Vec<f64>>,
    reported: String,
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(Value::as_f64).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn line(row: &Value) -> Option<Line> {
    if let Some(seconds) = row["seconds"].as_array() {
        let values = seconds
            .iter()
            .map(|pair| Some((pair[0].as_str()?.to_owned(), numbers(&pair[1])?)));
        return Some(Line {
            name: row["name"].as_str()?.to_owned(),
            unit: "s".to_owned(),
            lower_is_better: true,
            values: values.collect::<Option<_>>()?,
            reported: String::new(),
        });
    }
    let values = row["variants"]
        .as_array()?
        .iter()
        .map(|v| Some((v["name"].as_str()?.to_owned(), numbers(&v["values"])?)));
    Some(Line {
        name: row["workload"].as_str()?.to_owned(),
        unit: text(&row["unit"]),
        lower_is_better: false,
        values: values.collect::<Option<_>>()?,
        reported: text(&row["reported"]),
    })
}

fn table(wanted: &Wanted, results: &Path) -> Result<String, String> {
    let path = results.join(&wanted.file);
    let fault = |e: String| format!("{}: {e}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|e| fault(e.to_string()))?;
    let document: Value = serde_json::from_str(&text).map_err(|e| fault(e.to_string()))?;
    let rows = document["rows"]
        .as_array()
        .ok_or_else(|| fault("no rows".to_owned()))?;
    let (first, others) = wanted.columns.split_first().ok_or("no columns")?;
    let mut out = String::from("\n| workload | unit |");
    for column in &wanted.columns {
        let _ = write!(out, " {column} |");
    }
    for other in others {
        let _ = write!(out, " ÷ {other} |");
    }
    if wanted.reported {
        out.push_str(" public report |");
    }
    let cells = 2 + wanted.columns.len() + others.len() + usize::from(wanted.reported);
    let _ = writeln!(out, "\n|{}", "---|".repeat(cells));
    let mut any = false;
    for row in rows {
        let line = line(row).ok_or_else(|| fault("a row makes no sense".to_owned()))?;
        let Some(ours) = line.values.get(first) else {
            continue;
        };
        if !line.name.contains(&wanted.rows) {
            continue;
        }
        any = true;
        let _ = write!(out, "| {} | {} |", line.name, line.unit);
        for column in &wanted.columns {
            let cell = line.values.get(column).map(|v| with_range(v, shown));
            let _ = write!(out, " {} |", cell.unwrap_or_else(|| "–".to_owned()));
        }
        for other in others {
            let cell = line.values.get(other).map(|theirs| {
                let pairs: Vec<f64> = std::iter::zip(ours, theirs)
                    .map(|(ours, theirs)| match line.lower_is_better {
                        true => theirs / ours,
                        false => ours / theirs,
                    })
                    .collect();
                with_range(&pairs, |v| format!("{v:.2}"))
            });
            let _ = write!(out, " {} |", cell.unwrap_or_else(|| "–".to_owned()));
        }
        if wanted.reported {
            let _ = write!(out, " {} |", line.reported);
        }
        out.push('\n');
    }
    if !any {
        return Err(fault(format!("no row has `{first}`")));
    }
    out.push('\n');
    Ok(out)
}

/// The median, and the range where it is not a single value.
fn with_range(values: &[f64], show: impl Fn(f64) -> String) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    let middle = show(median(values));
    match values.len() {
        0 => "–".to_owned(),
        1 => middle,
        _ => format!("{middle} ({}–{})", show(low), show(high)),
    }
}

/// Three significant digits.
fn shown(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = r#"{"rows": [
        {"name": "unpack", "amount": null, "seconds": [["blockwright", [1.0, 2.0, 4.0]], ["kernel", [2.0, 2.0, 2.0]]]},
        {"workload": "stream", "unit": "MB/s", "reported": "330", "variants": [
            {"name": "blockwright", "values": [300.0], "extra": {}}, {"name": "kernel", "values": [150.0], "extra": {}}]},
        {"workload": "of others", "unit": "MB/s", "reported": "", "variants": []}]}"#;

    #[test]
    fn tables_are_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("r.json"), RESULTS).unwrap();
        let text = format!(
            "before\n{BEGIN}r.json; columns: blockwright / kernel; reported -->\nold\n{END}\nafter\n"
        );
        let new = rewritten(&text, dir.path()).unwrap();
        let want = "before\n<!-- table: r.json; columns: blockwright / kernel; reported -->\n\n\
            | workload | unit | blockwright | kernel | ÷ kernel | public report |\n|---|---|---|---|---|---|\n\
            | unpack | s | 2.00 (1.00–4.00) | 2.00 (2.00–2.00) | 1.00 (0.50–2.00) |  |\n\
            | stream | MB/s | 300 | 150 | 2.00 | 330 |\n\n<!-- end of table -->\nafter\n";
        assert_eq!(new, want);
        assert_eq!(rewritten(&new, dir.path()).unwrap(), want, "twice");
    }

    #[test]
    fn faults_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let fault = |text: &str| rewritten(text, dir.path()).unwrap_err();
        assert!(fault("<!-- table: r.json -->\n").contains("no columns"));
        assert!(fault("<!-- table: r.json; columns: a; sorted -->\n").contains("sorted"));
        assert!(fault("<!-- table: r.json; columns: a -->\n").contains("r.json"));
        std::fs::write(dir.path().join("r.json"), RESULTS).unwrap();
        assert!(fault("<!-- table: r.json; columns: a -->\n").contains("no row"));
        assert!(fault("<!-- table: r.json; columns: kernel -->\n").contains("no end"));
    }

    /// The tables of docs/BENCHMARKS.md are those of the results that are checked in.
    #[test]
    fn the_document_shows_what_was_measured() {
        let room = Path::new(env!("CARGO_MANIFEST_DIR"));
        let document = room.join("../../docs/BENCHMARKS.md");
        let text = std::fs::read_to_string(document).unwrap();
        let new = rewritten(&text, &room.join("results")).unwrap();
        assert!(
            new == text,
            "run `cargo run -p blockwright-bench -- tables docs/BENCHMARKS.md --results crates/bench/results`"
        );
    }
}
