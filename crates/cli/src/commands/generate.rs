//! Shell completions and man pages, from the arguments themselves.

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::failure::{At, Failure, Result};
use clap::CommandFactory;
use std::io::Write;

/// Prints a shell's completion script.
///
/// # Errors
/// As writing to standard output.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "blockwright", &mut script);
    let mut out = crate::output::stdout();
    out.write_all(&script)?;
    out.flush()?;
    Ok(())
}

/// Writes a man page for the program and one for every command.
///
/// # Errors
/// As writing the files.
pub fn man(args: &ManArgs) -> Result<()> {
    std::fs::create_dir_all(&args.directory).at(args.directory.display())?;
    let mut command = Cli::command();
    command.build();
    page(args, &command, "blockwright".to_owned())?;
    for sub in command.get_subcommands() {
        if !sub.is_hide_set() && sub.get_name() != "help" {
            page(args, sub, format!("blockwright-{}", sub.get_name()))?;
            for below in sub.get_subcommands().filter(|c| c.get_name() != "help") {
                let name = format!("blockwright-{}-{}", sub.get_name(), below.get_name());
                page(args, below, name)?;
            }
        }
    }
    Ok(())
}

fn page(args: &ManArgs, command: &clap::Command, name: String) -> Result<()> {
    let path = args.directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    // clap wants names that live as long as the program; there are some twenty.
    let title: &'static str = Box::leak(name.into_boxed_str());
    clap_mangen::Man::new(command.clone().name(title))
        .section("1")
        .manual("blockwright")
        .render(&mut text)
        .map_err(Failure::from)?;
    std::fs::write(&path, text).at(path.display())
}
