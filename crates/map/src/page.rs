//! The map as one HTML file that needs nothing else.

use crate::colours::colour;
use crate::{Told, squares};
use blockwright_check::Severity;
use blockwright_check::usage::{Kind, Usage};
use blockwright_plot::Colour;
use serde::Serialize;
use std::fmt::Write;

const VIEWER: &str = include_str!("viewer.html");

#[derive(Serialize)]
struct KindData {
    name: &'static str,
    label: &'static str,
    colour: String,
    blocks: u64,
}

#[derive(Serialize)]
struct Row {
    /// First block and number of blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<(u64, u64)>,
    text: String,
}

/// What the viewer's script reads.
#[derive(Serialize)]
struct Data<'a> {
    image: &'a str,
    about: &'a str,
    block_bytes: u32,
    blocks: u64,
    cell_blocks: u64,
    part: &'static str,
    part_first: u64,
    part_blocks: u64,
    kinds: Vec<KindData>,
    /// Length and kind of each run, in turn; they cover the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Vec<u64>>,
    /// Kind and blocks, in turn, of each cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    cells: Option<Vec<Vec<u64>>>,
    /// Time of each cell; -1: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<Vec<i64>>,
    oldest: u64,
    now: u64,
    issues: Vec<Row>,
    fragmented: Vec<Row>,
    places: Vec<Row>,
}

fn hex(colour: Colour) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// The map as one HTML file that needs nothing else; `image` and `about` are its title.
///
/// # Errors
/// None that is known: the data has no maps with keys that JSON cannot have.
pub fn page(usage: &Usage<Told>, image: &str, about: &str) -> serde_json::Result<String> {
    let kinds: Vec<_> = usage.kinds().collect();
    let number = |kind| kinds.iter().position(|(k, _)| *k == kind).unwrap_or(0) as u64;
    let runs = usage
        .runs
        .as_ref()
        .map(|runs| runs.iter().flat_map(|r| [r.len, number(r.kind)]).collect());
    let cells = runs.is_none().then(|| {
        let cell = |cell: &blockwright_check::usage::Cell| {
            cell.kinds().flat_map(|(k, n)| [number(k), n]).collect()
        };
        usage.cells.iter().map(cell).collect()
    });
    let times = squares::times(usage);
    let written = times.map(|_| {
        let time = |w: Option<u64>| w.and_then(|w| i64::try_from(w).ok()).unwrap_or(-1);
        usage.cells.iter().map(|c| time(c.written)).collect()
    });
    let (oldest, now) = times.unwrap_or_default();
    let data = Data {
        image,
        about,
        block_bytes: usage.block_bytes,
        blocks: usage.blocks,
        cell_blocks: usage.cell_blocks,
        part: usage.parts.name,
        part_first: usage.parts.first,
        part_blocks: usage.parts.blocks,
        runs,
        cells,
        written,
        oldest,
        now,
        issues: issues(usage),
        fragmented: fragmented(usage),
        places: (places(usage).into_iter())
            .map(|(kind, place)| Row {
                place: Some(place),
                text: kind.to_owned(),
            })
            .collect(),
        kinds: (kinds.iter())
            .map(|(kind, blocks)| KindData {
                name: kind.name(),
                label: kind.label(),
                colour: hex(colour(*kind)),
                blocks: *blocks,
            })
            .collect(),
    };
    let json = serde_json::to_string(&data)?;
    Ok(VIEWER.replacen("@DATA@", &harmless(&json), 1))
}

/// JSON in which no text can end the element around it.
fn harmless(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

fn issues(usage: &Usage<Told>) -> Vec<Row> {
    let unread = usage.unread.iter().map(|unread| Row {
        place: Some((unread.first, unread.len)),
        text: unread.to_string(),
    });
    let worse = usage.issues.iter().filter(|i| i.severity > Severity::Note);
    let issues = worse.map(|issue| Row {
        place: issue.kind.place.and_then(|place| usage.blocks_of(place)),
        text: issue.kind.text.clone(),
    });
    let others = crate::contradictions(usage).into_iter();
    let others = others.map(|text| Row { place: None, text });
    unread.chain(issues).chain(others).collect()
}

fn fragmented(usage: &Usage<Told>) -> Vec<Row> {
    let row = |file: &blockwright_check::usage::FragmentedFile| Row {
        place: Some((file.first, 1)),
        text: crate::fragmented_text(file, usage.block_bytes),
    };
    usage.fragmented.iter().map(row).collect()
}

/// Where each kind of block begins: its name, the first block and how many; nothing of a volume with very many runs.
#[must_use]
pub fn places(usage: &Usage<Told>) -> Vec<(&'static str, (u64, u64))> {
    let Some(runs) = &usage.runs else {
        return Vec::new();
    };
    let first = |kind| runs.iter().find(|run| run.kind == kind);
    let place =
        |(kind, _): (Kind, u64)| first(kind).map(|run| (kind.label(), (run.first, run.len)));
    usage.kinds().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_the_script() {
        let text = harmless(r#"{"image":"</script><!--&"}"#);
        assert!(!text.contains(['<', '>', '&']), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["image"], "</script><!--&");
    }

    #[test]
    fn the_viewer_has_one_place_for_the_data() {
        assert_eq!(VIEWER.matches("@DATA@").count(), 1);
        assert!(!VIEWER.contains("http://") && !VIEWER.contains("https://"));
    }
}
