//! Cells of a usage become as many squares as a picture has room for.

use crate::colours::{colour, letter, mix};
use blockwright_check::usage::{Cell, Kind, Usage};
use blockwright_plot::{Colour, Key, Mosaic, Mosaics};

/// The side of a square, in pixels.
const SIDE: u32 = 6;
/// Rows of squares in a picture.
const ROWS: usize = 80;
/// Columns and rows of the map that a terminal shows.
const LETTERS: (usize, usize) = (64, 16);
/// A square with little in it still shows that there is something.
const SHARE_MIN: f64 = 0.3;

const OLD: Colour = Colour(0x31, 0x36, 0x95);
const NEW: Colour = Colour(0xfd, 0xae, 0x61);

/// Groups of cells, as equal as they can be, at most `max` of them.
fn grouped(cells: &[Cell], max: usize) -> impl Iterator<Item = &[Cell]> {
    let count = cells.len().min(max.max(1));
    (0..count).map(move |n| &cells[n * cells.len() / count..(n + 1) * cells.len() / count])
}

/// The kind of most blocks that are not free, and the share of such blocks; `None` where all are free.
fn main_use(cells: &[Cell]) -> Option<(Kind, f64)> {
    let (mut best, mut used, mut all) = (None, 0, 0);
    for kind in Kind::ALL {
        let n: u64 = cells.iter().map(|cell| cell.count(kind)).sum();
        all += n;
        if kind == Kind::Free || n == 0 {
            continue;
        }
        used += n;
        if best.is_none_or(|(_, most)| n > most) {
            best = Some((kind, n));
        }
    }
    best.map(|(kind, _)| (kind, used as f64 / all.max(1) as f64))
}

/// Rows of letters, for a terminal.
#[must_use]
pub fn letters<K>(usage: &Usage<K>) -> Vec<String> {
    let all: Vec<char> = grouped(&usage.cells, LETTERS.0 * LETTERS.1)
        .map(|cells| main_use(cells).map_or(letter(Kind::Free), |(kind, _)| letter(kind)))
        .collect();
    all.chunks(LETTERS.0).map(String::from_iter).collect()
}

/// The oldest and the newest time of a segment in use.
pub fn times<K>(usage: &Usage<K>) -> Option<(u64, u64)> {
    let times = || usage.cells.iter().filter_map(|cell| cell.written);
    let newest = times().max()?.max(usage.now.unwrap_or(0));
    times().min().map(|oldest| (oldest, newest))
}

/// The picture, `width` pixels wide.
#[must_use]
pub fn picture<K>(usage: &Usage<K>, title: &str, width: u32) -> Mosaics {
    let max = Mosaics::columns(width, SIDE) * ROWS;
    let per = usage.cells.len().div_ceil(max).max(1) as u64 * usage.cell_blocks;
    let bytes = per.saturating_mul(u64::from(usage.block_bytes));
    let paper = colour(Kind::Free);
    let squares = grouped(&usage.cells, max).map(|cells| match main_use(cells) {
        Some((kind, share)) => mix(paper, colour(kind), share.max(SHARE_MIN)),
        None => paper,
    });
    let size = |blocks: u64| crate::size::human(blocks * u64::from(usage.block_bytes));
    let mut parts = vec![Mosaic {
        title: format!("Use; a square is {}", crate::size::human(bytes)),
        squares: squares.collect(),
        legend: usage
            .kinds()
            .map(|(kind, blocks)| Key {
                colour: colour(kind),
                label: format!("{} {}", kind.label(), size(blocks)),
            })
            .collect(),
    }];
    if let Some((oldest, newest)) = times(usage) {
        let share = |time: u64| match newest - oldest {
            0 => 1.0,
            span => time.saturating_sub(oldest) as f64 / span as f64,
        };
        let squares = grouped(&usage.cells, max).map(|cells| {
            let time = cells.iter().filter_map(|cell| cell.written).max();
            time.map_or(paper, |time| mix(OLD, NEW, share(time)))
        });
        let key = |time: u64, what: &str| Key {
            colour: mix(OLD, NEW, share(time)),
            label: format!("{what}, {} s before the last checkpoint", newest - time),
        };
        parts.push(Mosaic {
            title: "Age of segments, in seconds of mounted time".to_owned(),
            squares: squares.collect(),
            legend: vec![key(newest, "new"), key(oldest, "old")],
        });
    }
    Mosaics {
        title: title.to_owned(),
        width,
        side: SIDE,
        parts,
    }
}
