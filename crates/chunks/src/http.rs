//! A small HTTP client: GET, with bounds on bytes and time, and another try after what passes.

use crate::{Error, Result};
use blockwright_device::host_reason;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// How long one answer may take, from the name's look-up to the last byte.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// How long connecting may take.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How often something is asked for.
const TRIES: u32 = 4;
/// How long the first pause before another try is. Each following one is twice as long.
const PAUSE: Duration = Duration::from_millis(250);
/// Redirections that are followed.
const REDIRECTS: u32 = 4;
/// Connections that wait for the next request.
const IDLE: usize = 16;
/// The largest file of certificates, in bytes.
const CA_BYTES_MAX: u64 = 4 << 20;

pub(crate) struct Client(Agent);

/// How one try ended.
enum Outcome {
    Found(Vec<u8>),
    Absent,
    /// Another try can help.
    Passing(String),
    Failed(String),
}

impl Client {
    /// A client that checks servers against the certificates in `ca`, or against the built-in ones.
    pub(crate) fn new(ca: Option<&Path>) -> Result<Self> {
        let roots = match ca {
            None => RootCerts::WebPki,
            Some(path) => RootCerts::Specific(Arc::new(certificates(path)?)),
        };
        let tls = TlsConfig::builder().root_certs(roots).build();
        let config = Agent::config_builder()
            .timeout_global(Some(ANSWER_TIME))
            .timeout_connect(Some(CONNECT_TIME))
            .max_redirects(REDIRECTS)
            .max_idle_connections(IDLE)
            .max_idle_connections_per_host(IDLE)
            .http_status_as_error(false)
            .user_agent(concat!("blockwright/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Ok(Client(config.new_agent()))
    }

    /// The body at a URL, of at most `most` bytes and one more; `None` when the server says that there is nothing.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(crate) fn get(&self, url: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let mut pause = PAUSE;
        let mut tries = 1;
        loop {
            let why = match self.try_once(url, most) {
                Outcome::Found(body) => return Ok(Some(body)),
                Outcome::Absent => return Ok(None),
                Outcome::Failed(why) => why,
                Outcome::Passing(_) if tries < TRIES => {
                    tries += 1;
                    thread::sleep(pause);
                    pause *= 2;
                    continue;
                }
                Outcome::Passing(why) => format!("{why}, {TRIES} times"),
            };
            return Err(Error::Store {
                place: url.to_owned(),
                why,
            });
        }
    }

    fn try_once(&self, url: &str, most: u64) -> Outcome {
        let mut response = match self.0.get(url).call() {
            Ok(response) => response,
            Err(e) => return failed(&e),
        };
        match response.status().as_u16() {
            200 => {}
            // Stores in object storage say 403 for what is not there when listing is not allowed.
            403 | 404 | 410 => return Outcome::Absent,
            status @ (408 | 429 | 500 | 502..=504) => {
                return Outcome::Passing(format!("the server answers with status {status}"));
            }
            status => return Outcome::Failed(format!("the server answers with status {status}")),
        }
        let body = response.body_mut().with_config().limit(most + 1);
        match body.read_to_vec() {
            Ok(body) => Outcome::Found(body),
            Err(ureq::Error::BodyExceedsLimit(_)) => {
                Outcome::Failed(format!("the server sends more than {most} bytes"))
            }
            Err(e) => failed(&e),
        }
    }
}

/// Whether another try can help: after what the network, or a server that is busy or starts again, may cause. What an answer says, a server that is not
/// trusted, and a host that refuses stay as they are.
fn failed(e: &ureq::Error) -> Outcome {
    use io::ErrorKind;
    match e {
        ureq::Error::Timeout(_) => Outcome::Passing("no answer in time".to_owned()),
        ureq::Error::Io(e) => match e.kind() {
            // Errors of TLS are of this kind: a certificate that is not accepted, or no TLS at all.
            ErrorKind::InvalidData => Outcome::Failed(format!("TLS: {}", host_reason(e))),
            ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Unsupported => {
                Outcome::Failed(host_reason(e))
            }
            _ => Outcome::Passing(host_reason(e)),
        },
        ureq::Error::ConnectionFailed => Outcome::Passing("no connection".to_owned()),
        ureq::Error::HostNotFound => Outcome::Failed("there is no such host".to_owned()),
        e => Outcome::Failed(e.to_string()),
    }
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let place = path.display();
    let bytes = crate::files::read_file(path, CA_BYTES_MAX)
        .and_then(|found| found.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(|e| Error::host(place, &e))?;
    let items = ureq::tls::parse_pem(&bytes);
    let certificates: Vec<_> = items
        .filter_map(|item| match item {
            Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match certificates.is_empty() {
        true => Err(Error::Host {
            place: path.display().to_string(),
            why: "there is no certificate in it (PEM)".to_owned(),
            errno: None,
        }),
        false => Ok(certificates),
    }
}
