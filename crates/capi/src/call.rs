//! The frame of every call: refuse calls from callbacks, catch panics, report.

use crate::error::{Fault, Result, bw_error, bw_status, finish};
use crate::handles::{DIRS, FILES, Health, OpenDir, OpenFile, OpenVolume, VOLUMES, bw_dir};
use crate::handles::{bw_file, bw_volume};
use blockwright::Volume;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

thread_local! {
    /// Whether this thread is inside a function of C's that the library called.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Calls into C. Calls from there into the library are refused meanwhile.
pub(crate) fn outside<R>(f: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IN_CALLBACK.set(self.0);
        }
    }
    let _before = Before(IN_CALLBACK.replace(true));
    f()
}

fn caught<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    // State that a panic may have left half changed belongs to the volume, which `Health` closes to all further calls.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned());
        // Dropping what was thrown may panic again.
        std::mem::forget(panic);
        Err(Fault::Panic(text.unwrap_or_else(|| "a panic".to_owned())))
    })
}

/// A call that concerns no open handle.
pub(crate) fn call(
    error: Option<&mut MaybeUninit<bw_error>>,
    f: impl FnOnce() -> Result<()>,
) -> bw_status {
    let result = match IN_CALLBACK.get() {
        true => Err(Fault::Reentrant),
        false => caught(f),
    };
    finish(result, error)
}

fn healthy<R>(health: &Health, f: impl FnOnce() -> Result<R>) -> Result<R> {
    health.check()?;
    let result = caught(f);
    if matches!(result, Err(Fault::Panic(_))) {
        health.poison();
    }
    result
}

/// A call on a volume.
pub(crate) fn on_volume(
    volume: bw_volume,
    error: Option<&mut MaybeUninit<bw_error>>,
    f: impl FnOnce(&Volume) -> Result<()>,
) -> bw_status {
    on_open_volume(volume, error, |open| open.with(f))
}

/// A call on a volume that makes a handle which outlives the call.
pub(crate) fn on_open_volume(
    volume: bw_volume,
    error: Option<&mut MaybeUninit<bw_error>>,
    f: impl FnOnce(&OpenVolume) -> Result<()>,
) -> bw_status {
    call(error, || {
        let open = VOLUMES.get(volume.id)?;
        healthy(open.health(), || f(&open))
    })
}

/// A call on a file.
pub(crate) fn on_file(
    file: bw_file,
    error: Option<&mut MaybeUninit<bw_error>>,
    f: impl FnOnce(&OpenFile) -> Result<()>,
) -> bw_status {
    call(error, || {
        let open = FILES.get(file.id)?;
        healthy(&open.health, || f(&open))
    })
}

/// A call on a directory.
pub(crate) fn on_dir(
    dir: bw_dir,
    error: Option<&mut MaybeUninit<bw_error>>,
    f: impl FnOnce(&OpenDir) -> Result<()>,
) -> bw_status {
    call(error, || {
        let open = DIRS.get(dir.id)?;
        healthy(&open.health, || f(&open))
    })
}

/// Closes a volume. After a panic its lock may be held or its state in doubt; it is unmounted as far as that works.
pub(crate) fn close_volume(
    volume: bw_volume,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let open: Arc<OpenVolume> = VOLUMES.remove(volume.id)?;
        let poisoned = open.health().check();
        let Some(volume) = open.take() else {
            return Err(Fault::BadHandle("volume"));
        };
        // Files that are still open keep the health, and see a fault of this.
        let closed = caught(|| Ok(volume.close()?));
        if matches!(closed, Err(Fault::Panic(_))) {
            open.health().poison();
        }
        poisoned.and(closed)
    })
}

/// Where C wants a result. Null is refused before anything is done. C need not have initialised it, so it is written and never read.
pub(crate) fn out<'a, T>(
    place: Option<&'a mut MaybeUninit<T>>,
    name: &'static str,
) -> Result<&'a mut MaybeUninit<T>> {
    place.ok_or(Fault::Null(name))
}

/// Refuses flags that are not known.
pub(crate) fn known(flags: u32, all: u32, name: &'static str) -> Result<()> {
    match flags & !all {
        0 => Ok(()),
        unknown => Err(Fault::Misuse(format!("{name}: unknown flags {unknown:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::bw_status::{BW_BAD_HANDLE, BW_OK, BW_PANIC, BW_POISONED, BW_REENTRANT};

    fn made() -> (tempfile::TempDir, bw_volume) {
        let dir = tempfile::tempdir().expect("a folder");
        let volume = Volume::create(dir.path().join("x.img"), 16 << 20).expect("made");
        let id = VOLUMES.insert(OpenVolume::new(volume)).expect("a handle");
        (dir, bw_volume { id })
    }

    #[test]
    fn a_panic_becomes_a_code_and_the_volume_refuses_all_but_closing() {
        let (_dir, volume) = made();
        assert_eq!(on_volume(volume, None, |_| Ok(())), BW_OK);
        assert_eq!(on_volume(volume, None, |_| panic!("by a test")), BW_PANIC);
        assert_eq!(on_volume(volume, None, |_| Ok(())), BW_POISONED);
        assert_eq!(close_volume(volume, None), BW_POISONED);
        assert_eq!(close_volume(volume, None), BW_BAD_HANDLE);
    }

    #[test]
    fn a_call_from_a_callback_is_refused() {
        let (_dir, volume) = made();
        let inside = outside(|| on_volume(volume, None, |_| Ok(())));
        assert_eq!(inside, BW_REENTRANT);
        assert_eq!(on_volume(volume, None, |_| Ok(())), BW_OK);
        assert_eq!(close_volume(volume, None), BW_OK);
    }

    #[test]
    fn closing_waits_for_calls_of_other_threads() {
        let (_dir, volume) = made();
        std::thread::scope(|scope| {
            let (told, tell) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let status = on_volume(volume, None, |volume| {
                    told.send(()).expect("sent");
                    for n in 0..200 {
                        volume.write(format!("/{n}"), b"x")?;
                    }
                    Ok(())
                });
                assert_eq!(status, BW_OK);
            });
            tell.recv().expect("begun");
            assert_eq!(close_volume(volume, None), BW_OK);
        });
    }
}
