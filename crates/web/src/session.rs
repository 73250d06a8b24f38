//! One open image, and what is asked about it.

use crate::listing::Listed;
use crate::names;
use crate::request::{
    Checked, Event, Holds, Image, IssueOf, KindOf, MapOf, PartitionOf, Request, TableOf, VolumeInfo,
};
use blockwright::export::export_tar_watched;
use blockwright::{Error, ErrorKind, Result, Volume, VolumeOptions};
use blockwright_check::usage::{Usage, UsageOptions};
use blockwright_check::{Progress, ProgressFn};
use blockwright_device::{OpenMode, SharedDevice, os_name};
use blockwright_disk::{Disk, Selector, probe, table};
use blockwright_ffi::CheckOptions;
use blockwright_map::{self as map, Told};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

/// Partitions that are told. A table may claim thousands.
const PARTITIONS_MAX: usize = 128;
/// Entries of a listing in one answer.
const ENTRIES_MAX: usize = 1000;
/// Issues in one answer.
const ISSUES_MAX: usize = 1000;
/// Bytes of a file in one answer.
const READ_BYTES_MAX: usize = 4 << 20;
/// What a volume may cache. The module's memory never shrinks.
const CACHE_BYTES: u64 = 48 << 20;
/// Width of the map in pixels.
const MAP_WIDTH: u32 = 1000;

/// Takes what is told while a request runs.
pub(crate) type Tell = Arc<dyn Fn(&Event) + Send + Sync>;

/// What a check, which does not need a volume that opens, and a map are of.
struct Selected {
    device: SharedDevice,
    /// What was found for the map, once asked for.
    survey: Option<(&'static str, Usage<Told>)>,
}

struct Opened {
    volume: Volume,
    /// The last directory that was listed.
    listed: Option<Listed>,
}

/// One image, and the volume in it that is looked at.
pub(crate) struct Session {
    image: PathBuf,
    /// What the person knows it by.
    name: String,
    disk: Option<Disk>,
    selected: Option<Selected>,
    opened: Option<Opened>,
    tell: Tell,
}

fn path_of(text: &str) -> Result<PathBuf> {
    let bytes = names::decoded(text);
    let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::Invalid, "this is no coded path"))?;
    Ok(os_name::of_vec(bytes).into())
}

fn disk_error(error: blockwright_disk::Error) -> Error {
    blockwright_device::DeviceError::from(error).into()
}

fn holds(device: &SharedDevice) -> Option<Holds> {
    // What cannot be read is told when it is opened.
    let found = probe::contents(device).ok().flatten()?;
    Some(Holds {
        noun: found.noun,
        label: found.label,
    })
}

fn json(value: &impl serde::Serialize, out: &mut dyn Write) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()));
    written(out.write_all(&text?))
}

fn written(result: std::io::Result<()>) -> Result<()> {
    result.map_err(|e| Error::new(ErrorKind::Io, format!("the answer: {e}")))
}

impl Session {
    /// For the image at a path of the host. Nothing is opened before [`Request::Open`].
    pub(crate) fn new(image: impl Into<PathBuf>, tell: Tell) -> Self {
        Session {
            image: image.into(),
            name: String::new(),
            disk: None,
            selected: None,
            opened: None,
            tell,
        }
    }

