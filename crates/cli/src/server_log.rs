//! Messages of a mount's server: to standard error, to `--log FILE`, or to the system's log.
//!
//! A confined server can open no socket, so its messages reach the system's log through the keeper.

use crate::failure::{At, Result};
use blockwright_fuse::Keeper;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

const SYSLOG: &str = "/dev/log";

/// Puts a server's message into the system's log.
pub fn syslog(server: u32, message: &str) {
    // Facility daemon, severity warning (RFC 3164).
    let line = format!("<28>blockwright[{server}]: {message}");
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.send_to(line.as_bytes(), SYSLOG);
    }
}

/// Where a server's messages go.
#[derive(Debug)]
pub struct Messages {
    file: Option<std::fs::File>,
    detached: AtomicBool,
    /// Reaches the system's log where this process cannot.
    keeper: OnceLock<Arc<Keeper>>,
}

impl Messages {
    /// To standard error, and to the file if one is given.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn new(file: Option<&Path>) -> Result<Self> {
        let file = match file {
            Some(path) => Some(
                std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .at(path.display())?,
            ),
            None => None,
        };
        Ok(Messages {
            file,
            detached: AtomicBool::new(false),
            keeper: OnceLock::new(),
        })
    }

    /// From now on the system's log is reached through the keeper.
    pub fn by(&self, keeper: Arc<Keeper>) {
        let _ = self.keeper.set(keeper);
    }

    /// From now on there is no terminal: messages go to the file, or to the system's log.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    /// Writes a message. Nothing can be done when that fails.
    pub fn say(&self, message: &str) {
        let detached = self.detached.load(Ordering::Acquire);
        if let Some(mut file) = self.file.as_ref() {
            let _ = writeln!(file, "blockwright[{}]: {message}", std::process::id());
        } else if detached {
            match self.keeper.get() {
                Some(keeper) => keeper.log(message),
                None => syslog(std::process::id(), message),
            }
        }
        if !detached {
            crate::failure::warn(message);
        }
    }
}
