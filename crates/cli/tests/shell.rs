//! `shell` and `find`: scripts, a prompt on a terminal, and refusals.

mod common;

use common::run::{bw, good, refused, source_tree, stderr, with_input};
use common::{Scratch, check_clean, have, ok, output};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
    // A path of the host is one, whatever its name: none of these is a path in an image.
    for host in ["/evil", "evil", "", ":", "p1", "p1:/x"] {
        let host = format!("{}:{host}", image.display());
        script(&image, &[], &format!("get /sub/file '{host}'\n"));
        assert!(fs::read(&image).unwrap() == before, "get to {host}");
    }
    done(
        &image,
        &[],
        "ls\ntree\nstat big\ndu\ndf\ninfo\nfind -name b*\nhelp\nhelp ls\n",
    );
    assert!(fs::read(&image).unwrap() == before);
}

/// The image, what lies over and below it, and a further name of it are no places to copy to.
#[test]
fn get_does_not_overwrite_what_the_session_reads() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let before = fs::read(&image).unwrap();
    let (link, hard) = (scratch.path("a link"), scratch.path("a name"));
    std::os::unix::fs::symlink(&image, &link).unwrap();
    fs::hard_link(&image, &hard).unwrap();
    // Of a tree, too: a file and a symlink of the image's own name are in it.
    let name = image.file_name().unwrap().to_str().unwrap();
    done(
        &image,
        &["-w"],
        &format!("mkdir tree links\ncp sub/file 'tree/{name}'\nln -s x 'links/{name}'\n"),
    );
    let after = fs::read(&image).unwrap();
    assert!(before != after);
    let here = image.parent().unwrap().display();
    for sandbox in ["auto", "off"] {
        for line in [
            format!("get sub/file '{}'", image.display()),
            format!("get sub/file '{}'", link.display()),
            format!("get sub/file '{}'", hard.display()),
            format!("get 'tree/{name}' '{here}'"),
            format!("get 'links/{name}' '{here}'"),
            format!("get -a tree/. '{here}'"),
        ] {
            for options in [&["-c", &line][..], &["-w", "-c", &line]] {
                let mut shell = bw(&image, &["shell", "IMAGE", "--sandbox", sandbox]);
                let out = output(shell.args(options));
                assert!(!out.status.success(), "{line}");
                assert!(fs::read(&image).unwrap() == after, "{sandbox}: {line}");
            }
        }
    }
    let overlay = scratch.path("overlay");
    let mut mkdir = bw(&image, &["mkdir", "IMAGE:/made", "--overlay"]);
    ok(mkdir.arg(&overlay));
    let changes = fs::read(&overlay).unwrap();
    for target in [&overlay, &image] {
        let mut shell = bw(&image, &["shell", "IMAGE", "--overlay"]);
        let line = format!("get sub/file '{}'", target.display());
        let out = output(shell.arg(&overlay).args(["-c", &line]));
        assert!(!out.status.success(), "{line}");
        assert!(fs::read(&overlay).unwrap() == changes, "{line}");
        assert!(fs::read(&image).unwrap() == after, "{line}");
    }
    // Another file of the host is overwritten as before.
    let other = scratch.path("other");
    fs::write(&other, "longer than the contents").unwrap();
    done(
        &image,
        &[],
        &format!("get sub/file '{}'\n", other.display()),
    );
    assert_eq!(fs::read(&other).unwrap(), b"contents");
}

