//! The prompt of `shell` on a terminal: editing, history, completion, signals. util-linux's script(1) gives the terminal.

mod common;

use common::run::{bw, good, source_tree};
use common::{Scratch, have, ok};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const LEFT: &str = "\x1b[D";
const UP: &str = "\x1b[A";
const CTRL_A: &str = "\x01";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A program on a terminal, and what it has shown.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    shown: Arc<(Mutex<Vec<u8>>, Condvar)>,
    /// What was expected so far ends here.
    at: usize,
}

impl Terminal {
    fn new(command: &str, home: &Path, set: &[(&str, &str)]) -> Self {
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", command, "/dev/null"]);
        script.env_remove("VISUAL").env("TERM", "xterm");
        script.envs(set.iter().copied()).current_dir(home);
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let keys = child.stdin.take().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let shown = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let filled = shown.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut bytes) {
                filled.0.lock().unwrap().extend_from_slice(&bytes[..n]);
                filled.1.notify_all();
            }
        });
        Terminal {
            child,
            keys,
            shown,
            at: 0,
        }
    }

    /// `shell` with these arguments on the image, after its first prompt.
    fn shell(image: &Path, options: &str, home: &Path, set: &[(&str, &str)]) -> Self {
        // In place of the shell of script(1): Debian's sh would wait, and end as interrupted when a Ctrl-C came meanwhile.
        let command = format!("exec {}", shell(image, options));
        let mut terminal = Self::new(&command, home, set);
        terminal.expect(&format!(":/{}", prompt(options)));
        terminal
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is shown, after what was expected before.
    fn expect(&mut self, text: &str) {
        let start = Instant::now();
        let (shown, more) = &*self.shown;
        let mut shown = shown.lock().unwrap();
        loop {
            let rest = &shown[self.at..];
            let found = rest.windows(text.len()).position(|w| w == text.as_bytes());
            if let Some(found) = found {
                self.at += found + text.len();
                return;
            }
            let all = String::from_utf8_lossy(&shown);
            assert!(start.elapsed() < PATIENCE, "no {text:?} in {all:?}");
            drop(all);
            shown = more.wait_timeout(shown, PATIENCE).unwrap().0;
        }
    }

    /// Presses keys, and waits until this is shown.
    fn ask(&mut self, keys: &str, text: &str) {
        self.press(keys);
        self.expect(text);
    }

    /// Drops the line. What is typed before the next prompt goes with it.
    fn drop_line(&mut self) {
        self.ask(CTRL_C, "\x1b[?2004l");
        self.expect(":/# ");
    }

    /// The status of the program, which ends.
    fn end(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        let shown = self.shown.0.lock().unwrap();
        (status.code(), String::from_utf8_lossy(&shown).into_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn shell(image: &Path, options: &str) -> String {
    let program = env!("CARGO_BIN_EXE_blockwright");
    format!("'{program}' shell {options} '{}'", image.display())
}

fn prompt(options: &str) -> &'static str {
    match options.contains("-w") {
        true => "# ",
        false => "> ",
    }
}

/// An image whose names need quotes, and one that would change the terminal.
fn image(scratch: &Scratch) -> PathBuf {
    let tree = source_tree(scratch, "tree");
    fs::create_dir(tree.join("two words")).unwrap();
    fs::write(tree.join("two words/it's one"), "quoted contents\n").unwrap();
    fs::write(tree.join("escape\x1b[2Jhere"), "").unwrap();
    let image = scratch.path("disk.img");
    ok(bw(&image, &["mkfs", "-q", "--size", "64M", "--from"])
        .arg(&tree)
        .arg(&image));
    image
}

#[test]
fn lines_are_edited_and_come_back() {
    if !have("script") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mut shell = Terminal::shell(&image, "", &scratch.path(""), &[]);
    shell.press(&format!("at sub/fle{LEFT}{LEFT}i{CTRL_A}c\r"));
    shell.expect("contents");
    shell.expect("> ");
    shell.ask("pwd\r", "\n/\r\n");
    shell.expect("> ");
    // The line before the last one.
    shell.press(&format!("{UP}{UP}\r"));
    shell.expect("\r\ncontents");
    shell.expect("> ");
    // What is typed ahead is not lost.
    shell.press("cd sub\rpwd\rexit 5\r");
    shell.expect("\r\n/sub\r\n");
    assert_eq!(shell.end().0, Some(5));
}

/// Lines of a session do not stay, unless the user names a file for them.
#[test]
fn lines_of_earlier_sessions_come_back_from_a_file_alone() {
    if !have("script") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch);
    let home = scratch.dir("home");
    let directory = home.display().to_string();
    let set = [("HOME", &*directory), ("XDG_STATE_HOME", &*directory)];
    let session = |options: &str, keys: &str, shows: &str| {
        let mut shell = Terminal::shell(&image, options, &home, &set);
        shell.ask(keys, shows);
        shell.expect("> ");
        shell.press("exit\r");
        assert_eq!(shell.end().0, Some(0));
    };
    session("", "cat sub/file\r", "\r\ncontents");
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
    let file = home.join("lines");
    let lines = || fs::read_to_string(&file).unwrap();
    session("--history lines", "cat sub/file\r", "\r\ncontents");
    assert_eq!(lines(), "cat sub/file\nexit\n");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The one before the last, and one that is not kept.
    session(
        "--history lines",
        &format!("{UP}{UP}\r pwd\r"),
        "\r\ncontents",
    );
    assert_eq!(lines(), "cat sub/file\nexit\ncat sub/file\nexit\n");
    // Nor is such a line in the middle of a paste.
    fs::remove_file(&file).unwrap();
    session(
        "--history lines",
        "\x1b[200~pwd\n cat sub/file\n\x1b[201~\r",
        "\r\ncontents",
    );
    assert_eq!(lines(), "pwd\nexit\n");
    // It is cut to its last lines, and lines that would change the terminal do not come back.
    let many: String = (0..1500).map(|n| format!("pwd {n}\n")).collect();
    fs::write(&file, many + "pwd\x1b[2J\n").unwrap();
    session("--history lines", &format!("{UP}\x15pwd\r"), "\n/\r\n");
    let kept = lines();
    assert!(kept.starts_with("pwd 501\n"), "{kept}");
    assert!(kept.ends_with("pwd 1499\npwd\nexit\n"), "{kept}");
    // What is no history is refused, and stays as it is.
    let before = fs::read(&image).unwrap();
    let options = format!("--history '{}'", image.display());
    let mut wrong = Terminal::new(&shell(&image, &options), &home, &set);
    wrong.expect("no history of the shell");
    assert_ne!(wrong.end().0, Some(0));
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn tab_completes_commands_and_paths() {
    if !have("script") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch);
    let host = scratch.dir("host");
    fs::write(host.join("of the host"), "from the host").unwrap();
    let mut shell = Terminal::shell(&image, "-w", &host, &[]);
    // A command, a directory and a file, each by one key.
    shell.ask("ca\t", "cat ");
    shell.ask("tw\t", "two\\ words/");
    shell.ask("\t\r", "\r\nquoted contents");
    shell.expect("# ");
    shell.ask("cat 'two w\t", "two words/");
    shell.ask("\t\r", "\r\nquoted contents");
    shell.expect("# ");
    // What several names have in common, then their list.
    shell.ask("cat s\t\t", "sparse");
    shell.expect("sub/");
    shell.drop_line();
    shell.ask("cd \t\t", "two words/");
    shell.drop_line();
    // A path of the host, then one of the image.
    shell.ask("put of\t", "of\\ the\\ host ");
    shell.ask("su\t", "sub/");
    shell.press("\r");
    shell.expect("# ");
    shell.ask("cat sub/of\t\r", "\r\nfrom the host");
    shell.expect("# ");
    shell.ask("ls e\t\t", "\x07");
    shell.drop_line();
    shell.press("exit 3\r");
    let (status, shown) = shell.end();
    assert_eq!(status, Some(3));
    assert!(!shown.contains("\x1b[2J"), "{shown:?}");
    assert_eq!(
        good(&image, &["cat", "IMAGE:/sub/of the host"]),
        "from the host"
    );
}

#[test]
fn control_keys_drop_lines_end_commands_and_end_the_shell() {
    if !have("script") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch);
    let set = [("EDITOR", "echo editing; exec sleep 600; :")];
    let mut shell = Terminal::shell(&image, "-w", &scratch.path(""), &set);
    shell.press("rm big");
    shell.drop_line();
    shell.ask("pwd\r", "\n/\r\n");
    shell.expect("# ");
    // The command is ended, not the shell, and nothing that was pasted after it is run.
    shell.press("\x1b[200~edit sub/file\nrm big\n\x1b[201~");
    shell.ask("\r", "editing\r\n");
    shell.ask(CTRL_C, ":/# ");
    // In a line, Ctrl-D deletes.
    shell.press(&format!("pwxd{LEFT}{LEFT}{CTRL_D}\r"));
    shell.expect("\n/\r\n");
    shell.expect("# ");
    shell.ask("cat nowhere\r", "nowhere: ");
    shell.expect("# ");
    shell.press(CTRL_D);
    assert_eq!(shell.end().0, Some(1));
    assert!(good(&image, &["ls", "IMAGE:/"]).contains("big"));
}

