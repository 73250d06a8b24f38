//! `stats`, `tune` and `trace`: seeing inside of a mounted volume, and changing it.

mod common;

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
    let volume = blockwright::Volume::open(&image, &options).expect("a mount");
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

const TUNABLES_HEAD: &str =
    "| name | unit | from | to | default | meaning |\n|---|---|---|---|---|---|\n";

/// A tunable's line in docs/STATS.md.
fn tunable_row(t: &Value) -> String {
    let field = |name: &str| t[name].as_u64().expect("a number");
    let text = |name: &str| t[name].as_str().expect("words");
    format!(
        "| `{}` | {} | {} | {} | {} | {} |\n",
        text("name"),
        text("unit").replace('|', " or "),
        field("min"),
        field("max"),
        field("value"),
        text("help")
    )
}

/// What f2fs counts and lets be tuned is documented; merged checkpoints are counted, and start and stop.
#[test]
fn f2fs_is_seen_and_tuned() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    ok(&mut limited(&["mkfs", "-t", "f2fs", text(&image), "128M"]));
    let mounted = Mounted::new(&image, &mnt, "nocheckpoint_merge,serialized_dio_pages=16");
    let stats = snapshot(&mnt);
    assert_eq!(number(&stats, "checkpoint_merge", None), 0);
    let metrics = stats["metrics"].as_array().expect("metrics");
    let options = metrics.iter().find(|m| m["name"] == "mount_options");
    let options = options.and_then(|m| m["text"].as_str()).expect("words");
    for option in [
        "nocheckpoint_merge",
        "serialized_dio_pages=16",
        "dio_alloc=reserved",
    ] {
        assert!(
            options.split(',').any(|o| o == option),
            "{option}: {options}"
        );
    }
    let at = text(&mnt);
    let remount = |options: &str| {
        let options = format!("remount,{options}");
        limited(&["mount", "-o", &options, text(&image), text(&mnt)])
    };
    ok(&mut remount("checkpoint_merge"));
    assert_eq!(value(&mnt, "checkpoint_merge"), 1);
    ok(&mut remount("nocheckpoint_merge,ckpt_thread_ioprio=5"));
    assert_eq!(
        (
            value(&mnt, "checkpoint_merge"),
            value(&mnt, "ckpt_thread_ioprio")
        ),
        (0, 5)
    );
    for refused in ["mode=lfs", "checkpoint=disable"] {
        let out = remount(refused).output().expect("runs");
        assert!(!out.status.success(), "{refused} was taken");
    }
    ok(&mut remount("ckpt_thread_ioprio=3"));
    ok(&mut limited(&[
        "tune",
        at,
        "checkpoint_merge=1",
        "serialized_dio_pages=64",
    ]));
    let before = snapshot(&mnt);
    assert_eq!(number(&before, "checkpoint_merge", None), 1);
    // A new directory is made durable by a checkpoint.
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::File::open(&mnt).unwrap().sync_all().unwrap();
    let after = snapshot(&mnt);
    let change = Change(&before, &after);
    assert!(change.of("ckpt_merge_issued") >= 1 && change.of("ckpt_merge_total") >= 1);
    assert_eq!(number(&after, "ckpt_merge_queued", None), 0);
    let vfs = [
        "cache_bytes",
        "dirty_",
        "readahead",
        "writeback_",
        "lazy_",
        "delayed_",
        "ordered_",
        "inline_",
        "inodes_",
        "kernel_",
    ];
    let all = json(Path::new(""), &["tune", "--json", at]);
    let mut made = TUNABLES_HEAD.to_owned();
    for t in all.as_array().expect("tunables") {
        let name = t["name"].as_str().expect("a name");
        if !vfs.iter().any(|v| name.starts_with(v)) {
            made.push_str(&tunable_row(t));
        }
    }
    documented("f2fs tunables", &made);
    mounted.unmount();
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

fn value(mnt: &Path, name: &str) -> u64 {
    let all = json(Path::new(""), &["tune", "--json", text(mnt), name]);
    all[0]["value"].as_u64().expect("a number")
}

