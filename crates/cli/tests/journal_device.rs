//! ext4 volumes whose journal is on another device: refused by name without it, recovered with `--journal`.

mod common;

use common::{Scratch, have, have_fuse, ok, output, program};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const UUID: &str = "11111111-2222-3333-4444-555555555555";

/// A volume and its journal, both images.
fn pair(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (volume, journal) = (scratch.path("volume.img"), scratch.path("journal.img"));
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-O", "journal_dev", "-b", "1024", "-U", UUID]);
    ok(mke2fs.arg(&journal).arg("4M"));
    let mut mke2fs = Command::new("mke2fs");
    let features = "^has_journal,^metadata_csum,uninit_bg";
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features]);
    ok(mke2fs.arg(&volume).arg("8M"));
    // mke2fs itself wants a block device to name.
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&volume)
        .unwrap();
    let mut compat = [0];
    file.read_exact_at(&mut compat, 1024 + 0x5C).unwrap();
    file.write_all_at(&[compat[0] | 4], 1024 + 0x5C).unwrap();
    let uuid: Vec<u8> = (UUID.replace('-', "").as_bytes().chunks(2))
        .map(|hex| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap())
        .collect();
    file.write_all_at(&uuid, 1024 + 0xD0).unwrap();
    (volume, journal)
}

/// Changes the volume and copies both images while the changes are in the journal only.
fn crash(volume: &Path, journal: &Path) -> (PathBuf, PathBuf) {
    let options = blockwright::Volume::options().journal(journal);
    let v = options.open(volume).unwrap();
    v.create_dir("/kept").unwrap();
    v.write("/kept/file", b"what fsync promised").unwrap();
    v.sync().unwrap();
    let copies = (
        volume.with_extension("dirty"),
        journal.with_extension("dirty"),
    );
    std::fs::copy(volume, &copies.0).unwrap();
    std::fs::copy(journal, &copies.1).unwrap();
    v.close().unwrap();
    copies
}

fn run(args: &[&str], journal: Option<&Path>, more: &[&str]) -> (Option<i32>, String) {
    let mut command = program();
    command.args(args);
    if let Some(journal) = journal {
        command.arg("--journal").arg(journal);
    }
    let out = output(command.args(more));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    (
        out.status.code(),
        text + &String::from_utf8_lossy(&out.stderr),
    )
}

#[test]
fn a_journal_elsewhere_is_named_or_refused() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let (volume, journal) = pair(&scratch);
    let place = volume.to_str().unwrap();
    // Nothing waits in it: the volume can be checked, and not changed.
    assert_eq!(run(&["check", "-n", place], None, &[]).0, Some(0));
    let inside = format!("{place}:/new");
    let (code, text) = run(&["mkdir", &inside], None, &[]);
    assert_ne!(code, Some(0));
    assert!(
        text.contains("--journal") && text.contains("1111"),
        "{text}"
    );
    assert_eq!(run(&["mkdir", &inside], Some(&journal), &[]).0, Some(0));

    let (dirty, log) = crash(&volume, &journal);
    let before = std::fs::read(&dirty).unwrap();
    let place = dirty.to_str().unwrap();
    for mode in ["-n", "-p", "-y"] {
        let (code, text) = run(&["check", mode, place], None, &[]);
        assert_eq!(code, Some(8), "{mode}: {text}");
        assert!(text.contains("--journal") && text.contains(UUID), "{text}");
        assert!(std::fs::read(&dirty).unwrap() == before, "{mode} wrote");
    }
    // A device that is none, and another volume's.
    let (code, text) = run(&["check", "-n", place], Some(&volume), &[]);
    assert!(
        code == Some(8) && text.contains("no journal device"),
        "{text}"
    );
    // Read-only commands recover in memory.
    let (code, text) = run(&["cat"], Some(&log), &[&format!("{place}:/kept/file")]);
    assert_eq!((code, text.as_str()), (Some(0), "what fsync promised"));
    let (code, text) = run(&["check", "-n", place], Some(&log), &[]);
    assert!(
        code == Some(0) && text.contains("as after a replay"),
        "{text}"
    );
    assert!(std::fs::read(&dirty).unwrap() == before, "reading wrote");
    // A repair replays it, once.
    let (code, text) = run(&["check", "-y", place], Some(&log), &[]);
    assert!(code == Some(1) && text.contains("replayed"), "{text}");
    assert_eq!(run(&["check", "-n", place], None, &[]).0, Some(0));
    let mut e2fsck = Command::new("e2fsck");
    let out = output(e2fsck.arg("-fn").arg("-j").arg(&log).arg(&dirty));
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{said}");
    let (_, text) = run(&["cat"], Some(&log), &[&format!("{place}:/kept/file")]);
    assert_eq!(text, "what fsync promised");
}

