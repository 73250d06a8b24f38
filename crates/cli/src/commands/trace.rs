//! `trace`: records device requests, summarises a recording, draws it.

use super::stats::{connect, said};
use crate::args::{TraceCommand, TracePlotArgs, TraceRecordArgs, TraceShowArgs, TraceTargetArgs};
use crate::exit;
use crate::failure::{At, Failure, Result, warn};
use crate::output::{Out, human};
use blockwright_device::metrics::{Distribution, bucket_of};
use blockwright_device::monitor::Kind;
use blockwright_device::trace::{Ending, Event as Io, TraceError, TraceReader};
use blockwright_fuse::protocol::control::TraceReport;
use blockwright_fuse::{Event, SignalWatch};
use blockwright_plot::{Axis, Figure, Grid, Layer, PALETTE, Panel, Scale};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `trace`.
///
/// # Errors
/// As the subcommands.
pub fn trace(command: &TraceCommand) -> Result<()> {
    match command {
        TraceCommand::Record(args) => record(args),
        TraceCommand::Stop(args) => stop(args),
        TraceCommand::Status(args) => status(args),
        TraceCommand::Show(args) => show(args),
        TraceCommand::Plot(args) => plot(args),
    }
}

// ---- recording ----

fn told(report: &TraceReport) {
    let mut text = format!("{}: {} requests", report.path, report.recorded);
    if report.lost > 0 {
        text.push_str(&format!(
            ", {} lost because the file could not be written as fast",
            report.lost
        ));
    }
    if report.full {
        text.push_str("; it ended early: at its limit (--max), or the disk is full");
    }
    warn(text);
}

/// The file's absolute path, which must not lie in the volume that is traced: writing it would be recorded,
/// which would be written.
fn outside(file: &Path, mountpoint: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(file).at(file.display())?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let device = |p: &Path| std::fs::metadata(p).map(|m| m.dev()).at(p.display());
    if device(dir)? == device(mountpoint)? {
        return Err(
            Failure::usage("the trace cannot lie in the volume it is of").at(file.display()),
        );
    }
    Ok(path)
}

fn record(args: &TraceRecordArgs) -> Result<()> {
    let point = &args.mountpoint;
    let path = outside(&args.output, point)?;
    // Before it starts, so that no signal leaves a recording behind.
    let event = Event::new().map_err(Failure::new)?;
    let watch = SignalWatch::new(&event).map_err(Failure::new)?;
    connect(point)?
        .start_trace(&path, args.max)
        .map_err(|e| said(&e).at(point.display()))?;
    let result = match args.command.split_first() {
        Some((program, arguments)) => run(program, arguments, &event),
        None => {
            let seconds = args.seconds.map(Duration::from_secs_f64);
            let end = seconds.map(|s| Instant::now() + s);
            while !watch.take() {
                match end.map(|end| end.saturating_duration_since(Instant::now())) {
                    Some(Duration::ZERO) => break,
                    left => event.wait(left),
                }
            }
            Ok(())
        }
    };
    // The volume may have been unmounted by the command; that ended the recording, too.
    match connect(point).and_then(|c| c.stop_trace().map_err(|e| said(&e).at(point.display()))) {
        Ok(report) => told(&report),
        Err(e) if result.is_ok() => return Err(e),
        Err(_) => {}
    }
    result
}

/// Runs the command to its end, whatever signals come: it gets those of the terminal, too.
fn run(program: &std::ffi::OsStr, arguments: &[std::ffi::OsString], event: &Event) -> Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .at(program.display())?;
    let status = loop {
        if let Some(status) = child.try_wait().at(program.display())? {
            break status;
        }
        event.wait(Some(Duration::from_millis(5)));
    };
    if status.success() {
        return Ok(());
    }
    warn(format_args!("{}: {status}", program.display()));
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Err(Failure::said(code.unwrap_or(exit::FAILURE)))
}

fn stop(args: &TraceTargetArgs) -> Result<()> {
    let point = args.mountpoint.display();
    let report = connect(&args.mountpoint)?
        .stop_trace()
        .map_err(|e| said(&e).at(point))?;
    told(&report);
    Ok(())
}

