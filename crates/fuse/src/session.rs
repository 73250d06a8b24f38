//! A mounted volume, from mount to clean end.
//!
//! # Order of the end
//! 1. The mount goes (by `umount`, a signal, or whoever mounted): the kernel writes back what it has.
//! 2. The connection ends; every worker finishes its request.
//! 3. Files are closed and nodes forgotten.
//! 4. The volume is unmounted: everything on disk, marked clean.
//!
//! A connection that does not end (files held open over a signal) is cut after a grace time,
//! after the kernel's dirty pages were asked for one last time.

use crate::dispatch::Dispatcher;
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::mount::{Mount, MountPoint, Unmount, tune_bdi};
use crate::options::{FuseOptions, PermissionChecks};
use crate::signals::{Event, SignalWatch};
use crate::transport::{DevFuse, Transport};
use blockwright_vfs::Vfs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the kernel may take to greet.
const INIT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a busy mount is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// How long workers may take to notice that the connection was cut.
const CUT_TIMEOUT: Duration = Duration::from_secs(10);

/// A volume mounted through FUSE. Ends when unmounted; dropping it unmounts.
pub struct Session {
    vfs: Arc<Vfs>,
    dispatcher: Arc<Dispatcher>,
    transport: Arc<DevFuse>,
    point: MountPoint,
    options: FuseOptions,
    hints: Vec<String>,
    finished: bool,
}

/// Unmounts a session from elsewhere.
#[derive(Clone, Debug)]
pub struct Unmounter(MountPoint);

impl Unmounter {
    /// Takes the mount out of the tree; the session's `run` then ends.
    ///
    /// # Errors
    /// `Busy` when files are open and `how` minds; `NotPermitted`; `Mount` otherwise.
    pub fn unmount(&self, how: Unmount) -> Result<()> {
        self.0.unmount(how)
    }
}

impl Session {
    /// Mounts the volume at `mountpoint` and starts serving it. When this returns, the files are
    /// there.
    ///
    /// On an error the volume is left mounted in memory: the caller still has to unmount `vfs`.
    ///
    /// # Errors
    /// What mounting reports (see [`FuseErrorKind`]); `BadOption` for `uid`/`gid` with permission checks by
    /// the volume, which would check what is stored against what is shown.
    pub fn mount(
        vfs: Arc<Vfs>,
        mountpoint: impl AsRef<Path>,
        options: &FuseOptions,
    ) -> Result<Session> {
        if (options.uid.is_some() || options.gid.is_some())
            && options.permissions == PermissionChecks::Volume
        {
            return Err(FuseError::new(
                FuseErrorKind::BadOption,
                "uid= and gid= need permission checks by the kernel (default_permissions)",
            ));
        }
        let dispatcher = Dispatcher::new(vfs.clone(), options).map_err(|e| {
            FuseError::new(FuseErrorKind::Volume, "cannot read the root directory").source(e)
        })?;
        let dispatcher = Arc::new(dispatcher);
        let mount = Mount::new(mountpoint.as_ref(), options)?;
        let (fd, point) = mount.into_parts();
        let transport = Arc::new(DevFuse::new(
            fd,
            options.threads_min,
            options.threads_max,
            options.max_write_clamped(),
            options.log.clone(),
        ));
        dispatcher.set_notifier(transport.notifier());
        let weak = Arc::downgrade(&transport);
        dispatcher.set_transport(weak);
        let mut session = Session {
            vfs,
            dispatcher: dispatcher.clone(),
            transport,
            point,
            options: options.clone(),
            hints: Vec::new(),
            finished: false,
        };
        if let Err(e) = session
            .transport
            .start(dispatcher)
            .and_then(|()| session.greet())
        {
            session.finished = true; // The volume stays the caller's.
            session.cut(None);
            session.dispatcher.close();
            return Err(e);
        }
        if session.point.is_in_tree() {
            session
                .hints
                .extend(tune_bdi(session.point.path(), options.read_ahead_kib));
        }
        Ok(session)
    }

    /// Waits for INIT.
    fn greet(&self) -> Result<()> {
        let deadline = Instant::now() + INIT_TIMEOUT;
        while !self.dispatcher.wait_ready(RETRY_EVERY) {
            if self.transport.wait(Some(Duration::ZERO)) {
                return Err(FuseError::new(
                    FuseErrorKind::Transport,
                    "the kernel ended the connection before it began",
                )
                .path(self.point.path()));
            }
            if Instant::now() > deadline {
                return Err(FuseError::new(
                    FuseErrorKind::Transport,
                    "the kernel did not begin the connection",
                )
                .path(self.point.path()));
            }
        }
        Ok(())
    }

