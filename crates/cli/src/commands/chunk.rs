//! `chunk`: images in content-addressed chunks.

use super::progress::Bar;
use crate::args::{ChunkCommand, ChunkExtractArgs, ChunkMakeArgs, ChunkVerifyArgs, StoreArgs};
use crate::failure::{At, Failure, Result, warn};
use crate::output::{Out, human};
use crate::wall::store_failure;
use blockwright_chunks::{
    ChunkSizes, Error, Index, MakeOptions, Site, Source, extract, make_into, verify,
};
use blockwright_device::OpenMode;
use serde::Serialize;
use std::io::Write;

/// Requests to a server at once.
const REQUESTS: usize = 16;

/// Runs `chunk`.
///
/// # Errors
/// With the file or the address named.
pub fn chunk(command: &ChunkCommand) -> Result<()> {
    match command {
        ChunkCommand::Make(args) => run_make(args),
        ChunkCommand::Extract(args) => run_extract(args),
        ChunkCommand::Verify(args) => run_verify(args),
    }
}

#[derive(Serialize)]
struct MadeJson {
    bytes: u64,
    chunks: u64,
    new_chunks: u64,
    new_bytes: u64,
    stored_bytes: u64,
}

fn run_make(args: &ChunkMakeArgs) -> Result<()> {
    let place = args.image.display();
    let image = crate::wall::device(&args.image, OpenMode::read_only()).at(&place)?;
    let store = args.site().map_err(store_failure)?;
    let sink = crate::wall::sink(&store, args.ca.as_deref()).map_err(store_failure)?;
    let mut options = MakeOptions {
        sizes: ChunkSizes::around(args.chunk_size),
        ..MakeOptions::default()
    };
    if !matches!(store, Site::Path(_)) {
        // They wait for a server most of the time.
        options.threads = options.threads.max(REQUESTS);
    }
    let bar = Bar::new(image.geometry().bytes, args.quiet || args.json);
    let done = make_into(&image, &*sink, &args.output, &options, &|at| bar.set(at));
    bar.finish();
    let made = done.map_err(|e| match e {
        Error::Device(e) => Failure::from(e).at(&place),
        e => store_failure(e),
    })?;
    let mut out = Out::new();
    if args.json {
        out.json(&MadeJson {
            bytes: made.bytes,
            chunks: made.chunks,
            new_chunks: made.new_chunks,
            new_bytes: made.new_bytes,
            stored_bytes: made.stored_bytes,
        })?;
    } else {
        writeln!(
            out,
            "{} in {} chunks; {} of them new: {}, {} in the store",
            human(made.bytes),
            made.chunks,
            made.new_chunks,
            human(made.new_bytes),
            human(made.stored_bytes)
        )?;
    }
    out.finish()
}

fn opened(args: &StoreArgs) -> Result<(Index, Box<dyn Source>)> {
    let source =
        crate::wall::source(&args.address().map_err(Failure::usage)?).map_err(Failure::new)?;
    let index = source
        .index()
        .and_then(|bytes| Index::read(&bytes[..]))
        .map_err(|e| match e {
            // These name the place.
            Error::Host { .. } | Error::Store { .. } => Failure::new(e),
            e => Failure::new(e).at(args.index.display()),
        })?;
    Ok((index, source))
}

fn run_extract(args: &ChunkExtractArgs) -> Result<()> {
    crate::image_file::refuse_among_devices(&args.output)?;
    let (index, source) = opened(&args.from)?;
    let made = crate::interrupt::remove_new_output(&args.output)?;
    let bar = Bar::new(index.bytes(), args.from.quiet);
    let done = extract(&index, &*source, &args.output, &|at| bar.set(at));
    made.keep();
    bar.finish();
    done.map_err(Failure::new)
}

#[derive(Serialize)]
struct VerifiedJson {
    bytes: u64,
    chunks: u64,
    distinct: u64,
    problems: Vec<String>,
}

fn run_verify(args: &ChunkVerifyArgs) -> Result<()> {
    let (index, source) = opened(&args.from)?;
    let chunks = index.entries().len() as u64;
    let bar = Bar::new(chunks, args.from.quiet || args.json);
    let found = verify(&index, &*source, &|at| bar.set(at));
    bar.finish();
    let problems: Vec<String> = found.problems.iter().map(Error::to_string).collect();
    let count = problems.len();
    let mut out = Out::new();
    if args.json {
        out.json(&VerifiedJson {
            bytes: found.bytes,
            chunks: found.chunks,
            distinct: found.distinct,
            problems,
        })?;
    } else {
        for problem in &problems {
            warn(problem);
        }
        writeln!(
            out,
            "{} in {} chunks, {} different; {count} missing or wrong",
            human(found.bytes),
            found.chunks,
            found.distinct
        )?;
    }
    out.finish()?;
    match count {
        0 => Ok(()),
        _ => Err(Failure::said(crate::exit::FAILURE)),
    }
}
