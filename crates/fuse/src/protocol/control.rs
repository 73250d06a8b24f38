//! Asking the server of a mount for statistics, and telling it to change: one ioctl on the root directory.
//!
//! `_IOWR('B', 0xB1, 4096)`: FUSE passes only ioctls whose number contains the size of their argument in both
//! directions. A packet carries a page of an answer; longer answers are kept by the server and fetched page by
//! page. Texts are lines of fields separated by tabs, with `\t`, `\n` and `\\` escaped.
//!
//! Every process that may open the root directory may read; only root and the mounting user may change.

use blockwright_vfs::Tunable;
use blockwright_vfs::stats::{BUCKETS, Distribution, Metric, Stats, Unit, Value};
use std::borrow::Cow;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Bytes of a packet, header included.
pub const PACKET_BYTES: usize = 4096;
/// Bytes of text in a packet.
pub const PAGE_BYTES: usize = PACKET_BYTES - 32;
/// Number of the ioctl.
pub const IOCTL: u32 = 3 << 30 | (PACKET_BYTES as u32) << 16 | (b'B' as u32) << 8 | 0xB1;
/// Begins every packet.
const MAGIC: u32 = u32::from_le_bytes(*b"BWC1");

/// The message of the control ioctl, in both directions.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Packet {
    magic: u32,
    /// A [`Request`]'s number, or a [`Status`]'s.
    pub code: u32,
    /// Which answer; 0 in a first request.
    pub token: u64,
    /// Where the page begins in the text.
    pub offset: u32,
    /// Bytes of the whole text.
    pub total: u32,
    /// Bytes of the page.
    pub len: u32,
    reserved: u32,
    page: [u8; PAGE_BYTES],
}

const _: () = assert!(size_of::<Packet>() == PACKET_BYTES);

impl Packet {
    /// A packet with this page of a text; what does not fit is left out.
    #[must_use]
    pub fn new(code: u32, token: u64, text: &[u8], offset: usize) -> Self {
        let rest = text.get(offset..).unwrap_or_default();
        let now = &rest[..rest.len().min(PAGE_BYTES)];
        let mut page = [0; PAGE_BYTES];
        page[..now.len()].copy_from_slice(now);
        Packet {
            magic: MAGIC,
            code,
            token,
            offset: offset as u32,
            total: text.len() as u32,
            len: now.len() as u32,
            reserved: 0,
            page,
        }
    }

    /// Its bytes of text; `None` when it is no packet of ours.
    #[must_use]
    pub fn text(&self) -> Option<&[u8]> {
        if self.magic != MAGIC || self.reserved != 0 {
            return None;
        }
        self.page.get(..self.len as usize)
    }
}

/// A confined server's answer to [`Request::TraceStart`]: it cannot open the file. The client makes it, and asks again with the number of
/// its descriptor as a third field.
pub const OPEN_IT: &str = "open-it\n";

/// The operations of the control ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub enum Request {
    /// All statistics: [`write_stats`].
    Stats = 1,
    /// The tunables and their values: [`write_tunables`].
    Tunables = 2,
    /// Change one: its name and its value. Answers as [`Request::Tunables`], with that one only.
    Tune = 3,
    /// Record device requests: the file's path and the most bytes it may have.
    TraceStart = 4,
    /// The state of the recording: [`TraceReport`].
    TraceStatus = 5,
    /// End the recording. Answers as [`Request::TraceStatus`].
    TraceStop = 6,
    /// Make everything durable. Answers with nothing.
    Sync = 7,
    /// Make the volume larger: how many bytes it is to have, `+` and how many more, or `fill`. Answers with its bytes before and now.
    Grow = 8,
}

impl Request {
    /// The request of this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::try_read_from_bytes(code.as_bytes()).ok()
    }

    /// Whether it changes something.
    #[must_use]
    pub fn changes(self) -> bool {
        matches!(
            self,
            Request::Tune | Request::TraceStart | Request::TraceStop | Request::Grow
        )
    }
}