fn status(args: &TraceTargetArgs) -> Result<()> {
    let point = args.mountpoint.display();
    let report = connect(&args.mountpoint)?
        .trace_status()
        .map_err(|e| said(&e).at(point))?;
    let mut out = Out::new();
    match report {
        None => writeln!(out, "no trace is being recorded")?,
        Some(r) => writeln!(
            out,
            "{}: {} requests recorded, {} lost{}",
            r.path,
            r.recorded,
            r.lost,
            if r.full { ", full" } else { "" }
        )?,
    }
    out.finish()
}

// ---- reading ----

/// Events in the order of submission. The file has them in that of completion; what is out of order is so by
/// no more than what was in flight.
struct Ordered {
    reader: TraceReader,
    held: BinaryHeap<Reverse<Held>>,
    count: u64,
}

/// More than any device has in flight here.
const IN_FLIGHT_MAX: usize = 8192;

struct Held(u64, u64, Io);

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Held {}
impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl Ordered {
    fn open(path: &Path) -> Result<Self> {
        Ok(Ordered {
            reader: TraceReader::open(path)
                .map_err(failure)
                .at(path.display())?,
            held: BinaryHeap::new(),
            count: 0,
        })
    }

    fn next(&mut self) -> std::result::Result<Option<Io>, TraceError> {
        while self.held.len() < IN_FLIGHT_MAX {
            match self.reader.next_event()? {
                Some(event) => {
                    self.count += 1;
                    self.held
                        .push(Reverse(Held(event.start_ns, self.count, event)));
                }
                None => break,
            }
        }
        Ok(self.held.pop().map(|Reverse(Held(_, _, event))| event))
    }
}

fn failure(e: TraceError) -> Failure {
    match e {
        TraceError::Io(e) => e.into(),
        e => Failure::new(e),
    }
}

#[derive(Default, Serialize)]
struct KindJson {
    kind: &'static str,
    requests: u64,
    bytes: u64,
    latency_mean_ns: f64,
    /// Upper bounds: powers of two.
    latency_median_ns: u64,
    latency_99_ns: u64,
}

#[derive(Serialize)]
struct SummaryJson {
    device: String,
    device_bytes: u64,
    seconds: f64,
    requests: u64,
    bytes: u64,
    /// Requests that did not begin where the one before ended; flushes do not move the head.
    seeks: u64,
    lost: u64,
    /// `asked`, `limit` or `missing`.
    ending: &'static str,
    kinds: Vec<KindJson>,
}

/// The figures that a plot needs before it can be drawn.
struct Summary {
    device: String,
    device_bytes: u64,
    end_ns: u64,
    lowest: u64,
    highest: u64,
    requests: u64,
    bytes: u64,
    seeks: u64,
    lost: u64,
    ending: Ending,
    kinds: [(u64, Distribution); Kind::ALL.len()],
}

/// Follows the head from request to request.
#[derive(Default)]
struct Head(Option<u64>);

impl Head {
    /// Whether it had to move to this request.
    fn seeks(&mut self, io: &Io) -> bool {
        if io.kind == Kind::Flush {
            return false;
        }
        let moved = self.0.is_some_and(|at| at != io.offset);
        self.0 = Some(io.offset + io.bytes);
        moved
    }
}

fn summarise(path: &Path) -> Result<Summary> {
    let mut events = Ordered::open(path)?;
    let mut s = Summary {
        device: events.reader.device_name.clone(),
        device_bytes: events.reader.device_bytes,
        end_ns: 0,
        lowest: u64::MAX,
        highest: 0,
        requests: 0,
        bytes: 0,
        seeks: 0,
        lost: 0,
        ending: Ending::Missing,
        kinds: std::array::from_fn(|_| (0, Distribution::default())),
    };
    let mut head = Head::default();
    while let Some(io) = events.next().map_err(failure).at(path.display())? {
        s.requests += 1;
        s.bytes = s.bytes.saturating_add(io.bytes);
        s.end_ns = s.end_ns.max(io.start_ns.saturating_add(io.latency_ns));
        s.seeks += u64::from(head.seeks(&io));
        if io.kind != Kind::Flush {
            s.lowest = s.lowest.min(io.offset);
            s.highest = s.highest.max(io.offset + io.bytes);
        }
        let (bytes, latency) = &mut s.kinds[io.kind as usize];
        *bytes = bytes.saturating_add(io.bytes);
        latency.buckets[bucket_of(io.latency_ns)] += 1;
        latency.sum = latency.sum.saturating_add(io.latency_ns);
    }
    (s.lost, s.ending) = (events.reader.lost, events.reader.ending);
    Ok(s)
}

