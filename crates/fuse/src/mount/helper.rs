//! Mounting through the set-uid helper `fusermount3`, for users other than root.
//!
//! The helper opens `/dev/fuse`, mounts it, and passes the descriptor back over a socket whose number
//! is in `_FUSE_COMMFD`. The socket is given to it as standard input: then no descriptor has to
//! survive `exec` by hand, which would race with other threads' children.

use super::{DEV_FUSE, SUBTYPE, Unmount, kernel_options};
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::options::FuseOptions;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::OsString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

const HELPER: &str = "fusermount3";

/// Whether the helper is on the `PATH`.
pub(super) fn exists() -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(HELPER).is_file()))
}

/// Mounts and receives the connection.
pub(super) fn mount(path: &Path, options: &FuseOptions) -> Result<OwnedFd> {
    if !Path::new(DEV_FUSE).exists() {
        return Err(FuseError::new(
            FuseErrorKind::NoDevice,
            "FUSE is not available: load the module `fuse`, or give the container /dev/fuse",
        )
        .path(Path::new(DEV_FUSE)));
    }
    super::direct::check_access()?;
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| FuseError::os("cannot make a socket pair", e))?;

    let child = Command::new(HELPER)
        .arg("-o")
        .arg(option_string(options))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| spawn_error(e, path))?;
    // The command, and with it our copy of the helper's end, is gone: if the helper dies, the
    // receive below ends.
    let received = receive_fd(&ours);
    let output = child
        .wait_with_output()
        .map_err(|e| FuseError::os("cannot wait for fusermount3", e))?;
    match received {
        Ok(Some(fd)) if output.status.success() => Ok(fd),
        Ok(_) => {
            Err(helper_error("cannot mount", &String::from_utf8_lossy(&output.stderr)).path(path))
        }
        Err(e) => Err(FuseError::new(
            FuseErrorKind::Mount,
            "the connection could not be received from fusermount3",
        )
        .path(path)
        .source(e)),
    }
}

/// Takes the mount out of the tree.
pub(super) fn unmount(path: &Path, how: Unmount) -> Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if how == Unmount::Detach {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|e| spawn_error(e, path))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    // "entry for … not found in /etc/mtab", and to root "Invalid argument": not a mount point (any more).
    let gone = stderr.contains("not found in") || stderr.contains("Invalid argument");
    if output.status.success() || gone {
        return Ok(());
    }
    Err(helper_error("cannot unmount", &stderr).path(path))
}

fn spawn_error(error: std::io::Error, path: &Path) -> FuseError {
    if error.kind() == std::io::ErrorKind::NotFound {
        FuseError::new(
            FuseErrorKind::NoHelper,
            "mounting without root needs fusermount3 (Debian: package `fuse3`)",
        )
    } else {
        FuseError::new(FuseErrorKind::NoHelper, "fusermount3 cannot be started").source(error)
    }
    .path(path)
}

/// An error from what the helper said.
fn helper_error(doing: &str, stderr: &str) -> FuseError {
    let reason = stderr.trim().trim_start_matches("fusermount3: ");
    let lower = reason.to_ascii_lowercase();
    let kind = if lower.contains("busy") {
        FuseErrorKind::Busy
    } else if ["permi", "allow", "root"]
        .iter()
        .any(|word| lower.contains(word))
    {
        FuseErrorKind::NotPermitted
    } else {
        FuseErrorKind::Mount
    };
    if reason.is_empty() {
        FuseError::new(
            kind,
            format!("{doing}: fusermount3 failed without a message"),
        )
    } else {
        FuseError::new(kind, format!("{doing}: {reason}"))
    }
}

/// The helper's `-o` argument.
fn option_string(options: &FuseOptions) -> OsString {
    let mut list = vec![
        format!("fsname={}", escape(&options.fsname)),
        format!("subtype={SUBTYPE}"),
    ];
    list.extend(kernel_options(options));
    let words = [
        (options.read_only, "ro"),
        (!options.allow_suid, "nosuid"),
        (!options.allow_dev, "nodev"),
        (options.allow_suid, "suid"),
        (options.allow_dev, "dev"),
        (!options.allow_exec, "noexec"),
        (options.no_atime, "noatime"),
    ];
    list.extend(
        words
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, word)| (*word).to_owned()),
    );
    list.join(",").into()
}

/// Escapes what separates options.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

/// Receives one descriptor; `None` when the other end closed without sending one.
fn receive_fd(socket: &OwnedFd) -> std::io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(Some(fd));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Visibility;

    #[test]
    fn options_are_escaped_and_complete() {
        let options = FuseOptions {
            fsname: "a,b\\c.img".to_owned(),
            read_only: true,
            visibility: Visibility::Everyone,
            ..FuseOptions::default()
        };
        assert_eq!(
            option_string(&options),
            "fsname=a\\,b\\\\c.img,subtype=blockwright,allow_other,default_permissions,ro,nosuid,nodev"
        );
    }

    #[test]
    fn a_helper_that_sends_nothing_is_noticed() {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        drop(theirs);
        assert!(receive_fd(&ours).unwrap().is_none());
    }

    #[test]
    fn the_helper_mounts_and_passes_the_connection() {
        if !(blockwright_oracles::root()
            && blockwright_oracles::fuse()
            && blockwright_oracles::available("fusermount3", exists()))
        {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let fd = mount(dir.path(), &FuseOptions::default()).unwrap();
        // The kernel's greeting waits to be read: this is a connection, and it is ours.
        let mut greeting = [0u8; 8192];
        assert_eq!(rustix::io::read(&fd, &mut greeting).unwrap(), 104);
        drop(fd);
        unmount(dir.path(), Unmount::Detach).unwrap();
        unmount(dir.path(), Unmount::IfIdle).unwrap();
        let missing = mount(&dir.path().join("missing"), &FuseOptions::default()).unwrap_err();
        assert!(missing.to_string().contains("missing"), "{missing}");
    }

    #[test]
    fn the_helpers_words_become_kinds() {
        let kind = |text: &str| helper_error("cannot unmount", text).kind();
        assert_eq!(
            kind("fusermount3: failed to unmount /x: Device or resource busy"),
            FuseErrorKind::Busy
        );
        assert_eq!(
            kind("fusermount3: option allow_other only allowed if 'user_allow_other' is set"),
            FuseErrorKind::NotPermitted
        );
        assert_eq!(
            kind("fusermount3: mount failed: Invalid argument"),
            FuseErrorKind::Mount
        );
    }
}
