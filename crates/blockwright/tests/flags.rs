//! Inode flags and projects of directory sources: set by the running kernel (projects by debugfs), taken over into ext4 and
//! f2fs, and shown by Linux as at the source, except what the format has no place for, which is told.

use blockwright_test_support as common;
use blockwright_test_support::uml;

use blockwright::build::BuildReport;
use blockwright::{Format, VolumeBuilder};
use common::testing::{LoopMount, assert_e2fsck_clean, have, run, run_ok};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Every flag that users can set on ext4.
const OF_FILES: &str = "sucSiadAjt";
const OF_DIRECTORIES: &str = "SdADTiac";

fn shell(script: &str, dir: &Path) -> String {
    run_ok("sh", &["-ec", &format!("cd '{}'; {script}", dir.display())])
}

/// Path → (project, letters).
type Attributes = BTreeMap<String, (String, String)>;

/// What lsattr shows of all files and directories but lost+found; layout flags left out.
const LSATTR: &str = r"find . -path ./lost+found -prune -o \( -type f -o -type d \) -print | sort | xargs lsattr -dp";

fn parse(text: &str) -> Attributes {
    text.lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            let project = words.next().expect("a project").to_owned();
            let letters = words.next().expect("letters");
            let letters = letters.chars().filter(|c| !"-eIN".contains(*c)).collect();
            (words.collect::<Vec<_>>().join(" "), (project, letters))
        })
        .collect()
}

/// An image whose files have flags and projects; `None` without the privilege to make one.
fn source(dir: &Path) -> Option<LoopMount> {
    if !have("mke2fs") || !have("debugfs") || !have("chattr") {
        return None;
    }
    let image = dir.join("source.img");
    let path = image.display().to_string();
    fs::File::create(&image)
        .and_then(|f| f.set_len(32 * MIB))
        .expect("made");
    run_ok("mke2fs", &["-q", "-F", "-t", "ext4", &path]);
    {
        let mount = LoopMount::new(&image, "rw")?;
        let at = |name: &str| mount.path().join(name);
        for c in OF_FILES.chars() {
            fs::write(at(&format!("file-{c}")), format!("{c}").repeat(5000)).expect("written");
        }
        for c in OF_DIRECTORIES.chars() {
            fs::create_dir(at(&format!("dir-{c}"))).expect("made");
            fs::write(at(&format!("dir-{c}/in")), "x").expect("written");
        }
        fs::write(at("both"), "both").expect("written");
        fs::write(at("plain"), "plain").expect("written");
        fs::create_dir(at("dir-P")).expect("made");
        std::os::unix::fs::symlink("plain", at("link")).expect("made");
        for c in OF_FILES.chars() {
            // Not every kernel takes what ext4 stores only.
            let set = run(
                "chattr",
                &[
                    &format!("+{c}"),
                    &at(&format!("file-{c}")).display().to_string(),
                ],
            );
            assert!(set.status.success() || "sucjt".contains(c), "+{c}");
        }
        for c in OF_DIRECTORIES.chars() {
            let set = run(
                "chattr",
                &[
                    &format!("+{c}"),
                    &at(&format!("dir-{c}")).display().to_string(),
                ],
            );
            assert!(set.status.success() || c == 'c', "+{c}");
        }
        run_ok("chattr", &["+iadA", &at("both").display().to_string()]);
    }
    for command in [
        "feature project",
        "sif /both projid 42",
        "sif /plain projid 4294967295",
        "sif /dir-D projid 7",
        "sif /dir-P projid 8",
        // Extents, and new files take the project.
        "sif /dir-P flags 0x20080000",
    ] {
        run_ok("debugfs", &["-w", "-R", command, &path]);
    }
    LoopMount::new(&image, "ro,noload")
}

fn told(report: &BuildReport) -> Vec<(&str, u64)> {
    let left = report.left_out.iter();
    left.map(|l| (l.what.as_str(), l.files)).collect()
}

#[test]
fn ext4_keeps_flags_and_projects() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(source) = source(dir.path()) else {
        return;
    };
    let want = parse(&shell(LSATTR, source.path()));
    assert_eq!(
        want["./both"],
        ("42".to_owned(), "iadA".to_owned()),
        "{want:?}"
    );
    assert_eq!(want["./plain"].0, "4294967295");
    assert!(want["./dir-P"].1.contains('P'), "{want:?}");
    let image = dir.path().join("disk.img");
    for (features, projects) in [("project", true), ("project,quota", true), ("", false)] {
        let report = VolumeBuilder::new()
            .features(features)
            .size(64 * MIB)
            .from(source.path())
            .create(&image)
            .expect("made");
        assert_e2fsck_clean(&image);
        let mount = LoopMount::new(&image, "ro,noload").expect("mounted as before");
        let mut want = want.clone();
        if projects {
            assert_eq!(told(&report), []);
        } else {
            assert_eq!(
                told(&report),
                [("flag P (PROJECT_INHERIT)", 1), ("project", 4)]
            );
            for (project, letters) in want.values_mut() {
                *project = "0".to_owned();
                letters.retain(|c| c != 'P');
            }
        }
        let got = parse(&shell(LSATTR, mount.path()));
        assert_eq!(got, want, "-O {features}");
    }
}

#[test]
fn f2fs_keeps_what_it_has_and_tells_the_rest() {
    if !have("fsck.f2fs") || !uml::available() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let Some(source) = source(dir.path()) else {
        return;
    };
    let want = parse(&shell(LSATTR, source.path()));
    let features = [
        "extra_attr,project_quota,inode_checksum,sb_checksum,compression,quota",
        "",
    ];
    let mut images = Vec::new();
    for (k, features) in features.into_iter().enumerate() {
        let image = dir.path().join(format!("f2fs-{k}"));
        let report = VolumeBuilder::new()
            .format(Format::F2fs)
            .features(features)
            .size(128 * MIB)
            .from(source.path())
            .create(&image)
            .expect("made");
        let told = told(&report);
        assert!(told.contains(&("flag T (TOPDIR)", 1)), "{told:?}");
        assert_eq!(told.iter().any(|t| t.0 == "project"), k == 1, "{told:?}");
        let fsck = run_ok(
            "fsck.f2fs",
            &["--dry-run", "-f", &image.display().to_string()],
        );
        assert!(
            !fsck.contains("[FIX]") && !fsck.contains("[ASSERT]"),
            "{fsck}"
        );
        images.push(image);
    }
    let out = dir.path().join("out");
    fs::create_dir(&out).expect("made");
    let script = format!(
        "for d in a b; do attach $d ro; (cd /mnt/$d; {LSATTR} > $OUT/attrs-$d); umount /mnt/$d; done"
    );
    let paths: Vec<&Path> = images.iter().map(std::path::PathBuf::as_path).collect();
    uml::run(&out, &paths, &script, Duration::from_secs(120));
    for (k, letter) in ["a", "b"].into_iter().enumerate() {
        let text = fs::read_to_string(out.join(format!("attrs-{letter}"))).expect("written");
        let got = parse(&text);
        let mut want = want.clone();
        for (path, (project, letters)) in &mut want {
            let directory = path.starts_with("./dir") && !path.ends_with("/in") || path == ".";
            let kept = match (k, directory) {
                (0, true) => "SiadADcP",
                (0, false) => "SiadA",
                (_, true) => "SiadAD",
                (_, false) => "SiadA",
            };
            letters.retain(|c| kept.contains(c));
            if k == 1 {
                *project = "0".to_owned();
            }
        }
        assert_eq!(got, want, "volume {letter}");
    }
}
