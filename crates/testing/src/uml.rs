//! A real Linux with f2fs, as an ordinary process: Debian's user-mode-linux.
//!
//! The guest's root is the host's own tree, so it finds the host's programs; it must write nowhere
//! but to its images and to `$OUT`, a directory of the host. A boot takes two to three seconds: do as
//! much as possible in one. Every run has a hard limit, after which its whole process group is killed.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Whether everything is there. Missing on a user's machine: said loudly; in CI: a failure.
pub fn available() -> bool {
    blockwright_oracles::have(&["linux.uml", "perl", "insmod"])
}

/// What comes before a guest's own commands: file systems, f2fs, and functions.
const PRELUDE: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs none /mnt
modules=/usr/lib/uml/modules/$(uname -r)/kernel
for m in crypto/crc32_generic fs/quota/quota_tree fs/quota/quota_v2 fs/f2fs/f2fs; do
    if [ -e "$modules/$m.ko" ]; then insmod "$modules/$m.ko"; fi
done
# Mounts the image of the given letter on /mnt/LETTER, with the given options.
attach() {
    mkdir -p "/mnt/$1"
    mount -t f2fs -o "${2:-rw}" "/dev/ubd$1" "/mnt/$1"
}
"#;

/// What comes behind them. The power goes off by reboot(2), which only init may call.
const EPILOGUE: &str = r"
dmesg > $OUT/dmesg
sync
perl -e 'syscall(169, 0xfee1dead, 672274793, 0x4321fedc, 0)'
";

/// Kills the guest's whole process group however the test ends.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            // The guest's own processes are in the group, too.
            let _gone = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _reaped = self.0.wait();
    }
}

/// Boots Linux with `images` as /dev/ubda, /dev/ubdb, …, runs the shell commands of `script` (which
/// stop at the first that fails), and powers off. The result is what they printed. `out` is `$OUT`: an
/// empty directory for scratch and results.
///
/// # Panics
/// When a command fails, Linux complains about an image, or the limit passes.
pub fn run(out: &Path, images: &[&Path], script: &str, limit: Duration) -> String {
    let init = out.join("init.sh");
    let text = format!(
        "{PRELUDE}OUT='{out}'\n(\nset -e\n{script}\n) > $OUT/log 2>&1\necho $? > $OUT/status\n{EPILOGUE}",
        out = out.display()
    );
    std::fs::write(&init, text).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&init, mode).expect("a mode");
    let mut arguments = vec![
        "mem=512M".to_owned(),
        "rootfstype=hostfs".to_owned(),
        format!("init={}", init.display()),
    ];
    for (n, image) in images.iter().enumerate() {
        arguments.push(format!("ubd{n}={}", image.display()));
    }
    power(out, &arguments, limit);
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    let (status, log) = (read("status"), read("log"));
    assert!(
        status.trim() == "0",
        "status {status:?}:\n{log}\n{}\n{}",
        read("dmesg"),
        read("console")
    );
    log
}

/// Boots Linux from a disk, with nothing of the host in it, and waits for the power to go off. `arguments` say where the root is. The result is what is on
/// the console.
///
/// # Panics
/// When the limit passes.
pub fn boot(out: &Path, disk: &Path, arguments: &[String], limit: Duration) -> String {
    let mut all = vec!["mem=128M".to_owned(), "panic=1".to_owned()];
    all.push(format!("ubd0={}", disk.display()));
    all.extend_from_slice(arguments);
    power(out, &all, limit);
    std::fs::read_to_string(out.join("console")).unwrap_or_default()
}

/// Runs Linux until the power goes off. Its console is written to a file in `out`.
fn power(out: &Path, arguments: &[String], limit: Duration) {
    let console = std::fs::File::create(out.join("console")).expect("a file");
    let mut command = Command::new("linux.uml");
    command
        .envs(blockwright_oracles::uml_environment())
        .args(["rw", "con=null", "con0=null,fd:1"])
        .arg(format!("uml_dir={}/", out.display()))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(console.try_clone().expect("a file"))
        .stderr(console)
        .process_group(0);
    let mut guest = Guest(command.spawn().expect("linux.uml starts"));
    let start = Instant::now();
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    while guest.0.try_wait().expect("a child").is_none() {
        assert!(
            start.elapsed() < limit,
            "Linux did not finish within {limit:?}:\n{}\n{}",
            read("log"),
            read("console")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
