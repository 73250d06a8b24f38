//! The one function of the module: an answer for a request.

use crate::request::{Event, Failed};
use crate::session::Session;
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