/// A line does not open the image in another way than the session, nor makes files of the host beside what `get` names.
#[test]
fn lines_do_not_decide_what_the_session_has_decided() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let before = fs::read(&image).unwrap();
    let there = || {
        let names = fs::read_dir(scratch.path("")).unwrap();
        let mut names: Vec<_> = names.map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let names = there();
    for line in [
        "ls --overlay=o",
        "ls --overlay o",
        "ls --journal=o",
        "ls --device o",
        "ls --sandbox=off",
        "ls --allow-backing",
        "touch --overlay=o /x",
        "mkdir -m --overlay=o /x",
        "info --map=o.html",
        "info --map o.html",
        "df --overlay=o",
        "get --local=from /sub/file o",
        "put --local=to tree /x",
        "edit --overlay=o /x",
    ] {
        for options in [&["-c", line][..], &["-w", "-c", line]] {
            let mut shell = bw(&image, &["shell", "IMAGE"]);
            shell.current_dir(scratch.path("")).env("EDITOR", "true");
            let out = output(shell.args(options));
            assert!(!out.status.success(), "{line}");
            assert_eq!(there(), names, "{line}");
            assert!(fs::read(&image).unwrap() == before, "{line}");
        }
    }
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

/// An executable script on the host.
fn program(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.path(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Only the parent's list of names tells that a file is new: other failures could hide one that is there.
#[test]
fn a_file_that_cannot_be_read_is_not_edited_as_a_new_one() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let (away, seen) = (scratch.path("away.img"), scratch.path("seen"));
    // The first edit makes the image unreadable, the second one readable again.
    let editor = program(
        &scratch,
        "editor",
        &format!(
            "if [ -e '{img}' ]; then mv '{img}' '{away}'; exit 0; fi\n\
             : > '{seen}'; mv '{away}' '{img}'; printf lost > \"$1\"",
            img = image.display(),
            away = away.display(),
            seen = seen.display()
        ),
    );
    let mut shell = bw(&image, &["shell", "-k", "-w", "IMAGE"]);
    shell.args(["-c", "edit /big", "-c", "edit /sub/file"]);
    let out = output(shell.env_remove("VISUAL").env("EDITOR", &editor));
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(!seen.exists(), "the editor got an empty copy");
    fs::rename(&away, &image).unwrap();
    assert_eq!(good(&image, &["cat", "IMAGE:/sub/file"]), "contents");
}

/// A file that changed in the image while it was edited is not replaced, and what was written is kept.
#[test]
fn an_edit_does_not_undo_a_change_made_meanwhile() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let other = scratch.path("other");
    fs::write(&other, "of another").unwrap();
    for file in ["/sub/file", "/sub/new"] {
        let editor = program(
            &scratch,
            "editor",
            &format!(
                "'{}' cp '{}' '{}:{file}' && printf mine > \"$1\"",
                env!("CARGO_BIN_EXE_blockwright"),
                other.display(),
                image.display()
            ),
        );
        let mut shell = bw(
            &image,
            &["shell", "-w", "IMAGE", "-c", &format!("edit {file}")],
        );
        let out = output(
            shell
                .env_remove("VISUAL")
                .env("EDITOR", &editor)
                .env("TMPDIR", scratch.path("")),
        );
        assert_eq!(out.status.code(), Some(1), "{file}: {}", stderr(&out));
        let now = good(&image, &["cat", &format!("IMAGE:{file}")]);
        assert_eq!(now, "of another", "{file}");
        let said = stderr(&out);
        let kept = said.split("the edited file is ").nth(1).expect("its name");
        let kept = kept.lines().next().expect("a line");
        assert_eq!(fs::read(kept).unwrap(), b"mine", "{said}");
    }
    check_clean(&image, "edited meanwhile");
}

/// Commands of the command line and of a prompt have the user's standard input; those of a script do not.
#[test]
fn standard_input_is_the_commands_own_unless_it_is_the_script() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mut put = bw(&image, &["shell", "-w", "IMAGE", "-c", "put - /piped"]);
    let out = with_input(&mut put, b"from a pipe");
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(good(&image, &["cat", "IMAGE:/piped"]), "from a pipe");
    let out = script(&image, &["-w"], "put - /none\nmkdir /after\n");
    assert_eq!(out.status.code(), Some(2), "{}", stderr(&out));
    let names = good(&image, &["ls", "IMAGE:/"]);
    assert!(
        !names.contains("none") && !names.contains("after"),
        "{names}"
    );
    if !have("script") {
        return;
    }
    let command = format!(
        "'{}' shell -w '{}' -c 'edit /typed'",
        env!("CARGO_BIN_EXE_blockwright"),
        image.display()
    );
    let mut pty = Command::new("script");
    pty.args(["-q", "-e", "-c", &command, "/dev/null"]);
    pty.env_remove("VISUAL");
    pty.env("EDITOR", "test -t 0 && printf new >");
    let out = with_input(&mut pty, b"");
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{text}");
    assert_eq!(good(&image, &["cat", "IMAGE:/typed"]), "new");
}

