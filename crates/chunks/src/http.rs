//! A small HTTP client: GET, and for S3 HEAD and PUT, with bounds on bytes and time, and another try after what passes.

use crate::s3::{Object, Refusal, S3Keys};
use crate::{Error, Result};
use blockwright_device::host_reason;
use rustls::AlertDescription;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{AsSendBody, Body, http};

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
/// The longest text of an error of S3 that is read, in bytes.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;
/// The largest file of certificates, in bytes.
const CA_BYTES_MAX: u64 = 4 << 20;

pub(crate) struct Client(Agent);

/// What is asked of S3.
#[derive(Clone, Copy)]
pub(crate) enum Verb<'a> {
    /// The object, of at most this many bytes.
    Get(u64),
    /// Whether it is there: no bytes are found.
    Head,
    /// Make it: no bytes are found.
    Put(&'a [u8]),
}

/// How one try ended.
#[derive(Debug)]
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
        tried(url, || self.try_once(url, most))
    }

    /// Asks S3, with a signature if there are keys. `None` when there is no such object.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(crate) fn s3(
        &self,
        object: &Object,
        keys: &S3Keys,
        verb: Verb<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let url = object.url();
        tried(&url, || self.try_s3(&url, object, keys, verb))
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
        body_of(&mut response, most)
    }

    fn try_s3(&self, url: &str, object: &Object, keys: &S3Keys, verb: Verb<'_>) -> Outcome {
        let (method, body) = match verb {
            Verb::Get(_) => (http::Method::GET, &[][..]),
            Verb::Head => (http::Method::HEAD, &[][..]),
            Verb::Put(body) => (http::Method::PUT, body),
        };
        let mut request = http::Request::builder().method(&method).uri(url);
        // Each try has its own time, and thus its own signature.
        for (name, value) in keys.headers(method.as_str(), object, body, SystemTime::now()) {
            request = request.header(name, value);
        }
        let sent = match verb {
            Verb::Put(body) => self.run(request.body(body)),
            _ => self.run(request.body(())),
        };
        let mut response = match sent {
            Ok(response) => response,
            Err(e) => return failed(&e),
        };
        match (response.status().as_u16(), verb) {
            (200, Verb::Get(most)) => body_of(&mut response, most),
            (200 | 204, Verb::Head | Verb::Put(_)) => Outcome::Found(Vec::new()),
            _ => refused(&mut response, object, keys, verb),
        }
    }

    /// Follows no redirection: it is another host or path, which the signature is not for.
    fn run<S: AsSendBody>(
        &self,
        request: http::Result<http::Request<S>>,
    ) -> std::result::Result<http::Response<Body>, ureq::Error> {
        let request = self.0.configure_request(request?).max_redirects(0).build();
        self.0.run(request)
    }
}

