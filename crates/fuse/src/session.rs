//! A mounted volume, from mount to clean end.
//!
//! # Order of the end
//! 1. The mount goes (by `umount`, a signal, or the program that mounted): the kernel writes back what it has.
//! 2. The connection ends; every worker finishes its request.
//! 3. Files are closed and nodes forgotten.
//! 4. The volume is unmounted: everything on disk, marked clean.
//!
//! A connection that does not end (files held open over a signal) is cut after a grace time,
//! after the kernel's dirty pages were asked for one last time.

use crate::dispatch::Dispatcher;
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::mount::{Mount, MountPoint, Unmount};
use crate::options::{CpuLatency, FuseOptions, PermissionChecks, TransportChoice, TransportKind};
use crate::scheduling::cpu_latency::{self, LatencyRequest};
use crate::signals::{Event, Signals};
use crate::threads::Threads;
use crate::transport::uring::Abort;
use crate::transport::{DevFuse, Uring};
use blockwright_vfs::Vfs;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the kernel may take to greet.
const INIT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a busy mount is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// How long workers may take to notice that the connection was cut.
const CUT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that was unmounted may take to end before it is looked for in other mount namespaces.
const ELSEWHERE_TIMEOUT: Duration = Duration::from_secs(1);

/// A volume mounted through FUSE. Ends when unmounted; dropping it unmounts.
pub struct Session {
    vfs: Arc<Vfs>,
    dispatcher: Arc<Dispatcher>,
    transport: Arc<DevFuse>,
    /// The queues, when they are used.
    uring: Option<Arc<Uring>>,
    point: MountPoint,
    options: FuseOptions,
    hints: Vec<String>,
    finished: bool,
}

/// Resources that a session opens and starts before its volume is opened: rings with their threads and memory, and
/// a device.
pub struct Prepared {
    uring: Option<Result<Uring>>,
    cpu_latency: Option<io::Result<File>>,
    /// `/proc/meminfo`, which has the dirty bytes of the kernel's caches.
    meminfo: Option<File>,
}

impl Prepared {
    /// Opens what these options ask for. Mounting the session reports resources that were not
    /// available.
    #[must_use]
    pub fn new(options: &FuseOptions) -> Self {
        let mut prepared = Self::open(options);
        prepared.start(options);
        prepared
    }

    /// The first half, which may take privileges: opens devices.
    #[must_use]
    pub fn open(options: &FuseOptions) -> Self {
        Prepared {
            uring: None,
            cpu_latency: (options.cpu_latency == CpuLatency::Auto).then(LatencyRequest::open),
            meminfo: File::open("/proc/meminfo").ok(),
        }
    }