/// Words go to the commands as they are: `.` and `..` are not replaced by names, and an empty one is no path.
#[test]
fn no_word_names_more_than_it_says() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let local = scratch.path("local");
    fs::create_dir(&local).unwrap();
    fs::write(local.join("of the host"), b"x").unwrap();
    done(&image, &["-w"], "mkdir -p a/b/c\nln -s a/b l\n");
    for line in [
        "rm -r ''",
        "rm -r .",
        "rm -r ..",
        "rm -r ./",
        "rm -r c/..",
        "rm -r ./..",
        "mv '' /x",
        "mv . /x",
        "cp -r '' /x",
        "chmod 0 ''",
        "ls ''",
        "cd ''",
        "edit ''",
        "edit .",
        "edit c/..",
        "put ''",
        "get c ''",
    ] {
        let mut shell = bw(
            &image,
            &["shell", "-w", "IMAGE", "-c", "cd /a/b", "-c", line],
        );
        let out = output(shell.current_dir(&local).env("EDITOR", "true"));
        assert!(!out.status.success(), "{line}");
        let all = good(&image, &["find", "IMAGE:/a"]);
        assert_eq!(all, "/a\n/a/b\n/a/b/c\n", "{line}");
    }
    assert!(!local.join("c").exists());
    // The parent of where the link leads, not of the link.
    assert_eq!(done(&image, &[], "ls l/..\n"), "b\n");
    assert_eq!(done(&image, &[], "ls l/../*\n"), "c\n");
    // As in sh, `cd` goes back the way that it came.
    assert_eq!(done(&image, &[], "cd l\npwd\ncd ..\npwd\n"), "/l\n/\n");
    assert_eq!(
        done(&image, &[], "cd a/./b/../b/\npwd\nls .\n"),
        "/a/b\nc\n"
    );
    let out = script(&image, &[], "cd nowhere/..\n");
    assert_eq!(out.status.code(), Some(1));
    // Without a path, paths are printed without a dot.
    assert_eq!(done(&image, &[], "cd a\nfind\n"), "/a\n/a/b\n/a/b/c\n");
    check_clean(&image, "after refusals");
}

/// A signal that comes while a command runs ends a script after it, with the status that sh gives.
#[test]
fn signals_end_a_script_and_reach_the_command() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    for (name, number) in [("TERM", 15), ("HUP", 1), ("INT", 2)] {
        // INT comes from the terminal, to the command as well; the others must be passed on.
        let wait = match name {
            "INT" => "exit 1",
            _ => "exec sleep 60",
        };
        let editor = program(&scratch, "editor", &format!("kill -{name} $PPID\n{wait}"));
        let mut shell = bw(&image, &["shell", "-k", "-w", "IMAGE"]);
        let line = ["-c", "edit /sub/file", "-c", "mkdir /after"];
        let start = std::time::Instant::now();
        // The editor must be the shell's child.
        let editor = format!("exec {}", editor.display());
        let out = output(shell.args(line).env_remove("VISUAL").env("EDITOR", &editor));
        assert_eq!(
            out.status.code(),
            Some(128 + number),
            "{name}: {}",
            stderr(&out)
        );
        assert!(start.elapsed().as_secs() < 30, "{name} did not reach it");
        let names = good(&image, &["ls", "IMAGE:/"]);
        assert!(!names.contains("after"), "{name}: {names}");
        if name != "INT" && have("script") {
            let command = format!(
                "'{}' shell -w '{}'",
                env!("CARGO_BIN_EXE_blockwright"),
                image.display()
            );
            let mut pty = Command::new("script");
            pty.args(["-q", "-e", "-c", &command, "/dev/null"]);
            pty.env_remove("VISUAL").env("EDITOR", &editor);
            let out = with_input(&mut pty, b"edit /sub/file\nmkdir /after\nexit 0\n");
            assert_eq!(out.status.code(), Some(128 + number), "{name}");
            let names = good(&image, &["ls", "IMAGE:/"]);
            assert!(!names.contains("after"), "{name}: {names}");
        }
    }
}

