//! `cargo xtask boot`: a Debian root and its kernel become a disk by one `disk create`, and a machine boots from it.
//!
//! The disk has a GUID partition table, an EFI system partition with systemd-boot, the kernel and its initial RAM disk, an ext4 root, an ext4 `/home`
//! that systemd finds by its type, and swap space. The machine is QEMU's, with UEFI firmware. A service of the system writes a file, says a marker
//! on the serial line, and powers off. Then our checker and e2fsck look at the root, and the file is read with `cat`.

use crate::steps::{file, install, run_tool, write};
use crate::target_dir;
use crate::tools::cargo_path;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What is needed: a tool or a file, and Debian's package with it.
const NEEDED: [(&str, &str); 6] = [
    ("mmdebstrap", "mmdebstrap"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("e2fsck", "e2fsprogs"),
    (FIRMWARE, "ovmf"),
    (LOADER, "systemd-boot-efi"),
];
const FIRMWARE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
const LOADER: &str = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi";
/// The message of the system when it is up.
const MARKER: &str = "blockwright: the system is up";
/// The longest that the machine may take, in seconds: it is emulated.
const BOOT_SECONDS: &str = "1800";

const SERVICE: &str = "[Unit]
Description=Says that the system is up, and powers off
[Service]
Type=oneshot
StandardOutput=tty
TTYPath=/dev/ttyS0
ExecStart=/bin/sh -c 'cat /proc/mounts > /mounts-inside; echo blockwright: the system is up; systemctl --no-block poweroff'
";
const ENTRY: &str = "title Linux
linux /vmlinuz
initrd /initrd.img
options root=PARTLABEL=root rw console=ttyS0
";

pub(crate) fn run() -> ExitCode {
    match boot() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask boot: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The root as an archive, with the service in it. It is made once, and kept under `target/`.
fn root_archive(dir: &Path) -> Result<PathBuf, String> {
    let archive = dir.join("root.tar");
    if archive.exists() {
        return Ok(archive);
    }
    println!("making a Debian root ({})", archive.display());
    let made = dir.join("root.tar.new");
    let name = made.display().to_string();
    let _absent = fs::remove_file(&made);
    run_tool(Command::new("mmdebstrap").args([
        "--variant=minbase",
        "--format=tar",
        "--include=linux-image-cloud-amd64,systemd-sysv",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "bookworm",
        &name,
    ]))?;
    let extra = dir.join("extra");
    let units = extra.join("etc/systemd/system");
    write(&units.join("up.service"), SERVICE)?;
    let wanted = units.join("multi-user.target.wants");
    file(&wanted, fs::create_dir_all(&wanted))?;
    let link = wanted.join("up.service");
    let _absent = fs::remove_file(&link);
    file(&link, std::os::unix::fs::symlink("../up.service", &link))?;
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "-rf", &name, "-C"])
        .arg(&extra);
    run_tool(tar.args([
        "./etc/systemd/system/up.service",
        "./etc/systemd/system/multi-user.target.wants/up.service",
    ]))?;
    file(&archive, fs::rename(&made, &archive))?;
    Ok(archive)
}

/// A tree for the EFI system partition, with the kernel of the root.
fn esp_tree(dir: &Path, root: &Path) -> Result<PathBuf, String> {
    let esp = dir.join("esp");
    let _absent = fs::remove_dir_all(&esp);
    write(
        &esp.join("loader/loader.conf"),
        "timeout 0\ndefault linux.conf\n",
    )?;
    write(&esp.join("loader/entries/linux.conf"), ENTRY)?;
    let boot = esp.join("EFI/BOOT");
    file(&boot, fs::create_dir_all(&boot))?;
    file(
        Path::new(LOADER),
        fs::copy(LOADER, boot.join("BOOTX64.EFI")),
    )?;
    for (pattern, name) in [
        ("./boot/vmlinuz-*", "vmlinuz"),
        ("./boot/initrd.img-*", "initrd.img"),
    ] {
        let to = esp.join(name);
        let out = file(&to, fs::File::create(&to))?;
        let mut tar = Command::new("tar");
        tar.arg("-xOf")
            .arg(root)
            .args(["--wildcards", pattern])
            .stdout(out);
        let status = tar.status().map_err(|e| format!("tar: {e}"))?;
        if !status.success() {
            return Err(format!("{}: has no {pattern}", root.display()));
        }
    }
    Ok(esp)
}

