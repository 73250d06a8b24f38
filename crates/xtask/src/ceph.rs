//! `cargo xtask ceph`: volumes on a real Ceph cluster, whose parts are killed under load.
//!
//! The cluster is this machine's own, from Debian's packages. `qemu-nbd` serves an RBD image, on which there is an ext4 volume, then another with f2fs.
//! While programs write and sync, an OSD is killed and comes back, then the NBD server, then the program that serves the mount. At the end, every byte
//! that was synced must be there, but for old files that the programs removed, and our checker and the format's own must find nothing in a copy that `rbd` makes.

mod cluster;

use crate::load::Load;
use crate::scratch::Scratch;
use crate::served::{PATIENCE, answering, faultless, kill, mount, tell};
use crate::steps::{file, install, run_tool};
use crate::target_dir;
use crate::tools::cargo_path;
use crate::workspace;
use cluster::Cluster;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What is needed: a tool or a file, and Debian's package with it.
const NEEDED: [(&str, &str); 9] = [
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-osd", "ceph-osd"),
    ("rbd", "ceph-common"),
    ("qemu-nbd", "qemu-utils"),
    ("/usr/share/doc/qemu-block-extra", "qemu-block-extra"),
    ("fusermount3", "fuse3"),
    ("e2fsck", "e2fsprogs"),
    ("fsck.f2fs", "f2fs-tools"),
];
const VOLUME_MEGABYTES: u64 = 1024;
/// The part that is written and read in sequence.
const SEQUENCE_MEGABYTES: u64 = 128;
/// How long writers are watched with nothing wrong, and with an OSD away, in seconds.
const WATCHED: Duration = Duration::from_secs(15);

pub(crate) fn run() -> ExitCode {
    match ceph() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask ceph: {e}");
            ExitCode::FAILURE
        }
    }
}

fn ceph() -> Result<(), String> {
    install(&NEEDED)?;
    let mut build = Command::new(cargo_path());
    build.args(["build", "--quiet", "-p", "blockwright-cli"]);
    run_tool(build.current_dir(workspace()))?;
    let scratch = Scratch::new("blockwright-ceph")?;
    let start = Instant::now();
    let worked: Result<(), String> = (|| {
        let mut cluster = Cluster::start(&scratch)?;
        println!(
            "{}: a monitor, a manager, three OSDs, pool of size 3; started in {:.0} s",
            cluster.version(),
            start.elapsed().as_secs_f64()
        );
        for format in ["ext4", "f2fs"] {
            volume(&scratch, &mut cluster, format).map_err(|e| format!("{format}: {e}"))?;
        }
        Ok(())
    })();
    if worked.is_err() {
        eprintln!("{}", scratch.logs());
    }
    worked
}

/// The server of an image, on a socket of its name.
fn serve(scratch: &Scratch, cluster: &Cluster, image: &str) -> Result<Child, String> {
    let socket = scratch.path(&format!("{image}.sock"));
    let _absent = fs::remove_file(&socket);
    let mut command = Command::new("qemu-nbd");
    command.args(["-t", "-f", "raw", "-e", "8", "--discard=unmap", "-k"]);
    command.arg(&socket).arg(cluster.qemu_name(image));
    let mut server = scratch.start(&mut command, "qemu-nbd.log")?;
    answering(&mut server, &socket, "qemu-nbd")?;
    Ok(server)
}

/// The whole life of one volume.
fn volume(scratch: &Scratch, cluster: &mut Cluster, format: &str) -> Result<(), String> {
    let program = target_dir().join("debug/blockwright");
    let mnt = scratch.path(&format!("mnt.{format}"));
    file(&mnt, fs::create_dir(&mnt))?;
    cluster.create(format, VOLUME_MEGABYTES)?;
    let mut server = serve(scratch, cluster, format)?;
    let socket = scratch.path(&format!("{format}.sock"));
    let address = format!(
        "nbd+unix:///?socket={}&connections=4&reconnect=600",
        socket.display()
    );
    let blockwright = |args: &[&str]| run_tool(Command::new(&program).args(args));
    blockwright(&["mkfs", "-q", "-t", format, &address])?;
    let mut mounted = mount(scratch, &program, &address, &mnt)?;

    let took = sequence_written(&mnt.join("sequence"))?;
    println!("{format}: {took:.0} MB/s written in sequence, with one fsync at the end");
    let mut load = Load::start(&mnt);
    let figures = load.during(|| {
        sleep(WATCHED);
        Ok(())
    })?;
    tell(format, "all is well", figures);
    let figures = load.during_fault(|| {
        cluster.kill_osd(1)?;
        sleep(WATCHED);
        load.wait_for_all(PATIENCE)
    })?;
    tell(format, "an OSD was killed", figures);
    let figures = load.during_fault(|| {
        cluster.restart_osd(1)?;
        load.wait_for_all(PATIENCE)
    })?;
    tell(format, "the OSD is back, until all copies are", figures);
    let figures = load.during_fault(|| {
        kill(&mut server)?;
        sleep(Duration::from_secs(1));
        server = serve(scratch, cluster, format)?;
        load.wait_for_all(PATIENCE)
    })?;
    tell(format, "the NBD server was killed, away for 1 s", figures);
    let figures = load.during(|| {
        sleep(WATCHED);
        Ok(())
    })?;
    tell(format, "all is well again", figures);

    // The program that serves the mount, as if its machine had lost power.
    kill(&mut mounted)?;
    run_tool(Command::new("fusermount3").args(["-u", "-z"]).arg(&mnt))?;
    // Their errors are the kernel's: the mount is gone.
    drop(load.stop());
    mounted = mount(scratch, &program, &address, &mnt)?;
    let found = load.verify()?;
    let took = sequence_read(&mnt.join("sequence"))?;
    println!("{format}: {took:.0} MB/s read in sequence");
    blockwright(&["umount", &mnt.display().to_string()])?;
    mounted.wait().map_err(|e| e.to_string())?;
    // After the unmount, nothing may wait in the server.
    kill(&mut server)?;
    let copy = scratch.path("copy.img");
    let _absent = fs::remove_file(&copy);
    cluster.export(format, &copy)?;
    faultless(&program, format, &copy)?;
    println!("{format}: {found}, and nothing is wrong");
    Ok(())
}

fn piece(number: u64) -> Vec<u8> {
    let words = (0..1 << 17).map(|n: u64| (number << 32 | n).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Writes a file in pieces of 1 MiB, and gives MB/s.
fn sequence_written(path: &Path) -> Result<f64, String> {
    let pieces: Vec<Vec<u8>> = (0..SEQUENCE_MEGABYTES).map(piece).collect();
    let start = Instant::now();
    let written = File::create(path).and_then(|mut to| {
        pieces.iter().try_for_each(|p| to.write_all(p))?;
        to.sync_all()
    });
    file(path, written)?;
    Ok((SEQUENCE_MEGABYTES << 20) as f64 / 1e6 / start.elapsed().as_secs_f64())
}

/// Reads it again, and compares it.
fn sequence_read(path: &Path) -> Result<f64, String> {
    let mut bytes = Vec::new();
    let start = Instant::now();
    file(
        path,
        File::open(path).and_then(|mut from| from.read_to_end(&mut bytes)),
    )?;
    let took = start.elapsed().as_secs_f64();
    match bytes.chunks(1 << 20).eq((0..SEQUENCE_MEGABYTES).map(piece)) {
        true => Ok(bytes.len() as f64 / 1e6 / took),
        false => Err(format!("{}: other contents", path.display())),
    }
}