/// The first command that changes something makes the overlay; until then there is nothing to read in it.
#[test]
fn a_new_overlay_is_made_by_the_first_change() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let before = fs::read(&image).unwrap();
    let overlay = scratch.path("new overlay");
    let option = format!("--overlay={}", overlay.display());
    let text = done(&image, &["-w", &option], "cd sub\ncat f*\n");
    assert_eq!(text, "contents");
    assert!(!overlay.exists(), "nothing was changed");
    let lines = "ls sub\nmkdir /made\nls /made/..\nrm -r sub\n";
    let text = done(&image, &["-w", &option], lines);
    assert!(text.contains("made"), "{text}");
    let names = done(&image, &[&option], "ls\n");
    assert!(names.contains("made") && !names.contains("sub"), "{names}");
    assert!(fs::read(&image).unwrap() == before);
    // An editor's change makes one, too.
    fs::remove_file(&overlay).unwrap();
    let mut shell = bw(
        &image,
        &["shell", "-w", "IMAGE", &option, "-c", "edit sub/file"],
    );
    ok(shell.env_remove("VISUAL").env("EDITOR", "printf more >>"));
    assert_eq!(done(&image, &[&option], "cat sub/file\n"), "contentsmore");
    // For reading it must be there.
    fs::remove_file(&overlay).unwrap();
    let out = script(&image, &[&option], "ls\n");
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(fs::read(&image).unwrap() == before);
}

/// A name that has a line's end is one name for patterns.
#[test]
fn patterns_match_whole_names() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let local = scratch.path("local");
    fs::create_dir(&local).unwrap();
    fs::write(local.join("one\ntwo"), "x").unwrap();
    let line = format!("put '{}' /d\n", local.display());
    done(&image, &["-w"], &line);
    let out = script(&image, &["-w"], "rm /d/two*\n");
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    done(&image, &["-w"], "rm /d/one*\n");
    assert_eq!(done(&image, &[], "ls /d\n"), "");
}

/// A script that cannot be read ends, and no part of a line that is too long is a command.
#[test]
fn lines_that_cannot_be_read_are_no_commands() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mut shell = Command::new("timeout");
    shell.args(["20", env!("CARGO_BIN_EXE_blockwright"), "shell", "-k"]);
    shell.arg(&image);
    shell.stdin(fs::File::open(scratch.path("")).unwrap());
    shell.stdout(std::process::Stdio::null());
    shell.stderr(std::process::Stdio::null());
    assert_eq!(shell.status().unwrap().code(), Some(1));
    // The cut falls before what would be a command, and where nothing is left of the line.
    for (length, rest) in [
        (1 << 20, "mkdir /evil"),
        (3 << 20, "mkdir /evil"),
        ((1 << 20) - 1, ""),
    ] {
        let lines = format!("{}{rest}\nmkdir /good\n", "x".repeat(length));
        let out = script(&image, &["-k", "-w"], &lines);
        assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
        assert!(stderr(&out).contains("line 1: the line is too long"));
        let names = good(&image, &["ls", "IMAGE:/"]);
        assert!(names.contains("good") && !names.contains("evil"), "{names}");
        ok(&mut bw(&image, &["rm", "-r", "IMAGE:/good"]));
    }
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
