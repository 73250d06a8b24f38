//! The module behind the web page: one image, read through WASI, and questions about it.
//!
//! The page (`web/`) runs this in a worker, and implements the few functions of WASI that it calls. The image is the file `/image`;
//! only what is read of it is read from the disk. The module has one function, [`serve`], so that the interface is bytes and files:
//! - standard input has the request, a line of JSON (`request::Request`);
//! - standard output takes the answer: JSON, or the bytes that were asked for;
//! - standard error takes lines of JSON (`request::Event`), and the last words of a panic;
//! - the result is 0, or 1 when the answer is an error in JSON.
//!
//! # Parts
//! `names`: names as text. `request`: the interface. `listing`: directories. `session`: the open image. [`page`]: the page as one file.
//!
//! # Calls
//! `blockwright` and `disk` to read, `ffi` for the check, `map` for the picture.
//!
//! # Hostile images
//! Every list in an answer has a bound. A panic, and memory without an end (the module has at most 1 GiB), end the module; the page
//! says so, and starts another.

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod listing;
mod names;
pub mod page;
mod request;
mod session;

use request::{Event, Failed};
use session::Session;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

/// Longer requests are refused: no path of a file system is as long.
const REQUEST_BYTES_MAX: u64 = 1 << 20;

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

/// An event as a line on standard error. If that fails, the page misses an event.
fn tell(event: &Event) {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    let _ = std::io::stderr().write_all(&line);
}

fn answer() -> std::io::Result<bool> {
    let mut request = Vec::new();
    let input = std::io::stdin().lock();
    input.take(REQUEST_BYTES_MAX).read_to_end(&mut request)?;
    let mut out = std::io::stdout().lock();
    let mut session = match SESSION.lock() {
        Ok(session) => session,
        Err(poisoned) => poisoned.into_inner(),
    };
    let session = session.get_or_insert_with(|| Session::new("/image", Arc::new(tell)));
    let answered = session.answer(&request, &mut out);
    if let Err(e) = &answered {
        // An answer that was begun is not told: the result says that it is an error.
        out.flush()?;
        let failed = Failed {
            error: e.to_string(),
        };
        out.write_all(b"\n")?;
        serde_json::to_writer(&mut out, &failed)?;
    }
    out.flush()?;
    Ok(answered.is_ok())
}

/// Answers the request on standard input. 0: on standard output is the answer. 1: the last line there is the error. 2: not even that.
///
/// # Panics
/// On a bug, which ends the module.
#[cfg_attr(target_os = "wasi", allow(unsafe_code), unsafe(no_mangle))]
pub extern "C" fn serve() -> i32 {
    match answer() {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(_) => 2,
    }
}
