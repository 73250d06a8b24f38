//! The `blockwright` program: arguments in, library calls, text out.
//!
//! # Parts
//! - `args`: the arguments of all commands, which are the interface. `operand`, `source`, `size`, `mount_options`: the grammars in them.
//! - `wall`: opens the files that the arguments name, then confines the process before it reads an image.
//! - `image`, `image_file`, `devices`: images that commands work on. `output`, `text`: results, made safe to print.
//! - `commands`: one module for each command, or for a few that share code.
//! - `interrupt`: what a signal leaves behind. `failure`, `exit`: errors, and the exit codes that they become. `daemonize`, `server_log`: servers of mounts.
//!
//! # Reports
//! Results go to standard output, errors to standard error as `blockwright: place: what`. The exit code (`exit`) says whether all went well.
//! After a failure, a command continues with its other operands.
//!
//! # Calls
//! It may call every library crate. It has no file-system logic, and opens no file of the host by its path after the process is confined.
//!
//! # Crash order
//! Commands that write call the library's, and end with success only after everything is durable.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod daemonize;
mod devices;
mod exit;
mod failure;
mod image;
mod image_file;
mod interrupt;
mod mount_options;
mod operand;
mod output;
mod server_log;
mod size;
mod source;
mod text;
mod wall;

use args::{Cli, Command, MkfsArgs};
use clap::Parser;
use failure::{Failure, Result};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match run(arguments) {
        Ok(()) => ExitCode::from(exit::SUCCESS),
        Err(e) => {
            failure::print(&e);
            ExitCode::from(e.exit_code())
        }
    }
}

/// The arguments as the program's own, however it was called.
fn translate(mut arguments: Vec<OsString>) -> Result<Option<Vec<OsString>>> {
    let program = arguments.first().map(Path::new).and_then(Path::file_name);
    if program.is_some_and(|name| name.as_bytes().starts_with(b"mount.")) {
        return commands::mount::helper_arguments(&arguments);
    }
    if commands::mount::is_bare_mount(&arguments) {
        arguments.insert(1, "mount".into());
    }
    if let Some(at) = command_at(&arguments).filter(|at| arguments[*at] == "find") {
        let options = arguments[at + 1..].iter_mut();
        for argument in options.take_while(|argument| *argument != "--") {
            if let Some(option) = argument.to_str().and_then(commands::find::long_option) {
                *argument = option.into();
            }
        }
    }
    Ok(Some(arguments))
}

/// Where the command's name is. Options that every command takes may stand before it.
fn command_at(arguments: &[OsString]) -> Option<usize> {
    let mut rest = arguments.iter().enumerate().skip(1);
    while let Some((at, argument)) = rest.next() {
        if ["--device", "--journal", "--overlay", "--sandbox"]
            .iter()
            .any(|o| argument == o)
        {
            rest.next();
        } else if !argument.as_bytes().starts_with(b"-") {
            return Some(at);
        }
    }
    None
}

/// The journal's device that `mkfs` is given by one of two options.
fn mkfs_journal<'a>(args: &'a MkfsArgs, named: Option<&'a Path>) -> Result<Option<&'a Path>> {
    let journal = match (args.journal_path(), named) {
        (Some(_), Some(_)) => {
            return Err(Failure::usage("-J device= and --journal are one thing"));
        }
        (device, named) => device.or(named),
    };
    if journal.is_some_and(|journal| devices::same_inode(journal, &args.image)) {
        return Err(Failure::usage("a volume is not made over its own journal"));
    }
    Ok(journal)
}

fn run(arguments: Vec<OsString>) -> Result<()> {
    let Some(arguments) = translate(arguments)? else {
        return Ok(());
    };
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no errors, and go to standard output.
            let wrong = e.use_stderr();
            e.print().map_err(output::of_stdout)?;
            if !wrong {
                return Ok(());
            }
            // The exit codes of `check` are fsck's.
            let code = if command_at(&arguments).is_some_and(|at| arguments[at] == "check") {
                exit::fsck::USAGE
            } else {
                exit::USAGE
            };
            return Err(Failure::said(code));
        }
    };
    devices::set_more_devices(&cli.devices);
    let journal = match &cli.command {
        Command::Mkfs(args) => mkfs_journal(args, cli.journal.as_deref())?,
        _ => cli.journal.as_deref(),
    };
    devices::set_journal(journal);
    if cli.overlay.is_some() && !cli.command.takes_overlay() {
        return Err(Failure::usage("this command takes no --overlay"));
    }
    devices::set_overlay(cli.overlay.as_deref());
    wall::set_allow_backing(cli.allow_backing);
    wall::set(cli.sandbox.into(), cli.verbose);
    if let Err(e) = wall::before(&cli.command) {
        return Err(match &cli.command {
            Command::Check(_) => e.code(exit::fsck::OPERATIONAL),
            _ => e,
        });
    }
    let result = execute(&cli.command);
    wall::end();
    result
}

fn execute(command: &Command) -> Result<()> {
    match command {
        Command::Mkfs(args) if args.makes_journal() => commands::journal_device::make(args),
        Command::Mkfs(args) => commands::mkfs::mkfs(args),
        Command::Mount(args) => commands::mount::mount(args),
        Command::Umount(args) => commands::umount::umount(args),
        Command::Sync(args) => commands::sync::sync(args),
        Command::Ls(args) => commands::list::ls(args),
        Command::Find(args) => commands::find::find(args),
        Command::Shell(args) => commands::shell::shell(args),
        Command::Tree(args) => commands::list::tree(args),
        Command::Cat(args) => commands::cat::cat(args),
        Command::Cp(args) => commands::copy::cp(args),
        Command::Mv(args) => commands::edit::mv(args),
        Command::Rm(args) => commands::edit::rm(args),
        Command::Mkdir(args) => commands::edit::mkdir(args),
        Command::Ln(args) => commands::edit::ln(args),
        Command::Touch(args) => commands::touch::touch(args),
        Command::Quota(args) => commands::quota::quota(args),
        Command::Stat(args) => commands::stat::stat(args),
        Command::Chmod(args) => commands::edit::chmod(args),
        Command::Chown(args) => commands::edit::chown(args),
        Command::Getxattr(args) => commands::xattr::get(args),
        Command::Setxattr(args) => commands::xattr::set(args),
        Command::Du(args) => commands::space::du(args),
        Command::Df(args) => commands::space::df(args),
        Command::Export(args) => commands::export::export(args),
        Command::Check(args) => commands::check::check(args),
        Command::Info(args) => commands::info::info(args),
        Command::Disk(command) => commands::disk::disk(command),
        Command::Chunk(command) => commands::chunk::chunk(command),
        Command::Map(args) => commands::map::map(args),
        Command::Extents(args) => commands::extents::extents(args),
        Command::Stats(args) => commands::stats::stats(args),
        Command::Tune(args) => commands::tune::tune(args),
        Command::Resize(args) => commands::resize::resize(args),
        Command::Set(args) => commands::set::set(args),
        Command::Trim(args) => commands::trim::trim(args),
        Command::Trace(command) => commands::trace::trace(command),
        Command::Completions(args) => commands::generate::completions(args),
        Command::Man(args) => commands::generate::man(args),
        Command::Trial(args) => wall::trial(args),
        Command::Keeper(args) => commands::mount::keep(args),
        Command::Fetcher(args) => wall::fetcher(args),
        Command::Connector(args) => wall::connector(&args.address),
        Command::Janitor(args) => {
            wall::janitor(&args.path);
            Ok(())
        }
    }
}
