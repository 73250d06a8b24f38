//! `cargo xtask s3`: volumes on nbdkit's S3 plugin, which is killed under load, and an image in chunks, with an S3 server of this machine (moto) behind
//! both.

use crate::load::Load;
use crate::scratch::Scratch;
use crate::served::{PATIENCE, answering, faultless, kill, mount, tell};
use crate::steps::{file, install, run_tool};
use crate::tools::{cargo_path, tools_dir};
use crate::{target_dir, workspace};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What is needed: a tool or a file, and Debian's package with it.
const NEEDED: [(&str, &str); 8] = [
    ("nbdkit", "nbdkit"),
    (
        "/usr/share/man/man1/nbdkit-S3-plugin.1.gz",
        "nbdkit-plugin-python",
    ),
    ("/usr/lib/python3/dist-packages/boto3", "python3-boto3"),
    ("/usr/share/doc/python3-venv", "python3-venv"),
    ("qemu-img", "qemu-utils"),
    ("fusermount3", "fuse3"),
    ("e2fsck", "e2fsprogs"),
    ("fsck.f2fs", "f2fs-tools"),
];
const MOTO: &str = "moto[server,s3]==5.2.5";
const BUCKET: &str = "disks";
/// How long the writers are watched, in seconds.
const WATCHED: Duration = Duration::from_secs(10);

pub(crate) fn run() -> ExitCode {
    match s3() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask s3: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The S3 server, installed once into the folder of tools.
fn moto() -> Result<PathBuf, String> {
    let folder = tools_dir().join("moto");
    let program = folder.join("bin/moto_server");
    if !program.exists() {
        println!("installing {MOTO}");
        run_tool(
            Command::new("/usr/bin/python3")
                .args(["-m", "venv"])
                .arg(&folder),
        )?;
        run_tool(Command::new(folder.join("bin/pip")).args(["install", "--quiet", MOTO]))?;
    }
    Ok(program)
}

/// A program with the keys that the S3 server takes.
fn with_keys(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("AWS_ACCESS_KEY_ID", "key");
    command.env("AWS_SECRET_ACCESS_KEY", "secret");
    command.env("AWS_DEFAULT_REGION", "us-east-1");
    command
}

fn s3() -> Result<(), String> {
    install(&NEEDED)?;
    let moto = moto()?;
    let mut build = Command::new(cargo_path());
    build.args(["build", "--quiet", "-p", "blockwright-cli"]);
    run_tool(build.current_dir(workspace()))?;
    let scratch = Scratch::new("blockwright-s3")?;
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let port = port.map_err(|e| e.to_string())?.port();
    let mut command = with_keys(&moto);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let mut server = scratch.start(&mut command, "moto.log")?;
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if start.elapsed() > PATIENCE || !matches!(server.try_wait(), Ok(None)) {
            return Err(format!("moto does not answer\n{}", scratch.logs()));
        }
        sleep(Duration::from_millis(50));
    }
    let url = format!("http://127.0.0.1:{port}");
    let make = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1]).create_bucket(Bucket=sys.argv[2])";
    run_tool(with_keys("/usr/bin/python3").args(["-c", make, &url, BUCKET]))?;
    chunks(&scratch, &url).map_err(|e| format!("chunks: {e}\n{}", scratch.logs()))?;
    for format in ["ext4", "f2fs"] {
        volume(&scratch, &url, format).map_err(|e| format!("{format}: {e}\n{}", scratch.logs()))?;
    }
    Ok(())
}

/// nbdkit with objects of 64 KiB. The plugin says that it takes whole objects only, and takes smaller requests as well.
fn serve(scratch: &Scratch, url: &str, format: &str, socket: &Path) -> Result<Child, String> {
    let _absent = fs::remove_file(socket);
    let mut command = with_keys("nbdkit");
    command.args(["-f", "--filter=blocksize-policy", "-U"]);
    command.arg(socket).arg("S3");
    command.arg(format!("endpoint-url={url}"));
    command.arg(format!("bucket={BUCKET}"));
    command.arg(format!("key={format}"));
    command.args(["size=256M", "object-size=64k"]);
    command.args([
        "blocksize-minimum=512",
        "blocksize-preferred=65536",
        "blocksize-maximum=1M",
    ]);
    let mut server = scratch.start(&mut command, "nbdkit.log")?;
    answering(&mut server, socket, "nbdkit")?;
    Ok(server)
}

