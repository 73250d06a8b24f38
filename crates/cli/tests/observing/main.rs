//! `stats`, `tune` and `trace`: seeing inside of a mounted volume, and changing it.

#[path = "../common/mod.rs"]
mod common;
mod traces;
mod tuning;

use common::run::{bw, json, refused};
use common::{Mounted, Scratch, available, have, have_fuse, ok, our_mkfs, output, program};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// A part of docs/STATS.md that is made from what the program says. It must be what is there; with `UPDATE_DOCS` in
/// the environment it is put there.
fn documented(part: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/STATS.md");
    // The other part is updated by another thread.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock();
    let docs = fs::read_to_string(&path).unwrap();
    let begin = docs
        .find(&format!("<!-- begin {part}"))
        .expect("a beginning");
    let begin = begin + docs[begin..].find("-->\n").expect("its end") + 4;
    let end = docs.find(&format!("<!-- end {part}")).expect("an end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{}{made}{}", &docs[..begin], &docs[end..]);
        fs::write(&path, text).unwrap();
        return;
    }
    for line in made.lines() {
        // By name: whether a transport has helpers, say, depends on the machine.
        let cell = line.split_inclusive('|').take(2).collect::<String>();
        assert!(
            docs[begin..end].contains(&cell),
            "docs/STATS.md does not have this line; UPDATE_DOCS=1 puts it there:\n{line}"
        );
    }
}

/// What f2fs counts beyond what every format does.
#[test]
fn names_of_f2fs_are_documented() {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let args = ["mkfs", "-t", "f2fs", "--size", "64M", text(&image)];
    ok(&mut limited(&args));
    let options = blockwright::VolumeOptions::default();
    let volume = options.open(&image).expect("a mount");
    let stats = volume.vfs().stats();
    let head = "| name | kind | unit | meaning |\n|---|---|---|---|\n";
    let mut made = format!("\n## f2fs\n{head}");
    for m in stats.metrics().iter().filter(|m| m.section == "f2fs") {
        let (kind, unit) = match m.value {
            blockwright_vfs::stats::Value::Counter(_) => ("counter", m.unit.name()),
            blockwright_vfs::stats::Value::Gauge(_) => ("gauge", m.unit.name()),
            blockwright_vfs::stats::Value::Histogram(_) => ("histogram", m.unit.name()),
            blockwright_vfs::stats::Value::Text(_) => ("text", ""),
        };
        let unit = unit.replace('|', " or ");
        made.push_str(&format!(
            "| `{}` | {kind} | {unit} | {} |\n",
            m.name, m.help
        ));
    }
    volume.close().expect("an unmount");
    documented("f2fs", &made);
}

/// Every program here has this long.
const LIMIT: &str = "60";

fn limited(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", LIMIT]);
    command.arg(env!("CARGO_BIN_EXE_blockwright")).args(args);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn snapshot(mnt: &Path) -> Value {
    let out = ok(&mut limited(&["stats", "--json", text(mnt)]));
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}\n{out}"))
}

/// A number by name and label.
fn number(stats: &Value, name: &str, label: Option<&str>) -> u64 {
    let metrics = stats["metrics"].as_array().expect("metrics");
    let found = metrics.iter().find(|m| {
        let labels = m.get("labels").and_then(Value::as_object);
        let value = labels
            .and_then(|l| l.values().next())
            .and_then(Value::as_str);
        m["name"] == name && value == label
    });
    match found {
        Some(m) if m["kind"] == "histogram" => m["histogram"]["count"].as_u64().expect("a count"),
        Some(m) => m["value"].as_u64().expect("a number"),
        // Requests that never came are not listed.
        None if label.is_some() => 0,
        None => panic!("no {name}"),
    }
}

struct Change<'a>(&'a Value, &'a Value);

impl Change<'_> {
    fn of(&self, name: &str) -> u64 {
        self.labelled(name, None)
    }

    fn labelled(&self, name: &str, label: Option<&str>) -> u64 {
        number(self.1, name, label) - number(self.0, name, label)
    }
}

