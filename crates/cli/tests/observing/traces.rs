//! `trace`: device requests, recorded and drawn.

use super::*;

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