fn show(args: &TraceShowArgs) -> Result<()> {
    let s = summarise(&args.file)?;
    let kinds = Kind::ALL.iter().zip(&s.kinds);
    let kinds = kinds
        .filter(|(_, (_, latency))| latency.count() > 0)
        .map(|(kind, (bytes, latency))| KindJson {
            kind: kind.name(),
            requests: latency.count(),
            bytes: *bytes,
            latency_mean_ns: latency.mean(),
            latency_median_ns: latency.quantile(0.5),
            latency_99_ns: latency.quantile(0.99),
        })
        .collect();
    let json = SummaryJson {
        device: s.device,
        device_bytes: s.device_bytes,
        seconds: s.end_ns as f64 / 1e9,
        requests: s.requests,
        bytes: s.bytes,
        seeks: s.seeks,
        lost: s.lost,
        ending: match s.ending {
            Ending::Asked => "asked",
            Ending::Limit => "limit",
            Ending::Missing => "missing",
        },
        kinds,
    };
    let mut out = Out::new();
    if args.json {
        out.json(&json)?;
        return out.finish();
    }
    writeln!(
        out,
        "{}: {} of {}",
        args.file.display(),
        json.device,
        human(json.device_bytes)
    )?;
    let per_second = |n: u64| n as f64 / json.seconds.max(1e-9);
    writeln!(
        out,
        "{} requests, {}, {} seeks in {:.3} s: {:.0} requests/s, {}/s, {:.0} seeks/s",
        json.requests,
        human(json.bytes),
        json.seeks,
        json.seconds,
        per_second(json.requests),
        human(per_second(json.bytes) as u64),
        per_second(json.seeks)
    )?;
    for k in &json.kinds {
        writeln!(
            out,
            "{:>12}: {:>9} requests, {:>10}, latency mean {:.1} µs, half ≤ {:.1} µs, 99 % ≤ {:.1} µs",
            k.kind,
            k.requests,
            human(k.bytes),
            k.latency_mean_ns / 1e3,
            k.latency_median_ns as f64 / 1e3,
            k.latency_99_ns as f64 / 1e3
        )?;
    }
    if json.lost > 0 {
        writeln!(out, "{} requests were lost", json.lost)?;
    }
    match s.ending {
        Ending::Asked => {}
        Ending::Limit => writeln!(out, "it ended at its limit")?,
        Ending::Missing => writeln!(out, "it was cut off")?,
    }
    out.finish()
}

// ---- drawing ----

const HEIGHTS: [u32; 3] = [320, 140, 140];

/// Sums per stretch of time.
struct Bins {
    seconds: f64,
    sums: Vec<f64>,
}

impl Bins {
    fn new(count: usize, end: f64) -> Self {
        let count = count.max(1);
        Bins {
            seconds: end / count as f64,
            sums: vec![0.0; count],
        }
    }

    fn add(&mut self, at: f64, value: f64) {
        let bin = ((at / self.seconds) as usize).min(self.sums.len() - 1);
        self.sums[bin] += value;
    }

    /// Per second, at the middle of each stretch.
    fn rates(&self) -> Vec<(f64, f64)> {
        let rate = |(k, sum): (usize, &f64)| ((k as f64 + 0.5) * self.seconds, sum / self.seconds);
        self.sums.iter().enumerate().map(rate).collect()
    }

    fn max(&self) -> f64 {
        self.rates().into_iter().fold(0.0, |max, (_, r)| r.max(max))
    }
}

/// Colours of the kinds that move data, in the order they are drawn.
const DRAWN: [(Kind, &str, usize); 5] = [
    (Kind::Discard, "discards", 4),
    (Kind::WriteZeroes, "zeroes", 5),
    (Kind::Read, "reads", 2),
    (Kind::Write, "writes", 0),
    (Kind::MetaWrite, "metadata writes", 1),
];