    /// Answers one request.
    ///
    /// # Errors
    /// For people, in words. `out` may have a part of the answer then.
    pub(crate) fn answer(&mut self, request: &[u8], out: &mut dyn Write) -> Result<()> {
        let request = serde_json::from_slice(request)
            .map_err(|e| Error::new(ErrorKind::Invalid, format!("the request: {e}")))?;
        match request {
            Request::Open { name } => {
                self.name = name;
                json(&self.open()?, out)
            }
            Request::Volume { part } => json(&self.volume(part)?, out),
            Request::List { path, first, count } => {
                let opened = self.opened()?;
                let path = path_of(&path)?;
                if opened
                    .listed
                    .as_ref()
                    .is_none_or(|l| !l.is_of(&path) || first == 0)
                {
                    opened.listed = None;
                    opened.listed = Some(Listed::read(&opened.volume, &path)?);
                }
                let listed = opened.listed.as_ref().ok_or_else(closed)?;
                json(
                    &listed.part(&opened.volume, first, count.min(ENTRIES_MAX)),
                    out,
                )
            }
            Request::Read {
                path,
                offset,
                bytes,
            } => {
                let mut buf = vec![0; bytes.min(READ_BYTES_MAX)];
                let file = self.opened()?.volume.open_file(path_of(&path)?)?;
                let n = file.read_at(&mut buf, offset)?;
                written(out.write_all(&buf[..n]))
            }
            Request::Export { path } => self.export(&path, out),
            Request::Check => json(&self.check()?, out),
            Request::Map => json(&self.map()?, out),
            Request::MapPage => {
                let image = self.name.clone();
                let (format, usage) = self.survey()?;
                let page = map::page(usage, &image, &map::about(usage, format))
                    .map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
                written(out.write_all(page.as_bytes()))
            }
        }
    }

    fn opened(&mut self) -> Result<&mut Opened> {
        self.opened.as_mut().ok_or_else(closed)
    }