/// The outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The text is the answer.
    Done = 0,
    /// The text says why not.
    Refused = 1,
    /// The answer this page belongs to is gone: ask again.
    Stale = 2,
}

/// Writes lines of fields.
#[derive(Default)]
pub struct Lines(String);

impl Lines {
    /// Adds a line.
    pub fn line<'a>(&mut self, fields: impl IntoIterator<Item = &'a str>) {
        for (k, field) in fields.into_iter().enumerate() {
            if k > 0 {
                self.0.push('\t');
            }
            for c in field.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '\t' => self.0.push_str("\\t"),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
        }
        self.0.push('\n');
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}

/// Reads lines of fields.
pub fn lines(text: &str) -> impl Iterator<Item = Vec<String>> + '_ {
    text.lines().map(|line| {
        line.split('\t')
            .map(|field| {
                let mut out = String::with_capacity(field.len());
                let mut chars = field.chars();
                while let Some(c) = chars.next() {
                    match c {
                        '\\' => match chars.next() {
                            Some('t') => out.push('\t'),
                            Some('n') => out.push('\n'),
                            Some(c) => out.push(c),
                            None => {}
                        },
                        c => out.push(c),
                    }
                }
                out
            })
            .collect()
    })
}

/// Statistics as text: section, name, label's key and value, unit, kind, value, help.
#[must_use]
pub fn write_stats(stats: &Stats) -> String {
    let mut out = Lines::default();
    for metric in stats.metrics() {
        let (kind, value) = match &metric.value {
            Value::Counter(n) => ("counter", n.to_string()),
            Value::Gauge(n) => ("gauge", n.to_string()),
            Value::Text(text) => ("text", text.clone()),
            Value::Histogram(d) => {
                let mut text = d.sum.to_string();
                for (bucket, n) in d.buckets.iter().enumerate().filter(|(_, n)| **n > 0) {
                    text.push_str(&format!(" {bucket}:{n}"));
                }
                ("histogram", text)
            }
        };
        let (key, label) = match &metric.label {
            Some((key, label)) => (&**key, &**label),
            None => ("", ""),
        };
        out.line([
            &metric.section,
            &metric.name,
            key,
            label,
            metric.unit.name(),
            kind,
            &value,
            &metric.help,
        ]);
    }
    out.into_text()
}

fn read_distribution(text: &str) -> Option<Distribution> {
    let mut fields = text.split(' ');
    let mut out = Distribution {
        sum: fields.next()?.parse().ok()?,
        ..Distribution::default()
    };
    for field in fields {
        let (bucket, n) = field.split_once(':')?;
        let bucket: usize = bucket.parse().ok().filter(|b| *b < BUCKETS)?;
        out.buckets[bucket] = n.parse().ok()?;
    }
    Some(out)
}

/// Reads [`write_stats`]. `None` when it is invalid; fields and kinds of later versions are skipped.
#[must_use]
pub fn read_stats(text: &str) -> Option<Stats> {
    let mut out = Stats::new();
    for line in lines(text) {
        let [section, name, key, label, unit, kind, value, help, ..] = &line[..] else {
            return None;
        };
        let value = match kind.as_str() {
            "counter" => Value::Counter(value.parse().ok()?),
            "gauge" => Value::Gauge(value.parse().ok()?),
            "text" => Value::Text(value.clone()),
            "histogram" => Value::Histogram(Box::new(read_distribution(value)?)),
            _ => continue,
        };
        let Some(unit) = Unit::from_name(unit) else {
            continue;
        };
        out.push(Metric {
            section: section.clone().into(),
            name: name.clone().into(),
            label: (!key.is_empty()).then(|| (key.clone().into(), label.clone().into())),
            unit,
            help: help.clone().into(),
            value,
        });
    }
    Some(out)
}

/// Tunables as text: name, unit, smallest, largest, value, help.
#[must_use]
pub fn write_tunables(tunables: &[Tunable]) -> String {
    let mut out = Lines::default();
    for t in tunables {
        out.line([
            &*t.name,
            t.unit.name(),
            &t.min.to_string(),
            &t.max.to_string(),
            &t.value.to_string(),
            &t.help,
        ]);
    }
    out.into_text()
}

