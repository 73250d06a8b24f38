//! The page as one file: the sources of `web/` with the module in them.
//!
//! One file opens from anywhere, also from a disk, where browsers refuse workers and modules in files of their own. Its policy
//! (Content-Security-Policy) names its scripts by their hashes and allows no connection, so the browser itself keeps the image from leaving.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use std::io::{self, Write};

/// The sources, as `web/` has them.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The page, with a place for each other part: `@POLICY@`, `@STYLE@`, `@WORKER@`, `@MODULE@`, `@SCRIPT@`.
    pub html: &'a str,
    /// Its style.
    pub style: &'a str,
    /// The script of the page.
    pub script: &'a str,
    /// The script of the worker.
    pub worker: &'a str,
}

fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The module compressed as the page has it; the same bytes from the same module.
///
/// # Errors
/// None that is known: it writes to memory.
pub fn compressed(module: &[u8]) -> io::Result<Vec<u8>> {
    let mut packer = GzBuilder::new().write(Vec::new(), Compression::best());
    packer.write_all(module)?;
    packer.finish()
}

/// The page.
///
/// # Errors
/// When a source lacks a place for another, has it twice, or has a text that would end its element.
pub fn assemble(sources: Sources<'_>, module: &[u8]) -> io::Result<String> {
    let Sources {
        html,
        style,
        script,
        worker,
    } = sources;
    for (name, text) in [("script", script), ("worker", worker), ("style", style)] {
        if ["</script", "</style", "<!--"]
            .iter()
            .any(|end| text.contains(end))
        {
            return Err(invalid(format!(
                "the {name} has the end of an element in it"
            )));
        }
    }
    let policy = format!(
        "default-src 'none'; script-src {} 'wasm-unsafe-eval' blob:; worker-src blob:; style-src {}; img-src blob:; \
         connect-src 'none'; base-uri 'none'; form-action 'none'",
        hash(script),
        hash(style)
    );
    let module = STANDARD.encode(compressed(module)?);
    let mut page = html.to_owned();
    // The scripts last: what they have in them is not looked at.
    for (place, text) in [
        ("@POLICY@", policy.as_str()),
        ("@STYLE@", style),
        ("@MODULE@", &module),
        ("@WORKER@", worker),
        ("@SCRIPT@", script),
    ] {
        if html.matches(place).count() != 1 {
            return Err(invalid(format!("the page must have {place} once")));
        }
        page = page.replacen(place, text, 1);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HTML: &str = "@POLICY@|<style>@STYLE@</style>|@WORKER@|@MODULE@|@SCRIPT@";
    const SOURCES: Sources<'_> = Sources {
        html: HTML,
        style: "p {}",
        script: "run();",
        worker: "serve();",
    };

    #[test]
    fn the_parts_are_in_their_places() {
        let page = assemble(SOURCES, b"\0asm").unwrap();
        assert!(page.contains("<style>p {}</style>|serve();|H4sI"), "{page}");
        assert!(page.ends_with("|run();"), "{page}");
        assert!(page.contains("connect-src 'none'"), "{page}");
        assert_eq!(page, assemble(SOURCES, b"\0asm").unwrap());
    }

    #[test]
    fn a_page_without_a_place_and_a_script_that_ends_itself_are_refused() {
        for html in ["", "@POLICY@ @STYLE@ @WORKER@ @MODULE@ @SCRIPT@ @SCRIPT@"] {
            assert!(assemble(Sources { html, ..SOURCES }, b"").is_err());
        }
        for script in ["'</script>'", "'<!--'"] {
            assert!(assemble(Sources { script, ..SOURCES }, b"").is_err());
        }
    }

    #[test]
    fn a_hash_as_a_policy_has_it() {
        let empty = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='";
        assert_eq!(hash(""), empty);
    }
}