    fn open(&mut self) -> Result<Image> {
        self.opened = None;
        self.selected = None;
        self.disk = None;
        let mode = OpenMode::read_only();
        let file = blockwright_device::open(&self.image, mode)?;
        let mut no_other_file = |other: &blockwright_disk::container::Other<'_>| {
            Err(blockwright_disk::Error::Unsupported(format!(
                "this image needs another file, {:?}; a page sees one file only. \
                 `qemu-img convert` or `blockwright disk convert` makes one image of both",
                String::from_utf8_lossy(other.name)
            )))
        };
        let disk = Disk::on(&self.image, file, &mut no_other_file).map_err(disk_error)?;
        // A file system at the start counts: bytes of a table may be left in its boot block.
        let whole = probe::contents(disk.device()).ok().flatten();
        let table = match &whole {
            Some(held) if matches!(held.format, "ext4" | "f2fs") => None,
            _ => disk.table().map_err(disk_error)?,
        };
        let table = table.map(|found| {
            let told = found.partitions.iter().take(PARTITIONS_MAX);
            let one = |p: &blockwright_disk::Partition| {
                let device = disk.part(&Selector::Number(p.number));
                let (text, name) = table::type_name(p.kind);
                PartitionOf {
                    number: p.number,
                    name: p.name.clone(),
                    kind: name.map_or(text, str::to_owned),
                    bytes: p.bytes,
                    problem: p.problem.clone(),
                    holds: device.ok().as_ref().and_then(holds),
                }
            };
            TableOf {
                partitions: told.map(one).collect(),
                more: found.partitions.len().saturating_sub(PARTITIONS_MAX),
                remarks: found.remarks.clone(),
            }
        });
        let image = Image {
            container: disk.format().name(),
            bytes: disk.device().geometry().bytes,
            table,
        };
        self.disk = Some(disk);
        Ok(image)
    }

    fn volume(&mut self, part: Option<u32>) -> Result<VolumeInfo> {
        self.opened = None;
        self.selected = None;
        let disk = self.disk.as_ref().ok_or_else(closed)?;
        let device = disk.select(part.map(Selector::Number).as_ref());
        let device = device.map_err(disk_error)?;
        let label = holds(&device).map(|held| held.label).unwrap_or_default();
        self.selected = Some(Selected {
            device: Arc::clone(&device),
            survey: None,
        });
        let options = VolumeOptions::new().read_only(true);
        let volume = options.cache_bytes(CACHE_BYTES).open_device(device)?;
        let room = volume.statfs()?;
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(room.block_bytes));
        let info = VolumeInfo {
            format: volume.format().to_string(),
            label,
            bytes: bytes(room.blocks),
            free_bytes: bytes(room.blocks_free),
            inodes: room.files,
            free_inodes: room.files_free,
        };
        self.opened = Some(Opened {
            volume,
            listed: None,
        });
        Ok(info)
    }

    fn export(&mut self, path: &str, out: &mut dyn Write) -> Result<()> {
        let tell = Arc::clone(&self.tell);
        let volume = &self.opened()?.volume;
        let mut failed = |e: &Error| {
            tell(&Event::Unreadable {
                text: e.to_string(),
            });
        };
        let go_on = &mut |_: &_| ControlFlow::Continue(());
        let report = export_tar_watched(volume, path_of(path)?, out, &mut failed, go_on)?;
        tell(&Event::Exported {
            entries: report.entries,
            sockets: report.sockets_skipped,
            unreadable: report.failures,
        });
        Ok(())
    }

    /// Tells the progress.
    fn progress(&self) -> ProgressFn {
        let tell = Arc::clone(&self.tell);
        Arc::new(move |p: Progress| {
            tell(&Event::Progress {
                phase: p.phase.name(),
                done: p.done,
                total: p.total,
            });
            ControlFlow::Continue(())
        })
    }

    fn check(&mut self) -> Result<Checked> {
        let options = CheckOptions {
            issues_max: Some(ISSUES_MAX),
            progress: Some(self.progress()),
            ..CheckOptions::default()
        };
        let device = &self.selected.as_ref().ok_or_else(closed)?.device;
        let report = blockwright_ffi::check(Arc::clone(device), &options)?;
        let issues = report.issues.into_iter().map(|issue| IssueOf {
            severity: issue.severity.name(),
            text: issue.text,
        });
        Ok(Checked {
            clean: report.clean,
            issues: issues.collect(),
            more: report.suppressed,
            files: report.stats.files,
            directories: report.stats.directories,
        })
    }

    fn survey(&mut self) -> Result<&(&'static str, Usage<Told>)> {
        let options = UsageOptions {
            progress: Some(self.progress()),
            ..UsageOptions::default()
        };
        let selected = self.selected.as_mut().ok_or_else(closed)?;
        if selected.survey.is_none() {
            let found = map::survey(Arc::clone(&selected.device), &options);
            let found = found.map_err(|e| Error::new(ErrorKind::Corrupt, e.to_string()))?;
            selected.survey = Some(found);
        }
        selected.survey.as_ref().ok_or_else(closed)
    }

    fn map(&mut self) -> Result<MapOf> {
        let (format, usage) = self.survey()?;
        let about = map::about(usage, format);
        let mut problems = map::problems(usage);
        let more_problems = problems.len().saturating_sub(ISSUES_MAX);
        problems.truncate(ISSUES_MAX);
        let kinds = usage.kinds().map(|(kind, blocks)| KindOf {
            label: kind.label(),
            bytes: blocks.saturating_mul(u64::from(usage.block_bytes)),
        });
        let fragmented = usage.fragmented.iter();
        Ok(MapOf {
            svg: map::picture(usage, &about, MAP_WIDTH).draw().svg(),
            about,
            kinds: kinds.collect(),
            problems,
            more_problems,
            fragmented: fragmented
                .map(|file| map::fragmented_text(file, usage.block_bytes))
                .collect(),
        })
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Invalid, "no volume is open")
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright::{Format, VolumeBuilder};
    use serde_json::{Value, json};
    use std::path::Path;
    use std::sync::Mutex;

    /// A session on an image, and what it tells.
    struct Seen {
        session: Session,
        events: Arc<Mutex<Vec<Value>>>,
    }

    impl Seen {
        fn of(image: &Path) -> Self {
            let events = Arc::new(Mutex::new(Vec::new()));
            let told = Arc::clone(&events);
            let tell = move |event: &Event| {
                let event = serde_json::to_value(event).expect("an event is JSON");
                told.lock().expect("no panic").push(event);
            };
            Seen {
                session: Session::new(image, Arc::new(tell)),
                events,
            }
        }

        fn bytes(&mut self, request: &Value) -> Result<Vec<u8>> {
            let mut out = Vec::new();
            let request = serde_json::to_vec(request).expect("JSON");
            self.session.answer(&request, &mut out).map(|()| out)
        }

        fn ask(&mut self, request: Value) -> Value {
            let answer = self.bytes(&request);
            let answer = answer.unwrap_or_else(|e| panic!("{request}: {e}"));
            serde_json::from_slice(&answer).expect("JSON")
        }

        fn refused(&mut self, request: Value) -> String {
            let error = self.bytes(&request).expect_err("refused");
            error.to_string()
        }

        fn open(image: &Path) -> Self {
            let mut seen = Seen::of(image);
            seen.ask(json!({"op": "open", "name": "the image"}));
            seen.ask(json!({"op": "volume", "part": null}));
            seen
        }

        fn events_of(&self, kind: &str) -> usize {
            let events = self.events.lock().expect("no panic");
            events.iter().filter(|e| e["event"] == kind).count()
        }
    }

    fn volume(path: &Path, format: Format) -> PathBuf {
        let image = path.join(format!("{format}.img"));
        let made = VolumeBuilder::new().format(format).size(64 << 20);
        made.label("labelled").create(&image).expect("made");
        let volume = Volume::open(&image).expect("opened");
        volume.create_dir("/folder").expect("made");
        volume.write("/folder/file", b"contents").expect("written");
        volume.write("/100%", b"percent").expect("written");
        volume.symlink("folder", "/to folder").expect("made");
        volume.symlink("nowhere", "/broken").expect("made");
        volume.close().expect("closed");
        image
    }

    #[test]
    fn a_volume_is_browsed() {
        let dir = tempfile::tempdir().expect("a folder");
        for format in [Format::Ext4, Format::F2fs] {
            let image = volume(dir.path(), format);
            let before = std::fs::read(&image).expect("the image");
            let mut seen = Seen::of(&image);
            let opened = seen.ask(json!({"op": "open", "name": "x"}));
            assert_eq!(opened["container"], "raw");
            assert_eq!(opened["bytes"], 64 << 20);
            assert_eq!(opened["table"], Value::Null);
            let about = seen.ask(json!({"op": "volume", "part": null}));
            assert_eq!(about["format"], format.to_string());
            assert_eq!(about["label"], "labelled");
            assert!(about["freeBytes"].as_u64() < about["bytes"].as_u64());
            let list = seen.ask(json!({"op": "list", "path": "/", "first": 0, "count": 100}));
            let entries = list["entries"].as_array().expect("a list");
            assert_eq!(list["total"].as_u64(), Some(entries.len() as u64));
            let entry = |name: &str| {
                let found = entries.iter().find(|e| e["name"] == name);
                found.unwrap_or_else(|| panic!("{name}: {list}"))
            };
            assert_eq!(entry("folder")["kind"], "directory");
            // Directories come first.
            assert_eq!(entries[0]["kind"], "directory");
            assert_eq!(entry("100%25")["size"], 7);
            let link = entry("to folder");
            assert_eq!(
                (&link["target"], &link["leadsTo"]),
                (&json!("folder"), &json!("directory"))
            );
            assert_eq!(entry("broken")["leadsTo"], Value::Null);
            // A part of it, from the same listing.
            let part = seen.ask(json!({"op": "list", "path": "/", "first": 1, "count": 1}));
            assert_eq!(part["entries"][0]["name"], entries[1]["name"]);
            // Through the link, in pieces, and behind the end.
            for (offset, bytes, expected) in [
                (0, 100, &b"contents"[..]),
                (3, 2, b"te"),
                (8, 5, b""),
                (u64::MAX >> 1, 5, b""),
            ] {
                let request = json!({"op": "read", "path": "/to folder/file", "offset": offset, "bytes": bytes});
                assert_eq!(seen.bytes(&request).expect("read"), expected);
            }
            let request =
                json!({"op": "read", "path": "/100%25", "offset": 0, "bytes": 1u64 << 40});
            assert_eq!(seen.bytes(&request).expect("read"), b"percent");
            let tar = seen.bytes(&json!({"op": "export", "path": "/folder"}));
            let tar = tar.expect("exported");
            assert!(tar.windows(8).any(|w| w == b"contents"));
            assert_eq!((tar.len() % 512, seen.events_of("exported")), (0, 1));
            assert!(std::fs::read(&image).expect("the image") == before);
        }
    }

    #[test]
    fn a_volume_is_checked_and_drawn() {
        let dir = tempfile::tempdir().expect("a folder");
        for format in [Format::Ext4, Format::F2fs] {
            let image = volume(dir.path(), format);
            let mut seen = Seen::open(&image);
            let found = seen.ask(json!({"op": "check"}));
            assert_eq!(
                (&found["clean"], &found["files"]),
                (&json!(true), &json!(2))
            );
            assert!(seen.events_of("progress") > 0);
            let map = seen.ask(json!({"op": "map"}));
            assert!(
                map["svg"]
                    .as_str()
                    .is_some_and(|svg| svg.starts_with("<svg"))
            );
            let kinds = map["kinds"].as_array().expect("a list").iter();
            let bytes: u64 = kinds.filter_map(|kind| kind["bytes"].as_u64()).sum();
            assert_eq!(bytes, 64 << 20);
            let page = seen.bytes(&json!({"op": "map-page"})).expect("a page");
            assert!(String::from_utf8_lossy(&page).contains("the image"));
        }
    }

    /// What does not open is checked and drawn all the same.
    #[test]
    fn a_damaged_volume_is_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let image = volume(dir.path(), Format::Ext4);
        let mut bytes = std::fs::read(&image).expect("the image");
        // Of the descriptors of groups, in blocks of 1024 bytes.
        bytes[2048..4096].fill(0xA5);
        std::fs::write(&image, &bytes).expect("written");
        let mut seen = Seen::of(&image);
        seen.ask(json!({"op": "open", "name": "x"}));
        let told = seen.refused(json!({"op": "volume", "part": null}));
        assert!(!told.is_empty());
        let found = seen.ask(json!({"op": "check"}));
        assert_eq!(found["clean"], false, "{found}");
        assert!(!found["issues"].as_array().expect("a list").is_empty());
        let refused = seen.refused(json!({"op": "list", "path": "/", "first": 0, "count": 1}));
        assert!(refused.contains("no volume is open"), "{refused}");
    }

    #[test]
    fn requests_that_cannot_be_answered_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let image = volume(dir.path(), Format::Ext4);
        let mut seen = Seen::of(&image);
        for early in [
            json!({"op": "volume", "part": null}),
            json!({"op": "list", "path": "/", "first": 0, "count": 1}),
            json!({"op": "read", "path": "/x", "offset": 0, "bytes": 1}),
            json!({"op": "export", "path": "/"}),
            json!({"op": "check"}),
            json!({"op": "map"}),
            json!({"op": "map-page"}),
        ] {
            let told = seen.refused(early);
            assert!(told.contains("no volume is open"), "{told}");
        }
        let mut seen = Seen::open(&image);
        for (wrong, part) in [
            (json!({"op": "nonsense"}), "the request"),
            (json!(7), "the request"),
            (
                json!({"op": "read", "path": "/%zz", "offset": 0, "bytes": 1}),
                "coded",
            ),
            (
                json!({"op": "read", "path": "/none", "offset": 0, "bytes": 1}),
                "/none",
            ),
            (
                json!({"op": "read", "path": "/folder", "offset": 0, "bytes": 1}),
                "is a directory",
            ),
            (
                json!({"op": "list", "path": "/100%25", "first": 0, "count": 1}),
                "100%",
            ),
            (json!({"op": "export", "path": "/none"}), "none"),
            (json!({"op": "volume", "part": 3}), ""),
        ] {
            let told = seen.refused(wrong.clone());
            assert!(told.contains(part) && !told.is_empty(), "{wrong}: {told}");
        }
        // An answer that was refused leaves the session as it was, but for another choice of volume.
        seen.ask(json!({"op": "volume", "part": null}));
        seen.ask(json!({"op": "list", "path": "/folder", "first": 0, "count": usize::MAX}));
    }

    #[test]
    fn what_is_no_image_is_told() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut seen = Seen::of(&dir.path().join("none"));
        assert!(!seen.refused(json!({"op": "open", "name": "x"})).is_empty());
        let noise = dir.path().join("noise");
        std::fs::write(&noise, vec![0x5A; 1 << 20]).expect("written");
        let mut seen = Seen::of(&noise);
        seen.ask(json!({"op": "open", "name": "x"}));
        assert!(
            !seen
                .refused(json!({"op": "volume", "part": null}))
                .is_empty()
        );
    }
}
