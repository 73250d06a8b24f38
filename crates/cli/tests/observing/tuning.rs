//! `tune`: what can be changed of a mounted volume, by whom, and what it does.

use super::*;

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
    for option in ["nocheckpoint_merge", "serialized_dio_pages=16"] {
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
    let stats = snapshot(&mnt);
    assert!(number(&stats, "cache_bytes", None) <= 6 << 20);
    let past = number(&stats, "cache_writes_past", None);
    assert!(past > 0);
    ok(&mut limited(&["tune", at, "write_past_bytes=0"]));
    write_and_sync(&mnt.join("file"), 16 << 20);
    let stats = snapshot(&mnt);
    assert!(number(&stats, "cache_bytes", None) >= 16 << 20);
    assert_eq!(number(&stats, "cache_writes_past", None), past);
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
        // Every user may look.
        ok(&mut as_stranger(&["stats", "--json", at]));
        ok(&mut as_stranger(&["tune", at, "barrier"]));
        for args in [
            vec!["tune", at, "barrier=0"],
            vec!["trace", "record", "-s", "0.1", "-o", "/tmp/never", at],
            vec!["trace", "stop", at],
        ] {
            refused(
                &mut as_stranger(&args),
                1,
                &["only root and the mounting user"],
            );
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
