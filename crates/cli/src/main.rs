//! The `blockwright` program: arguments in, library calls, words out.

mod args;

use clap::Parser;

fn main() {
    let cli = args::Cli::parse();
    let _ = cli.command;
}
