//! `tune`: what of a mounted volume can be changed while it is mounted.
//!
//! Most of it is the server's business. This program changes the kernel's values for the mount (`kernel_…`)
//! in sysfs, with the caller's rights.

use super::stats::{connect, said};
use crate::args::{TuneArgs, parse_size};
use crate::failure::{At, Failure, Result};
use crate::output::{Out, Table};
use blockwright_vfs::Tunable;
use blockwright_vfs::stats::Unit;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Of the kernel's: our name, its file, unit, largest value, help.
const KERNEL: [(&str, &str, Unit, u64, &str); 3] = [
    (
        "kernel_read_ahead_kb",
        "read_ahead_kb",
        Unit::Kibibytes,
        1 << 20,
        "the kernel's readahead for the mount (root only)",
    ),
    (
        "kernel_max_ratio",
        "max_ratio",
        Unit::Count,
        100,
        "percentage of the kernel's dirty pages that the mount may have (root only)",
    ),
    (
        "kernel_strict_limit",
        "strict_limit",
        Unit::Switch,
        1,
        "hold the mount to its share of dirty pages at all times; slows buffered writes (root only)",
    ),
];

fn bdi(mountpoint: &Path) -> Result<PathBuf> {
    let dev = rustix::fs::stat(mountpoint)
        .at(mountpoint.display())?
        .st_dev;
    Ok(PathBuf::from(format!(
        "/sys/class/bdi/{}:{}",
        rustix::fs::major(dev),
        rustix::fs::minor(dev)
    )))
}

/// The kernel's values that can be read here.
fn kernel_tunables(mountpoint: &Path) -> Result<Vec<Tunable>> {
    let dir = bdi(mountpoint)?;
    let found = KERNEL.iter().filter_map(|(name, file, unit, max, help)| {
        let text = std::fs::read_to_string(dir.join(file)).ok()?;
        let value = text.trim().parse().ok()?;
        Some(Tunable::new(name, *unit, 0..=*max, value, help))
    });
    Ok(found.collect())
}

#[derive(Serialize)]
struct TunableJson<'a> {
    name: &'a str,
    unit: &'a str,
    value: u64,
    min: u64,
    max: u64,
    help: &'a str,
}

fn json(t: &Tunable) -> TunableJson<'_> {
    TunableJson {
        name: &t.name,
        unit: t.unit.name(),
        value: t.value,
        min: t.min,
        max: t.max,
        help: &t.help,
    }
}

/// A value as people write it.
fn parse(t: &Tunable, text: &str) -> Result<u64> {
    let bad = |what: &str| Failure::usage(format_args!("{}={text}: {what}", t.name));
    let value = match t.unit {
        Unit::Switch => match text {
            "0" | "off" | "no" | "false" => 0,
            "1" | "on" | "yes" | "true" => 1,
            _ => return Err(bad("0 or 1")),
        },
        Unit::Bytes => parse_size(text).map_err(|e| bad(&e))?,
        _ => text.parse().map_err(|_| bad("not a number"))?,
    };
    if !(t.min..=t.max).contains(&value) {
        return Err(bad(&format!("{} to {} {}", t.min, t.max, t.unit.name())));
    }
    Ok(value)
}

/// Runs `tune`.
///
/// # Errors
/// Unknown names, values out of range (nothing is changed then), and what the server or the kernel refuses.
pub fn tune(args: &TuneArgs) -> Result<()> {
    let place = args.mountpoint.display();
    let control = connect(&args.mountpoint)?;
    let mut all = control.tunables().map_err(|e| said(&e).at(&place))?;
    all.extend(kernel_tunables(&args.mountpoint)?);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    // All are looked at before any is changed.
    let mut changes = Vec::new();
    let mut shown = Vec::new();
    for setting in &args.settings {
        let (name, value) = match setting.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (setting.as_str(), None),
        };
        let Some(known) = all.iter().find(|t| t.name == name) else {
            return Err(Failure::usage(format_args!(
                "unknown tunable `{name}`; without a name, all are listed"
            ))
            .at(place));
        };
        if let Some(value) = value {
            changes.push((
                known.clone(),
                parse(known, value).map_err(|e| e.at(&place))?,
            ));
        }
        shown.push(known.name.to_string());
    }
    for (known, value) in changes {
        let name = &*known.name;
        let now = match KERNEL.iter().find(|(ours, ..)| *ours == name) {
            Some((_, file, ..)) => {
                let path = bdi(&args.mountpoint)?.join(file);
                std::fs::write(&path, value.to_string()).at(path.display())?;
                let read = kernel_tunables(&args.mountpoint)?;
                read.into_iter().find(|t| t.name == name)
            }
            None => Some(control.tune(name, value).map_err(|e| said(&e).at(&place))?),
        };
        if let Some(now) = now
            && let Some(slot) = all.iter_mut().find(|t| t.name == name)
        {
            *slot = now;
        }
    }
    let shown: Vec<&Tunable> = all
        .iter()
        .filter(|t| shown.is_empty() || shown.iter().any(|name| *name == t.name))
        .collect();
    let mut out = Out::new();
    if args.json {
        out.json(&shown.iter().map(|t| json(t)).collect::<Vec<_>>())?;
    } else {
        let mut table = Table::new(&["Name", ">Value", "Unit", ">Least", ">Most", "Meaning"]);
        for t in shown {
            table.row(vec![
                t.name.to_string(),
                t.value.to_string(),
                t.unit.name().to_owned(),
                t.min.to_string(),
                t.max.to_string(),
                t.help.to_string(),
            ]);
        }
        table.print(&mut out)?;
    }
    out.finish()
}