#[test]
fn tunables_take_effect() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &["-b", "4096"], "128M");
    let mounted = Mounted::new(&image, &mnt, "");
    let at = text(&mnt);

    // All are listed, documented, within their range, and take the value they have.
    let mut made = TUNABLES_HEAD.to_owned();
    let all = json(Path::new(""), &["tune", "--json", at]);
    let all = all.as_array().unwrap().clone();
    assert!(all.len() >= 20);
    for t in &all {
        let field = |name: &str| t[name].as_u64().unwrap();
        assert!(
            (field("min")..=field("max")).contains(&field("value")),
            "{t}"
        );
        let name = t["name"].as_str().unwrap();
        // What the kernel has depends on the kernel.
        if !name.starts_with("kernel_") {
            made.push_str(&tunable_row(t));
        }
        if !name.starts_with("kernel_") {
            let setting = format!("{name}={}", field("value"));
            ok(&mut limited(&["tune", at, &setting]));
            assert_eq!(value(&mnt, name), field("value"));
        }
    }

    documented("tunables", &made);

    // Each of these shows that it is in force.
    write_and_sync(&mnt.join("file"), 16 << 20);
    assert!(number(&snapshot(&mnt), "cache_bytes", None) >= 16 << 20);
    ok(&mut limited(&["tune", at, "cache_bytes=2M"]));
    let stats = snapshot(&mnt);
    assert_eq!(number(&stats, "cache_budget_bytes", None), 2 << 20);
    assert!(number(&stats, "cache_bytes", None) <= 2 << 20);
    ok(&mut limited(&["tune", at, "metadata_cache_bytes=4M"]));
    let budget = number(&snapshot(&mnt), "meta_cache_budget_bytes", None);
    assert_eq!(budget, 4 << 20);
    ok(&mut limited(&[
        "tune",
        at,
        "cache_bytes=64M",
        "dirty_bytes=1M",
        "dirty_background_bytes=0",
    ]));
    let before = snapshot(&mnt);
    write_and_sync(&mnt.join("file"), 16 << 20);
    let after = snapshot(&mnt);
    assert!(number(&after, "writers_throttled", None) > number(&before, "writers_throttled", None));
    assert!(number(&after, "writers_throttled_ns", None) > 0);

    // The journal commits by itself at the new age, of what is running, too.
    ok(&mut limited(&["tune", at, "commit_interval_ms=3600000"]));
    write_and_sync(&mnt.join("file"), 4096);
    let commits = || number(&snapshot(&mnt), "journal_commits", None);
    fs::create_dir(mnt.join("dir")).unwrap();
    let before = commits();
    ok(&mut limited(&["tune", at, "commit_interval_ms=20"]));
    let start = std::time::Instant::now();
    while commits() == before {
        assert!(start.elapsed().as_secs() < 30, "no commit at the new age");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }

    // Nothing is changed when anything is wrong.
    let wrong = ["mb_stream_req=5", "mb_group_prealloc=0"];
    refused(
        &mut limited(&["tune", at, wrong[0], wrong[1]]),
        2,
        &["mb_group_prealloc", "1 to"],
    );
    assert_eq!(value(&mnt, "mb_stream_req"), 16);
    for (setting, says) in [
        ("nonsense=1", "nonsense"),
        ("nonsense", "nonsense"),
        ("barrier=2", "0 or 1"),
        ("barrier=", "0 or 1"),
        ("cache_bytes=-1", "not a size"),
        ("cache_bytes=1", "1048576 to"),
        ("mb_stream_req=x", "not a number"),
        ("mb_stream_req=99999999999999999999", "not a number"),
    ] {
        refused(&mut limited(&["tune", at, setting]), 2, &[says]);
    }
    mounted.unmount();
}

/// `nobody`, who must be able to enter the directories above the mount.
const STRANGER: &str = "65534";