/// An image in chunks is made in the bucket, verified, extracted and compared; the second time nothing is new.
fn chunks(scratch: &Scratch, url: &str) -> Result<(), String> {
    let program = target_dir().join("debug/blockwright");
    let blockwright = |args: &[&std::ffi::OsStr]| run_tool(with_keys(&program).args(args));
    let [image, index, copy] = ["image", "image.caibx", "image.copy"].map(|n| scratch.path(n));
    let store = format!("s3+{url}/{BUCKET}/chunks");
    let source = workspace().join("crates");
    let mkfs = ["mkfs", "-q", "--size", "256M", "--from"].map(AsRef::as_ref);
    blockwright(&[&mkfs[..], &[source.as_ref(), image.as_ref()]].concat())?;
    let make = [
        "chunk",
        "make",
        "--sandbox=require",
        "-q",
        "--store",
        &store,
    ]
    .map(AsRef::as_ref);
    let make = [&make[..], &["-o".as_ref(), index.as_ref(), image.as_ref()]].concat();
    let verify = ["chunk", "verify", "-q", "--store", &store].map(AsRef::as_ref);
    let extract = ["chunk", "extract", "-q", "--store", &store].map(AsRef::as_ref);
    for _ in 0..2 {
        let start = Instant::now();
        blockwright(&make)?;
        println!("chunks: made in {:.1} s", start.elapsed().as_secs_f64());
    }
    blockwright(&[&verify[..], &[index.as_ref()]].concat())?;
    let start = Instant::now();
    let out = ["-o".as_ref(), copy.as_ref(), index.as_ref()];
    blockwright(&[&extract[..], &out].concat())?;
    println!(
        "chunks: extracted in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    run_tool(Command::new("cmp").args([&image, &copy]))?;
    [image, copy]
        .iter()
        .try_for_each(|path| file(path, fs::remove_file(path)))
}

fn volume(scratch: &Scratch, url: &str, format: &str) -> Result<(), String> {
    let program = target_dir().join("debug/blockwright");
    let blockwright = |args: &[&str]| run_tool(Command::new(&program).args(args));
    let mnt = scratch.path(&format!("mnt.{format}"));
    file(&mnt, fs::create_dir(&mnt))?;
    let socket = scratch.path(&format!("{format}.sock"));
    let mut server = serve(scratch, url, format, &socket)?;
    let export = format!("nbd+unix:///?socket={}", socket.display());
    let address = format!("{export}&connections=4&reconnect=600");
    blockwright(&["mkfs", "-q", "-t", format, &address])?;
    let mut mounted = mount(scratch, &program, &address, &mnt)?;
    let mut load = Load::start(&mnt);
    let watch = || {
        sleep(WATCHED);
        Ok(())
    };
    tell(format, "all is well", load.during(watch)?);
    let figures = load.during_fault(|| {
        kill(&mut server)?;
        sleep(Duration::from_secs(1));
        server = serve(scratch, url, format, &socket)?;
        load.wait_for_all(PATIENCE)
    })?;
    tell(format, "nbdkit was killed, away for 1 s", figures);
    tell(format, "all is well again", load.during(watch)?);
    // The program that serves the mount, as if its machine had lost power.
    kill(&mut mounted)?;
    run_tool(Command::new("fusermount3").args(["-u", "-z"]).arg(&mnt))?;
    // Their errors are the kernel's: the mount is gone.
    drop(load.stop());
    mounted = mount(scratch, &program, &address, &mnt)?;
    let found = load.verify()?;
    blockwright(&["umount", &mnt.display().to_string()])?;
    mounted.wait().map_err(|e| e.to_string())?;
    let copy = scratch.path("copy.img");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "raw", &export]);
    run_tool(convert.arg(&copy))?;
    faultless(&program, format, &copy)?;
    println!("{format}: {found}, and nothing is wrong");
    kill(&mut server)
}