fn boot() -> Result<(), String> {
    install(&NEEDED)?;
    let mut build = Command::new(cargo_path());
    build.args(["build", "--quiet", "-p", "blockwright-cli"]);
    run_tool(build.current_dir(workspace()))?;
    let program = target_dir().join("debug/blockwright");
    let dir = target_dir().join("boot");
    file(&dir, fs::create_dir_all(&dir))?;
    let root = root_archive(&dir)?;
    let esp = esp_tree(&dir, &root)?;
    let disk = dir.join("disk.qcow2");
    let _absent = fs::remove_file(&disk);
    let mut create = Command::new(&program);
    create.args(["disk", "create", "--gpt", "-o"]).arg(&disk);
    create.arg(format!("esp={}:fat32", esp.display()));
    create.arg(format!("root={}:ext4:auto+200M", root.display()));
    print!(
        "{}",
        run_tool(create.args(["home=:ext4:64M", "swap=:swap:16M"]))?
    );
    run_machine(&dir, &disk)?;
    let part = |selector: &str| format!("{}:{selector}", disk.display());
    let inside = run_tool(
        Command::new(&program)
            .arg("cat")
            .arg(part("p=root:/mounts-inside")),
    )?;
    for mount in [" / ext4 rw", " /home ext4 "] {
        if !inside.contains(mount) {
            return Err(format!("the system had no `{mount}`:\n{inside}"));
        }
    }
    print!(
        "{}",
        run_tool(Command::new(&program).args(["check", "-n", &part("p=root")]))?
    );
    let volume = dir.join("root.img");
    let _absent = fs::remove_file(&volume);
    run_tool(
        Command::new(&program)
            .args(["disk", "extract", "-q", "-o"])
            .arg(&volume)
            .arg(part("p=root")),
    )?;
    let clean = run_tool(Command::new("e2fsck").arg("-fn").arg(&volume));
    let _gone = fs::remove_file(&volume);
    print!("{}", clean?);
    run_tool(Command::new("qemu-img").args(["check", "-q"]).arg(&disk))?;
    println!(
        "booted; the file that the system wrote is there, and nothing is wrong with its volume"
    );
    Ok(())
}

/// Runs the machine until it powers off. It is emulated, so that it works where processors have no virtualization.
fn run_machine(dir: &Path, disk: &Path) -> Result<(), String> {
    let (log, variables) = (dir.join("serial.log"), dir.join("variables.fd"));
    file(Path::new(VARIABLES), fs::copy(VARIABLES, &variables))?;
    println!("booting; the serial line is in {}", log.display());
    let mut machine = Command::new("timeout");
    machine.args([
        BOOT_SECONDS,
        "qemu-system-x86_64",
        "-machine",
        "q35,accel=tcg",
        "-smp",
        "2",
        "-m",
        "1024",
    ]);
    machine.args([
        "-display",
        "none",
        "-monitor",
        "none",
        "-nic",
        "none",
        "-no-reboot",
    ]);
    machine
        .arg("-serial")
        .arg(format!("file:{}", log.display()));
    machine
        .arg("-drive")
        .arg(format!("if=pflash,format=raw,readonly=on,file={FIRMWARE}"));
    machine
        .arg("-drive")
        .arg(format!("if=pflash,format=raw,file={}", variables.display()));
    machine
        .arg("-drive")
        .arg(format!("if=virtio,format=qcow2,file={}", disk.display()));
    let ended = run_tool(machine.stdin(Stdio::null()));
    let said = file(&log, fs::read(&log))?;
    let said = String::from_utf8_lossy(&said);
    match said.contains(MARKER) {
        true => ended.map(drop),
        false => Err(format!(
            "the system did not come up: see {} ({ended:?})",
            log.display()
        )),
    }
}
