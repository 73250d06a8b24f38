//! Everything a program may do with a volume, done to one that is damaged.

use blockwright::{Error, ErrorKind, OpenOptions, RenameMode, Volume, VolumeOptions, XattrMode};
use blockwright_device::{MemoryDevice, SharedDevice};
use std::sync::Arc;

/// What came of it.
#[derive(Default, Debug)]
pub struct Outcome {
    /// Why the volume does not open.
    pub refused: Option<Error>,
    /// What reading met, with the path.
    pub reading: Vec<Error>,
    /// What writing met.
    pub writing: Vec<Error>,
    /// Whether changes were refused in the end.
    pub read_only: bool,
    /// What closing said.
    pub closing: Option<Error>,
}

impl Outcome {
    pub fn errors(&self) -> impl Iterator<Item = &Error> {
        self.refused
            .iter()
            .chain(&self.reading)
            .chain(&self.writing)
            .chain(&self.closing)
    }

    /// All messages, for looking a structure's name up and for failures.
    pub fn text(&self) -> String {
        self.errors()
            .map(|e| format!("{:?}: {e}\n", e.kind()))
            .collect()
    }

    pub fn found_damage(&self) -> bool {
        // A journal given up because of damage passes the cause on to the next caller.
        self.errors()
            .any(|e| matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Poisoned))
    }
}

/// Opens, reads everything, changes something unless `read_only`, closes. Read-only opens must leave the
/// bytes as they are.
pub fn exercise(bytes: &[u8], options: VolumeOptions) -> Outcome {
    let device = Arc::new(MemoryDevice::from_image(bytes));
    let outcome = exercise_device(Arc::clone(&device) as SharedDevice, &options);
    if options.is_read_only() {
        let after = device.to_vec();
        assert!(after[..bytes.len()] == *bytes, "reading changed the image");
    }
    for e in outcome.errors() {
        check_message(e);
    }
    outcome
}

/// Errors must be of a kind that damage explains, and say something about their place.
fn check_message(e: &Error) {
    let text = e.to_string();
    assert!(text.len() > 10, "a message that says nothing: {text:?}");
    if e.kind() == ErrorKind::Corrupt {
        assert!(
            text.chars().filter(|c| *c == ' ').count() >= 3,
            "damage without a place: {text:?}"
        );
    }
    assert!(
        !matches!(
            e.kind(),
            ErrorKind::Busy | ErrorKind::Interrupted | ErrorKind::WouldBlock
        ),
        "{text}"
    );
}

pub fn exercise_device(device: SharedDevice, options: &VolumeOptions) -> Outcome {
    let mut out = Outcome::default();
    let v = match options.open_device(device) {
        Ok(v) => v,
        Err(e) => {
            out.refused = Some(e);
            return out;
        }
    };
    read_everything(&v, &mut out.reading);
    if !options.is_read_only() {
        change_something(&v, &mut out.writing);
    }
    out.read_only = v.is_read_only();
    out.closing = v.close().err();
    out
}

fn note<T>(errors: &mut Vec<Error>, result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) => {
            errors.push(e);
            None
        }
    }
}

/// The volumes are small: a walk that does not end is in a loop that a check should have found.
const ENTRIES_MAX: usize = 20_000;

pub fn read_everything(v: &Volume, errors: &mut Vec<Error>) {
    note(errors, v.statfs());
    let mut seen = 0;
    for entry in v.walk("/") {
        seen += 1;
        assert!(seen < ENTRIES_MAX, "the walk does not end");
        let Some(entry) = note(errors, entry) else {
            continue;
        };
        let path = &entry.path;
        for name in note(errors, v.list_xattr(path)).unwrap_or_default() {
            note(errors, v.get_xattr(path, &name));
        }
        if entry.metadata.is_symlink() {
            note(errors, v.read_link(path));
        }
        if entry.metadata.is_file() {
            read_file(v, path, entry.metadata.len(), errors);
        }
    }
}

fn read_file(v: &Volume, path: &std::path::Path, size: u64, errors: &mut Vec<Error>) {
    let Some(file) = note(errors, v.open_file(path)) else {
        return;
    };
    let mut buf = vec![0u8; 64 << 10];
    // Sizes may be absurd: the beginning, the end, and what data there is said to be.
    for at in [0, 64 << 10, 192 << 10, size.saturating_sub(4096), size] {
        note(errors, file.read_at(&mut buf, at));
    }
    let mut at = 0;
    for _ in 0..300 {
        match file.seek_data(at).and_then(|data| {
            file.read_at(&mut buf[..1024], data)?;
            file.seek_hole(data)
        }) {
            Ok(hole) => {
                assert!(hole > at, "{}: no progress at {at}", path.display());
                at = hole;
            }
            Err(e) if e.kind() == ErrorKind::NoData => break,
            Err(e) => {
                errors.push(e);
                break;
            }
        }
    }
    note(errors, file.extents());
}

fn change_something(v: &Volume, errors: &mut Vec<Error>) {
    note(errors, v.write("/new", vec![1; 30_000]));
    note(errors, v.create_dir("/new-dir"));
    note(errors, v.create_dir("/dir/below/new-dir"));
    for i in 0..20 {
        note(
            errors,
            v.write(format!("/many/new-{i}-{}", "m".repeat(150)), b"x"),
        );
    }
    for path in ["/dir/plain", "/holes", "/unwritten", "/dir/tiny"] {
        let opened = OpenOptions::new().read(true).write(true).open(v, path);
        let Some(file) = note(errors, opened) else {
            continue;
        };
        let size = file.metadata().map_or(0, |m| m.len());
        note(errors, file.write_all_at(&[9; 5000], size.min(1 << 32)));
        note(errors, file.write_all_at(&[8; 3000], 1024));
        note(errors, file.punch_hole(2048, 4096));
        note(errors, file.sync_all());
    }
    note(
        errors,
        v.set_xattr("/dir/plain", "user.more", [3; 100], XattrMode::Any),
    );
    note(
        errors,
        v.set_xattr("/dir/tiny", "user.other", [3; 300], XattrMode::Any),
    );
    note(errors, v.remove_xattr("/dir/plain", "user.large"));
    note(errors, v.rename("/dir/tiny", "/moved"));
    note(
        errors,
        v.rename_with("/dir/below", "/moved", RenameMode::Exchange),
    );
    note(errors, v.set_len("/holes", 70_000));
    note(errors, v.remove_file("/unwritten"));
    note(errors, v.symlink("t/".repeat(90), "/new-link"));
    note(errors, v.sync());
    v.vfs().drop_caches();
    note(errors, v.remove_dir_all("/many"));
    note(errors, v.remove_dir_all("/dir"));
    note(errors, v.sync());
}
