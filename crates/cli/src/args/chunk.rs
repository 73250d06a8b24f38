//! Arguments of `chunk`.

use super::parse_size;
use blockwright_chunks::{ChunkAddress, Error, Site};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// What to do with an image in chunks.
#[derive(Subcommand, Debug)]
pub enum ChunkCommand {
    /// Cut an image into chunks: new ones go into a store, and a new index lists all
    Make(ChunkMakeArgs),
    /// Put an image together again, in a new raw file
    Extract(ChunkExtractArgs),
    /// Read and check all chunks of an index
    Verify(ChunkVerifyArgs),
}

#[derive(Args, Debug)]
pub struct ChunkMakeArgs {
    /// Store: a folder, which is made, or a place in S3 (s3+https://HOST/BUCKET/PREFIX)
    #[arg(long, value_name = "STORE", value_hint = ValueHint::DirPath)]
    pub store: PathBuf,
    /// Certificates (PEM) that an S3 server is checked against, instead of the built-in ones
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
    /// Index to write (.caibx)
    #[arg(short = 'o', long, value_name = "INDEX", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Average size of chunks; they have a quarter of it to four times as much. Images share chunks only when they are cut alike
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64K")]
    pub chunk_size: u64,
    /// No progress bar
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
    /// Image file, block device or partition (disk.img:p2)
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
}

impl ChunkMakeArgs {
    /// The store's place.
    ///
    /// # Errors
    /// A place that is none.
    pub fn site(&self) -> Result<Site, Error> {
        ChunkAddress::site(&self.store)
    }
}

/// Where chunks come from.
#[derive(Args, Debug)]
pub struct StoreArgs {
    /// Store: a folder, an http:// or https:// URL, or a place in S3 (s3+https://HOST/BUCKET/PREFIX); may be repeated, they are asked in turn
    #[arg(long = "store", value_name = "STORE", required = true, value_hint = ValueHint::AnyPath)]
    pub stores: Vec<PathBuf>,
    /// Folder that keeps what was fetched
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache: Option<PathBuf>,
    /// How large that folder may become
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "8G")]
    pub cache_size: u64,
    /// Certificates (PEM) that HTTPS servers are checked against, instead of the built-in ones
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
    /// No progress bar
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Index: a file, a URL or an object in S3
    #[arg(value_hint = ValueHint::AnyPath)]
    pub index: PathBuf,
}

impl StoreArgs {
    /// The address that the arguments name.
    ///
    /// # Errors
    /// Arguments that name none.
    pub fn address(&self) -> Result<ChunkAddress, Error> {
        let stores = self.stores.iter().map(|store| ChunkAddress::site(store));
        let stores = stores.collect::<Result<_, _>>()?;
        Ok(ChunkAddress {
            cache: self.cache.clone(),
            cache_bytes: self.cache_size,
            ca: self.ca.clone(),
            ..ChunkAddress::new(ChunkAddress::site(&self.index)?, stores)
        })
    }
}

#[derive(Args, Debug)]
pub struct ChunkExtractArgs {
    #[command(flatten)]
    pub from: StoreArgs,
    /// New file
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
}

#[derive(Args, Debug)]
pub struct ChunkVerifyArgs {
    #[command(flatten)]
    pub from: StoreArgs,
    /// Report in JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct FetcherArgs {
    /// Keep chunks in the store, instead of fetching them
    #[arg(long)]
    pub keep: bool,
    /// Address of the image
    pub address: PathBuf,
}