#[test]
fn only_root_and_the_owner_change_things() {
    let root = rustix::process::geteuid().is_root();
    if !have_fuse() || !available("root", root) || !have("setpriv") || !have("fusermount3") {
        return;
    }
    let dir = tempfile::Builder::new()
        .prefix("bw-observing-")
        .tempdir()
        .unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), everybody).unwrap();
    let (image, mnt) = (dir.path().join("disk.img"), dir.path().join("mnt"));
    fs::create_dir(&mnt).unwrap();
    our_mkfs(&image, &[], "32M");
    let copy = dir.path().join("blockwright");
    fs::copy(env!("CARGO_BIN_EXE_blockwright"), &copy).unwrap();
    let as_stranger = |args: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LIMIT, "setpriv", "--clear-groups"]);
        command.args(["--reuid", STRANGER, "--regid", STRANGER]);
        command.arg(&copy).args(args);
        command
    };
    let at = text(&mnt);
    let trace = dir.path().join("trace");
    {
        let mounted = Mounted::new(&image, &mnt, "allow_other,default_permissions");
        // Everybody may look.
        ok(&mut as_stranger(&["stats", "--json", at]));
        ok(&mut as_stranger(&["tune", at, "barrier"]));
        for args in [
            vec!["tune", at, "barrier=0"],
            vec!["trace", "record", "-s", "0.1", "-o", "/tmp/never", at],
            vec!["trace", "stop", at],
        ] {
            refused(&mut as_stranger(&args), 1, &["only root and the user"]);
        }
        assert!(!Path::new("/tmp/never").exists());
        assert_eq!(value(&mnt, "barrier"), 1);
        mounted.unmount();
    }
    // Who mounts without root may do it all without root.
    for path in [&image, &mnt] {
        ok(Command::new("chown").arg(STRANGER).arg(path));
    }
    if fs::metadata("/dev/fuse")
        .is_ok_and(|m| std::os::unix::fs::PermissionsExt::mode(&m.permissions()) & 0o006 == 0o006)
    {
        ok(&mut as_stranger(&["mount", text(&image), at]));
        let tuned = output(&mut as_stranger(&["tune", at, "commit_interval_ms=700"]));
        let stats = output(&mut as_stranger(&["stats", at]));
        let gone = output(&mut as_stranger(&["umount", at]));
        for out in [tuned, stats, gone] {
            assert!(
                out.status.success(),
                "{}",
                String::from_utf8_lossy(&out.stderr)
            );
        }
    }
    drop(trace);
}