/// Reads [`write_tunables`]. `None` when it is invalid.
#[must_use]
pub fn read_tunables(text: &str) -> Option<Vec<Tunable>> {
    lines(text)
        .map(|line| {
            let [name, unit, min, max, value, help, ..] = &line[..] else {
                return None;
            };
            Some(Tunable {
                name: Cow::Owned(name.clone()),
                unit: Unit::from_name(unit)?,
                min: min.parse().ok()?,
                max: max.parse().ok()?,
                value: value.parse().ok()?,
                help: Cow::Owned(help.clone()),
            })
        })
        .collect()
}

/// The state of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceReport {
    /// The file.
    pub path: String,
    /// Requests recorded.
    pub recorded: u64,
    /// Requests that could not be recorded in time.
    pub lost: u64,
    /// Nothing more is recorded: the file has its limit's size, or cannot be written.
    pub full: bool,
}

impl TraceReport {
    /// As text.
    #[must_use]
    pub fn write(&self) -> String {
        let mut out = Lines::default();
        let full = if self.full { "1" } else { "0" };
        out.line([
            &*self.path,
            &self.recorded.to_string(),
            &self.lost.to_string(),
            full,
        ]);
        out.into_text()
    }

    /// From text; `None` when there is none, or it is invalid.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let line = lines(text).next()?;
        let [path, recorded, lost, full, ..] = &line[..] else {
            return None;
        };
        Some(TraceReport {
            path: path.clone(),
            recorded: recorded.parse().ok()?,
            lost: lost.parse().ok()?,
            full: full == "1",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_what_linux_makes_of_it() {
        assert_eq!(IOCTL, 0xD000_42B1);
    }

    #[test]
    fn statistics_travel() {
        let mut stats = Stats::new();
        stats.section("a b");
        stats.text("words", "with\ttabs", "back\\slash\nand line");
        stats.counter("many", Unit::Count, "a number", u64::MAX);
        stats.gauge("held", Unit::Bytes, "another", 7);
        stats.labelled("kind", "x y");
        let mut d = Distribution {
            sum: 5,
            ..Distribution::default()
        };
        d.buckets[3] = 9;
        d.buckets[BUCKETS - 1] = 1;
        stats.histogram("sizes", Unit::Bytes, "some", d);
        let read = read_stats(&write_stats(&stats)).expect("readable");
        assert_eq!(read.metrics(), stats.metrics());
        assert_eq!(read_stats("no\tsense\n"), None);
        assert_eq!(
            read_stats("s\tn\t\t\tbytes\thistogram\t5 48:1\thelp\n"),
            None
        );
        // Fields that a later version adds are ignored.
        let later = "s\tn\t\t\tbytes\tmatrix\t5\thelp\tmore\n";
        assert_eq!(read_stats(later).map(|s| s.metrics().len()), Some(0));
    }

    #[test]
    fn tunables_and_traces_travel() {
        let all = vec![Tunable::switch("on", true, "help\nme")];
        assert_eq!(read_tunables(&write_tunables(&all)), Some(all));
        assert_eq!(read_tunables("x\n"), None);
        let report = TraceReport {
            path: "/a\tb".into(),
            recorded: 1,
            lost: 2,
            full: true,
        };
        assert_eq!(TraceReport::read(&report.write()), Some(report));
        assert_eq!(TraceReport::read(""), None);
    }

    #[test]
    fn pages_add_up() {
        let text: Vec<u8> = (0..10_000).map(|k| (k % 251) as u8).collect();
        let mut got = Vec::new();
        while got.len() < text.len() {
            let packet = Packet::new(0, 7, &text, got.len());
            assert_eq!(packet.total as usize, text.len());
            got.extend_from_slice(packet.text().expect("ours"));
        }
        assert_eq!(got, text);
        let mut bad = Packet::new(0, 0, b"x", 0);
        bad.len = PAGE_BYTES as u32 + 1;
        assert_eq!(bad.text(), None);
        bad.magic = 0;
        assert_eq!(bad.text(), None);
    }
}
