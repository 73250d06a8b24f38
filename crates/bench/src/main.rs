//! Measurements beside the peers, in one run: A B C, A B C, …; medians, spreads and ratios.
//!
//! Nothing here is linked into users' builds. The program under test is the release build of
//! `blockwright`, run as a user runs it; the peers are e2fsprogs' `mke2fs -d`, the running kernel's ext4
//! on a loop device with direct I/O, and fuse2fs.

mod allocation;
mod allocation_cli;
mod converting;
mod f2fs_mounts;
mod machine;
mod metadata;
mod peers;
mod report;
mod resizing;
mod rivals;
mod runner;
mod stats;
mod table;
mod tables;
mod trees;
mod volumes;
mod workloads;
mod write_path;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures blockwright beside its peers.
#[derive(Parser, Debug)]
#[command(name = "blockwright-bench")]
struct Args {
    /// What to measure: mkfs, mount, resize, convert, all (these four), write-path, or peers
    #[arg(default_value = "all")]
    what: String,
    /// For the child that touches memory before a run
    #[arg(hide = true)]
    bytes: Option<u64>,
    /// write-path: file (an image with O_DIRECT), memory, block:PATH (is overwritten!), or model:sdcard,
    /// emmc, ufs, nvme or raid0 (hardware this machine does not have, in virtual time; paced:NAME: in real time)
    #[arg(long, default_value = "file")]
    device: String,
    /// Megabytes of memory touched before every timed run
    #[arg(long, default_value_t = 4096)]
    touch_mb: u64,
    /// Rounds (each runs every peer once, in turn)
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Small inputs and two rounds: shows that everything runs, measures nothing worth quoting
    #[arg(long)]
    quick: bool,
    /// resize: images that shrink have a part of the usual 20 GiB: 5 for 4 GiB
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=20))]
    divide: u64,
    /// Only workloads whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// write-path: only variants whose name contains this; peers --verify: only mounts
    #[arg(long)]
    variant: Option<String>,
    /// Where images and trees are put (needs about 12 GB; not a tmpfs)
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Measure this program instead of building the one here
    #[arg(long)]
    program: Option<PathBuf>,
    /// Also write the figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// peers, mount: which formats of ours
    #[arg(long, value_enum, default_value = "ext4")]
    format: volumes::Formats,
    /// peers: verify what is written instead of measuring
    #[arg(long)]
    verify: bool,
    #[command(subcommand)]
    command: Option<Commands>,
}

#[derive(clap::Subcommand, Debug)]
enum Commands {
    /// One workload of block allocation, once
    Alloc(allocation_cli::AllocArgs),
    /// What requests about metadata cost the server, without a kernel in between
    Metadata(metadata::MetadataArgs),
    /// How long f2fs volumes take to mount: after a crash, and large ones
    F2fsMounts(f2fs_mounts::MountsArgs),
    /// For the guest of user-mode-linux
    #[command(hide = true)]
    InMount(rivals::InMountArgs),
    /// One page of results that were stored by --json (peers stores its own in the directory)
    Report(report::ReportArgs),
    /// The tables of a document, made anew from results that were stored by --json
    Tables(tables::TablesArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("blockwright-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    if args.what == "touch-memory" {
        runner::touch_here(args.bytes.unwrap_or(0));
        return Ok(());
    }
    match &args.command {
        Some(Commands::Alloc(alloc)) => return allocation_cli::run(alloc),
        Some(Commands::Metadata(metadata)) => return metadata::run(metadata),
        Some(Commands::F2fsMounts(mounts)) => return f2fs_mounts::run(mounts),
        Some(Commands::InMount(step)) => return rivals::in_mount(step),
        Some(Commands::Report(wanted)) => return report::run(wanted),
        Some(Commands::Tables(wanted)) => return tables::run(wanted),
        None => {}
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = args
        .dir
        .clone()
        .unwrap_or_else(|| root.join("target/bench"));
    // As /proc/mounts will show it: the default goes through `..`, and a mount is waited for by its path.
    let dir = std::fs::create_dir_all(&dir)
        .and_then(|()| dir.canonicalize())
        .map_err(|e| format!("{}: {e}", dir.display()))?;
    let rounds = if args.quick { 2 } else { args.rounds };
    let plan = runner::Plan {
        rounds,
        quick: args.quick,
        only: args.only.clone(),
        variant: args.variant.clone(),
        touch_bytes: if args.quick {
            64 << 20
        } else {
            args.touch_mb << 20
        },
    };
    if args.what == "write-path" {
        println!("{}", machine::describe());
        let rows = write_path::run(&plan, &dir, &args.device)?;
        println!("\n{}", table::markdown(&rows));
        return write_json(args, &rows);
    }
    let program = match &args.program {
        Some(program) => program.clone(),
        None => machine::build_release(&root)?,
    };
    if args.what == "peers" {
        let setting = rivals::Setting {
            plan: &plan,
            dir: &dir,
            program: &program,
            formats: args.format,
        };
        if args.verify {
            return rivals::verify(&setting);
        }
        println!("{}", machine::describe());
        let results = rivals::measure(&setting)?;
        println!("\n{}", results.markdown());
        let stored = dir.join(format!("peers-{}.json", machine::stamp()));
        let path = args.json.clone().unwrap_or(stored);
        let text = serde_json::to_string_pretty(&results).map_err(|e| e.to_string())?;
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("stored in {}", path.display());
        return Ok(());
    }
    println!("{}", machine::describe());
    let setting = workloads::Setting {
        dir,
        program,
        quick: args.quick,
        divisor: args.divide,
        rounds,
        only: args.only.clone(),
        touch_bytes: plan.touch_bytes,
        formats: args.format,
    };
    let mut tables = Vec::new();
    if ["all", "mkfs"].contains(&args.what.as_str()) {
        tables.extend(workloads::mkfs(&setting)?);
    }
    if ["all", "mount"].contains(&args.what.as_str()) {
        tables.extend(workloads::mount(&setting)?);
    }
    if ["all", "resize"].contains(&args.what.as_str()) {
        tables.extend(resizing::measure(&setting)?);
    }
    if ["all", "convert"].contains(&args.what.as_str()) {
        tables.extend(converting::measure(&setting)?);
    }
    if tables.is_empty() {
        return Err(format!(
            "nothing is called `{}`: mkfs, mount, resize, convert, all, write-path or peers",
            args.what
        ));
    }
    println!("\n{}", stats::markdown(&tables));
    write_json(args, &tables)
}

/// Results as they are stored.
#[derive(serde::Serialize)]
struct Document<'a, T> {
    what: &'a str,
    machine: String,
    quick: bool,
    rounds: usize,
    rows: &'a [T],
}

fn write_json<T: serde::Serialize>(args: &Args, rows: &[T]) -> Result<(), String> {
    let Some(path) = &args.json else {
        return Ok(());
    };
    let document = Document {
        what: &args.what,
        machine: machine::describe(),
        quick: args.quick,
        rounds: if args.quick { 2 } else { args.rounds },
        rows,
    };
    let text = serde_json::to_string_pretty(&document).map_err(|e| e.to_string())?;
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