    /// The second half: starts threads.
    pub fn start(&mut self, options: &FuseOptions) {
        if options.transport != TransportChoice::DevFuse {
            self.uring = Some(Uring::prepare(options));
        }
    }
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
        Self::mount_prepared(vfs, mountpoint, options, Prepared::new(options))
    }

    /// As [`Session::mount`], with what was opened and started before: after that a process can confine itself.
    ///
    /// # Errors
    /// As [`Session::mount`].
    pub fn mount_prepared(
        vfs: Arc<Vfs>,
        mountpoint: impl AsRef<Path>,
        options: &FuseOptions,
        prepared: Prepared,
    ) -> Result<Session> {
        let Prepared {
            uring,
            cpu_latency,
            meminfo,
        } = prepared;
        let prepare = |options: &FuseOptions| uring.unwrap_or_else(|| Uring::prepare(options));
        let files = (cpu_latency, meminfo);
        Self::mount_on(vfs, mountpoint.as_ref(), options, prepare, files)
    }

    /// As [`Session::mount`]. `prepare` makes the queues.
    #[cfg(test)]
    fn mount_with(
        vfs: Arc<Vfs>,
        mountpoint: &Path,
        options: &FuseOptions,
        prepare: impl FnOnce(&FuseOptions) -> Result<Uring>,
    ) -> Result<Session> {
        Self::mount_on(vfs, mountpoint, options, prepare, (None, None))
    }

    fn mount_on(
        vfs: Arc<Vfs>,
        mountpoint: &Path,
        options: &FuseOptions,
        prepare: impl FnOnce(&FuseOptions) -> Result<Uring>,
        (cpu_latency, meminfo): (Option<io::Result<File>>, Option<File>),
    ) -> Result<Session> {
        if (options.uid.is_some() || options.gid.is_some())
            && options.permissions == PermissionChecks::Volume
        {
            return Err(FuseError::new(
                FuseErrorKind::BadOption,
                "uid= and gid= need permission checks by the kernel (default_permissions)",
            ));
        }
        let mut hints = Vec::new();
        let uring = match options.transport {
            TransportChoice::DevFuse => None,
            choice => match prepare(options) {
                Ok(uring) => Some(uring),
                Err(e) if choice == TransportChoice::IoUring => return Err(e),
                Err(e) => {
                    hints.push(e.to_string());
                    None
                }
            },
        };
        let mut made = Self::mount_over(vfs.clone(), mountpoint, options, uring);
        if let Err((e, Attempt::Queues)) = &made
            && options.transport == TransportChoice::Auto
        {
            // The connection was aborted; a new one does without.
            hints.push(e.to_string());
            made = Self::mount_over(vfs, mountpoint, options, None);
        }
        let mut session = made.map_err(|(e, _)| e)?;
        if options.transport != TransportChoice::DevFuse
            && session.uring.is_none()
            && hints.is_empty()
        {
            hints.push("the kernel did not offer FUSE over io_uring".to_owned());
        }
        if let Some(device) = cpu_latency {
            match device.and_then(LatencyRequest::on) {
                Ok(cpu_latency) => session.dispatcher.set_cpu_latency(cpu_latency),
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => hints.push(format!(
                    "many small requests are faster where this user may write {}",
                    cpu_latency::DEVICE
                )),
                // No such device, or no thread: all else is as it was.
                Err(_) => {}
            }
        }
        if session.point.is_in_tree() {
            hints.extend(session.point.tune(options.read_ahead_kib));
        }
        if let Err(e) = session.dispatcher.watch_room(meminfo) {
            hints.push(format!(
                "nothing watches for a full volume, so buffered writes may be taken that do not fit: {e}"
            ));
        }
        session.hints = hints;
        Ok(session)
    }

    /// Mounts and serves, over the queues if the kernel agrees.
    fn mount_over(
        vfs: Arc<Vfs>,
        mountpoint: &Path,
        options: &FuseOptions,
        uring: Option<Uring>,
    ) -> std::result::Result<Session, (FuseError, Attempt)> {
        let plain = |e| (e, Attempt::Mount);
        let dispatcher = Dispatcher::new(vfs.clone(), options).map_err(|e| {
            plain(FuseError::new(FuseErrorKind::Volume, "cannot read the root directory").source(e))
        })?;
        let dispatcher = Arc::new(dispatcher);
        if uring.is_some() {
            dispatcher.offer_uring();
        }
        let mount = Mount::new(mountpoint, options).map_err(plain)?;
        let (fd, point) = mount.into_parts();
        let transport = Arc::new(DevFuse::new(
            fd,
            options.threads_min,
            options.max_write_clamped(),
            options.log.clone(),
            options.keeper.clone(),
        ));
        let weak = Arc::downgrade(&transport);
        dispatcher.set_transport(weak);
        dispatcher.set_notifier(transport.notifier());
        let mut session = Session {
            vfs,
            dispatcher: dispatcher.clone(),
            transport,
            uring: None,
            point,
            options: options.clone(),
            hints: Vec::new(),
            finished: false,
        };
        let begun = session
            .transport
            .start(&dispatcher)
            .and_then(|()| session.greet())
            .map_err(plain)
            .and_then(|()| session.use_queues(uring));
        if let Err(e) = begun {
            session.finished = true; // The volume stays the caller's.
            session.cut(None);
            session.dispatcher.close();
            return Err(e);
        }
        Ok(session)
    }

    /// After INIT: goes over to the queues if that was agreed on.
    fn use_queues(
        &mut self,
        uring: Option<Uring>,
    ) -> std::result::Result<(), (FuseError, Attempt)> {
        let Some(uring) = uring else { return Ok(()) };
        if !self.dispatcher.agreed_on_uring() {
            if self.options.transport == TransportChoice::IoUring {
                return Err((
                    FuseError::new(
                        FuseErrorKind::Transport,
                        "the kernel did not offer FUSE over io_uring",
                    ),
                    Attempt::Queues,
                ));
            }
            return Ok(());
        }
        let uring = Arc::new(uring);
        self.uring = Some(Arc::clone(&uring));
        self.transport.hand_over(&uring);
        uring
            .start(
                self.transport.connection(),
                &self.dispatcher,
                self.abort_hook(),
            )
            .map_err(|e| (e, Attempt::Queues))
    }

    /// How a thread that cannot serve any more ends the connection, so that no client waits for it.
    fn abort_hook(&self) -> Abort {
        let (point, log) = (self.point.clone(), self.options.log.clone());
        Arc::new(move |why: &str| {
            log.line(&format!("the FUSE connection is ended: {why}"));
            let (point, log) = (point.clone(), log.clone());
            let end = move || {
                if let Err(e) = point.force_end() {
                    // Without us the kernel ends it: better than programs that hang.
                    log.line(&format!("{e}; giving up"));
                    std::process::abort();
                }
            };
            // In a thread of its own: ending may wait for the one that asks for it.
            let thread = std::thread::Builder::new().name("fuse-abort".to_owned());
            if thread.spawn(end).is_err() {
                std::process::abort();
            }
        })
    }

    /// Waits for INIT.
    fn greet(&self) -> Result<()> {
        let deadline = Instant::now() + INIT_TIMEOUT;
        while !self.dispatcher.wait_ready(RETRY_EVERY) {
            if self.has_ended() {
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

    /// Hints, for people, about what would make the mount faster but needs privileges that this
    /// process lacks.
    #[must_use]
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// How requests travel.
    #[must_use]
    pub fn transport(&self) -> TransportKind {
        match self.uring {
            Some(_) => TransportKind::IoUring,
            None => TransportKind::DevFuse,
        }
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
        self.wait(None);
        self.finish()
    }

    /// Serves until unmounted, or until SIGTERM, SIGINT or SIGHUP, which unmount. Then closes the volume.
    /// A second signal no longer waits for files that are still open.
    ///
    /// # Errors
    /// `Volume` when it could not be closed cleanly; `Busy` when the connection could not be ended, in
    /// which case the volume was closed and later requests fail.
    pub fn run_until_signal(self) -> Result<()> {
        let signals = Signals::catch()?;
        self.run_until(signals)
    }

    /// As [`Session::run_until_signal`], with signals that were caught from before it was mounted: one that has come
    /// meanwhile counts.
    ///
    /// # Errors
    /// As [`Session::run_until_signal`].
    pub fn run_until(mut self, signals: Signals) -> Result<()> {
        let Signals { event, watch } = signals;
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
        self.wait(Some(Duration::ZERO))
    }

    /// Waits until the connection has ended and nothing is in progress any more, or for `limit`. Returns whether
    /// that is so.
    fn wait(&self, limit: Option<Duration>) -> bool {
        let threads = self.dispatcher.threads();
        wait(&self.transport, self.uring.as_deref(), threads, limit)
    }

    /// Wakes the event once the connection has ended.
    fn wake_at_end(&self, event: &Event) -> Result<()> {
        let (transport, uring) = (self.transport.clone(), self.uring.clone());
        let threads = Arc::clone(self.dispatcher.threads());
        let event = event.clone();
        std::thread::Builder::new()
            .name("fuse-end".to_owned())
            .spawn(move || {
                wait(&transport, uring.as_deref(), &threads, None);
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
                    // Gone from the tree; the kernel has written everything back. Unless another mount namespace has
                    // it: that may be so forever, and is none of the open files that a shutdown waits for.
                    if !self.wait(Some(ELSEWHERE_TIMEOUT)) && self.point.is_held_elsewhere() {
                        let what = match self.point.elsewhere() {
                            Some(there) => format!(
                                "still mounted at {} in the mount namespace of process {}",
                                there.point.display(),
                                there.pid
                            ),
                            None => "still mounted in another mount namespace".to_owned(),
                        };
                        let line = format!("{what}; files there fail from now on");
                        self.options.log.line(&line);
                        break;
                    }
                    self.wait(Some(CUT_TIMEOUT));
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
            // Data that programs have written so far must not be lost with the connection.
            let root = self.point.write_back(&self.options.log);
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

    /// Ends the connection even while it is in use. `root`: a descriptor of the root directory, if there is one.
    fn cut(&self, root: Option<std::os::fd::OwnedFd>) {
        if let Err(e) = self.point.abort(root) {
            self.options.log.line(&e.to_string());
        }
        self.wait(Some(CUT_TIMEOUT));
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

/// How far mounting came before it failed.
enum Attempt {
    /// It cannot be helped.
    Mount,
    /// The queues failed; without them it may work.
    Queues,
}

/// Waits until the connection has ended and nothing is in progress any more, or for `limit`. Returns whether that is so.
fn wait(
    transport: &DevFuse,
    uring: Option<&Uring>,
    threads: &Threads,
    limit: Option<Duration>,
) -> bool {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let rest = || deadline.map(|at| at.saturating_duration_since(Instant::now()));
    if !transport.wait(limit) {
        return false;
    }
    if let Some(uring) = uring {
        // The queues end with the connection; this makes sure that they know.
        uring.end();
        if !uring.wait(rest()) {
            return false;
        }
    }
    // No transport has more for them to do.
    threads.end();
    threads.wait(rest())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Log;
    use crate::support::scene::Switch;
    use crate::support::{can_mount, volume};

    fn queue_threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("fuse-queue")).count()
    }

    fn sabotaged(options: &FuseOptions) -> Result<Uring> {
        let mut uring = Uring::prepare(options)?;
        assert!(queue_threads() > 0);
        uring.sabotaged = true;
        Ok(uring)
    }

    /// The hook of a first attempt may run when a second mount is in place already.
    #[test]
    fn who_ends_a_mount_late_does_not_meet_the_next_one_at_the_same_place() {
        if !can_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = FuseOptions {
            transport: TransportChoice::DevFuse,
            log: Log::none(),
            ..FuseOptions::default()
        };
        let first = volume();
        let session = Session::mount(first.vfs.clone(), dir.path(), &options).unwrap();
        let late = session.abort_hook();
        let point = session.point.clone();
        session.cut(None);
        drop(session);
        let second = volume();
        let session = Session::mount(second.vfs.clone(), dir.path(), &options).unwrap();
        point.force_end().unwrap();
        late("the test says so");
        for _ in 0..10 {
            std::fs::write(dir.path().join("file"), b"x").unwrap();
            assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"x");
            std::thread::sleep(RETRY_EVERY);
        }
        session.unmount().unwrap();
    }

    /// All queues but the last thread's are registered when the kernel refuses.
    #[test]
    fn when_the_queues_are_refused_midway_a_new_connection_does_without() {
        if !can_mount() {
            return;
        }
        let Some(_on) = Switch::set(true) else { return };
        let dir = tempfile::tempdir().unwrap();
        let options = |transport| FuseOptions {
            transport,
            log: Log::none(),
            ..FuseOptions::default()
        };
        for _ in 0..3 {
            let v = volume();
            let auto = options(TransportChoice::Auto);
            let session = Session::mount_with(v.vfs.clone(), dir.path(), &auto, sabotaged).unwrap();
            assert_eq!(session.transport(), TransportKind::DevFuse);
            let told = |hint: &String| hint.contains("refused the queues");
            assert!(session.hints().iter().any(told), "{:?}", session.hints());
            std::fs::write(dir.path().join("file"), b"x").unwrap();
            assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"x");
            session.unmount().unwrap();
            assert!(!dir.path().join("file").exists(), "unmounted");

            let v = volume();
            let only = options(TransportChoice::IoUring);
            let error = Session::mount_with(v.vfs.clone(), dir.path(), &only, sabotaged).err();
            let error = error.expect("refused");
            assert_eq!(error.kind(), FuseErrorKind::Transport, "{error}");
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            assert!(!mounts.contains(dir.path().to_str().unwrap()), "{mounts}");
            v.vfs.unmount().unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while queue_threads() > 0 {
            assert!(Instant::now() < deadline, "threads are left");
            std::thread::sleep(RETRY_EVERY);
        }
    }
}