#[test]
fn pasted_lines_wait_for_enter_and_run_one_after_another() {
    if !have("script") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mut shell = Terminal::shell(&image, "-w", &scratch.path(""), &[]);
    shell.press("\x1b[200~mkdir /first\nmkdir '/second one'\n\x1b[201~");
    shell.expect("second one");
    let names = good(&image, &["ls", "IMAGE:/"]);
    assert!(!names.contains("first"), "{names}");
    shell.press("\r");
    shell.expect("# ");
    shell.press("exit\r");
    assert_eq!(shell.end().0, Some(0));
    let names = good(&image, &["ls", "IMAGE:/"]);
    assert!(
        names.contains("first\n") && names.contains("second one\n"),
        "{names}"
    );
}

/// The process that runs the shell itself.
fn process(image: &Path) -> u32 {
    let program = env!("CARGO_BIN_EXE_blockwright");
    let start = format!("{program}\0shell\0");
    let end = format!("{}\0", image.display());
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.starts_with(start.as_bytes()) && line.ends_with(end.as_bytes()) {
            return entry.file_name().to_str().unwrap().parse().unwrap();
        }
    }
    panic!("no shell on {}", image.display());
}

#[test]
fn a_signal_at_the_prompt_gives_the_terminal_its_mode_back() {
    if !have("script") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch);
    for (name, status) in [("TERM", 143), ("HUP", 129)] {
        let command = format!(
            "stty -a > before; {}; echo \"ended $?\"; stty -a > after",
            shell(&image, "")
        );
        let mut terminal = Terminal::new(&command, &scratch.path(""), &[]);
        terminal.expect(":/> ");
        // What was typed is no command of the terminal's next program.
        terminal.ask("half a li", "half a li");
        let pid = process(&image).to_string();
        ok(Command::new("kill").args([&format!("-{name}"), &pid]));
        terminal.expect(&format!("ended {status}"));
        let (_, shown) = terminal.end();
        assert!(shown.contains("\x1b[?2004l"), "{shown:?}");
        let read = |file: &str| fs::read_to_string(scratch.path(file)).unwrap();
        assert!(read("before").contains(" icanon"));
        assert_eq!(read("before"), read("after"), "{name}");
    }
}

/// A terminal that cannot move its cursor edits lines itself.
#[test]
fn a_dumb_terminal_gets_a_plain_prompt() {
    if !have("script") {
        return;
    }
    let scratch = Scratch::new();
    let image = image(&scratch);
    let mut shell = Terminal::shell(&image, "", &scratch.path(""), &[("TERM", "dumb")]);
    shell.ask("pwd\n", "\n/\r\n");
    shell.expect("> ");
    shell.press(CTRL_D);
    let (status, shown) = shell.end();
    assert_eq!(status, Some(0));
    assert!(!shown.contains('\x1b'), "{shown:?}");
}