/// Tries until it is known how it ends.
fn tried(url: &str, once: impl Fn() -> Outcome) -> Result<Option<Vec<u8>>> {
    let mut pause = PAUSE;
    let mut tries = 1;
    loop {
        let why = match once() {
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

fn body_of(response: &mut http::Response<Body>, most: u64) -> Outcome {
    let body = response.body_mut().with_config().limit(most + 1);
    match body.read_to_vec() {
        Ok(body) => Outcome::Found(body),
        Err(ureq::Error::BodyExceedsLimit(_)) => {
            Outcome::Failed(format!("the server sends more than {most} bytes"))
        }
        Err(e) => failed(&e),
    }
}

/// What an answer of S3 means that is no success.
fn refused(
    response: &mut http::Response<Body>,
    object: &Object,
    keys: &S3Keys,
    verb: Verb<'_>,
) -> Outcome {
    let status = response.status().as_u16();
    let header = |name| {
        let value: &http::HeaderValue = response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    };
    let elsewhere = header("x-amz-bucket-region");
    let target = header("location");
    let text = response.body_mut().with_config().limit(REFUSAL_BYTES_MAX);
    // A text that does not come says nothing.
    let told = Refusal::read(&text.read_to_vec().unwrap_or_default());
    let region = elsewhere
        .or_else(|| told.region.clone())
        .filter(|region| region != keys.region(object));
    match (status, &*told.code) {
        (404, "NoSuchBucket") => Outcome::Failed(format!("there is no bucket `{}`", object.bucket)),
        (404, _) if !matches!(verb, Verb::Put(_)) => Outcome::Absent,
        // An answer without a body. A key that may only write is told by the answer to writing whether it may.
        (403, _) if matches!(verb, Verb::Head) => Outcome::Absent,
        (301 | 302 | 303 | 307 | 308 | 400, _) if region.is_some() => {
            let region = region.unwrap_or_default();
            Outcome::Failed(format!(
                "the bucket is in region `{region}`: end the URL with `?region={region}`, or set AWS_REGION"
            ))
        }
        // Expired keys, for example. The answer to writing has a text.
        (400, _) if matches!(verb, Verb::Head) => Outcome::Absent,
        (301 | 302 | 303 | 307 | 308, _) => {
            let target = target.map_or_else(String::new, |to| {
                format!(" to {}", to.chars().take(200).collect::<String>())
            });
            Outcome::Failed(format!(
                "the server redirects{target}{told}, which signed requests do not follow"
            ))
        }
        (401 | 403, _) if !keys.are_there() => Outcome::Failed(format!(
            "the server refuses access{told}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY if it takes keys"
        )),
        (403, "AccessDenied") if matches!(verb, Verb::Get(_)) => Outcome::Failed(format!(
            "the server refuses access{told}; keys that may not list the bucket get this for a missing object, too"
        )),
        (401 | 403, _) => Outcome::Failed(format!("the server refuses access{told}")),
        (408 | 429 | 500 | 502..=504, _) | (400, "RequestTimeout") => {
            Outcome::Passing(format!("the server answers with status {status}{told}"))
        }
        _ => Outcome::Failed(format!("the server answers with status {status}{told}")),
    }
}

/// [`Outcome::Passing`] for errors of the network and of a busy or restarting server. An untrusted certificate, TLS that is not
/// supported, and a refusal of this host are final.
fn failed(e: &ureq::Error) -> Outcome {
    use io::ErrorKind;
    match e {
        ureq::Error::Timeout(_) => Outcome::Passing("no answer in time".to_owned()),
        ureq::Error::Io(e) => {
            let inner = e.get_ref().and_then(|inner| inner.downcast_ref());
            match (inner, e.kind()) {
                (Some(tls), _) => tls_failed(tls),
                // Not PermissionDenied: firewalls cause it while they reload.
                (None, ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
                    Outcome::Failed(host_reason(e))
                }
                (None, _) => Outcome::Passing(host_reason(e)),
            }
        }
        ureq::Error::ConnectionFailed => Outcome::Passing("no connection".to_owned()),
        ureq::Error::HostNotFound => Outcome::Passing("there is no such host".to_owned()),
        ureq::Error::Protocol(_) => Outcome::Passing(e.to_string()),
        e => Outcome::Failed(e.to_string()),
    }
}

/// Only what the server's configuration causes is final. Other errors, also a peer that speaks no TLS, are what a proxy or a terminator of TLS answers
/// while it starts again.
fn tls_failed(e: &rustls::Error) -> Outcome {
    use AlertDescription as Alert;
    let why = format!("TLS: {e}");
    match e {
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::UnsupportedNameType
        | rustls::Error::PeerIncompatible(_)
        | rustls::Error::AlertReceived(
            Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::ProtocolVersion
            | Alert::InsufficientSecurity,
        ) => Outcome::Failed(why),
        _ => Outcome::Passing(why),
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::CertificateError;

    #[test]
    fn errors_that_may_pass_are_told_from_final_ones() {
        let host = |errno| ureq::Error::Io(io::Error::from_raw_os_error(errno));
        // As rustls hands its errors to ureq.
        let tls = |e: rustls::Error| ureq::Error::Io(io::Error::new(io::ErrorKind::InvalidData, e));
        let alert = |which| tls(rustls::Error::AlertReceived(which));
        let unknown_issuer = CertificateError::UnknownIssuer;
        let cases = [
            (host(13), true, "permission denied"),
            (host(104), true, "connection reset by peer"),
            (host(22), false, "invalid argument"),
            (ureq::Error::HostNotFound, true, "there is no such host"),
            (ureq::Error::TooManyRedirects, false, "too many redirects"),
            (tls(rustls::Error::DecryptError), true, "TLS: "),
            (alert(AlertDescription::InternalError), true, "TLS: "),
            (alert(AlertDescription::HandshakeFailure), true, "TLS: "),
            (alert(AlertDescription::UnknownCA), false, "TLS: "),
            (alert(AlertDescription::ProtocolVersion), false, "TLS: "),
            (
                tls(rustls::Error::InvalidCertificate(unknown_issuer)),
                false,
                "TLS: invalid peer certificate",
            ),
        ];
        for (error, passes, says) in cases {
            let (found, why) = match failed(&error) {
                Outcome::Passing(why) => (true, why),
                Outcome::Failed(why) => (false, why),
                outcome => panic!("{error}: {outcome:?}"),
            };
            assert_eq!(found, passes, "{error}");
            assert!(why.starts_with(says), "{why}");
        }
    }
}
