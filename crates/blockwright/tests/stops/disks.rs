//! Disks whose making a watch stops: at each question, in the plan and in each kind of part, and while the container is written. No file is left.

use super::MIB;
use blockwright::build::BuildProgress;
use blockwright::device::{MemoryDevice, SharedDevice};
use blockwright::disk::{DiskBuilder, DiskReport, Part, Scheme, container};
use blockwright::{ErrorKind, Format, Result, VolumeBuilder};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Makes the disk with a watch that breaks at question `stop` (from 1). The result, and what was told.
fn made(
    dir: &Path,
    parts: Vec<Part>,
    format: container::Format,
    stop: usize,
) -> (Result<DiskReport>, Vec<BuildProgress>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&told);
    let mut builder = DiskBuilder::new(Scheme::Gpt)
        .source_date_epoch(1_700_000_000)
        .watch(move |step| {
            let mut seen = seen.lock().expect("no panic");
            seen.push(*step);
            match seen.len() == stop {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    for part in parts {
        builder = builder.part(part);
    }
    let report = builder.create(dir.join("disk"), format);
    let told = told.lock().expect("no panic").clone();
    (report, told)
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("a folder").next().is_none()
}

#[test]
fn a_disk_stops_at_each_question() {
    let dir = tempfile::tempdir().expect("a folder");
    let (tree, out) = (dir.path().join("tree"), dir.path().join("out"));
    for folder in [&tree, &out] {
        std::fs::create_dir(folder).expect("made");
    }
    std::fs::write(tree.join("file"), vec![7; 3 << 20]).expect("written");
    let source: SharedDevice = Arc::new(MemoryDevice::from_image(&vec![0x5A; 3 << 20]));
    let volume = |format| VolumeBuilder::new().format(format).from(&tree);
    type Make<'a> = Box<dyn Fn() -> Part + 'a>;
    let one: [(&str, Make<'_>); 4] = [
        (
            "ext4",
            Box::new(|| Part::volume("a", volume(Format::Ext4).size(16 * MIB))),
        ),
        (
            "f2fs",
            Box::new(|| Part::volume("a", volume(Format::F2fs).size(64 * MIB))),
        ),
        ("fat32", Box::new(|| Part::fat32("a", volume(Format::Ext4)))),
        ("raw", Box::new(|| Part::raw("a", source.clone(), 4 * MIB))),
    ];
    for (kind, part) in &one {
        let parts = || vec![part(), Part::swap("b", MIB)];
        for format in [container::Format::Raw, container::Format::Qcow2] {
            let (report, told) = made(&out, parts(), format, usize::MAX);
            report.expect(kind);
            let reads = told
                .iter()
                .filter(|step| matches!(step, BuildProgress::Reading { .. }))
                .count();
            let copies = told
                .iter()
                .filter(|step| matches!(step, BuildProgress::Copied { .. }))
                .count();
            assert!(reads > 0 && copies > 0, "{kind}: {told:?}");
            let last = told.last().expect("told");
            if format != container::Format::Raw {
                assert_eq!(*last, BuildProgress::Finishing, "{kind}");
            }
            std::fs::remove_file(out.join("disk")).expect("removed");
            for stop in 1..=told.len() {
                let what = format!("{kind}, {format:?}, {stop} of {}", told.len());
                let (report, asked) = made(&out, parts(), format, stop);
                let error = report.expect_err(&what);
                assert_eq!(error.kind(), ErrorKind::Interrupted, "{what}: {error}");
                assert_eq!(asked.len(), stop, "{what}: asked after the stop");
                assert!(is_empty(&out), "{what}: a file is left");
            }
        }
    }
}

/// The bytes that are told of several parts add up to those that were planned.
#[test]
fn parts_are_told_as_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let raw = |name: &str| {
        let source: SharedDevice = Arc::new(MemoryDevice::from_image(&vec![0x5A; 3 << 20]));
        Part::raw(name, source, None)
    };
    let parts = vec![raw("a"), raw("b")];
    let (report, told) = made(dir.path(), parts, container::Format::Raw, usize::MAX);
    report.expect("made");
    let copied: Vec<u64> = told
        .iter()
        .filter_map(|step| match step {
            BuildProgress::Copied { bytes, .. } => Some(bytes / MIB),
            _ => None,
        })
        .collect();
    assert_eq!(copied, [1, 2, 3, 4, 5, 6]);
    assert!(told.iter().any(|step| matches!(
        step,
        BuildProgress::Planned { bytes, .. } if *bytes == 6 * MIB
    )));
}