    /// What would make the mount faster and needs privileges that we do not have: for people.
    #[must_use]
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Where the volume is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        self.point.path()
    }

    /// How many inodes the kernel remembers, and how many files it has open.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        self.dispatcher.held()
    }

    /// The dispatcher, for its counters; it outlives the session's `run`.
    #[must_use]
    pub fn dispatcher(&self) -> Arc<Dispatcher> {
        self.dispatcher.clone()
    }

    /// Something to unmount the session with from another thread.
    #[must_use]
    pub fn unmount_handle(&self) -> Unmounter {
        Unmounter(self.point.clone())
    }

    /// Serves until unmounted, then closes the volume.
    ///
    /// # Errors
    /// `Volume` when it could not be closed cleanly.
    pub fn run(mut self) -> Result<()> {
        self.transport.wait(None);
        self.finish()
    }

    /// Serves until unmounted, or until SIGTERM, SIGINT or SIGHUP, which unmount. Then closes the volume.
    /// A second signal ends the patience with files that are still open.
    ///
    /// # Errors
    /// `Volume` when it could not be closed cleanly; `Busy` when the connection could not be ended, in
    /// which case the volume was closed and later requests fail.
    pub fn run_until_signal(mut self) -> Result<()> {
        let event = Event::new()?;
        let watch = SignalWatch::new(&event)?;
        self.wake_at_end(&event)?;
        while !self.has_ended() {
            event.wait(None);
            if watch.take() {
                return self.shut_down(|| {
                    event.wait(Some(RETRY_EVERY));
                    watch.take()
                });
            }
        }
        self.finish()
    }

    /// Unmounts, waiting for open files as long as the options say, and closes the volume.
    ///
    /// # Errors
    /// As [`Session::run_until_signal`].
    pub fn unmount(mut self) -> Result<()> {
        self.shut_down(|| {
            std::thread::sleep(RETRY_EVERY);
            false
        })
    }

    fn has_ended(&self) -> bool {
        self.transport.wait(Some(Duration::ZERO))
    }

    /// Wakes the event once the connection has ended.
    fn wake_at_end(&self, event: &Event) -> Result<()> {
        let (transport, event) = (self.transport.clone(), event.clone());
        std::thread::Builder::new()
            .name("fuse-end".to_owned())
            .spawn(move || {
                transport.wait(None);
                event.wake();
            })
            .map(|_| ())
            .map_err(|e| FuseError::os("cannot start a thread", e))
    }

    /// Unmounts. `pause` waits a little and returns whether patience is at its end.
    fn shut_down(&mut self, mut pause: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + self.options.shutdown_grace;
        let mut told = false;
        while !self.has_ended() {
            match self.point.unmount(Unmount::IfIdle) {
                Ok(()) => {
                    // Gone from the tree; the kernel has written everything back.
                    self.transport.wait(Some(CUT_TIMEOUT));
                    break;
                }
                Err(e) if e.kind() == FuseErrorKind::Busy => {
                    if !told {
                        self.options
                            .log
                            .line(&format!("{e}; waiting for them to be closed"));
                        told = true;
                    }
                    if pause() || Instant::now() >= deadline {
                        break;
                    }
                }
                Err(e) => {
                    self.options.log.line(&e.to_string());
                    break;
                }
            }
        }
        if !self.has_ended() {
            let root = self
                .point
                .is_in_tree()
                .then(|| self.point.open_root())
                .flatten();
            if let Some(root) = &root {
                // What programs have written so far must not be lost with the connection.
                if let Err(e) = rustix::fs::syncfs(root) {
                    self.options
                        .log
                        .line(&format!("writing back before the connection is cut: {e}"));
                }
            }
            self.cut(root);
        }
        let ended = self.has_ended();
        let finished = self.finish();
        if !ended {
            return finished.and(Err(FuseError::new(
                FuseErrorKind::Busy,
                "files are still open; the volume was closed, and they fail from now on",
            )
            .path(self.point.path())));
        }
        finished
    }

    /// Ends the connection whoever uses it. `root`: a descriptor of the root directory, when it is at hand.
    fn cut(&self, root: Option<std::os::fd::OwnedFd>) {
        if let Err(e) = self.point.abort(root) {
            self.options.log.line(&e.to_string());
        }
        self.transport.wait(Some(CUT_TIMEOUT));
    }

    /// The connection has ended: closes the volume.
    fn finish(&mut self) -> Result<()> {
        self.finished = true;
        self.dispatcher.close();
        self.vfs.unmount().map_err(|e| {
            FuseError::new(
                FuseErrorKind::Volume,
                "the volume could not be closed cleanly",
            )
            .source(e)
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let result = self.shut_down(|| {
            std::thread::sleep(RETRY_EVERY);
            false
        });
        if let Err(e) = result {
            self.options.log.line(&e.to_string());
        }
    }
}