#[test]
fn a_mount_takes_the_journal_along() {
    if !have("mke2fs") || !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (volume, journal) = pair(&scratch);
    let (dirty, log) = crash(&volume, &journal);
    let point = scratch.dir("mnt");
    // A relative path: the server works in another directory.
    let mut mount = program();
    mount.current_dir(log.parent().unwrap());
    mount
        .arg("mount")
        .arg("--journal")
        .arg(log.file_name().unwrap());
    ok(mount.arg(&dirty).arg(&point));
    let read = std::fs::read(point.join("kept/file"));
    let written = std::fs::write(point.join("more"), b"more");
    ok(program().arg("umount").arg(&point));
    assert_eq!(read.unwrap(), b"what fsync promised");
    written.unwrap();
    let place = dirty.to_str().unwrap();
    assert_eq!(run(&["check", "-n", place], None, &[]).0, Some(0));
}

/// Journals and volumes that are made, attached and detached here, beside e2fsprogs.
#[test]
fn a_journal_is_made_attached_and_detached() {
    if !have("mke2fs") || !have("e2fsck") || !have("dumpe2fs") {
        return;
    }
    let scratch = Scratch::new();
    let (volume, journal) = (scratch.path("volume.img"), scratch.path("journal.img"));
    let (place, log) = (volume.to_str().unwrap(), journal.to_str().unwrap());
    let field = |image: &Path, name: &str| {
        let said = output(Command::new("dumpe2fs").arg("-h").arg(image)).stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        let line = said.lines().find_map(|l| l.strip_prefix(name));
        line.unwrap_or_default()
            .trim_start_matches(':')
            .trim()
            .to_owned()
    };
    let done = |args: &[&str], journal: Option<&Path>| {
        let (code, text) = run(args, journal, &[]);
        assert_eq!(code, Some(0), "{args:?}: {text}");
        text
    };
    let clean = |journal: Option<&Path>| {
        let mut e2fsck = Command::new("e2fsck");
        e2fsck.arg("-fn");
        if let Some(journal) = journal {
            e2fsck.arg("-j").arg(journal);
        }
        let out = output(e2fsck.arg(&volume));
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(out.status.code(), Some(0), "{said}");
    };
    for block in ["1024", "4096"] {
        // A log of what was there before must not be read.
        std::fs::write(&journal, vec![0xC0; 9 << 20]).unwrap();
        let make = [
            "mkfs",
            "-F",
            "-O",
            "journal_dev",
            "-b",
            block,
            "-L",
            "log",
            log,
            "8M",
        ];
        let said = done(&make, None);
        assert!(said.contains("a journal"), "{said}");
        assert_eq!(field(&journal, "Journal number of users"), "0");
        assert_eq!(field(&journal, "Filesystem volume name"), "log");
        // One that a volume uses, and one with other blocks, is refused, and nothing is made.
        let device = format!("device={log}");
        let other = if block == "1024" { "2048" } else { "1024" };
        let (code, text) = run(
            &["mkfs", "-F", "-b", other, "-J", &device, place, "32M"],
            None,
            &[],
        );
        assert!(code != Some(0) && text.contains("blocks of"), "{text}");
        done(
            &[
                "mkfs",
                "-F",
                "-q",
                "-O",
                "orphan_file",
                "-J",
                &device,
                place,
                "32M",
            ],
            None,
        );
        assert_eq!(field(&volume, "Block size"), block);
        assert_eq!(
            field(&volume, "Journal UUID"),
            field(&journal, "Filesystem UUID")
        );
        assert_eq!(
            field(&journal, "Journal users"),
            field(&volume, "Filesystem UUID")
        );
        clean(Some(&journal));
        // From a directory, so that the command is confined.
        let files = scratch.dir(&format!("files-{block}"));
        std::fs::write(files.join("file"), b"contents").unwrap();
        done(&make, None);
        let from = files.to_str().unwrap();
        done(
            &[
                "mkfs",
                "-F",
                "-q",
                "-O",
                "orphan_file",
                "-J",
                &device,
                "-d",
                from,
                place,
                "32M",
            ],
            None,
        );
        assert_eq!(
            field(&journal, "Journal users"),
            field(&volume, "Filesystem UUID")
        );
        clean(Some(&journal));
        let second = scratch.path("second.img");
        let second = second.to_str().unwrap();
        let (code, text) = run(&["mkfs", "-F", second, "32M"], Some(&journal), &[]);
        assert!(code != Some(0) && text.contains("has a user"), "{text}");
        // Changes that wait in it are replayed before it goes; without it, it stays.
        let (dirty, dirty_log) = crash(&volume, &journal);
        std::fs::copy(&dirty, &volume).unwrap();
        std::fs::copy(&dirty_log, &journal).unwrap();
        let before = std::fs::read(&volume).unwrap();
        let (code, text) = run(&["set", place, "features=^has_journal"], None, &[]);
        assert!(code == Some(1) && text.contains("--journal"), "{text}");
        let refused = ["set", place, "label=x", "features=verity,^extent"];
        let (code, _) = run(&refused, Some(&journal), &[]);
        assert_eq!(code, Some(1));
        assert!(std::fs::read(&volume).unwrap() == before, "a refusal wrote");
        done(&["set", place, "features=^has_journal"], Some(&journal));
        clean(None);
        assert_eq!(field(&journal, "Journal number of users"), "0");
        let (_, text) = run(&["cat", &format!("{place}:/kept/file")], None, &[]);
        assert_eq!(text, "what fsync promised");
        // And back again; a larger volume logs to it, too.
        done(&["set", place, "features=+has_journal"], Some(&journal));
        clean(Some(&journal));
        done(&["resize", place, "100M"], Some(&journal));
        done(&["resize", "--minimum", place], Some(&journal));
        clean(Some(&journal));
        let (_, text) = run(
            &["cat", &format!("{place}:/kept/file")],
            Some(&journal),
            &[],
        );
        assert_eq!(text, "what fsync promised");
    }
    let (code, text) = run(
        &["mkfs", "-F", "-O", "journal_dev", "-m", "1", log, "8M"],
        None,
        &[],
    );
    assert!(code == Some(2) && text.contains("-m"), "{text}");
    let (code, text) = run(&["mkfs", "-F", "-O", "journal_dev", log, "512K"], None, &[]);
    assert!(code != Some(0) && text.contains("1024"), "{text}");
}