fn write_and_sync(path: &Path, bytes: usize) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(&vec![7; bytes]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn counters_move_as_they_should() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &["-b", "4096"], "128M");
    let mounted = Mounted::new(&image, &mnt, "");

    let before = snapshot(&mnt);
    write_and_sync(&mnt.join("file"), 3 << 20);
    let after = snapshot(&mnt);
    let change = Change(&before, &after);
    assert_eq!(change.of("bytes_written"), 3 << 20);
    assert_eq!(change.of("writeback_bytes"), 3 << 20);
    assert!(change.of("writeback_runs") >= 1);
    assert_eq!(change.of("fsyncs"), 1);
    assert_eq!(change.of("journal_commits"), 1);
    assert_eq!(change.labelled("fuse_requests", Some("Fsync")), 1);
    assert_eq!(change.labelled("fuse_requests", Some("Create")), 1);
    assert_eq!(change.labelled("device_bytes", Some("write")), 3 << 20);
    assert_eq!(change.of("bytes_read"), 0);
    assert_eq!(number(&after, "device_in_flight", None), 0);
    assert_eq!(number(&after, "device_errors", None), 0);
    assert_eq!(number(&after, "dirty_bytes", None), 0);
    // Asking is seen, too, and nothing else happens meanwhile.
    let again = snapshot(&mnt);
    let change = Change(&after, &again);
    assert!(change.labelled("fuse_requests", Some("Ioctl")) >= 1);
    assert_eq!(change.of("bytes_written"), 0);

    // 32 at once share commits.
    const THREADS: u64 = 32;
    const EACH: u64 = 4;
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let mnt = &mnt;
            scope.spawn(move || {
                let mut file = fs::File::create(mnt.join(format!("t{t}"))).unwrap();
                for _ in 0..EACH {
                    file.write_all(&[1; 4096]).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    let end = snapshot(&mnt);
    let change = Change(&again, &end);
    assert_eq!(change.of("fsyncs"), THREADS * EACH);
    assert!(change.of("journal_fsyncs") >= THREADS * EACH);
    assert!(
        change.of("journal_commits") < THREADS * EACH,
        "{} commits",
        change.of("journal_commits")
    );
    assert!(change.of("journal_fsyncs_merged") > 0);
    mounted.unmount();
}

/// The tables of docs/STATS.md for these lines, of the wanted sections.
fn stat_tables(metrics: &[Value], wanted: impl Fn(&str) -> bool) -> String {
    let mut made = String::new();
    let mut section = String::new();
    let mut seen = std::collections::BTreeSet::new();
    for m in metrics {
        let field = |field: &str| m[field].as_str().unwrap_or_default();
        let name = field("name");
        if !wanted(field("section")) || !seen.insert(name) {
            continue;
        }
        if field("section") != section {
            section = field("section").to_owned();
            let head = "| name | kind | unit | meaning |\n|---|---|---|---|";
            made.push_str(&format!("\n## {section}\n{head}\n"));
        }
        let by = m.get("labels").and_then(Value::as_object);
        let by = by.and_then(|l| l.keys().next());
        let by = by.map_or_else(String::new, |key| format!(" (by `{key}`)"));
        let unit = if field("kind") == "text" {
            ""
        } else {
            field("unit")
        };
        made.push_str(&format!(
            "| `{name}` | {} | {} | {}{by} |\n",
            field("kind"),
            unit.replace('|', " or "),
            field("help")
        ));
    }
    made
}

#[test]
fn statistics_in_every_format() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &[], "64M");
    let mounted = Mounted::new(&image, &mnt, "");
    write_and_sync(&mnt.join("file"), 100_000);
    fs::read(mnt.join("file")).unwrap();

    // JSON: the fields that docs/CLI.md promises; names and meanings as docs/STATS.md has them.
    let stats = snapshot(&mnt);
    let metrics = stats["metrics"].as_array().unwrap();
    assert!(metrics.len() > 50);
    for m in metrics {
        for field in ["section", "kind", "unit", "help"] {
            assert!(m[field].as_str().is_some_and(|v| !v.is_empty()), "{m}");
        }
        match m["kind"].as_str().unwrap() {
            "counter" | "gauge" => assert!(m["value"].is_u64(), "{m}"),
            "text" => assert!(m["text"].is_string(), "{m}"),
            "histogram" => {
                let h = &m["histogram"];
                let buckets = h["buckets"].as_array().unwrap();
                let sum: u64 = buckets.iter().map(|b| b["count"].as_u64().unwrap()).sum();
                assert_eq!(h["count"].as_u64(), Some(sum), "{m}");
            }
            other => panic!("{other}"),
        }
    }
    let made = stat_tables(metrics, |_| true);
    documented("stats", &made);

    // The table has them all when asked.
    let table = ok(&mut limited(&["stats", "--all", text(&mnt)]));
    assert!(table.contains("JOURNAL") && table.contains("100 KiB") || table.contains("97.7 KiB"));
    for m in metrics {
        assert!(table.contains(m["name"].as_str().unwrap()), "{m}");
    }
    let twice = ok(&mut limited(&[
        "stats",
        "--json",
        "--watch",
        "0.01",
        "--count",
        "2",
        text(&mnt),
    ]));
    assert_eq!(twice.lines().count(), 2);
    for line in twice.lines() {
        serde_json::from_str::<Value>(line).expect("one document a line");
    }

    // Prometheus: every sample's family was declared, histograms are cumulative and complete.
    let text_format = ok(&mut limited(&[
        "stats",
        "--format",
        "prometheus",
        text(&mnt),
    ]));
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    let mut last: BTreeMap<String, f64> = BTreeMap::new();
    for line in text_format.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let new = families.insert(name.to_owned(), kind.to_owned()).is_none();
            assert!(new, "{name} is declared twice");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|end| name.strip_suffix(end))
                .find(|stem| families.get(*stem).is_some_and(|k| k == "histogram"))
                .unwrap_or(name);
            assert!(families.contains_key(family), "{line}");
            if let Some((labels, _)) = series.split_once(",le=") {
                let before = last.insert(labels.to_owned(), value).unwrap_or(0.0);
                assert!(value >= before, "{line}");
            } else if name.ends_with("_count") && family != name {
                let labels = series.replace("_count{", "_bucket{");
                let labels = labels.trim_end_matches('}');
                assert_eq!(last.get(labels), Some(&value), "{line}");
            }
        }
    }
    assert_eq!(families["blockwright_journal_commits_total"], "counter");
    assert_eq!(families["blockwright_device_latency_seconds"], "histogram");
    mounted.unmount();

    refused(&mut limited(&["stats", text(&mnt)]), 1, &["not a volume"]);
    refused(
        &mut limited(&["stats", "/nonexistent"]),
        1,
        &["nonexistent"],
    );
    refused(
        &mut limited(&["stats", "--count", "1", text(&mnt)]),
        2,
        &["watch"],
    );
    refused(
        &mut limited(&["stats", "--watch", "0", text(&mnt)]),
        2,
        &["seconds"],
    );
}