/// The figure of a trace.
fn figure(path: &Path, title: Option<&str>, width: u32) -> Result<Figure> {
    let s = summarise(path)?;
    if s.requests == 0 {
        return Err(Failure::new("there is no request in it").at(path.display()));
    }
    let end = (s.end_ns as f64 / 1e9).max(1e-6);
    let inside = Figure::inside(width);
    let x = Axis::new(0.0, end, Scale::Seconds);
    let offsets = if s.lowest < s.highest {
        Axis::new(s.lowest as f64, s.highest as f64, Scale::Bytes)
    } else {
        Axis::new(0.0, s.device_bytes as f64, Scale::Bytes)
    };
    let mut grids: Vec<Grid> = DRAWN
        .iter()
        .map(|_| Grid::new(inside, HEIGHTS[0]))
        .collect();
    let count = (inside / 4) as usize;
    let (mut read, mut written) = (Bins::new(count, end), Bins::new(count, end));
    let mut seeks = Bins::new(count, end);
    let mut head = Head::default();
    let mut events = Ordered::open(path)?;
    while let Some(io) = events.next().map_err(failure).at(path.display())? {
        let at = io.start_ns as f64 / 1e9;
        let done = (io.start_ns.saturating_add(io.latency_ns)) as f64 / 1e9;
        if head.seeks(&io) {
            seeks.add(at, 1.0);
        }
        match io.kind {
            Kind::Read => read.add(done, io.bytes as f64 / 1e6),
            Kind::Write | Kind::MetaWrite => written.add(done, io.bytes as f64 / 1e6),
            Kind::Flush | Kind::Discard | Kind::WriteZeroes => {}
        }
        if let Some(k) = DRAWN.iter().position(|(kind, ..)| *kind == io.kind) {
            let end = io.offset + io.bytes;
            grids[k].set_column(
                x.at(at),
                offsets.at(io.offset as f64),
                offsets.at(end as f64),
            );
        }
    }
    let dots = DRAWN.iter().zip(grids).filter(|(_, g)| g.count() > 0);
    let dots = dots.map(|((_, name, colour), grid)| Layer::Dots {
        name: (*name).to_owned(),
        colour: PALETTE[*colour],
        grid,
    });
    let line = |name: &str, colour: usize, bins: &Bins| Layer::Line {
        name: name.to_owned(),
        colour: PALETTE[colour],
        points: bins.rates(),
    };
    let mut rates = Vec::new();
    for (name, colour, bins) in [("read", 2, &read), ("written", 0, &written)] {
        if bins.max() > 0.0 {
            rates.push(line(name, colour, bins));
        }
    }
    let own = || format!("{}: {} requests", path.display(), s.requests);
    Ok(Figure {
        title: title.map_or_else(own, str::to_owned),
        width,
        x,
        panels: vec![
            Panel {
                title: "Offset on the device".to_owned(),
                y: offsets,
                height: HEIGHTS[0],
                layers: dots.collect(),
            },
            Panel {
                title: "Throughput, MB/s".to_owned(),
                y: Axis::new(0.0, read.max().max(written.max()), Scale::Plain),
                height: HEIGHTS[1],
                layers: rates,
            },
            Panel {
                title: "Seeks per second".to_owned(),
                y: Axis::new(0.0, seeks.max(), Scale::Plain),
                height: HEIGHTS[2],
                layers: vec![line("", 3, &seeks)],
            },
        ],
    })
}

fn plot(args: &TracePlotArgs) -> Result<()> {
    let ending = args.output.extension().and_then(|e| e.to_str());
    let png = match ending {
        Some("png") => true,
        Some("svg") => false,
        _ => {
            return Err(Failure::usage("the plot's name must end in .svg or .png")
                .at(args.output.display()));
        }
    };
    let drawing = figure(&args.file, args.title.as_deref(), args.width)?.draw();
    let bytes = if png {
        drawing.png().at(args.output.display())?
    } else {
        drawing.svg().into_bytes()
    };
    std::fs::write(&args.output, bytes).at(args.output.display())
}
