//! SELinux labels of a new volume's files: libselinux is the oracle, by `matchpathcon` over the same `file_contexts`.

use blockwright_test_support as common;

use blockwright::build::{EntryPolicy, FileContexts};
use blockwright::{Volume, VolumeBuilder};
use common::testing::{have, skip};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's policy.
const POLICY: &str = "/etc/selinux/default/contexts/files/file_contexts";
/// Whose files are asked about: nothing changes in them while tests run.
const ROOTS: [&str; 5] = ["/etc", "/usr", "/boot", "/opt", "/var/lib/dpkg/info"];
/// At most this many files of each.
const FILES_MAX: usize = 6000;

/// Files of this host, with what leads to them.
fn paths() -> Vec<PathBuf> {
    let mut out = vec![PathBuf::from("/")];
    for root in ROOTS {
        let root = PathBuf::from(root);
        for dir in root.ancestors().filter(|dir| *dir != Path::new("/")) {
            if !out.contains(&dir.to_owned()) {
                out.push(dir.to_owned());
            }
        }
        let mut todo = std::collections::VecDeque::from([root]);
        let before = out.len();
        while let Some(dir) = todo.pop_front() {
            // No more of a directory than others get their turn as well.
            let Ok(entries) = fs::read_dir(&dir) else {
                continue;
            };
            for entry in entries.flatten().take(300) {
                let plain = |b: &u8| b.is_ascii_graphic();
                if out.len() - before >= FILES_MAX
                    || !entry.file_name().as_bytes().iter().all(plain)
                {
                    continue;
                }
                out.push(entry.path());
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    todo.push_back(entry.path());
                }
            }
        }
    }
    out.sort_by_key(|path| path.components().count());
    out
}

/// A listing of these files without their contents.
fn listing(paths: &[PathBuf]) -> String {
    let line = |path: &PathBuf| {
        let m = fs::symlink_metadata(path).expect("a file");
        let target = match fs::read_link(path) {
            Ok(_) => "target",
            Err(_) => "-",
        };
        let path = path.display().to_string().replace('\\', "\\\\");
        format!(
            "{path} 0 {:o} 1 0 0 {} 0.0 {target} - -\n",
            m.mode(),
            m.rdev()
        )
    };
    paths.iter().map(line).collect()
}

/// What the oracle says about each path; nothing where it says `<<none>>`.
fn oracle(contexts: &Path, paths: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let mut out = BTreeMap::new();
    for some in paths.chunks(2000) {
        let said = Command::new("matchpathcon")
            .arg("-f")
            .arg(contexts)
            .args(some)
            .env("PATH", blockwright_oracles::search_path())
            .output()
            .expect("matchpathcon");
        let text = String::from_utf8(said.stdout).expect("text");
        for line in text.lines() {
            let (path, label) = line.split_once('\t').expect("a path and a label");
            let label = label.trim_end();
            if label != "<<none>>" {
                out.insert(PathBuf::from(path), label.to_owned());
            }
        }
        // It fails where a path has no label, and names it.
        let named = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            said.status.success() || named.contains("No such file or directory"),
            "{named}"
        );
    }
    out
}

fn ours(contexts: &Path, paths: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let (listed, image) = (dir.path().join("files"), dir.path().join("labels.img"));
    fs::write(&listed, listing(paths)).expect("written");
    let contexts = FileContexts::read(contexts).expect("contexts");
    VolumeBuilder::new()
        .size_auto(0)
        .from_dumpfile(&listed, None)
        .entries(EntryPolicy::new().file_contexts(contexts))
        .create_new(&image)
        .expect("made");
    let volume = Volume::open_read_only(&image).expect("opens");
    let mut out = BTreeMap::new();
    for path in paths {
        let Ok(value) = volume.get_xattr(path, "security.selinux") else {
            continue;
        };
        let label = value.strip_suffix(&[0]).expect("ends with a zero byte");
        out.insert(
            path.clone(),
            String::from_utf8(label.to_vec()).expect("text"),
        );
    }
    out
}

fn assert_alike(contexts: &Path, paths: &[PathBuf], least: usize) {
    let (theirs, ours) = (oracle(contexts, paths), ours(contexts, paths));
    let different: Vec<_> = paths
        .iter()
        .filter(|path| theirs.get(*path) != ours.get(*path))
        .map(|path| (path, theirs.get(path), ours.get(path)))
        .take(20)
        .collect();
    assert!(different.is_empty(), "path, theirs, ours: {different:#?}");
    assert!(
        ours.len() >= least,
        "only {} of {}",
        ours.len(),
        paths.len()
    );
}

#[test]
fn debians_policy_labels_a_real_tree_as_libselinux_does() {
    if !have("matchpathcon") {
        return;
    }
    if !Path::new(POLICY).exists() {
        return skip("selinux-policy-default is missing");
    }
    let paths = paths();
    assert_alike(Path::new(POLICY), &paths, paths.len() / 2);
}

/// What policies rarely have: order, kinds, `<<none>>`, escapes, home directories, local lines, both kinds of substitutions.
#[test]
fn a_written_policy_labels_as_libselinux_does() {
    if !have("matchpathcon") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let contexts = dir.path().join("contexts");
    let beside = |end: &str| dir.path().join(format!("contexts.{end}"));
    let lines = "\
# a comment
/usr/bin/env	--	u:r:exact:s0
/.*	u:r:default:s0
/etc(/.*)?	u:r:etc:s0
/etc/[^/]*\\.conf	--	u:r:conf:s0
/etc/.*\\.d	-d	u:r:dropins:s0
/etc/alternatives/.*	-l	u:r:link:s0
/etc/hostname	<<none>>
/etc/ssl/(certs|private)(/.*)?	u:r:keys:s0
/usr/(.*/)?bin(/.*)?	u:r:bin:s0
/usr/bin/[[:alpha:]]{2}	--	u:r:two:s0
/usr/bin/g.*	u:r:g:s0
/usr/bin/gz?.*	u:r:gz:s0
/usr/lib/x86_64-linux-gnu/lib[a-c].+\\.so(\\.[0-9]+)*	u:r:lib:s0
/usr/share/d?oc	-d	u:r:doc:s0
/usr/sbin/.*\\+.*	u:r:plus:s0
/opt	-d	u:r:opt:s0
";
    fs::write(&contexts, lines).expect("written");
    fs::write(beside("homedirs"), "/usr/share/doc/a[^/]*	u:r:home:s0\n").expect("written");
    fs::write(beside("local"), "/usr/share/doc/ap[^/]*	u:r:local:s0\n").expect("written");
    fs::write(beside("subs"), "/usr/libexec /usr/bin\n").expect("written");
    fs::write(beside("subs_dist"), "/usr/games /etc\n/usr/local /usr\n").expect("written");
    let paths = paths();
    assert_alike(&contexts, &paths, paths.len() - 10);
}