/// What `-n` says of a volume with its journal elsewhere is what happens, and nothing is written for it.
#[test]
fn a_size_is_planned_without_a_write() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let (volume, journal) = pair(&scratch);
    let (dirty, log) = crash(&volume, &journal);
    for (image, log) in [(&volume, &journal), (&dirty, &log)] {
        let place = image.to_str().unwrap();
        let bytes = || (std::fs::read(image).unwrap(), std::fs::read(log).unwrap());
        let before = bytes();
        for size in [["24M", ""], ["--minimum", ""], ["--minimum", "--free=1M"]] {
            let words: Vec<&str> = size.into_iter().filter(|word| !word.is_empty()).collect();
            let planned = |more: &[&str]| {
                let mut args = vec!["resize", "-n"];
                args.extend(more);
                args.extend(&words);
                args.insert(2, place);
                run(&args, Some(log), &[])
            };
            let (code, text) = planned(&[]);
            assert!(code == Some(0) && text.contains("would be"), "{text}");
            let (code, text) = planned(&["--json"]);
            assert_eq!(code, Some(0), "{text}");
            let said: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(said["dry_run"], true, "{text}");
            assert_eq!(said["size_before"], 8 << 20, "{text}");
            assert!(bytes() == before, "{words:?}: something was written");
        }
        // Read-only files are enough.
        let (code, text) = run(
            &["resize", "-n", place, "--minimum", "--json"],
            Some(log),
            &[],
        );
        assert_eq!(code, Some(0), "{text}");
        let said: serde_json::Value = serde_json::from_str(&text).unwrap();
        let (code, text) = run(&["resize", place, "--minimum"], Some(log), &[]);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(std::fs::metadata(image).unwrap().len(), said["size"]);
        let out = output(
            Command::new("e2fsck")
                .arg("-fn")
                .arg("-j")
                .arg(log)
                .arg(image),
        );
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(out.status.code(), Some(0), "{said}");
        // Without its journal nothing is planned, either.
        let (code, text) = run(&["resize", place, "24M"], None, &[]);
        assert!(code == Some(1) && text.contains("--journal"), "{text}");
    }
}