#[test]
fn man_pages_and_completions_know_them() {
    let scratch = Scratch::new();
    let dir = scratch.dir("man");
    ok(program().arg("man").arg(&dir));
    for page in ["stats", "tune", "trace", "trace-record", "trace-plot"] {
        let text = fs::read_to_string(dir.join(format!("blockwright-{page}.1"))).unwrap();
        assert!(text.contains("MOUNTPOINT") || text.contains("FILE") || page == "trace");
    }
    let completions = ok(&mut bw(Path::new(""), &["completions", "bash"]));
    assert!(completions.contains("prometheus") && completions.contains("tune"));
    let help = ok(&mut bw(Path::new(""), &["help"]));
    for command in ["stats", "tune", "trace"] {
        assert!(help.contains(&format!("  {command} ")), "{command}");
    }
}

#[test]
fn sync_makes_everything_durable() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &["-b", "4096"], "64M");
    let mounted = Mounted::new(&image, &mnt, "commit=300");
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("dir/file"), vec![9; 3 << 20]).unwrap();
    ok(&mut limited(&["sync", text(&mnt)]));
    // What a crash right now would leave.
    let copy = scratch.path("copy.img");
    fs::copy(&image, &copy).unwrap();
    drop(mounted);
    let place = format!("{}:/dir/file", text(&copy));
    let out = limited(&["cat", &place]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert!(out.stdout == vec![9; 3 << 20], "the file as it was written");

    let none = scratch.dir("none");
    let out = limited(&["sync", text(&none)]).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{out:?}");
}
