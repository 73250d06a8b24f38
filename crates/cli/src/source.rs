//! Sources of volumes, as arguments name them.

use blockwright::VolumeBuilder;
use blockwright::build::ContainerImage;
use std::path::Path;

/// The name of standard input in messages.
const STANDARD_INPUT: &str = "standard input";

/// What an operand of `--from` or `-d`, or the source of a partition, means.
pub enum MkfsSource<'a> {
    /// `-`
    StandardInput,
    /// A container image, by its prefix.
    Image(ContainerImage),
    /// A directory or an archive.
    Path(&'a Path),
    /// A listing of composefs, and the directory of its objects.
    Dumpfile {
        listing: &'a Path,
        objects: Option<&'a Path>,
    },
}

impl<'a> MkfsSource<'a> {
    /// What an operand means.
    pub fn of(path: &'a Path) -> Self {
        if path.as_os_str() == "-" {
            return MkfsSource::StandardInput;
        }
        match ContainerImage::parse(path.as_os_str()) {
            Some(image) => MkfsSource::Image(image),
            None => MkfsSource::Path(path),
        }
    }

    /// Makes it a source of a volume.
    pub fn put_into(self, builder: VolumeBuilder) -> VolumeBuilder {
        match self {
            MkfsSource::StandardInput => builder.from_reader(std::io::stdin(), STANDARD_INPUT),
            MkfsSource::Image(ContainerImage::DockerArchive { file, name })
                if file.as_os_str() == "-" =>
            {
                builder.from_image_reader(std::io::stdin(), name, STANDARD_INPUT)
            }
            MkfsSource::Image(image) => builder.from_image(image),
            MkfsSource::Path(path) => builder.from(path),
            MkfsSource::Dumpfile { listing, objects } => {
                let objects = objects.map(Path::to_owned);
                if listing.as_os_str() == "-" {
                    return builder.from_dumpfile_reader(std::io::stdin(), objects, STANDARD_INPUT);
                }
                builder.from_dumpfile(listing, objects)
            }
        }
    }

    /// What is read of the host; nothing for standard input.
    pub fn path(&self) -> Option<&Path> {
        let path = match self {
            MkfsSource::StandardInput => return None,
            MkfsSource::Image(image) => image.path(),
            MkfsSource::Path(path) => path,
            MkfsSource::Dumpfile { listing, .. } => listing,
        };
        (path.as_os_str() != "-").then_some(path)
    }
}