#[test]
fn a_journal_that_is_lost_is_given_up_in_words() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let (volume, journal) = pair(&scratch);
    let (dirty, log) = crash(&volume, &journal);
    std::fs::remove_file(&journal).unwrap();
    std::fs::remove_file(&log).unwrap();
    let read = |image: &Path| std::fs::read(image).unwrap();
    let without = "features=^has_journal";
    // Nothing waits.
    let place = volume.to_str().unwrap();
    let before = read(&volume);
    let (code, text) = run(&["set", place, without], None, &[]);
    assert!(code == Some(1) && text.contains("--force"), "{text}");
    let (code, text) = run(&["set", "--lose-transactions", place, without], None, &[]);
    assert!(code == Some(2) && text.contains("--force"), "{text}");
    assert!(read(&volume) == before, "a refusal wrote");
    let all = ["set", "--force", "--lose-transactions", place, without];
    let (code, text) = run(&all, None, &[]);
    // Nothing was lost that a warning could tell of.
    assert_eq!((code, &text[..]), (Some(0), ""));
    // Not unmounted, and nothing waits, either.
    let mut unclean = before.clone();
    unclean[1024 + 0x3A] = 0;
    std::fs::write(&volume, &unclean).unwrap();
    let (code, text) = run(&all, None, &[]);
    assert_eq!((code, &text[..]), (Some(0), ""));
    std::fs::write(&volume, &before).unwrap();
    let (code, text) = run(&["set", "--force", place, without], None, &[]);
    assert_eq!(code, Some(0), "{text}");
    let (_, text) = run(&["cat", &format!("{place}:/kept/file")], None, &[]);
    assert_eq!(text, "what fsync promised");
    assert_eq!(run(&["check", "-n", place], None, &[]).0, Some(0));
    let out = output(Command::new("e2fsck").arg("-fn").arg(&volume));
    assert_eq!(out.status.code(), Some(0));
    // Transactions wait.
    let place = dirty.to_str().unwrap();
    let before = read(&dirty);
    for args in [
        vec!["set", "--force", place, without],
        vec![
            "set",
            "--force",
            "--lose-transactions",
            place,
            without,
            "label=x",
        ],
        vec!["set", "--force", "--lose-transactions", place, "label=x"],
        vec!["resize", place, "24M"],
    ] {
        let (code, text) = run(&args, None, &[]);
        assert_eq!(code, Some(1), "{args:?}: {text}");
        assert!(read(&dirty) == before, "{args:?} wrote");
    }
    let (_, text) = run(&["set", "--force", place, without], None, &[]);
    assert!(text.contains("--lose-transactions"), "{text}");
    let all = ["set", "--force", "--lose-transactions", place, without];
    let (code, text) = run(&all, None, &[]);
    assert!(code == Some(0) && text.contains("check -y"), "{text}");
    // It is not changed before it was checked.
    let (code, text) = run(&["set", place, "label=x"], None, &[]);
    assert!(code == Some(1) && text.contains("check"), "{text}");
    let (code, text) = run(&["check", "-y", place], None, &[]);
    assert!(matches!(code, Some(0 | 1)), "{text}");
    let out = output(Command::new("e2fsck").arg("-fn").arg(&dirty));
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert_eq!(run(&["check", "-n", place], None, &[]).0, Some(0));
    let (code, text) = run(
        &["set", place, "label=x", "features=has_journal"],
        None,
        &[],
    );
    assert_eq!(code, Some(0), "{text}");
}
