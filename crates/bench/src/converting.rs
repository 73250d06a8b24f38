//! `convert`: `disk convert` between raw images and qcow2, beside `qemu-img convert`. The input is in the host's cache.

use crate::machine::{have, run};
use crate::resizing::{FILE_BYTES, fill, make};
use crate::stats::Table;
use crate::workloads::{Maker, Setting, in_turn, removed};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Measures both directions, on a volume with files all over its first part.
pub fn measure(setting: &Setting) -> Result<Vec<Table>, String> {
    let (size, files) = match setting.quick {
        true => ("1G", 16),
        false => ("2G", 128),
    };
    // What is no hole: `fill` removes every second file, and its blocks keep their data.
    let mebibytes = (2 * files * FILE_BYTES as u64) >> 20;
    let rows = [("raw", "qcow2"), ("qcow2", "raw")].map(|(from, to)| {
        (
            from,
            to,
            format!("convert {from} to {to}, {mebibytes} MiB in {size}"),
        )
    });
    if !rows.iter().any(|(_, _, name)| setting.wanted(name)) {
        return Ok(Vec::new());
    }
    if !have("qemu-img") {
        return Err("qemu-img (qemu-utils) is needed".to_owned());
    }
    let [raw, qcow2, out] =
        ["convert.img", "convert.qcow2", "convert.out"].map(|name| setting.dir.join(name));
    make(setting, &raw, size)?;
    fill(&raw, files)?;
    removed(&qcow2)?;
    qemu_img("raw", "qcow2", &raw, &qcow2)?;
    let mut tables = Vec::new();
    for (from, to, name) in rows {
        if !setting.wanted(&name) {
            continue;
        }
        let input = if from == "raw" { &raw } else { &qcow2 };
        let ours = || {
            run(Command::new(&setting.program)
                .args(["disk", "convert", "-q"])
                .args([input, &out])
                .args(["--format", to]))
        };
        let makers: [Maker<'_>; 2] = [
            ("blockwright disk convert", Box::new(ours)),
            (
                "qemu-img convert",
                Box::new(|| qemu_img(from, to, input, &out)),
            ),
        ];
        let before = || {
            removed(&out)?;
            let at = |e: std::io::Error| format!("{}: {e}", input.display());
            let mut file = fs::File::open(input).map_err(at)?;
            std::io::copy(&mut file, &mut std::io::sink()).map_err(at)?;
            Ok(())
        };
        let check = || {
            run(Command::new("qemu-img")
                .args(["compare", "-q", "-f", from, "-F", to])
                .args([input, &out]))
        };
        let amount = Some((mebibytes as f64, "MiB"));
        tables.push(in_turn(
            setting, name, amount, &out, &makers, before, check,
        )?);
    }
    [raw, qcow2, out]
        .iter()
        .try_for_each(|path| removed(path))?;
    Ok(tables)
}

fn qemu_img(from: &str, to: &str, input: &Path, out: &Path) -> Result<(), String> {
    run(Command::new("qemu-img")
        .args(["convert", "-f", from, "-O", to])
        .args([input, out]))
}
