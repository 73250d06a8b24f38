//! The formats that are measured: fresh volumes on images that stay fully written, and their checkers.

use crate::machine::{have, run};
use std::path::Path;
use std::process::{Command, Stdio};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// ext4.
    Ext4,
    /// f2fs.
    F2fs,
}

/// Which formats of ours are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Formats {
    /// ext4 alone
    Ext4,
    /// f2fs alone
    F2fs,
    /// One after the other in every round
    Both,
}

impl Formats {
    /// Each of them.
    pub fn list(self) -> &'static [Format] {
        match self {
            Formats::Ext4 => &[Format::Ext4],
            Formats::F2fs => &[Format::F2fs],
            Formats::Both => &[Format::Ext4, Format::F2fs],
        }
    }

    /// Each that there are tools for; says which are left out.
    pub fn available(self) -> Vec<Format> {
        let all = self.list().iter().copied();
        all.filter(|format| {
            let here = *format == Format::Ext4 || have("mkfs.f2fs");
            if !here {
                eprintln!("f2fs-tools are not installed: f2fs is left out");
            }
            here
        })
        .collect()
    }
}

impl Format {
    /// As the library has it.
    pub fn of_library(self) -> blockwright::Format {
        match self {
            Format::Ext4 => blockwright::Format::Ext4,
            Format::F2fs => blockwright::Format::F2fs,
        }
    }

    /// Makes a volume by the format's usual tool. Nothing of the image becomes a hole, and nothing is put off until it is mounted.
    pub fn make(self, image: &Path) -> Result<(), String> {
        let mut command = match self {
            Format::Ext4 => Command::new("mke2fs"),
            Format::F2fs => Command::new("mkfs.f2fs"),
        };
        match self {
            Format::Ext4 => command
                .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E"])
                .arg("nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
            Format::F2fs => command.args(["-q", "-f", "-t", "0"]),
        };
        run(command.arg(image))
    }

    /// Options of our mounts that keep blocks of the image from becoming holes.
    pub fn mount_options(self) -> &'static str {
        match self {
            Format::Ext4 => "",
            Format::F2fs => "nodiscard",
        }
    }

    /// The format's usual checker finds nothing to say.
    pub fn check(self, image: &Path) -> Result<(), String> {
        if self == Format::Ext4 {
            return run(Command::new("e2fsck").arg("-fn").arg(image));
        }
        let out = Command::new("fsck.f2fs")
            .arg("--dry-run")
            .arg(image)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("fsck.f2fs: {e}"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        // It ends with 0 whatever it found.
        let bad: Vec<&str> = text
            .lines()
            .filter(|line| {
                ["[Fail]", "ASSERT", "FIX", "[ERR", "unexpected"]
                    .iter()
                    .any(|word| line.contains(word))
            })
            .collect();
        if out.status.success() && bad.is_empty() {
            Ok(())
        } else {
            Err(format!("fsck.f2fs: {}: {}", out.status, bad.join("\n")))
        }
    }
}
