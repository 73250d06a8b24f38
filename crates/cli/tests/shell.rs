//! `shell` and `find`: scripts, a prompt on a terminal, and refusals.

mod common;

use common::run::{bw, good, refused, source_tree, stderr, with_input};
use common::{Scratch, check_clean, have, ok, output};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

fn image(scratch: &Scratch) -> PathBuf {
    let tree = source_tree(scratch, "tree");
    let image = scratch.path("disk image.img");
    ok(bw(&image, &["mkfs", "-q", "--size", "64M", "--from"])
        .arg(&tree)
        .arg(&image));
    image
}

fn script(image: &Path, options: &[&str], lines: &str) -> Output {
    let mut command = bw(image, &["shell", "IMAGE"]);
    with_input(command.args(options), lines.as_bytes())
}

fn done(image: &Path, options: &[&str], lines: &str) -> String {
    let out = script(image, options, lines);
    assert!(out.status.success(), "{lines}: {}", stderr(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn scripts_do_what_the_commands_do() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    fs::write(scratch.path("local file"), b"from the host\n").unwrap();
    let local = scratch.path("local file");
    let got = scratch.path("got");
    // A semicolon is part of a word, not an end: the directory does not exist.
    let lines = "# a comment\nmkdir -p 'new dir/sub'\ncd \"new dir\"; \n";
    assert_eq!(script(&image, &["-w"], lines).status.code(), Some(1));
    let lines = format!(
        "mkdir -p 'new dir/sub'\n\
         cd new\\ dir\n\
         pwd\n\
         put '{}' sub/copied\n\
         cat sub/copied\n\
         cp sub/copied other\n\
         mv other sub/an\\ odd\n\
         ln -s sub/copied link\n\
         chmod 600 sub/*\n\
         cd -\n\
         get '/new dir/sub/copied' '{}'\n\
         ls 'new dir'\n",
        local.display(),
        got.display()
    );
    let text = done(&image, &["-w"], &lines);
    assert_eq!(text, "/new dir\nfrom the host\nlink\nsub\n", "{text}");
    assert_eq!(fs::read(&got).unwrap(), b"from the host\n");
    let long = good(&image, &["ls", "-l", "IMAGE:/new dir/sub"]);
    assert_eq!(long.matches("-rw-------").count(), 2, "{long}");
    done(&image, &["-w"], "rm -r 'new dir'\n");
    assert!(!good(&image, &["ls", "IMAGE"]).contains("new dir"));
    check_clean(&image, "after the script");
}

#[test]
fn commands_of_the_command_line_and_patterns() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let text = good(&image, &["shell", "IMAGE", "-c", "cd sub", "-c", "cat f*"]);
    assert_eq!(text, "contents");
    let text = good(&image, &["shell", "IMAGE", "-c", "ls /s*/f?le /[bl]ig"]);
    assert_eq!(text.lines().count(), 2, "{text}");
    refused(
        &mut bw(&image, &["shell", "IMAGE", "-c", "ls no*"]),
        1,
        &["no*", "nothing matches"],
    );
    refused(
        &mut bw(&image, &["shell", "IMAGE", "-c", "ls 'no*'"]),
        1,
        &["/no*"],
    );
}

#[test]
fn a_shell_for_reading_changes_nothing() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let before = fs::read(&image).unwrap();
    for line in [
        "rm big",
        "mkdir x",
        "put /etc/passwd",
        "edit big",
        "mv big x",
        "chmod 0 big",
    ] {
        let out = script(&image, &[], line);
        assert_eq!(out.status.code(), Some(2), "{line}");
        assert!(stderr(&out).contains("-w"), "{line}: {}", stderr(&out));
    }
    done(
        &image,
        &[],
        "ls\ntree\nstat big\ndu\ndf\ninfo\nfind -name b*\nhelp\nhelp ls\n",
    );
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn failures_have_a_line_and_a_status() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let out = script(&image, &[], "ls big\n\ncat nowhere\nls sub\n");
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("/nowhere") && stderr(&out).contains("line 3"));
    assert_eq!(
        String::from_utf8_lossy(&out.stdout).matches("file").count(),
        0
    );
    let out = script(&image, &["-k"], "cat nowhere\nls sub\n");
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stdout).contains("file"));
    assert_eq!(
        script(&image, &[], "exit 7\nls nowhere\n").status.code(),
        Some(7)
    );
    assert_eq!(script(&image, &[], "cat nowhere'\n").status.code(), Some(2));
    assert_eq!(script(&image, &[], "frobnicate\n").status.code(), Some(2));
    assert_eq!(script(&image, &[], "cd big\n").status.code(), Some(1));
    let missing = scratch.path("missing.img");
    refused(
        &mut bw(&missing, &["shell", "IMAGE", "-c", "pwd"]),
        1,
        &["missing.img"],
    );
}

#[test]
fn files_are_edited_with_the_users_editor() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let edit = |editor: &str, line: &str| {
        let mut command = bw(&image, &["shell", "-w", "IMAGE", "-c", line]);
        output(command.env_remove("VISUAL").env("EDITOR", editor))
    };
    let out = edit("printf more >>", "edit /sub/file");
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(good(&image, &["cat", "IMAGE:/sub/file"]), "contentsmore");
    // What is not in the contents stays.
    assert!(good(&image, &["ls", "-l", "IMAGE:/sub/file"]).starts_with("-rws--x--x"));
    let out = edit("true", "edit /sub/file");
    assert!(stderr(&out).contains("not changed"), "{}", stderr(&out));
    let out = edit("printf new >", "edit /sub/made");
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(good(&image, &["cat", "IMAGE:/sub/made"]), "new");
    let out = edit("false", "edit /sub/made");
    assert_eq!(out.status.code(), Some(1));
    check_clean(&image, "edited");
}

/// A terminal gets a prompt, and the shell's status is that of `exit`.
#[test]
fn a_terminal_gets_a_prompt() {
    if !have("script") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch);
    let command = format!(
        "'{}' shell '{}'",
        env!("CARGO_BIN_EXE_blockwright"),
        image.display()
    );
    let mut pty = std::process::Command::new("script");
    pty.args(["-q", "-e", "-c", &command, "/dev/null"]);
    let out = with_input(&mut pty, b"cd sub\ncat nowhere\npwd\ncat file\nexit 5\n");
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(5), "{text}");
    assert!(text.contains("disk image.img:/sub> "), "{text}");
    assert!(
        text.contains("/sub\r\n") && text.contains("contents"),
        "{text}"
    );
}

#[test]
fn find_prints_paths_by_name_and_type() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let found = |args: &[&str]| {
        let mut all = vec!["find", "IMAGE:/"];
        all.extend(args);
        let out = output(&mut bw(&image, &all));
        assert!(out.status.success(), "{}", stderr(&out));
        out.stdout
    };
    assert_eq!(found(&["--name", "f*"]), b"/sub/file\n");
    assert_eq!(found(&["--type", "l", "-0", "--name", "l*"]), b"/link\0");
    let all = found(&[]);
    assert!(all.windows(2).any(|w| w == b"\xff\xfe"));
    let directories = found(&["--type", "d"]);
    assert_eq!(directories, b"/\n/lost+found\n/sub\n");
    assert!(found(&["--max-depth", "1"]).len() < all.len());
    refused(
        &mut bw(&image, &["find", "IMAGE", "--name", "[a"]),
        2,
        &["[a"],
    );
}
