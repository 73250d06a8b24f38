//! Measurements beside the peers, in one run: A B C, A B C, …; medians, spreads and ratios.
//!
//! Nothing here is linked into users' builds. The program under test is the release build of
//! `blockwright`, run as a user runs it; the peers are e2fsprogs' `mke2fs -d`, the running kernel's ext4
//! on a loop device with direct I/O, and fuse2fs.

mod machine;
mod peers;
mod stats;
mod trees;
mod workloads;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures blockwright beside its peers.
#[derive(Parser, Debug)]
#[command(name = "blockwright-bench")]
struct Args {
    /// What to measure: mkfs, mount, or all
    #[arg(default_value = "all")]
    what: String,
    /// Rounds (each runs every peer once, in turn)
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Small inputs and two rounds: shows that everything runs, measures nothing worth quoting
    #[arg(long)]
    quick: bool,
    /// Only workloads whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Where images and trees are put (needs about 12 GB; not a tmpfs)
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Measure this program instead of building the one here
    #[arg(long)]
    program: Option<PathBuf>,
    /// Also write the figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
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
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = args
        .dir
        .clone()
        .unwrap_or_else(|| root.join("target/bench"));
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let program = match &args.program {
        Some(program) => program.clone(),
        None => machine::build_release(&root)?,
    };
    println!("{}", machine::describe());
    let rounds = if args.quick { 2 } else { args.rounds };
    let setting = workloads::Setting {
        dir,
        program,
        quick: args.quick,
        rounds,
        only: args.only.clone(),
    };
    let mut tables = Vec::new();
    if ["all", "mkfs"].contains(&args.what.as_str()) {
        tables.extend(workloads::mkfs(&setting)?);
    }
    if ["all", "mount"].contains(&args.what.as_str()) {
        tables.extend(workloads::mount(&setting)?);
    }
    if tables.is_empty() {
        return Err(format!(
            "nothing is called `{}`: mkfs, mount or all",
            args.what
        ));
    }
    println!("\n{}", stats::markdown(&tables));
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&tables).map_err(|e| e.to_string())?;
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