#[test]
fn traces_are_recorded_and_drawn() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &["-b", "4096"], "128M");
    let mounted = Mounted::new(&image, &mnt, "");
    let (trace, at) = (scratch.path("t.trace"), text(&mnt));
    let file = mnt.join("file");
    ok(&mut limited(&[
        "trace",
        "record",
        "-o",
        text(&trace),
        at,
        "--",
        "dd",
        "if=/dev/zero",
        "bs=64k",
        "count=128",
        "conv=fsync",
        "status=none",
        &format!("of={}", text(&file)),
    ]));
    let show = |path: &Path| json(Path::new(""), &["trace", "show", "--json", text(path)]);
    let summary = show(&trace);
    assert_eq!(summary["ending"], "asked");
    assert_eq!(summary["device_bytes"], 128 << 20);
    let kind = |summary: &Value, name: &str, field: &str| {
        let kinds = summary["kinds"].as_array().unwrap();
        let found = kinds.iter().find(|k| k["kind"] == name);
        found.map_or(0, |k| k[field].as_u64().unwrap())
    };
    assert_eq!(kind(&summary, "write", "bytes"), 8 << 20);
    assert!(kind(&summary, "meta_write", "requests") > 0);
    let requests = summary["requests"].as_u64().unwrap();
    assert!(summary["seeks"].as_u64().unwrap() < requests);
    // 128 bytes of head, 40 a request and for the end.
    assert_eq!(
        fs::metadata(&trace).unwrap().len(),
        128 + 40 * (requests + 1)
    );

    // The picture: axes with labels, dots where data was written, two curves.
    let (svg, png) = (scratch.path("t.svg"), scratch.path("t.png"));
    ok(&mut limited(&[
        "trace",
        "plot",
        "-o",
        text(&svg),
        "--title",
        "a <title> & more",
        text(&trace),
    ]));
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    for part in [
        "a &lt;title&gt; &amp; more",
        "Offset on the device",
        "Throughput, MB/s",
        "Seeks per second",
        "class=\"writes\"",
        "class=\"metadata writes\"",
        " MiB</text>",
        " s</text>",
    ] {
        assert!(picture.contains(part), "{part}");
    }
    let opened = picture.matches('<').count();
    assert_eq!(opened, picture.matches('>').count());
    assert!(picture.matches("<polyline").count() >= 2);
    let path = picture.split("class=\"writes\" d=\"").nth(1).unwrap();
    let dots: u32 = path
        .split('"')
        .next()
        .unwrap()
        .split('h')
        .skip(1)
        .map(|run| run.split('M').next().unwrap().parse::<u32>().unwrap())
        .sum();
    // 8 MiB of what is between the lowest and the highest offset, in 320 rows.
    assert!(dots > 8, "{dots} dots");
    ok(&mut limited(&[
        "trace",
        "plot",
        "-o",
        text(&png),
        "--width",
        "640",
        text(&trace),
    ]));
    let bytes = fs::read(&png).unwrap();
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(bytes[16..20], 640u32.to_be_bytes());

    // What a command returns is returned; the recording ends with it, whatever it does.
    refused(
        &mut limited(&[
            "trace",
            "record",
            "-o",
            text(&trace),
            at,
            "--",
            "sh",
            "-c",
            "exit 7",
        ]),
        7,
        &["exit status: 7"],
    );
    refused(
        &mut limited(&["trace", "record", "-o", text(&trace), at, "--", "/none"]),
        1,
        &["/none"],
    );
    ok(&mut limited(&[
        "trace",
        "record",
        "-s",
        "0.05",
        "-o",
        text(&trace),
        at,
    ]));
    refused(&mut limited(&["trace", "stop", at]), 1, &["no trace"]);
    // Bounded.
    ok(&mut limited(&[
        "trace",
        "record",
        "--max",
        "400",
        "-o",
        text(&trace),
        at,
        "--",
        "cp",
        text(&svg),
        at,
    ]));
    ok(&mut limited(&[
        "trace",
        "record",
        "--max",
        "400",
        "-o",
        text(&trace),
        at,
        "--",
        "dd",
        "if=/dev/zero",
        "bs=1M",
        "count=16",
        "oflag=dsync",
        "status=none",
        &format!("of={}", text(&file)),
    ]));
    assert!(fs::metadata(&trace).unwrap().len() <= 400);
    assert_eq!(show(&trace)["ending"], "limit");
    // Not inside of what it traces.
    let inside = mnt.join("trace");
    refused(
        &mut limited(&["trace", "record", "-o", text(&inside), at, "--", "true"]),
        2,
        &["cannot lie"],
    );
    mounted.unmount();

    // From the mount on; the unmount ends it.
    let mounted = Mounted::new(&image, &mnt, &format!("trace={}", text(&trace)));
    refused(
        &mut limited(&["trace", "record", "-o", text(&png), at, "--", "true"]),
        1,
        &["recorded already"],
    );
    assert!(ok(&mut limited(&["trace", "status", at])).contains("t.trace"));
    write_and_sync(&mnt.join("file"), 1 << 20);
    mounted.unmount();
    let summary = show(&trace);
    assert_eq!(summary["ending"], "asked");
    assert_eq!(kind(&summary, "write", "bytes"), 1 << 20);

    // Bad input.
    let good = fs::read(&trace).unwrap();
    let bad = scratch.path("bad");
    for (bytes, says) in [
        (&b"hello"[..], "not a trace"),
        (&[0; 4096][..], "not a trace"),
        (&good[..128], "no request"),
    ] {
        fs::write(&bad, bytes).unwrap();
        refused(
            &mut limited(&["trace", "plot", "-o", text(&svg), text(&bad)]),
            1,
            &["bad", says],
        );
    }
    let mut damaged = good.clone();
    damaged[128 + 32] = 77;
    fs::write(&bad, &damaged).unwrap();
    refused(
        &mut limited(&["trace", "show", text(&bad)]),
        1,
        &["record 0", "unknown kind"],
    );
    refused(
        &mut limited(&["trace", "plot", "-o", "x.jpg", text(&trace)]),
        2,
        &[".svg or .png"],
    );
    refused(
        &mut limited(&["trace", "show", "/nonexistent"]),
        1,
        &["/nonexistent"],
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
